"""Fleets, device figures and the profile database."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cleave_plan.errors import UsageError

if TYPE_CHECKING:
    from cleave_plan.fleet.device import Device, Fleet, Server
    from cleave_plan.fleet.figures import Figure
    from cleave_plan.profiles.agent import Agent
    from cleave_plan.profiles.calibrate import Calibration
    from cleave_plan.profiles.database import ProfileDatabase
    from cleave_plan.profiles.machine import MachineMeasurement
    from cleave_plan.profiles.records import Profile


def load_fleet(path: str | Path) -> Fleet:
    """The devices and servers of a fleet file (YAML, suffixed units) in SI; raises InputFileError with the place."""
    from cleave_plan.fleet.fleetfile import load_fleet as load

    return load(Path(path))


def generate_fleet(devices: int, *, preset: str = "cleave", seed: int = 42, stragglers: float = 0.0, servers: int = 1) -> Fleet:
    """A seeded fleet of ``devices`` unequal devices drawn from a preset ("cleave" or "measured-2023").

    ``stragglers`` is the share of devices that are ten times slower; ``servers`` the number of equal servers.
    """
    from cleave_plan.fleet.synthetic import generate_fleet as generate

    return generate(devices, preset=preset, seed=seed, stragglers=stragglers, servers=servers)


def save_fleet(fleet: Fleet, path: str | Path) -> None:
    """Write a fleet file (YAML with units), beside its place first and then renamed."""
    from cleave_plan.fleet.fleetfile import save_fleet as save

    save(fleet, Path(path))


def fleet_of(name: str, devices: Sequence[Device], servers: Sequence[Server] | None = None) -> Fleet:
    """A fleet of ``devices`` around ``servers`` (default: one reference server, whose figures are assumed)."""
    from cleave_plan.fleet.identity import make_fleet
    from cleave_plan.fleet.synthetic import reference_server

    return make_fleet(name, [reference_server()] if servers is None else servers, devices)


def given_figure(name: str, text: str, where: str = "") -> Figure:
    """A device's figure as a person states it: ``name`` of fleet files ("memory"), ``text`` with its unit ("4 GB").

    Raises InputFileError for an unknown figure or a text that is no such quantity.
    """
    from cleave_plan.fleet.catalogue import spec_of
    from cleave_plan.fleet.device import Provenance, Quality
    from cleave_plan.fleet.figures import DEVICE_SPECS, Figure, read_figure

    value = read_figure(text, spec_of(name, DEVICE_SPECS, where), where)
    return Figure(value=value, provenance=Provenance(quality=Quality.SPECIFIED, source="given by hand"))


def open_profiles(path: str | Path | None = None) -> ProfileDatabase:
    """The profile database at ``path`` (default: one per user), made when it is missing; use it in a ``with``."""
    from cleave_plan.profiles.database import ProfileDatabase

    return ProfileDatabase.open(path)


def measure_machine(name: str, **options: Any) -> MachineMeasurement:
    """Time this machine's GEMM: see :func:`cleave_plan.profiles.machine.measure_machine` for the options."""
    from cleave_plan.profiles.machine import measure_machine as measure

    return measure(name, **options)


def measure_link(
    name: str,
    address: str,
    *,
    here: str = "server",
    token_file: str | Path | None = None,
    authority: str | Path | None = None,
    **options: Any,
) -> Profile:
    """Measure the link to the agent at ``address``: see :func:`cleave_plan.profiles.link.measure_link` for the options.

    ``token_file`` holds the secret that the agent was started with; ``authority`` is the certificate (PEM) that vouches for
    the agent's, for TLS.
    """
    from cleave_plan.profiles.agent import read_token
    from cleave_plan.profiles.link import measure_link as measure
    from cleave_plan.profiles.link import tls_client

    token = b"" if token_file is None else read_token(token_file)
    tls = None if authority is None else tls_client(authority)
    return measure(name, address, here=here, token=token, tls=tls, **options)


def calibrate_profiles(
    runs: Sequence[str | Path], devices: Mapping[str, tuple[str, str]], database: ProfileDatabase, *, store: bool = True
) -> Calibration:
    """Correct profiles by records of runs on real devices; ``devices``: each one's machine's and link's profile, by name.

    See :mod:`cleave_plan.profiles.calibrate`. With ``store`` the changed figures go into ``database``. Raises InputFileError for
    a file that is no such record, UsageError for profiles that are not there or cannot change.
    """
    from cleave_plan.profiles.calibrate import calibrate, calibrated_profiles
    from cleave_plan.profiles.runrecord import read_run

    profiles = {machine: database.machine(machine) for machine, _ in devices.values()}
    profiles |= {link: database.link(link) for _, link in devices.values()}
    found = calibrate([read_run(path) for path in runs], devices)
    changed = calibrated_profiles(found, profiles, ", ".join(Path(path).name for path in runs))
    if store:
        database.add(*changed, replace=True)
    return found


def link_agent(
    host: str,
    port: int,
    *,
    token_file: str | Path | None = None,
    certificate: str | Path | None = None,
    key: str | Path | None = None,
) -> Agent:
    """The agent that :func:`measure_link` measures against, listening; use it in a ``with`` and call its ``serve``."""
    from cleave_plan.profiles.agent import Agent, read_token, tls_server

    token = b"" if token_file is None else read_token(token_file)
    tls = None if certificate is None or key is None else tls_server(certificate, key)
    return Agent(host, port, token=token, tls=tls)


def with_servers(fleet: Fleet, servers: int | Iterable[str]) -> Fleet:
    """``fleet`` with its first ``servers`` servers, or with the named ones in that order.

    The fleet keeps its name and hash: a plan made with some of the servers is a plan for the whole fleet's file.
    Raises UsageError for a number or a name that the fleet does not have.
    """
    known = {server.name: server for server in fleet.servers}
    names = list(known)[:servers] if isinstance(servers, int) else list(servers)
    if isinstance(servers, int) and not 1 <= servers <= len(known):
        raise UsageError(f"{servers} servers asked for", where=f"fleet {fleet.name}", expected=f"between 1 and {len(known)}")
    for name in names:
        if name not in known:
            raise UsageError(f"no server is named {name!r}", where=f"fleet {fleet.name}", expected=f"one of {', '.join(known)}")
    if len(set(names)) != len(names) or not names:
        raise UsageError(f"servers {names} asked for", where=f"fleet {fleet.name}", expected="at least one server, each once")
    return dataclasses.replace(fleet, servers=tuple(known[name] for name in names))
