"""``cleave-plan inspect``: what work a model holds."""

from __future__ import annotations

from pathlib import Path

import click

from cleave_plan.cli.options import gathered, input_file, json_option, recompute_option, shape_options, training_option
from cleave_plan.cli.output import emit_json

EPILOG = """\b
Examples:
  cleave-plan inspect model.onnx
  cleave-plan inspect gpt.onnx --dim batch=8 --dim seq=128
  cleave-plan inspect gpt.onnx --dim batch=8 --dim seq=128 --training
  cleave-plan inspect gpt.onnx --dim batch=8 --dim seq=128 --training --recompute
  cleave-plan inspect resnet.onnx --shape image=1x3x224x224 --all
  cleave-plan inspect speech.onnx --dim batch=1 --trip decoder/Loop=20
  cleave-plan inspect model.onnx --json | python -m json.tool
"""


@click.command(epilog=EPILOG, short_help="List the matrix multiplications of a model, its totals, and what the server runs.")
@click.argument("model", type=input_file)
@shape_options
@training_option
@recompute_option
@click.option("--all", "every", is_flag=True, help="List each GEMM instead of one row for identical ones.")
@json_option
def inspect(
    model: Path,
    dims: tuple[tuple[str, int], ...],
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    trips: tuple[tuple[str, int], ...],
    training: bool,
    recompute: bool,
    every: bool,
    as_json: bool,
) -> None:
    """List the matrix multiplications of MODEL, its totals, and what the server will run.

    Weights are not needed and not read. FLOP are 2 per multiply-add, without bias additions.
    """
    from cleave_plan.api import load_onnx
    from cleave_plan.report.tables import Screen
    from cleave_plan.report.workload import workload_document, workload_text

    workload = load_onnx(
        model, dims=gathered(dims, "--dim"), shapes=gathered(shapes, "--shape"), trips=gathered(trips, "--trip"),
        training=training, recompute=recompute,
    )  # fmt: skip
    if as_json:
        emit_json(workload_document(workload))
    else:
        click.echo(workload_text(workload, Screen.of_stdout(), every=every))
