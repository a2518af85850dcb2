r"""Every strategy on the same fleet, at several numbers of devices: batch time, traffic, memory, recovery, devices of use.

Times compare by ideal cost (no strategy is charged for filling and draining its pipes on a device): ours is the plan's levels
and operators, with the executed time beside it; the rivals are :mod:`cleave_plan.simulation.baselines`. Each rival stands
twice, within the devices' memory and with memory lifted.

*Usable devices*: the largest number whose doubling still cuts the batch time by ``WORTH``, judged along the numbers asked for
and on up to ``MOST_DEVICES`` where a fleet of that size can be had.

*Recovery* of ours: what the device with the largest tile of the longest level was to compute is planned again over the
others as a run does it (:mod:`cleave_plan.planning.recut`), and computed; ``HEARTBEAT_S`` passes before anyone notices (assumed).

*Energy* and money: :mod:`~cleave_plan.simulation.expense`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cleave_plan.fleet.device import Fleet
from cleave_plan.plan.objective import products_of
from cleave_plan.plan.plan import Plan
from cleave_plan.planning.recut import recut
from cleave_plan.progress import Progress, silent
from cleave_plan.simulation.baselines.alpa import alpa
from cleave_plan.simulation.baselines.asteroid import asteroid
from cleave_plan.simulation.baselines.confidant import confidant
from cleave_plan.simulation.baselines.dtfm import dtfm
from cleave_plan.simulation.baselines.server_centred import ACCELERATORS, cloud, single_server, two_dimensional
from cleave_plan.simulation.baselines.setting import Outcome, Setting, setting_of
from cleave_plan.simulation.baselines.sharded import sharded_data_parallel
from cleave_plan.simulation.baselines.swarm import swarm
from cleave_plan.simulation.baselines.tensor import tensor_parallel
from cleave_plan.simulation.expense import UNKNOWN, Expense, of_cloud, of_plan, of_rival
from cleave_plan.simulation.work import PlanWork, plan_work
from cleave_plan.workload.graph import Workload

OURS = "cleave-plan"
WORTH = 0.05
"""Share of the batch time that doubling the devices must save to be worth it."""

MOST_DEVICES = 8192
HEARTBEAT_S = 1.0

DEVICE_RIVALS: Mapping[str, Callable[[Setting], Outcome]] = {
    "equal tensor parallel": tensor_parallel, "sharded data parallel": sharded_data_parallel, "Confidant": confidant,
    "Asteroid": asteroid, "SWARM": swarm, "Alpa": alpa, "DTFM": dtfm,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One strategy at one number of devices. ``memory``: whether the devices' memory limits it. ``executed_s``: of ours, by
    executed cost."""

    devices: int
    memory: bool
    outcome: Outcome
    executed_s: float | None = None
    bound_s: float | None = None
    expense: Expense = UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All rows, and for each strategy (and whether memory limits it) how many devices it can use."""

    rows: tuple[Row, ...]
    usable: Mapping[tuple[str, bool], int]

    def best_rival(self, devices: int, *, memory: bool = True) -> Row | None:
        """The fastest row of another strategy over devices; None when none can run."""
        able = [
            row for row in self.rows
            if row.devices == devices and row.memory == memory and row.outcome.name in DEVICE_RIVALS
            and math.isfinite(row.outcome.batch_s)
        ]  # fmt: skip
        return min(able, key=lambda row: row.outcome.batch_s, default=None)


def compare(
    workload: Workload,
    fleet_of: Callable[[int], Fleet],
    counts: Sequence[int],
    batch: int,
    plan: Callable[[Workload, Fleet], Plan],
    *,
    progress: Progress = silent,
) -> Comparison:
    """Compare strategies for ``workload`` of ``batch`` samples at each of ``counts`` devices.

    ``fleet_of`` gives the fleet of a size; ``plan`` makes our plans.
    """
    rows: list[Row] = []
    steps = len(DEVICE_RIVALS) + 1
    for place, devices in enumerate(counts):
        fleet, told = fleet_of(devices), _Onward(progress, place * steps, len(counts) * steps)
        told(0, steps, f"planning for {devices} devices")
        rows += [ours(workload, fleet, plan(workload, fleet)), *rivals(workload, fleet, batch, progress=told)]
    return Comparison(rows=tuple(rows), usable=usable_devices(rows))


@dataclass(frozen=True, slots=True)
class _Onward:
    """Progress of one part of a longer work."""

    progress: Progress
    before: int
    whole: int

    def __call__(self, done: int, total: int, label: str) -> None:
        self.progress(self.before + done, self.whole, label)


def rivals(workload: Workload, fleet: Fleet, batch: int, *, progress: Progress = silent) -> list[Row]:
    """Every other strategy on ``fleet``: those over devices within their memory and with it lifted, and those around servers."""
    rows = []
    setting, devices = setting_of(workload, fleet, batch), len(fleet.devices)
    for number, (name, rival) in enumerate(DEVICE_RIVALS.items()):
        progress(number + 1, len(DEVICE_RIVALS) + 1, f"{name} on {devices} devices")
        limited = rival(setting)  # runs with memory lifted too, and a search is not exhaustive
        lifted = min(limited, rival(setting.without_memory()), key=lambda found: found.batch_s)
        for memory, found in ((True, limited), (False, lifted)):
            rows.append(Row(devices=devices, memory=memory, outcome=found, expense=of_rival(found, fleet)))
    planned, alone = two_dimensional(workload, fleet), single_server(workload, fleet)
    return [
        *rows,
        Row(devices=devices, memory=False, outcome=planned, expense=of_rival(planned, fleet, fleet.servers)),
        Row(devices=devices, memory=True, outcome=alone, expense=of_rival(alone, fleet, fleet.servers[:1])),
        *(_cloud_row(workload, devices, place) for place in range(len(ACCELERATORS))),
    ]


def _cloud_row(workload: Workload, devices: int, place: int) -> Row:
    found = cloud(workload, ACCELERATORS[place])
    return Row(devices=devices, memory=True, outcome=found, expense=of_cloud(found, ACCELERATORS[place]))


def usable_devices(rows: Sequence[Row]) -> dict[tuple[str, bool], int]:
    """For each strategy the largest number of devices whose doubling, among the rows' numbers, still saves ``WORTH``; the
    smallest number that runs when none does; 0 when it never runs."""
    times: dict[tuple[str, bool], dict[int, float]] = {}
    for row in rows:
        times.setdefault((row.outcome.name, row.memory), {})[row.devices] = row.outcome.batch_s
    usable = {}
    for key, by_count in times.items():
        able = sorted(count for count, seconds in by_count.items() if math.isfinite(seconds))
        paying = [count for count in able if 2 * count in by_count and by_count[2 * count] <= (1 - WORTH) * by_count[count]]
        usable[key] = max(paying) if paying else (able[0] if able else 0)
    return usable


def ours(workload: Workload, fleet: Fleet, made: Plan) -> Row:
    """The row of the plan ``made`` for ``workload`` over ``fleet``."""
    p = made.predicted
    laid = plan_work(made, workload, fleet)
    down, up, busy = (np.zeros(len(fleet.devices)) for _ in range(3))
    for kind, times in zip(laid.kinds, np.bincount(laid.kind_of, minlength=len(laid.kinds)).tolist(), strict=True):
        busy += times * kind.load.executed_s
        down += times * np.bincount(kind.device, kind.down_bytes, minlength=len(busy))
        up += times * np.bincount(kind.device, kind.up_bytes, minlength=len(busy))
    outcome = Outcome(
        name=OURS, batch_s=p.ideal_levels_s + p.server_operators_s, devices_used=p.devices_used,
        down_bytes=float(down.max()), up_bytes=float(up.max()), memory_bytes=max(p.device_memory_bytes.values(), default=0.0),
        recovery_s=HEARTBEAT_S + recovery_seconds(made, laid, workload),
        recovery="the lost tiles are planned over the others and computed again",
    )  # fmt: skip
    return Row(
        devices=len(fleet.devices), memory=True, outcome=outcome, executed_s=p.batch_s, bound_s=p.bound_s,
        expense=of_plan(outcome.batch_s, busy, fleet, made.server_names),
    )  # fmt: skip


def recovery_seconds(made: Plan, laid: PlanWork, workload: Workload, failures: int = 1) -> float:
    """Seconds (executed cost) until the others have computed what ``failures`` devices were to: those that do most in the
    longest level, whose others have nothing left to do. Infinite where there are no others."""
    if len(laid.links) <= failures:
        return math.inf
    if not laid.kinds:
        return 0.0
    kind = max(laid.kinds, key=lambda kind: float(kind.load.executed_s.max()))
    lost = np.argsort(-kind.load.executed_s, kind="stable")[:failures]
    view, assignments = products_of(workload, made.assignments)
    owner = {name: assignment for assignment in assignments for name in assignment.gemms}
    products = {gemm.name: gemm for gemm in view.workload.gemms}
    busy = np.zeros(len(laid.links))
    busy[lost] = np.inf
    for name, columns in zip(kind.gemms, kind.columns, strict=True):
        tiles = owner[name].tiles
        found = recut(products[name], tiles.select(np.isin(tiles.device, lost)), columns, busy)
        if found.left:
            return math.inf
        busy = found.busy_s
    return float(np.delete(busy, lost).max())
