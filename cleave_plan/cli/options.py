"""Readers of option values, and options that several commands share.

A reader takes the text of one option; what it cannot mean it refuses with ``click.BadParameter``, to which click adds
the option's name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from cleave_plan.cli.output import remember_json, require_writable
from cleave_plan.errors import CleaveError, UsageError

Command = TypeVar("Command", bound=Callable[..., Any])
Value = TypeVar("Value")


class Share(click.FloatRange):
    """A number in a range; unlike click's own, "nan" is none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number; raises click.BadParameter for anything outside the range."""
        number = super().convert(value, param, ctx)
        if number != number:
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


class Positive(click.FloatRange):
    """A finite number above 0."""

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number; raises click.BadParameter for anything else."""
        number = super().convert(value, param, ctx)
        if not 0 < number < float("inf"):
            self.fail(f"{value!r} is not a number above 0", param, ctx)
        return number


class WorkOrderGroup(click.Group):
    """A group whose help lists commands in the order in which they are used, not by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order in which they were added."""
        return list(self.commands)


def dim_binding(text: str) -> tuple[str, int]:
    """``NAME=INT``: one symbolic dimension; names may hold any character, the last ``=`` counts."""
    name, _, size = text.rpartition("=")
    if not name:
        raise click.BadParameter(f"{text!r} is not NAME=INT, for example batch=8")
    return name, _size(size, f"dimension {name!r}")


def shape_binding(text: str) -> tuple[str, tuple[int, ...]]:
    """``INPUT=1x3x224x224``: the whole shape of one input; a scalar is ``INPUT=``."""
    name, _, shape = text.rpartition("=")
    if not name:
        raise click.BadParameter(f"{text!r} is not INPUT=SHAPE, for example image=1x3x224x224")
    return name, tuple(_size(size, f"the shape of {name!r}") for size in shape.lower().split("x") if shape)


def trip_binding(text: str) -> tuple[str, int]:
    """``NAME=N``: how often a Loop runs; 0 is a number of iterations too."""
    name, _, times = text.rpartition("=")
    if not name or not times.isascii() or not times.isdigit():
        raise click.BadParameter(f"{text!r} is not NAME=N, for example decoder/loop=20")
    return name, int(times)


def _size(text: str, owner: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise click.BadParameter(f"{owner} has {text!r} where a whole number of 1 or more was expected")
    return int(text)


def gemm_shape(text: str) -> tuple[int, int, int]:
    """``MxKxN``: the sizes of one GEMM."""
    sizes = text.lower().split("x")
    if len(sizes) != 3:
        raise click.BadParameter(f"{text!r} is not MxKxN, for example 512x512x512")
    m, k, n = (_size(size, f"the GEMM {text!r}") for size in sizes)
    return m, k, n


def device_choice(text: str) -> tuple[str, str, str | None]:
    """``NAME=MACHINE[@LINK]`` as (name, machine, link)."""
    name, _, choice = text.partition("=")
    machine, at, link = choice.partition("@")
    if not name or not machine or (at and not link):
        raise click.BadParameter(f"{text!r} is not NAME=MACHINE or NAME=MACHINE@LINK, for example laptop=apple-m4@us-fixed-2023")
    return name, machine, link or None


def figure_setting(text: str) -> tuple[str, str, str]:
    """``NAME.FIGURE=VALUE`` as (device, figure, value); the figure is what stands behind the last dot but ``flops.TYPE``."""
    target, _, value = text.partition("=")
    match = re.fullmatch(r"(.+?)\.(flops\.\w+|\w+)", target)
    if match is None or not value:
        raise click.BadParameter(f'{text!r} is not NAME.FIGURE=VALUE, for example laptop.memory="4 GB"')
    return match[1], match[2], value


def sweep_axis(text: str) -> tuple[str, tuple[int, ...]]:
    """``AXIS=8,16,32``: devices, servers or a symbolic dimension, and the values to plan for."""
    axis, _, values = text.rpartition("=")
    if not axis or not values:
        raise click.BadParameter(f"{text!r} is not AXIS=INT,INT,..., for example devices=8,16,32")
    return axis, tuple(_size(value.strip(), axis) for value in values.split(","))


def sweep_counts(text: str) -> tuple[int, ...]:
    """``8,16,32``: whole numbers of 1 or more."""
    return tuple(_size(value.strip(), "the list") for value in text.split(","))


def server_choice(text: str) -> int | list[str]:
    """``2`` is a number of servers, anything else a list of names."""
    return int(text) if text.isascii() and text.isdigit() else [name.strip() for name in text.split(",")]


def device_names(text: str) -> tuple[str, ...]:
    """``d3,d7``: names of devices, each once."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise click.BadParameter(f"{text!r} is not NAME,NAME,... with each name once, for example phone-3,phone-7")
    return names


def seconds(text: str) -> float:
    """A time above 0 with its unit ("30 s", "2 min"); a plain number is seconds."""
    from cleave_plan.units import Unit, is_number, parse

    try:
        amount = float(text) if is_number(text) else parse(text, Unit.SECONDS, "")
    except CleaveError as error:
        raise click.BadParameter(error.sentence()) from error
    if amount <= 0:
        raise click.BadParameter(f"{text!r} is not more than 0 s")
    return amount


def throttling(text: str) -> tuple[float, float, float]:
    """``AFTER,SHARE,COOL``: seconds of work, the share of the FLOP/s that is left then (0 to 1), seconds of rest."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 3:
        raise click.BadParameter(f'{text!r} is not AFTER,SHARE,COOL, for example "5 min,0.5,1 min"')
    try:
        share = float(parts[1])
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise click.BadParameter(f"{parts[1]!r} is not a share above 0 and at most 1")
    return seconds(parts[0]), share, seconds(parts[2])


def output_file(text: str) -> Path:
    """A file to write; that something can be written there is found out before the work starts."""
    path = Path(text)
    require_writable(path)
    return path


def require_apart(outputs: Mapping[str, Path | None], inputs: Mapping[str, Path | None]) -> None:
    """Raise UsageError when a file to write (by its option) is another one, or one that is read."""
    taken = {os.path.realpath(path): option for option, path in inputs.items() if path is not None}
    for option, path in outputs.items():
        if path is not None and (other := taken.setdefault(os.path.realpath(path), option)) != option:
            raise UsageError(f"{path} is the file of {other}, too", where=option, expected="a file of its own")


def input_file(text: str) -> Path:
    """A file to read. Whether it exists is for its reader to say, with exit code 4 as for any other fault of a file."""
    return Path(text)


def gathered(pairs: Iterable[tuple[str, Value]], option: str) -> dict[str, Value]:
    """Repeated ``NAME=VALUE`` options as a mapping; raises UsageError when one name is given two values."""
    table: dict[str, Value] = {}
    for name, value in pairs:
        if table.setdefault(name, value) != value:
            raise UsageError(f"{name!r} is given two values, {table[name]} and {value}", where=option, remedy="keep one of them")
    return table


def json_option(command: Command) -> Command:
    """``--json``: one JSON document on stdout and nothing else there."""
    text = "Print one JSON document on stdout and nothing else there."
    return click.option("--json", "as_json", is_flag=True, callback=remember_json, help=text)(command)


def engine_option(command: Command) -> Command:
    """``--engine``."""
    kinds = click.Choice(["local", "ray"])
    return click.option("--engine", type=kinds, default="local", show_default=True, help="What plays the devices.")(command)


def workers_option(command: Command) -> Command:
    """``--workers N``."""
    return click.option("--workers", metavar="N", type=click.IntRange(min=1), help="Worker processes. Default: one per core.")(
        command
    )


def runtime_option(command: Command) -> Command:
    """``--runtime``."""
    return click.option(
        "--runtime", type=click.Choice(["auto", "onnxruntime", "reference"]), default="auto", show_default=True,
        help="What runs the server's operators; auto is onnxruntime where it is installed.",
    )(command)  # fmt: skip


def integrity_option(command: Command) -> Command:
    """``--integrity``: True or False, None where it is not given."""

    def as_bool(_context: click.Context, _option: click.Parameter, text: str | None) -> bool | None:
        return None if text is None else text == "on"

    told = "Check each tile that a device returns, and exclude a device that returns a wrong one. Default: on with --engine ray."
    return click.option("--integrity", type=click.Choice(["on", "off"]), callback=as_bool, help=told)(command)


def servers_option(command: Command) -> Command:
    """``--servers N|NAMES``: a number or a list of names; None where it is not given."""
    told = "Use the first N servers of the fleet, or the named ones (a,b). Default: all."
    return click.option("--servers", metavar="N|NAMES", type=server_choice, help=told)(command)


def training_option(command: Command) -> Command:
    """``--training``: a training step instead of a forward pass."""
    text = "Take a whole training step: the forward pass, and the gradients of every GEMM derived from it."
    return click.option("--training", is_flag=True, help=text)(command)


def recompute_option(command: Command) -> Command:
    """``--recompute``: a training step that computes forward values again."""
    text = (
        "With --training: keep forward values at a few places only, where that spares the servers memory, and compute those "
        "between them again on the way back."
    )
    return click.option("--recompute", is_flag=True, help=text)(command)


def size_options(command: Command) -> Command:
    """``--dim`` and ``--shape``: sizes that the file leaves open."""
    command = click.option(
        "--shape", "shapes", metavar="INPUT=1x3x224x224", multiple=True, type=shape_binding,
        help="Shape of an input. Repeatable.",
    )(command)  # fmt: skip
    return click.option(
        "--dim", "dims", metavar="NAME=INT", multiple=True, type=dim_binding, help="Size of a symbolic dimension. Repeatable."
    )(command)


def shape_options(command: Command) -> Command:
    """``--dim``, ``--shape`` and ``--trip``: sizes and numbers of iterations that the file leaves open."""
    command = click.option(
        "--trip", "trips", metavar="LOOP=N", multiple=True, type=trip_binding,
        help="How often a Loop runs, by the name of its node. Repeatable.",
    )(command)  # fmt: skip
    return size_options(command)
