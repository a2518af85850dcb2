"""What a gradient rule is: from one node and the gradients of its outputs to those of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from cleave_plan.onnx_io.attributes import get_float, get_int, get_ints, get_string
from cleave_plan.onnx_io.facts import Value
from cleave_plan.onnx_io.gradient.tensor import Tensor
from cleave_plan.onnx_io.gradient.writer import Writer
from cleave_plan.onnx_io.views import captured, view_of


class NoRuleError(Exception):
    """A form of an operator that its rule does not cover; the text says which, and what to do if something can be done."""


@dataclass(frozen=True)
class Op:
    """One node as its rule sees it: tensors to read, the gradients that have arrived, and the writer to add nodes with.

    ``gradients``: by output place. ``constant``: whether a tensor depends on no input of the graph. ``wanted``: the inputs whose
    gradients will be asked for, by place, and tensors from around the node that its body reads, by name.
    """

    node: onnx.NodeProto
    writer: Writer
    gradients: Mapping[int, Tensor]
    constant: Callable[[str], bool]
    wanted: Sequence[int | str] = ()

    @property
    def wish(self) -> str:
        """What new nodes are called after."""
        return str(self.node.name or view_of(self.node).first_output)

    def has(self, place: int) -> bool:
        """Whether an input is there."""
        return place < len(self.node.input) and bool(self.node.input[place])

    def x(self, place: int) -> Tensor:
        """An input."""
        if not self.has(place):
            raise NoRuleError(f"input {place} is absent")
        return self._tensor(self.node.input[place])

    def y(self, place: int = 0) -> Tensor:
        """An output of the forward node; one that nobody wanted so far is wanted from now on."""
        while len(self.node.output) <= place:
            self.node.output.append("")
        if not self.node.output[place]:
            self.node.output[place] = self.writer.fresh(f"{self.wish}/output{place}")
            self.writer.walk.add(self.node, self.writer.facts)
        return self._tensor(self.node.output[place])

    def _tensor(self, name: str) -> Tensor:
        return Tensor(self.writer, name, self.wish)

    @property
    def dy(self) -> Tensor:
        """The gradient of the first output; zeros when none has arrived."""
        return self.dy_of(0)

    def dy_of(self, place: int) -> Tensor:
        """The gradient of an output; zeros when none has arrived."""
        found = self.gradients.get(place)
        return self.y(place).zeros() if found is None else Tensor(self.writer, found.name, self.wish)

    def phase(self, place: int) -> str:
        """The phase of the matrix work that gives the gradient of an input: "dW" of parameters, "dX" of activations."""
        return "dW" if self.constant(self.node.input[place]) else "dX"

    def value(self, place: int) -> Value | None:
        """The values of an input where they are known before anything runs."""
        return self.writer.fact(self.node.input[place]).whole_value if self.has(place) else None

    def integer(self, name: str, default: int) -> int:
        """An integer attribute."""
        return get_int(self.node, name, default)

    def integers(self, name: str) -> tuple[int, ...] | None:
        """A list of integers, None when it is absent."""
        return get_ints(self.node, name)

    def number(self, name: str, default: float) -> float:
        """A floating-point attribute."""
        return get_float(self.node, name, default)

    def text(self, name: str, default: str) -> str:
        """A string attribute."""
        return get_string(self.node, name, default)

    def axis(self, default: int, rank: int) -> int:
        """The attribute ``axis``, counted from 0."""
        return self.integer("axis", default) % max(rank, 1)

    def again(self, x: Tensor, *others: Tensor | None, outputs: int = 1, **changed: Any) -> tuple[Tensor, ...]:
        """The same operator with the same attributes (but for ``changed``; None leaves one out) on other inputs."""
        attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in self.node.attribute}
        return x.ops(self.node.op_type, *others, outputs=outputs, **(attributes | changed))


Partials = Mapping[Any, Callable[[], Tensor]]
"""For each input that has a gradient, by place (a tensor that a body reads: by name), what adds the nodes of that gradient;
called only where it is needed."""

Rule = Callable[[Op], Partials]

RULES: dict[str, Rule] = {}
"""The rule of each operator of standard ONNX."""

PASSIVE: dict[str, frozenset[int]] = {}
"""Floating-point inputs that an operator only takes settings from: no gradient is asked for there."""

STEPS = frozenset(
    {
        "Bernoulli", "Ceil", "ConstantOfShape", "EyeLike", "Floor", "Hardmax", "Multinomial", "OneHot", "RandomNormalLike",
        "RandomUniformLike", "Range", "Round", "Sign",
    }
)  # fmt: skip
"""Operators with floating-point results whose derivative is 0 wherever there is one: gradients end there.
Integers and booleans carry none anyway."""


def gradient_of(*op_types: str, passive: Iterable[int] = ()) -> Callable[[Rule], Rule]:
    """Register a function as the rule of some operators."""

    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(op_types, rule))
        PASSIVE.update(dict.fromkeys(op_types, frozenset(passive)))
        return rule

    return register


def active_places(node: onnx.NodeProto, active: Collection[str]) -> dict[int | str, str]:
    """The inputs of a node through which a gradient could go on to tensors in ``active``: place -> tensor.

    A tensor from around the node that its body reads stands under its name.
    """
    passive = PASSIVE.get(node.op_type, frozenset())
    found: dict[int | str, str] = {
        place: name for place, name in enumerate(node.input) if name in active and place not in passive
    }
    if node.attribute:
        found.update((name, name) for name in captured(node) if name in active)
    return found
