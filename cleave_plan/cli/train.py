"""``cleave-plan train``: training steps of a model under a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cleave_plan.cli.differentiation import differentiation_options
from cleave_plan.cli.options import (
    engine_option,
    gathered,
    input_file,
    integrity_option,
    json_option,
    output_file,
    require_apart,
    runtime_option,
    servers_option,
    size_options,
    workers_option,
)
from cleave_plan.cli.output import emit_json
from cleave_plan.cli.tracing import chronicled, trace_output
from cleave_plan.errors import UsageError

EPILOG = """\b
Examples:
  cleave-plan train mlp.onnx --dim batch=64 --fleet fleet.yaml --data digits.npz --loss cross-entropy --steps 500 -o out.onnx
  cleave-plan train gpt.onnx --dim batch=8 --dim seq=128 --fleet fleet.yaml --data text.npz --target labels \\
    --loss cross-entropy --config adamw.yaml --steps 1000 --metrics run.jsonl --checkpoint run -o out.onnx
  cleave-plan train gpt.onnx --dim batch=8 --dim seq=128 --fleet fleet.yaml --data text.npz --target labels \\
    --loss cross-entropy --config adamw.yaml --steps 1000 --metrics run.jsonl --checkpoint run --resume -o out.onnx
  cleave-plan train cnn.onnx --shape image=32x1x8x8 --fleet fleet.yaml --data d.npz --loss mse --freeze "stem.*" \\
    --optimizer sgd --learning-rate 0.1 --seed 7 --steps 100 -o out.onnx --json
  cleave-plan train gpt.onnx --dim batch=8 --dim seq=128 --fleet fleet.yaml --data text.npz --loss cross-entropy \\
    --engine ray --integrity on --recompute --steps 1000 -o out.onnx
  cleave-plan train gpt.onnx --dim batch=8 --dim seq=128 --fleet fleet.yaml --data text.npz --loss cross-entropy \\
    --servers 3 --checkpoint run --steps 1000 -o out.onnx
  cleave-plan train mlp.onnx --dim batch=64 --fleet fleet.yaml --data digits.npz --loss cross-entropy --steps 20 \\
    --trace steps.pftrace -o out.onnx
"""


@click.command(epilog=EPILOG, short_help="Train a model under a plan, with parameters and optimizer on the servers.")
@click.argument("model", type=input_file)
@click.option(
    "--fleet", "fleet_file", metavar="FILE", required=True, type=input_file,
    help="Fleet file (YAML): devices and servers. When it changes, devices join and leave in the middle of the run.",
)  # fmt: skip
@click.option(
    "--data", metavar="D.npz", required=True, type=input_file,
    help="Arrays by input name, a sample a row; uncompressed ones are read where they lie.",
)  # fmt: skip
@differentiation_options(batch_norm="batch")
@click.option("--steps", metavar="N", required=True, type=click.IntRange(min=1), help="Number of the last step.")
@click.option("--optimizer", type=click.Choice(["sgd", "adamw"]), help="Default: adamw, or as --config says.")
@click.option("--learning-rate", metavar="RATE", type=click.FloatRange(min=0), help="Default: 0.001, or as --config says.")
@click.option("--seed", metavar="S", type=click.IntRange(min=0), help="Seed of the order of samples. Default: 0.")
@click.option(
    "--reproducible/--no-reproducible", default=None,
    help="The same bits whatever the plan and whoever is lost on the way. Default: yes.",
)  # fmt: skip
@click.option(
    "--config", "config_file", metavar="FILE", type=input_file,
    help="Training settings (YAML): optimizer, groups, clipping, schedule, accumulation, seed. Options go before it.",
)  # fmt: skip
@size_options
@click.option(
    "--plan", "plan_file", metavar="FILE", type=input_file,
    help="A plan of the training graph that `gradient` writes with the same options. Default: made here.",
)  # fmt: skip
@servers_option
@engine_option
@workers_option
@integrity_option
@runtime_option
@click.option("--metrics", metavar="M.jsonl", type=output_file, help="Where to write loss and times, a line of JSON each step.")
@click.option(
    "--trace", "trace_file", metavar="T.pftrace", type=trace_output,
    help="Write steps, levels, tiles and re-plans for ui.perfetto.dev: the first 100,000 of them.",
)  # fmt: skip
@click.option("--checkpoint", metavar="DIR", type=click.Path(path_type=Path), help="Folder of checkpoints; the last two stay.")
@click.option(
    "--checkpoint-every", metavar="N", type=click.IntRange(min=1), default=100, show_default=True, help="Steps between two."
)
@click.option("--resume", is_flag=True, help="Go on from the newest good checkpoint.")
@click.option("-o", "--out", metavar="OUT.onnx", required=True, type=output_file, help="Where to write the trained model.")
@json_option
def train(
    model: Path,
    fleet_file: Path,
    data: Path,
    steps: int,
    optimizer: str | None,
    learning_rate: float | None,
    seed: int | None,
    reproducible: bool | None,
    config_file: Path | None,
    dims: tuple[tuple[str, int], ...],
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    plan_file: Path | None,
    servers: int | list[str] | None,
    engine: str,
    workers: int | None,
    integrity: bool | None,
    runtime: str,
    metrics: Path | None,
    trace_file: Path | None,
    checkpoint: Path | None,
    checkpoint_every: int,
    resume: bool,
    out: Path,
    as_json: bool,
    **differentiation: Any,
) -> None:
    """Train MODEL on D.npz: exact synchronous steps, each product cut over the devices as the plan says.

    Parameters and the optimizer's state live on the servers (each but the first is a process of its own), so that nothing is
    lost with a device. OUT.onnx is MODEL with trained weights. Times are those of this machine, whose processes play the
    devices, unless with --engine ray.

    A device that is lost goes out of the plan after the step; one that is written into the fleet file meanwhile joins.

    With --checkpoint, Ctrl-C and SIGTERM end the run after the step under way (exit code 130), and --resume goes on from there.
    """
    from cleave_plan.api import load_fleet, load_plan, training_settings, with_servers, write_training_trace
    from cleave_plan.api import train as run_training
    from cleave_plan.report.bars import progress_bar
    from cleave_plan.report.tables import Screen
    from cleave_plan.report.training import training_document, training_text

    require_apart(
        {"--out": out, "--metrics": metrics, "--trace": trace_file},
        {"--data": data, "--fleet": fleet_file, "--config": config_file, "--plan": plan_file},
    )  # fmt: skip
    fleet = load_fleet(fleet_file)
    if servers is not None:
        if plan_file is not None:
            raise UsageError("the plan says which servers there are", where="--servers", expected="either --plan or --servers")
        fleet = with_servers(fleet, servers)
    chosen = {"optimizer": optimizer, "learning_rate": learning_rate, "seed": seed, "reproducible": reproducible}
    settings = training_settings(config_file, **{key: value for key, value in chosen.items() if value is not None})
    writing = chronicled(trace_file, lambda kept, path: write_training_trace(kept, model.stem, fleet, path))
    with writing as chronicle, progress_bar("training") as progress:
        result = run_training(
            model, fleet, data, steps=steps, settings=settings, save_to=out, metrics=metrics,
            plan=None if plan_file is None else load_plan(plan_file), workers=workers, runtime=runtime, engine=engine,
            integrity=integrity, fleet_file=fleet_file,
            dims=gathered(dims, "--dim"), shapes=gathered(shapes, "--shape"), checkpoint=checkpoint,
            checkpoint_every=checkpoint_every, resume=resume, stoppable=checkpoint is not None, progress=progress,
            chronicle=chronicle,
            **differentiation,
        )  # fmt: skip
    if as_json:
        emit_json(training_document(result, out=str(out)))
    else:
        click.echo(training_text(result, Screen.of_stdout(), model=model.name, out=str(out)))
