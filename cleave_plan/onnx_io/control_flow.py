"""If, Loop and Scan: what their bodies make of shapes, and how often each body runs.

A branch whose condition is a folded constant is the only one. A Loop's trip count comes from its folded limit and condition,
from ``trips``, or from running the shape arithmetic of its body: while that decides the condition, or while shapes change
from one iteration to the next (a tensor that grows), the body is walked once for each iteration, within a budget. A Scan runs
once for each slice of its inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import onnx

from cleave_plan.errors import UsageError
from cleave_plan.onnx_io.agreement import agreement, filled, without_value
from cleave_plan.onnx_io.attributes import get_graph, get_int, get_ints
from cleave_plan.onnx_io.facts import UNKNOWN, Dim, Fact, fact_of_value
from cleave_plan.onnx_io.regions import Pass, Region

Scope = MutableMapping[str, Fact]

_ROUNDS = 4
"""Walks in which the shapes of a loop's states have to settle; states that do not are unknown in every size."""

_UNROLLED_NODES = 5_000
"""Most nodes of loop bodies that one import walks iteration by iteration."""

_FIRST_SCAN_WITHOUT_BATCH = 9
BRANCHES = ("then_branch", "else_branch")
"""The subgraphs of an If, by the names of the attributes that hold them."""


class Walker(Protocol):
    """What walks a subgraph."""

    def body(self, graph: onnx.GraphProto, given: Sequence[Fact], scope: Scope, path: str) -> Pass | None:
        """A walk through ``graph`` whose inputs are ``given``, inside the node at ``path``; None beyond the walker's limits."""


class Outcome(NamedTuple):
    """What a node with subgraphs gives, and what it runs."""

    outputs: list[Fact]
    region: Region


class _Count(NamedTuple):
    """How often a body runs: ``times`` (None: unknown, because of ``reason``), and at most ``limit``."""

    times: int | None
    reason: str = ""
    limit: int | None = None


class ControlFlow:
    """Walks the bodies of one model's control flow. ``trips``: how often the Loops of these paths run."""

    def __init__(self, walker: Walker, trips: Mapping[str, int]) -> None:
        self._walker, self._trips = walker, trips
        self._unrolled_left = _UNROLLED_NODES

    def branches(self, node: onnx.NodeProto, inputs: Sequence[Fact], scope: Scope, path: str) -> Outcome:
        """If: the branch that runs when the condition is known, otherwise what both agree on."""
        condition = _truth(inputs[0]) if inputs else None
        names = {None: BRANCHES, True: BRANCHES[:1], False: BRANCHES[1:]}[condition]
        graphs = [graph for name in names if (graph := get_graph(node, name)) is not None]
        skipped = [graph for name in BRANCHES if name not in names and (graph := get_graph(node, name)) is not None]
        passes = [made for graph in graphs if (made := self._walker.body(graph, (), scope, path)) is not None]
        if not passes or len(passes) < len(graphs):
            return _too_deep(node, path, graphs)
        outputs = [agreement(facts) for facts in zip(*(filled(made.outputs, len(node.output)) for made in passes), strict=True)]
        region = Region(
            path=path, op="If", passes=tuple((made, 1) for made in passes), choice="" if condition is None else names[0],
            skipped=tuple(skipped),
        )  # fmt: skip
        return Outcome(outputs, region)

    def loop(self, node: onnx.NodeProto, inputs: Sequence[Fact], scope: Scope, path: str) -> Outcome:
        """Loop: states keep the sizes that the body leaves alone; what it collects has a row for each iteration."""
        body = get_graph(node, "body")
        if body is None:
            return _too_deep(node, path, ())
        states = list(inputs[2:])
        go = _truth(inputs[1]) if len(node.input) > 1 and node.input[1] else True
        front = [Fact(elem=onnx.TensorProto.INT64, shape=()), _flag(go)]
        made, settled = self._settled(body, front, states, scope, path)
        if made is None:
            return _too_deep(node, path, (body,))
        stays = bool(go and made.outputs and _truth(made.outputs[0]))
        count = self._bound(path, _loop_count(node, inputs, go, stays))
        passes = self._unrolled(body, states, scope, path, count, made) if self._is_open(count, made, settled, states) else None
        if passes is not None:
            return _after(node, states, passes, path)
        rows = [_stacked(fact, (count.times,)) for fact in made.outputs[1 + len(states) :]]
        region = Region(path=path, op="Loop", passes=((made, count.times),), reason=count.reason)
        return Outcome(filled((states if count.times == 0 else settled) + rows, len(node.output)), region)

    def scan(self, node: onnx.NodeProto, inputs: Sequence[Fact], scope: Scope, path: str, opset: int) -> Outcome:
        """Scan: one run for each slice; before operator set 9, for each item of a batch as well."""
        body = get_graph(node, "body")
        batched = opset < _FIRST_SCAN_WITHOUT_BATCH
        inputs = inputs[1:] if batched else inputs
        number = get_int(node, "num_scan_inputs", 0)
        if body is None or not 0 < number <= len(inputs):
            return _too_deep(node, path, () if body is None else (body,))
        states, sequences = list(inputs[: len(inputs) - number]), inputs[len(inputs) - number :]
        axes = (1,) * number if batched else get_ints(node, "scan_input_axes") or (0,) * number
        lengths = [_size(fact, axis) for fact, axis in zip(sequences, axes, strict=False)]
        times = next((size for size in lengths if isinstance(size, int)), None)
        items = [_without_axis(fact, axis) for fact, axis in zip(sequences, axes, strict=False)]
        lead: tuple[Dim, ...] = (times,)
        if batched:
            batch = next((size for fact in inputs if isinstance(size := _size(fact, 0), int)), None)
            states, items = ([_without_axis(fact, 0) for fact in facts] for facts in (states, items))
            lead, times = (batch, times), None if times is None or batch is None else times * batch
        made, settled = self._settled(body, [], states, scope, path, items)
        if made is None:
            return _too_deep(node, path, (body,))
        reason = "" if times is not None else "the length of the tensors that it takes apart is not known"
        ends = [_stacked(fact, lead[:-1]) for fact in settled]
        rows = [_stacked(fact, lead) for fact in made.outputs[len(states) :]]
        axes = get_ints(node, "scan_output_axes") or ()
        rows = [_moved(fact, axes[place] if place < len(axes) else 0) for place, fact in enumerate(rows)]
        region = Region(path=path, op="Scan", passes=((made, times),), reason=reason)
        return Outcome(filled(ends + rows, len(node.output)), region)

    def _settled(
        self, body: onnx.GraphProto, front: Sequence[Fact], states: Sequence[Fact], scope: Scope, path: str,
        items: Sequence[Fact] = (),
    ) -> tuple[Pass | None, list[Fact]]:  # fmt: skip
        """A walk that holds for every iteration, and the states' facts in all of them."""
        known = [without_value(fact) for fact in states]
        skipped = min(1, len(front))  # a Loop's body gives its condition first
        for _ in range(_ROUNDS):
            made = self._walker.body(body, (*front, *known, *map(without_value, items)), scope, path)
            if made is None:
                return None, known
            pairs = zip(known, filled(made.outputs[skipped:], len(known)), strict=True)
            after = [agreement([before, without_value(fact)]) for before, fact in pairs]
            if after == known:
                return made, known
            known = after
        known = [Fact(elem=fact.elem) for fact in known]
        return self._walker.body(body, (*front, *known, *map(without_value, items)), scope, path), known

    def _bound(self, path: str, count: _Count) -> _Count:
        """``count`` with the number that the caller gave; raises UsageError when the file says another."""
        given = self._trips.get(path)
        if given is None:
            return count
        most = count.times if count.times is not None else count.limit
        if given != count.times and most is not None and (count.times is not None or given > most):
            word = "" if count.times is not None else "at most "
            raise UsageError(
                f"Loop {path!r} is bound to {given} iterations", where=f"--trip {path}={given}",
                expected=f"{word}{most}, as the file says",
            )  # fmt: skip
        return _Count(given, limit=given)

    def _is_open(self, count: _Count, made: Pass, settled: Sequence[Fact], states: Sequence[Fact]) -> bool:
        """Whether walking each iteration may tell more than one walk for all: a count, or shapes that differ."""
        if count.times is None:
            return bool(made.outputs) and count.limit != 0
        changing = any(fact.shape != state.shape for fact, state in zip(settled, states, strict=True))
        return count.times > 0 and (changing or any(fact.other is None and fact.sizes is None for fact in made.own.values()))

    def _unrolled(
        self, body: onnx.GraphProto, states: Sequence[Fact], scope: Scope, path: str, count: _Count, general: Pass
    ) -> list[tuple[Pass, int]] | None:
        """A walk for each iteration, like ones together; None when the condition stays unknown or the budget ends."""
        passes: list[tuple[Pass, int]] = []
        states, step = list(states), 0
        while step < (count.times if count.times is not None else count.limit if count.limit is not None else np.inf):
            if self._unrolled_left < len(body.node):
                return None
            self._unrolled_left -= len(body.node)
            counter = fact_of_value(np.array(step, np.int64), onnx.TensorProto.INT64)
            made = self._walker.body(body, (counter, _flag(True), *states), scope, path)
            going = None if made is None or not made.outputs else _truth(made.outputs[0])
            if made is None or (going is None and count.times is None):
                return None
            if passes and _alike(passes[-1][0], made):
                passes[-1] = (made, passes[-1][1] + 1)
            else:
                passes.append((made, 1))
            states, step = filled(made.outputs[1:], len(states)), step + 1
            if count.times is None and not going:
                break
        return passes


def _loop_count(node: onnx.NodeProto, inputs: Sequence[Fact], go: bool | None, stays: bool) -> _Count:
    """The trip count as limit and condition say it."""
    named = bool(node.input) and bool(node.input[0])
    value = inputs[0].whole_numbers if named else None
    limit = max(int(value.reshape(-1)[0]), 0) if value is not None and value.size == 1 else None
    if go is False or limit == 0:
        return _Count(0, limit=0)
    if go is None:
        return _Count(None, "its condition is not known before the run", limit)
    if named and limit is None:
        return _Count(None, "its limit is not known before the run")
    if stays and limit is not None:
        return _Count(limit, limit=limit)
    return _Count(None, "its body decides when it ends", limit)


def _after(node: onnx.NodeProto, states: Sequence[Fact], passes: list[tuple[Pass, int]], path: str) -> Outcome:
    """The outcome of a Loop whose iterations are all walked."""
    ends = filled(passes[-1][0].outputs[1:], len(states)) if passes else list(states)
    times = sum(number for _, number in passes)
    collected = zip(*(made.outputs[1 + len(states) :] for made, _ in passes), strict=False)
    rows = [_stacked(agreement(facts), (times,)) for facts in collected]
    return Outcome(filled(ends + rows, len(node.output)), Region(path=path, op="Loop", passes=tuple(passes)))


def _too_deep(node: onnx.NodeProto, path: str, graphs: Sequence[onnx.GraphProto]) -> Outcome:
    region = Region(
        path=path, op=node.op_type, unwalked=tuple(graphs), reason="its bodies are nested too deeply or too large to be walked"
    )
    return Outcome([UNKNOWN] * len(node.output), region)


def _truth(fact: Fact) -> bool | None:
    value = fact.whole_value
    return bool(value.reshape(-1)[0]) if value is not None and value.size == 1 else None


def _flag(go: bool | None) -> Fact:
    return Fact(elem=onnx.TensorProto.BOOL, shape=(), value=np.array(True) if go else None)


def _stacked(fact: Fact, lead: tuple[Dim, ...]) -> Fact:
    """As many of these as ``lead`` says, one after the other."""
    return Fact(elem=fact.elem, shape=None if fact.shape is None else (*lead, *fact.shape))


def _size(fact: Fact, axis: int) -> Dim:
    return fact.shape[axis] if fact.shape is not None and -len(fact.shape) <= axis < len(fact.shape) else None


def _without_axis(fact: Fact, axis: int) -> Fact:
    if fact.shape is None or not -len(fact.shape) <= axis < len(fact.shape):
        return Fact(elem=fact.elem)
    axis %= len(fact.shape)
    return Fact(elem=fact.elem, shape=fact.shape[:axis] + fact.shape[axis + 1 :])


def _moved(fact: Fact, axis: int) -> Fact:
    """The first axis moved to place ``axis``."""
    if axis == 0 or fact.shape is None or not -len(fact.shape) <= axis < len(fact.shape):
        return fact
    rest = list(fact.shape[1:])
    rest.insert(axis % len(fact.shape), fact.shape[0])
    return Fact(elem=fact.elem, shape=tuple(rest))


def _alike(one: Pass, other: Pass) -> bool:
    """Whether two walks through one body found the same shapes."""
    if one.regions or other.regions or one.own.keys() != other.own.keys():
        return False
    return all(fact.shape == other.own[name].shape for name, fact in one.own.items())
