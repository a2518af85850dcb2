"""``cleave-plan plan``: who computes what, how long it takes, and how near the best that is."""

from __future__ import annotations

from pathlib import Path

import click

from cleave_plan.cli.options import gathered, input_file, json_option, output_file, seconds, shape_options, training_option
from cleave_plan.cli.output import emit_json

EPILOG = """\b
Examples:
  cleave-plan plan model.onnx --fleet fleet.yaml -o plan.json
  cleave-plan plan gpt.onnx --dim batch=8 --dim seq=128 --fleet fleet.yaml -o plan.json
  cleave-plan plan gpt.onnx --training --dim batch=8 --dim seq=128 --fleet fleet.yaml -o plan.json
  cleave-plan plan resnet.onnx --shape image=8x3x224x224 --fleet fleet.yaml -o plan.json
  cleave-plan plan model.onnx --fleet fleet.yaml --servers 2 --gap 0.01 --time-limit 30 -o plan.json
  cleave-plan plan model.onnx --fleet fleet.yaml --servers main,spare --without server -o plan.json --json
"""

SWITCHES = ("server",)


@click.command(epilog=EPILOG, short_help="Plan one batch of a model over a fleet, with a bound and a gap.")
@click.argument("model", type=input_file)
@click.option(
    "--fleet", "fleet_file", metavar="FILE", required=True, type=input_file, help="Fleet file (YAML): devices and servers."
)
@shape_options
@training_option
@click.option("--servers", metavar="N|NAMES", help="Use the first N servers of the fleet, or the named ones (a,b). Default: all.")
@click.option(
    "--without", multiple=True, type=click.Choice(SWITCHES), help="Switch a choice off; server: no GEMM stays on a server."
)
@click.option(
    "--gap",
    metavar="G",
    type=click.FloatRange(0, 1, max_open=True),
    default=1e-3,
    show_default=True,
    help="Relative gap at which the integer program may stop.",
)
@click.option(
    "--time-limit",
    metavar="S",
    type=seconds,
    default="60 s",
    show_default=True,
    help="Time after which the integer program returns the best it has; a plain number is seconds.",
)
@click.option("-o", "--output", metavar="FILE", required=True, type=output_file, help="Where to write the plan (JSON).")
@json_option
def plan(
    model: Path,
    fleet_file: Path,
    dims: tuple[tuple[str, int], ...],
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    training: bool,
    servers: str | None,
    without: tuple[str, ...],
    gap: float,
    time_limit: float,
    output: Path,
    as_json: bool,
) -> None:
    """Plan one batch of MODEL over the devices and servers of a fleet, and write the plan.

    The summary says how long a batch takes, the bound that no plan can beat, what binds, how many of the devices are
    worth using, and what one device or the server alone would take. Weights are not needed and not read.
    """  # fmt: skip
    from cleave_plan.api import load_fleet, load_onnx, make_plan, save_plan, with_servers
    from cleave_plan.plan.planfile import plan_document
    from cleave_plan.report.bars import progress_bar
    from cleave_plan.report.plan import plan_text
    from cleave_plan.report.tables import Screen

    fleet = load_fleet(fleet_file)
    if servers is not None:
        fleet = with_servers(fleet, _server_choice(servers))
    workload = load_onnx(model, dims=gathered(dims, "--dim"), shapes=gathered(shapes, "--shape"), training=training)
    with progress_bar("planning") as progress:
        made = make_plan(workload, fleet, without=without, gap=gap, time_limit_s=time_limit, progress=progress)
    save_plan(made, output)
    if as_json:
        emit_json(plan_document(made))
    else:
        click.echo(plan_text(made, Screen.of_stdout()))
        click.echo(f"\nplan written to {output}")


def _server_choice(text: str) -> int | list[str]:
    """``2`` is a number of servers, anything else a list of names."""
    return int(text) if text.isascii() and text.isdigit() else [name.strip() for name in text.split(",")]
