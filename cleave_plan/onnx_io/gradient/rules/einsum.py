"""Einsum: the gradient of each operand is an Einsum of the output's gradient with the other operands."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from string import ascii_letters

from cleave_plan.onnx_io.gradient.rule import NoRuleError, Op, Partials, gradient_of
from cleave_plan.onnx_io.gradient.tensor import Tensor
from cleave_plan.onnx_io.rules.einsum import Equation


@gradient_of("Einsum")
def einsum(op: Op) -> Partials:
    """Y[o] = Σ X1[i1] X2[i2] ...: dX1[i1] = Σ dY[o] X2[i2] ..., spread over indices that X1 alone has."""
    operands = [op.x(place) for place in range(len(op.node.input))]
    equation = Equation.of(op.node, [operand.rank for operand in operands])
    labels = sorted({label for term in equation.terms for label in term})
    letters = dict(zip(labels, ascii_letters, strict=False))
    if len(letters) < len(labels):
        raise NoRuleError("more labels than letters")
    return {place: partial(_of_operand, op, operands, equation, letters, place) for place in range(len(operands))}


def _of_operand(op: Op, operands: Sequence[Tensor], equation: Equation, letters: dict[str, str], place: int) -> Tensor:
    term = equation.terms[place]
    if len(set(term)) < len(term):
        raise NoRuleError("an operand whose diagonal is taken")
    others = [at for at in range(len(operands)) if at != place]
    elsewhere = set(equation.output).union(*(equation.terms[at] for at in others))
    kept = [label for label in term if label in elsewhere]
    terms = [equation.output, *(equation.terms[at] for at in others)]
    left = ",".join("".join(letters[label] for label in entry) for entry in terms)
    text = f"{left}->{''.join(letters[label] for label in kept)}"
    gradient = op.dy.op("Einsum", *(operands[at] for at in others), equation=text, phase=op.phase(place))
    alone = [axis for axis, label in enumerate(term) if label not in elsewhere]
    if alone:
        gradient = gradient.op("Unsqueeze", gradient.ints(*alone)).expand(operands[place].sizes())
    return gradient.summed_like(operands[place])
