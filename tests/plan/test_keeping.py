"""What tiles find on their devices: figures by hand, and what the second opinion refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from plan_cases import assigned, device, fleet_of, gemm_of, plan_of, server, workload_of

from cleave_plan.cost.tile import Tiles
from cleave_plan.fleet.device import Fleet
from cleave_plan.plan.plan import Mode, Plan
from cleave_plan.plan.verify import Verdict, verify
from cleave_plan.planning.holding import Holding
from cleave_plan.workload.backward import training_workload
from cleave_plan.workload.gemm import Operand, Role
from cleave_plan.workload.graph import Workload

ROWS = [(0, 0, 5, 0, 6, 0, 4, 0, 1), (1, 5, 8, 0, 6, 0, 4, 0, 1)]


def column(*values: int) -> np.ndarray:
    """A column of what tiles find."""
    return np.array(values, dtype=np.int64)


def inference() -> tuple[Plan, Workload, Fleet]:
    """Two layers of 8 x 4 by 4 x 6 in float32, rows 0-4 on d0 and 5-7 on d1; d0 finds all six columns of B, d1 two."""
    workload = workload_of([gemm_of("l0", (1, 8, 4, 6), 0), gemm_of("l1", (1, 8, 4, 6), 1)])
    fleet = fleet_of([device("d0"), device("d1")], [server("s0")])
    own = assigned(["l0", "l1"], ROWS, mode=Mode.ROW, held_b=column(6, 2))
    return plan_of(workload, fleet, [own]), workload, fleet


def training() -> tuple[Plan, Workload, Fleet]:
    """One layer, its input learned: C by rows as above, dX by rows 0-3 and 4-7, dW whole on d1, which has X[5:8] and dY[4:8]."""
    forward = gemm_of("g", (1, 8, 4, 6), 0, a=Operand(tensor="x", role=Role.ACTIVATION, dtype=gemm_of("g", (1, 1, 1, 1)).a.dtype))
    workload = training_workload(workload_of([forward], parameter_elements=24))
    fleet = fleet_of([device("d0"), device("d1")], [server("s0")])
    halves = [(0, 0, 4, 0, 4, 0, 6, 0, 1), (1, 4, 8, 0, 4, 0, 6, 0, 1)]
    plans = [
        assigned(["g"], ROWS, mode=Mode.ROW),
        assigned(["g.dX"], halves, mode=Mode.ROW, held_b=column(4, 4)),
        assigned(["g.dW"], [(1, 0, 4, 0, 6, 0, 8, 0, 1)], mode=Mode.ROW, held_a=column(3), held_b=column(6)),
    ]
    return plan_of(workload, fleet, plans, training=True), workload, fleet


def codes(verdict: Verdict) -> set[str]:
    """The kinds of findings."""
    return {finding.code.value for finding in verdict.findings}


def test_frozen_columns_by_hand() -> None:
    """Of 96 bytes of B d0 is sent none and d1 two thirds; A as ever; the first batch sends everything."""
    plan, workload, fleet = inference()
    told = plan.predicted
    assert verify(plan, workload, fleet).ok
    assert told.spared_bytes == 2 * (96 + 32)
    assert told.downlink_bytes == 2 * (5 * 16 + 3 * 16 + 2 * 96 - 128)
    assert told.device_kept_bytes == {"d0": 192.0, "d1": 64.0}
    assert told.first_batch_s > told.batch_s
    cold = replace(plan.assignments[0], held_b=column())
    assert told.first_batch_s == pytest.approx(plan_of(workload, fleet, [cold]).predicted.batch_s)


def test_what_a_training_step_finds_by_hand() -> None:
    """dX finds all of W (4 x 6) on both devices; dW of the 8 x 4 of X the three rows of three columns that held_a allows, and
    of dY the four rows that dX had; W and X last, dY does not."""
    plan, workload, fleet = training()
    assert verify(plan, workload, fleet).ok
    assert plan.predicted.spared_bytes == 4 * (2 * 24 + 3 * 3 + 4 * 6)
    assert plan.predicted.device_kept_bytes == {"d0": 96.0, "d1": 96.0 + 36.0 + 96.0}
    assert plan.predicted.first_batch_s == plan.predicted.batch_s


@pytest.mark.parametrize("case", [inference, training])
def test_columns_agree_with_the_second_opinion(case: object) -> None:
    """The planner's columns and the second opinion's tiles hold the same bytes."""
    plan, workload, fleet = case()  # type: ignore[operator]
    holding = Holding(workload, plan.assignments, len(fleet.devices))
    kept = plan.predicted.device_kept_bytes
    assert holding.resident.tolist() == [kept.get(own.name, 0.0) for own in fleet.devices]
    spared = 0.0
    for gemm in workload.gemms:
        held = holding.held(gemm)
        assert held is not None
        spared += float((held.a_bytes + held.b_bytes).sum())
    assert spared == plan.predicted.spared_bytes


def test_refusals() -> None:
    """More than the piece, one entry too few, the server's own tile, an operand that changes, memory that is too small."""
    plan, workload, fleet = inference()
    own = plan.assignments[0]
    for held in (column(7, 0), column(-1, 0), column(6)):
        wrong = replace(plan, assignments=(replace(own, held_b=held),))
        assert codes(verify(wrong, workload, fleet)) == {"held"}
    server_tile = replace(own, tiles=Tiles.of([ROWS[0], (2, *ROWS[1][1:])]), held_b=column(0, 1))
    assert "held" in codes(verify(replace(plan, assignments=(server_tile,)), workload, fleet))
    activation = replace(own, held_b=column(), held_a=column(5, 3))
    assert "held" in codes(verify(plan_of(workload, fleet, [activation]), workload, fleet))
    small = fleet_of(
        [replace(fleet.devices[0], memory_bytes=400.0), fleet.devices[1]], fleet.servers
    )  # 40 of buffers, 192 kept, 48 + ... fit
    tiny = fleet_of([replace(fleet.devices[0], memory_bytes=325.0), fleet.devices[1]], fleet.servers)
    assert verify(plan_of(workload, small, [own]), workload, small).ok
    layers = workload_of([gemm_of(f"l{i}", (1, 8, 4, 6), i) for i in range(4)])
    full = replace(own, gemms=tuple(gemm.name for gemm in layers.gemms))
    assert "device-memory" in codes(verify(plan_of(layers, tiny, [full]), layers, tiny))
