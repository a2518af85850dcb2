"""docs/claims.md from the cases that were run: what is found of each claim, the figures behind it, and where it does not hold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cleave_plan.simulation.baselines.server_centred import TWO_DIMENSIONAL
from cleave_plan.simulation.baselines.setting import Outcome
from cleave_plan.simulation.compare import DEVICE_RIVALS, OURS, Row, usable_devices
from cleave_plan.units import Unit, format_value

PIPELINES = ("Confidant", "Asteroid", "SWARM", "Alpa", "DTFM")
CLOUD = "H100 80 GB"
FAILED_OF = 256
HEAD = """\
# The paper's claims, measured

Cleave (arXiv 2512.22142) claims 4-10 times shorter batches than other edge systems, 8 times more devices in use, recovery at
least 100 times faster, traffic per device that falls with their number, and training comparable to the cloud. This page is
written by `make claims` (`python -m benchmarks.claims`) from the cases that were run: one training step of 128 x 1024 tokens,
all systems on the same devices, links and cost model, every degree of every rival searched ([simulation](simulation.md) says
how), server links and memory unlimited, devices that keep nothing from level to level (`--without reuse`). Times compare by ideal
cost; our executed time stands beside it. Whatever comes out is what stands here. Cases are kept from run to run: each says of
which commit it is.

"""
LIMITS = """\
## What the figures depend on

- **Memory decides.** Pipelines send only the activations that cross their stages. Where a fleet has the memory for their weights
  and optimizer state (the columns "memory lifted"), they are faster than any plan around parameter servers over links of tens of
  Mbit/s; what such a plan can do that they cannot is run where no device holds a layer.
- **Server links are unlimited here.** With one server of 100 Gbit/s its link binds from several hundred devices on
  ([planning](planning.md) has such cases).
- **Preset `cleave`** is the authors' own setting: 5-7 TFLOP/s and uplinks of 40-80 Mbit/s, both optimistic for phones of today.
  `measured-2023` has public medians of links and sustained rates.
- The device that fails is the one with most to do, at the end of the longest level, when all others have finished; a second of
  the recovery is the assumed heartbeat. Rivals' recovery is that of their papers: a restart from a checkpoint loses half a batch.
- What is simulated: disturbed steps that were emulated took 2.7 % more or less than the simulator says, in the median of twelve
  (`python -m benchmarks.replay`, [failures](failures.md) has the table).
- Rivals recompute activations and run the operators between products at no cost; "2-D per GEMM" is the lower bound of the paper's
  formulation without its memory limit; the cloud is as many H100 as hold the model, at 45 % of their peak, links between them not
  counted.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One line of the results: of which commit, rows as ``compare --json`` writes them, recovery by number of failures, processor
    seconds."""

    model: str
    preset: str
    devices: int
    commit: str
    rows: Sequence[Mapping[str, Any]]
    recovery_s: Mapping[str, float]
    plan_cpu_s: float
    cpu_s: float

    @property
    def key(self) -> tuple[str, str, int]:
        """What no two cases share."""
        return self.model, self.preset, self.devices

    def row(self, system: str, *, memory: bool = True) -> Mapping[str, Any] | None:
        """The row of ``system``; None where there is none."""
        found = (row for row in self.rows if row["system"] == system and row["memory_limited"] == memory)
        return next(found, None)

    def seconds(self, system: str, *, memory: bool = True) -> float:
        """Its batch time; infinite where it cannot run. What runs within memory also runs with memory lifted."""
        rows = [self.row(system, memory=limited) for limited in {memory, True}]
        return min((float(row["batch_s"]) for row in rows if row is not None and row["batch_s"] is not None), default=math.inf)

    @property
    def mine(self) -> float:
        """Our batch time, by ideal cost."""
        return self.seconds(OURS)

    def best(self, *, memory: bool = True, of: Iterable[str] = DEVICE_RIVALS) -> tuple[float, str]:
        """The fastest rival over devices and its seconds."""
        return min((self.seconds(name, memory=memory), name) for name in of)


def page(cases: Iterable[Case], counts: Sequence[int]) -> str:
    """The whole page; ``counts``: numbers of devices that are to be run in the end."""
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.model, case.preset), []).append(case)
    for members in groups.values():
        members.sort(key=lambda case: case.devices)
    if not groups:
        return HEAD + "No case has been run.\n"
    lines = [*_claims(groups, counts), "", LIMITS]
    for (model, preset), members in groups.items():
        lines += [f"## {model}, preset `{preset}`", "", *_times(members), "", *_traffic(members), ""]
    return HEAD + "\n".join(lines).rstrip() + "\n"


def _claims(groups: Mapping[tuple[str, str], list[Case]], counts: Sequence[int]) -> Iterator[str]:
    """A row for each model and preset, a column for each claim."""
    yield "## What is found of each claim"
    yield ""
    yield "Ratios say how many times longer the other takes; below 1 it is faster than this planner. The best count is given."
    yield "Devices of use: the largest count whose doubling saves 5 %, judged along the counts that were run; it is too small"
    yield "where the next count was not run."
    yield ""
    heads = (
        "model, preset", "devices run", "best edge rival within memory", "with memory lifted", "2-D per GEMM, least",
        "devices of use: ours, best pipeline within memory, lifted", f"recovery of 1, 3, 5 of {FAILED_OF}: ours",
        "rivals' recovery, best within memory, lifted", "down a device", f"{CLOUD}: ours takes",
    )  # fmt: skip
    yield _line(heads)
    yield "|---" * len(heads) + "|"
    for (model, preset), members in groups.items():
        run = [case.devices for case in members]
        missing = ", ".join(str(count) for count in counts if count not in run)
        told = ", ".join(map(str, run)) + (f" (not run: {missing})" if missing else "")
        at = next((case for case in members if case.devices == FAILED_OF), None)
        yield _line((
            f"{model}, `{preset}`", told, _ratio(members, memory=True), _ratio(members, memory=False),
            f"{min(case.seconds(TWO_DIMENSIONAL, memory=False) / case.mine for case in members):.2f} ×", _usable(members),
            "not run" if at is None else ", ".join(_s(at.recovery_s.get(str(n), math.inf)) for n in (1, 3, 5)),
            "not run" if at is None else f"{_recovery(at, memory=True)}; {_recovery(at, memory=False)}", _fall(members),
            f"{min(case.mine for case in members) / members[0].seconds(CLOUD):.0f} × as long",
        ))  # fmt: skip


def _ratio(members: Sequence[Case], *, memory: bool) -> str:
    """The largest ratio of the best rival's time to ours, where any rival runs."""
    found = [(seconds / case.mine, name, case.devices) for case in members for seconds, name in [case.best(memory=memory)]]
    able = [entry for entry in found if math.isfinite(entry[0])]
    if not able:
        return "none fits"
    ratio, name, devices = max(able)
    none = [str(devices) for ratio, _, devices in found if math.isinf(ratio)]
    return f"{ratio:.2f} × ({name}, {devices})" + (f"; none fits at {', '.join(none)}" if none else "")


def _usable(members: Sequence[Case]) -> str:
    rows = [
        Row(devices=case.devices, memory=memory, outcome=Outcome(name=name, batch_s=case.seconds(name, memory=memory)))
        for case in members for memory in (True, False) for name in (OURS, *PIPELINES)
    ]  # fmt: skip
    found = usable_devices(rows)
    within, lifted = (max(found[name, memory] for name in PIPELINES) for memory in (True, False))
    return f"{found[OURS, True]}, {within or 'none'}, {lifted or 'none'}"


def _recovery(case: Case, *, memory: bool) -> str:
    """The shortest recovery of a rival that runs, and how many times ours (one failure) that is."""
    rows = [case.row(name, memory=memory) for name in DEVICE_RIVALS]
    able = [
        (row["recovery_s"], row["system"]) for row in rows
        if row is not None and row["batch_s"] is not None and row["recovery_s"] is not None
    ]  # fmt: skip
    if not able:
        return "none fits"
    seconds, name = min(able)
    return f"{name} {_s(seconds)}, {seconds / case.recovery_s['1']:.0f} ×"


def _fall(members: Sequence[Case]) -> str:
    first, last = members[0], members[-1]
    sizes = [row["device_down_bytes"] for row in (first.row(OURS), last.row(OURS)) if row is not None]
    return f"{_b(sizes[0])} at {first.devices}, {_b(sizes[-1])} at {last.devices}"


def _times(members: Sequence[Case]) -> Iterator[str]:
    """Batch times by number of devices; of rivals within memory / with it lifted."""
    others = (TWO_DIMENSIONAL, "single server", "A100 80 GB", CLOUD)
    yield _line(("devices", f"{OURS} (executed)", *DEVICE_RIVALS, *others))
    yield "|---" * (2 + len(DEVICE_RIVALS) + len(others)) + "|"
    for case in members:
        mine = case.row(OURS)
        executed = math.inf if mine is None else float(mine["executed_s"])
        rivals = (f"{_s(case.seconds(name))} / {_s(case.seconds(name, memory=False))}" for name in DEVICE_RIVALS)
        rest = (_s(case.seconds(name, memory=False)) for name in others)
        yield _line((str(case.devices), f"{_s(case.mine)} ({_s(executed)})", *rivals, *rest))


def _traffic(members: Sequence[Case]) -> Iterator[str]:
    """What a device of ours sends, receives and holds, and recovery."""
    heads = ("devices", "down a device", "up a device", "memory a device", "1 lost", "3 lost", "5 lost", "planned in", "commit")
    yield _line(heads)
    yield "|---" * len(heads) + "|"
    for case in members:
        row = case.row(OURS)
        assert row is not None, "every case has ours"
        sizes = (_b(row[f"device_{name}_bytes"]) for name in ("down", "up", "memory"))
        lost = (_s(case.recovery_s.get(str(count), math.inf)) for count in (1, 3, 5))
        yield _line((str(case.devices), *sizes, *lost, f"{_s(case.plan_cpu_s)} of processor time", case.commit))


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _s(value: float) -> str:
    return format_value(value, Unit.SECONDS) if math.isfinite(value) else "no fit"


def _b(value: float) -> str:
    return format_value(value, Unit.BYTES)
