"""Each gradient rule against finite differences, on random shapes, with broadcasting."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from gradient_cases import Case, differentiate, evaluate, values
from gradient_cases import run_case as run
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from cleave_plan.onnx_io.gradient.rules import RULES

Draw = Callable[[np.random.Generator], Case]
EXAMPLES = settings(max_examples=3, deadline=None, derandomize=True, database=None, phases=[Phase.generate])

seeds = st.integers(0, 10**6)
ranks = st.integers(0, 4)


def shape_of(rng: np.random.Generator, rank: int) -> list[int]:
    """Sizes from 1 to 4."""
    return [int(size) for size in rng.integers(1, 5, rank)]


def stretched(rng: np.random.Generator, shape: Sequence[int]) -> list[int]:
    """A shape that broadcasts to ``shape``: leading axes left out, others 1."""
    return [1 if rng.random() < 0.4 else size for size in shape[rng.integers(0, len(shape) + 1) :]]


UNARY: dict[str, tuple[float, float, dict[str, float]]] = {
    "Abs": (-2, 2, {}), "Acos": (-0.9, 0.9, {}), "Acosh": (1.1, 3, {}), "Asin": (-0.9, 0.9, {}), "Asinh": (-2, 2, {}),
    "Atan": (-2, 2, {}), "Atanh": (-0.9, 0.9, {}), "Cos": (-2, 2, {}), "Cosh": (-2, 2, {}),
    "Elu": (-2, 2, {"alpha": 0.7}), "Erf": (-2, 2, {}), "Exp": (-2, 2, {}), "Gelu": (-2, 2, {}),
    "HardSigmoid": (-4, 4, {"alpha": 0.3}), "HardSwish": (-5, 5, {}), "Identity": (-2, 2, {}),
    "LeakyRelu": (-2, 2, {"alpha": 0.3}), "Log": (0.5, 3, {}), "Mish": (-2, 2, {}), "Neg": (-2, 2, {}),
    "Reciprocal": (0.5, 3, {}), "Relu": (-2, 2, {}), "Selu": (-2, 2, {"alpha": 1.3}),
    "Shrink": (-2, 2, {"lambd": 1.0, "bias": 0.5}),
    "Sigmoid": (-2, 2, {}), "Sin": (-2, 2, {}), "Sinh": (-2, 2, {}), "Softplus": (-2, 2, {}), "Softsign": (-2, 2, {}),
    "Sqrt": (0.5, 3, {}), "Tan": (-1.2, 1.2, {}), "Tanh": (-2, 2, {}), "ThresholdedRelu": (-2, 2, {"alpha": 1.0}),
}  # fmt: skip


@pytest.mark.parametrize("op", UNARY)
@given(seed=seeds, rank=st.integers(1, 4))
@EXAMPLES
def test_elementwise(op: str, seed: int, rank: int) -> None:
    """Functions of one input, away from their kinks."""
    rng = np.random.default_rng(seed)
    low, high, attributes = UNARY[op]
    run(Case(op=op, inputs=[values(rng, *shape_of(rng, rank), low=low, high=high)], attributes=attributes, opset=22))


def test_celu() -> None:
    """The standard has it in float32 only: its derivative is 1 above 0 and e^(x/α) below."""
    x = np.array([[-1.5, -0.3], [0.4, 2.0]], np.float32)
    case = Case(op="Celu", inputs=[x], attributes={"alpha": 0.7}, wanted=[0])
    expected = np.where(x > 0, 1.0, np.exp(x / 0.7)) * np.random.default_rng(5).standard_normal(x.shape)
    with tempfile.TemporaryDirectory() as folder:
        made = differentiate(case, Path(folder))
    result = evaluate(made.model, {"x0": x})[made.names.gradients["x0"]]
    np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_gelu_by_tanh() -> None:
    """The approximation that GPT-2 uses."""
    run(Case(op="Gelu", inputs=[values(np.random.default_rng(1), 3, 4)], attributes={"approximate": "tanh"}))


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "Pow", "PRelu"])
@given(seed=seeds, rank=ranks, dynamic=st.booleans())
@EXAMPLES
def test_broadcasting(op: str, seed: int, rank: int, dynamic: bool) -> None:
    """Two operands of which either is stretched; sizes known, or only when the graph runs.

    (onnx.reference has no Mean whose first operand is stretched.)
    """
    rng = np.random.default_rng(seed)
    whole = shape_of(rng, rank)
    shapes = [whole, stretched(rng, whole)]
    if op not in ("PRelu", "Mean") and rng.random() < 0.5:
        shapes.reverse()
    positive = op in ("Div", "Pow")
    a = values(rng, *shapes[0], low=0.5 if positive else -2)
    b = values(rng, *shapes[1], low=0.5 if positive else -2.3, high=2.7)
    run(Case(op=op, inputs=[a, b]), dynamic=dynamic)


def test_mutual_broadcasting_of_unknown_sizes() -> None:
    """Both operands are stretched, along axes that only the run tells."""
    rng = np.random.default_rng(3)
    run(Case(op="Mul", inputs=[values(rng, 3, 1, 2), values(rng, 4, 1)]), dynamic=True)


def test_power_at_its_edges() -> None:
    """Negative bases with whole exponents, exponent 0, and a constant exponent."""
    rng = np.random.default_rng(4)
    run(Case(op="Pow", inputs=[values(rng, 3, 4), np.array(3.0)], wanted=[0], fixed=[1]))
    run(Case(op="Pow", inputs=[values(rng, 2, 3), np.array([0.0, 2.0, 1.0])], wanted=[0]))
    run(Case(op="Pow", inputs=[values(rng, 2, 3), np.array([2, 2, 3])], wanted=[0]))


@given(seed=seeds)
@EXAMPLES
def test_where_mod_and_clip(seed: int) -> None:
    """Selections: each element goes one way."""
    rng = np.random.default_rng(seed)
    shape = shape_of(rng, 3)
    condition = rng.random(stretched(rng, shape)) < 0.5
    run(Case(op="Where", inputs=[condition, values(rng, *shape), values(rng, *stretched(rng, shape))]))
    run(Case(op="Mod", inputs=[values(rng, 2, 3, low=2, high=9), values(rng, 3, low=1.1, high=1.9)], attributes={"fmod": 1}))
    run(Case(op="Clip", inputs=[values(rng, *shape), np.array(-0.713), np.array(0.917)]))
    run(Case(op="Clip", inputs=[values(rng, *shape), None, np.array(0.917)]))


@given(seed=seeds, dynamic=st.booleans())
@settings(EXAMPLES, max_examples=8)
def test_matmul(seed: int, dynamic: bool) -> None:
    """Matrices, vectors, stacks, and stacks that broadcast."""
    rng = np.random.default_rng(seed)
    m, k, n = shape_of(rng, 3)
    lead = shape_of(rng, int(rng.integers(0, 3)))
    a = [k] if rng.random() < 0.2 else [*stretched(rng, lead), m, k]
    b = [k] if rng.random() < 0.2 else [*stretched(rng, lead), k, n]
    run(Case(op="MatMul", inputs=[values(rng, *a), values(rng, *b)]), dynamic=dynamic)


@pytest.mark.parametrize(("trans_a", "trans_b"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_gemm(trans_a: int, trans_b: int) -> None:
    """Every transposition, with factors and a bias that is stretched."""
    rng = np.random.default_rng(8)
    a, b = values(rng, *((3, 4)[:: -1 if trans_a else 1])), values(rng, *((4, 2)[:: -1 if trans_b else 1]))
    attributes = {"transA": trans_a, "transB": trans_b, "alpha": 0.7, "beta": 1.3}
    for bias in (values(rng, 2), values(rng, 3, 1), None):
        run(Case(op="Gemm", inputs=[a, b, bias], attributes=attributes))


REDUCTIONS = ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSumSquare", "ReduceL1", "ReduceL2",
              "ReduceLogSum", "ReduceLogSumExp"]  # fmt: skip


@pytest.mark.parametrize("op", REDUCTIONS)
@given(seed=seeds, rank=st.integers(1, 4), keep=st.booleans(), dynamic=st.booleans())
@EXAMPLES
def test_reductions(op: str, seed: int, rank: int, keep: bool, dynamic: bool) -> None:
    """Some axes, all axes, counted from either end; the axes kept or not."""
    rng = np.random.default_rng(seed)
    x = values(rng, *shape_of(rng, rank), low=0.5 if op == "ReduceLogSum" else -2)
    chosen = rng.permutation(rank)[: rng.integers(1, rank + 1)]
    axes = None if rng.random() < 0.2 else np.array([axis - rank if rng.random() < 0.5 else axis for axis in chosen], np.int64)
    run(Case(op=op, inputs=[x, axes], attributes={"keepdims": int(keep)}, fixed=[] if axes is None else [1]), dynamic=dynamic)


def test_product_of_zeros() -> None:
    """One zero among the factors has a gradient, beside two zeros nothing has."""
    x = np.array([[2.0, 0.0, 3.0], [0.0, 0.0, 5.0], [1.5, 2.0, 0.5]])
    run(Case(op="ReduceProd", inputs=[x, np.array([1])], fixed=[1]))


@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_cumulative_sums(exclusive: int, reverse: int) -> None:
    """From either end, with or without the element itself."""
    x = values(np.random.default_rng(2), 3, 4)
    run(Case(op="CumSum", inputs=[x, np.array(1)], attributes={"exclusive": exclusive, "reverse": reverse}, fixed=[1]))


@given(seed=seeds, dynamic=st.booleans())
@EXAMPLES
def test_shapes(seed: int, dynamic: bool) -> None:
    """Operators that only move elements."""
    rng = np.random.default_rng(seed)
    shape = shape_of(rng, 3)
    x = values(rng, *shape)
    order = [int(axis) for axis in rng.permutation(3)]
    run(Case(op="Transpose", inputs=[x], attributes={"perm": order}), dynamic=dynamic)
    run(Case(op="Reshape", inputs=[x, np.array([-1, shape[1]])], fixed=[1]), dynamic=dynamic)
    run(Case(op="Flatten", inputs=[x], attributes={"axis": 2}), dynamic=dynamic)
    run(Case(op="Unsqueeze", inputs=[x, np.array([0, -1])], fixed=[1]), dynamic=dynamic)
    run(Case(op="Squeeze", inputs=[x[:, None], np.array([1])], fixed=[1]), dynamic=dynamic)
    run(Case(op="Expand", inputs=[values(rng, *stretched(rng, shape)), np.array([2, *shape])], fixed=[1]), dynamic=dynamic)
    run(Case(op="Tile", inputs=[x, np.array([2, 1, 3])], fixed=[1]), dynamic=dynamic)
    run(Case(op="Concat", inputs=[x, values(rng, *shape[:2], 2), x * 2], attributes={"axis": -1}), dynamic=dynamic)
    run(Case(op="Trilu", inputs=[x, np.array(1)], attributes={"upper": 0}, fixed=[1]), dynamic=dynamic)
    run(Case(op="ReverseSequence", inputs=[values(rng, 4, 3), np.array([2, 4, 1])], fixed=[1]), dynamic=dynamic)


@given(seed=seeds, scored=st.integers(1, 2), dynamic=st.booleans())
@EXAMPLES
def test_split(seed: int, scored: int, dynamic: bool) -> None:
    """Parts of different lengths, of which the loss may not see all."""
    rng = np.random.default_rng(seed)
    x = values(rng, 2, 7, 2)
    attributes = {"axis": 1}
    run(
        Case(op="Split", inputs=[x, np.array([3, 4])], attributes=attributes, outputs=2, scored=scored, fixed=[1]),
        dynamic=dynamic,
    )


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_and_space(mode: str) -> None:
    """Both orders of blocks, and back."""
    rng = np.random.default_rng(2)
    run(Case(op="DepthToSpace", inputs=[values(rng, 2, 8, 2, 3)], attributes={"blocksize": 2, "mode": mode}))
    run(Case(op="SpaceToDepth", inputs=[values(rng, 2, 2, 4, 6)], attributes={"blocksize": 2}))


SLICES = [
    ([1], [3], [0], None), ([-3, 0], [2**62, -1], [1, 2], None), ([0, 1], [4, 4], None, None),
    ([3, -1], [-100, 0], [0, 1], [-1, -2]), ([0], [4], [0], [2]), ([-100], [100], [-1], [1]),
]  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("starts", "ends", "axes", "steps"), SLICES)
def test_slices(starts: list[int], ends: list[int], axes: list[int] | None, steps: list[int] | None, dynamic: bool) -> None:
    """Negative ends, clamped ends, steps over elements and backwards; the places may only be known when the graph runs."""
    x = values(np.random.default_rng(2), 4, 5, 3)
    given_axes = None if axes is None else np.array(axes)
    inputs = [x, np.array(starts), np.array(ends), given_axes, None if steps is None else np.array(steps)]
    fixed = [place for place in (1, 2, 3, 4) if inputs[place] is not None and (not dynamic or axes is None or place >= 3)]
    run(Case(op="Slice", inputs=inputs, fixed=fixed), dynamic=dynamic)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pads(mode: str) -> None:
    """Borders of every kind, on all axes or on some."""
    rng = np.random.default_rng(2)
    x = values(rng, 3, 4)
    run(Case(op="Pad", inputs=[x, np.array([1, 2, 0, 1])], attributes={"mode": mode}, fixed=[1]))
    if mode == "constant":
        axes = np.array([-1])
        run(
            Case(
                op="Pad",
                inputs=[x, np.array([2, 1]), np.array(0.5), axes],
                attributes={"mode": mode},
                wanted=[0],
                fixed=[1, 2, 3],
            )
        )


@given(seed=seeds, axis=st.integers(-3, 2), rank=st.integers(0, 2), dynamic=st.booleans())
@settings(EXAMPLES, max_examples=8)
def test_gather(seed: int, axis: int, rank: int, dynamic: bool) -> None:
    """Any axis; indices of any rank, repeated and negative."""
    rng = np.random.default_rng(seed)
    x = values(rng, *shape_of(rng, 3))
    size = x.shape[axis]
    indices = rng.integers(-size, size, shape_of(rng, rank))
    fixed = [1] if rng.random() < 0.5 else []
    run(Case(op="Gather", inputs=[x, np.asarray(indices)], attributes={"axis": axis}, fixed=fixed), dynamic=dynamic)


@given(seed=seeds, axis=st.integers(-2, 1))
@EXAMPLES
def test_elements_by_index(seed: int, axis: int) -> None:
    """Picked elements may repeat, placed ones may not."""
    rng = np.random.default_rng(seed)
    x = values(rng, 4, 5)
    picked = rng.integers(-4, 4, (4, 5))
    run(Case(op="GatherElements", inputs=[x, picked], attributes={"axis": axis}))
    places = np.argsort(rng.random((4, 5)), axis=axis)[:2, :3] if axis in (0, -2) else np.argsort(rng.random((4, 5)), 1)[:2, :3]
    updates = values(rng, 2, 3)
    for mode in ("none", "add"):
        attributes = {"axis": axis, "reduction": mode}
        run(Case(op="ScatterElements", inputs=[x, places, updates], attributes=attributes))
    rows = rng.permutation(4)[:2, None]
    run(Case(op="GatherND", inputs=[x, np.array([[0, 1], [3, -1], [0, 1]])]))
    for mode in ("none", "add"):
        run(Case(op="ScatterND", inputs=[x, rows, values(rng, 2, 5)], attributes={"reduction": mode}))
    run(Case(op="TopK", inputs=[x, np.array([2])], attributes={"axis": axis}, outputs=2, fixed=[1]))


@given(seed=seeds, axis=st.integers(-3, 2))
@EXAMPLES
def test_softmax_and_norms(seed: int, axis: int) -> None:
    """Along any axis."""
    rng = np.random.default_rng(seed)
    x = values(rng, *shape_of(rng, 3))
    for op in ("Softmax", "LogSoftmax"):
        run(Case(op=op, inputs=[x], attributes={"axis": axis}))
    shape = x.shape[axis:] if axis else x.shape
    run(
        Case(
            op="LayerNormalization",
            inputs=[x, values(rng, *shape), values(rng, *shape)],
            attributes={"axis": axis, "epsilon": 0.1},
        )
    )
    run(Case(op="LayerNormalization", inputs=[x, values(rng, *shape)], attributes={"axis": axis, "epsilon": 0.1}))
    run(Case(op="RMSNormalization", inputs=[x, values(rng, *shape)], attributes={"axis": axis, "epsilon": 0.1}, opset=23))
    for order in (1, 2):  # onnx.reference takes no absolute values
        run(Case(op="LpNormalization", inputs=[np.abs(x)], attributes={"axis": axis, "p": order}))


def test_norms_of_channels() -> None:
    """Batch norm by running statistics, and instance norm."""
    rng = np.random.default_rng(9)
    x, scale, bias, mean = values(rng, 3, 4, 2, 2), values(rng, 4), values(rng, 4), values(rng, 4)
    variance = values(rng, 4, low=0.5)
    run(Case(op="BatchNormalization", inputs=[x, scale, bias, mean, variance], attributes={"epsilon": 0.1}, wanted=[0, 1, 2]))
    run(Case(op="InstanceNormalization", inputs=[x, scale, bias], attributes={"epsilon": 0.1}))


def test_batch_norm_in_training_mode() -> None:
    """The statistics are the batch's, and depend on it."""
    rng = np.random.default_rng(9)
    x, scale, bias, mean = values(rng, 3, 4, 2, 2), values(rng, 4), values(rng, 4), values(rng, 4)
    inputs = [x, scale, bias, mean, values(rng, 4, low=0.5)]
    attributes = {"epsilon": 0.1, "training_mode": 1, "momentum": 0.7}
    run(Case(op="BatchNormalization", inputs=inputs, attributes=attributes, wanted=[0, 1, 2], outputs=3))


def test_casts_and_dropout() -> None:
    """Types that hold the values; dropout that is switched off."""
    rng = np.random.default_rng(9)
    run(Case(op="Cast", inputs=[values(rng, 3, 4)], attributes={"to": 11}))
    run(Case(op="CastLike", inputs=[values(rng, 3, 4), np.array(1.0)], wanted=[0]))
    run(Case(op="Swish", inputs=[values(rng, 3, 4)], attributes={"alpha": 0.7}, opset=24))
    run(Case(op="Dropout", inputs=[values(rng, 3, 4), np.array(0.3), np.array(False)], wanted=[0], fixed=[1, 2]))


def test_every_rule_is_tested_here() -> None:
    """The names of all operators with a rule stand in this file or in one of its neighbours."""
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_gradient_*.py"))
    assert [op for op in RULES if f'"{op}"' not in text] == []
