"""``cleave-plan compare``: other systems' strategies on the same fleet."""

from __future__ import annotations

from pathlib import Path

import click

from cleave_plan.cli.options import gathered, input_file, json_option, shape_options, sweep_counts, training_option
from cleave_plan.cli.output import emit_json

EPILOG = """\b
Examples:
  cleave-plan compare model.onnx --dim batch=128 --dim seq=1024 --training --fleet fleet.yaml
  cleave-plan compare model.onnx --dim batch=128 --dim seq=1024 --training --fleet fleet.yaml --devices 32,64,128 --json
  cleave-plan compare model.onnx --dim batch=8 --fleet fleet.yaml --servers 2 --batch 8
"""


@click.command(epilog=EPILOG, short_help="Compare with other systems' strategies on the same fleet.")
@click.argument("model_file", metavar="MODEL", type=input_file)
@click.option("--fleet", "fleet_file", metavar="FILE", required=True, type=input_file, help="Devices and servers.")
@click.option(
    "--devices", "counts", metavar="N,N,...", type=sweep_counts,
    help="Numbers of devices to compare at (the first N of the fleet). Default: powers of two up to all of them.",
)  # fmt: skip
@click.option("--servers", metavar="N", type=click.IntRange(min=1), help="Take the first N servers only.")
@click.option(
    "--batch", metavar="N", type=click.IntRange(min=1),
    help="Samples of a batch, which pipelines cut into micro-batches. Default: the first size of the first input.",
)  # fmt: skip
@shape_options
@training_option
@json_option
def compare(
    model_file: Path,
    fleet_file: Path,
    counts: tuple[int, ...] | None,
    servers: int | None,
    batch: int | None,
    dims: tuple[tuple[str, int], ...],
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    trips: tuple[tuple[str, int], ...],
    training: bool,
    as_json: bool,
) -> None:
    """Compare this planner with tensor, data and pipeline parallel systems, the paper's formulation, a single server and cloud
    GPUs: batch time, traffic, memory, recovery and how many devices each can use.

    Every rival is at its best: its degrees and devices are searched, within the devices' memory and with memory lifted.
    """
    from cleave_plan.api import compare_strategies, load_fleet, load_onnx, with_servers
    from cleave_plan.report.bars import progress_bar
    from cleave_plan.report.comparison import Subject, comparison_document, comparison_text
    from cleave_plan.report.tables import Screen

    workload = load_onnx(
        model_file, dims=gathered(dims, "--dim"), shapes=gathered(shapes, "--shape"), trips=gathered(trips, "--trip"),
        training=training,
    )  # fmt: skip
    fleet = load_fleet(fleet_file)
    if servers is not None:
        fleet = with_servers(fleet, servers)
    with progress_bar("comparing") as progress:
        found, samples = compare_strategies(workload, fleet, devices=counts, batch=batch, progress=progress)
    subject = Subject(model=workload.name, fleet=fleet, batch=samples, training=training)
    if as_json:
        emit_json(comparison_document(found, subject))
    else:
        click.echo(comparison_text(found, subject, Screen.of_stdout()))
