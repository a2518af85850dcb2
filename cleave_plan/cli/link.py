"""The two ends of a measured link: ``profile agent``, and what ``profile measure --link`` does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cleave_plan.cli.options import input_file
from cleave_plan.errors import UsageError

if TYPE_CHECKING:
    from cleave_plan.profiles.records import Profile

Command = TypeVar("Command", bound=Callable[..., Any])

AGENT_EPILOG = """\b
Examples:
  openssl rand -hex 32 > token
  cleave-plan profile agent --bind 192.0.2.7 --token-file token
  cleave-plan profile agent --bind 192.0.2.7 --token-file token --tls-cert agent.pem --tls-key agent.key --once
"""

token_option = click.option(
    "--token-file", metavar="FILE", type=input_file, help="File with the secret that agent and measuring machine share."
)


def link_options(command: Command) -> Command:
    """``--link`` and what goes with it, for ``profile measure``."""
    command = click.option(
        "--tls-ca", "authority", metavar="FILE", type=input_file,
        help="With --link: TLS, to an agent whose certificate this one (PEM) vouches for.",
    )(command)  # fmt: skip
    command = token_option(command)
    command = click.option(
        "--here", type=click.Choice(["server", "device"]), default="server", show_default=True,
        help="With --link: which of the two this machine is; downlink is from server to device.",
    )(command)  # fmt: skip
    return click.option(
        "--link", "address", metavar="HOST[:PORT]", help="Measure the link to the `profile agent` there, not this machine."
    )(command)


def link_measured(
    name: str, address: str, *, here: str, token_file: Path | None, authority: Path | None, repeats: int, budget_s: float
) -> Profile:
    """The link's profile, with a progress bar meanwhile."""
    from cleave_plan.api import measure_link
    from cleave_plan.report.bars import progress_bar

    with progress_bar("measuring") as progress:
        return measure_link(
            name, address, here=here, token_file=token_file, authority=authority, repeats=repeats, budget_s=budget_s,
            progress=progress,
        )  # fmt: skip


@click.command(epilog=AGENT_EPILOG, short_help="Answer a `profile measure --link` that runs on another machine.")
@click.option(
    "--bind", "host", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="Address of this machine to listen on."
)
@click.option(
    "--port", metavar="PORT", default=7407, show_default=True, type=click.IntRange(0, 65535), help="Port; 0 takes a free one."
)
@token_option
@click.option("--tls-cert", "certificate", metavar="FILE", type=input_file, help="Certificate (PEM), for TLS.")
@click.option("--tls-key", "key", metavar="FILE", type=input_file, help="Its key (PEM).")
@click.option("--once", is_flag=True, help="End after one measurement.")
def agent(host: str, port: int, token_file: Path | None, certificate: Path | None, key: Path | None, once: bool) -> None:
    """Answer measurements of the link to this machine until interrupted.

    It echoes, swallows and sends bytes for one measuring machine at a time, and does nothing else. On an address that
    others can reach it needs a token.
    """
    from cleave_plan.api import link_agent

    if (certificate is None) != (key is None):
        raise UsageError("only one of certificate and key", where="--tls-cert, --tls-key", expected="both or neither")
    with link_agent(host, port, token_file=token_file, certificate=certificate, key=key) as server:
        address, chosen = server.address
        click.echo(f"profile agent listens on {address}:{chosen}{' with TLS' if certificate else ''}", err=True)
        server.serve(once=once, log=lambda text: click.echo(text, err=True))
