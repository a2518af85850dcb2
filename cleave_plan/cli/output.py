"""What commands write: one JSON document on stdout, and files in places that are checked before the work starts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from cleave_plan.atomic import replace_file
from cleave_plan.errors import ExecutionError, UsageError

_WANTED = "cleave_plan.json_wanted"
_EMITTED = "cleave_plan.json_emitted"


def remember_json(context: click.Context, parameter: click.Parameter, wanted: bool) -> bool:
    """Callback of ``--json``: the outermost context learns that stdout belongs to one document."""
    context.find_root().meta[_WANTED] = wanted
    return wanted


def wants_json(context: click.Context) -> bool:
    """Whether the command was asked for JSON."""
    return bool(context.find_root().meta.get(_WANTED))


def result_was_emitted(context: click.Context) -> bool:
    """Whether the command's document is already on stdout."""
    return bool(context.find_root().meta.get(_EMITTED))


def emit_json(document: Mapping[str, Any], context: click.Context | None = None) -> None:
    """Print ``document`` on stdout; every number in it must be finite."""
    text = json.dumps(document, indent=2, allow_nan=False)
    (context or click.get_current_context()).find_root().meta[_EMITTED] = True
    click.echo(text)


def write_json(document: Mapping[str, Any], path: Path) -> None:
    """Write ``document`` to a file, as :func:`emit_json` prints it; raises ExecutionError when that fails."""
    try:
        replace_file(path, (json.dumps(document, indent=2, allow_nan=False) + "\n").encode())
    except OSError as error:
        raise ExecutionError(f"cannot be written ({error.strerror or error})", where=str(path)) from error


def require_writable(path: Path) -> None:
    """Refuse an output path before the work starts; raises UsageError, saying what is in the way."""
    if path.is_dir():
        raise UsageError("this is a directory", where=str(path), expected="the name of a file to write")
    if path.exists() and not path.is_file():  # a new file takes the old one's place, which must not be that of a device
        raise UsageError("this is not a regular file", where=str(path), expected="the name of a file to write")
    parent = path.parent
    if not parent.is_dir():
        raise UsageError(f"the directory {parent} does not exist", where=str(path), remedy=f"make it first: mkdir -p {parent}")
    if not os.access(parent, os.W_OK):
        raise UsageError(f"the directory {parent} is not writable", where=str(path), remedy="choose another place")
