"""Gradient files that compute forward values again: the same numbers, less alive at once, the copies late in every order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain, combinations
from pathlib import Path

import numpy as np
import onnx
import pytest
from gradient_cases import Array, evaluate
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from cleave_plan.api import gradient, load_onnx
from cleave_plan.errors import UsageError
from cleave_plan.onnx_io.gradient.build import GradientModel
from cleave_plan.onnx_io.gradient.cuts import Values, choose_cuts
from cleave_plan.onnx_io.views import views_of
from models.registry import build

TEXT = {"batch": 2, "seq": 16}
MODELS = {"gpt-tiny": TEXT, "llama-tiny": TEXT, "bert-tiny": TEXT, "vit-tiny": {"batch": 2}}
AGAIN = "again/"
NORM = {"scale": 1.5, "shift": 0.5, "mean": 0, "variance": 1}
"""Of each channel of a batch norm, in the order of its inputs."""


def both(name: str, folder: Path, dims: Mapping[str, int] | None = None) -> tuple[GradientModel, GradientModel]:
    """The gradient file with all values kept, and the one that computes some again."""
    path = folder / f"{name}.onnx"
    path.write_bytes(build(name).SerializeToString())
    options = {"loss": "cross-entropy", "dims": dims or MODELS[name], "batch_norm": "batch"}
    return gradient(path, **options), gradient(path, **options, recompute=True)


def feeds_of(made: GradientModel) -> dict[str, Array]:
    """Small whole numbers for tokens and labels, normal ones for all else."""
    rng, given_by = np.random.default_rng(3), {value.name: value for value in made.model.graph.input}
    feeds: dict[str, Array] = {}
    for name in made.inputs:
        kind = given_by[name].type.tensor_type
        shape = [dim.dim_value for dim in kind.shape.dim]
        whole = kind.elem_type in (TensorProto.INT64, TensorProto.INT32)
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        feeds[name] = (rng.integers(0, 2, shape) if whole else rng.standard_normal(shape)).astype(dtype)
    return feeds


def peak_bytes(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> int:
    """Most bytes of results alive at once when the nodes run in the file's order, by the sizes that they turn out to have."""
    graph = model.graph
    every = onnx.ModelProto.FromString(model.SerializeToString())
    del every.graph.output[:]
    every.graph.output.extend(onnx.ValueInfoProto(name=name) for node in graph.node for name in node.output if name)
    sizes = {name: np.asarray(value).nbytes for name, value in evaluate(every, feeds).items()}
    last = {name: place for place, node in enumerate(graph.node) for name in node.input}
    last.update((value.name, len(graph.node)) for value in graph.output)
    alive, most = 0, 0
    for place, node in enumerate(graph.node):
        if node.op_type != "Constant":
            alive += sum(sizes[name] for name in node.output if name)
            most = max(most, alive)
        alive -= sum(sizes[name] for name in {*node.input, *node.output} if name in sizes and last.get(name, place) == place)
    return most


@pytest.mark.parametrize("name", MODELS)
def test_numbers_are_those_of_the_plain_gradient(name: str, tmp_path: Path) -> None:
    """Bit for bit in onnx.reference, which takes node for node; in onnxruntime, which fuses, to rounding."""
    plain, again = both(name, tmp_path)
    assert again.recomputation is not None
    assert again.recomputation.segments > 1
    onnx.checker.check_model(again.model, full_check=True)
    feeds = feeds_of(plain)
    expected, found = evaluate(plain.model, feeds), evaluate(again.model, feeds)
    assert found.keys() == expected.keys()
    for output, value in expected.items():
        assert np.array_equal(found[output], value), output
    ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    session = ort.InferenceSession(again.model.SerializeToString(), providers=["CPUExecutionProvider"])
    whole = np.sqrt(sum(float((value**2).sum()) for value in expected.values()))
    for output, value in zip(expected, session.run(list(expected), feeds), strict=True):
        assert np.linalg.norm(value - expected[output]) <= 1e-5 * max(float(np.linalg.norm(expected[output])), 1e-3 * whole), (
            output
        )


@pytest.mark.parametrize("name", ["gpt-tiny", "llama-tiny"])
def test_less_is_alive_at_once(name: str, tmp_path: Path) -> None:
    """Counted by running the files: the results alive at the worst moment, gradients among them."""
    plain, again = both(name, tmp_path, {"batch": 4, "seq": 64})
    feeds = feeds_of(plain)
    assert peak_bytes(again.model, feeds) < 0.8 * peak_bytes(plain.model, feeds)


def test_copies_come_late_whatever_the_order(tmp_path: Path) -> None:
    """As soon as their data is there, in levels as engines go: after all forward work, segment after segment backwards."""
    _, again = both("gpt-tiny", tmp_path)
    path = tmp_path / "step.onnx"
    again.save(path)
    workload = load_onnx(path)
    copies = [gemm for gemm in workload.gemms if gemm.node.startswith(AGAIN)]
    forward = {gemm.node: gemm for gemm in workload.gemms if gemm.phase.value == "forward" and gemm not in copies}
    assert copies
    assert all(gemm.shape == forward[gemm.node.removeprefix(AGAIN)].shape for gemm in copies)
    assert min(gemm.level for gemm in copies) > max(gemm.level for gemm in forward.values())
    first, *_, last = sorted(copies, key=lambda gemm: gemm.level)
    assert forward[first.node.removeprefix(AGAIN)].level > forward[last.node.removeprefix(AGAIN)].level


def test_figures_are_those_of_the_work(tmp_path: Path) -> None:
    """FLOP grow by the copies' GEMMs, to less than four times the forward ones; both figures are the planner's."""
    plain, again = both("gpt-tiny", tmp_path)
    work = {}
    for label, made in (("plain", plain), ("again", again)):
        made.save(tmp_path / f"{label}.onnx")
        work[label] = load_onnx(tmp_path / f"{label}.onnx")
    said = again.recomputation
    assert said is not None
    assert any("PRIORITY_BASED" in note for note in again.notes)
    assert (said.before.gemm_flop, said.after.gemm_flop) == (work["plain"].gemm_flop, work["again"].gemm_flop)
    copied = sum(gemm.flop for gemm in work["again"].gemms if gemm.node.startswith(AGAIN))
    assert copied == said.after.gemm_flop - said.before.gemm_flop
    forward = load_onnx(tmp_path / "gpt-tiny.onnx", dims=TEXT).gemm_flop
    assert 3 * forward < said.after.gemm_flop < 4 * forward
    assert said.after.live_bytes == max(level.live_bytes for level in work["again"].levels)
    assert said.before.live_bytes == max(level.live_bytes for level in work["plain"].levels)


def stack(
    path: Path, shape: tuple[int, ...], layer: Callable[[int, str], tuple[list[onnx.NodeProto], str]], **tensors: Array
) -> None:
    """A model of six layers, each made by ``layer`` from its number and what it reads; ``tensors`` are initialisers."""
    nodes, flowing = [], "x"
    for number in range(6):
        made, flowing = layer(number, flowing)
        nodes += made
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", flowing)]
    initialisers = [numpy_helper.from_array(array, name) for name, array in tensors.items()]
    graph = helper.make_graph(nodes, "stack", info[:1], info[1:], initialisers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)


def same_numbers(path: Path, shape: tuple[int, ...], **options: str) -> list[onnx.NodeProto]:
    """Require equal bits of both files for a random target; the nodes of the one that computes values again."""
    plain, again = gradient(path, loss="mse", **options), gradient(path, loss="mse", recompute=True, **options)
    assert again.recomputation is not None
    assert again.recomputation.segments > 1
    rng = np.random.default_rng(7)
    feeds = {name: rng.random(shape).astype(np.float32) for name in ("x", "target")}
    expected, found = evaluate(plain.model, feeds), evaluate(again.model, feeds)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], value) for name, value in expected.items())
    return list(again.model.graph.node)


def test_what_is_drawn_is_drawn_once(tmp_path: Path) -> None:
    """Dropouts between products: layers are computed again, their draws are not."""
    weights = {f"w{at}": np.random.default_rng(at).standard_normal((32, 32)).astype(np.float32) / 6 for at in range(6)}

    def layer(at: int, x: str) -> tuple[list[onnx.NodeProto], str]:
        return [
            helper.make_node("MatMul", [x, f"w{at}"], [f"h{at}"], name=f"product{at}"),
            helper.make_node("Tanh", [f"h{at}"], [f"t{at}"], name=f"tanh{at}"),
            helper.make_node("Dropout", [f"t{at}", "ratio", "training"], [f"d{at}"], name=f"drop{at}", seed=at),
            helper.make_node("Sigmoid", [f"d{at}"], [f"s{at}"], name=f"sigmoid{at}"),
        ], f"s{at}"  # fmt: skip

    path = tmp_path / "dropouts.onnx"
    stack(path, (256, 32), layer, **weights, ratio=np.float32(0.3), training=np.array(True))
    operators = [node.op_type for node in same_numbers(path, (256, 32))]
    assert operators.count("Tanh") > 6
    assert operators.count("Dropout") == 6


def test_running_statistics_are_updated_once(tmp_path: Path) -> None:
    """Batch norms that normalise by the batch: computed again, with one new mean and variance each."""
    weights = {f"w{at}": np.random.default_rng(at).standard_normal((4, 4, 3, 3)).astype(np.float32) for at in range(6)}
    norms = {f"{what}{at}": np.full(4, value, np.float32) for at in range(6) for what, value in NORM.items()}

    def layer(at: int, x: str) -> tuple[list[onnx.NodeProto], str]:
        return [
            helper.make_node("Conv", [x, f"w{at}"], [f"h{at}"], name=f"conv{at}", pads=[1, 1, 1, 1]),
            helper.make_node("BatchNormalization", [f"h{at}", *(f"{what}{at}" for what in NORM)], [f"n{at}"], name=f"norm{at}"),
            helper.make_node("Softplus", [f"n{at}"], [f"a{at}"], name=f"softplus{at}"),
        ], f"a{at}"  # fmt: skip

    path = tmp_path / "norms.onnx"
    stack(path, (4, 4, 12, 12), layer, **weights, **norms)
    nodes = same_numbers(path, (4, 4, 12, 12), batch_norm="batch")
    assert [node.op_type for node in nodes if node.name.startswith(AGAIN)].count("Conv") > 1
    made = [name for node in nodes for name in node.output]
    assert all(made.count(f"updated:{what}{at}") == 1 for what in ("mean", "variance") for at in range(6))


def test_recurrences_run_once(tmp_path: Path) -> None:
    """LSTM layers are Scans, whose results are kept; what lies between them is computed again."""
    rng, settings = np.random.default_rng(8), {"one": np.array([1], np.int64)}
    for at in range(6):
        settings |= {f"{name}{at}": (rng.standard_normal((1, 32, 8)) / 3).astype(np.float32) for name in ("w", "r")}

    def layer(at: int, x: str) -> tuple[list[onnx.NodeProto], str]:
        return [
            helper.make_node("LSTM", [x, f"w{at}", f"r{at}"], [f"l{at}"], name=f"lstm{at}", hidden_size=8),
            helper.make_node("Squeeze", [f"l{at}", "one"], [f"q{at}"], name=f"squeeze{at}"),
            helper.make_node("Exp", [f"q{at}"], [f"e{at}"], name=f"exp{at}"),
            helper.make_node("Tanh", [f"e{at}"], [f"t{at}"], name=f"tanh{at}"),
            helper.make_node("Softplus", [f"t{at}"], [f"s{at}"], name=f"softplus{at}"),
        ], f"s{at}"  # fmt: skip

    path = tmp_path / "recurrent.onnx"
    stack(path, (32, 4, 8), layer, **settings)
    nodes = same_numbers(path, (32, 4, 8))
    assert [node.op_type for node in nodes].count("Scan") == 2 * 6
    assert any(node.name.startswith(AGAIN) for node in nodes)


def test_nothing_is_copied_where_nothing_is_spared(tmp_path: Path) -> None:
    """One product: the plain file, byte for byte, and a note."""
    weight = numpy_helper.from_array(np.ones((3, 2), np.float32), "w")
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, size]) for name, size in (("x", 3), ("y", 2))]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "one", info[:1], info[1:], [weight])
    path = tmp_path / "one.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    plain, again = gradient(path, loss="mse"), gradient(path, loss="mse", recompute=True)
    assert again.model == plain.model
    assert any("all are kept" in note for note in again.notes)


def test_open_sizes_are_refused(tmp_path: Path) -> None:
    """Values are weighed by their bytes, so sizes must be bound."""
    path = tmp_path / "gpt.onnx"
    path.write_bytes(build("gpt-tiny").SerializeToString())
    with pytest.raises(UsageError, match=r"bind them with --dim"):
        gradient(path, loss="cross-entropy", recompute=True)


def alive(cuts: tuple[int, ...], made: list[int], last: list[int], sizes: list[int], held: list[bool], nodes: int) -> int:
    """The most that is alive during a segment's backward pass, straight from the definition."""
    worst, begin = 0, 0
    for number, end in enumerate((*cuts, nodes - 1)):
        tensors = range(len(made))
        crossing = {tensor for cut in cuts[:number] for tensor in tensors if made[tensor] <= cut < last[tensor]}
        again = [tensor for tensor in tensors if begin <= made[tensor] <= end and held[tensor]]
        worst = max(worst, sum(sizes[tensor] for tensor in crossing) + sum(sizes[tensor] for tensor in again))
        begin = end + 1
    return worst


@given(st.data())
def test_cuts_are_the_best_of_all(data: st.DataObject) -> None:
    """Against every set of places, on graphs of a few nodes that read any earlier results."""
    nodes = data.draw(st.integers(1, 7))
    reads = [data.draw(st.sets(st.integers(0, place - 1), max_size=3)) if place else set() for place in range(nodes)]
    sizes = [data.draw(st.integers(1, 20)) for _ in range(nodes)]
    held = [data.draw(st.booleans()) for _ in range(nodes)]
    graph = [helper.make_node("Sum", [f"t{read}" for read in sorted(reads[at])], [f"t{at}"]) for at in range(nodes)]
    values = Values(
        sizes={f"t{at}": sizes[at] for at in range(nodes)}, held={f"t{at}" for at in range(nodes) if held[at]}, kept=()
    )
    last = [max((at for at in range(nodes) if tensor in reads[at]), default=tensor) for tensor in range(nodes)]
    found = alive(choose_cuts(views_of(graph), values), list(range(nodes)), last, sizes, held, nodes)
    places = range(nodes - 1)
    every = chain.from_iterable(combinations(places, count) for count in range(nodes))
    assert found <= 1.001 * min(alive(cuts, list(range(nodes)), last, sizes, held, nodes) for cuts in every)
