"""Which forward values a step that is only planned computes again: the same as the gradient file of the model would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from cleave_plan.dtypes import DType
from cleave_plan.errors import UsageError
from cleave_plan.onnx_io.gradient.build import GradientModel, GradientOptions, gradient_model
from cleave_plan.onnx_io.gradient.losses import LossSpec
from cleave_plan.onnx_io.gradient.recompute import Stretch
from cleave_plan.onnx_io.gradient.work import Recomputation
from cleave_plan.onnx_io.importer import ImportedModel
from cleave_plan.onnx_io.levels import Schedule, live_bytes
from cleave_plan.onnx_io.naming import unique_names
from cleave_plan.onnx_io.parameters import constant_tensors
from cleave_plan.onnx_io.views import NodeView, view_of, views_of
from cleave_plan.units import Unit, format_value
from cleave_plan.workload.recompute import Segment, Segments

_FLOATS = frozenset(dtype.value for dtype in DType if dtype.is_float)


def segments_of(imported: ImportedModel) -> Segments:
    """The segments of a forward model, as ``train`` makes them: batch norms by the batch, a loss on the first output
    of real numbers.

    The gradient file is built in memory, without weights. Raises InputFileError for an operator without a gradient rule,
    UsageError for sizes that are open, and where the gradient file writes nodes out in others whose products run again.
    """
    made = _differentiated(imported)
    views = views_of(imported.model.graph.node)
    places = _places(views, made.segments)
    gemms = [(name, view_of(node).first_output) for name, node in imported.nodes.items()]
    wanted = {operator.name for operator in imported.workload.server_operators}
    named = zip(unique_names(views), views, strict=True)
    operators = [(name, view.first_output) for name, view in named if name in wanted]
    parts = tuple(
        Segment(
            gemms=frozenset(name for name, tensor in gemms if places[tensor] == number),
            operators=frozenset(name for name, tensor in operators if places[tensor] == number),
            again=frozenset(name for name, tensor in (*gemms, *operators) if tensor in stretch.again), kept_bytes=stretch.bytes,
        )
        for number, stretch in enumerate(made.segments)
    )  # fmt: skip
    _require_same_work(imported, parts, made.recomputation)
    last = made.segments[-1]
    return Segments(
        parts=parts, live_bytes=_live_bytes(imported, views, {**last.kept, **last.held}),
        all_kept_bytes=sum(sum(stretch.held.values()) for stretch in made.segments),
    )  # fmt: skip


def _differentiated(imported: ImportedModel) -> GradientModel:
    workload = imported.workload
    outputs = workload.outputs
    scored = next((output for output in outputs if output.dtype in _FLOATS), outputs[0])
    kind = {0: f"output:{scored.name}", 1: "mse"}.get(len(scored.shape), "cross-entropy")
    options = GradientOptions(batch_norm="batch", recompute=True, dims=workload.dims, shapes=workload.shapes)
    return gradient_model(imported.path, LossSpec(kind=kind, output="" if kind.startswith("output") else scored.name), options)


def _places(views: Sequence[NodeView], segments: Sequence[Stretch]) -> dict[str, int]:
    """The number of each node's segment by its first tensor: of a node that the loss does not look at, or that is written out in
    others, that of the next one that is known."""
    known = {name: number for number, segment in enumerate(segments) for name in segment.made}
    places, here = {}, len(segments) - 1
    for view in reversed(views):
        here = known.get(view.first_output, here)
        places[view.first_output] = here
    return places


def _require_same_work(imported: ImportedModel, parts: Sequence[Segment], said: Recomputation | None) -> None:
    """Raise UsageError unless the GEMMs that run again have the FLOP of those in the gradient file."""
    again = frozenset().union(*(part.again for part in parts))
    extra = sum(gemm.flop for gemm in imported.workload.gemms if gemm.name in again)
    expected = 0 if said is None else said.after.gemm_flop - said.before.gemm_flop
    if extra != expected:
        raise UsageError(
            f"of the products that the gradient file computes again ({format_value(expected, Unit.FLOP)}), this file shows "
            f"{format_value(extra, Unit.FLOP)}: some are inside nodes that are written out in others", where="--recompute",
            expected="a model in which each product is a node",
            remedy="plan the gradient file itself: gradient MODEL --recompute -o STEP.onnx, then plan STEP.onnx --training",
        )  # fmt: skip


def _live_bytes(imported: ImportedModel, views: Sequence[NodeView], kept: Mapping[str, int]) -> tuple[int | None, ...]:
    """Bytes alive during each forward level when the ``kept`` tensors stay for the backward pass.

    What the file does not name (statistics of norms, which only the gradient file gives out) counts in every level.
    """
    graph, workload = imported.model.graph, imported.workload
    sizes = {
        name: imported.tensor_dtypes[name].bytes_of(prod(shape))
        for name, shape in imported.tensor_shapes.items()
        if name in imported.tensor_dtypes
    }
    place = {view.first_output: index for index, view in enumerate(views)}
    products = {place[view_of(node).first_output] for node in imported.nodes.values()}
    order = Schedule(depth=tuple(imported.depth[index] for index in range(len(views))), levels=len(workload.levels))
    constants = constant_tensors(graph, views, {tensor.name for tensor in workload.inputs})
    live = live_bytes(graph, views, order, products, sizes, constants, kept.keys() & sizes.keys())
    unnamed = sum(size for name, size in kept.items() if name not in sizes)
    return tuple(None if size is None else size + unnamed for size in live)
