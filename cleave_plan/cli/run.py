"""``cleave-plan run``: execute a plan on this machine, and compare the result with the unsplit model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cleave_plan.cli.options import (
    Positive,
    engine_option,
    input_file,
    integrity_option,
    json_option,
    output_file,
    runtime_option,
    workers_option,
)
from cleave_plan.cli.output import emit_json, write_json
from cleave_plan.cli.tracing import trace_output
from cleave_plan.errors import AnswerIsNoError, UsageError

EPILOG = """\b
Examples:
  cleave-plan run plan.json --model model.onnx --verify
  cleave-plan run plan.json --model model.onnx --inputs x.npz --outputs y.npz
  cleave-plan run plan.json --model model.onnx --reproducible --integrity on --outputs y.npz
  cleave-plan run plan.json --model resnet.onnx --convolution onnxruntime --verify
  cleave-plan run plan.json --model model.onnx --emulate --fleet fleet.yaml
  cleave-plan run plan.json --model model.onnx --engine ray --fleet fleet.yaml --record run.json
  cleave-plan run plan.json --model model.onnx --record run.json --trace run.pftrace
  cleave-plan run plan.json --model model.onnx --seed 7 --workers 2 --runtime reference --verify --json
"""


@click.command(epilog=EPILOG, short_help="Run a plan on this machine, and compare it with the unsplit model.")
@click.argument("plan_file", metavar="PLAN", type=input_file)
@click.option(
    "--model", "model_file", metavar="FILE", required=True, type=input_file, help="The model that the plan was made for."
)
@click.option(
    "--inputs", "inputs_file", metavar="X.npz", type=input_file, help="Arrays by input name. Default: drawn from --seed."
)
@click.option("--outputs", "outputs_file", metavar="Y.npz", type=output_file, help="Where to write the outputs.")
@engine_option
@workers_option
@click.option(
    "--seed", metavar="S", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of inputs that are drawn."
)
@runtime_option
@click.option(
    "--convolution", type=click.Choice(["numpy", "onnxruntime"]), default="numpy", show_default=True,
    help="What computes convolutions on local workers: onnxruntime is faster in float32.",
)  # fmt: skip
@click.option(
    "--reproducible", is_flag=True, help="Compute in fixed blocks: the same bits under every plan, whatever devices do. Slower."
)
@integrity_option
@click.option("--emulate", is_flag=True, help="Play each device at its pace in --fleet, and compare with what was predicted.")
@click.option(
    "--fleet", "fleet_file", metavar="FILE", type=input_file,
    help="The fleet that the plan was made for: with --emulate it is played, with --engine ray compared with.",
)  # fmt: skip
@click.option(
    "--scale",
    metavar="S",
    type=Positive(),
    help="With --emulate: seconds here for one of the fleet's. Default: found by a rehearsal.",
)
@click.option("--record", metavar="RUN.json", type=output_file, help="Where to write what --json prints.")
@click.option("--trace", "trace_file", metavar="T.pftrace", type=trace_output, help="Write the run for ui.perfetto.dev.")
@click.option("--verify", is_flag=True, help="Compare with the unsplit model; exit code 1 beyond tolerance.")
@json_option
def run(
    plan_file: Path,
    model_file: Path,
    inputs_file: Path | None,
    outputs_file: Path | None,
    engine: str,
    workers: int | None,
    seed: int,
    runtime: str,
    convolution: str,
    reproducible: bool,
    integrity: bool | None,
    emulate: bool,
    fleet_file: Path | None,
    scale: float | None,
    record: Path | None,
    trace_file: Path | None,
    verify: bool,
    as_json: bool,
) -> None:
    """Run one batch as PLAN says, each tile on the process that plays its device, everything else on the server.

    Times are those of this machine, not of the fleet, unless with --emulate: then results wait until the fleet's devices
    would have sent them over their links. With --engine ray and the fleet a second batch, when devices are warm, stands beside
    what was predicted: `profile calibrate` learns from its record. With --verify the outputs are compared with those of the
    unsplit model on the same inputs.
    """
    from cleave_plan.api import (
        compare_run,
        draw_inputs,
        emulate_run,
        execute,
        load_fleet,
        load_inputs,
        load_plan,
        save_outputs,
        verify_run,
        write_run_trace,
    )
    from cleave_plan.report.bars import progress_bar
    from cleave_plan.report.run import run_document, run_text, verdict
    from cleave_plan.report.tables import Screen

    fits = fleet_file is not None if emulate else scale is None and (fleet_file is None or engine == "ray")
    if not fits:
        raise UsageError(
            "--emulate goes with the fleet that it plays",
            expected="--emulate --fleet FLEET, perhaps --scale S; or --fleet FLEET with --engine ray",
        )
    plan = load_plan(plan_file)
    fleet = None if fleet_file is None else load_fleet(fleet_file)
    how: dict[str, Any] = {"engine": engine, "workers": workers, "runtime": runtime, "reproducible": reproducible}
    how |= {"convolution": convolution, "integrity": integrity}
    inputs = draw_inputs(plan, model_file, seed=seed) if inputs_file is None else load_inputs(inputs_file)
    with progress_bar("running") as progress:
        if fleet is None:
            result, comparison = execute(plan, model_file, inputs, **how, progress=progress), None
        elif emulate:
            emulated = emulate_run(plan, model_file, fleet, inputs, **how, scale=scale, progress=progress)
            result, comparison = emulated.result, emulated.comparison
        else:
            result, comparison = compare_run(plan, model_file, fleet, inputs, **how, progress=progress)
    if outputs_file is not None:
        save_outputs(result.outputs, outputs_file)
    verification = verify_run(plan, model_file, inputs, result.outputs) if verify else None
    origin = f"drawn with seed {seed}" if inputs_file is None else str(inputs_file)
    written = None if outputs_file is None else str(outputs_file)
    document = run_document(result, verification, inputs=origin, outputs=written, comparison=comparison)
    if record is not None:
        write_json(document, record)
    if trace_file is not None:
        write_run_trace(result, plan, trace_file)
    if as_json:
        emit_json(document)
    else:
        screen = Screen.of_stdout()
        about: dict[str, Any] = {"model": plan.model.name, "inputs": origin, "outputs": written, "comparison": comparison}
        click.echo(run_text(result, verification, screen, **about))
    if verification is not None and not verification.ok:
        raise AnswerIsNoError(verdict(verification).rstrip("."), where=str(plan_file))
