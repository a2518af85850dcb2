"""The command ``cleave-plan``: all commands in one group.

Nothing heavy is imported here or at the top of a command's module, so that ``--help`` answers at once: a command
imports what it needs when it runs.
"""

from __future__ import annotations

import sys

import click

from cleave_plan.cli.check import check
from cleave_plan.cli.compare import compare
from cleave_plan.cli.diff import diff
from cleave_plan.cli.explain import explain
from cleave_plan.cli.failures import FailingGroup
from cleave_plan.cli.fleet import fleet
from cleave_plan.cli.gradient import gradient
from cleave_plan.cli.inspect import inspect
from cleave_plan.cli.plan import plan
from cleave_plan.cli.profile import profile
from cleave_plan.cli.replan import replan
from cleave_plan.cli.report import report
from cleave_plan.cli.run import run
from cleave_plan.cli.simulate import simulate
from cleave_plan.cli.train import train

EPILOG = """\b
Examples:
  cleave-plan fleet generate --devices 8 -o fleet.yaml
  cleave-plan inspect model.onnx --dim batch=8
  cleave-plan plan model.onnx --dim batch=8 --fleet fleet.yaml -o plan.json
  cleave-plan check plan.json --model model.onnx --fleet fleet.yaml
  cleave-plan run plan.json --model model.onnx --verify
  cleave-plan train model.onnx --dim batch=8 --fleet fleet.yaml --data d.npz --loss cross-entropy --steps 500 -o trained.onnx

\b
Exit codes:
  0 done; 1 the answer is no (check or verification failed); 2 usage; 3 no plan
  is feasible; 4 bad input file; 5 execution failed; 130 interrupted.
"""


def _show_version(context: click.Context, parameter: click.Parameter, asked: bool) -> None:
    """Print the version and leave; the package's metadata is only read when someone asks."""
    if asked and not context.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"cleave-plan {version('cleave-plan')}")
        context.exit()


@click.group(cls=FailingGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version and leave."
)
def cleave_plan() -> None:
    """Plan an ONNX model over unequal devices around parameter servers, and run the plan.

    A plan says which device computes which block of which matrix multiplication, how long a batch will take, and how
    far that can be from the best possible.
    """


for _command in (
    inspect, gradient, fleet, profile, plan, check, explain, diff, replan, run, train, simulate, compare, report,
):  # fmt: skip
    cleave_plan.add_command(_command)


def main() -> None:
    """Entry point of the console script; never returns (the exit code says how it went)."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that cannot show "×" still gets its table
    cleave_plan(prog_name="cleave-plan")


if __name__ == "__main__":
    main()
