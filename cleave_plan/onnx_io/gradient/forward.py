"""The forward nodes as they are written: as they stand, but for batch norms in training mode, which runtimes refuse.

Such a node becomes the statistics of its batch, a BatchNormalization that takes them as if they were running statistics, and the
update of the running ones: mean' = m·mean + (1 - m)·μ, variance' = m·variance + (1 - m)·σ², m the momentum, σ² over all n
elements of a channel (ONNX divides by n; PyTorch's running variance by n - 1).
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import helper

from cleave_plan.errors import UsageError
from cleave_plan.onnx_io.attributes import get_float, get_int
from cleave_plan.onnx_io.gradient.rules.normalisation import batch_statistics
from cleave_plan.onnx_io.gradient.tensor import Tensor
from cleave_plan.onnx_io.gradient.writer import Writer
from cleave_plan.onnx_io.gradient_names import UPDATED_PREFIX

MODES = ("as-written", "batch")
"""How batch norms normalise: as the file says, or by the batch."""

_MEAN, _VARIANCE = 3, 4


def in_training_mode(node: onnx.NodeProto) -> bool:
    """Whether a node is a BatchNormalization that normalises by its batch."""
    return node.op_type == "BatchNormalization" and bool(get_int(node, "training_mode", 0))


def prepare_batch_norms(graph: onnx.GraphProto, mode: str) -> dict[str, str]:
    """Put batch norms into the mode that is asked for; the result maps running statistics to outputs for their new values.

    Raises UsageError for a mode that does not exist.
    """
    if mode not in MODES:
        raise UsageError(f"there is no mode {mode!r} of batch norms", expected=f"one of {', '.join(MODES)}")
    initialisers = {tensor.name for tensor in graph.initializer}
    if mode == "batch":
        _train_batch_norms(graph.node, initialisers)
    return _updated_statistics(graph.node, initialisers)


def _train_batch_norms(nodes: Sequence[onnx.NodeProto], parameters: set[str]) -> None:
    """Switch every BatchNormalization to training mode, in place."""
    for node in nodes:
        if node.op_type == "BatchNormalization" and parameters.issuperset(node.input[_MEAN:]) and not in_training_mode(node):
            kept = [attribute for attribute in node.attribute if attribute.name != "training_mode"]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute("training_mode", 1)])


def _updated_statistics(nodes: Sequence[onnx.NodeProto], initialisers: set[str]) -> dict[str, str]:
    """Give each batch norm in training mode outputs for its running statistics, in place: statistic -> output.

    Statistics that two nodes share are updated by one after the other.
    """
    newest: dict[str, str] = {}
    for node in nodes:
        if in_training_mode(node):
            for place, source in ((1, node.input[_MEAN]), (2, node.input[_VARIANCE])):
                while len(node.output) <= place:
                    node.output.append("")
                if source not in initialisers:
                    continue
                node.input[place + 2] = newest.get(source, source)
                node.output[place] = node.output[place] or UPDATED_PREFIX + newest.get(source, source)
                newest[source] = node.output[place]
    return newest


def write_forward(nodes: Sequence[onnx.NodeProto], writer: Writer) -> None:
    """Append the forward nodes to what ``writer`` writes."""
    for node in nodes:
        if in_training_mode(node):
            _write_batch_norm(node, writer)
        else:
            writer.keep(node)


def _write_batch_norm(node: onnx.NodeProto, writer: Writer) -> None:
    wish = node.name or node.output[0]
    x, scale, bias, *running = (Tensor(writer, name, wish) for name in node.input)
    found = [part.reshape([-1]) for part in batch_statistics(x)]
    cast = [part.cast(old.elem) for part, old in zip(found, running, strict=True)]
    normalise = helper.make_node(
        "BatchNormalization", [x.name, scale.name, bias.name, *(part.name for part in cast)], [node.output[0]], name=wish,
        epsilon=get_float(node, "epsilon", 1e-5),
    )  # fmt: skip
    writer.keep(normalise)
    momentum = get_float(node, "momentum", 0.9)
    for place, (old, new) in enumerate(zip(running, cast, strict=True), 1):
        if len(node.output) > place and node.output[place]:
            updated = old * momentum + new * (1 - momentum)
            writer.keep(helper.make_node("Identity", [updated.name], [node.output[place]], name=node.output[place]))
