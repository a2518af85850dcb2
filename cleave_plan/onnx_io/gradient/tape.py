"""Reverse mode: from the gradient of the loss at an output back to every tensor that is asked for.

Nodes are visited in reverse. Each turns the gradients of its outputs into those of its inputs by the rule of its operator; a
tensor that several nodes read gets the sum (tied weights are such tensors). Only nodes on a path from a wanted tensor to the loss
are visited, and only gradients that are needed are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx

from cleave_plan.errors import InputFileError
from cleave_plan.onnx_io.elements import dtype_of
from cleave_plan.onnx_io.gradient.rule import RULES, STEPS, NoRuleError, Op, active_places
from cleave_plan.onnx_io.gradient.tensor import Tensor
from cleave_plan.onnx_io.gradient.writer import Writer
from cleave_plan.onnx_io.matrix_work import domain_of
from cleave_plan.onnx_io.order import node_label
from cleave_plan.onnx_io.views import NodeView, reads


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """The nodes that a gradient passes: indices into the forward nodes, and the tensors between them."""

    nodes: tuple[int, ...]
    tensors: frozenset[str]


def paths(nodes: Sequence[onnx.NodeProto], writer: Writer, wanted: Collection[str], ends: Collection[str]) -> Paths:
    """What lies between the ``wanted`` tensors and the ``ends``, where the derivative is not 0 everywhere."""
    reached = set(wanted)
    through: list[int] = []
    for index, node in enumerate(nodes):
        if (domain_of(node) == "" and node.op_type in STEPS) or not active_places(node, reached):
            continue
        flowing = [name for name in node.output if name and _may_flow(writer, name)]
        if flowing:
            reached.update(flowing)
            through.append(index)
    leading = set(ends) & reached
    kept: list[int] = []
    for index in reversed(through):
        node = nodes[index]
        if not leading.isdisjoint(node.output):
            leading.update(active_places(node, reached).values())
            kept.append(index)
    return Paths(nodes=tuple(reversed(kept)), tensors=frozenset(leading))


def _may_flow(writer: Writer, name: str) -> bool:
    """Whether a tensor is of floating-point numbers; one of unknown type is taken for such, so that its rule asks and fails."""
    fact = writer.fact(name)
    dtype = dtype_of(fact.elem)
    return (fact.elem == 0 and fact.other is None) or (dtype is not None and dtype.is_float)


def without_rule(nodes: Sequence[onnx.NodeProto], on_paths: Paths) -> list[onnx.NodeProto]:
    """The nodes that a gradient would have to pass and whose operators have no rule."""
    return [nodes[index] for index in on_paths.nodes if domain_of(nodes[index]) != "" or nodes[index].op_type not in RULES]


def refuse_unknown(nodes: Sequence[onnx.NodeProto], on_paths: Paths, wanted: Sequence[str], where: str) -> None:
    """Raise InputFileError when a node between the wanted tensors and the loss has no rule: which, and what depends on it."""
    missing = without_rule(nodes, on_paths)
    if missing:
        raise no_rule(missing[0], "", nodes, on_paths, wanted, where, others={_operator(node) for node in missing})


def _operator(node: onnx.NodeProto) -> str:
    return f"{node.domain}.{node.op_type}" if domain_of(node) else str(node.op_type)


def no_rule(
    node: onnx.NodeProto, form: str, nodes: Sequence[onnx.NodeProto], on_paths: Paths, wanted: Sequence[str], where: str, *,
    others: Collection[str] = (),
) -> InputFileError:  # fmt: skip
    """The refusal of one node (or of a ``form`` of it), with the tensors whose gradients would have passed through it."""
    behind = set(reads(node))
    for index in reversed(on_paths.nodes):
        if not behind.isdisjoint(nodes[index].output):
            behind.update(reads(nodes[index]))
    lost = [name for name in wanted if name in behind]
    listed = ", ".join(lost[:4]) + (f" and {len(lost) - 4} more" if len(lost) > 4 else "")
    what = f"{node_label(node)}: " + (
        f"no gradient rule covers this form: {form}" if form else f"{_operator(node)} has no gradient rule"
    )
    rest = sorted(set(others) - {_operator(node)})
    if rest:
        what += f" (neither have {', '.join(rest)})"
    return InputFileError(
        f"{what}; the gradients of {listed} depend on it", where=where, expected="operators that docs/training.md lists",
        remedy="freeze what lies behind it with --freeze, or export the model in plain operators",
    )  # fmt: skip


@dataclass(slots=True, kw_only=True)
class Tape:
    """One reverse pass over ``nodes`` (in order), adding nodes with ``writer``.

    ``constant`` says whether a tensor depends on no input of the graph; ``where`` is the file, for errors. ``read_from``: called
    with a node's index and the gradients of its outputs, it returns the node whose tensors the rule reads (a copy, where
    forward values are computed again).
    """

    nodes: Sequence[onnx.NodeProto]
    writer: Writer
    constant: Callable[[str], bool]
    where: str
    read_from: Callable[[int, Mapping[int, Tensor]], onnx.NodeProto] | None = None
    _sums: dict[str, list[Tensor]] = field(default_factory=dict)

    def run(self, seeds: Mapping[str, Tensor], wanted: Sequence[str], on_paths: Paths) -> dict[str, Tensor]:
        """The gradients of the ``wanted`` tensors that are reached, from those of the ends (``seeds``).

        Raises InputFileError for a form of an operator that its rule does not cover.
        """
        self._sums = {name: [gradient] for name, gradient in seeds.items()}
        for index in reversed(on_paths.nodes):
            node = self.nodes[index]
            arrived = {
                place: total for place, name in enumerate(node.output) if name and (total := self._total(name)) is not None
            }
            if arrived:
                self._visit(index, arrived, on_paths, wanted)
        return {name: total for name in wanted if (total := self._total(name)) is not None}

    def _visit(self, index: int, arrived: Mapping[int, Tensor], on_paths: Paths, wanted: Sequence[str]) -> None:
        node = self.nodes[index]
        active = active_places(node, on_paths.tensors)
        read = node if self.read_from is None else self.read_from(index, arrived)
        op = Op(read, self.writer, arrived, self.constant, tuple(active))
        try:
            partials = RULES[node.op_type](op)
            for place, name in active.items():
                if place not in partials:
                    raise NoRuleError(f"a gradient towards input {place}")
                self._sums.setdefault(name, []).append(self._of_shape(partials[place](), name))
        except NoRuleError as error:
            raise no_rule(node, str(error), self.nodes, on_paths, wanted, self.where) from None
        except InputFileError as error:
            raise InputFileError(
                f"{node_label(node)}: {error.what}", where=self.where, expected=error.expected,
                remedy="bind sizes with --dim or --shape",
            ) from None  # fmt: skip

    def _of_shape(self, gradient: Tensor, name: str) -> Tensor:
        """A gradient has the shape of its tensor, also where inference cannot tell."""
        shape, fact = self.writer.fact(name).shape, self.writer.fact(gradient.name)
        if shape is not None and fact.value is None and fact.shape != shape:
            self.writer.facts[gradient.name] = replace(fact, shape=shape)
        return gradient

    def _total(self, name: str) -> Tensor | None:
        """The sum of what has arrived for a tensor, built once."""
        parts = self._sums.get(name)
        if not parts:
            return None
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        self._sums[name] = [total]
        return total


def pruned(nodes: Sequence[NodeView], wanted: Collection[str]) -> list[int]:
    """Indices of the nodes that ``wanted`` tensors depend on."""
    needed = set(wanted)
    kept = []
    for index in reversed(range(len(nodes))):
        if not needed.isdisjoint(nodes[index].outputs):
            needed.update(nodes[index].reads)
            kept.append(index)
    return kept[::-1]
