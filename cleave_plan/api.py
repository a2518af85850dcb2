"""What ``import cleave_plan`` offers: plain functions over values, each loading what it needs when it is called.

Every function raises subclasses of :class:`cleave_plan.errors.CleaveError` for faults that a user can cause, and
whatever a command prints is reachable through these values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cleave_plan.errors import AnswerIsNoError, UsageError
from cleave_plan.progress import Progress, silent

if TYPE_CHECKING:
    import numpy as np

    from cleave_plan.execution.server import RunResult
    from cleave_plan.execution.verification import Verification
    from cleave_plan.fleet.device import Device, Fleet, Server
    from cleave_plan.fleet.figures import Figure
    from cleave_plan.plan.difference import Difference
    from cleave_plan.plan.plan import Constraint, Plan
    from cleave_plan.plan.verify import Verdict
    from cleave_plan.planning.story import Explanation
    from cleave_plan.planning.sweep import Sweep
    from cleave_plan.profiles.database import ProfileDatabase
    from cleave_plan.profiles.machine import MachineMeasurement
    from cleave_plan.workload.graph import Workload

__all__ = [
    "diff_plans", "draw_inputs", "execute", "explain_plan", "fleet_of", "generate_fleet", "given_figure",
    "load_constraints", "load_fleet", "load_inputs", "load_model_of", "load_onnx", "load_plan", "make_plan",
    "measure_machine", "open_profiles", "run", "save_fleet", "save_outputs", "save_plan", "sweep_plans", "verify",
    "verify_run", "with_servers",
]  # fmt: skip


def load_onnx(
    path: str | Path,
    *,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    trips: Mapping[str, int] | None = None,
    training: bool = False,
) -> Workload:
    """The work of one batch of an ONNX model; weights are not read.

    ``dims`` binds symbolic dimensions by name, ``shapes`` whole inputs, ``trips`` how often Loops run. ``training``: the work
    of a training step, with the gradient GEMMs of every GEMM derived from the forward ones. Raises InputFileError for a file
    that is not a model, and an error that names each dimension that is still open.
    """
    from cleave_plan.onnx_io.importer import load_model
    from cleave_plan.workload.backward import training_workload

    forward = load_model(Path(path), dims=dims, shapes=shapes, trips=trips).workload
    return training_workload(forward) if training else forward


def load_fleet(path: str | Path) -> Fleet:
    """The devices and servers of a fleet file (YAML, suffixed units) in SI; raises InputFileError with the place."""
    from cleave_plan.fleet.fleetfile import load_fleet as load

    return load(Path(path))


def generate_fleet(devices: int, *, preset: str = "cleave", seed: int = 42, stragglers: float = 0.0, servers: int = 1) -> Fleet:
    """A seeded fleet of ``devices`` unequal devices drawn from a preset ("cleave" or "measured-2023").

    ``stragglers`` is the share of devices that are ten times slower; ``servers`` the number of equal servers.
    """
    from cleave_plan.fleet.synthetic import generate_fleet as generate

    return generate(devices, preset=preset, seed=seed, stragglers=stragglers, servers=servers)


def save_fleet(fleet: Fleet, path: str | Path) -> None:
    """Write a fleet file (YAML with units), beside its place first and then renamed."""
    from cleave_plan.fleet.fleetfile import save_fleet as save

    save(fleet, Path(path))


def fleet_of(name: str, devices: Sequence[Device], servers: Sequence[Server] | None = None) -> Fleet:
    """A fleet of ``devices`` around ``servers`` (default: one reference server, whose figures are assumed)."""
    from cleave_plan.fleet.identity import make_fleet
    from cleave_plan.fleet.synthetic import reference_server

    return make_fleet(name, [reference_server()] if servers is None else servers, devices)


def given_figure(name: str, text: str, where: str = "") -> Figure:
    """A device's figure as a person states it: ``name`` of fleet files ("memory"), ``text`` with its unit ("4 GB").

    Raises InputFileError for an unknown figure or a text that is no such quantity.
    """
    from cleave_plan.fleet.catalogue import spec_of
    from cleave_plan.fleet.device import Provenance, Quality
    from cleave_plan.fleet.figures import DEVICE_SPECS, Figure, read_figure

    value = read_figure(text, spec_of(name, DEVICE_SPECS, where), where)
    return Figure(value=value, provenance=Provenance(quality=Quality.SPECIFIED, source="given by hand"))


def open_profiles(path: str | Path | None = None) -> ProfileDatabase:
    """The profile database at ``path`` (default: one per user), made when it is missing; use it in a ``with``."""
    from cleave_plan.profiles.database import ProfileDatabase

    return ProfileDatabase.open(path)


def measure_machine(name: str, **options: Any) -> MachineMeasurement:
    """Time this machine's GEMM: see :func:`cleave_plan.profiles.machine.measure_machine` for the options."""
    from cleave_plan.profiles.machine import measure_machine as measure

    return measure(name, **options)


def with_servers(fleet: Fleet, servers: int | Iterable[str]) -> Fleet:
    """``fleet`` with its first ``servers`` servers, or with the named ones in that order.

    The fleet keeps its name and hash: a plan made with some of the servers is a plan for the whole fleet's file.
    Raises UsageError for a number or a name that the fleet does not have.
    """
    known = {server.name: server for server in fleet.servers}
    names = list(known)[:servers] if isinstance(servers, int) else list(servers)
    if isinstance(servers, int) and not 1 <= servers <= len(known):
        raise UsageError(f"{servers} servers asked for", where=f"fleet {fleet.name}", expected=f"between 1 and {len(known)}")
    for name in names:
        if name not in known:
            raise UsageError(f"no server is named {name!r}", where=f"fleet {fleet.name}", expected=f"one of {', '.join(known)}")
    if len(set(names)) != len(names) or not names:
        raise UsageError(f"servers {names} asked for", where=f"fleet {fleet.name}", expected="at least one server, each once")
    return dataclasses.replace(fleet, servers=tuple(known[name] for name in names))


def make_plan(
    workload: Workload,
    fleet: Fleet,
    *,
    without: Iterable[str] = (),
    constraints: Sequence[Constraint] = (),
    gap: float = 1e-3,
    time_limit_s: float = 60.0,
    progress: Progress = silent,
) -> Plan:
    """The plan of least predicted batch time, with a bound on how far it can be from the best.

    ``without`` switches choices off ("server": no GEMM stays on a server); ``constraints`` are demands that the plan obeys
    (:func:`load_constraints`); ``gap`` is the relative gap and ``time_limit_s`` the time after which the integer program
    may stop. Raises InfeasibleError with the facts when a GEMM fits nowhere or the constraints cannot hold together.
    """
    from cleave_plan.planning.planner import make_plan as plan

    return plan(
        workload, fleet, without=frozenset(without), constraints=tuple(constraints), gap=gap, time_limit_s=time_limit_s,
        progress=progress,
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
    fixed = None
    if over in ("devices", "servers"):
        fixed = load_onnx(model, dims=dims, shapes=shapes, trips=trips, training=training)

    def case(value: int) -> tuple[Workload, Fleet]:
        bound = {**(dims or {}), over: value}
        workload = fixed or load_onnx(model, dims=bound, shapes=shapes, trips=trips, training=training)
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
    from cleave_plan.plan.identity import same_fleet, same_model
    from cleave_plan.planning.explain import explain

    for finding in (*same_model(plan, workload), *same_fleet(plan, fleet)):
        raise AnswerIsNoError(finding.sentence, where=finding.where)
    return explain(plan, workload, with_servers(fleet, plan.server_names), gemm=gemm, devices=devices, progress=progress)


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


def load_model_of(plan: Plan, path: str | Path) -> Workload:
    """The model at ``path`` with the sizes and trip counts that ``plan`` was made with, and for training if it was.

    Raises AnswerIsNoError when it does not have them, so that it must be another model than the plan's.
    """
    try:
        return load_onnx(path, dims=plan.dims, shapes=plan.shapes, trips=plan.trips, training=plan.training)
    except UsageError as error:
        raise AnswerIsNoError(
            f"the plan was made for another model, {plan.model.name!r}: in this one, {error.what}",
            where=str(path), remedy="name the model that the plan was made for, or plan again",
        ) from error  # fmt: skip


def draw_inputs(plan: Plan, model: str | Path, *, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs for a run without data, of the sizes that the plan was made with; the same for the same seed."""
    from cleave_plan.execution.inputs import random_inputs
    from cleave_plan.onnx_io.importer import load_model

    return random_inputs(load_model(model, dims=plan.dims, shapes=plan.shapes, trips=plan.trips), seed=seed)


def load_inputs(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of an ``.npz`` file by name; raises InputFileError for anything else."""
    from cleave_plan.execution.inputs import load_inputs as load

    return load(path)


def save_outputs(outputs: Mapping[str, Any], path: str | Path) -> None:
    """Write outputs to an ``.npz`` file, beside its place first and then renamed."""
    from cleave_plan.execution.inputs import save_outputs as save

    save(outputs, path)


def run(plan: Plan, model: str | Path, inputs: Mapping[str, np.ndarray], *, progress: Progress = silent) -> dict[str, Any]:
    """The model's outputs for ``inputs``, computed on this machine as the plan says (:func:`execute` tells more)."""
    return dict(execute(plan, model, inputs, progress=progress).outputs)


def execute(
    plan: Plan,
    model: str | Path,
    inputs: Mapping[str, np.ndarray],
    *,
    engine: str = "local",
    workers: int | None = None,
    runtime: str = "auto",
    progress: Progress = silent,
) -> RunResult:
    """Run one batch as the plan says, and report outputs, times and traffic.

    ``engine`` "local" plays the devices with ``workers`` processes of this machine (default: one per core); ``runtime``
    runs the server's operators ("auto", "onnxruntime" or "reference"). Raises InputFileError when plan, model and inputs
    do not belong together, ExecutionError when a worker is lost.
    """
    from cleave_plan.execution.server import run as run_plan

    if engine != "local":
        raise UsageError(f"there is no engine {engine!r}", expected="local")
    return run_plan(plan, model, inputs, workers=workers, runtime=runtime, progress=progress)


def verify_run(plan: Plan, model: str | Path, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, Any]) -> Verification:
    """Run the unsplit model on ``inputs`` and compare ``outputs`` with what it gives, output by output."""
    from cleave_plan.execution.verification import verify_run as compare

    return compare(plan, model, inputs, outputs)
