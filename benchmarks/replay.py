"""Emulated runs that are disturbed on purpose, and the same plan and faults in the simulator: do their step times agree?

    python -m benchmarks.replay [--runs 20] [--first-seed 0] [--devices 8] [--scale S] [--json]

Each run is one batch of a small GPT at the pace of its fleet (``run --emulate``) with one fault at a random moment: a device is
killed, hangs, becomes slow or lies (:mod:`benchmarks.faulty`). A device that hangs or is slow is so in the fleet's time too: its
link and arithmetic stop, or take :data:`~benchmarks.faulty.SLOWDOWN` times as long.
Then ``simulate --churn`` plays the plan with that fault at that moment of the fleet's time; a device that is killed or lies is
noticed as much later as the run noticed it, one that hangs or is slow when the simulator says. A step's time is that of its
levels; the server's operators between them are not played at the fleet's pace.

Runs share a session, healed between them; two batches without a fault show what there is of error without one, and teach the
server how long devices take.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks.faults import DIMS, MODEL
from benchmarks.faulty import SLOWDOWN, Fault, FaultyEngine, add_campaign, seeds_of
from benchmarks.tables import verdict
from cleave_plan.cost.lateness import GRACE_S
from cleave_plan.execution.emulation import scale_for
from cleave_plan.execution.engines.base import Engine
from cleave_plan.execution.engines.emulated import EmulatedEngine
from cleave_plan.execution.engines.local import LocalEngine
from cleave_plan.execution.inputs import random_inputs
from cleave_plan.execution.pacing import Pacer
from cleave_plan.execution.prices import FleetPrices, PredictedLevel
from cleave_plan.execution.server import RunResult
from cleave_plan.execution.session import Session
from cleave_plan.fleet.churn import Change, Event
from cleave_plan.fleet.device import Fleet
from cleave_plan.fleet.synthetic import generate_fleet
from cleave_plan.onnx_io.importer import ImportedModel, load_model
from cleave_plan.plan.plan import Plan
from cleave_plan.planning.planner import make_plan
from cleave_plan.simulation.churn import churn
from cleave_plan.simulation.work import plan_work
from models.registry import build

KINDS = ("kill", "hang", "slow", "corrupt")
STOPPED = 1e12
"""How many times as long a device takes that does nothing."""

FACTORS = {"slow": float(SLOWDOWN), "hang": STOPPED}
"""Kinds of faults that make a device late, and how many times as long it takes."""

BAR = 0.1


class SickPacer(Pacer):
    """Devices some of which take longer."""

    sick: dict[str, float]

    @classmethod
    def like(cls, pacer: Pacer) -> SickPacer:
        """One with the links of ``pacer``, with nothing to do."""
        own = cls(pacer._links, pacer._egress.tolist(), pacer._ingress.tolist())
        own.sick = {}
        return own

    def slow(self, device: str, factor: float) -> None:
        """From now on ``device`` takes ``factor`` times as long (infinite: it stands still)."""
        self.sick[device], self._fresh = min(factor, STOPPED), False

    def heal(self) -> None:
        """All are well, and have nothing to do."""
        self.sick.clear()
        self._rows.clear()
        self._fresh = False

    def _refresh(self) -> None:
        stale = not self._fresh
        super()._refresh()
        for device, factor in self.sick.items():
            if stale and device in self._rows:
                self._rows[device].speed = [speed / factor for speed in self._rows[device].speed]


class SickPrices(FleetPrices):
    """The fleet's prices, played by a pacer that is made once."""

    played: SickPacer

    def pacer(self) -> SickPacer:
        """The fleet's devices and links."""
        self.played = SickPacer.like(super().pacer())
        return self.played


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One step: its fault (none: ``kind`` is empty), when it happened in the fleet's time of levels, seconds until it was
    noticed, what the run said of it, and the seconds that the step took and was simulated to take."""

    seed: int
    kind: str
    device: str
    at_s: float | None
    noticed_s: float | None
    incidents: tuple[str, ...]
    executed_s: float
    simulated_s: float

    @property
    def error(self) -> float:
        """How much longer than simulated the step took, as a share."""
        return self.executed_s / self.simulated_s - 1


class Clock:
    """Moments of a run in the fleet's time, in which only levels take time: those that devices share as long as they took,
    others as long as they should."""

    def __init__(self, result: RunResult, promised: Sequence[PredictedLevel], scale: float) -> None:
        self._timings, self._scale = result.timings, scale
        pairs = zip(promised, result.timings, strict=True)
        self._level_s = [timing.seconds / scale if promise.device_s else promise.seconds for promise, timing in pairs]

    @property
    def step_s(self) -> float:
        """All levels."""
        return sum(self._level_s)

    def level(self, at_s: float) -> int:
        """The level that ran, or had run last, ``at_s`` seconds after the batch began."""
        return max((place for place, timing in enumerate(self._timings) if timing.start_s <= at_s), default=0)

    def fleet_s(self, at_s: float) -> float:
        """Seconds of levels until then."""
        place = self.level(at_s)
        inside = (at_s - self._timings[place].start_s) / self._scale
        return sum(self._level_s[:place]) + min(max(inside, 0.0), self._level_s[place])


class Stage:
    """A session at the pace of ``fleet``, and the same plan for the simulator."""

    def __init__(self, session: Session, plan: Plan, imported: ImportedModel, fleet: Fleet, scale: float | None) -> None:
        self._session, self._plan, self._fleet = session, plan, fleet
        self._inputs = random_inputs(imported)
        prices = SickPrices(plan, session.workload, fleet, session.jobs)
        self._promised = prices.predicted()
        self._operators_s = plan_work(plan, session.workload, fleet).operators_s
        session.run(self._inputs)
        rehearsed = session.run(self._inputs)
        self._tiles = rehearsed.tiles_run
        self.scale = scale if scale is not None else scale_for(self._promised, rehearsed.timings)[0]
        self._prices = prices
        self._engine: FaultyEngine
        session.wrap(self._faulty, prices)

    def step(self, seed: int, kind: str = "") -> Replayed:
        """A batch with a fault of ``kind`` drawn from ``seed`` (none where it is empty), and the simulator's batch."""
        draw = random.Random(seed)
        device = draw.choice(self._plan.device_names)
        faults = [Fault(kind=kind, device=device, after=draw.randrange(self._tiles))] if kind else []
        self._engine.arm(faults)
        begun = time.perf_counter()
        result = self._session.run(self._inputs)
        self._engine.heal(self._plan.device_names)
        self._prices.played.heal()
        clock = Clock(result, self._promised, self.scale)
        at_s = next((fault.at_s - begun for fault in faults if fault.at_s is not None), None)
        own = [one for one in result.incidents if device in one.devices and at_s is not None and one.at_s >= at_s]
        noticed_s = clock.fleet_s(own[0].at_s) - clock.fleet_s(at_s) if own and at_s is not None else None
        events = [] if at_s is None else [self._event(kind, device, clock, at_s, noticed_s)]
        told = (f"{one.kind} {', '.join(one.devices)} in level {one.level}: {one.reason}" for one in result.incidents)
        return Replayed(
            seed=seed, kind=kind, device=device if kind else "", at_s=None if at_s is None else clock.fleet_s(at_s),
            noticed_s=noticed_s, incidents=tuple(told), executed_s=clock.step_s, simulated_s=self._simulated(events),
        )  # fmt: skip

    def _event(self, kind: str, device: str, clock: Clock, at_s: float, noticed_s: float | None) -> Event:
        """The fault on the simulator's clock, on which operators take time too. What was never noticed had nothing left to do."""
        operators_s = float(self._operators_s[: clock.level(at_s) + 1].sum())
        time_s = clock.fleet_s(at_s) + operators_s
        if kind in FACTORS:
            return Event(time_s=time_s, change=Change.SLOW, device=device, factor=FACTORS[kind])
        return Event(time_s=time_s, change=Change.FAIL, device=device, noticed_s=noticed_s)

    def _simulated(self, events: Sequence[Event]) -> float:
        played = churn(self._plan, self._session.workload, self._fleet, events, batches=1, grace_s=GRACE_S / self.scale)
        return played.seconds - float(self._operators_s.sum())

    def _faulty(self, engine: Engine) -> FaultyEngine:
        assert isinstance(engine, LocalEngine), "the session was opened with one"
        played = EmulatedEngine(engine, self._prices, self.scale)
        self._engine = FaultyEngine(played, engine, felt=lambda device, factor: self._prices.played.slow(device, factor))
        return self._engine


def replayed(devices: int, seeds: Sequence[int], scale: float | None) -> Iterator[Replayed]:
    """Two steps without a fault, then one with a fault for each of ``seeds``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{MODEL}.onnx"
        path.write_bytes(build(MODEL, weights="seeded").SerializeToString())
        imported = load_model(path, dims=DIMS)
    fleet = generate_fleet(devices, preset="cleave")
    plan = make_plan(imported.workload, fleet, without=frozenset({"server", "reuse"}))
    with Session(plan, imported, engine=LocalEngine(devices), integrity=True) as session:
        stage = Stage(session, plan, imported, fleet, scale)
        print(f"a second of the fleet takes {stage.scale:.4g} s here", file=sys.stderr, flush=True)
        yield stage.step(0)
        yield stage.step(0)
        for seed in seeds:
            yield stage.step(seed, KINDS[seed % len(KINDS)])


def main(arguments: list[str] | None = None) -> int:
    """Print each step as it is done, and the median error of those with a fault, by kind and of all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description="Disturbed runs, executed and simulated.")
    add_campaign(parser, runs=20)
    parser.add_argument("--scale", type=float, metavar="S", help="seconds here for one of the fleet's (default: by rehearsal)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    steps: list[Replayed] = []
    for step in replayed(options.devices, seeds_of(options), options.scale):
        steps.append(step)
        print(told(step), file=sys.stderr if options.json else sys.stdout, flush=True)
    errors = {
        kind or "all": median([abs(step.error) for step in steps if step.kind and kind in ("", step.kind)] or [math.nan])
        for kind in (*KINDS, "")
    }  # fmt: skip
    if options.json:
        print(json.dumps({"steps": [asdict(step) | {"error": step.error} for step in steps], "median_error": errors}, indent=2))
    else:
        print("median error of a step: " + ", ".join(f"{kind} {100 * error:.1f} %" for kind, error in errors.items()))
        print("all: " + verdict(errors["all"], BAR))
    return 0 if errors["all"] <= BAR else 1


def told(step: Replayed) -> str:
    """One line."""
    fault = "no fault" if step.at_s is None else f"{step.kind} {step.device} at {step.at_s:.3g} s"
    noticed = "" if step.noticed_s is None else f", noticed {step.noticed_s:.3g} s later"
    times = f"executed {step.executed_s:.4g} s, simulated {step.simulated_s:.4g} s, {100 * step.error:+.1f} %"
    return f"seed {step.seed}: {fault}{noticed}: {times}"


if __name__ == "__main__":
    sys.exit(main())
