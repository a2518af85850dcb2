"""Several GEMM nodes as one product: their operands put side by side, and the result taken apart again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from cleave_plan.errors import ExecutionError
from cleave_plan.kernels.arrays import Array, numpy_dtype
from cleave_plan.kernels.chain import Work
from cleave_plan.kernels.quantised import NOTHING, Companions
from cleave_plan.kernels.tile import Product
from cleave_plan.onnx_io.chains import ChainOfNodes
from cleave_plan.onnx_io.lowering import lower
from cleave_plan.onnx_io.refusal import Value
from cleave_plan.onnx_io.rules.forms import Lowered
from cleave_plan.workload.gemm import Gemm, Join


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operands:
    """Canonical operands of a product in the order of ``work.run``, companions of its B (:mod:`cleave_plan.kernels.quantised`)
    also by name, and ``finish``: its canonical result -> the output tensors of all members."""

    work: Work
    arrays: tuple[Array | None, ...]
    along: Companions = NOTHING
    finish: Callable[[Array], Mapping[str, Value]]


def operands_of(
    product: Gemm,
    members: Sequence[Gemm],
    nodes: Mapping[str, onnx.NodeProto],
    value: Callable[[str], Value],
    beside: Callable[[Sequence[Array], int], Array] = np.concatenate,
) -> Operands:
    """Lower the nodes (by GEMM name) of ``members``, which ``product`` joins; ``value`` gives a tensor by its name, ``beside``
    puts their B operands side by side along an axis.

    Raises ExecutionError when members joined by a shared operand do not really share it, or are joined along K (their sum
    is formed by a training graph's own nodes, which a forward model does not have).
    """
    lowered = []
    for gemm in members:
        node = nodes[gemm.name]
        lowered.append(lower(node, gemm, [value(tensor) if tensor else None for tensor in node.input]))
    names = [gemm.output for gemm in members]
    first = lowered[0]
    whole = Product.of(product, first.coding)
    if len(lowered) == 1:
        finish_one = first.finish
        return _operands(whole, first.a, first.b, first.along, lambda result: {names[0]: finish_one(result)})
    if product.join is not Join.N or not all(_share(first, other) for other in lowered[1:]):
        raise ExecutionError(
            f"its {len(lowered)} members do not share their A operand in this run", where=f"GEMM {members[0].name!r}",
            expected="members of a product that share it", remedy="plan with --without shared",
        )  # fmt: skip
    edges = np.cumsum((0, *product.extents))

    def finish(result: Array) -> dict[str, Value]:
        return {
            name: own.finish(whole.columns_of(result, slice(start, stop)))
            for name, own, start, stop in zip(names, lowered, edges[:-1], edges[1:], strict=True)
        }

    columns = -1 if first.coding is None else 1
    b = beside([own.b for own in lowered], columns)
    return _operands(whole, first.a, b, _side_by_side([own.along for own in lowered], product.extents), finish)


def chain_operands(
    chain: ChainOfNodes, members: Sequence[Gemm], nodes: Mapping[str, onnx.NodeProto], value: Callable[[str], Value]
) -> Operands:
    """Q, K, V and the sides of ``chain``, whose GEMMs are ``members`` (scores, context).

    Raises ExecutionError when a tensor has another shape in this run than the plan was made for.
    """
    scores, context = members
    first = lower(nodes[scores.name], scores, [value(tensor) for tensor in nodes[scores.name].input])
    # The probabilities never exist here: one number of their shape stands in for them, and only V is taken.
    stand_in = np.broadcast_to(np.zeros((), numpy_dtype(context.a.dtype)), chain.probabilities)
    second = lower(nodes[context.name], context, [stand_in, value(nodes[context.name].input[1])])
    try:
        sides = tuple(folding.fold(np.asarray(value(tensor))) for tensor, folding in chain.sides)
    except ValueError as error:
        raise ExecutionError(
            f"what is read beside its scores has another shape in this run: {error}",
            where=f"GEMM {scores.name!r}",
            remedy="plan with the shapes that the data really has",
        ) from None
    return Operands(
        work=chain.product, arrays=(first.a, first.b, second.b, *sides),
        finish=lambda result: {context.output: second.finish(result)},
    )  # fmt: skip


def _operands(
    product: Product, a: Array, b: Array, along: Companions, finish: Callable[[Array], Mapping[str, Value]]
) -> Operands:
    return Operands(work=product, arrays=(a, b, *along), along=along, finish=finish)


def _share(one: Lowered, other: Lowered) -> bool:
    """Whether two members multiply the same A by a B that is packed in the same way."""
    mine, others = (np.zeros((1, 1, 1)) if own.along.a_zero is None else own.along.a_zero for own in (one, other))
    return one.coding == other.coding and _same(one.a, other.a) and bool(np.array_equal(mine, others))


def _same(one: Array, other: Array) -> bool:
    """The same view of the same memory, or the same numbers."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    alike = one.__array_interface__["data"] == other.__array_interface__["data"] and one.strides == other.strides
    return alike or bool(np.array_equal(one, other))


# Axis of the columns among a companion's axes, where it is not the last.
_COLUMNS = {"b_scale": 1, "b_offset": 1}


def _side_by_side(members: Sequence[Companions], extents: Sequence[int]) -> Companions:
    """The companions of members that lie side by side along N; ``extents`` are their numbers of columns."""
    joined = {}
    for name in NOTHING._fields:
        parts: list[Array | None] = [getattr(member, name) for member in members]
        model = next((part for part in parts if part is not None), None)
        if model is not None:
            joined[name] = parts[0] if name == "a_zero" else _concatenated(parts, model, extents, _COLUMNS.get(name, 2))
    return Companions(**joined)


def _concatenated(parts: Sequence[Array | None], model: Array, extents: Sequence[int], axis: int) -> Array:
    """``parts`` (zeros where one is absent) with as many entries along ``axis`` as each member has columns."""
    present = [np.zeros((1, 1, 1), model.dtype) if part is None else part for part in parts]
    others = np.broadcast_shapes(*(tuple(1 if at == axis else size for at, size in enumerate(p.shape)) for p in present))
    whole = [
        np.broadcast_to(part, tuple(extent if at == axis else size for at, size in enumerate(others)))
        for part, extent in zip(present, extents, strict=True)
    ]
    return np.concatenate(whole, axis=axis)
