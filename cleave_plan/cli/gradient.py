"""``cleave-plan gradient``: a training graph from a forward one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cleave_plan.cli.differentiation import differentiation_options
from cleave_plan.cli.options import gathered, input_file, json_option, output_file, size_options
from cleave_plan.cli.output import emit_json

EPILOG = """\b
Examples:
  cleave-plan gradient classifier.onnx --loss cross-entropy -o step.onnx
  cleave-plan gradient gpt.onnx --loss cross-entropy --target labels --ignore-index 0 --label-smoothing 0.1 -o step.onnx
  cleave-plan gradient segment.onnx --loss cross-entropy --class-axis 1 --batch-norm batch -o step.onnx
  cleave-plan gradient model.onnx --loss mse --output prediction --freeze "encoder.*" --keep-outputs -o step.onnx
  cleave-plan gradient gpt.onnx --loss cross-entropy --dim batch=128 --dim seq=1024 --recompute -o step.onnx
  cleave-plan gradient model.onnx --loss output:loss --parameters "*.weight" --dim batch=8 -o step.onnx --json
"""


@click.command(epilog=EPILOG, short_help="Write a training graph: a loss and the gradients of all parameters, in plain ONNX.")
@click.argument("model", type=input_file)
@differentiation_options(batch_norm="as-written")
@click.option("--keep-outputs", is_flag=True, help="Keep the model's own outputs beside loss and gradients.")
@size_options
@click.option("-o", "--out", required=True, metavar="OUT.onnx", type=output_file, help="Where to write the training graph.")
@json_option
def gradient(
    model: Path,
    keep_outputs: bool,
    dims: tuple[tuple[str, int], ...],
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    out: Path,
    as_json: bool,
    **differentiation: Any,
) -> None:
    """Differentiate MODEL: write a graph that gives a loss and the gradient of every parameter.

    The result holds standard ONNX operators only, so that any runtime can execute it. Weights beside MODEL are neither
    needed nor read; OUT.onnx refers to the same files.
    """
    from cleave_plan.api import gradient as differentiate
    from cleave_plan.report.gradient import gradient_document, gradient_text
    from cleave_plan.report.tables import Screen

    made = differentiate(
        model, **differentiation, keep_outputs=keep_outputs, dims=gathered(dims, "--dim"), shapes=gathered(shapes, "--shape"),
        save_to=out,
    )  # fmt: skip
    if as_json:
        emit_json(gradient_document(made, str(out)))
    else:
        click.echo(gradient_text(made, Screen.of_stdout(), out=str(out)))
