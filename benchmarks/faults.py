"""Runs that are disturbed on purpose: what becomes of the result, how soon a fault is noticed, and how soon it is made good.

    python -m benchmarks.faults [--runs 300] [--first-seed 0] [--devices 8] [--record FOLDER] [--json]

Each run is :data:`BATCHES` batches of a small GPT over ``--devices`` worker processes, reproducible and with every tile checked,
with one to three faults at random moments (after a random number of tiles). :data:`TOGETHER` runs share a session, which is
healed between them: who was lost joins again, whatever was hung or slow is ended.

- ``kill``     the device's process gets SIGKILL
- ``hang``     it is stopped (SIGSTOP)
- ``slow``     it is stopped for 19 of every 20 milliseconds, so that it is 20 times as slow
- ``corrupt``  one element of every tile that it returns is off by a thousandth of the tile's root mean square
- ``join``     a device that no plan knows comes

A run passes when all outputs have the bits of an undisturbed run, no process that it started is left, and no file of shared
memory that its processes had open (other programs' files do not count). Exit code 1 when one does not.

Faults are injected by an engine around the product's own (:mod:`benchmarks.faulty`).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.faulty import SLOWDOWN, Fault, FaultyEngine, add_campaign, seeds_of
from cleave_plan.errors import CleaveError
from cleave_plan.execution.engines.local import LocalEngine
from cleave_plan.execution.incidents import Incident
from cleave_plan.execution.inputs import random_inputs
from cleave_plan.execution.session import Session
from cleave_plan.fleet.synthetic import generate_fleet
from cleave_plan.kernels.arrays import Array
from cleave_plan.onnx_io.importer import ImportedModel, load_model
from cleave_plan.plan.plan import Plan
from cleave_plan.planning.planner import make_plan
from models.registry import build

MODEL, DIMS = "gpt-small", {"batch": 2, "seq": 128}
BATCHES = 2
TOGETHER = 10
KINDS = ("kill", "hang", "slow", "corrupt", "join")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A disturbed run: its faults, whether it passed (``flaw`` says what did not), and what it reported, in absolute seconds."""

    seed: int
    faults: tuple[Fault, ...]
    flaw: str
    seconds: float
    incidents: tuple[Incident, ...] = ()
    began_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What all runs of a campaign share: the model, its plan, its inputs, the undisturbed bits, and tiles in a run."""

    imported: ImportedModel
    plan: Plan
    inputs: Mapping[str, Array]
    bits: Mapping[str, bytes]
    tiles: int


def case_of(folder: Path, devices: int) -> Case:
    """The model over ``devices`` unequal devices, and an undisturbed run of it."""
    path = folder / f"{MODEL}.onnx"
    path.write_bytes(build(MODEL, weights="seeded").SerializeToString())
    imported = load_model(path, dims=DIMS)
    plan = make_plan(imported.workload, generate_fleet(devices, preset="cleave"), without=frozenset({"server"}))
    inputs = random_inputs(imported)
    with Session(plan, imported, engine=LocalEngine(2), reproducible=True) as session:
        result = session.run(inputs)
    return Case(imported=imported, plan=plan, inputs=inputs, bits=_bits(result.outputs), tiles=BATCHES * result.tiles_run)


def faults_of(seed: int, case: Case) -> tuple[Fault, ...]:
    """One to three faults of different devices, drawn from ``seed``."""
    draw = random.Random(seed)
    devices = draw.sample(case.plan.device_names, 3)
    faults = []
    for place, device in enumerate(devices[: draw.randint(1, 3)]):
        kind = draw.choice(KINDS)
        faults.append(Fault(kind=kind, device=f"late-{place}" if kind == "join" else device, after=draw.randrange(case.tiles)))
    return tuple(faults)


def disturbed(case: Case, session: Session, engine: FaultyEngine, seed: int) -> Outcome:
    """One run with the faults of ``seed``, after which all is well again."""
    faults = faults_of(seed, case)
    engine.arm(faults)
    incidents: list[Incident] = []
    begin, flaw = time.perf_counter(), ""
    try:
        for _ in range(BATCHES):
            batch = time.perf_counter()
            result = session.run(case.inputs)
            incidents += [_later(incident, batch - begin) for incident in result.incidents]
            if _bits(result.outputs) != case.bits:
                flaw = "other bits"
    except CleaveError as error:
        flaw = f"{type(error).__name__}: {error}"
    seconds = time.perf_counter() - begin
    engine.heal(case.plan.device_names)
    gone = engine.seen - set(engine.processes)
    if left := [process for process in gone if Path(f"/proc/{process}").exists()]:
        flaw = flaw or f"processes left: {left}"
    return Outcome(seed=seed, faults=faults, flaw=flaw, seconds=seconds, incidents=tuple(incidents), began_s=begin)


def campaign(case: Case, seeds: Sequence[int]) -> list[Outcome]:
    """Runs one after another, some of them in one session; what did not pass is told on stderr."""
    outcomes: list[Outcome] = []
    for start in range(0, len(seeds), TOGETHER):
        engine = FaultyEngine(LocalEngine(len(case.plan.device_names)))
        with Session(case.plan, case.imported, engine=engine, reproducible=True, integrity=True) as session:
            found = [disturbed(case, session, engine, seed) for seed in seeds[start : start + TOGETHER]]
        left = [process for process in engine.seen if Path(f"/proc/{process}").exists()]
        files = sorted(str(path) for path in engine.shared if path.exists())
        if left or files:
            found[-1] = replace(found[-1], flaw=found[-1].flaw or f"processes {left} or shared memory {files} left behind")
        for outcome in found:
            if outcome.flaw:
                told = [(fault.kind, fault.device, fault.after) for fault in outcome.faults]
                print(f"seed {outcome.seed}: {outcome.flaw} ({told})", file=sys.stderr, flush=True)
        outcomes += found
    return outcomes


@dataclass(slots=True, kw_only=True)
class Row:
    """What is known of one kind of fault: how many happened, were noticed, and how long noticing and recovery took."""

    kind: str
    happened: int = 0
    noticed_s: list[float] = field(default_factory=list)
    recovered_s: list[float] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """Counts, and median, 95th percentile and maximum of both times in seconds."""
        return {
            "kind": self.kind, "happened": self.happened, "noticed": len(self.noticed_s), "notice_s": _summary(self.noticed_s),
            "moved": len(self.recovered_s), "recovery_s": _summary(self.recovered_s),
        }  # fmt: skip


def table(outcomes: Sequence[Outcome]) -> list[Row]:
    """A row for each kind of fault. A fault that nothing was left to feel (its device had no tile any more) is not noticed."""
    rows = {kind: Row(kind=kind) for kind in KINDS}
    for outcome in outcomes:
        for fault in outcome.faults:
            if fault.at_s is None:
                continue
            rows[fault.kind].happened += 1
            at_s = fault.at_s - outcome.began_s
            own = [each for each in outcome.incidents if fault.device in each.devices and each.at_s >= at_s]
            if own:
                rows[fault.kind].noticed_s.append(own[0].at_s - at_s)
                rows[fault.kind].recovered_s += [own[0].recovery_s] if own[0].recovery_s is not None else []
    return list(rows.values())


def record(outcome: Outcome, case: Case) -> dict[str, Any]:
    """One run as the simulator can replay it: what happened when, in seconds since its start, and what the run made of it."""
    return {
        "kind": "campaign run", "seed": outcome.seed, "model": MODEL, "dims": DIMS, "batches": BATCHES,
        "devices": list(case.plan.device_names), "seconds": outcome.seconds, "passed": not outcome.flaw,
        "faults": [
            {"kind": fault.kind, "device": fault.device, "at_s": None if fault.at_s is None else fault.at_s - outcome.began_s,
             "after_tiles": fault.after, "factor": SLOWDOWN if fault.kind == "slow" else None}
            for fault in outcome.faults
        ],
        "incidents": [asdict(incident) for incident in outcome.incidents],
    }  # fmt: skip


def _later(incident: Incident, by_s: float) -> Incident:
    return replace(incident, at_s=incident.at_s + by_s)


def _bits(outputs: Mapping[str, Any]) -> dict[str, bytes]:
    return {name: np.asarray(value).tobytes() for name, value in outputs.items()}


def _summary(seconds: Sequence[float]) -> dict[str, float] | None:
    if not seconds:
        return None
    ordered = sorted(seconds)
    high = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    return {"median": statistics.median(ordered), "p95": high, "max": ordered[-1]}


def _shown(summary: Mapping[str, float] | None) -> str:
    return "-" if summary is None else " / ".join(f"{summary[name]:.3g}" for name in ("median", "p95", "max"))


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description="Runs that are disturbed on purpose.")
    add_campaign(parser, runs=300)
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="write each run as FOLDER/run-SEED.json")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        case = case_of(Path(folder), options.devices)
        outcomes = campaign(case, seeds_of(options))
    if options.record is not None:
        options.record.mkdir(parents=True, exist_ok=True)
        for outcome in outcomes:
            (options.record / f"run-{outcome.seed}.json").write_text(json.dumps(record(outcome, case), indent=1) + "\n")
    rows, passed = table(outcomes), sum(not outcome.flaw for outcome in outcomes)
    if options.json:
        document = {"runs": len(outcomes), "passed": passed, "faults": [row.document() for row in rows]}
        print(json.dumps(document | {"failed": [asdict(each) for each in outcomes if each.flaw]}, indent=2))
        return 0 if passed == len(outcomes) else 1
    print(f"{passed} of {len(outcomes)} runs passed; seconds are median / 95th percentile / maximum")
    print(f"{'fault':<10}{'happened':>9}{'noticed':>9}   {'until noticed (s)':<26}{'moved':>6}   until made good (s)")
    for row in rows:
        found = row.document()
        print(
            f"{row.kind:<10}{row.happened:>9}{found['noticed']:>9}   {_shown(found['notice_s']):<26}{found['moved']:>6}   "
            f"{_shown(found['recovery_s'])}"
        )
    return 0 if passed == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
