"""Backward GEMMs beside shapes by hand, finite differences, and what is known of published models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from workload_cases import activation, gemm_of, imported, parameter, workload_of

from cleave_plan.dtypes import DType
from cleave_plan.workload.backward import gradients, training_workload
from cleave_plan.workload.gemm import ConvWindow, Gemm, Phase
from cleave_plan.workload.graph import ServerOperator, Workload


def by_name(workload: Workload) -> dict[str, Gemm]:
    """The GEMMs of ``workload``."""
    return {gemm.name: gemm for gemm in workload.gemms}


def evaluated(gemm: Gemm, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    """The product that ``gemm`` states, its operands turned round where its shape demands it."""
    batch, m, k, n = gemm.shape

    def operand(tensor: str, rows: int, columns: int) -> np.ndarray:
        value = tensors[tensor]
        turned = value if value.shape == (batch, rows, columns) else value.transpose(0, 2, 1)
        assert turned.shape == (batch, rows, columns)
        return turned

    return operand(gemm.a.tensor, m, k) @ operand(gemm.b.tensor, k, n)


def test_gradients_are_those_of_finite_differences() -> None:
    """Both gradients of sum(G * (A B)), number by number, for sizes that cannot be confused."""
    rng = np.random.default_rng(0)
    a, b, g = rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 4, 5)), rng.standard_normal((2, 3, 5))
    gemm = gemm_of("g", (2, 3, 4, 5), activation("a"), parameter("b"))
    d_a, d_b = gradients(gemm, level=7)

    def loss(a: np.ndarray, b: np.ndarray) -> float:
        return float((g * (a @ b)).sum())

    tensors = {"a": a, "b": b, "grad:g.out": g}
    for made, value, swapped in ((d_a, a, lambda x: loss(x, b)), (d_b, b, lambda x: loss(a, x))):
        slope = np.zeros_like(value)
        for place in np.ndindex(*value.shape):
            up, down = value.copy(), value.copy()
            up[place] += 0.5
            down[place] -= 0.5
            slope[place] = swapped(up) - swapped(down)  # exact: the loss is linear in each operand
        np.testing.assert_allclose(evaluated(made, tensors), slope, rtol=1e-10)
        assert made.level == 7
        assert made.macs == 2 * 3 * 4 * 5
    assert [(made.name, made.phase, made.output) for made in (d_a, d_b)] == [
        ("g.dX", Phase.GRADIENT_INPUT, "grad:a"), ("g.dW", Phase.GRADIENT_WEIGHT, "grad:b"),
    ]  # fmt: skip


def test_a_linear_layer() -> None:
    """y = x W with x [8, 4], W [4, 6] in float16: dX is 8 x 6 x 4, dW is 4 x 8 x 6, results in the operands' own types."""
    gemm = gemm_of("fc", (1, 8, 4, 6), activation("x", dtype=DType.FLOAT16), parameter("w", DType.FLOAT32))
    d_x, d_w = gradients(gemm, level=1)
    assert (tuple(d_x.shape), tuple(d_w.shape)) == ((1, 8, 6, 4), (1, 4, 8, 6))
    assert (d_x.out_dtype, d_w.out_dtype) == (DType.FLOAT16, DType.FLOAT32)
    assert (d_x.b.tensor, d_w.a.tensor) == ("w", "x")


def test_a_weight_on_the_left() -> None:
    """W x, as a transposed Gemm has it: the gradient of A is dW, that of B is named dB."""
    made = gradients(gemm_of("fc", (1, 8, 4, 6), parameter("w"), activation("x")), level=1)
    assert [(gemm.name, tuple(gemm.shape), gemm.phase) for gemm in made] == [
        ("fc.dW", (1, 8, 6, 4), Phase.GRADIENT_WEIGHT), ("fc.dB", (1, 4, 8, 6), Phase.GRADIENT_INPUT),
    ]  # fmt: skip


def test_nothing_is_computed_towards_what_does_not_learn() -> None:
    """No dX for a model's input or for indices; a product of two inputs has no gradient, and its level none backwards."""
    first = gemm_of("mix", (1, 5, 5, 4), activation("x", learned=False), activation("y", learned=False), 0)
    second = gemm_of("fc", (1, 5, 4, 3), activation("mix.out", learned=False), parameter("w"), 1)
    whole = gemm_of("ints", (1, 5, 3, 3), activation("i", dtype=DType.INT8), activation("j", dtype=DType.INT8), 1)
    step = training_workload(workload_of([first, second, whole]))
    assert [(gemm.name, gemm.level) for gemm in step.gemms] == [("mix", 0), ("fc", 1), ("ints", 1), ("fc.dW", 2)]
    assert [level.index for level in step.levels] == [0, 1, 2]
    assert [level.gemms for level in step.levels] == [(0,), (1, 2), (3,)]


def test_levels_run_backwards() -> None:
    """Level l of L is followed by level 2L - 1 - l; dX and dW share it."""
    gemms = [gemm_of(f"l{i}", (1, 4, 4, 4), activation(f"x{i}"), parameter(f"w{i}"), i) for i in range(3)]
    step = training_workload(workload_of(gemms))
    levels = {gemm.name: gemm.level for gemm in step.gemms}
    assert levels == {
        "l0": 0, "l1": 1, "l2": 2, "l2.dX": 3, "l2.dW": 3, "l1.dX": 4, "l1.dW": 4, "l0.dX": 5, "l0.dW": 5,
    }  # fmt: skip
    for level in step.levels:
        assert [step.gemms[place].level for place in level.gemms] == [level.index] * len(level.gemms)


def test_attention(tmp_path: Path) -> None:
    """bert-tiny at batch 2, seq 8: the gradients of Q, K, P and V by hand, and no weight among them."""
    forward = imported(tmp_path, "bert-tiny", batch=2, seq=8)
    gemms = by_name(training_workload(forward))
    scores, context = (next(g for name, g in gemms.items() if name.endswith(end)) for end in (".scores", ".context"))
    batch, rows, size, keys = scores.shape
    assert (rows, keys) == (8, 8)
    assert tuple(context.shape) == (batch, 8, 8, size)
    assert tuple(gemms[f"{scores.name}.dX"].shape) == (batch, 8, 8, size)  # dQ = dS K
    assert tuple(gemms[f"{scores.name}.dB"].shape) == (batch, size, 8, 8)  # dK^T = Q^T dS
    assert tuple(gemms[f"{context.name}.dX"].shape) == (batch, 8, size, 8)  # dP = dO V^T
    assert tuple(gemms[f"{context.name}.dB"].shape) == (batch, 8, 8, size)  # dV = P^T dO
    assert not {f"{g.name}.dW" for g in (scores, context)} & gemms.keys()


def test_grouped_queries_are_summed_by_the_product(tmp_path: Path) -> None:
    """llama-tiny: 8 query heads of 8 share 2 key-value heads. The group is folded into M, so dK and dV have the sizes of K
    and V, each summed over its 4 queries by the product's K = 4 * 8 rows."""
    gemms = by_name(training_workload(imported(tmp_path, "llama-tiny", batch=2, seq=8)))
    assert tuple(gemms["layers.0.attention.scores"].shape) == (2 * 2, 4 * 8, 8, 8)
    assert tuple(gemms["layers.0.attention.scores.dB"].shape) == (2 * 2, 8, 4 * 8, 8)
    assert tuple(gemms["layers.0.attention.context.dB"].shape) == (2 * 2, 8, 4 * 8, 8)


def test_convolution(tmp_path: Path) -> None:
    """A 3 x 3 Conv of 4 groups as im2col: dX of the columns, dW of the filters, without windows; and the workload says so."""
    window = ConvWindow(
        images=2, channels=5, input=(6, 6), output=(6, 6), kernel=(3, 3), strides=(1, 1), dilations=(1, 1), pads=(1, 1)
    )
    gemm = gemm_of("conv", (4, 2 * 36, 5 * 9, 7), activation("x"), parameter("w"), op="Conv", window=window)
    d_x, d_w = gradients(gemm, level=1)
    assert (tuple(d_x.shape), tuple(d_w.shape)) == ((4, 72, 7, 45), (4, 45, 72, 7))
    assert d_x.window is d_w.window is None
    assert any("im2col" in note for note in training_workload(workload_of([gemm])).notes)


def test_tied_weights() -> None:
    """Two GEMMs that read one table: both give a dW into its gradient, and the servers hold it once."""
    gemms = [
        gemm_of("in", (1, 4, 8, 3), activation("x", learned=False), parameter("table"), 0),
        gemm_of("out", (1, 4, 3, 8), activation("in.out"), parameter("table"), 1),
    ]
    step = training_workload(workload_of(gemms))
    made = [gemm for gemm in step.gemms if gemm.phase is Phase.GRADIENT_WEIGHT]
    assert [(gemm.name, gemm.output) for gemm in made] == [("out.dW", "grad:table"), ("in.dW", "grad:table")]
    assert step.parameters == {"table": 24 * (4 + 4 + 8)}


def test_what_the_servers_hold() -> None:
    """Weight, gradient and two float32 moments for each element: 16 bytes in float32, 12 in float16; and the activations."""
    gemms = [
        gemm_of("a", (1, 4, 8, 3), activation("x", learned=False), parameter("v"), 0),
        gemm_of("b", (1, 4, 3, 5), activation("a.out"), parameter("w"), 1),
    ]
    forward = workload_of(gemms, live=10)
    step = training_workload(forward)
    assert step.parameters == {"v": 24 * 16, "w": 15 * 16}
    # x [4, 8] and a.out [4, 3] after the first level, b.out [4, 5] on top after the second, in float32
    assert [level.live_bytes for level in step.levels] == [44 * 4, 64 * 4, 64 * 4, 44 * 4]
    half = gemm_of("h", (1, 4, 8, 3), activation("x", dtype=DType.FLOAT16), parameter("u", DType.FLOAT16))
    assert training_workload(workload_of([half])).parameters == {"u": 24 * 12}


def test_operators_run_again_backwards_at_twice_the_bytes() -> None:
    """Each operator is followed by its backward pass, in reverse, and by one optimizer step at the end."""
    gemms = [gemm_of(f"l{i}", (1, 4, 4, 4), activation(f"x{i}"), parameter(f"w{i}"), i) for i in range(2)]
    operators = (
        ServerOperator(name="embed", op="Gather", level=0, bytes=10),
        ServerOperator(name="act", op="Relu", level=1, bytes=100),
        ServerOperator(name="odd", op="Odd", level=2, bytes=None),
    )
    step = training_workload(workload_of(gemms, operators=operators))
    # weights and moments of 32 float32 elements: w, g, m, v read; w, m, v written
    optimizer = ("optimizer", 4, 32 * (4 + 4 + 8) + 32 * (4 + 8))
    assert [(op.name, op.level, op.bytes) for op in step.server_operators] == [
        ("embed", 0, 10), ("act", 1, 100), ("odd", 2, None),
        ("odd.backward", 2, None), ("act.backward", 3, 200), ("embed.backward", 4, 20), optimizer,
    ]  # fmt: skip


def test_opt_13b_takes_three_times_the_forward_pass(tmp_path: Path) -> None:
    """Every GEMM of OPT-13B has both gradients, the first ones too, because the embedding learns: exactly 3 x forward."""
    forward = imported(tmp_path, "opt-13b", batch=2, seq=8)
    step = training_workload(forward)
    assert missing_gradients(forward, step) == []
    assert step.gemm_macs == 3 * forward.gemm_macs
    assert Counter(gemm.phase.value for gemm in step.gemms) == {
        "forward": 321, "dX": 321 + 2 * 40, "dW": 321 - 2 * 40,
    }  # fmt: skip
    assert len(step.levels) == 2 * len(forward.levels)


@pytest.mark.parametrize(("name", "exceptions"), [("mlp", ["fc1.dX"]), ("cnn", ["stem.dX"])])
def test_models_whose_input_does_not_learn(tmp_path: Path, name: str, exceptions: list[str]) -> None:
    """Where the first layer reads the data, only its dX is missing, and 3 x forward by its MACs."""
    forward = imported(tmp_path, name, batch=3)
    step = training_workload(forward)
    assert missing_gradients(forward, step) == exceptions
    first = by_name(forward)[exceptions[0].removesuffix(".dX")]
    assert step.gemm_macs == 3 * forward.gemm_macs - first.macs


def missing_gradients(forward: Workload, step: Workload) -> list[str]:
    """Names of the gradients that a GEMM of ``forward`` would have, and ``step`` does not."""
    made = by_name(step).keys()
    wanted = [(f"{gemm.name}.dX", f"{gemm.name}.{'dW' if gemm.b.role.value == 'parameter' else 'dB'}") for gemm in forward.gemms]
    return [name for pair in wanted for name in pair if name not in made]


def test_a_training_step_is_derived_once() -> None:
    """What has its backward GEMMs is not given them again."""
    step = training_workload(workload_of([gemm_of("a", (1, 2, 2, 2), activation("x"), parameter("w"))]))
    assert step.training
    with pytest.raises(ValueError, match="already"):
        training_workload(step)
