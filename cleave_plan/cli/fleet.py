"""``cleave-plan fleet``: make fleet files and look at them."""

from __future__ import annotations

from pathlib import Path

import click

from cleave_plan.cli.options import Share, WorkOrderGroup, input_file, json_option, output_file
from cleave_plan.cli.output import emit_json

GROUP_EPILOG = """\b
Examples:
  cleave-plan fleet generate --devices 8 -o fleet.yaml
  cleave-plan fleet show fleet.yaml
"""

GENERATE_EPILOG = """\b
Examples:
  cleave-plan fleet generate --devices 8 -o fleet.yaml
  cleave-plan fleet generate --devices 256 --preset measured-2023 --seed 7 -o fleet.yaml
  cleave-plan fleet generate --devices 64 --stragglers 0.1 --servers 2 -o fleet.yaml
"""

SHOW_EPILOG = """\b
Examples:
  cleave-plan fleet show fleet.yaml
  cleave-plan fleet show fleet.yaml --all
  cleave-plan fleet show fleet.yaml --json
"""

PRESETS = ("cleave", "measured-2023")  # named here so that --help needs no fleet code; a test holds the two together


@click.group(cls=WorkOrderGroup, epilog=GROUP_EPILOG)
def fleet() -> None:
    """Fleet files: devices and servers, each figure with its origin."""


@fleet.command(epilog=GENERATE_EPILOG, short_help="Draw a fleet of unequal devices from a preset.")
@click.option("--devices", metavar="N", type=click.IntRange(min=1), required=True, help="Number of devices.")
@click.option(
    "--preset", type=click.Choice(PRESETS), default="cleave", show_default=True, help="Which distribution to draw from."
)
@click.option("--seed", metavar="S", type=click.IntRange(min=0), default=42, show_default=True, help="Seed of the draws.")
@click.option(
    "--stragglers", metavar="SHARE", type=Share(0, 1), default=0.0, show_default=True,
    help="Share of devices that are 10 times slower in FLOP/s and both links.",
)  # fmt: skip
@click.option("--servers", metavar="N", type=click.IntRange(min=1), default=1, show_default=True, help="Number of equal servers.")
@click.option("-o", "--output", metavar="FILE", required=True, type=output_file, help="Where to write the fleet (YAML).")
def generate(devices: int, preset: str, seed: int, stragglers: float, servers: int, output: Path) -> None:
    """Draw a fleet of unequal devices from a preset; the same options give the same fleet.

    cleave: the reference setting of the field's public code (5 to 7 TFLOP/s, links of 10 to 100 and 5 to 10 MB/s).
    measured-2023: phones, laptops, desktops and single-board computers with public figures of that year.
    """
    from cleave_plan.api import generate_fleet, save_fleet

    save_fleet(generate_fleet(devices, preset=preset, seed=seed, stragglers=stragglers, servers=servers), output)
    click.echo(f"fleet of {devices} {'device' if devices == 1 else 'devices'} written to {output}")


@fleet.command(epilog=SHOW_EPILOG, short_help="Show totals, each device, and where the figures come from.")
@click.argument("fleet_file", metavar="FLEET", type=input_file)
@click.option("--all", "every", is_flag=True, help="List every device of a large fleet.")
@json_option
def show(fleet_file: Path, every: bool, as_json: bool) -> None:
    """Show a fleet: totals, each device and server, and where the figures come from."""
    from cleave_plan.api import load_fleet
    from cleave_plan.report.fleet import fleet_document, fleet_text
    from cleave_plan.report.tables import Screen

    found = load_fleet(fleet_file)
    if as_json:
        emit_json(fleet_document(found))
    else:
        click.echo(fleet_text(found, Screen.of_stdout(), every=every))
