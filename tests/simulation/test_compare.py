"""Comparisons: our row is the plan, the rules for usable devices and energy by hand, every strategy present."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from planning_cases import device, fleet_of, gemm_of, server, workload_of

from cleave_plan.api import compare_strategies, make_plan
from cleave_plan.errors import UsageError
from cleave_plan.fleet.device import Fleet
from cleave_plan.report.comparison import Subject, comparison_document, comparison_text
from cleave_plan.report.page.comparison import comparison_page
from cleave_plan.report.tables import Screen
from cleave_plan.simulation.baselines.setting import Outcome
from cleave_plan.simulation.compare import DEVICE_RIVALS, HEARTBEAT_S, OURS, Row, usable_devices
from cleave_plan.simulation.expense import UNKNOWN
from cleave_plan.workload.graph import TensorInfo, Workload


def case(devices: int = 2, **changes: object) -> tuple[Workload, Fleet]:
    """Four layers, 8 samples; devices with power."""
    gemms = [gemm_of(f"g{level}", (1, 64, 20, 20), level) for level in range(4)]
    workload = workload_of(gemms, inputs=(TensorInfo(name="x", dtype="FLOAT", shape=(8, 20)),))
    fleet = fleet_of([device(f"d{i}", power_watt=10.0, **changes) for i in range(devices)], [server(flop_per_s={"any": 10.0})])
    return workload, fleet


def test_every_strategy_stands_beside_the_plan() -> None:
    """Rows at 1 and 2 devices; ours is the plan's own ideal time; samples come from the first input."""
    workload, fleet = case()
    found, samples = compare_strategies(workload, fleet)
    assert samples == 8
    assert {row.devices for row in found.rows} == {1, 2}
    names = {row.outcome.name for row in found.rows}
    assert names >= {OURS, *DEVICE_RIVALS, "2-D per GEMM", "single server", "A100 80 GB", "H100 80 GB"}
    mine = next(row for row in found.rows if row.devices == 2 and row.outcome.name == OURS)
    plan = make_plan(workload, fleet)
    assert mine.outcome.batch_s == pytest.approx(plan.predicted.ideal_levels_s + plan.predicted.server_operators_s)
    assert mine.executed_s == pytest.approx(plan.predicted.batch_s)
    best = found.best_rival(2)
    assert best is not None
    assert best.outcome.batch_s == min(
        row.outcome.batch_s for row in found.rows if row.devices == 2 and row.memory and row.outcome.name in DEVICE_RIVALS
    )


def test_traffic_and_recovery_of_one_level_by_hand() -> None:
    """Two equal devices share 64 x 20 (K = 20): 32 rows each. One lost: the other computes 32 x 20 more."""
    workload = workload_of([gemm_of("g", (1, 64, 20, 20))])
    fleet = fleet_of([device(f"d{i}", power_watt=36.0) for i in range(2)], [server(flop_per_s={"any": 1e-3})])
    found, _ = compare_strategies(workload, fleet, devices=[2], batch=1, without={"inner", "server"})
    mine = next(row for row in found.rows if row.outcome.name == OURS)
    assert mine.outcome.down_bytes == pytest.approx((32 + 20) * 20 * 4)
    assert mine.outcome.up_bytes == pytest.approx(32 * 20 * 4)
    # the kept operand (20 x 20) arrives in 16 s, then the result (2,560 B at 50 B/s) leaves beside the rows
    assert mine.outcome.recovery_s == pytest.approx(HEARTBEAT_S + 16 + 51.2)
    assert mine.expense.energy_wh == pytest.approx(2 * 36 * (16 + 51.2) / 3600)
    assert mine.expense.cost_dollars == pytest.approx(mine.expense.energy_wh / 1000 * 0.16)
    h100 = next(row for row in found.rows if row.outcome.name == "H100 80 GB")
    assert h100.expense.cost_dollars == pytest.approx(h100.outcome.batch_s / 3600 * 3.0)


def test_energy_of_unequal_watts_by_hand() -> None:
    """Devices of 18 and 54 W: ours is busy for 67.2 s on each, 1.344 Wh at 0.016 cents each; a rival's devices have 36 W in the
    mean for as long as its batch takes. A device of 0 W costs nothing."""
    workload = workload_of([gemm_of("g", (1, 64, 20, 20))])
    devices = [device("d0", power_watt=18.0), device("d1", power_watt=54.0)]
    fleet = fleet_of(devices, [server(flop_per_s={"any": 1e-3})])
    found, _ = compare_strategies(workload, fleet, devices=[2], batch=1, without={"inner", "server"})
    mine = next(row for row in found.rows if row.outcome.name == OURS)
    assert mine.expense.energy_wh == pytest.approx(1.344)
    assert mine.expense.cost_dollars == pytest.approx(1.344e-3 * 0.16)
    rivals = [row for row in found.rows if row.outcome.name in DEVICE_RIVALS and math.isfinite(row.outcome.batch_s)]
    assert {row.outcome.devices_used for row in rivals} == {1, 2}
    for row in rivals:
        assert row.expense.energy_wh == pytest.approx(row.outcome.devices_used * 36 * row.outcome.batch_s / 3600)
    free = replace(fleet, devices=(replace(devices[0], power_watt=0.0), devices[1]))
    found, _ = compare_strategies(workload, free, devices=[2], batch=1, without={"inner", "server"})
    assert next(row for row in found.rows if row.outcome.name == OURS).expense.energy_wh == pytest.approx(54 * 67.2 / 3600)


def test_rent_by_hand() -> None:
    """Devices at 36 and 72 dollars an hour and a server at 18: ours rents all three for its batch, a rival devices at 54 each.
    Without the server's price ours is unknown, a rival's is not; with a server that is there anyway (0) the devices' remains."""
    workload = workload_of([gemm_of("g", (1, 64, 20, 20))])
    devices = [device("d0", dollars_per_hour=36.0), device("d1", dollars_per_hour=72.0)]
    rents = {}
    for price in (18.0, None, 0.0):
        fleet = fleet_of(devices, [server(flop_per_s={"any": 1e-3}, dollars_per_hour=price)])
        found, samples = compare_strategies(workload, fleet, devices=[2], batch=1, without={"inner", "server"})
        mine = next(row for row in found.rows if row.outcome.name == OURS)
        rents[price] = mine.expense.rent_dollars
        hours = mine.outcome.batch_s / 3600
        for row in found.rows:
            if row.outcome.name in DEVICE_RIVALS and math.isfinite(row.outcome.batch_s):
                assert row.expense.rent_dollars == pytest.approx(row.outcome.devices_used * 54 * row.outcome.batch_s / 3600)
        h100 = next(row for row in found.rows if row.outcome.name == "H100 80 GB").expense
        assert h100.rent_dollars == h100.cost_dollars
        document = comparison_document(found, Subject(model="m", fleet=fleet, batch=samples, training=False))
        assert ("servers not stated. What needs one" in document["notes"][-1]) == (price is None)
        assert "devices specified (the fleet itself)" in document["notes"][-1]
    assert rents == {18.0: pytest.approx(hours * 126), None: None, 0.0: pytest.approx(hours * 108)}


def test_energy_needs_every_figure() -> None:
    """One device without a power figure: no energy is made up, in rows, in the document, on the terminal or on the page."""
    workload, fleet = case(2)
    some = replace(fleet, devices=(fleet.devices[0], replace(fleet.devices[1], power_watt=None)))
    found, samples = compare_strategies(workload, some, devices=[2])
    assert all(row.expense == UNKNOWN for row in found.rows if row.outcome.name in {OURS, *DEVICE_RIVALS})
    subject = Subject(model="m", fleet=some, batch=samples, training=False)
    document = comparison_document(found, subject)
    ours = next(row for row in document["rows"] if row["system"] == OURS)
    assert (ours["energy_wh"], ours["cost_dollars"]) == (None, None)
    line = next(line for line in comparison_text(found, subject, Screen(width=250)).splitlines() if line.strip().startswith(OURS))
    assert line.split()[-3:] == ["unknown"] * 3
    energy = next(chart for chart in comparison_page(document).sections[0].charts if chart.title == "Energy")
    assert {name for one in energy.data for name in one.columns["system"]} == {"A100 80 GB", "H100 80 GB"}


def rows_of(times: dict[int, float]) -> list[Row]:
    return [Row(devices=count, memory=True, outcome=Outcome(name="x", batch_s=seconds)) for count, seconds in times.items()]


@pytest.mark.parametrize(
    ("times", "usable"),
    [
        ({32: 100, 64: 60, 128: 56, 256: 55}, 64),  # 64 -> 128 saves 6.7 %, 128 -> 256 only 1.8 %
        ({32: 100, 64: 99}, 32),  # no doubling pays: the smallest that runs
        ({32: math.inf, 64: 50, 128: 40}, 64),
        ({32: math.inf, 64: math.inf}, 0),
        ({32: math.inf, 64: 50}, 64),
    ],
)
def test_usable_devices(times: dict[int, float], usable: int) -> None:
    """The largest number whose doubling saves 5 %."""
    assert usable_devices(rows_of(times)) == {("x", True): usable}


def test_numbers_of_devices_that_the_fleet_has_not() -> None:
    """0 or more than there are: a usage error that says the range."""
    workload, fleet = case(2)
    for wanted in ([0], [3], []):
        with pytest.raises(UsageError, match="devices asked for"):
            compare_strategies(workload, fleet, devices=wanted)
    assert np.isfinite(compare_strategies(workload, fleet, devices=[2, 2])[0].rows[0].outcome.batch_s)
