"""Faults that users of other tools reported, each rebuilt small, with the right answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from cleave_plan.errors import InputFileError
from cleave_plan.workload.gemm import ConvWindow, Role

from import_cases import ints, load, model, shapes_of, value, weight  # isort: skip

node = helper.make_node


def test_bias_is_no_matrix_work(tmp_path: Path) -> None:
    """The bias additions of a convolution are not counted as MACs."""
    constants = {"w": weight(32, 16, 3, 3), "b": weight(32)}
    proto = model([node("Conv", ["x", "w", "b"], ["y"], pads=[1] * 4)], {"x": (1, 16, 8, 8)}, ["y"], constants)
    assert load(tmp_path, proto).workload.gemm_macs == 32 * 16 * 9 * 64 == 294912


def test_depthwise_convolution(tmp_path: Path) -> None:
    """Each group multiplies its own channels only."""
    proto = model(
        [node("Conv", ["x", "w"], ["y"], group=16, pads=[1] * 4)], {"x": (1, 16, 8, 8)}, ["y"], {"w": weight(16, 1, 3, 3)}
    )
    assert load(tmp_path, proto).workload.gemm_macs == 9216


def test_automatic_padding_of_a_dilated_kernel(tmp_path: Path) -> None:
    """SAME_UPPER pads for the kernel as it reaches, not as it is written."""
    attributes = {"auto_pad": "SAME_UPPER", "dilations": [2, 2]}
    imported = load(
        tmp_path, model([node("Conv", ["x", "w"], ["y"], **attributes)], {"x": (1, 4, 16, 16)}, ["y"], {"w": weight(4, 4, 3, 3)})
    )
    assert imported.tensor_shapes["y"] == (1, 4, 16, 16)
    assert imported.workload.gemms[0].window == ConvWindow(
        images=1, channels=4, input=(16, 16), output=(16, 16), kernel=(3, 3), strides=(1, 1), dilations=(2, 2), pads=(2, 2)
    )


def test_channels_last_models(tmp_path: Path) -> None:
    """A model that is fed images with channels last transposes them, and its work is not 0."""
    nodes = [node("Transpose", ["image"], ["x"], perm=[0, 3, 1, 2]), node("Conv", ["x", "w"], ["y"])]
    proto = model(nodes, {"image": ("N", 8, 9, 3)}, ["y"], {"w": weight(4, 3, 3, 3)})
    assert shapes_of(load(tmp_path, proto, dims={"N": 2})) == {"y": (1, 2 * 6 * 7, 27, 4)}


def test_training_graph_products(tmp_path: Path) -> None:
    """The weight gradient of a layer is a Gemm with transA whose K is the batch."""
    nodes = [node("Gemm", ["x", "dy"], ["dw"], name="dw", transA=1), node("Gemm", ["dy", "w"], ["dx"], name="dx", transB=1)]
    proto = model(nodes, {"x": ("batch", 8), "dy": ("batch", 3)}, ["dw", "dx"], {"w": weight(8, 3)})
    assert shapes_of(load(tmp_path, proto, dims={"batch": 32})) == {"dw": (1, 8, 32, 3), "dx": (1, 32, 3, 8)}


def test_weights_that_are_graph_inputs(tmp_path: Path) -> None:
    """A weight that the caller feeds is an activation, with the same product."""
    imported = load(tmp_path, model([node("MatMul", ["x", "w"], ["y"])], {"x": (2, 3), "w": (3, 4)}, ["y"]))
    assert shapes_of(imported) == {"y": (1, 2, 3, 4)}
    assert imported.workload.gemms[0].b.role == Role.ACTIVATION


def test_a_matmul_with_an_outer_bias_is_no_gemm(tmp_path: Path) -> None:
    """What is added behind a product belongs to the server, whatever its shape."""
    nodes = [
        node("MatMul", ["x", "w"], ["m"]),
        node("Reshape", ["m", "s"], ["r"], name="view"),
        node("Add", ["r", "b"], ["y"], name="add"),
    ]
    constants = {"w": weight(4, 5), "s": ints(1, 3, 5), "b": weight(1, 3, 5)}
    workload = load(tmp_path, model(nodes, {"x": (3, 4)}, ["y"], constants)).workload
    assert workload.gemm_macs == 60
    assert [operator.name for operator in workload.server_operators] == ["view", "add"]


def test_squeeze_beside_an_open_size(tmp_path: Path) -> None:
    """Axes that are both an input and an initialiser, and a symbolic size: the other axes are known."""
    inputs = [value("x", (2, 1, "n")), value("axes", (1,), TensorProto.INT64)]
    nodes = [node("Squeeze", ["x", "axes"], ["s"]), node("Transpose", ["s"], ["t"]), node("MatMul", ["s", "t"], ["y"])]
    proto = model(nodes, inputs, ["y"], {"axes": ints(1)})
    assert shapes_of(load(tmp_path, proto, dims={"n": 7})) == {"y": (1, 2, 7, 2)}
    with pytest.raises(InputFileError, match="--dim n=INT"):
        load(tmp_path, proto)


def test_a_batch_baked_into_a_reshape(tmp_path: Path) -> None:
    """A symbolic batch that the file contradicts inside is told with the node, not counted for another batch."""
    nodes = [node("Reshape", ["x", "s"], ["r"], name="baked"), node("MatMul", ["r", "w"], ["y"])]
    proto = model(nodes, {"x": ("batch", 4, 6)}, ["y"], {"s": ints(1, 24), "w": weight(24, 5)})
    assert shapes_of(load(tmp_path, proto, dims={"batch": 1})) == {"y": (1, 1, 24, 5)}
    with pytest.raises(InputFileError, match=r"node 'baked' \(Reshape\): \[3, 4, 6\] cannot be reshaped to \[1, 24\]"):
        load(tmp_path, proto, dims={"batch": 3})


def test_a_product_in_a_loop_is_not_lost(tmp_path: Path) -> None:
    """A product in a Loop counts once for each iteration, and stays on the server; what follows it is imported."""
    body = helper.make_graph(
        [node("MatMul", ["state", "w"], ["next"]), node("Identity", ["go"], ["on"])], "body",
        [value("step", (), TensorProto.INT64), value("go", (), TensorProto.BOOL), value("state", (2, 4))],
        [value("on", (), TensorProto.BOOL), value("next", (2, 4))],
    )  # fmt: skip
    nodes = [node("Loop", ["trips", "", "x"], ["z"], name="loop", body=body), node("MatMul", ["z", "w"], ["y"])]
    workload = load(tmp_path, model(nodes, {"x": (2, 4)}, ["y"], {"w": weight(4, 4), "trips": np.int64(5)})).workload
    assert not workload.unrecognised
    assert {gemm.name: (gemm.macs, gemm.repeats, gemm.pinned) for gemm in workload.gemms} == {
        "loop/next": (5 * 32, 5, "inside Loop loop"), "y": (32, 1, ""),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("op", "domain", "inputs", "constants", "attributes", "shape", "macs"),
    [
        ("LSTM", "", ["x", "w", "r"], {"w": (1, 256, 64), "r": (1, 256, 64)}, {"hidden_size": 64}, (100, 1, 1, 64), 3276800),
        (
            "MatMulNBits", "com.microsoft", ["m", "w", "s"], {"w": (32, 2, 16), "s": (64,)},
            {"K": 64, "N": 32, "bits": 4, "block_size": 32}, (3, 32), 3 * 64 * 32,
        ),
    ],
)  # fmt: skip
def test_work_that_counters_miss(
    tmp_path: Path, op: str, domain: str, inputs: list[str], constants: dict[str, tuple[int, ...]],
    attributes: dict[str, int], shape: tuple[int, ...], macs: int,
) -> None:  # fmt: skip
    """Every step of a recurrent layer and products with packed weights are counted."""
    tensors = {
        name: np.ones(dims, np.uint8 if op == "MatMulNBits" and name == "w" else np.float32) for name, dims in constants.items()
    }
    nodes = [node(op, inputs, ["y"], name="work", domain=domain, **attributes)]
    imported = load(tmp_path, model(nodes, {"x": (100, 1, 64), "m": (3, 64)}, ["y"], tensors, domains=[domain] if domain else []))
    assert not imported.workload.unrecognised
    assert imported.workload.gemm_macs == macs
    assert imported.tensor_shapes["y"] == shape


def test_layer_norms_that_are_older_than_the_standard(tmp_path: Path) -> None:
    """Runtimes had LayerNormalization before operator set 17; a file of set 11 that uses it is understood."""
    nodes = [node("LayerNormalization", ["x", "g"], ["n"]), node("MatMul", ["n", "w"], ["y"])]
    assert shapes_of(load(tmp_path, model(nodes, {"x": (2, 3)}, ["y"], {"g": weight(3), "w": weight(3, 4)}, opset=11))) == {
        "y": (1, 2, 3, 4)
    }


def test_thousands_of_nodes(tmp_path: Path) -> None:
    """A deep graph is no recursion and no search: 6,000 nodes, one level for each product."""
    nodes = []
    for layer in range(2000):
        nodes += [
            node("MatMul", [f"x{layer}", "w"], [f"m{layer}"]), node("Add", [f"m{layer}", f"x{layer}"], [f"a{layer}"]),
            node("Relu", [f"a{layer}"], [f"x{layer + 1}"]),
        ]  # fmt: skip
    workload = load(tmp_path, model(nodes, {"x0": (2, 3)}, ["x2000"], {"w": weight(3, 3)})).workload
    assert (len(workload.levels), workload.gemm_macs, len(workload.classes())) == (2000, 2000 * 18, 1)
