"""Plans: made, judged, explained, compared, written and read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cleave_plan.api.fleets import with_servers
from cleave_plan.api.models import load_onnx
from cleave_plan.errors import AnswerIsNoError, UsageError
from cleave_plan.progress import Progress, silent

if TYPE_CHECKING:
    from cleave_plan.fleet.device import Device, Fleet
    from cleave_plan.plan.difference import Difference
    from cleave_plan.plan.plan import Constraint, Plan
    from cleave_plan.plan.verify import Verdict
    from cleave_plan.planning.replan import Replanned
    from cleave_plan.planning.story import Explanation
    from cleave_plan.planning.sweep import Sweep
    from cleave_plan.workload.graph import Workload


def make_plan(
    workload: Workload,
    fleet: Fleet,
    *,
    without: Iterable[str] = (),
    constraints: Sequence[Constraint] = (),
    percentile: float | None = None,
    gap: float = 1e-3,
    time_limit_s: float = 60.0,
    progress: Progress = silent,
) -> Plan:
    """The plan of least predicted batch time, with a bound on how far it can be from the best.

    ``without`` switches choices off ("server": no GEMM stays on a server); ``constraints`` are demands that the plan obeys
    (:func:`load_constraints`); ``percentile`` (50 to 100) takes figures whose spread was measured at that percentile of their
    samples; ``gap`` is the relative gap and ``time_limit_s`` the time after which the integer program may stop. Raises
    InfeasibleError with the facts when a GEMM fits nowhere or the constraints cannot hold together.
    """
    from cleave_plan.planning.planner import make_plan as plan

    return plan(
        workload, fleet, without=frozenset(without), constraints=tuple(constraints), percentile=percentile, gap=gap,
        time_limit_s=time_limit_s, progress=progress,
    )  # fmt: skip


def load_constraints(path: str | Path) -> tuple[Constraint, ...]:
    """The demands of a constraint file (YAML); raises InputFileError with the place of the first fault."""
    from cleave_plan.plan.constraintsfile import load_constraints as load

    return load(path)


def sweep_plans(
    model: str | Path,
    fleet: Fleet,
    over: str,
    values: Iterable[int],
    *,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    trips: Mapping[str, int] | None = None,
    training: bool = False,
    recompute: bool = False,
    progress: Progress = silent,
    **options: Any,
) -> Sweep:
    """A plan for each of ``values`` of ``over``: "devices" (the first n of the fleet), "servers" (the first n), or the
    name of a symbolic dimension of the model ("batch"); and the knee of the curve.

    ``options`` are those of :func:`make_plan`. Raises UsageError for values that the fleet or the model does not have.
    """
    from cleave_plan.planning.subfleet import restored, some_devices
    from cleave_plan.planning.sweep import sweep

    if over == "devices" and any(constraint.devices for constraint in options.get("constraints", ())):
        raise UsageError("a sweep over devices cannot keep constraints on devices", remedy="sweep something else, or drop them")
    wanted, known = list(values), len(fleet.devices)
    if not wanted or min(wanted) < 1 or (over == "devices" and max(wanted) > known):
        most = f" and at most {known}" if over == "devices" else ""
        raise UsageError(
            f"{over} = {wanted} asked for", where=f"fleet {fleet.name}", expected=f"whole numbers of 1 or more{most}"
        )
    kind = {"training": training, "recompute": recompute}
    fixed = None
    if over in ("devices", "servers"):
        fixed = load_onnx(model, dims=dims, shapes=shapes, trips=trips, **kind)

    def case(value: int) -> tuple[Workload, Fleet]:
        bound = {**(dims or {}), over: value}
        workload = fixed or load_onnx(model, dims=bound, shapes=shapes, trips=trips, **kind)
        if over == "servers":
            return workload, with_servers(fleet, value)
        return workload, some_devices(fleet, range(value)) if over == "devices" else fleet

    def planned(workload: Workload, some: Fleet) -> Plan:
        whole = dataclasses.replace(fleet, servers=some.servers)
        return restored(make_plan(workload, some, **options), whole, range(len(some.devices)))

    return sweep(over, wanted, case, planned, throughput=fixed is None, progress=progress)


def explain_plan(
    plan: Plan,
    workload: Workload,
    fleet: Fleet,
    *,
    gemm: str = "*",
    devices: Sequence[str] = (),
    progress: Progress = silent,
) -> Explanation:
    """Why the GEMMs that match ``gemm`` are done as they are and what the next best would cost; what ``devices`` (default:
    those that bind most) are worth, and what one twice as good would bring.

    ``workload`` and ``fleet`` are those that the plan was made for. Raises AnswerIsNoError when they are others.
    """
    from cleave_plan.planning.explain import explain

    require_same(plan, workload, fleet)
    return explain(plan, workload, with_servers(fleet, plan.server_names), gemm=gemm, devices=devices, progress=progress)


def replan(
    plan: Plan,
    workload: Workload,
    fleet: Fleet,
    *,
    lost: Iterable[str] = (),
    joined: Sequence[Device] = (),
    gain: float | None = None,
    progress: Progress = silent,
) -> Replanned:
    """``plan`` without the devices named in ``lost`` and with those in ``joined``: only what must move moves.

    ``gain``: share of the batch time for which a plan made anew may take its place (None: never). ``workload`` and ``fleet`` are
    those that the plan was made for: raises AnswerIsNoError when they are others, UsageError for devices that the fleet does
    not have or has already, InfeasibleError when no device that is left can take a tile.
    """
    from cleave_plan.planning.replan import replan as anew

    require_same(plan, workload, fleet)
    return anew(plan, workload, with_servers(fleet, plan.server_names), tuple(lost), joined, gain=gain, progress=progress)


def diff_plans(before: Plan, after: Plan) -> Difference:
    """What changed from one plan to another: what they were made for, what they predict, and who computes what."""
    from cleave_plan.plan.difference import difference

    return difference(before, after)


def save_plan(plan: Plan, path: str | Path) -> None:
    """Write a plan as JSON, beside its place first and then renamed."""
    from cleave_plan.plan.planfile import save_plan as save

    save(plan, Path(path))


def load_plan(path: str | Path) -> Plan:
    """Read a plan file; raises InputFileError with the JSON path of the first fault."""
    from cleave_plan.plan.planfile import load_plan as load

    return load(Path(path))


def verify(plan: Plan, workload: Workload | None = None, fleet: Fleet | None = None) -> Verdict:
    """The second opinion: exact cover, memory, hashes, and the objective recomputed by other code than the planner's.

    Without ``workload`` or ``fleet`` only what can be known without them is judged, and the verdict has no figures.
    """
    from cleave_plan.plan.consistency import consistency
    from cleave_plan.plan.verify import verify as judge

    return consistency(plan, workload, fleet) if workload is None or fleet is None else judge(plan, workload, fleet)


def require_same(plan: Plan, workload: Workload, fleet: Fleet) -> None:
    """Raise AnswerIsNoError unless ``plan`` was made for this workload and fleet."""
    from cleave_plan.plan.identity import same_fleet, same_model

    for finding in (*same_model(plan, workload), *same_fleet(plan, fleet)):
        raise AnswerIsNoError(finding.sentence, where=finding.where)
