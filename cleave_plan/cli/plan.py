"""``cleave-plan plan``: who computes what, how long it takes, and how near the best that is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cleave_plan.cli.options import (
    Share,
    gathered,
    input_file,
    json_option,
    output_file,
    recompute_option,
    seconds,
    servers_option,
    shape_options,
    sweep_axis,
    training_option,
)
from cleave_plan.cli.output import emit_json
from cleave_plan.errors import UsageError

if TYPE_CHECKING:
    from cleave_plan.fleet.device import Fleet

EPILOG = """\b
Examples:
  cleave-plan plan model.onnx --fleet fleet.yaml -o plan.json
  cleave-plan plan gpt.onnx --dim batch=8 --dim seq=128 --fleet fleet.yaml -o plan.json
  cleave-plan plan gpt.onnx --training --dim batch=8 --dim seq=128 --fleet fleet.yaml -o plan.json
  cleave-plan plan gpt.onnx --training --recompute --dim batch=8 --dim seq=128 --fleet fleet.yaml -o plan.json
  cleave-plan plan resnet.onnx --shape image=8x3x224x224 --fleet fleet.yaml -o plan.json
  cleave-plan plan model.onnx --fleet fleet.yaml --servers 2 --gap 0.01 --time-limit 30 -o plan.json
  cleave-plan plan model.onnx --fleet fleet.yaml --servers main,spare --without server -o plan.json --json
  cleave-plan plan model.onnx --fleet fleet.yaml --constraints constraints.yaml -o plan.json
  cleave-plan plan model.onnx --fleet fleet.yaml --percentile 90 -o plan.json
  cleave-plan plan model.onnx --dim batch=8 --fleet fleet.yaml --sweep devices=2,4,8,16
  cleave-plan plan model.onnx --fleet fleet.yaml --sweep batch=1,8,64 -o knee.json
"""

SWITCHES = ("chains", "inner", "level-joint", "reuse", "server", "shared")


@click.command(epilog=EPILOG, short_help="Plan one batch of a model over a fleet, with a bound and a gap.")
@click.argument("model", type=input_file)
@click.option(
    "--fleet", "fleet_file", metavar="FILE", required=True, type=input_file, help="Fleet file (YAML): devices and servers."
)
@shape_options
@training_option
@recompute_option
@servers_option
@click.option(
    "--without",
    multiple=True,
    type=click.Choice(SWITCHES),
    help="Switch a choice off. Repeatable. server: no GEMM stays on a server; shared: GEMMs that share an operand are not cut "
    "as one; chains: nor is attention; inner: K is not cut; level-joint: GEMMs of a level do not share the fleet by groups; "
    "reuse: devices keep nothing.",
)
@click.option(
    "--constraints", "constraints_file", metavar="FILE", type=input_file,
    help="Demands on the plan (YAML): modes or servers of GEMMs; devices to leave out, their memory, work and time.",
)  # fmt: skip
@click.option(
    "--percentile",
    metavar="P",
    type=click.FloatRange(50, 100, max_open=True),
    help="Take figures whose spread was measured as good as they are in P of 100 samples, or better. Default: as the fleet "
    "gives them (medians).",
)
@click.option(
    "--gap",
    metavar="G",
    type=Share(0, 1, max_open=True),
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
@click.option(
    "--sweep",
    metavar="AXIS=INT,...",
    type=sweep_axis,
    help="Plan for several numbers of devices or servers (the first of the fleet), or sizes of a symbolic dimension, and "
    "print the curve and its knee.",
)
@click.option(
    "-o", "--output", metavar="FILE", type=output_file, help="Where to write the plan (JSON); of a sweep, the plan at the knee."
)
@json_option
def plan(
    model: Path,
    fleet_file: Path,
    dims: tuple[tuple[str, int], ...],
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    trips: tuple[tuple[str, int], ...],
    training: bool,
    recompute: bool,
    servers: int | list[str] | None,
    without: tuple[str, ...],
    constraints_file: Path | None,
    percentile: float | None,
    gap: float,
    time_limit: float,
    sweep: tuple[str, tuple[int, ...]] | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Plan one batch of MODEL over the devices and servers of a fleet, and write the plan.

    The summary says how long a batch takes, the bound that no plan can beat, what binds, how many of the devices are
    worth using, and what one device or the server alone would take. Weights are not needed and not read.
    """  # fmt: skip
    from cleave_plan.api import load_constraints, load_fleet, load_onnx, make_plan, save_plan, with_servers
    from cleave_plan.plan.planfile import plan_document
    from cleave_plan.report.bars import progress_bar
    from cleave_plan.report.plan import plan_text
    from cleave_plan.report.tables import Screen

    if sweep is None and output is None:
        raise UsageError("no place for the plan", where="--output", expected="-o FILE (only with --sweep it may be left out)")
    fleet = load_fleet(fleet_file)
    if servers is not None:
        fleet = with_servers(fleet, servers)
    sizes: dict[str, Any] = {
        "dims": gathered(dims, "--dim"), "shapes": gathered(shapes, "--shape"), "trips": gathered(trips, "--trip"),
        "training": training, "recompute": recompute,
    }  # fmt: skip
    demands = load_constraints(constraints_file) if constraints_file is not None else ()
    options: dict[str, Any] = {
        "without": without, "constraints": demands, "percentile": percentile, "gap": gap, "time_limit_s": time_limit,
    }  # fmt: skip
    if sweep is not None:
        _sweep(model, fleet, sweep, output, as_json, sizes | options)
        return
    workload = load_onnx(model, **sizes)
    with progress_bar("planning") as progress:
        made = make_plan(workload, fleet, **options, progress=progress)
    if output is not None:
        save_plan(made, output)
    if as_json:
        emit_json(plan_document(made))
    else:
        click.echo(plan_text(made, Screen.of_stdout()))
        click.echo(f"\nplan written to {output}")


def _sweep(
    model: Path, fleet: Fleet, axis: tuple[str, tuple[int, ...]], output: Path | None, as_json: bool, options: dict[str, Any]
) -> None:
    """Print the curve over ``axis``, and write the plan at its knee if a place is given."""
    from cleave_plan.api import save_plan, sweep_plans
    from cleave_plan.report.bars import progress_bar
    from cleave_plan.report.sweep import sweep_document, sweep_text
    from cleave_plan.report.tables import Screen

    over, values = axis
    if over in options["dims"]:
        raise UsageError(f"{over!r} is both swept and bound", where="--sweep", remedy=f"leave out --dim {over}=...")
    with progress_bar("planning") as progress:
        found = sweep_plans(model, fleet, over, values, **options, progress=progress)
    if output is not None and found.knee_plan is not None:
        save_plan(found.knee_plan, output)
    if as_json:
        emit_json(sweep_document(found))
        return
    click.echo(sweep_text(found, Screen.of_stdout(), model=model.stem, fleet=fleet.name))
    if output is not None and found.knee_plan is not None:
        click.echo(f"\nplan of the knee written to {output}")
