"""``cleave-plan replan``: a plan after devices were lost or have joined."""

from __future__ import annotations

from pathlib import Path

import click

from cleave_plan.cli.options import Share, device_names, input_file, json_option, output_file
from cleave_plan.cli.output import emit_json
from cleave_plan.errors import UsageError

EPILOG = """\b
Examples:
  cleave-plan replan plan.json --model model.onnx --fleet fleet.yaml --lost d3,d7 -o plan2.json
  cleave-plan replan plan.json --model model.onnx --fleet fleet.yaml --joined more.yaml --grown fleet2.yaml -o plan2.json
  cleave-plan replan plan.json --model model.onnx --fleet fleet.yaml --lost d3 --gain 0.1 -o plan2.json --json
"""


@click.command(epilog=EPILOG, short_help="Change a plan for devices that were lost or have joined: only what must move moves.")
@click.argument("plan_file", metavar="PLAN", type=input_file)
@click.option(
    "--model", "model_file", metavar="FILE", required=True, type=input_file, help="The model that the plan was made for."
)
@click.option(
    "--fleet", "fleet_file", metavar="FILE", required=True, type=input_file, help="The fleet that the plan was made for."
)
@click.option("--lost", metavar="NAME,NAME,...", type=device_names, help="Devices that are gone.")
@click.option(
    "--joined", "joined_file", metavar="FILE", type=input_file,
    help="A fleet file whose devices join (its servers do not); one that was lost comes back under its name. Needs --grown.",
)  # fmt: skip
@click.option(
    "--grown", "grown_file", metavar="FLEET.yaml", type=output_file,
    help="Where to write the fleet with the joined devices, which the new plan is for.",
)  # fmt: skip
@click.option(
    "--gain", metavar="SHARE", type=Share(0, 1),
    help="Let other tiles move too, if a new plan shortens the batch by this share. Default: 0.05 with --joined, else never.",
)  # fmt: skip
@click.option("-o", "--output", metavar="PLAN2.json", required=True, type=output_file, help="File to write the new plan to.")
@json_option
def replan(
    plan_file: Path,
    model_file: Path,
    fleet_file: Path,
    lost: tuple[str, ...] | None,
    joined_file: Path | None,
    grown_file: Path | None,
    gain: float | None,
    output: Path,
    as_json: bool,
) -> None:
    """Write PLAN as it is to be without the devices that were lost and with those that joined.

    The tiles of lost devices are cut anew over the others; all other tiles stay where they are. A plan that was re-planned
    remembers which devices are lost.
    """
    from cleave_plan.api import load_fleet, load_model_of, load_plan, save_fleet, save_plan
    from cleave_plan.api import replan as changed
    from cleave_plan.planning.replan import GAIN
    from cleave_plan.report.bars import progress_bar
    from cleave_plan.report.replan import replan_document, replan_text
    from cleave_plan.report.tables import Screen

    if (joined_file is None) != (grown_file is None):
        raise UsageError("--joined and --grown belong together", remedy="say where the fleet with the joined devices is to go")
    plan = load_plan(plan_file)
    workload, fleet = load_model_of(plan, model_file), load_fleet(fleet_file)
    joined = () if joined_file is None else load_fleet(joined_file).devices
    if not lost and not joined:
        raise UsageError("nothing has changed", expected="--lost, --joined or both")
    if gain is None and joined:
        gain = GAIN
    with progress_bar("re-planning") as progress:
        found = changed(plan, workload, fleet, lost=lost or (), joined=joined, gain=gain, progress=progress)
    if grown_file is not None:
        save_fleet(found.fleet, grown_file)
    save_plan(found.plan, output)
    if as_json:
        emit_json(replan_document(found, plan))
    else:
        click.echo(replan_text(found, plan, Screen.of_stdout(), output=str(output)))
