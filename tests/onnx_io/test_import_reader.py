"""Opening files: what is no model is refused with a reason; functions, order and initialisers are as the standard says."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from cleave_plan.errors import CleaveError, InputFileError
from cleave_plan.onnx_io.importer import load_model
from cleave_plan.workload.gemm import Role

from import_cases import ints, load, model, outside, save, shapes_of, value, weight  # isort: skip

node = helper.make_node


def plain() -> onnx.ModelProto:
    """A model of one product."""
    return model([node("MatMul", ["x", "w"], ["y"], name="product")], {"x": (2, 3)}, ["y"], {"w": weight(3, 4)})


def test_no_such_file(tmp_path: Path) -> None:
    """A path without a file, a folder, and an empty file each have their own sentence; all end with exit code 4."""
    (tmp_path / "empty.onnx").write_bytes(b"")
    for path, fragment in [
        (tmp_path / "absent.onnx", "there is no such file"),
        (tmp_path / "absent" / "model.onnx", "there is no such file"),
        (tmp_path, "this is a folder"),
        (tmp_path / "empty.onnx", "the file is empty"),
    ]:
        with pytest.raises(InputFileError, match=fragment) as error:
            load_model(path)
        assert error.value.exit_code == 4
        assert str(path) in str(error.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes exist on POSIX only")
def test_a_pipe_is_refused(tmp_path: Path) -> None:
    """A pipe would be waited for without end."""
    os.mkfifo(tmp_path / "pipe.onnx")
    with pytest.raises(InputFileError, match="not a regular file"):
        load_model(tmp_path / "pipe.onnx")


@pytest.mark.parametrize(
    ("content", "what", "remedy"),
    [
        (gzip.compress(plain().SerializeToString()), "compressed \\(gzip\\)", "unpack it first"),
        (str(plain()).encode(), "the text form of a protobuf", "binary form"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a pointer of Git LFS", "git lfs pull"),
        (b"\n<!DOCTYPE html><title>404</title>", "a web page", "download the model itself"),
        (b"PK\x03\x04" + bytes(40), "a zip archive", "export the model to ONNX"),
        (b'{"irVersion": "8"}', "JSON", "binary form"),
        (b"\x24\x00\x00\x00ORTM" + bytes(40), "onnxruntime's own format", "the .onnx file"),
    ],
)
def test_what_the_file_is_instead(tmp_path: Path, content: bytes, what: str, remedy: str) -> None:
    """Files that people take for a model are told by how they begin, with what to do."""
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(InputFileError, match=f"{what}.*{remedy}"):
        load_model(path)


@pytest.mark.parametrize(
    "content", [b"\x89PNG\r\n\x1a\n" + bytes(64), b"<html>not a model</html>", b"PK\x03\x04" + bytes(40), bytes(100)]
)
def test_other_files(tmp_path: Path, content: bytes) -> None:
    """Files of other kinds are refused."""
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(InputFileError):
        load_model(path)


def test_truncated_files(tmp_path: Path) -> None:
    """However much of a file is missing at the end, it is an error of the file."""
    content = plain().SerializeToString()
    path = tmp_path / "model.onnx"
    for length in range(1, len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(InputFileError):
            load_model(path)


def test_a_model_without_a_graph(tmp_path: Path) -> None:
    """An ONNX file needs a graph and an operator set."""
    with pytest.raises(InputFileError, match="holds no graph"):
        load(tmp_path, onnx.ModelProto(ir_version=8, opset_import=[helper.make_opsetid("", 17)]))
    without = plain()
    del without.opset_import[:]
    with pytest.raises(InputFileError, match="opset_import"):
        load(tmp_path, without)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_files(tmp_path: Path, changes: list[tuple[float, int]]) -> None:
    """Whatever bytes change, the import succeeds or ends with an error for the user."""
    nodes = [
        node("Shape", ["x"], ["s"]), node("Concat", ["s", "minus"], ["t"], axis=0), node("Reshape", ["x", "t"], ["r"]),
        node("MatMul", ["x", "w"], ["y"]), node("Conv", ["image", "k"], ["z"], pads=[1, 1]),
    ]  # fmt: skip
    constants = {"w": weight(3, 4), "minus": ints(-1), "k": weight(2, 2, 3)}
    content = bytearray(model(nodes, {"x": (2, 3), "image": (1, 2, 5)}, ["y", "r", "z"], constants).SerializeToString())
    for place, byte in changes:
        content[int(place * (len(content) - 1))] = byte
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with contextlib.suppress(InputFileError):  # any other exception fails the test
        load_model(path)


def test_the_hash_is_the_files(tmp_path: Path) -> None:
    """The workload carries the SHA-256 of the model file and its name."""
    path = save(tmp_path, plain(), "small.onnx")
    workload = load_model(path).workload
    assert workload.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert workload.name == "small"


def test_unsorted_nodes(tmp_path: Path) -> None:
    """Nodes are put into an order that can run; a sorted file keeps its own."""
    nodes = [
        node("MatMul", ["b", "w"], ["c"], name="third"),
        node("Relu", ["x"], ["a"], name="first"),
        node("Relu", ["a"], ["b"], name="second"),
    ]
    imported = load(tmp_path, model(nodes, {"x": (2, 3)}, ["c"], {"w": weight(3, 3)}))
    assert [entry.name for entry in imported.model.graph.node] == ["first", "second", "third"]
    sorted_nodes = [node("Relu", ["x"], [f"r{place}"], name=f"n{place}") for place in (2, 0, 1)]
    imported = load(tmp_path, model(sorted_nodes, {"x": (2, 3)}, ["r0"]))
    assert [entry.name for entry in imported.model.graph.node] == ["n2", "n0", "n1"]


def test_unsorted_captures(tmp_path: Path) -> None:
    """What a subgraph reads of the enclosing graph must be made before the node that holds it."""
    branch = helper.make_graph([node("Relu", ["late"], ["inner"])], "branch", [], [value("inner", None)])
    nodes = [
        node("If", ["c"], ["y"], name="if", then_branch=branch, else_branch=branch),
        node("Relu", ["x"], ["late"], name="relu"),
    ]
    imported = load(tmp_path, model(nodes, [value("x", (2, 3)), value("c", (), TensorProto.BOOL)], ["y"]))
    assert [entry.name for entry in imported.model.graph.node] == ["relu", "if"]
    assert imported.tensor_shapes["y"] == (2, 3)


@pytest.mark.parametrize(
    ("nodes", "outputs", "fragment"),
    [
        ([node("Relu", ["b"], ["a"], name="loop"), node("Relu", ["a"], ["b"])], ["b"], "depends on its own output"),
        ([node("Relu", ["ghost"], ["a"], name="lost")], ["a"], "node 'lost' (Relu) reads tensor 'ghost', which nothing defines"),
        ([node("Relu", ["x"], ["a"]), node("Relu", ["x"], ["a"], name="again")], ["a"], "tensor 'a' is defined twice"),
        ([node("Relu", ["x"], ["x"], name="over")], ["x"], "tensor 'x' is defined twice"),
        ([node("Relu", ["x"], ["a"])], ["nowhere"], "nothing defines the output 'nowhere'"),
    ],
)
def test_graphs_that_cannot_run(tmp_path: Path, nodes: list[onnx.NodeProto], outputs: list[str], fragment: str) -> None:
    """Cycles, tensors that nothing makes and tensors that two nodes make are named."""
    with pytest.raises(InputFileError) as error:
        load(tmp_path, model(nodes, {"x": (2, 3)}, outputs))
    assert fragment in str(error.value)


def test_a_product_of_three(tmp_path: Path) -> None:
    """A MatMul with an input too many is refused (found by fuzzing: it was taken for a part of attention)."""
    proto = model([node("MatMul", ["x", "x", "x"], ["y"])], {"x": (3, 3)}, ["y"])
    with pytest.raises(InputFileError, match="3 inputs, and MatMul multiplies two"):
        load(tmp_path, proto)


def test_the_last_of_two_constants_counts(tmp_path: Path) -> None:
    """Two Constants for one tensor are read as onnxruntime reads them."""
    nodes = [
        node("Constant", [], ["shape"], value_ints=[3, 2]), node("Constant", [], ["shape"], value_ints=[1, 6]),
        node("Reshape", ["x", "shape"], ["r"]), node("MatMul", ["r", "w"], ["y"]),
    ]  # fmt: skip
    assert shapes_of(load(tmp_path, model(nodes, {"x": (2, 3)}, ["y"], {"w": weight(6, 5)}))) == {"y": (1, 1, 6, 5)}


def test_functions_are_inlined(tmp_path: Path) -> None:
    """A local function's products are found, its attribute references filled in, at each of its calls."""
    gemm = node("Gemm", ["a", "b"], ["c"])
    for name in ("transB", "alpha"):
        kind = onnx.AttributeProto.INT if name == "transB" else onnx.AttributeProto.FLOAT
        gemm.attribute.append(onnx.AttributeProto(name=name, ref_attr_name=name, type=kind))
    function = helper.make_function("my", "Dense", ["a", "b"], ["c"], [gemm], [helper.make_opsetid("", 17)], ["transB", "alpha"])
    nodes = [
        node("Dense", ["x", "w"], ["h"], domain="my", transB=0, alpha=1.0),
        node("Dense", ["h", "v"], ["y"], domain="my", transB=1, alpha=2.0),
    ]
    proto = model(nodes, {"x": (2, 3)}, ["y"], {"w": weight(3, 4), "v": weight(5, 4)}, functions=[function], domains=["my"])
    imported = load(tmp_path, proto)
    assert [tuple(gemm.shape) for gemm in imported.workload.gemms] == [(1, 2, 3, 4), (1, 2, 4, 5)]
    assert [gemm.level for gemm in imported.workload.gemms] == [0, 1]
    assert len(imported.model.functions) == 0


def test_nested_functions_and_recursion(tmp_path: Path) -> None:
    """Functions may call functions, but not themselves."""
    standard, mine = helper.make_opsetid("", 17), helper.make_opsetid("my", 1)
    inner = helper.make_function("my", "Inner", ["a", "b"], ["c"], [node("MatMul", ["a", "b"], ["c"])], [standard])
    outer = helper.make_function(
        "my", "Outer", ["a", "b"], ["c"], [node("Inner", ["a", "b"], ["c"], domain="my")], [standard, mine]
    )
    call = [node("Outer", ["x", "w"], ["y"], domain="my")]
    proto = model(call, {"x": (2, 3)}, ["y"], {"w": weight(3, 4)}, functions=[inner, outer], domains=["my"])
    assert [tuple(gemm.shape) for gemm in load(tmp_path, proto).workload.gemms] == [(1, 2, 3, 4)]
    circle = helper.make_function(
        "my", "Outer", ["a", "b"], ["c"], [node("Outer", ["a", "b"], ["c"], domain="my")], [standard, mine]
    )
    with pytest.raises(InputFileError, match="my::Outer calls itself"):
        load(tmp_path, model(call, {"x": (2, 3)}, ["y"], {"w": weight(3, 4)}, functions=[circle], domains=["my"]))


def reshaped(ir: int) -> onnx.ModelProto:
    """A model whose Reshape target is an initialiser that is also listed as an input."""
    nodes = [node("Reshape", ["x", "shape"], ["r"]), node("MatMul", ["r", "w"], ["y"])]
    inputs = [value("x", (6, 4)), value("shape", (2,), TensorProto.INT64), value("w", (3, 5))]
    return model(nodes, inputs, ["y"], {"shape": ints(8, 3), "w": weight(3, 5)}, ir=ir)


def test_initialisers_listed_as_inputs(tmp_path: Path) -> None:
    """They are constants before IR 4 and defaults from IR 4 on: either way only x has to be fed."""
    for ir in (3, 8):
        workload = load(tmp_path, reshaped(ir)).workload
        assert [entry.name for entry in workload.inputs] == ["x"]
        assert [tuple(gemm.shape) for gemm in workload.gemms] == [(1, 8, 3, 5)]
        assert workload.gemms[0].b.role == Role.PARAMETER
        assert any("default values for 2 inputs" in note for note in workload.notes) == (ir >= 4)


def test_a_default_that_the_caller_feeds(tmp_path: Path) -> None:
    """From IR 4 on, naming such an input makes it one; before, it stays a constant."""
    imported = load(tmp_path, reshaped(8), shapes={"w": (3, 5)})
    assert [entry.name for entry in imported.workload.inputs] == ["x", "w"]
    assert imported.workload.gemms[0].b.role == Role.ACTIVATION
    assert dict(imported.workload.parameters) == {}
    with pytest.raises(CleaveError, match="no input 'w'"):
        load(tmp_path, reshaped(3), shapes={"w": (3, 5)})


def test_sparse_initialisers(tmp_path: Path) -> None:
    """A sparse weight has the shape of the tensor that it stands for, and the bytes that it stores."""
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(np.ones(2, np.float32), "w"), numpy_helper.from_array(ints(1, 7), "places"), [3, 4]
    )
    proto = model([node("MatMul", ["x", "w"], ["y"])], {"x": (2, 3)}, ["y"], sparse_initializer=[sparse])
    workload = load(tmp_path, proto).workload
    assert [tuple(gemm.shape) for gemm in workload.gemms] == [(1, 2, 3, 4)]
    assert dict(workload.parameters) == {"w": 8}


def test_weights_may_be_absent(tmp_path: Path) -> None:
    """Shapes and bytes come from the headers; whether the data is there is told."""
    proto = model([node("MatMul", ["x", "w"], ["y"])], {"x": (2, 3)}, ["y"], {"w": outside("w", (3, 4))})
    workload = load(tmp_path, proto).workload
    assert (workload.weights_present, dict(workload.parameters), workload.parameter_elements) == (False, {"w": 48}, 12)
    (tmp_path / "weights.bin").write_bytes(bytes(48))
    assert load(tmp_path, proto).workload.weights_present
    short = model(
        [node("MatMul", ["x", "w"], ["y"])], {"x": (2, 3)}, ["y"], {"w": outside("w", (3, 4), offset="16", length="48")}
    )
    assert not load(tmp_path, short).workload.weights_present


def test_weights_lie_beside_the_model_wherever_we_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A location is relative to the file as it is named: not to the working folder, not to what a link leads to."""
    folder, elsewhere = tmp_path / "models", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    proto = model([node("MatMul", ["x", "w"], ["y"])], {"x": (2, 3)}, ["y"], {"w": outside("w", (3, 4))})
    save(elsewhere, proto)
    (folder / "model.onnx").symlink_to(elsewhere / "model.onnx")
    (folder / "weights.bin").write_bytes(bytes(48))
    monkeypatch.chdir(elsewhere)
    assert load_model(folder / "model.onnx").workload.weights_present
    assert load_model("../models/model.onnx").workload.weights_present
    assert not load_model("model.onnx").workload.weights_present


def test_weights_without_end(tmp_path: Path) -> None:
    """A weight of 4 GiB that is not there is imported all the same."""
    proto = model([node("MatMul", ["x", "w"], ["y"])], {"x": (1, 32768)}, ["y"], {"w": outside("w", (32768, 32768))})
    workload = load(tmp_path, proto).workload
    assert workload.gemm_macs == 32768 * 32768
    assert workload.parameters["w"] == 4 * 32768 * 32768


@pytest.mark.parametrize(
    "location", ["../secret.bin", "/etc/passwd", "sub/../../secret.bin", "", "link.bin", "..\\secret.bin", "."]
)
def test_data_outside_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    """A model must not make us read other files: not by "..", not by a whole path, not through a link."""
    folder = tmp_path / "models"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(48))
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    proto = model([node("MatMul", ["x", "w"], ["y"])], {"x": (2, 3)}, ["y"], {"w": outside("w", (3, 4), location=location)})
    with pytest.raises(InputFileError, match="external data"):
        load(folder, proto)


@pytest.mark.parametrize("entries", [{"offset": "-4"}, {"length": "many"}, {"offset": "1e3"}])
def test_ranges_of_external_data(tmp_path: Path, entries: dict[str, str]) -> None:
    """Offsets and lengths are whole numbers."""
    proto = model([node("MatMul", ["x", "w"], ["y"])], {"x": (2, 3)}, ["y"], {"w": outside("w", (3, 4), **entries)})
    with pytest.raises(InputFileError, match="whole number of bytes"):
        load(tmp_path, proto)


def test_small_constants_beside_the_file(tmp_path: Path) -> None:
    """A Reshape target that lies in the data file is read from the model's folder, whatever the working folder is."""
    nodes = [node("Reshape", ["x", "shape"], ["r"]), node("MatMul", ["r", "w"], ["y"])]
    constants = {"shape": outside("shape", (2,), TensorProto.INT64, offset="8", length="16"), "w": weight(3, 5)}
    proto = model(nodes, {"x": (6, 4)}, ["y"], constants)
    (tmp_path / "weights.bin").write_bytes(bytes(8) + ints(8, 3).tobytes())
    assert shapes_of(load(tmp_path, proto)) == {"y": (1, 8, 3, 5)}


def test_a_constant_beside_the_file_is_not_read_from_it(tmp_path: Path) -> None:
    """Where a tensor says that its data lies outside, bytes that were left in the file are not its data."""
    target = outside("shape", (2,), TensorProto.INT64, length="16")
    target.raw_data = ints(4, 6).tobytes()
    proto = model([node("Reshape", ["x", "shape"], ["r"]), node("MatMul", ["r", "w"], ["y"])], {"x": (6, 4)}, ["y"],
                  {"shape": target, "w": weight(3, 5)})  # fmt: skip
    (tmp_path / "weights.bin").write_bytes(ints(8, 3).tobytes())
    assert shapes_of(load(tmp_path, proto)) == {"y": (1, 8, 3, 5)}


def test_damaged_small_constants(tmp_path: Path) -> None:
    """A tensor whose bytes do not fit its header is named."""
    shape = TensorProto(name="shape", data_type=TensorProto.INT64, dims=[2], raw_data=bytes(11))
    proto = model([node("Reshape", ["x", "shape"], ["r"])], {"x": (6, 4)}, ["r"], {"shape": shape})
    with pytest.raises(InputFileError, match="tensor 'shape'"):
        load(tmp_path, proto)


@pytest.mark.parametrize("opset", [1, 2, 3, 4, 5, 6])
def test_first_operator_sets(tmp_path: Path, opset: int) -> None:
    """Where onnx infers nothing of the common operators, what stands behind them is counted all the same."""
    reshape = node("Reshape", ["g", "s"], ["r"]) if opset > 4 else node("Reshape", ["g"], ["r"], shape=[-1, 2, 4])
    nodes = [
        node("Gemm", ["x", "w", "b"], ["g"], name="fc", broadcast=1),
        reshape,
        node("Add", ["r", "c"], ["a"], broadcast=1, axis=2),
        node("Relu", ["a"], ["z"]),
        node("MatMul", ["z", "m"], ["y"], name="product"),
        node("Dropout", ["y"], ["last"]),
    ]
    constants = {"w": weight(6, 8), "b": weight(8), "c": weight(4), "m": weight(4, 5), "s": ints(-1, 2, 4)}
    found = load(tmp_path, model(nodes, {"x": (3, 6)}, ["last"], constants, opset=opset)).workload
    assert [(gemm.name, gemm.macs) for gemm in found.gemms] == [("fc", 3 * 6 * 8), ("product", 3 * 2 * 4 * 5)]
    assert [output.shape for output in found.outputs] == [(3, 2, 5)]
    assert found.unknown == ()
