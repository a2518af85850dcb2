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
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from cleave_plan.kernels.arrays import Array, dense_on_lines
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
        reorder = [helper.make_node("ReorderInput", ["x"], ["y"], domain=DOMAIN)]
        reordered = or_refused(lambda: session_of(reorder, ["x"], {}).run(None, {"x": ramp})[0])
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
    kind = ConvKind(
        kernel=window.kernel, strides=window.strides, dilations=window.dilations, few=False, columns=_PROBED, bias=False,
        adds=True, epilogue=RELU, blocks=Blocks(size, True, True, True),
    )  # fmt: skip
    session = or_refused(lambda: session_in_blocks(kind, (0,) * 4))
    feeds = {name: in_blocks(array.reshape(1, _PROBED, 1, _PROBED), size) for name, array in (("x", x), ("r", r))}
    wanted = np.maximum(w @ x + r, 0).reshape(1, _PROBED, 1, _PROBED)
    found = or_refused(lambda: session.run(None, {**feeds, "w": kernels_in_blocks(window, w.T, size)})[0])
    return bool(np.array_equal(found, in_blocks(wanted, size)))


class ConvKind(NamedTuple):
    """What a session on blocks computes, but for the padding around its images: ``few`` channels are less than a block,
    ``columns`` are those of a result that is not in blocks; whether there are a bias and an addend, and the bounds."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    few: bool
    columns: int
    bias: bool
    adds: bool
    epilogue: Epilogue
    blocks: Blocks


def session_in_blocks(kind: ConvKind, pads: Sequence[int]) -> Any:
    """A session that makes y of images x, kernels w (:func:`kernels_in_blocks`), and, if it has them, a bias b of as many
    columns and an addend r, which lies in blocks where the addend and the result do, else as the model has it."""
    inputs = ["x", "w", *(["b"] if kind.bias else []), *(["r"] if kind.adds else [])]
    nodes, constants = _nodes(kind, pads)
    return session_of(nodes, inputs, constants, ranks={"b": 1})


def _nodes(kind: ConvKind, pads: Sequence[int]) -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    """The operators of a session, and their constants."""
    blocks, nodes = kind.blocks, []
    inputs = ["x", "w", "b" if kind.bias else ""]
    if not blocks.a and not kind.few:
        nodes.append(helper.make_node("ReorderInput", ["x"], ["x in blocks"], domain=DOMAIN))
        inputs[0] = "x in blocks"
    if kind.adds and blocks.out:
        inputs.append("r" if blocks.addend else "r in blocks")
    if kind.adds and blocks.out and not blocks.addend:
        nodes.append(helper.make_node("ReorderInput", ["r"], ["r in blocks"], domain=DOMAIN))
    last = blocks.out or not kind.adds
    nodes.append(
        helper.make_node(
            "Conv", inputs, ["sums"], domain=DOMAIN, kernel_shape=kind.kernel, strides=kind.strides, dilations=kind.dilations,
            pads=pads, **(_activation(kind.epilogue) if last else {}),
        )
    )  # fmt: skip
    if not blocks.out:
        nodes.append(helper.make_node("ReorderOutput", ["sums"], ["ordered"], domain=DOMAIN, channels=kind.columns))
    if last:
        nodes[-1].output[0] = "y"
        return nodes, {}
    nodes.append(helper.make_node("Add", ["ordered", "r"], ["added"]))
    return ended(nodes, kind.epilogue, {})


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


def kernels_in_blocks(window: ConvWindow, kernels: Array, size: int) -> Array:
    """Kernels [K, columns] as [columns, channels, *kernel] with columns, and channels unless they are too few, in blocks of
    ``size``; zeros fill the last block of columns."""
    depth, columns = kernels.shape
    padded = np.zeros((-(-columns // size) * size, depth), kernels.dtype)
    padded[:columns] = kernels.T
    inner = size if window.channels >= size else 1
    parts = padded.reshape(-1, size, window.channels // inner, inner, *window.kernel)
    # [column block, channel block, *kernel, channel, column]
    order = (0, 2, *range(4, parts.ndim), 3, 1)
    return dense_on_lines(parts.transpose(order)).reshape(len(padded), window.channels, *window.kernel)


def _activation(epilogue: Epilogue) -> dict[str, Any]:
    """The attributes by which a convolution bounds its results."""
    if epilogue == RELU:
        return {"activation": "Relu"}
    return {"activation": "Clip", "activation_params": [epilogue.low, epilogue.high]} if epilogue.bounded else {}


def session_of(
    nodes: Sequence[onnx.NodeProto], inputs: Sequence[str], constants: Mapping[str, Array], *, rank: int = 4,
    ranks: Mapping[str, int] | None = None,
) -> Any:  # fmt: skip
    """A session on one thread that makes y of ``inputs``, tensors of ``rank`` axes (but for ``ranks``) in float32."""
    import onnxruntime

    axes = {name: [None] * (ranks or {}).get(name, rank) for name in (*inputs, "y")}
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in axes.items()]
    tensors = [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(list(nodes), "tile", values[:-1], values[-1:], tensors)
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR)
    options = session_options(onnxruntime)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL  # kernels in onnxruntime's own layout
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
