"""The operators of a chain as steps that a device runs, and what they read beside the scores.

What comes from outside (a mask, a position bias) is brought to [batch, rows, length] (:mod:`cleave_plan.onnx_io.chain_sides`).
A tensor that only operators on elements made is computed again on the device where what they were made of is smaller: a causal
mask that is the same in every run and a padding mask of one row travel instead of a mask for every row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import onnx

from cleave_plan.dtypes import DType
from cleave_plan.kernels.chain import Step, side_bytes
from cleave_plan.kernels.elementwise import FUNCTIONS
from cleave_plan.onnx_io.attributes import get_int
from cleave_plan.onnx_io.chain_sides import Folding
from cleave_plan.onnx_io.matrix_work import domain_of
from cleave_plan.onnx_io.surroundings import NoChainError, Surroundings
from cleave_plan.workload.attention import Sides

RELABEL = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Dropout"})
"""Operators that only regroup the elements of their first input (Dropout outside training)."""

ELEMENTWISE = frozenset(FUNCTIONS) - {"Same", "Softmax"}
"""Operators whose inputs broadcast to their output, element by element."""

_BROADCAST = frozenset({"Identity", "Expand"})


class Ref(NamedTuple):
    """A value: the scores (0, 0), side ``place`` (1, place), or the result of step ``place`` (2, place)."""

    kind: int
    place: int


_SCORES = Ref(0, 0)


@dataclass(slots=True, kw_only=True)
class StepBuilder:
    """Collects the steps of a chain whose scores are ``scores``, of ``batch`` items of ``rows`` rows of ``length``."""

    around: Surroundings
    scores: str
    batch: int
    rows: int
    length: int
    sides: dict[tuple[str, Folding], Ref] = field(default_factory=dict)
    _flow: dict[str, Ref] = field(default_factory=dict)
    _steps: list[tuple[str, tuple[Ref, ...], DType]] = field(default_factory=list)
    _again: dict[tuple[str, Folding], Ref] = field(default_factory=dict)
    _costs: dict[tuple[str, Folding], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._flow[self.scores] = _SCORES

    def add(self, node: onnx.NodeProto) -> None:
        """Take in the next operator; raises NoChainError when it is none that a tile can run."""
        shape = self._rowwise(node.output[0])
        if node.op_type in RELABEL:
            self._relabel(node)
        elif node.op_type == "Softmax":
            self._softmax(node, shape)
        else:
            folding = Folding.of(shape, self.batch, self.rows)
            refs = tuple(self._input(name, shape, folding) for name in node.input)
            self._flow[node.output[0]] = self._step(node, refs)

    def place(self, tensor: str) -> int:
        """The place of ``tensor`` among a tile's values; raises NoChainError when it is none of them."""
        if tensor not in self._flow:
            raise NoChainError(tensor)
        return self._number(self._flow[tensor])

    def steps(self) -> tuple[Step, ...]:
        """All steps, their inputs numbered as :class:`cleave_plan.kernels.chain.Step` says."""
        return tuple(Step(op, tuple(map(self._number, refs)), dtype) for op, refs, dtype in self._steps)

    def cost(self) -> Sides:
        """What the sides add to a tile's bytes."""
        row = item = constant = 0
        for tensor, folding in self.sides:
            shape = folding.folded_shape(self.around.known_shape(tensor))
            size = self.around.known_dtype(tensor).bytes_of(1)
            if tensor in self.around.fixed:
                constant += shape[0] * shape[1] * shape[2] * size
            elif shape[1] > 1:
                row += side_bytes(shape, size, 1)
            else:
                item += side_bytes(shape, size, 1)
        learned = any(tensor in self.around.learned for tensor, _ in self.sides)
        return Sides(row_bytes=row, item_bytes=item, constant_bytes=constant, learned=learned)

    def _number(self, ref: Ref) -> int:
        return ref.place + (0, 1, 1 + len(self.sides))[ref.kind]

    def _rowwise(self, tensor: str) -> tuple[int, ...]:
        """The shape of a tensor that has a row of ``length`` for each row of the scores."""
        shape = self.around.known_shape(tensor)
        count = 1
        for size in shape:
            count *= size
        if not shape or shape[-1] != self.length or count != self.batch * self.rows * self.length:
            raise NoChainError(tensor)
        return shape

    def _relabel(self, node: onnx.NodeProto) -> None:
        first, *others = node.input
        training = node.op_type == "Dropout" and len(node.input) > 2 and bool(node.input[2])
        if first not in self._flow or any(name in self._flow for name in others) or training:
            raise NoChainError(node.output[0])
        self._flow[node.output[0]] = self._flow[first]

    def _softmax(self, node: onnx.NodeProto, shape: tuple[int, ...]) -> None:
        """Along the last axis; before opset 13 "axis" and all after it are one, so it must be the last there too."""
        axis = get_int(node, "axis", -1 if self.around.opset >= 13 else 1)
        if axis not in (-1, len(shape) - 1):
            raise NoChainError(node.output[0])
        self._flow[node.output[0]] = self._step(node, (self._flow[node.input[0]],))

    def _step(self, node: onnx.NodeProto, refs: tuple[Ref, ...]) -> Ref:
        self._steps.append((node.op_type, refs, self.around.known_dtype(node.output[0])))
        return Ref(2, len(self._steps) - 1)

    def _input(self, tensor: str, shape: tuple[int, ...], folding: Folding) -> Ref:
        if tensor in self._flow:
            if _bare(self.around.known_shape(tensor)) != _bare(shape):
                raise NoChainError(tensor)
            return self._flow[tensor]
        self._cost_of(tensor, folding)  # raises when it does not broadcast
        return self._side(tensor, folding)

    def _side(self, tensor: str, folding: Folding) -> Ref:
        """A value from outside: recomputed where that sends less."""
        key = (tensor, folding)
        if key in self._again:
            return self._again[key]
        node = self._maker(tensor)
        if node is not None and self._cost_of_inputs(node, folding) < self._own_cost(tensor, folding):
            if node.op_type in _BROADCAST:
                ref = self._side(node.input[0], folding)
            else:
                ref = self._step(node, tuple(self._side(name, folding) for name in node.input))
        else:
            ref = self.sides.setdefault(key, Ref(1, len(self.sides)))
        self._again[key] = ref
        return ref

    def _maker(self, tensor: str) -> onnx.NodeProto | None:
        """The operator on elements that made ``tensor``, None when something else did."""
        index = self.around.producer.get(tensor)
        node = None if index is None or index in self.around.gemms else self.around.nodes[index].node
        if node is None or domain_of(node) or node.op_type not in ELEMENTWISE | _BROADCAST or not all(node.input):
            return None
        return node

    def _cost_of(self, tensor: str, folding: Folding) -> int:
        """Bytes of ``tensor`` for an item, recomputed where that is less."""
        key = (tensor, folding)
        if key not in self._costs:
            node, own = self._maker(tensor), self._own_cost(tensor, folding)
            self._costs[key] = own if node is None or own == 0 else min(own, self._cost_of_inputs(node, folding))
        return self._costs[key]

    def _cost_of_inputs(self, node: onnx.NodeProto, folding: Folding) -> int:
        """Bytes for an item when ``node`` runs on the device; more than any where it cannot."""
        try:
            inputs = node.input[:1] if node.op_type in _BROADCAST else node.input
            return sum(self._cost_of(name, folding) for name in inputs)
        except NoChainError:
            return 1 << 62

    def _own_cost(self, tensor: str, folding: Folding) -> int:
        """Bytes of ``tensor`` for an item; nothing when it is the same in every run."""
        try:
            shape = folding.folded_shape(self.around.known_shape(tensor))
        except ValueError:
            raise NoChainError(tensor) from None
        if tensor in self.around.fixed:
            return 0
        return side_bytes(shape, self.around.known_dtype(tensor).bytes_of(1), self.rows)


def _bare(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without leading axes of size 1."""
    start = next((place for place, size in enumerate(shape) if size != 1), len(shape))
    return shape[start:]
