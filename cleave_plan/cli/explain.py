"""``cleave-plan explain``: why a plan is as it is, and what would make it faster."""

from __future__ import annotations

from pathlib import Path

import click

from cleave_plan.cli.options import input_file, json_option
from cleave_plan.cli.output import emit_json

EPILOG = """\b
Examples:
  cleave-plan explain plan.json --model model.onnx --fleet fleet.yaml
  cleave-plan explain plan.json "layers.0.*" --model model.onnx --fleet fleet.yaml
  cleave-plan explain plan.json fc1 --device phone --model model.onnx --fleet fleet.yaml --json
"""


@click.command(epilog=EPILOG, short_help="Say why each GEMM is cut as it is, what the next best costs, what devices are worth.")
@click.argument("plan_file", metavar="PLAN", type=input_file)
@click.argument("gemm", metavar="[GEMM]", default="*")
@click.option(
    "--model", "model_file", metavar="FILE", required=True, type=input_file, help="The model that the plan was made for."
)
@click.option(
    "--fleet", "fleet_file", metavar="FILE", required=True, type=input_file, help="The fleet that the plan was made for."
)
@click.option(
    "--device", "devices", metavar="NAME", multiple=True, help="Device to tell of. Repeatable. Default: what binds most."
)
@json_option
def explain(plan_file: Path, gemm: str, model_file: Path, fleet_file: Path, devices: tuple[str, ...], as_json: bool) -> None:
    """Explain PLAN: for each decision (or for GEMM, a name or a pattern) its mode, what the other modes, fewer devices or the
    server alone would take, and what binds; for devices what binds them, and what one twice as good would bring.

    Times of GEMMs are theirs alone, by ideal cost. What a device is worth is told by differences of the lower bound, and of
    this plan with its tiles as they are.
    """
    from cleave_plan.api import explain_plan, load_fleet, load_model_of, load_plan
    from cleave_plan.report.bars import progress_bar
    from cleave_plan.report.explanation import explanation_document, explanation_text
    from cleave_plan.report.tables import Screen

    plan = load_plan(plan_file)
    workload, fleet = load_model_of(plan, model_file), load_fleet(fleet_file)
    with progress_bar("explaining") as progress:
        told = explain_plan(plan, workload, fleet, gemm=gemm, devices=devices, progress=progress)
    if as_json:
        emit_json(explanation_document(told))
    else:
        click.echo(explanation_text(told, Screen.of_stdout(), model=plan.model.name, fleet=plan.fleet.name))
