"""Finding attention: two products of activations, one feeding the other through operators that keep its rows apart.

From the result of a MatMul all readers are followed. When each of them acts on elements or along the last axis, and they end
in the A operand of one other MatMul with the same batch and rows, the two and what lies between are a chain
(:mod:`cleave_plan.workload.chain`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from heapq import heappop, heappush

from cleave_plan.kernels.chain import ChainProduct
from cleave_plan.onnx_io.chain_sides import Folding
from cleave_plan.onnx_io.chain_steps import ELEMENTWISE, RELABEL, StepBuilder
from cleave_plan.onnx_io.matrix_products import may_be_scores
from cleave_plan.onnx_io.surroundings import NoChainError, Surroundings
from cleave_plan.workload.attention import forward_chain
from cleave_plan.workload.graph import Chain

_NUMPY_BROADCASTING = 7
"""The operator set from which on operators broadcast as NumPy does."""

_BETWEEN = ELEMENTWISE | RELABEL | {"Softmax"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChainOfNodes:
    """A chain and how it is run: ``sides`` are tensors, and how they fold, in the order that ``product`` expects them;
    ``outputs`` the tensors that its nodes make, of which none but the last is read elsewhere; ``probabilities``: the shape of
    what multiplies V."""

    chain: Chain
    product: ChainProduct
    sides: tuple[tuple[str, Folding], ...]
    outputs: frozenset[str]
    probabilities: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """Indices of the two products and, in order, of the operators between them; ``flow``: the tensors between."""

    scores: int
    operators: tuple[int, ...]
    context: int
    flow: frozenset[str]


def find_chains(around: Surroundings) -> tuple[ChainOfNodes, ...]:
    """All chains of a graph, in the order of their first products; no GEMM is in two."""
    if around.opset < _NUMPY_BROADCASTING:
        return ()
    found: list[ChainOfNodes] = []
    taken: set[int] = set()
    for index in sorted(around.gemms):
        if index in taken or not _is_factor(around, index):
            continue
        span = _follow(around, index)
        if span is None or span.context in taken or not span.flow.isdisjoint(around.outputs):
            continue
        try:
            found.append(_chain(around, span))
        except NoChainError:
            continue
        taken |= {span.scores, span.context}
    return tuple(found)


def _is_factor(around: Surroundings, index: int) -> bool:
    """A MatMul of two activations, computed once, whose canonical result is its output as it lies in memory."""
    node = around.nodes[index]
    if node.op != "MatMul" or node.domain or not may_be_scores(around.gemms[index]):
        return False
    a, b = (around.shapes.get(name) for name in node.inputs)
    if a is None or b is None or len(a) < 2 or len(b) < 2:
        return False
    rank = max(len(a), len(b))
    a, b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    kinds = ["both" if one == other else "a" if other == 1 else "b alone" for one, other in zip(a[:-2], b[:-2], strict=True)]
    return "b alone" not in kinds and kinds == sorted(kinds, reverse=True)  # shared axes come before those of A alone


def _follow(around: Surroundings, start: int) -> _Span | None:
    """From the product ``start`` through all readers to the one product that ends the chain; None when there is none."""
    flow: set[str] = set()
    waiting: list[int] = []
    operators: list[int] = []
    context: int | None = None

    def enter(tensors: Collection[str]) -> None:
        for tensor in tensors:
            for reader in around.readers.get(tensor, ()):
                if reader not in waiting:
                    heappush(waiting, reader)
        flow.update(tensors)

    enter([around.gemms[start].output])
    while waiting:  # in the order of the graph, so that a node comes after all that it reads
        index = heappop(waiting)
        view = around.nodes[index]
        if index in around.gemms and context is None and _continues(around, start, index, flow):
            context = index
        elif index in around.moved and not view.domain and view.op in _BETWEEN:
            operators.append(index)
            enter(view.made)
        else:
            return None
    if context is None:
        return None
    return _Span(scores=start, operators=tuple(operators), context=context, flow=frozenset(flow))


def _continues(around: Surroundings, start: int, index: int, flow: Collection[str]) -> bool:
    """Whether the product ``index`` multiplies what became of the scores, row by row, by an activation of its own."""
    first, second, inputs = around.gemms[start], around.gemms[index], around.nodes[index].inputs
    alike = (second.shape.batch, second.shape.m, second.shape.k) == (first.shape.batch, first.shape.m, first.shape.n)
    return alike and _is_factor(around, index) and inputs[0] in flow and inputs[1] not in flow


def _chain(around: Surroundings, span: _Span) -> ChainOfNodes:
    """The chain of ``span``; raises NoChainError when it is none."""
    scores, context = around.gemms[span.scores], around.gemms[span.context]
    batch, rows, d_k, length = scores.shape
    builder = StepBuilder(around=around, scores=scores.output, batch=batch, rows=rows, length=length)
    for index in span.operators:
        builder.add(around.nodes[index].node)
    probabilities = around.nodes[span.context].inputs[0]
    sides = tuple(builder.sides)
    read = [scores.a.tensor, scores.b.tensor, context.b.tensor, *(tensor for tensor, _ in sides)]
    chain = forward_chain(
        scores, context, {around.names[index]: around.moved[index] for index in span.operators},
        level=max(around.ready(tensor) for tensor in read), sides=builder.cost(),
    )  # fmt: skip
    product = ChainProduct(
        shape=chain.shape, d_k=d_k, length=length, d_v=context.shape.n, dtype=scores.dtype, scores_dtype=scores.out_dtype,
        out_dtype=context.out_dtype, steps=builder.steps(), result=builder.place(probabilities),
        constant=tuple(tensor in around.fixed for tensor, _ in sides),
    )  # fmt: skip
    return ChainOfNodes(
        chain=chain, product=product, sides=sides, outputs=span.flow | {context.output},
        probabilities=around.known_shape(probabilities),
    )  # fmt: skip
