"""Forward values that are computed again when the backward pass needs them, instead of being kept since the forward pass.

The forward nodes are cut into segments (:mod:`cleave_plan.onnx_io.gradient.cuts`). When the reverse pass reaches a segment, a
copy of its nodes is written, and rules read the copy's tensors; the last segment needs no copy, its backward pass comes first.

A copy depends on nothing but what lies at the cut, so a runtime that goes by data alone would compute it as soon as it has that,
and keep it for as long as before. Therefore the copy reads each tensor X at the cut as Where(c, X, X), in which the condition c
is one element of the gradient that has arrived at the segment, as a boolean: bit for bit X, but not before that gradient is
there, in every runtime and in every order that respects data.

What must not be computed twice is kept: results of operators that draw random numbers, and of those with bodies (Scan), whose
names inside stand for tensors outside. So are constants and tensors whose values are known before anything runs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx

from cleave_plan.errors import UsageError
from cleave_plan.onnx_io.constants import RANDOM
from cleave_plan.onnx_io.elements import dtype_of
from cleave_plan.onnx_io.gradient.cuts import Values
from cleave_plan.onnx_io.gradient.forward import in_training_mode, write_forward
from cleave_plan.onnx_io.gradient.tensor import Tensor
from cleave_plan.onnx_io.gradient.writer import Writer
from cleave_plan.onnx_io.gradient_names import RECOMPUTED
from cleave_plan.onnx_io.phases import PHASE
from cleave_plan.onnx_io.views import NodeView, view_of
from cleave_plan.workload.gemm import Phase
from cleave_plan.workload.recompute import AGAIN

_TRAINING_MODE = 2
"""The place of Dropout's input that switches drawing on."""

_GATED = frozenset(
    {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16,
     onnx.TensorProto.INT32, onnx.TensorProto.INT64}
)  # fmt: skip
"""Types that runtimes have a Where for; what comes from others alone (a mask's booleans) is small, and may be computed early."""


def can_repeat(view: NodeView, writer: Writer, constant: Callable[[str], bool]) -> bool:
    """Whether computing a node a second time gives the same values and could spare memory."""
    draws = view.op in RANDOM or (view.op == "Dropout" and len(view.inputs) > _TRAINING_MODE)
    known = all(constant(name) or writer.fact(name).whole_value is not None for name in view.made)
    return not (draws or known or view.bodies or view.domain)


def values_of(
    views: Sequence[NodeView], writer: Writer, constant: Callable[[str], bool], read: frozenset[str], ends: frozenset[str]
) -> Values:  # fmt: skip
    """What the choice of cuts sees: ``read`` are the names that nodes of the backward pass read, ``ends`` the forward outputs.

    Raises UsageError when the size of a tensor that is kept is not known.
    """
    sizes: dict[str, int] = {}
    kept = set(ends)
    for view in views:
        repeats = can_repeat(view, writer, constant)
        for name in view.made:
            fact = writer.fact(name)
            dtype = dtype_of(fact.elem)
            if constant(name) or fact.whole_value is not None:
                continue
            if dtype is not None and fact.sizes is not None:
                sizes[name] = dtype.bytes_of(prod(fact.sizes))
            elif name in read:
                raise UsageError(
                    f"the size of tensor {name!r} is not known", where="--recompute",
                    expected="sizes, by which values are weighed", remedy="bind them with --dim NAME=INT or --shape INPUT=SHAPE",
                )  # fmt: skip
            if not repeats:
                kept.add(name)
        if view.bodies:  # its rule reads the tensors themselves
            kept.update(read.intersection(view.reads))
    return Values(sizes=sizes, held=read & sizes.keys(), kept=kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """The forward nodes of one segment, by names of tensors.

    ``made``: all that they make; ``again``: the first tensors of those nodes that run a second time. With their bytes:
    ``kept``, what the cuts before it keep; ``held``, what rules read of what it makes.
    """

    made: frozenset[str]
    again: frozenset[str]
    kept: Mapping[str, int]
    held: Mapping[str, int]

    @property
    def bytes(self) -> int:
        """Forward values that are there while its backward pass runs."""
        return sum(self.kept.values()) + sum(self.held.values())


def stretches(
    views: Sequence[NodeView], cuts: Sequence[int], values: Values, again: Collection[str]
) -> tuple[Stretch, ...]:  # fmt: skip
    """The segments that ``cuts`` make of forward nodes; ``again``: the first tensors of nodes that run a second time."""
    sizes = values.sizes
    last = {name: index for index, view in enumerate(views) for name in view.reads if name in sizes}
    last.update((name, len(views)) for name in values.kept)
    kept: dict[str, int] = {}
    found = []
    for begin, end in zip((0, *(cut + 1 for cut in cuts)), (*cuts, len(views) - 1), strict=True):
        made = [name for view in views[begin : end + 1] for name in view.made]
        held = {name: sizes[name] for name in made if name in values.held}
        found.append(
            Stretch(made=frozenset(made), again=frozenset(made).intersection(again), kept=kept, held=held)
        )  # fmt: skip
        kept = kept | {name: sizes[name] for name in made if name in sizes and last.get(name, -1) > end}
    return tuple(found)


def figures_of(segments: Sequence[Stretch]) -> dict[str, int]:
    """Figures of :class:`cleave_plan.workload.recompute.Recomputed`, by name; none where there are no segments."""
    if not segments:
        return {}
    kept, read = max(segment.bytes for segment in segments), sum(sum(segment.held.values()) for segment in segments)
    return dict(zip(RECOMPUTED, (len(segments), kept, read), strict=True))


class Copies:
    """Copies of the segments that ``cuts`` make of ``nodes``; :meth:`read_from` is the tape's."""

    def __init__(
        self, nodes: Sequence[onnx.NodeProto], cuts: Sequence[int], writer: Writer, constant: Callable[[str], bool]
    ) -> None:  # fmt: skip
        self._nodes, self._cuts, self._writer, self._constant = nodes, tuple(cuts), writer, constant
        self._copies: dict[int, onnx.NodeProto] = {}
        self.originals: dict[str, str] = {}  # first tensor of a copy -> that of the node it is a copy of
        self._done: set[int] = set()

    def read_from(self, index: int, arrived: Mapping[int, Tensor]) -> onnx.NodeProto:
        """The node whose tensors the rule of node ``index`` reads; ``arrived``: gradients of its outputs."""
        segment = bisect_left(self._cuts, index)
        if segment < len(self._cuts) and segment not in self._done:
            self._done.add(segment)
            self._copy(segment, next(iter(arrived.values())))
        return self._copies.get(index, self._nodes[index])

    def _copy(self, segment: int, gradient: Tensor) -> None:
        """Write segment number ``segment`` again, behind ``gradient``."""
        names: dict[str, str] = {}
        first = self._cuts[segment - 1] + 1 if segment else 0
        condition = gradient.reshape([-1]).op("Gather", gradient.constant(np.array(0, np.int64)), axis=0)
        condition = condition.cast(onnx.TensorProto.BOOL)
        for index in range(first, self._cuts[segment] + 1):
            node = self._nodes[index]
            if not can_repeat(view_of(node), self._writer, self._constant):
                continue
            for name in node.input:
                if name and name not in names:
                    names[name] = self._behind(condition, name)
            self._copies[index] = self._again(node, names)

    def _behind(self, condition: Tensor, name: str) -> str:
        """A tensor from outside the copy, not before ``condition`` is known."""
        fact = self._writer.fact(name)
        if self._constant(name) or fact.whole_value is not None or fact.elem not in _GATED or name not in self._writer.facts:
            return name
        kept = Tensor(self._writer, name, f"{AGAIN}{name}")
        return condition.op("Where", kept, kept).name

    def _again(self, node: onnx.NodeProto, names: dict[str, str]) -> onnx.NodeProto:
        copy = onnx.NodeProto.FromString(node.SerializeToString())
        copy.name = self._writer.fresh(f"{AGAIN}{node.name or view_of(node).first_output}")
        copy.metadata_props.add(key=PHASE, value=Phase.RECOMPUTE.value)
        copy.input[:] = [names.get(name, name) for name in node.input]
        if in_training_mode(node):  # its statistics are updated once
            del copy.output[1:]
        for place, name in enumerate(copy.output):
            if name:
                names[name] = copy.output[place] = self._writer.fresh(f"{AGAIN}{name}")
                self._writer.facts[names[name]] = self._writer.fact(name)
        self.originals[view_of(copy).first_output] = view_of(node).first_output
        write_forward([copy], self._writer)
        return copy
