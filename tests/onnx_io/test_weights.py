"""Reading weights: every place they can lie in, and every way in which their data can be wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from cleave_plan.errors import InputFileError
from cleave_plan.onnx_io.weights import Weights

DATA = np.arange(12, dtype=np.float32).reshape(3, 4)


def model_of(*tensors: onnx.TensorProto, nodes: tuple[onnx.NodeProto, ...] = ()) -> onnx.ModelProto:
    """A model with these initialisers and nodes."""
    return helper.make_model(helper.make_graph(list(nodes), "g", [], [], list(tensors)))


def external(name: str = "w", kind: int = TensorProto.FLOAT, dims: tuple[int, ...] = (3, 4), **entries: str) -> onnx.TensorProto:
    """A tensor whose data lies beside the model."""
    tensor = TensorProto(name=name, data_type=kind, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def read(folder: Path, tensor: onnx.TensorProto) -> np.ndarray:
    """The tensor's array by Weights."""
    return Weights(model_of(tensor), folder / "m.onnx")[tensor.name]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "bool", "float8_e4m3fn", "uint8"])
@pytest.mark.parametrize("offset", [0, 3])
def test_external_data_of_any_type_and_offset(tmp_path: Path, dtype: str, offset: int) -> None:
    """Mapped, not copied, also where the offset is not aligned."""
    array = DATA.astype(np.dtype(dtype))
    (tmp_path / "w.bin").write_bytes(b"x" * offset + array.tobytes() + b"tail")
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    found = read(tmp_path, external(kind=kind, location="w.bin", offset=str(offset), length=str(array.nbytes)))
    assert found.dtype == array.dtype
    assert np.array_equal(found, array)
    assert not found.flags.owndata


def test_packed_four_bit_data(tmp_path: Path) -> None:
    """Two elements a byte, an odd number of them."""
    array = np.array([-8, 7, 3], ml_dtypes.int4)
    packed = numpy_helper.from_array(array, "w")
    (tmp_path / "w.bin").write_bytes(packed.raw_data)
    found = read(tmp_path, external(kind=TensorProto.INT4, dims=(3,), location="w.bin"))
    assert found.astype(int).tolist() == [-8, 7, 3]


def test_inline_constants_and_sparse_tensors(tmp_path: Path) -> None:
    """Initialisers, every form of Constant, and sparse initialisers by linear and by full positions."""
    nodes = (
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(DATA)),
        helper.make_node("Constant", [], ["i"], value_ints=[1, 2]), helper.make_node("Constant", [], ["f"], value_float=0.5),
        helper.make_node("Constant", [], ["s"], value_string="text"),
    )  # fmt: skip
    model = model_of(numpy_helper.from_array(DATA, "w"), nodes=nodes)
    for name, places, dims in (("p", [1, 5], [2]), ("q", [[0, 1], [1, 2]], [2, 2])):
        model.graph.sparse_initializer.append(
            helper.make_sparse_tensor(
                helper.make_tensor(name, TensorProto.FLOAT, [2], [7.0, 8.0]),
                helper.make_tensor("", TensorProto.INT64, dims, np.ravel(places).tolist()), [2, 3],
            )
        )  # fmt: skip
    weights = Weights(model, tmp_path / "m.onnx")
    assert set(weights) == {"w", "c", "i", "f", "s", "p", "q"}
    assert np.array_equal(weights["w"], DATA)
    assert np.array_equal(weights["c"], DATA)
    assert (weights["i"].dtype, weights["i"].tolist()) == (np.int64, [1, 2])
    assert (weights["f"].dtype, weights["f"].tolist()) == (np.float32, 0.5)
    assert weights["s"].item() in ("text", b"text")
    assert weights["p"].tolist() == weights["q"].tolist() == [[0, 7, 0], [0, 0, 8]]


FAULTS: Mapping[str, tuple[dict[str, str], str]] = {
    "absent": ({"location": "no.bin"}, r"no\.bin is absent; expected the weights beside the model; .*a plan needs no weights"),
    "outside": ({"location": "../w.bin"}, "lies outside the model's folder"),
    "absolute": ({"location": "/etc/passwd"}, "lies outside the model's folder"),
    "link": ({"location": "link.bin"}, "lies outside the model's folder"),
    "linked folder": ({"location": "up/w.bin"}, "lies outside the model's folder"),
    "short": ({"location": "short.bin"}, "has 47 bytes; expected at least 48"),
    "offset": ({"location": "w.bin", "offset": "1"}, "has 48 bytes; expected at least 49"),
    "huge offset": ({"location": "w.bin", "offset": str(2**62)}, "has 48 bytes; expected at least"),
    "negative offset": ({"location": "w.bin", "offset": "-4"}, "offset '-4'"),
    "length": ({"location": "w.bin", "length": "40"}, "is said to hold 40 bytes of it; expected 48 bytes"),
    "no location": ({"offset": "0"}, "no usable location"),
    "empty file": ({"location": "empty.bin"}, "cannot be read"),
    "folder": ({"location": "."}, "lies outside"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_data_that_is_absent_outside_or_wrong(tmp_path: Path, case: str) -> None:
    """The error names the model, the tensor and the reason, and nothing outside the folder is opened."""
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "w.bin").write_bytes(DATA.tobytes())
    (folder / "w.bin").write_bytes(DATA.tobytes())
    (folder / "short.bin").write_bytes(DATA.tobytes()[:-1])
    (folder / "empty.bin").touch()
    (folder / "link.bin").symlink_to(tmp_path / "w.bin")
    (folder / "up").symlink_to(tmp_path)
    entries, message = FAULTS[case]
    with pytest.raises(InputFileError, match=rf"tensor 'w'.*{message}"):
        read(folder, external(**entries))


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3], raw_data=b"12345678"), "does not fit its shape"),
        (TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[-1], raw_data=b"1234"), r"shape \(-1,\) is negative"),
        (external(dims=(-3, 4), location="w.bin"), "is negative"),
        (external(kind=TensorProto.STRING, location="w.bin"), "cannot lie beside a model"),
        (external(kind=99, location="w.bin"), "element type 99"),
    ],
)
def test_tensors_that_contradict_themselves(tmp_path: Path, tensor: onnx.TensorProto, message: str) -> None:
    """Shape, type and data must fit each other."""
    (tmp_path / "w.bin").write_bytes(DATA.tobytes())
    with pytest.raises(InputFileError, match=message):
        read(tmp_path, tensor)


def test_sparse_positions_outside_are_refused(tmp_path: Path) -> None:
    """A position beyond the shape."""
    model = model_of()
    model.graph.sparse_initializer.append(
        helper.make_sparse_tensor(
            helper.make_tensor("p", TensorProto.FLOAT, [1], [7.0]), helper.make_tensor("", TensorProto.INT64, [1], [6]), [2, 3]
        )
    )
    with pytest.raises(InputFileError, match="positions do not fit"):
        Weights(model, tmp_path / "m.onnx")["p"]


def test_an_empty_tensor_needs_no_file(tmp_path: Path) -> None:
    """Nothing is read for no bytes."""
    assert read(tmp_path, external(dims=(0, 4), location="w.bin")).shape == (0, 4)


def test_all_external_data_can_be_checked_at_once(tmp_path: Path) -> None:
    """Without reading it."""
    (tmp_path / "w.bin").write_bytes(DATA.tobytes())
    Weights(model_of(external(location="w.bin")), tmp_path / "m.onnx").check_external()
    with pytest.raises(InputFileError, match="'v'"):
        Weights(model_of(external(location="w.bin"), external("v", location="v.bin")), tmp_path / "m.onnx").check_external()
