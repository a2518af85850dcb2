"""Whole runs with worker processes, against onnxruntime on the unsplit model."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest
import small_models
from hand_plans import columns, hand_plan, random_plan, rows
from onnx import TensorProto, helper

from cleave_plan.cost.efficiency import device_columns
from cleave_plan.cost.tile import price
from cleave_plan.errors import CleaveError, ExecutionError, InputFileError, UsageError
from cleave_plan.execution.admission import admit
from cleave_plan.execution.engines.local import LocalEngine
from cleave_plan.execution.inputs import random_inputs
from cleave_plan.execution.server import RunResult, Walk
from cleave_plan.execution.session import Session, run
from cleave_plan.fleet.synthetic import generate_fleet
from cleave_plan.kernels.tile import Box
from cleave_plan.onnx_io.importer import load_model
from cleave_plan.progress import silent

pytest.importorskip("onnxruntime", reason="the oracle of these tests is onnxruntime")


def assert_same(result: RunResult, path: Path, inputs: dict[str, np.ndarray]) -> None:
    """Every output agrees with onnxruntime's."""
    wanted = small_models.unsplit(path, inputs)
    assert list(result.outputs) == list(wanted)
    for name, value in wanted.items():
        assert result.outputs[name].dtype == value.dtype
        np.testing.assert_allclose(result.outputs[name], value, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("runtime", ["onnxruntime", "reference"])
def test_random_tiles_of_a_transformer_block(tmp_path: Path, runtime: str) -> None:
    """Tiles cut at random along all axes, K too, on eight devices in two processes; one GEMM stays on the server."""
    path = small_models.transformer_block(tmp_path / "block.onnx")
    imported = load_model(path)
    plan = random_plan(imported.workload, seed=5, cuts=6, keep=0.2)
    inputs = random_inputs(imported)
    result = run(plan, path, inputs, workers=2, runtime=runtime)
    assert_same(result, path, inputs)
    assert result.runtime.startswith({"onnxruntime": "onnxruntime ", "reference": "onnx.reference "}[runtime])
    assert result.workers == 2
    assert result.gemms_on_devices + result.gemms_on_server == 6
    assert result.tiles_run == sum(len(assignment.tiles) for assignment in plan.assignments)
    assert len(result.level_s) == 5
    assert len(result.timings) == 4  # what follows the last level has no tiles
    by_gemm = {name: assignment for assignment in plan.assignments for name in assignment.gemms}
    for level, timing, seconds in zip(imported.workload.levels, result.timings, result.level_s, strict=False):
        tiles = [by_gemm[imported.workload.gemms[place].name].tiles for place in level.gemms]
        devices = {plan.device_names[device] for each in tiles for device in each.device.tolist()}
        assert set(timing.device_s) == devices
        assert all(0 < device_s <= timing.seconds <= seconds for device_s in timing.device_s.values())


def test_convolutions_and_the_bytes_that_are_priced(tmp_path: Path) -> None:
    """Rows across images, channels, groups: right numbers, and exactly the traffic that the cost model charges."""
    path = small_models.convolutional(tmp_path / "conv.onnx")
    imported = load_model(path)
    plan = random_plan(imported.workload, seed=2, cuts=5, keep=0.0)
    inputs = random_inputs(imported)
    seen: list[tuple[int, int]] = []
    result = run(plan, path, inputs, workers=2, progress=lambda done, total, label: seen.append((done, total)))
    assert_same(result, path, inputs)
    fleet = generate_fleet(8)
    by_name = {gemm.name: gemm for gemm in imported.workload.gemms}
    costs = [
        price(by_name[a.gemms[0]], a.tiles, device_columns(fleet.devices, by_name[a.gemms[0]].dtype)) for a in plan.assignments
    ]
    assert result.bytes_down == sum(cost.down_bytes.sum() for cost in costs)
    assert result.bytes_up == sum(cost.up_bytes.sum() for cost in costs)
    assert seen[-1] == (result.tiles_run, result.tiles_run)


def test_rows_columns_and_more_devices_than_workers(tmp_path: Path) -> None:
    """Plain row and column splits; five devices share one process."""
    path = small_models.transformer_block(tmp_path / "block.onnx")
    imported = load_model(path)
    gemms = {gemm.name: gemm for gemm in imported.workload.gemms}
    tilings = {"q": rows(gemms["q"], 3, 4, 3), "head": columns(gemms["head"], 1, 4, 2, 3, 1)}
    inputs = random_inputs(imported, seed=3)
    result = run(hand_plan(imported.workload, tilings, devices=5), path, inputs, workers=1)
    assert_same(result, path, inputs)
    assert (result.gemms_on_devices, result.gemms_on_server, result.workers) == (2, 4, 1)
    assert set(result.device_s) == {f"device-{place}" for place in range(5)}


def test_the_server_computes_tiles_beside_the_devices(tmp_path: Path) -> None:
    """A tile on the device after the last one is the server's own: it is computed, and nothing travels for it."""
    path = small_models.transformer_block(tmp_path / "block.onnx")
    imported = load_model(path)
    gemms = {gemm.name: gemm for gemm in imported.workload.gemms}
    shared, own = rows(gemms["q"], 4, 6), [(1, box) for _, box in rows(gemms["k"], 10)]
    inputs = random_inputs(imported)
    result = run(hand_plan(imported.workload, {"q": shared, "k": own}, devices=1), path, inputs)
    assert_same(result, path, inputs)
    assert (result.tiles_run, result.tiles_on_server) == (1, 2)
    assert (result.gemms_on_devices, result.gemms_on_server) == (1, 5)
    assert list(result.device_s) == ["device-0"]
    assert (result.bytes_down, result.bytes_up) == ((4 * 8 + 8 * 8) * 4, 4 * 8 * 4)


def test_nodes_of_pinned_gemms_run_with_the_server_nodes(tmp_path: Path) -> None:
    """They are run once, whole, whatever their level."""
    path = small_models.transformer_block(tmp_path / "block.onnx")
    imported = load_model(path)
    pinned = {"k", "context"}
    gemms = tuple(
        dataclasses.replace(gemm, pinned="by hand", repeats=3) if gemm.name in pinned else gemm
        for gemm in imported.workload.gemms
    )
    imported = dataclasses.replace(imported, workload=dataclasses.replace(imported.workload, gemms=gemms))
    placed = admit(hand_plan(imported.workload, {}), imported.workload)
    inputs = random_inputs(imported)
    result = Walk(imported, placed, LocalEngine(1), runtime="auto", progress=silent).run(dict(inputs))
    assert_same(result, path, inputs)
    assert result.gemms_on_server == 6


def test_a_session_keeps_its_workers(tmp_path: Path) -> None:
    """Several batches on the same processes, each with its own numbers and figures; results outlive the session."""
    path = small_models.transformer_block(tmp_path / "block.onnx")
    imported = load_model(path)
    plan = random_plan(imported.workload, seed=3, keep=0.0)
    with Session(plan, path, engine=(engine := LocalEngine(2))) as session:
        batches = [random_inputs(imported, seed=seed) for seed in (1, 2, 3)]
        done = [(session.run(inputs), engine.processes) for inputs in batches]
    assert len({processes for _, processes in done}) == 1
    assert len({(result.tiles_run, result.bytes_down) for result, _ in done}) == 1
    for inputs, (result, _) in zip(batches, done, strict=True):
        assert_same(result, path, inputs)


def test_all_on_the_server_starts_no_process(tmp_path: Path) -> None:
    """A plan without tiles needs no workers."""
    path = small_models.transformer_block(tmp_path / "block.onnx")
    imported = load_model(path)
    inputs = random_inputs(imported)
    result = run(hand_plan(imported.workload, {}), path, inputs)
    assert_same(result, path, inputs)
    assert (result.workers, result.tiles_run, result.gemms_on_server) == (0, 0, 6)


def test_a_model_without_gemms_passes_inputs_and_weights_through(tmp_path: Path) -> None:
    """Outputs may be graph inputs, initialisers and constants."""
    nodes = [
        helper.make_node("Constant", [], ["c"], value_floats=[1.0, 2.0]),
        helper.make_node("Relu", ["x"], ["r"]),
    ]
    path = tmp_path / "none.onnx"
    given = {"w": np.array([3.0, 4.0], np.float32)}
    small_models.save(path, nodes, {"x": (TensorProto.FLOAT, [2])}, ["x", "w", "c", "r"], given)
    inputs = {"x": np.array([-1.0, 5.0], np.float32)}
    result = run(hand_plan(load_model(path).workload, {}), path, inputs)
    assert {name: value.tolist() for name, value in result.outputs.items()} == {
        "x": [-1.0, 5.0], "w": [3.0, 4.0], "c": [1.0, 2.0], "r": [0.0, 5.0],
    }  # fmt: skip


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
def test_empty_gemms(tmp_path: Path, shape: tuple[int, int]) -> None:
    """No rows, and no inner axis (then the product is 0)."""
    path = tmp_path / "empty.onnx"
    small_models.save(
        path, [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (TensorProto.FLOAT, shape)}, ["y"],
        {"w": np.ones((shape[1], 2), np.float32)},
    )  # fmt: skip
    imported = load_model(path)
    plan = random_plan(imported.workload, seed=0, keep=0.0)
    result = run(plan, path, {"x": np.ones(shape, np.float32)})
    assert np.array_equal(result.outputs["y"], np.zeros((shape[0], 2), np.float32))


def test_half_precision(tmp_path: Path) -> None:
    """float16 with K cut: partial sums travel in float32, the result is float16."""
    path = tmp_path / "half.onnx"
    x, w = np.random.default_rng(0).standard_normal((2, 64, 64)).astype(np.float16)
    small_models.save(
        path, [helper.make_node("MatMul", ["x", "w"], ["y"], name="g")], {"x": (TensorProto.FLOAT16, [64, 64])}, ["y"], {"w": w}
    )
    tiles = [(0, Box(0, 64, 0, 64, 0, 30, 0, 1)), (1, Box(0, 64, 0, 64, 30, 64, 0, 1))]
    result = run(hand_plan(load_model(path).workload, {"g": tiles}), path, {"x": x}, workers=2)
    assert result.outputs["y"].dtype == np.float16
    # One rounding to float16 (half a unit in the last place), of sums that differ in order.
    np.testing.assert_allclose(result.outputs["y"].astype(float), x.astype(float) @ w.astype(float), rtol=2**-10, atol=1e-5)
    assert result.bytes_up == 2 * 64 * 64 * 4


def test_the_same_bits_whatever_the_number_of_workers(tmp_path: Path) -> None:
    """Partial sums are added in the order of their tiles, not in that of arrival."""
    path = small_models.transformer_block(tmp_path / "block.onnx")
    imported = load_model(path)
    plan, inputs = random_plan(imported.workload, seed=9, cuts=8, keep=0.0), random_inputs(imported)
    first, second = (run(plan, path, inputs, workers=number).outputs["logits"] for number in (1, 3))
    assert first.tobytes() == second.tobytes()


def test_a_replaceable_initialiser(tmp_path: Path) -> None:
    """A weight that is also listed as an input is a default that a caller may replace."""
    path = tmp_path / "default.onnx"
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="g"), helper.make_node("Add", ["y", "w"], ["z"])]
    two = [2, 2]
    small_models.save(
        path, nodes, {"x": (TensorProto.FLOAT, two), "w": (TensorProto.FLOAT, two)}, ["z"], {"w": np.eye(2, dtype=np.float32)}
    )
    imported = load_model(path)
    plan = hand_plan(imported.workload, {"g": rows(imported.workload.gemms[0], 1, 1)})
    x = np.array([[1, 2], [3, 4]], np.float32)
    assert run(plan, path, {"x": x}, workers=1).outputs["z"].tolist() == [[2, 2], [3, 5]]
    replaced = run(plan, path, {"x": x, "w": np.full((2, 2), 2, np.float32)}, workers=1)
    assert replaced.outputs["z"].tolist() == [[8, 8], [16, 16]]


def test_sizes_that_the_data_decides_differently(tmp_path: Path) -> None:
    """A GEMM that meets other shapes than it was planned for says so, with both."""
    path = tmp_path / "data.onnx"
    nodes = [
        helper.make_node("NonZero", ["mask"], ["places"]),
        helper.make_node("Transpose", ["places"], ["rows"]),
        helper.make_node("Cast", ["rows"], ["x"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "w"], ["y"], name="g"),
    ]
    small_models.save(path, nodes, {"mask": (TensorProto.BOOL, [6])}, ["y"], {"w": np.ones((1, 2), np.float32)})
    model = onnx.load(path)
    del model.graph.value_info[:]
    for name in ("places", "rows"):
        model.graph.value_info.append(
            helper.make_tensor_value_info(name, TensorProto.INT64, ["n", 1] if name == "rows" else [1, "n"])
        )
    onnx.save(model, path)
    imported = load_model(path, dims={"n": 3})
    plan = hand_plan(imported.workload, {"g": rows(imported.workload.gemms[0], 1, 2)})
    good = run(plan, path, {"mask": np.array([True, False, True, True, False, False])}, workers=1)
    assert good.outputs["y"].tolist() == [[0, 0], [2, 2], [3, 3]]
    with pytest.raises(ExecutionError, match=r"GEMM 'g'.*\[2, 1\].*planned batch, M, K, N = \(1, 3, 1, 2\)"):
        run(plan, path, {"mask": np.array([True, False, True, False, False, False])}, workers=1)


def test_refusals_come_before_any_process(tmp_path: Path) -> None:
    """Wrong inputs, no workers, an unknown runtime: each an error of its own."""
    path = small_models.transformer_block(tmp_path / "block.onnx")
    imported = load_model(path)
    plan, inputs = random_plan(imported.workload, seed=0), random_inputs(imported)
    with pytest.raises(InputFileError, match="no array for 'ids'"):
        run(plan, path, {})
    with pytest.raises(UsageError, match="0 workers"):
        run(plan, path, inputs, workers=0)
    with pytest.raises(CleaveError, match="'pytorch'"):
        run(plan, path, inputs, runtime="pytorch")
