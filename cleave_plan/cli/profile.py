"""``cleave-plan profile``: measure machines, keep the measurements, and make fleets of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cleave_plan.cli.calibrate import calibrate
from cleave_plan.cli.link import agent, link_measured, link_options
from cleave_plan.cli.options import (
    WorkOrderGroup,
    device_choice,
    figure_setting,
    gemm_shape,
    input_file,
    json_option,
    output_file,
    seconds,
)
from cleave_plan.cli.output import emit_json
from cleave_plan.errors import UsageError

if TYPE_CHECKING:
    from cleave_plan.fleet.figures import Figure
    from cleave_plan.profiles.records import Profile

Command = TypeVar("Command", bound=Callable[..., Any])

GROUP_EPILOG = """\b
Examples:
  cleave-plan profile measure --name my-laptop
  cleave-plan profile catalogue
  cleave-plan profile fleet --device laptop=my-laptop@us-fixed-2023 -o fleet.yaml
"""
MEASURE_EPILOG = """\b
Examples:
  cleave-plan profile measure
  cleave-plan profile measure --name my-laptop --dtype float32 --threads 4 --replace
  cleave-plan profile measure --size 64x64x64 --size 512x512x512 --repeats 3 --budget 5 --json
  cleave-plan profile measure --link 192.0.2.7 --token-file token --name phone-link
  cleave-plan profile measure --link home.example:7407 --here device --token-file token --tls-ca agent.pem
"""
LIST_EPILOG = """\b
Examples:
  cleave-plan profile list
  cleave-plan profile list --db lab.sqlite --json
"""
SHOW_EPILOG = """\b
Examples:
  cleave-plan profile show my-laptop
  cleave-plan profile show my-laptop --json
"""
IMPORT_EPILOG = """\b
Examples:
  cleave-plan profile import profiles.json
  cleave-plan profile import profiles.json --replace --db lab.sqlite
"""
EXPORT_EPILOG = """\b
Examples:
  cleave-plan profile export -o profiles.json
  cleave-plan profile export my-laptop my-dsl -o profiles.json
"""
FLEET_EPILOG = """\b
Examples:
  cleave-plan profile fleet --device a=my-laptop@us-fixed-2023 --device b=apple-m4@us-mobile-2023 -o fleet.yaml
  cleave-plan profile fleet --device a=my-laptop@my-dsl --set a.memory="4 GB" --servers-from old.yaml -o fleet.yaml
"""
CATALOGUE_EPILOG = """\b
Examples:
  cleave-plan profile catalogue
  cleave-plan profile catalogue --all
  cleave-plan profile catalogue --json
"""

db_option = click.option("--db", "database", metavar="FILE", type=input_file, help="Profile database. Default: one per user.")


@click.group(cls=WorkOrderGroup, epilog=GROUP_EPILOG)
def profile() -> None:
    """Profiles of machines and links: measure, keep, and make fleets."""


@profile.command(epilog=MEASURE_EPILOG, short_help="Time this machine, or the link to another, and store the profile.")
@click.option("--name", metavar="NAME", help="What to call the profile. Default: this-machine, or the link's host.")
@link_options
@click.option("--dtype", "dtypes", metavar="TYPE", multiple=True, help="Element type. Repeatable. Default: float32 and float64.")
@click.option(
    "--size", "grid", metavar="MxKxN", multiple=True, type=gemm_shape, help="GEMM to time. Repeatable. Default: a grid."
)
@click.option(
    "--repeats", metavar="N", type=click.IntRange(min=1), default=7, show_default=True, help="Samples of each GEMM or figure."
)
@click.option("--threads", metavar="N", type=click.IntRange(min=1), default=1, show_default=True, help="Threads of the BLAS.")
@click.option("--budget", metavar="S", type=seconds, default="60 s", show_default=True, help="Time to measure for.")
@click.option("--replace", is_flag=True, help="Replace a profile of the same name.")
@db_option
@json_option
def measure(
    name: str | None,
    address: str | None,
    here: str,
    token_file: Path | None,
    authority: Path | None,
    dtypes: tuple[str, ...],
    grid: tuple[tuple[int, int, int], ...],
    repeats: int,
    threads: int,
    budget: float,
    replace: bool,
    database: Path | None,
    as_json: bool,
) -> None:
    """Time this machine's matrix multiplication and memory, or with --link the link to another, and store the profile.

    Medians and quartiles of repeated samples: over a grid of shapes, with the number of BLAS threads fixed; of a link its
    rates both ways, its latency, and what each message costs.
    """
    from cleave_plan.api import open_profiles
    from cleave_plan.report.profile import profile_document, profile_text
    from cleave_plan.report.tables import Screen

    wanted = {key: value for key, value in (("grid", grid), ("dtypes", dtypes)) if value}
    if address is not None and wanted:
        raise UsageError("element types and sizes are those of a machine", where="--link", remedy="measure one at a time")
    if address is None and (here != "server" or token_file or authority):
        raise UsageError("--here, --token-file and --tls-ca are of a link's measurement", expected="--link HOST with them")
    name = name or ("this-machine" if address is None else address.rpartition(":")[0] or address)
    skipped: list[str] = []
    with open_profiles(database) as profiles:
        if not replace and any(summary.name == name for summary in profiles.list()):
            raise UsageError(f"there is already a profile {name!r}", where="--name", remedy="choose another, or give --replace")
        if address is None:
            found, skipped = _machine_measured(name, repeats=repeats, threads=threads, budget_s=budget, **wanted)
        else:
            found = link_measured(
                name, address, here=here, token_file=token_file, authority=authority, repeats=repeats, budget_s=budget
            )
        profiles.add(found, replace=replace)
    if as_json:
        emit_json(profile_document(found) | {"skipped": skipped})
        return
    click.echo(profile_text(found, Screen.of_stdout()))
    if skipped:
        click.echo(f"not timed within {budget:g} s: {', '.join(skipped)}")


def _machine_measured(name: str, **options: Any) -> tuple[Profile, list[str]]:
    """This machine's profile and the shapes that the budget did not hold."""
    from cleave_plan.api import measure_machine
    from cleave_plan.report.bars import progress_bar

    with progress_bar("measuring") as progress:
        found = measure_machine(name, progress=progress, **options)
    return found.profile, [f"{dtype} {m}x{k}x{n}" for dtype, m, k, n in found.skipped]


profile.add_command(agent)
profile.add_command(calibrate)


@profile.command("list", epilog=LIST_EPILOG)
@db_option
@json_option
def list_profiles(database: Path | None, as_json: bool) -> None:
    """List the profiles of the database."""
    from cleave_plan.api import open_profiles
    from cleave_plan.report.profile import summaries_document, summaries_text
    from cleave_plan.report.tables import Screen

    with open_profiles(database) as profiles:
        summaries, path = profiles.list(), profiles.path
    if as_json:
        emit_json(summaries_document(summaries))
    else:
        click.echo(summaries_text(summaries, Screen.of_stdout(), database=str(path)))


@profile.command(epilog=SHOW_EPILOG, short_help="Show one profile: figures, origins, timings.")
@click.argument("name")
@db_option
@json_option
def show(name: str, database: Path | None, as_json: bool) -> None:
    """Show the profile NAME: figures with their origin, and GEMM timings."""
    from cleave_plan.api import open_profiles
    from cleave_plan.report.profile import profile_document, profile_text
    from cleave_plan.report.tables import Screen

    with open_profiles(database) as profiles:
        found = profiles.show(name)
    if as_json:
        emit_json(profile_document(found))
    else:
        click.echo(profile_text(found, Screen.of_stdout()))


@profile.command("import", epilog=IMPORT_EPILOG, short_help="Store the profiles of a JSON file.")
@click.argument("file", type=input_file)
@click.option("--replace", is_flag=True, help="Replace profiles of the same names.")
@db_option
def import_profiles(file: Path, replace: bool, database: Path | None) -> None:
    """Store the profiles of FILE, a JSON file as `profile export` writes it: all of them or none."""
    from cleave_plan.api import open_profiles

    with open_profiles(database) as profiles:
        names = profiles.import_(file, replace=replace)
    click.echo(f"imported {', '.join(names) or 'nothing'}")


@profile.command(epilog=EXPORT_EPILOG, short_help="Write profiles to a JSON file.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("-o", "--output", metavar="FILE", required=True, type=output_file, help="Where to write the profiles (JSON).")
@db_option
def export(names: tuple[str, ...], output: Path, database: Path | None) -> None:
    """Write the profiles NAME... (default: all) to a file that `profile import` reads."""
    from cleave_plan.api import open_profiles

    with open_profiles(database) as profiles:
        profiles.export(output, names or None)
    click.echo(f"profiles written to {output}")


@profile.command("fleet", epilog=FLEET_EPILOG)
@click.option(
    "--device", "devices", metavar="NAME=MACHINE[@LINK]", multiple=True, required=True, type=device_choice,
    help="A device: its machine and link by the name of a profile or of a catalogue entry. Repeatable.",
)  # fmt: skip
@click.option(
    "--set", "settings", metavar="NAME.FIGURE=VALUE", multiple=True, type=figure_setting,
    help='A figure that you give yourself, for example laptop.memory="4 GB". Repeatable.',
)  # fmt: skip
@click.option("--servers-from", metavar="FLEET", type=input_file, help="Fleet file to take the servers of. Default: one assumed.")
@click.option("-o", "--output", metavar="FILE", required=True, type=output_file, help="Where to write the fleet (YAML).")
@db_option
def make_fleet_file(
    devices: tuple[tuple[str, str, str | None], ...],
    settings: tuple[tuple[str, str, str], ...],
    servers_from: Path | None,
    output: Path,
    database: Path | None,
) -> None:
    """Make a fleet file of profiles and catalogue entries."""
    from cleave_plan.api import fleet_of, load_fleet, open_profiles, save_fleet

    given: dict[str, dict[str, Figure]] = {name: {} for name, _, _ in devices}
    for name, figure, value in settings:
        if name not in given:
            raise UsageError(f"no device is named {name!r}", where="--set", expected=f"one of {', '.join(given)}")
        given[name][figure] = _figure(figure, value, f"--set {name}.{figure}")
    with open_profiles(database) as profiles:
        members = [profiles.device(machine, link, device_name=name, given=given[name]) for name, machine, link in devices]
    servers = None if servers_from is None else load_fleet(servers_from).servers
    save_fleet(fleet_of(output.stem, members, servers), output)
    click.echo(f"fleet of {len(members)} {'device' if len(members) == 1 else 'devices'} written to {output}")


def _figure(name: str, text: str, where: str) -> Figure:
    """A figure from the command line; raises UsageError for one that devices do not have or that cannot be read."""
    from cleave_plan.api import given_figure
    from cleave_plan.errors import InputFileError

    try:
        return given_figure(name, text, where)
    except InputFileError as error:
        raise UsageError(error.what, where=error.where, expected=error.expected, remedy=error.remedy) from error


@profile.command("catalogue", epilog=CATALOGUE_EPILOG, short_help="List the devices and links that ship with cleave-plan.")
@click.option("--all", "every", is_flag=True, help="List every figure with its source and date.")
@json_option
def show_catalogue(every: bool, as_json: bool) -> None:
    """List the devices and links that ship with cleave-plan; every figure has a source, a date, and how it is known."""
    from cleave_plan.fleet.catalogue import catalogue
    from cleave_plan.report.profile import catalogue_document, catalogue_text
    from cleave_plan.report.tables import Screen

    if as_json:
        emit_json(catalogue_document(catalogue()))
    else:
        click.echo(catalogue_text(catalogue(), Screen.of_stdout(), every=every))
