"""Planned steps that compute forward values again: the products of the gradient file, memory by hand and by walking that file."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from cleave_plan.api import diff_plans, gradient, load_model_of, load_onnx, load_plan, make_plan, save_plan, simulate_plan, verify
from cleave_plan.errors import InputFileError, UsageError
from cleave_plan.fleet.synthetic import generate_fleet
from cleave_plan.plan.plan import Plan
from cleave_plan.workload.gemm import Phase
from cleave_plan.workload.graph import Workload
from cleave_plan.workload.reuse import readings
from models.registry import build

TEXT = {"batch": 2, "seq": 16}
MODELS = {"gpt-tiny": TEXT, "llama-tiny": TEXT, "vit-tiny": {"batch": 2}, "cnn-1d": {"batch": 16}, "resnet-50": {"batch": 2}}
AGAIN = "again/"
QUICK = {"server", "level-joint", "inner", "shared"}
"""Every product out there, and a quick plan."""


def both(name: str, folder: Path) -> tuple[Path, Workload, Workload]:
    """The forward file, the step that is derived from it, and the one that the gradient file holds."""
    path, step = folder / f"{name}.onnx", folder / f"{name}-step.onnx"
    path.write_bytes(build(name).SerializeToString())
    gradient(path, loss="cross-entropy", dims=MODELS[name], batch_norm="batch", recompute=True, save_to=step)
    derived = load_onnx(path, dims=MODELS[name], training=True, recompute=True)
    return path, derived, load_onnx(step, training=True, recompute=True)


def products(workload: Workload) -> Counter[tuple[str, int, int, int, int]]:
    """Phase, batch, K and the two other sizes of every GEMM (a gradient may come out transposed)."""
    found: Counter[tuple[str, int, int, int, int]] = Counter()
    for gemm in workload.gemms:
        batch, m, k, n = gemm.shape
        found[gemm.phase.value, batch, k, min(m, n), max(m, n)] += 1
    return found


@pytest.mark.parametrize("name", MODELS)
def test_the_step_is_that_of_the_gradient_file(name: str, tmp_path: Path) -> None:
    """Every product, with its phase and FLOP; the same segments and the same figures of memory."""
    _, derived, written = both(name, tmp_path)
    assert products(derived) == products(written)
    assert derived.recompute == written.recompute
    assert derived.recompute is not None
    assert derived.recompute.segments > 1
    again = [gemm for gemm in derived.gemms if gemm.phase is Phase.RECOMPUTE]
    assert sum(gemm.flop for gemm in again) == derived.recompute.extra_flop > 0
    assert {gemm.name for gemm in again} == {gemm.node for gemm in written.gemms if gemm.phase is Phase.RECOMPUTE}


@pytest.mark.parametrize("name", ["gpt-tiny", "llama-tiny"])
def test_order_of_a_step(name: str, tmp_path: Path) -> None:
    """A product runs again after its first time and before its gradients; operators stand between levels that exist."""
    _, derived, _ = both(name, tmp_path)
    level = {gemm.name: gemm.level for gemm in derived.gemms}
    copies = [name for name in level if name.startswith(AGAIN)]
    for copy in copies:
        first = copy.removeprefix(AGAIN)
        later = [level[f"{first}.{kind}"] for kind in ("dX", "dB", "dW") if f"{first}.{kind}" in level]
        assert level[first] < level[copy] < min(later)
        assert all(level[copy] > level[other] for other in level if other.count(".d") == 0 and not other.startswith(AGAIN))
    gradients = [gemm.level for gemm in derived.gemms if gemm.name.endswith(("dX", "dW", "dB"))]
    assert min(level[copy] for copy in copies) > min(gradients)  # the last segment's come first
    names = [operator.name for operator in derived.server_operators]
    assert len(set(names)) == len(names)
    assert all(0 <= operator.level <= len(derived.levels) for operator in derived.server_operators)
    assert [place for own in derived.levels for place in own.gemms] == list(range(len(derived.gemms)))


def kept_by_walking(path: Path) -> int:
    """Bytes of forward results that nodes behind the forward pass of a gradient file read, by its nodes alone. What no input's
    values reach (masks, ranges) is a constant and does not count."""
    model = onnx.shape_inference.infer_shapes(onnx.load(path), data_prop=True)
    kinds = {info.name: info.type.tensor_type for info in model.graph.value_info}
    weights = {tensor.name for tensor in model.graph.initializer}
    forward, read = {value.name for value in model.graph.input} - weights, set()
    inputs = set(forward)
    for node in model.graph.node:
        if node.output[0].startswith(("grad", AGAIN)) or node.output[0] == "loss":
            read.update(node.input)
        elif node.op_type != "Shape" and not forward.isdisjoint(node.input):
            forward.update(node.output)
    return sum(
        helper.tensor_dtype_to_np_dtype(kinds[name].elem_type).itemsize
        * int(np.prod([dim.dim_value for dim in kinds[name].shape.dim]))
        for name in (forward - inputs) & read
    )


LAYERS, ROWS, WIDTH = 8, 64, 32
UNIT = 4 * ROWS * WIDTH
"""Bytes of one layer's result."""


def stack(path: Path, op: str = "Tanh", **attributes: int) -> None:
    """Eight layers of a product and an activation, 64 rows of 32."""
    nodes, flowing = [], "x"
    for at in range(LAYERS):
        nodes.append(helper.make_node("MatMul", [flowing, f"w{at}"], [f"h{at}"], name=f"product{at}"))
        nodes.append(helper.make_node(op, [f"h{at}"], [f"t{at}"], name=f"act{at}", **attributes))
        flowing = f"t{at}"
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [ROWS, WIDTH]) for name in ("x", flowing)]
    weights = [numpy_helper.from_array(np.eye(WIDTH, dtype=np.float32) * (at + 1), f"w{at}") for at in range(LAYERS)]
    graph = helper.make_graph(nodes, "stack", info[:1], info[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)


def test_a_stack_by_hand(tmp_path: Path) -> None:
    """Tanh's rule and the next product's dW read t, one unit a layer: eight units where all are kept. Three segments can do with
    four (4 layers; 1 kept + 3; 2 kept + 1), and three units hold six layers at most (3; 1 + 2; 2 + 1). While a level runs, its
    product's operand and result, or their gradients, are alive beside that."""
    path = tmp_path / "stack.onnx"
    stack(path)
    step = load_onnx(path, training=True, recompute=True)
    found = step.recompute
    assert found is not None
    assert (found.kept_bytes, found.all_kept_bytes) == (4 * UNIT, 8 * UNIT)
    copies = [gemm for gemm in step.gemms if gemm.phase is Phase.RECOMPUTE]
    assert found.extra_flop == len(copies) * 2 * ROWS * WIDTH * WIDTH
    assert [gemm.name for gemm in copies if gemm.name == "again/product7"] == []
    plain = load_onnx(path, training=True)
    sizes = [level.live_bytes for level in step.levels]
    assert sizes[0] == 2 * UNIT  # x and h0
    assert max(size for size in sizes if size is not None) <= (4 + 2) * UNIT
    assert max(level.live_bytes or 0 for level in plain.levels) > (4 + 2) * UNIT
    assert len(step.levels) == 2 * LAYERS + len(copies)
    model = onnx.load(path)  # an output of whole numbers before it changes nothing: the loss is not on that
    model.graph.node.append(helper.make_node("ArgMax", [model.graph.output[0].name], ["best"]))
    model.graph.output.insert(0, helper.make_tensor_value_info("best", TensorProto.INT64, None))
    onnx.save(model, path)
    again = load_onnx(path, training=True, recompute=True).recompute
    assert again == found


def attention(path: Path) -> None:
    """Six layers of the standard's Attention between two products."""
    nodes, weights, flowing = [], [], "x"
    for at in range(6):
        weights += [numpy_helper.from_array(np.eye(WIDTH, dtype=np.float32), f"{side}{at}") for side in ("w", "v")]
        nodes.append(helper.make_node("MatMul", [flowing, f"w{at}"], [f"q{at}"], name=f"before{at}"))
        nodes.append(
            helper.make_node("Attention", [f"q{at}"] * 3, [f"a{at}"], name=f"attention{at}", q_num_heads=4, kv_num_heads=4)
        )
        nodes.append(helper.make_node("MatMul", [f"a{at}", f"v{at}"], [f"y{at}"], name=f"behind{at}"))
        flowing = f"y{at}"
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, ROWS, WIDTH]) for name in ("x", flowing)]
    graph = helper.make_graph(nodes, "attention", info[:1], info[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11), path)


@pytest.mark.parametrize("name", ["gpt-tiny", "vit-tiny"])
def test_memory_by_walking_the_gradient_files(name: str, tmp_path: Path) -> None:
    """What the forward pass leaves behind where all is kept, and where some is computed again, counted on the files' nodes."""
    path, derived, _ = both(name, tmp_path)
    plain = tmp_path / "plain.onnx"
    gradient(path, loss="cross-entropy", dims=MODELS[name], batch_norm="batch", save_to=plain)
    assert derived.recompute is not None
    assert derived.recompute.all_kept_bytes == kept_by_walking(plain)
    left = kept_by_walking(tmp_path / f"{name}-step.onnx")
    assert left <= derived.recompute.kept_bytes < derived.recompute.all_kept_bytes
    forward = load_onnx(path, dims=MODELS[name])
    last = derived.levels[len(forward.levels) - 1].live_bytes
    logits = max(4 * int(np.prod(info.shape)) for info in forward.outputs)
    assert last is not None  # beside them: the last product's result before its bias
    assert left - logits <= last <= left + 2 * logits


def test_what_devices_hold_is_from_the_last_time(tmp_path: Path) -> None:
    """A gradient reads again what was sent for the nearer run of its product; what runs again is sent anew."""
    _, derived, _ = both("gpt-tiny", tmp_path)
    copied = {gemm.node for gemm in derived.gemms if gemm.phase is Phase.RECOMPUTE}
    nodes = {gemm.name: gemm for gemm in derived.gemms}
    found = readings(derived)
    assert {reading.keeper.startswith(AGAIN) for reading in found} == {True, False}
    for reading in found:
        assert not reading.reader.startswith(AGAIN)
        if nodes[reading.keeper].phase in (Phase.FORWARD, Phase.RECOMPUTE):
            assert reading.keeper.startswith(AGAIN) == (nodes[reading.reader].node in copied)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Plan, Workload]:
    """The tiny GPT-2's plan over four devices."""
    path, workload, _ = both("gpt-tiny", tmp_path_factory.mktemp("planned"))
    return path, make_plan(workload, generate_fleet(4, preset="cleave", seed=5), without=QUICK), workload


def test_a_plan_of_it(planned: tuple[Path, Plan, Workload], tmp_path: Path) -> None:
    """It says what it computes again, survives its file, passes the second opinion, and plays; more work, less memory."""
    path, plan, workload = planned
    fleet = generate_fleet(4, preset="cleave", seed=5)
    save_plan(plan, tmp_path / "plan.json")
    read = load_plan(tmp_path / "plan.json")
    assert read.recompute == plan.recompute == workload.recompute
    again = load_model_of(read, path)
    assert verify(read, again, fleet).ok
    assert simulate_plan(read, again, fleet).batch_s == pytest.approx(plan.report.batch_s, rel=1e-9)
    plain = make_plan(load_onnx(path, dims=TEXT, training=True), fleet, without=QUICK)
    assert plain.recompute is None
    assert plan.report.bound_s > plain.report.bound_s
    assert sum(plan.report.server_memory_bytes.values()) < sum(plain.report.server_memory_bytes.values())


def test_a_plan_for_another_kind_of_step(planned: tuple[Path, Plan, Workload]) -> None:
    """The second opinion names the field, and so does what changed between two plans."""
    path, plan, _ = planned
    fleet = generate_fleet(4, preset="cleave", seed=5)
    verdict = verify(plan, load_onnx(path, dims=TEXT, training=True), fleet)
    assert not verdict.ok
    assert any(finding.where == "$.recompute" and "--recompute" in finding.sentence for finding in verdict.findings)
    plain = replace(plan, recompute=None)
    assert not verify(plain, load_model_of(plan, path), fleet).ok
    before, after = diff_plans(plain, plan).made_for["recompute"]
    assert (before, after.partition(",")[0]) == ("", "5 segments")


def test_refusals(tmp_path: Path) -> None:
    """A forward pass, a gradient file that keeps all, an operator without a rule, products inside a node; where nothing is
    spared, the plain step."""
    path, step = tmp_path / "stack.onnx", tmp_path / "step.onnx"
    stack(path)
    with pytest.raises(UsageError, match="add --training"):
        load_onnx(path, recompute=True)
    gradient(path, loss="mse", save_to=step)
    with pytest.raises(UsageError, match="keeps all forward values"):
        load_onnx(step, training=True, recompute=True)
    stack(path, op="LRN", size=3)
    with pytest.raises(InputFileError, match="no gradient rule"):
        load_onnx(path, training=True, recompute=True)
    attention(path)
    with pytest.raises(UsageError, match="inside nodes that are written out"):
        load_onnx(path, training=True, recompute=True)
    small = tmp_path / "mlp.onnx"
    small.write_bytes(build("mlp").SerializeToString())
    kept = load_onnx(small, dims={"batch": 8}, training=True, recompute=True)
    assert kept.recompute is not None
    assert (kept.recompute.segments, kept.recompute.extra_flop) == (1, 0)
