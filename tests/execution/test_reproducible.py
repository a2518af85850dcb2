"""Reproducible runs: one result, bit for bit, whatever the plan, the engine, or what becomes of the devices."""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import small_models
from hand_plans import hand_plan, random_plan, random_tiling
from hypothesis import given, settings
from hypothesis import strategies as st
from in_process import InProcess
from reproducible_models import attention_block, convolutions

from cleave_plan.cost.tile import Tiles
from cleave_plan.execution.engines.base import Engine
from cleave_plan.execution.engines.local import LocalEngine
from cleave_plan.execution.inputs import random_inputs
from cleave_plan.execution.reproducible import snapped_box
from cleave_plan.execution.server import RunResult
from cleave_plan.execution.session import Session
from cleave_plan.fleet.synthetic import generate_fleet
from cleave_plan.kernels.grid import Grid
from cleave_plan.onnx_io.importer import load_model
from cleave_plan.plan.plan import Mode, Plan
from cleave_plan.planning.planner import make_plan
from cleave_plan.progress import Progress, silent
from cleave_plan.workload.gemm import GemmShape
from cleave_plan.workload.graph import Workload


def bits(
    path: Path, plan: Plan, engine: Engine | None = None, *, progress: Progress = silent
) -> tuple[RunResult, dict[str, bytes]]:
    """A reproducible run, and the bits of its outputs."""
    with Session(plan, path, engine=engine or InProcess(), reproducible=True, progress=progress) as session:
        result = session.run(random_inputs(load_model(path)))
    return result, {name: value.tobytes() for name, value in result.outputs.items()}


@pytest.mark.parametrize("build", [attention_block, convolutions, small_models.transformer_block])
def test_every_plan_gives_the_same_bits(tmp_path: Path, build: Callable[[Path], Path]) -> None:
    """Nothing cut, everything cut at random along every axis, the planner's own cuts with joined products and a chain."""
    path = build(tmp_path / "model.onnx")
    imported = load_model(path)
    wanted = small_models.unsplit(path, random_inputs(imported))
    alone, first = bits(path, hand_plan(imported.workload, {}))
    for name, value in alone.outputs.items():
        np.testing.assert_allclose(value, wanted[name], rtol=1e-3, atol=1e-3)
    plans = [random_plan(imported.workload, seed=seed, cuts=3 * seed, keep=0.2) for seed in range(6)]
    plans += [make_plan(imported.workload, generate_fleet(5, seed=1)), with_chains(plans[2], imported.workload)]
    for plan in plans:
        assert bits(path, plan)[1] == first


@pytest.mark.parametrize("reproducible", [False, True])
def test_a_session_whose_plan_changes(tmp_path: Path, reproducible: bool) -> None:
    """From GEMMs to chains, to the server alone and back: each batch is, bit for bit, that of a session of its plan."""
    path = attention_block(tmp_path / "model.onnx")
    imported = load_model(path)
    inputs = random_inputs(imported)
    cut = random_plan(imported.workload, seed=2, cuts=6, keep=0.2)
    plans = [cut, with_chains(cut, imported.workload), hand_plan(imported.workload, {}), cut]
    with Session(plans[0], path, engine=InProcess(), reproducible=reproducible) as changing:
        for plan in plans:
            changing.change(plan)
            result = changing.run(inputs)
            with Session(plan, path, engine=InProcess(), reproducible=reproducible) as own:
                wanted = own.run(inputs)
            assert result.gemms_on_devices == wanted.gemms_on_devices
            assert all(np.array_equal(value, wanted.outputs[name]) for name, value in result.outputs.items())


def with_chains(plan: Plan, workload: Workload) -> Plan:
    """``plan`` with the chains of the model cut as such, at random."""
    apart = [each for each in plan.assignments if not any(set(each.gemms) <= set(chain.gemms) for chain in workload.chains)]
    for chain in workload.chains:
        (first,) = (each for each in plan.assignments if each.gemms == chain.gemms[:1])
        tiles = random_tiling(chain.shape._replace(k=1), random.Random(2), cuts=6, devices=8, inner=False)
        whole = Tiles.of([(device, *box._replace(k_stop=chain.shape.k)) for device, box in tiles])
        apart.append(replace(first, gemms=chain.gemms, joined=2, join_axis="chain", mode=Mode.TWO_DIMENSIONAL, tiles=whole))
    return replace(plan, assignments=tuple(apart))


@pytest.mark.skipif(sys.platform != "linux", reason="workers are killed by their process ids")
def test_the_bits_survive_lost_workers(tmp_path: Path) -> None:
    """Three of four workers are killed on the way: other processes, other cuts, the same bits."""
    path = attention_block(tmp_path / "model.onnx")
    workload = load_model(path).workload
    plan = random_plan(workload, seed=4, cuts=12, keep=0.0)
    engine = LocalEngine(4)

    def disturb(done: int, total: int, label: str) -> None:
        if done % 8 == 3 and len(engine.processes) > 1:
            os.kill(engine.processes[0], signal.SIGKILL)

    result, disturbed = bits(path, plan, engine, progress=disturb)
    assert result.incidents
    assert disturbed == bits(path, hand_plan(workload, {}))[1]


def test_the_bits_are_those_of_the_blocks(tmp_path: Path) -> None:
    """By hand: blocks of 64 x 64, K in four blocks, added two and two."""
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((100, 2048), np.float32), rng.standard_normal((2048, 70), np.float32)
    path = small_models.save(
        tmp_path / "one.onnx", [onnx.helper.make_node("MatMul", ["a", "b"], ["y"], name="y")],
        {"a": (small_models.FLOAT, [100, 2048])}, ["y"], {"b": b},
    )  # fmt: skip
    workload = load_model(path).workload
    plan = hand_plan(workload, {"y": random_tiling(workload.gemms[0].shape, random.Random(1), cuts=9, devices=4, inner=True)})
    with Session(plan, path, engine=InProcess(), reproducible=True) as session:
        found = session.run({"a": a}).outputs["y"]
    for rows, columns in itertools.product((slice(0, 64), slice(64, 100)), (slice(0, 64), slice(64, 70))):
        parts = [slice(start, start + 512) for start in range(0, 2048, 512)]
        p, q, r, s = (np.ascontiguousarray(a[rows, k]) @ np.ascontiguousarray(b[k, columns]) for k in parts)
        assert np.array_equal(found[rows, columns], (p + q) + (r + s))


@given(st.integers(1, 700), st.integers(1, 700), st.integers(1, 5000), st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_snapped_tiles_cover_what_they_covered(m: int, n: int, k: int, seed: int) -> None:
    """Every block of the grid lies in exactly one tile, and no tile ends within one."""
    draw = random.Random(seed)
    grid = Grid(rows=cuts(m, draw), columns=cuts(n, draw), inner=cuts(k, draw))
    hits = np.zeros((len(grid.rows) - 1, len(grid.columns) - 1, len(grid.inner) - 1), np.int8)
    for _, box in random_tiling(GemmShape(1, m, k, n), draw, cuts=8, devices=4, inner=True):
        own = snapped_box(box, grid)
        sides = [
            slice(axis.index(start), axis.index(stop))
            for axis, start, stop in zip((grid.rows, grid.columns, grid.inner), own[0:6:2], own[1:6:2], strict=True)
        ]
        hits[tuple(sides)] += 1
    assert (hits == 1).all()


def cuts(size: int, draw: random.Random) -> tuple[int, ...]:
    """An axis cut at a few places."""
    return tuple(sorted({0, size, *(draw.randint(0, size) for _ in range(5))}))


@given(st.integers(1, 40), st.data())
def test_nodes_are_ranges_that_the_tree_adds(blocks: int, data: st.DataObject) -> None:
    """The nodes of any cut of K, put together by the tree, are every block once and in order; a range is few nodes."""
    grid = Grid(rows=(0, 1), columns=(0, 1), inner=tuple(range(blocks + 1)))
    middle = data.draw(st.integers(0, blocks))
    nodes = [node for part in ((0, middle), (middle, blocks)) if part[0] < part[1] for node in grid.nodes(*part)]
    assert [start for start, _ in nodes] + [blocks] == [0] + [stop for _, stop in nodes]
    assert len(nodes) <= 2 * blocks.bit_length()
    values = np.random.default_rng(blocks).standard_normal(blocks).astype(np.float32)

    def tree(start: int, stop: int) -> np.ndarray:
        """The definition: the first part is the largest power of two of blocks that leaves something over."""
        if stop - start == 1:
            return values[start : start + 1].copy()
        first = max(2**power for power in range(7) if 2**power < stop - start)
        return tree(start, start + first) + tree(start + first, stop)

    given_sums = {node: tree(*node) for node in nodes}
    total = grid.add_up(0, blocks, lambda start, stop: given_sums.get((start, stop)))
    assert total.tobytes() == tree(0, blocks).tobytes()
