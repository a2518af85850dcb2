"""Writing a Scan: a body with states that are carried on, slices that it reads, and slices that it gives out."""

from __future__ import annotations

from collections import ChainMap

import onnx
from onnx import helper

from cleave_plan.onnx_io.facts import Fact, type_of_fact
from cleave_plan.onnx_io.gradient.tensor import Tensor
from cleave_plan.onnx_io.gradient.writer import Writer


class Loop:
    """A Scan in the making, in the graph that ``outer`` writes; its steps run over the first axis of what is scanned."""

    def __init__(self, outer: Writer, wish: str) -> None:
        self.outer, self.wish = outer, wish
        self.body = Writer(outer.walk, ChainMap({}, outer.facts), (), outer)
        self.initialisers: list[onnx.TensorProto] = []
        self._states: list[tuple[Tensor, Tensor]] = []
        self._carried: dict[str, str] = {}
        self._scanned: list[tuple[str, Tensor]] = []
        self._emitted: list[str] = []

    def state(self, first: Tensor) -> Tensor:
        """A state in the body, which is ``first`` (a tensor outside) in the first step."""
        name = self.outer.fresh(f"{self.outer.prefix}{self.wish}/state")
        self.body.facts[name] = Fact(elem=first.elem, shape=first.shape)
        inside = Tensor(self.body, name, self.wish)
        self._states.append((first, inside))
        return inside

    def carry(self, state: Tensor, after: Tensor) -> None:
        """What a state is in the next step."""
        self._carried[state.name] = self._given_out(after)

    def scanned(self, whole: Tensor) -> Tensor:
        """The slice of one step of ``whole``."""
        return self.read(self.outer.fresh(f"{self.outer.prefix}{self.wish}/slice"), whole)

    def read(self, name: str, whole: Tensor) -> Tensor:
        """The same under a name of the caller's choice."""
        self.body.facts[name] = Fact(elem=whole.elem, shape=None if whole.shape is None else whole.shape[1:])
        self._scanned.append((name, whole))
        return Tensor(self.body, name, self.wish)

    def emit(self, slice_: Tensor) -> None:
        """Give a slice of each step out."""
        self._emitted.append(self._given_out(slice_))

    def _given_out(self, tensor: Tensor) -> str:
        """An output of its own: runtimes expect each to have another name, and none to be an input."""
        name = self.outer.fresh(f"{self.outer.prefix}{self.wish}/out")
        self.body.keep(helper.make_node("Identity", [tensor.name], [name], name=name))
        self.body.facts[name] = self.body.fact(tensor.name)
        return name

    def results(self) -> list[str]:
        """Names in the body of what it carries and gives out."""
        return [*self._carried.values(), *self._emitted]

    def graph(self) -> onnx.GraphProto:
        """The body."""
        inputs = [*(inside.name for _, inside in self._states), *(name for name, _ in self._scanned)]
        outputs = [*(self._carried[inside.name] for _, inside in self._states), *self._emitted]
        return helper.make_graph(
            self.body.nodes, f"{self.wish}/step", [self._info(name) for name in inputs], [self._info(name) for name in outputs],
            self.initialisers,
        )  # fmt: skip

    def _info(self, name: str) -> onnx.ValueInfoProto:
        fact = self.body.fact(name)
        shape = None if fact.shape is None else tuple(size if isinstance(size, int) else None for size in fact.shape)
        return onnx.ValueInfoProto(name=name, type=type_of_fact(Fact(elem=fact.elem, shape=shape)))

    def operands(self) -> list[str]:
        """Names outside of first states and of what is scanned."""
        return [*(first.name for first, _ in self._states), *(whole.name for _, whole in self._scanned)]

    def facts(self) -> list[Fact]:
        """Of the Scan's outputs: last states, then stacked slices."""
        length = (self._scanned[0][1].shape or (None,))[0]
        slices = [self.body.fact(name) for name in self._emitted]
        stacked = [Fact(elem=fact.elem, shape=None if fact.shape is None else (length, *fact.shape)) for fact in slices]
        return [*(Fact(elem=first.elem, shape=first.shape) for first, _ in self._states), *stacked]

    @property
    def scans(self) -> int:
        """The number of scanned tensors."""
        return len(self._scanned)


def write_scan(loop: Loop) -> list[Tensor]:
    """Append the Scan; its outputs are the last states, then the stacked slices."""
    outer = loop.outer
    facts = loop.facts()
    names = [outer.fresh(f"{outer.prefix}{loop.wish}") for _ in facts]
    node = helper.make_node("Scan", loop.operands(), names, name=names[0], body=loop.graph(), num_scan_inputs=loop.scans)
    outer.keep(node)
    outer.facts.update(zip(names, facts, strict=True))
    return [Tensor(outer, name, loop.wish) for name in names]
