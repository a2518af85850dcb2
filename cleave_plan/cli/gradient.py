"""``cleave-plan gradient``: a training graph from a forward one."""

from __future__ import annotations

from pathlib import Path

import click

from cleave_plan.cli.options import gathered, input_file, json_option, output_file, size_options
from cleave_plan.cli.output import emit_json

EPILOG = """\b
Examples:
  cleave-plan gradient classifier.onnx --loss cross-entropy -o step.onnx
  cleave-plan gradient gpt.onnx --loss cross-entropy --target labels --ignore-index 0 --label-smoothing 0.1 -o step.onnx
  cleave-plan gradient segment.onnx --loss cross-entropy --class-axis 1 --batch-norm batch -o step.onnx
  cleave-plan gradient model.onnx --loss mse --output prediction --freeze "encoder.*" --keep-outputs -o step.onnx
  cleave-plan gradient model.onnx --loss output:loss --parameters "*.weight" --dim batch=8 -o step.onnx --json
"""


@click.command(epilog=EPILOG, short_help="Write a training graph: a loss and the gradients of all parameters, in plain ONNX.")
@click.argument("model", type=input_file)
@click.option("--loss", required=True, metavar="KIND", help="cross-entropy, mse, or output:NAME (a scalar output of the model).")
@click.option("--target", default="target", show_default=True, metavar="NAME", help="Name of the input for labels or values.")
@click.option("--output", "prediction", metavar="NAME", help="The output that the loss looks at (default: the first).")
@click.option("--ignore-index", default=-100, show_default=True, metavar="LABEL", help="The label of what does not count.")
@click.option(
    "--label-smoothing", default=0.0, metavar="SHARE", type=click.FloatRange(0, 1),
    help="Share of the probability that is spread over all classes.",
)  # fmt: skip
@click.option(
    "--class-axis", default=-1, show_default=True, metavar="AXIS", help="The axis of the logits that holds the classes."
)
@click.option(
    "--parameters", "only", metavar="PATTERN", multiple=True,
    help="Gradients of these initialisers or inputs only (default: of every weight). Repeatable.",
)  # fmt: skip
@click.option("--freeze", metavar="PATTERN", multiple=True, help="No gradient of these. Repeatable.")
@click.option(
    "--batch-norm", type=click.Choice(["as-written", "batch"]), default="as-written", show_default=True,
    help="Batch norms normalise as the file says, or by the statistics of the batch, which then update the running ones.",
)  # fmt: skip
@click.option("--keep-outputs", is_flag=True, help="Keep the model's own outputs beside loss and gradients.")
@size_options
@click.option("-o", "--out", required=True, metavar="OUT.onnx", type=output_file, help="Where to write the training graph.")
@json_option
def gradient(
    model: Path,
    loss: str,
    target: str,
    prediction: str | None,
    ignore_index: int,
    label_smoothing: float,
    class_axis: int,
    only: tuple[str, ...],
    freeze: tuple[str, ...],
    batch_norm: str,
    keep_outputs: bool,
    dims: tuple[tuple[str, int], ...],
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    out: Path,
    as_json: bool,
) -> None:
    """Differentiate MODEL: write a graph that gives a loss and the gradient of every parameter.

    The result holds standard ONNX operators only, so that any runtime can execute it. Weights beside MODEL are neither
    needed nor read; OUT.onnx refers to the same files.
    """
    from cleave_plan.api import gradient as differentiate
    from cleave_plan.report.gradient import gradient_document, gradient_text
    from cleave_plan.report.tables import Screen

    made = differentiate(
        model, loss=loss, target=target, output=prediction or "", ignore_index=ignore_index, label_smoothing=label_smoothing,
        class_axis=class_axis, parameters=only, freeze=freeze, batch_norm=batch_norm, keep_outputs=keep_outputs,
        dims=gathered(dims, "--dim"), shapes=gathered(shapes, "--shape"), save_to=out,
    )  # fmt: skip
    if as_json:
        emit_json(gradient_document(made, str(out)))
    else:
        click.echo(gradient_text(made, Screen.of_stdout(), out=str(out)))
