"""Options of the commands that differentiate a model: what is minimised, and which parameters learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def differentiation_options(*, batch_norm: str) -> Callable[[Command], Command]:
    """``--loss`` and what belongs to it, by the names of :func:`cleave_plan.gradient`'s arguments; the default of batch norms."""
    options = (
        click.option(
            "--loss", required=True, metavar="KIND", help="cross-entropy, mse, or output:NAME (a scalar output of the model)."
        ),
        click.option(
            "--target", default="target", show_default=True, metavar="NAME", help="Name of the input for labels or values."
        ),
        click.option("--output", default="", metavar="NAME", help="The output that the loss looks at (default: the first)."),
        click.option(
            "--ignore-index", default=-100, show_default=True, metavar="LABEL", help="The label of what does not count."
        ),
        click.option(
            "--label-smoothing", default=0.0, metavar="SHARE", type=click.FloatRange(0, 1),
            help="Share of the probability that is spread over all classes.",
        ),
        click.option(
            "--class-axis", default=-1, show_default=True, metavar="AXIS", help="The axis of the logits that holds the classes."
        ),
        click.option(
            "--parameters", metavar="PATTERN", multiple=True,
            help="Gradients of these initialisers or inputs only (default: of every weight). Repeatable.",
        ),
        click.option("--freeze", metavar="PATTERN", multiple=True, help="No gradient of these. Repeatable."),
        click.option(
            "--batch-norm", type=click.Choice(["as-written", "batch"]), default=batch_norm, show_default=True,
            help="Batch norms normalise as the file says, or by the statistics of the batch, which then update the running ones.",
        ),
        click.option(
            "--recompute", is_flag=True,
            help="Spare memory: keep forward values at a few places only, and compute those between them again on the way back.",
        ),
    )  # fmt: skip

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
