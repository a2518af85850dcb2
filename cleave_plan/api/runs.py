"""Plans at work: on this machine, and in virtual time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cleave_plan.api.fleets import with_servers
from cleave_plan.api.plans import require_same
from cleave_plan.errors import UsageError
from cleave_plan.progress import Progress, silent

if TYPE_CHECKING:
    import numpy as np

    from cleave_plan.chronicle import Chronicle
    from cleave_plan.execution.emulation import Emulated
    from cleave_plan.execution.server import RunResult
    from cleave_plan.execution.session import Session
    from cleave_plan.execution.truth import Comparison as RunComparison
    from cleave_plan.execution.verification import Verification
    from cleave_plan.fleet.device import Fleet
    from cleave_plan.onnx_io.importer import ImportedModel
    from cleave_plan.plan.plan import Plan
    from cleave_plan.simulation.churnrun import ChurnRun
    from cleave_plan.simulation.compare import Comparison
    from cleave_plan.simulation.run import Simulation
    from cleave_plan.workload.graph import Workload


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
    convolution: str = "numpy",
    reproducible: bool = False,
    integrity: bool | None = None,
    progress: Progress = silent,
) -> RunResult:
    """Run one batch as the plan says, and report outputs, times and traffic.

    ``engine`` "local" plays the devices with ``workers`` processes of this machine (default: one per core); ``runtime``
    runs the server's operators ("auto", "onnxruntime" or "reference"); ``convolution`` computes tiles of convolutions on
    local workers ("numpy", or "onnxruntime" where it can: the result's notes say what was left to NumPy);
    ``reproducible``: in fixed blocks, so that every plan of the model gives the same bits; ``integrity``: whether each tile
    that a device returns is checked (None: where devices are other machines). Raises InputFileError when plan, model and
    inputs do not belong together, ExecutionError when no device is left.
    """
    with open_session(
        plan,
        model,
        engine=engine,
        workers=workers,
        runtime=runtime,
        convolution=convolution,
        reproducible=reproducible,
        integrity=integrity,
        progress=progress,
    ) as session:
        return session.run(inputs)


def open_session(
    plan: Plan,
    model: str | Path | ImportedModel,
    *,
    engine: str = "local",
    workers: int | None = None,
    runtime: str = "auto",
    convolution: str = "numpy",
    reproducible: bool = False,
    integrity: bool | None = None,
    progress: Progress = silent,
) -> Session:
    """The model made ready to run under ``plan`` any number of times, with the same workers; for use in a ``with``.

    ``model``: its path, or what was imported already. Other arguments and errors are those of :func:`execute`;
    ``session.run(inputs)`` is one batch.
    """
    from cleave_plan.execution.engines.choice import engine_named
    from cleave_plan.execution.session import Session

    chosen = engine_named(engine, workers=workers, convolution=convolution)
    checked = engine != "local" if integrity is None else integrity
    return Session(
        plan, model, engine=chosen, runtime=runtime, reproducible=reproducible, integrity=checked, progress=progress
    )  # fmt: skip


def emulate_run(
    plan: Plan,
    model: str | Path,
    fleet: Fleet,
    inputs: Mapping[str, np.ndarray],
    *,
    engine: str = "local",
    workers: int | None = None,
    runtime: str = "auto",
    convolution: str = "numpy",
    scale: float | None = None,
    reproducible: bool = False,
    integrity: bool | None = None,
    progress: Progress = silent,
) -> Emulated:
    """Run one batch at the pace of ``fleet``, for which the plan was made, and compare it with what was predicted.

    ``scale``: seconds here for one of the fleet's; None finds one by running the batch first as fast as this machine can.
    Other arguments and errors are those of :func:`execute`; raises AnswerIsNoError when the fleet is another.
    """
    from cleave_plan.execution.emulation import emulate

    with open_session(
        plan,
        model,
        engine=engine,
        workers=workers,
        runtime=runtime,
        convolution=convolution,
        reproducible=reproducible,
        integrity=integrity,
        progress=progress,
    ) as session:
        require_same(plan, session.workload, fleet)
        return emulate(session, plan, fleet, inputs, scale=scale)


def compare_run(
    plan: Plan,
    model: str | Path,
    fleet: Fleet,
    inputs: Mapping[str, np.ndarray],
    *,
    engine: str = "ray",
    workers: int | None = None,
    runtime: str = "auto",
    convolution: str = "numpy",
    reproducible: bool = False,
    integrity: bool | None = None,
    progress: Progress = silent,
) -> tuple[RunResult, RunComparison]:
    """Run a batch on the devices of ``fleet`` themselves, and compare it with what was predicted for them.

    It is the second of two batches: in the first, devices load code and weights take their places. Arguments and errors are
    those of :func:`execute`; raises AnswerIsNoError when the plan was made for another fleet.
    """
    from cleave_plan.execution.prices import FleetPrices
    from cleave_plan.execution.truth import compare

    with open_session(
        plan, model, engine=engine, workers=workers, runtime=runtime, convolution=convolution, reproducible=reproducible,
        integrity=integrity, progress=progress,
    ) as session:  # fmt: skip
        require_same(plan, session.workload, fleet)
        prices = FleetPrices(plan, session.workload, fleet, session.jobs)
        session.run(inputs)
        result = session.run(inputs)
        return result, compare(prices, result.timings)


def verify_run(plan: Plan, model: str | Path, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, Any]) -> Verification:
    """Run the unsplit model on ``inputs`` and compare ``outputs`` with what it gives, output by output."""
    from cleave_plan.execution.verification import verify_run as compare

    return compare(plan, model, inputs, outputs)


def simulate_plan(
    plan: Plan,
    workload: Workload,
    fleet: Fleet,
    *,
    batches: int = 1,
    pacing: str = "planned",
    dispatch: str = "barrier",
    jitter: float = 0.0,
    heat: tuple[float, float, float] | None = None,
    seed: int = 0,
    timeline: bool = False,
    progress: Progress = silent,
) -> Simulation:
    """``batches`` batches of ``plan`` in virtual time.

    ``pacing``: "planned" (each transfer at its planned rate) or "shared" (servers' links max-min fairly); ``dispatch``:
    "barrier" or "dynamic" (late tiles are also given to idle devices); ``jitter``: relative spread of arithmetic and
    transfers; ``heat``: (seconds of work, share of the FLOP/s that is then left, seconds of rest that cool). ``workload`` and
    ``fleet`` are those that the plan was made for: raises AnswerIsNoError when they are others.
    """
    from cleave_plan.simulation.run import Dispatch, Pacing, simulate
    from cleave_plan.simulation.variation import Throttling, Variation

    require_same(plan, workload, fleet)
    throttling = None if heat is None else Throttling(after_s=heat[0], fraction=heat[1], cool_s=heat[2])
    return simulate(
        plan, workload, with_servers(fleet, plan.server_names), batches=batches, pacing=Pacing(pacing),
        dispatch=Dispatch(dispatch), seed=seed, timeline=timeline, progress=progress,
        variation=Variation(flop=jitter, downlink=jitter, uplink=jitter, throttling=throttling),
    )  # fmt: skip


def simulate_churn(
    plan: Plan,
    workload: Workload,
    fleet: Fleet,
    events: str | Path,
    *,
    batches: int | None = None,
    duration_s: float | None = None,
    detect_s: float = 1.0,
    gain: float = 0.05,
    seed: int = 0,
    chronicle: Chronicle | None = None,
    progress: Progress = silent,
) -> ChurnRun:
    """``batches`` of ``plan`` (or as many as begin before ``duration_s``) in virtual time while devices come and go.

    ``events``: mean times ("failures=30 min,stragglers=2 h"), or a trace file (:mod:`cleave_plan.fleet.churn`); ``detect_s``:
    until a device that failed is noticed; ``gain``: share by which the worst device's part must become faster before another
    takes it; ``chronicle``: where what happens is written down, for :func:`write_churn_trace`. Raises as :func:`simulate_plan`,
    UsageError or InputFileError for events that cannot be meant, and InfeasibleError when nobody is left who can take a tile.
    """
    from cleave_plan.fleet.churn import drawn, rates_of, read_trace
    from cleave_plan.simulation.churn import churn

    require_same(plan, workload, fleet)
    names = [device.name for device in fleet.devices]
    text = str(events)
    happening = drawn(rates_of(text), names, seed) if "=" in text or not text.strip() else iter(read_trace(Path(text), names))
    return churn(
        plan, workload, with_servers(fleet, plan.server_names), happening, batches=batches, duration_s=duration_s,
        detect_s=detect_s, gain=gain, chronicle=chronicle, progress=progress,
    )  # fmt: skip


def write_simulation_trace(done: Simulation, plan: Plan, path: str | Path) -> int:
    """Write a simulation that was made with ``timeline=True`` as a Perfetto trace; the number of slices.

    Raises UsageError without the perfetto package (extra ``trace``), OSError where the file cannot be written.
    """
    from cleave_plan.report.trace import simulation_spans, write_trace

    return write_trace(Path(path), simulation_spans(done, plan.device_names), process=f"{plan.model.name} over {plan.fleet.name}")


def write_churn_trace(chronicle: Chronicle, plan: Plan, path: str | Path) -> int:
    """Write what a ``chronicle`` of :func:`simulate_churn` has as a Perfetto trace; the number of slices and instants. Raises as
    :func:`write_simulation_trace` does."""
    from cleave_plan.report.trace import chronicle_spans, write_trace

    return write_trace(Path(path), chronicle_spans(chronicle), process=f"{plan.model.name} over {plan.fleet.name}")


def write_run_trace(done: RunResult, plan: Plan, path: str | Path) -> int:
    """Write a run as a Perfetto trace; the number of slices. Raises as :func:`write_simulation_trace` does."""
    from cleave_plan.execution.spans import run_spans
    from cleave_plan.report.trace import write_trace

    return write_trace(Path(path), run_spans(done), process=f"{plan.model.name} over {plan.fleet.name}")


def compare_strategies(
    workload: Workload,
    fleet: Fleet,
    *,
    devices: Sequence[int] | None = None,
    batch: int | None = None,
    progress: Progress = silent,
    **options: Any,
) -> tuple[Comparison, int]:
    """Other systems' strategies beside this planner's on the first ``devices`` of ``fleet`` (default: powers of two, and all),
    and the samples of a batch that were assumed.

    ``batch``: samples that pipelines can cut a batch into (default: the first size of the first input). ``options`` are those
    of :func:`make_plan`. Raises UsageError for a number of devices that the fleet does not have, and for the work of a gradient
    file: the others' strategies follow the forward pass.
    """
    from cleave_plan.api.plans import make_plan
    from cleave_plan.planning.subfleet import some_devices
    from cleave_plan.simulation.baselines.setting import powers_of_two
    from cleave_plan.simulation.compare import compare
    from cleave_plan.workload.gemm import Phase

    forward = {gemm.node for gemm in workload.gemms if gemm.phase is Phase.FORWARD}
    if workload.recompute is not None or any(gemm.node not in forward for gemm in workload.gemms):
        raise UsageError(
            "the gradients of this step are not derived from its forward products", where=f"model {workload.name}",
            expected="a forward model", remedy="compare that model with --training, not the gradient file",
        )  # fmt: skip
    known = len(fleet.devices)
    counts = sorted(set(devices)) if devices is not None else powers_of_two(known)
    if not counts or counts[0] < 1 or counts[-1] > known:
        raise UsageError(f"{counts} devices asked for", where=f"fleet {fleet.name}", expected=f"between 1 and {known}")
    shape = workload.inputs[0].shape if workload.inputs else ()
    samples = batch or (shape[0] if shape else 1)
    found = compare(
        workload, lambda count: some_devices(fleet, range(count)), counts, samples,
        lambda work, some: make_plan(work, some, **options), progress=progress,
    )  # fmt: skip
    return found, samples
