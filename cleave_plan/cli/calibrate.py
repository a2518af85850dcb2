"""``cleave-plan profile calibrate``: correct profiles by what runs on their devices took."""

from __future__ import annotations

from pathlib import Path

import click

from cleave_plan.cli.options import device_choice, input_file, json_option
from cleave_plan.cli.output import emit_json
from cleave_plan.errors import UsageError

EPILOG = """\b
Examples:
  cleave-plan run plan.json --model model.onnx --engine ray --fleet fleet.yaml --record run.json
  cleave-plan profile calibrate run.json --device laptop=my-laptop@my-dsl --dry-run
  cleave-plan profile calibrate run1.json run2.json --device a=my-laptop@my-dsl --device b=my-phone@my-dsl --json
"""


@click.command(epilog=EPILOG, short_help="Correct profiles by records of runs on their devices.")
@click.argument("runs", metavar="RUN.json...", type=input_file, nargs=-1, required=True)
@click.option(
    "--device", "devices", metavar="NAME=MACHINE@LINK", multiple=True, required=True, type=device_choice,
    help="A device of the runs: the profiles of its machine and link. Repeatable; devices may share profiles.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only say what would change.")
@click.option("--db", "database", metavar="FILE", type=input_file, help="Profile database. Default: one per user.")
@json_option
def calibrate(
    runs: tuple[Path, ...], devices: tuple[tuple[str, str, str | None], ...], dry_run: bool, database: Path | None, as_json: bool
) -> None:
    """Compare what RUN.json... (of `run --record`) took with what was predicted, and correct the figures behind it.

    A figure becomes the median of what the levels imply in which it counts most, with their quartiles as its spread and the
    runs as its source. Figures that fewer than three levels speak of stay as they are.
    """
    from cleave_plan.api import calibrate_profiles, open_profiles
    from cleave_plan.report.calibration import calibration_document, calibration_text
    from cleave_plan.report.tables import Screen

    owners: dict[str, tuple[str, str]] = {}
    for name, machine, link in devices:
        if link is None:
            raise UsageError(f"device {name!r} has no link", where="--device", expected="NAME=MACHINE@LINK")
        owners[name] = (machine, link)
    with open_profiles(database) as profiles:
        found = calibrate_profiles(runs, owners, profiles, store=not dry_run)
    if as_json:
        emit_json(calibration_document(found, stored=not dry_run))
    else:
        click.echo(calibration_text(found, Screen.of_stdout(), stored=not dry_run))
