"""``cleave-plan simulate``: batches of a plan in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cleave_plan.cli.options import Share, input_file, json_option, seconds, throttling
from cleave_plan.cli.output import emit_json
from cleave_plan.cli.tracing import chronicled, trace_output
from cleave_plan.errors import UsageError

EPILOG = """\b
Examples:
  cleave-plan simulate plan.json --model model.onnx --fleet fleet.yaml
  cleave-plan simulate plan.json --model model.onnx --fleet fleet.yaml --pacing shared
  cleave-plan simulate plan.json --model model.onnx --fleet fleet.yaml --batches 20 --jitter 0.2 --dispatch dynamic --seed 1
  cleave-plan simulate plan.json --model model.onnx --fleet fleet.yaml --throttle "5 min,0.5,1 min" --batches 10 --json
  cleave-plan simulate plan.json --model model.onnx --fleet fleet.yaml --pacing shared --trace batch.pftrace
  cleave-plan simulate plan.json --model model.onnx --fleet fleet.yaml --churn "failures=30 min,stragglers=2 h" --duration "24 h"
  cleave-plan simulate plan.json --model model.onnx --fleet fleet.yaml --churn trace.csv --batches 10 --detect 0.2
  cleave-plan simulate plan.json --model model.onnx --fleet fleet.yaml --churn trace.csv --batches 10 --trace churn.pftrace
"""

PACINGS = ("planned", "shared")
DISPATCHES = ("barrier", "dynamic")


@click.command(epilog=EPILOG, short_help="Play batches of a plan in virtual time: shared links, jitter, heat.")
@click.argument("plan_file", metavar="PLAN", type=input_file)
@click.option(
    "--model", "model_file", metavar="FILE", required=True, type=input_file, help="The model that the plan was made for."
)
@click.option(
    "--fleet", "fleet_file", metavar="FILE", required=True, type=input_file, help="The fleet that the plan was made for."
)
@click.option("--batches", metavar="N", default=1, show_default=True, type=click.IntRange(min=1), help="Batches to play.")
@click.option(
    "--pacing", type=click.Choice(PACINGS), default="planned", show_default=True,
    help="How transfers share servers' links: each at its planned rate, or max-min fairly at every moment.",
)  # fmt: skip
@click.option(
    "--dispatch", type=click.Choice(DISPATCHES), default="barrier", show_default=True,
    help="Whether a late tile is waited for, or also given to an idle device.",
)  # fmt: skip
@click.option(
    "--jitter", metavar="S", default=0.0, show_default=True, type=Share(0, 3),
    help="Relative spread of every piece of arithmetic and every transfer, 0.2 for 20 %.",
)  # fmt: skip
@click.option(
    "--throttle", "heat", metavar="AFTER,SHARE,COOL", type=throttling,
    help='A device that worked for AFTER in a row falls to SHARE of its FLOP/s until it rested for COOL ("5 min,0.5,1 min").',
)  # fmt: skip
@click.option(
    "--churn", metavar="RATES|TRACE.csv",
    help="Devices come and go: mean times (failures=, leaves=, stragglers= of each device, joins= between two, or "
    "never; slowdown=), or a trace (lines of time,event,device,detail).",
)  # fmt: skip
@click.option(
    "--duration", "duration_s", metavar="TIME", type=seconds, help="With --churn: play for so long instead of --batches."
)
@click.option(
    "--detect", "detect_s", metavar="TIME", type=seconds, default="1 s", show_default=True,
    help="With --churn: time until a device that failed is noticed.",
)  # fmt: skip
@click.option(
    "--gain", metavar="SHARE", type=Share(0, 1), default=0.05, show_default=True,
    help="With --churn: share by which the slowest of the devices' parts must become faster before another device takes it.",
)  # fmt: skip
@click.option("--seed", metavar="S", default=0, show_default=True, type=click.IntRange(min=0), help="Seed of all that is drawn.")
@click.option(
    "--trace",
    "trace_file",
    metavar="T.pftrace",
    type=trace_output,
    help="Write a Perfetto trace of the simulation (with --churn: its first 100,000 levels, changes and recoveries).",
)
@json_option
def simulate(
    plan_file: Path,
    model_file: Path,
    fleet_file: Path,
    batches: int,
    pacing: str,
    dispatch: str,
    jitter: float,
    heat: tuple[float, float, float] | None,
    churn: str | None,
    duration_s: float | None,
    detect_s: float,
    gain: float,
    seed: int,
    trace_file: Path | None,
    as_json: bool,
) -> None:
    """Simulate batches of PLAN in virtual time, and compare them with what the plan predicts.

    With planned pacing and nothing that varies the two are equal; shared links, jitter, heat and devices that come and go show
    what the prediction leaves out.
    """
    if churn is not None:
        if pacing != "planned" or dispatch != "barrier" or jitter or heat:
            raise UsageError("--churn goes with planned pacing and barriers only", remedy="leave the other options out")
        settings = {
            "churn": churn,
            "batches": batches,
            "duration_s": duration_s,
            "detect_s": detect_s,
            "gain": gain,
            "seed": seed,
        }
        _simulate_churn(plan_file, model_file, fleet_file, settings, trace_file, as_json=as_json)
        return
    if duration_s is not None:
        raise UsageError("--duration belongs to --churn", remedy="use --batches")
    from cleave_plan.api import load_fleet, load_model_of, load_plan, simulate_plan, write_simulation_trace
    from cleave_plan.report.bars import progress_bar
    from cleave_plan.report.simulation import simulation_document, simulation_text
    from cleave_plan.report.tables import Screen

    plan = load_plan(plan_file)
    workload, fleet = load_model_of(plan, model_file), load_fleet(fleet_file)
    settings = {"batches": batches, "pacing": pacing, "dispatch": dispatch, "jitter": jitter, "heat": heat, "seed": seed}
    with progress_bar("simulating") as progress:
        done = simulate_plan(
            plan, workload, fleet, batches=batches, pacing=pacing, dispatch=dispatch, jitter=jitter, heat=heat, seed=seed,
            timeline=trace_file is not None, progress=progress,
        )  # fmt: skip
    if trace_file is not None:
        write_simulation_trace(done, plan, trace_file)
    if as_json:
        emit_json(simulation_document(done, plan, settings))
    else:
        click.echo(simulation_text(done, plan, settings, Screen.of_stdout()))


def _simulate_churn(
    plan_file: Path, model_file: Path, fleet_file: Path, settings: dict[str, Any], trace_file: Path | None, *, as_json: bool
) -> None:
    """Play batches while devices come and go, and tell."""
    from cleave_plan.api import load_fleet, load_model_of, load_plan, simulate_churn, write_churn_trace
    from cleave_plan.report.bars import progress_bar
    from cleave_plan.report.churn import churn_document, churn_text
    from cleave_plan.report.tables import Screen

    plan = load_plan(plan_file)
    workload, fleet = load_model_of(plan, model_file), load_fleet(fleet_file)
    how = {name: value for name, value in settings.items() if name != "churn"}
    if how["duration_s"] is not None:
        how["batches"] = None
    writing = chronicled(trace_file, lambda kept, path: write_churn_trace(kept, plan, path))
    with writing as chronicle, progress_bar("simulating") as progress:
        done = simulate_churn(plan, workload, fleet, settings["churn"], chronicle=chronicle, progress=progress, **how)
    if as_json:
        emit_json(churn_document(done, plan, settings))
    else:
        click.echo(churn_text(done, plan, settings, Screen.of_stdout()))
