"""Values of small tensors: the arithmetic on shapes that exporters leave in the graph.

A node whose inputs are all known is computed by onnx's reference implementation of its operator and opset. Where only
some elements are known (a size that nobody bound), operators that merely move elements still work: each element travels
as a ticket, and the tickets are changed back. For sums and products of such tensors there is a small arithmetic here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx

from cleave_plan.onnx_io.arithmetic import plain_fact
from cleave_plan.onnx_io.facts import Dim, Value, as_value
from cleave_plan.onnx_io.matrix_work import STANDARD

MOVERS = frozenset(
    {
        "Concat", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Reshape", "ScatterElements",
        "ScatterND", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
    }
)  # fmt: skip
"""Operators whose outputs hold elements of their first input (Concat: of every input), and nothing computed."""

_UPDATERS = {"ScatterElements": 2, "ScatterND": 2}
"""Movers that also take elements from a later input."""


class CannotFoldError(ValueError):
    """The reference implementation refuses the node, or there is none."""


def evaluate(node: onnx.NodeProto, opsets: dict[str, int], values: Sequence[Value | None]) -> list[Value]:
    """Outputs of ``node`` on known inputs (None where an optional input is absent); raises CannotFoldError."""
    plain = plain_fact(node, values) if node.domain in STANDARD else None
    if plain is not None and plain.value is not None:
        return [plain.value]
    from onnx.reference import ReferenceEvaluator  # large, slow to load, and most models need nothing of it

    feeds = {name: value for name, value in zip(node.input, values, strict=True) if name}
    outputs = [name for name in node.output if name]
    graph = onnx.GraphProto(
        node=[node],
        input=[onnx.ValueInfoProto(name=name) for name in feeds],
        output=[onnx.ValueInfoProto(name=name) for name in outputs],
    )
    try:
        with np.errstate(all="ignore"):
            results = ReferenceEvaluator(graph, opsets=opsets).run(outputs, feeds)
    except Exception as error:  # the reference operators raise whatever NumPy and they themselves feel like
        raise CannotFoldError(str(error)) from None
    if not all(isinstance(result, np.ndarray | np.generic) for result in results):
        raise CannotFoldError("the outputs are not tensors")
    found = iter(results)
    return [np.asarray(next(found)) if name else np.zeros(0) for name in node.output]


def evaluate_partly(node: onnx.NodeProto, opsets: dict[str, int], values: Sequence[Value | None]) -> list[Value]:
    """Outputs of ``node`` when some inputs are only partly known (dtype object); raises CannotFoldError."""
    if node.op_type in MOVERS:
        return _move_tickets(node, opsets, values)
    arithmetic = _ARITHMETIC.get(node.op_type)
    if arithmetic is not None and len(values) == 2 and values[0] is not None and values[1] is not None:
        left, right = np.broadcast_arrays(values[0], values[1])
        return [as_value([arithmetic(x, y) for x, y in zip(_dims(left), _dims(right), strict=True)], left.shape)]
    if node.op_type == "Cast" and values[0] is not None:
        return [values[0]]
    if node.op_type == "ReduceProd" and values[0] is not None and len(values) == 1 and not node.attribute:
        total: Dim = 1
        for size in _dims(values[0]):
            total = _times(total, size)
        return [as_value([total], (1,) * values[0].ndim)]
    raise CannotFoldError("not an operator on partly known shapes")


def _move_tickets(node: onnx.NodeProto, opsets: dict[str, int], values: Sequence[Value | None]) -> list[Value]:
    """Run a mover on ticket numbers instead of elements."""
    carriers = range(len(values)) if node.op_type == "Concat" else {0, _UPDATERS.get(node.op_type, 0)}
    tickets: list[Dim] = []
    travelling: list[Value | None] = []
    for place, value in enumerate(values):
        if value is None:
            travelling.append(None)
        elif place in carriers:
            start = len(tickets)
            tickets.extend(_dims(value))
            travelling.append(np.arange(start, len(tickets), dtype=np.int64).reshape(value.shape))
        elif value.dtype == object:
            raise CannotFoldError("where elements go is itself not known")
        else:
            travelling.append(value)
    moved = evaluate(node, opsets, travelling)
    return [as_value([tickets[int(ticket)] for ticket in result.ravel()], result.shape) for result in moved]


def _dims(value: Value) -> list[Dim]:
    return [item if item is None or isinstance(item, str) else int(item) for item in value.ravel().tolist()]


def _both(compute: Callable[[int, int], int]) -> Callable[[Dim, Dim], Dim]:
    def apply(left: Dim, right: Dim) -> Dim:
        return compute(left, right) if isinstance(left, int) and isinstance(right, int) else None

    return apply


def _times(left: Dim, right: Dim) -> Dim:
    if left == 0 or right == 0:
        return 0
    if left == 1:
        return right
    if right == 1:
        return left
    return left * right if isinstance(left, int) and isinstance(right, int) else None


def _plus(left: Dim, right: Dim) -> Dim:
    if left == 0:
        return right
    if right == 0:
        return left
    return left + right if isinstance(left, int) and isinstance(right, int) else None


def _over(left: Dim, right: Dim) -> Dim:
    if right == 1:
        return left
    if not isinstance(left, int) or not isinstance(right, int) or right == 0:
        return None
    quotient = abs(left) // abs(right)  # ONNX divides integers towards zero
    return quotient if (left < 0) == (right < 0) else -quotient


def _minus(left: Dim, right: Dim) -> Dim:
    if right == 0:
        return left
    if left is not None and left == right:
        return 0
    return left - right if isinstance(left, int) and isinstance(right, int) else None


_ARITHMETIC: dict[str, Callable[[Dim, Dim], Dim]] = {
    "Mul": _times, "Add": _plus, "Sub": _minus, "Div": _over, "Max": _both(max), "Min": _both(min),
}  # fmt: skip
