"""``cleave-plan report``: a page for people who would rather look than read."""

from __future__ import annotations

from pathlib import Path

import click

from cleave_plan.cli.options import input_file, output_file

EPILOG = """\b
Examples:
  cleave-plan report plan.json -o plan.html
  cleave-plan report plan.json --model model.onnx --fleet fleet.yaml -o plan.html
  cleave-plan simulate plan.json --model model.onnx --fleet fleet.yaml --json > batches.json
  cleave-plan report batches.json -o batches.html
  cleave-plan run plan.json --model model.onnx --emulate --fleet fleet.yaml --record run.json
  cleave-plan report run.json -o run.html
"""


@click.command(epilog=EPILOG, short_help="Draw a plan, a simulation, a comparison or a run as one HTML page.")
@click.argument("file", metavar="FILE", type=input_file)
@click.option("--model", "model_file", metavar="FILE", type=input_file, help="A plan's model, for levels on their devices.")
@click.option("--fleet", "fleet_file", metavar="FILE", type=input_file, help="A plan's fleet, for memory beside its limits.")
@click.option("-o", "--output", metavar="PAGE.html", required=True, type=output_file, help="Page to write.")
def report(file: Path, model_file: Path | None, fleet_file: Path | None, output: Path) -> None:
    """Write a self-contained page for FILE: a plan, what `simulate --json` or `compare --json` printed, or the record of a run.

    It needs no network, follows light and dark, can be printed, and every chart has its numbers in a table.
    """
    from cleave_plan.api import write_page

    size = write_page(file, output, model=model_file, fleet=fleet_file)
    click.echo(f"page written to {output} ({size / 1e6:.2f} MB)")
