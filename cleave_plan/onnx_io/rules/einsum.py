"""Einsum of two operands as one batched GEMM, and of more as a chain of two.

Subscripts that both operands and the output have are the batch, those of A and the output the rows, those of B and the output
the columns, those of both operands alone the inner axis; what only one operand has is summed by the server before. All axes
can be cut. Three operands and more are multiplied two at a time, each time the pair that takes the fewest multiply-adds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod
from string import ascii_letters

import numpy as np
import onnx

from cleave_plan.onnx_io.attributes import get_string
from cleave_plan.onnx_io.facts import ShapeContradictionError
from cleave_plan.onnx_io.rules.builder import Builder, DeclinedError
from cleave_plan.onnx_io.rules.forms import Array, Arrays, Form, Lowered, Operator, Sizes, in_type, operand
from cleave_plan.workload.gemm import Gemm, GemmShape

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Equation:
    """Labels of the axes of each term and of the output; an ellipsis is spelled out, its axes are named from the right."""

    terms: tuple[Labels, ...]
    output: Labels

    @classmethod
    def of(cls, node: onnx.NodeProto, ranks: Sequence[int]) -> Equation:
        """The node's equation for operands of these ranks; raises ShapeContradictionError when they do not fit."""
        text = get_string(node, "equation", "").replace(" ", "")
        left, arrow, right = text.partition("->")
        parts = left.split(",")
        if len(parts) != len(ranks):
            raise ShapeContradictionError(f"the equation {text!r} is for {len(parts)} operands, there are {len(ranks)}")
        widths = [rank - len(part.replace("...", "")) if "..." in part else 0 for part, rank in zip(parts, ranks, strict=True)]
        widest = max(widths)
        terms = tuple(_spelled(part, width) for part, width in zip(parts, widths, strict=True))
        if any(len(term) != rank for term, rank in zip(terms, ranks, strict=True)):
            raise ShapeContradictionError(f"the equation {text!r} does not fit operands of {list(ranks)} axes")
        if arrow:
            return cls(terms=terms, output=_spelled(right, widest))
        letters = [label for term in terms for label in term if not label.startswith(".")]
        once = tuple(sorted(label for label in set(letters) if letters.count(label) == 1))
        return cls(terms=terms, output=(*_spelled("..." if "..." in left else "", widest), *once))


def _spelled(text: str, width: int) -> Labels:
    """The labels of one term, with ``width`` axes for an ellipsis."""
    before, dots, after = text.partition("...")
    return (*before, *(f".{place}" for place in range(width if dots else 0, 0, -1)), *after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """Which labels of a product of two terms play which part; ``sizes`` of all of them."""

    batch: Labels
    rows: Labels
    columns: Labels
    inner: Labels
    sizes: Mapping[str, int]

    @classmethod
    def of(cls, left: Mapping[str, int], right: Mapping[str, int], output: Labels) -> Pairing:
        """Terms as label -> size. An axis of size 1 that is longer in the other term belongs to the other alone."""
        sizes = _sizes([left, right])
        own = {label for label in left if left[label] == sizes[label]}
        other = {label for label in right if right[label] == sizes[label]}
        wanted = set(output)
        return cls(
            batch=tuple(label for label in output if label in own & other),
            rows=tuple(label for label in output if label in own - other),
            columns=tuple(label for label in output if label in other - own),
            inner=tuple(label for label in left if label in own & other and label not in wanted),
            sizes=sizes,
        )  # fmt: skip

    @property
    def shape(self) -> GemmShape:
        """The canonical GEMM."""
        return GemmShape(*(self.size(labels) for labels in (self.batch, self.rows, self.inner, self.columns)))

    def size(self, labels: Labels) -> int:
        """Elements of the axes ``labels``."""
        return prod(self.sizes[label] for label in labels)


def _sizes(terms: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """The size of each label; raises ShapeContradictionError where terms differ (but for 1)."""
    sizes: dict[str, int] = {}
    for term in terms:
        for label, size in term.items():
            known = sizes.get(label, 1)
            if known not in (1, size) and size != 1:
                raise ShapeContradictionError(f"subscript {label!r} stands for sizes {known} and {size}")
            sizes[label] = size if known == 1 else known
    return sizes


def _named(labels: Labels, shape: Sequence[int]) -> dict[str, int]:
    """Label -> size of one term; a label that stands twice (a diagonal) must have one size."""
    named: dict[str, int] = {}
    for label, size in zip(labels, shape, strict=True):
        if named.setdefault(label, size) != size:
            raise ShapeContradictionError(f"subscript {label!r} stands for sizes {named[label]} and {size}")
    return named


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One product of a chain: the places of its terms among what is left (they are taken out, the result is put last)."""

    left: int
    right: int
    terms: tuple[Labels, Labels]
    output: Labels
    shape: GemmShape


def chain(equation: Equation, shapes: Sequence[Sequence[int]]) -> list[Step]:
    """The products of an equation with two operands or more, in order."""
    left = [_named(term, shape) for term, shape in zip(equation.terms, shapes, strict=True)]
    labels = list(equation.terms)
    steps = []
    while len(left) > 1:
        choices = []
        for i, j in combinations(range(len(left)), 2):
            rest = set(equation.output).union(*(term for place, term in enumerate(left) if place not in (i, j)))
            merged = tuple(dict.fromkeys([*left[i], *left[j]]))
            output = equation.output if len(left) == 2 else tuple(label for label in merged if label in rest)
            pairing = Pairing.of(left[i], left[j], output)
            choices.append((pairing.shape.macs, i, j, output, pairing))
        _, i, j, output, pairing = min(choices, key=lambda choice: choice[:3])
        steps.append(Step(left=i, right=j, terms=(labels[i], labels[j]), output=output, shape=pairing.shape))
        left = [term for place, term in enumerate(left) if place not in (i, j)] + [{x: pairing.sizes[x] for x in output}]
        labels = [term for place, term in enumerate(labels) if place not in (i, j)] + [output]
    return steps


def _forms(node: onnx.NodeProto, sizes: Sizes) -> tuple[Form, ...]:
    """No product in one operand; one for two; for more a chain, which only its expansion can spread."""
    shapes = [size for size in sizes if size is not None]
    equation = Equation.of(node, [len(shape) for shape in shapes])
    steps = chain(equation, shapes)
    if len(steps) < 2:
        return tuple(Form(shape=step.shape) for step in steps)
    why = "one product of a chain inside its node"
    return tuple(
        Form(shape=step.shape, a=None, b=None, part=f"product{number}", pinned=why) for number, step in enumerate(steps, 1)
    )


def _expand(build: Builder) -> None:
    """A chain as Einsum nodes of two operands."""
    left = [build.input(place) for place in range(len(build.node.input))]
    if len(left) < 3:
        raise DeclinedError("it is one product already")
    try:
        equation = Equation.of(build.node, [len(tensor.shape) for tensor in left])
        steps = chain(equation, [tensor.shape for tensor in left])
    except ShapeContradictionError as error:
        raise DeclinedError(str(error)) from None
    letters = _letters(equation)
    for number, step in enumerate(steps, 1):
        a, b = left[step.left], left[step.right]
        left = [tensor for place, tensor in enumerate(left) if place not in (step.left, step.right)]
        sizes = _sizes([_named(step.terms[0], a.shape), _named(step.terms[1], b.shape)])
        text = ["".join(letters[label] for label in labels) for labels in (*step.terms, step.output)]
        made = build.add(
            "Einsum", [a, b], [sizes[label] for label in step.output], part=f"product{number}",
            out=build.output(0) if number == len(steps) else "", equation=f"{text[0]},{text[1]}->{text[2]}",
        )  # fmt: skip
        left.append(made)


def _letters(equation: Equation) -> dict[str, str]:
    """A letter for each label; those of an ellipsis get letters that are not used."""
    labels = dict.fromkeys(label for term in (*equation.terms, equation.output) for label in term)
    unused = (letter for letter in ascii_letters if letter not in labels)
    return {label: next(unused) if label.startswith(".") else label for label in labels}


def _lower(node: onnx.NodeProto, gemm: Gemm, arrays: Arrays) -> Lowered:
    left, right = operand(arrays, 0), operand(arrays, 1)
    equation = Equation.of(node, [left.ndim, right.ndim])
    left, left_labels = _plain(left, equation.terms[0])
    right, right_labels = _plain(right, equation.terms[1])
    pairing = Pairing.of(_named(left_labels, left.shape), _named(right_labels, right.shape), equation.output)
    a = _arranged(left, left_labels, pairing.batch + pairing.rows + pairing.inner)
    b = _arranged(right, right_labels, pairing.batch + pairing.inner + pairing.columns)
    batch, m, k, n = pairing.shape

    def finish(result: Array) -> Array:
        made = pairing.batch + pairing.rows + pairing.columns
        apart = result.reshape([pairing.sizes[label] for label in made])
        return apart.transpose([made.index(label) for label in equation.output])

    return Lowered(a=a.reshape(batch, m, k), b=b.reshape(batch, k, n), finish=finish)


def _plain(array: Array, labels: Labels) -> tuple[Array, Labels]:
    """A term without diagonals: an axis whose label stands earlier too is taken along with it."""
    while len(set(labels)) < len(labels):
        second = next(place for place, label in enumerate(labels) if label in labels[:place])
        first = labels.index(labels[second])
        array = np.diagonal(array, axis1=first, axis2=second)  # puts the diagonal last
        label = labels[first]
        labels = (*(x for place, x in enumerate(labels) if place not in (first, second)), label)
    return array, labels


def _arranged(array: Array, labels: Labels, wanted: Labels) -> Array:
    """The axes ``wanted`` in that order; what the product does not have is summed."""
    summed = tuple(place for place, label in enumerate(labels) if label not in wanted)
    if summed:
        wide = array.sum(axis=summed, dtype=np.promote_types(array.dtype, np.float32) if array.dtype.kind != "i" else None)
        array, labels = in_type(wide, array.dtype), tuple(label for label in labels if label in wanted)
    return array.transpose([labels.index(label) for label in wanted])


EINSUM = Operator(forms=_forms, lower=_lower, expand=_expand, operands=tuple(range(32)))
