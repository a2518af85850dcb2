"""``cleave-plan diff``: what changed between two plans."""

from __future__ import annotations

from pathlib import Path

import click

from cleave_plan.cli.options import input_file, json_option
from cleave_plan.cli.output import emit_json

EPILOG = """\b
Examples:
  cleave-plan diff old.json new.json
  cleave-plan diff old.json new.json --json
"""


@click.command(epilog=EPILOG, short_help="Say what changed between two plans.")
@click.argument("before", metavar="PLAN", type=input_file)
@click.argument("after", metavar="PLAN", type=input_file)
@json_option
def diff(before: Path, after: Path, as_json: bool) -> None:
    """Say what changed from one PLAN to the other: model, fleet, settings, predicted times, and who computes what.

    GEMMs are compared by name; the work that moves is the share of their multiply-adds that changes hands.
    """
    from cleave_plan.api import diff_plans, load_plan
    from cleave_plan.report.difference import difference_document, difference_text
    from cleave_plan.report.tables import Screen

    change = diff_plans(load_plan(before), load_plan(after))
    if as_json:
        emit_json(difference_document(change))
    else:
        click.echo(difference_text(change, Screen.of_stdout(), before=str(before), after=str(after)))
