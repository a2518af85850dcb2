"""``cleave-plan check``: a second opinion on a plan, by code that shares nothing with the planner."""

from __future__ import annotations

from pathlib import Path

import click

from cleave_plan.cli.options import input_file, json_option
from cleave_plan.cli.output import emit_json
from cleave_plan.errors import AnswerIsNoError

EPILOG = """\b
Examples:
  cleave-plan check plan.json --model model.onnx --fleet fleet.yaml
  cleave-plan check plan.json --model model.onnx --fleet fleet.yaml --json
  cleave-plan check plan.json
"""


@click.command(epilog=EPILOG, short_help="Prove a plan a second time: cover, memory, hashes, objective.")
@click.argument("plan_file", metavar="PLAN", type=input_file)
@click.option("--model", "model_file", metavar="FILE", type=input_file, help="The model that the plan was made for.")
@click.option("--fleet", "fleet_file", metavar="FILE", type=input_file, help="The fleet that the plan was made for.")
@json_option
def check(plan_file: Path, model_file: Path | None, fleet_file: Path | None, as_json: bool) -> None:
    """Check PLAN: exact cover of every output element, memory, hashes, and the objective recomputed from the tiles.

    Ends with exit code 0 only if everything that was checked holds. Without --model or --fleet less can be checked, and
    the answer says what was not.
    """
    from cleave_plan.api import load_fleet, load_model_of, load_plan, verify
    from cleave_plan.plan.consistency import not_checked
    from cleave_plan.report.tables import Screen
    from cleave_plan.report.verdict import verdict_document, verdict_text

    plan = load_plan(plan_file)
    workload = None if model_file is None else load_model_of(plan, model_file)
    fleet = None if fleet_file is None else load_fleet(fleet_file)
    unchecked = not_checked(workload, fleet)
    verdict = verify(plan, workload, fleet)
    if as_json:
        emit_json(verdict_document(verdict, unchecked))
    else:
        click.echo(verdict_text(plan, verdict, unchecked, Screen.of_stdout()))
    if not verdict.ok:
        first = verdict.findings[0]
        more = f" (and {len(verdict.findings) - 1} more findings)" if len(verdict.findings) > 1 else ""
        raise AnswerIsNoError(f"{first.sentence}{more}", where=f"{plan_file}: {first.where}")
