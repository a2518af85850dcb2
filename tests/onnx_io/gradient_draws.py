"""For each gradient rule, a case of random shapes and attributes, with broadcasting where the operator broadcasts.

``DRAWS`` maps the operator to a function that draws one. Sizes are 1 to 4 unless a kernel or a block asks for more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from gradient_cases import Array, Case, chance, shape_of, stretched, values
from gradient_draws_moves import MOVES
from gradient_draws_spatial import SPATIAL
from onnx import TensorProto, helper

UNARY: Mapping[str, tuple[float, float, Mapping[str, float]]] = {
    "Abs": (-2, 2, {}), "Acos": (-0.9, 0.9, {}), "Acosh": (1.1, 3, {}), "Asin": (-0.9, 0.9, {}), "Asinh": (-2, 2, {}),
    "Atan": (-2, 2, {}), "Atanh": (-0.9, 0.9, {}), "Cos": (-2, 2, {}), "Cosh": (-2, 2, {}),
    "Elu": (-2, 2, {"alpha": 0.7}), "Erf": (-2, 2, {}), "Exp": (-2, 2, {}),
    "HardSigmoid": (-4, 4, {"alpha": 0.3}), "HardSwish": (-5, 5, {}), "Identity": (-2, 2, {}),
    "LeakyRelu": (-2, 2, {"alpha": 0.3}), "Log": (0.5, 3, {}), "Mish": (-2, 2, {}), "Neg": (-2, 2, {}),
    "Reciprocal": (0.5, 3, {}), "Relu": (-2, 2, {}), "Selu": (-2, 2, {"alpha": 1.3}),
    "Shrink": (-2, 2, {"lambd": 1.0, "bias": 0.5}),
    "Sigmoid": (-2, 2, {}), "Sin": (-2, 2, {}), "Sinh": (-2, 2, {}), "Softplus": (-2, 2, {}), "Softsign": (-2, 2, {}),
    "Sqrt": (0.5, 3, {}), "Swish": (-2, 2, {"alpha": 0.7}), "Tan": (-1.2, 1.2, {}), "Tanh": (-2, 2, {}),
    "ThresholdedRelu": (-2, 2, {"alpha": 1.0}),
}  # fmt: skip
"""Functions of one input: where they are smooth (kinks lie at whole numbers, which values keep away from), and attributes."""


def unary(op: str, rng: np.random.Generator) -> Case:
    """Rank 1 to 4 (onnx.reference has no Softsign of a single number), on the operator's range."""
    low, high, attributes = UNARY[op]
    x = values(rng, *shape_of(rng, int(rng.integers(1, 5))), low=low, high=high)
    return Case(op=op, inputs=[x], attributes=attributes, opset=24 if op == "Swish" else 22)


def celu(rng: np.random.Generator) -> Case:
    """The standard has it in float32 only."""
    return Case(op="Celu", inputs=[values(rng, *shape_of(rng, 3)).astype(np.float32)], attributes={"alpha": 0.7}, wanted=[0])


def gelu(rng: np.random.Generator) -> Case:
    """By erf, or the approximation by tanh that GPT-2 uses."""
    return Case(op="Gelu", inputs=[values(rng, *shape_of(rng, 3))], attributes={"approximate": "tanh" if chance(rng) else "none"})


def cast(rng: np.random.Generator) -> Case:
    """To a type that holds the values."""
    return Case(op="Cast", inputs=[values(rng, *shape_of(rng, 3))], attributes={"to": TensorProto.DOUBLE})


def cast_like(rng: np.random.Generator) -> Case:
    """To the type of another tensor, which gets no gradient."""
    return Case(op="CastLike", inputs=[values(rng, *shape_of(rng, 3)), values(rng, 2)], wanted=[0])


def dropout(rng: np.random.Generator) -> Case:
    """Switched off."""
    inputs = [values(rng, *shape_of(rng, 3)), np.array(0.3), np.array(False)]
    return Case(op="Dropout", inputs=inputs, wanted=[0], fixed=[1, 2])


def clip(rng: np.random.Generator) -> Case:
    """Between two ends, which learn too, or under one."""
    low = np.array(-0.713) if chance(rng) else None
    return Case(op="Clip", inputs=[values(rng, *shape_of(rng, 3)), low, np.array(0.917)])


def binary(op: str, rng: np.random.Generator) -> Case:
    """Two operands of which either is stretched.

    (onnx.reference has no Mean whose first operand is stretched, and PRelu stretches its slope alone.)
    """
    whole = shape_of(rng, int(rng.integers(0, 5)))
    shapes = [whole, stretched(rng, whole)]
    if op not in ("PRelu", "Mean", "Mod") and chance(rng):
        shapes.reverse()
    low_a, high_a, low_b, high_b = {
        "Div": (0.5, 2, 0.5, 2.7), "Pow": (0.5, 2, 0.5, 2.7), "Mod": (2, 9, 1.1, 1.9),
    }.get(op, (-2, 2, -2.3, 2.7))  # fmt: skip
    inputs = [values(rng, *shapes[0], low=low_a, high=high_a), values(rng, *shapes[1], low=low_b, high=high_b)]
    return Case(op=op, inputs=inputs, attributes={"fmod": 1} if op == "Mod" else {})


def where(rng: np.random.Generator) -> Case:
    """Three operands, two of them stretched; each element goes one way."""
    shape = shape_of(rng, 3)
    condition = np.asarray(rng.random(stretched(rng, shape)) < 0.5)
    operands = [values(rng, *shape), values(rng, *stretched(rng, shape))]
    return Case(op="Where", inputs=[condition, *(operands if chance(rng) else operands[::-1])])


def matmul(rng: np.random.Generator) -> Case:
    """Matrices, vectors, stacks, and stacks that broadcast."""
    m, k, n = shape_of(rng, 3)
    lead = shape_of(rng, int(rng.integers(0, 3)))
    a = [k] if rng.random() < 0.2 else [*stretched(rng, lead), m, k]
    b = [k] if rng.random() < 0.2 else [*stretched(rng, lead), k, n]
    return Case(op="MatMul", inputs=[values(rng, *a), values(rng, *b)])


def gemm(rng: np.random.Generator) -> Case:
    """Every transposition, with factors and a bias that is stretched."""
    m, k, n = shape_of(rng, 3)
    trans_a, trans_b = chance(rng), chance(rng)
    a, b = values(rng, *((k, m) if trans_a else (m, k))), values(rng, *((n, k) if trans_b else (k, n)))
    bias = values(rng, *stretched(rng, [m, n])) if chance(rng) else None
    attributes = {"transA": int(trans_a), "transB": int(trans_b), "alpha": 0.7, "beta": 1.3}
    return Case(op="Gemm", inputs=[a, b, bias], attributes=attributes)


def einsum(rng: np.random.Generator) -> Case:
    """A product of two operands over any letters: batch, rows, columns and inner ones, those that one alone has, an ellipsis."""
    sizes = dict(zip("abcde", shape_of(rng, 5), strict=True))
    first, second = ("".join(rng.permutation(list(letters)))[: rng.integers(1, 4)] for letters in ("abcd", "abce"))
    kept = "".join(rng.permutation(sorted(set(first + second))))[: rng.integers(0, 4)]
    lead = shape_of(rng, int(rng.integers(1, 3))) if chance(rng) else None
    dots, around = ("", ([], [])) if lead is None else ("...", (lead, [1 if chance(rng) else size for size in lead]))
    operands = [
        values(rng, *front, *(sizes[letter] for letter in letters))
        for front, letters in zip(around, (first, second), strict=True)
    ]
    return Case(op="Einsum", inputs=operands, attributes={"equation": f"{dots}{first},{dots}{second}->{dots}{kept}"})


def reduction(op: str, rng: np.random.Generator) -> Case:
    """Some axes, all axes, counted from either end; the axes kept or not."""
    rank = int(rng.integers(1, 5))
    x = values(rng, *shape_of(rng, rank), low=0.5 if op == "ReduceLogSum" else -2)
    chosen = rng.permutation(rank)[: rng.integers(1, rank + 1)]
    axes = None if rng.random() < 0.2 else np.array([axis - rank if chance(rng) else axis for axis in chosen], np.int64)
    return Case(op=op, inputs=[x, axes], attributes={"keepdims": int(chance(rng))}, fixed=[] if axes is None else [1])


def cumulative_sum(rng: np.random.Generator) -> Case:
    """From either end, with or without the element itself."""
    attributes = {"exclusive": int(chance(rng)), "reverse": int(chance(rng))}
    return Case(
        op="CumSum", inputs=[values(rng, *shape_of(rng, 3)), np.array(rng.integers(-3, 3))], attributes=attributes, fixed=[1]
    )


def softmax(op: str, rng: np.random.Generator) -> Case:
    """Along any axis."""
    return Case(op=op, inputs=[values(rng, *shape_of(rng, 3))], attributes={"axis": int(rng.integers(-3, 3))})


def layer_norm(op: str, rng: np.random.Generator) -> Case:
    """From any axis on, with or without a bias; the scale may be stretched."""
    axis = int(rng.integers(-3, 3))
    x = values(rng, *shape_of(rng, 3))
    inputs: list[Array | None] = [x, values(rng, *x.shape[axis:])]
    if op == "LayerNormalization" and chance(rng):
        inputs.append(values(rng, *x.shape[axis:]))
    return Case(op=op, inputs=inputs, attributes={"axis": axis, "epsilon": 0.1}, opset=23)


def lp_norm(rng: np.random.Generator) -> Case:
    """Sums of values and of squares (onnx.reference takes no absolute values)."""
    x = np.abs(values(rng, *shape_of(rng, 3)))
    return Case(op="LpNormalization", inputs=[x], attributes={"axis": int(rng.integers(-3, 3)), "p": int(rng.integers(1, 3))})


def batch_norm(rng: np.random.Generator) -> Case:
    """By running statistics, or in training mode by the batch's own, which depend on it."""
    channels, training = int(rng.integers(1, 5)), chance(rng)
    x = values(rng, int(rng.integers(2, 5)), channels, *shape_of(rng, int(rng.integers(0, 4))))
    scale, bias, mean = (values(rng, channels) for _ in range(3))
    attributes = {"epsilon": 0.1, **({"training_mode": 1, "momentum": 0.7} if training else {})}
    return Case(
        op="BatchNormalization", inputs=[x, scale, bias, mean, values(rng, channels, low=0.5)], attributes=attributes,
        wanted=[0, 1, 2], outputs=3 if training else 1,
    )  # fmt: skip


def instance_norm(rng: np.random.Generator) -> Case:
    """Each channel of each sample by its own statistics."""
    channels = int(rng.integers(1, 5))
    x = values(rng, int(rng.integers(1, 4)), channels, *(shape_of(rng, int(rng.integers(1, 4)))))
    return Case(op="InstanceNormalization", inputs=[x, values(rng, channels), values(rng, channels)], attributes={"epsilon": 0.1})


def scan(rng: np.random.Generator) -> Case:
    """s' = s w + x, y = tanh(s'): states, of which one never changes, and slices."""
    steps, rows, width = shape_of(rng, 3)
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["s", "w"], ["h"]),
            helper.make_node("Add", ["h", "x"], ["next"]),
            helper.make_node("Tanh", ["next"], ["y"]),
        ],
        "step",
        [helper.make_tensor_value_info(name, TensorProto.DOUBLE, shape) for name, shape in (
            ("s", [rows, width]), ("w", [width, width]), ("x", [rows, width]),
        )],
        [helper.make_tensor_value_info(name, TensorProto.DOUBLE, shape) for name, shape in (
            ("next", [rows, width]), ("w", [width, width]), ("y", [rows, width]),
        )],
    )  # fmt: skip
    inputs = [values(rng, rows, width), values(rng, width, width), values(rng, steps, rows, width)]
    shapes = [(rows, width), (width, width), (steps, rows, width)]
    return Case(
        op="Scan", inputs=inputs, attributes={"body": body, "num_scan_inputs": 1}, outputs=3, scored=3, shapes=shapes
    )  # fmt: skip


DRAWS: Mapping[str, Callable[[np.random.Generator], Case]] = {
    **{op: partial(unary, op) for op in UNARY},
    **{op: partial(binary, op) for op in ("Add", "Div", "Max", "Mean", "Min", "Mod", "Mul", "PRelu", "Pow", "Sub", "Sum")},
    **{
        op: partial(reduction, op) for op in (
            "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
            "ReduceSum", "ReduceSumSquare",
        )
    },
    **{op: partial(softmax, op) for op in ("LogSoftmax", "Softmax")},
    **{op: partial(layer_norm, op) for op in ("LayerNormalization", "RMSNormalization")},
    "BatchNormalization": batch_norm, "Cast": cast, "CastLike": cast_like, "Celu": celu, "Clip": clip,
    "CumSum": cumulative_sum, "Dropout": dropout, "Einsum": einsum, "Gelu": gelu, "Gemm": gemm,
    "InstanceNormalization": instance_norm, "LpNormalization": lp_norm, "MatMul": matmul, "Scan": scan, "Where": where,
    **MOVES, **SPATIAL,
}  # fmt: skip
"""By operator."""
