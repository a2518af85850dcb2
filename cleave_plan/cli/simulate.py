"""``cleave-plan simulate``: batches of a plan in virtual time."""

from __future__ import annotations

from pathlib import Path

import click

from cleave_plan.cli.options import Share, input_file, json_option, output_file, throttling
from cleave_plan.cli.output import emit_json

EPILOG = """\b
Examples:
  cleave-plan simulate plan.json --model model.onnx --fleet fleet.yaml
  cleave-plan simulate plan.json --model model.onnx --fleet fleet.yaml --pacing shared
  cleave-plan simulate plan.json --model model.onnx --fleet fleet.yaml --batches 20 --jitter 0.2 --dispatch dynamic --seed 1
  cleave-plan simulate plan.json --model model.onnx --fleet fleet.yaml --throttle "5 min,0.5,1 min" --batches 10 --json
  cleave-plan simulate plan.json --model model.onnx --fleet fleet.yaml --pacing shared --trace batch.pftrace
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
@click.option("--seed", metavar="S", default=0, show_default=True, type=click.IntRange(min=0), help="Seed of all that is drawn.")
@click.option(
    "--trace", "trace_file", metavar="T.pftrace", type=output_file, help="Write a Perfetto trace of the whole simulation."
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
    seed: int,
    trace_file: Path | None,
    as_json: bool,
) -> None:
    """Simulate batches of PLAN in virtual time, and compare them with what the plan predicts.

    With planned pacing and nothing that varies the two are equal; shared links, jitter and heat show what the prediction
    leaves out.
    """
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
