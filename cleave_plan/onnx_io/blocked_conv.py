"""Convolutions of images in blocks of channels, by the operators that onnxruntime itself rewrites convolutions into.

Its own domain has a Conv whose images and kernels lie in blocks (:mod:`cleave_plan.kernels.channel_blocks`), which adds an
addend and bounds sums as it stores them, and ReorderInput and ReorderOutput between blocks and the usual layout. A whole model is
rewritten so; a convolution by itself would be reordered on both sides each time, which costs about half of a 1 x 1 kernel's time.

How many channels a block has depends on the processor, and the domain is no promise of onnxruntime's: :func:`block_size` asks it,
and counts on nothing that a small convolution does not confirm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from cleave_plan.kernels.arrays import Array
from cleave_plan.kernels.channel_blocks import Blocks, in_blocks
from cleave_plan.kernels.epilogue import RELU, Epilogue
from cleave_plan.onnx_io.ort_session import session_options
from cleave_plan.onnx_io.refusal import RefusedError, or_refused
from cleave_plan.workload.gemm import ConvWindow

DOMAIN = "com.microsoft.nchwc"
_OPSET, _IR = 13, 8
_PROBED = 64
"""Channels of the small convolution: a multiple of every block that there is."""


@cache
def block_size() -> int:
    """Channels of a block on this machine; 0 where onnxruntime has no such convolutions, or others than are counted on."""
    ramp = np.arange(_PROBED * 2, dtype=np.float32).reshape(1, _PROBED, 1, 2)
    try:
        reordered = run_once([helper.make_node("ReorderInput", ["x"], ["y"], domain=DOMAIN)], {"x": ramp}, {})
        size = int(np.argmax(reordered.ravel() == 1))  # the second position of the first channel
        if size < 2 or _PROBED % size or not np.array_equal(reordered, in_blocks(ramp, size)):
            return 0
        return size if _confirmed(size) else 0
    except RefusedError:  # it has no such operators
        return 0


def _confirmed(size: int) -> bool:
    """Whether a small convolution from blocks to blocks is right; of whole numbers, so that it is exact."""
    draw = np.random.default_rng(0)
    x, w, r = (draw.integers(-4, 5, (_PROBED, _PROBED)).astype(np.float32) for _ in range(3))
    row = (1, _PROBED)
    window = ConvWindow(
        images=1, channels=_PROBED, input=row, output=row, kernel=(1, 1), strides=(1, 1), dilations=(1, 1), pads=(0, 0)
    )  # fmt: skip
    nodes, constants = conv_nodes(
        window, (0,) * 4, w[None].transpose(0, 2, 1), None, RELU, Blocks(size, True, True, True), adds=True
    )
    feeds = {name: in_blocks(array.reshape(1, _PROBED, 1, _PROBED), size) for name, array in (("x", x), ("r", r))}
    wanted = np.maximum(w @ x + r, 0).reshape(1, _PROBED, 1, _PROBED)
    return bool(np.array_equal(run_once(nodes, feeds, constants), in_blocks(wanted, size)))


def run_once(nodes: Sequence[onnx.NodeProto], feeds: Mapping[str, Array], constants: Mapping[str, Array]) -> Array:
    """The tensor y of some nodes."""
    result: Array = or_refused(lambda: session_of(nodes, list(feeds), constants).run(None, dict(feeds))[0])
    return result


def conv_nodes(
    window: ConvWindow, pads: Sequence[int], kernels: Array, bias: Array | None, epilogue: Epilogue, blocks: Blocks, *, adds: bool
) -> tuple[list[onnx.NodeProto], dict[str, Array]]:  # fmt: skip
    """Nodes that make y of the images x, and of the addend r if it ``adds``, and their constants.

    ``kernels`` [1, K, columns]; columns of a result in blocks are whole blocks. r lies in blocks where the addend and the result
    do, else as the model has it.
    """
    columns, size = kernels.shape[2], blocks.size
    constants = {"w": _kernels_in_blocks(kernels[0].T.reshape(columns, window.channels, *window.kernel), size)}
    if bias is not None:
        constants["b"] = np.pad(bias, (0, -columns % size))
    inputs, nodes = ["x", "w", "b" if bias is not None else ""], []
    if not blocks.a and window.channels >= size:
        nodes.append(helper.make_node("ReorderInput", ["x"], ["x in blocks"], domain=DOMAIN))
        inputs[0] = "x in blocks"
    if adds and blocks.out:
        inputs.append("r" if blocks.addend else "r in blocks")
    if adds and blocks.out and not blocks.addend:
        nodes.append(helper.make_node("ReorderInput", ["r"], ["r in blocks"], domain=DOMAIN))
    last = blocks.out or not adds
    nodes.append(
        helper.make_node(
            "Conv", inputs, ["sums"], domain=DOMAIN, kernel_shape=window.kernel, strides=window.strides,
            dilations=window.dilations, pads=pads, **(_activation(epilogue) if last else {}),
        )
    )  # fmt: skip
    if not blocks.out:
        nodes.append(helper.make_node("ReorderOutput", ["sums"], ["ordered"], domain=DOMAIN, channels=columns))
    if last:
        nodes[-1].output[0] = "y"
        return nodes, constants
    nodes.append(helper.make_node("Add", ["ordered", "r"], ["added"]))
    return ended(nodes, epilogue, constants)


def ended(
    nodes: list[onnx.NodeProto], epilogue: Epilogue, constants: dict[str, Array]
) -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    """``nodes`` and what bounds the result of the last one, which is y; with its constants."""
    last = nodes[-1].output[0]
    if epilogue == RELU:
        nodes = [*nodes, helper.make_node("Relu", [last], ["y"])]
    elif epilogue.bounded:
        constants = constants | {"low": np.array(epilogue.low, np.float32), "high": np.array(epilogue.high, np.float32)}
        nodes = [*nodes, helper.make_node("Clip", [last, "low", "high"], ["y"])]
    nodes[-1].output[0] = "y"
    return nodes, constants


def _kernels_in_blocks(kernels: Array, size: int) -> Array:
    """Kernels [columns, channels, *kernel] with columns, and channels unless they are too few, in blocks of ``size``; zeros fill
    the last block of columns."""
    columns, channels, *kernel = kernels.shape
    padded = np.pad(kernels, ((0, -columns % size), *((0, 0),) * (kernels.ndim - 1)))
    inner = size if channels >= size else 1
    parts = padded.reshape(-1, size, channels // inner, inner, *kernel)
    # [column block, channel block, *kernel, channel, column]
    order = (0, 2, *range(4, parts.ndim), 3, 1)
    return np.ascontiguousarray(parts.transpose(order)).reshape(padded.shape)


def _activation(epilogue: Epilogue) -> dict[str, Any]:
    """The attributes by which a convolution bounds its results."""
    if epilogue == RELU:
        return {"activation": "Relu"}
    return {"activation": "Clip", "activation_params": [epilogue.low, epilogue.high]} if epilogue.bounded else {}


def session_of(nodes: Sequence[onnx.NodeProto], inputs: Sequence[str], constants: Mapping[str, Array], *, rank: int = 4) -> Any:
    """A session on one thread that makes y of ``inputs``, tensors of ``rank`` axes in float32."""
    import onnxruntime

    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank) for name in (*inputs, "y")]
    tensors = [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(list(nodes), "tile", values[:-1], values[-1:], tensors)
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR)
    options = session_options(onnxruntime)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL  # kernels in onnxruntime's own layout
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
