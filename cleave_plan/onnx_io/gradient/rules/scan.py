"""Scan: back through time by another Scan, from the last step to the first.

Forward, step t: (s', y) = f(s, x; w), s the states, x and y the slices of step t, w tensors from around the node. Backward,
step t: the gradients of s, x and w follow from those of s' and y by the rules of the body's own nodes; those of s go on to step
t - 1, those of x are stacked, those of w are added up. What the rules read of the forward step, the forward Scan is made to give
out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import onnx

from cleave_plan.onnx_io.attributes import get_graph, get_int, get_ints
from cleave_plan.onnx_io.elements import dtype_of
from cleave_plan.onnx_io.facts import UNKNOWN, Fact
from cleave_plan.onnx_io.gradient.rule import NoRuleError, Op, Partials, gradient_of
from cleave_plan.onnx_io.gradient.scans import Loop, write_scan
from cleave_plan.onnx_io.gradient.tape import Tape, paths, refuse_unknown
from cleave_plan.onnx_io.gradient.tensor import Tensor
from cleave_plan.onnx_io.gradient.writer import Writer
from cleave_plan.onnx_io.views import graph_sources, reads


@gradient_of("Scan")
def scan(op: Op) -> Partials:
    """The module's formula. Of the forms, slices along the first axis from the first to the last."""
    for name in ("scan_input_axes", "scan_input_directions", "scan_output_axes", "scan_output_directions"):
        if any(get_ints(op.node, name) or ()):
            raise NoRuleError(f"Scan with {name}")
    backward = _Backward(op)
    return {place: partial(backward.of, place) for place in op.wanted}


@dataclass(frozen=True)
class _Backward:
    """The backward pass of one Scan."""

    op: Op

    def of(self, place: int | str) -> Tensor:
        """The gradient of an input (by place) or of a tensor from around the node (by name)."""
        return self._gradients[place]

    @cached_property
    def _body(self) -> onnx.GraphProto:
        body = get_graph(self.op.node, "body")
        if body is None:
            raise NoRuleError("Scan without a body")
        return body

    @cached_property
    def _states(self) -> int:
        return len(self.op.node.input) - get_int(self.op.node, "num_scan_inputs", 0)

    @cached_property
    def _facts(self) -> dict[str, Fact]:
        """What is known of the tensors of one step."""
        op = self.op
        given = [op.writer.fact(name) for name in op.node.input]
        slices = [Fact(elem=fact.elem, shape=None if fact.shape is None else fact.shape[1:]) for fact in given[self._states :]]
        made = op.writer.walk.body(self._body, [*given[: self._states], *slices], op.writer.facts, op.wish)
        if made is None:
            raise NoRuleError("bodies nested too deeply")
        return dict(made.own) | {name: made.facts[name] for node in self._body.node for name in node.output if name}

    @cached_property
    def _gradients(self) -> dict[int | str, Tensor]:
        """All gradients that are wanted, by one backward Scan."""
        op, body, states = self.op, self._body, self._states
        loop = Loop(op.writer, op.wish)
        inner = loop.body
        inner.facts.update(self._facts)
        names = [value.name for value in body.input]
        floats = [place for place in range(states) if _is_float(inner.fact(names[place]))]
        flowing = {place: loop.state(op.dy_of(place)) for place in floats}
        seeds: dict[str, Tensor] = {}
        for place, seed in flowing.items():
            _add(seeds, body.output[place].name, seed)
        for place in sorted(op.gradients):
            if place >= states:
                _add(seeds, body.output[place].name, loop.scanned(_reversed(op.gradients[place])))
        around = [name for name in op.wanted if isinstance(name, str)]
        slices = {place: names[place] for place in op.wanted if isinstance(place, int) and place >= states}
        wanted = [*(names[place] for place in floats), *slices.values(), *around]
        found = self._reverse(inner, seeds, wanted)

        totals = {name: loop.state(Tensor(op.writer, name, op.wish).zeros()) for name in around}
        for place, seed in flowing.items():
            loop.carry(seed, found.get(names[place]) or seed.zeros())
        for name, total in totals.items():
            loop.carry(total, total + found[name] if name in found else total)
        for name in slices.values():
            loop.emit(found.get(name) or Tensor(inner, name, op.wish).zeros())
        self._hand_over(loop)
        results = write_scan(loop)
        gradients: dict[int | str, Tensor] = dict(zip([*floats, *around], results, strict=False))
        gradients.update(zip(slices, map(_reversed, results[len(flowing) + len(totals) :]), strict=True))
        return gradients

    def _reverse(self, inner: Writer, seeds: Mapping[str, Tensor], wanted: Sequence[str]) -> dict[str, Tensor]:
        """One step back."""
        nodes = list(self._body.node)
        on_paths = paths(nodes, inner, wanted, seeds)
        where = f"body of {self.op.wish}"
        refuse_unknown(nodes, on_paths, wanted, where)
        tape = Tape(nodes=nodes, writer=inner, constant=self.op.constant, where=where)
        return tape.run(seeds, wanted, on_paths)

    def _hand_over(self, loop: Loop) -> None:
        """Give the backward body what it reads of the forward one."""
        op, body, states = self.op, self._body, self._states
        made = {name for node in body.node for name in node.output if name}
        own = made | graph_sources(body)
        inputs = [value.name for value in body.input]
        constants = {name: node for node in body.node if node.op_type == "Constant" for name in node.output}
        needed = dict.fromkeys(name for node in loop.body.nodes for name in reads(node) if name in own)
        needed.update(dict.fromkeys(name for name in loop.results() if name in own))
        for name in needed:
            if name in constants:
                loop.body.nodes.insert(0, constants[name])
            elif name in inputs[states:]:
                loop.read(name, _reversed(op.x(inputs.index(name))))
            elif name in made or name in inputs:
                loop.read(name, _reversed(self._stacked(name)))
            else:
                loop.initialisers.extend(tensor for tensor in body.initializer if tensor.name == name)

    def _stacked(self, name: str) -> Tensor:
        """A tensor of all forward steps: an output of the forward Scan, which gets one if need be."""
        op, body = self.op, self._body
        for place, value in enumerate(body.output):
            if place >= self._states and value.name == name:
                return op.y(place)
        fact = self._facts.get(name, UNKNOWN)
        length = (op.writer.fact(op.node.input[self._states]).shape or (None,))[0]
        given_out = op.writer.fresh(f"{op.wish}/{name}")
        body.node.append(onnx.helper.make_node("Identity", [name], [given_out], name=given_out))
        body.output.append(onnx.helper.make_tensor_value_info(given_out, fact.elem, None))
        while len(op.node.output) < len(body.output) - 1:
            op.node.output.append("")
        stacked = op.writer.fresh(f"{op.wish}/{name}/steps")
        op.node.output.append(stacked)
        op.writer.facts[stacked] = Fact(elem=fact.elem, shape=None if fact.shape is None else (length, *fact.shape))
        return Tensor(op.writer, stacked, op.wish)


def _is_float(fact: Fact) -> bool:
    dtype = dtype_of(fact.elem)
    return dtype is not None and dtype.is_float


def _add(seeds: dict[str, Tensor], name: str, seed: Tensor) -> None:
    """One tensor may be a state and a slice of the same step."""
    seeds[name] = seeds[name] + seed if name in seeds else seed


def _reversed(steps: Tensor) -> Tensor:
    """The steps from the last to the first."""
    return steps.op("Slice", steps.ints(-1), steps.ints(-(2**62)), steps.ints(0), steps.ints(-1))
