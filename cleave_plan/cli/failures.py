"""How commands fail: every fault becomes one sentence on stderr and an exit code, never a traceback.

With ``--json``, stdout holds exactly one JSON document also when a command fails: its result if it got that far
(a failed ``check`` lists its findings), otherwise ``{"error": {...}}`` with the record of the fault.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from typing import Any, NoReturn

import click

from cleave_plan.cli.options import WorkOrderGroup
from cleave_plan.cli.output import emit_json, result_was_emitted, wants_json
from cleave_plan.errors import CleaveError, InfeasibleError

DEBUG_VARIABLE = "CLEAVE_PLAN_DEBUG"
INTERRUPTED = 130
READER_LEFT = 141  # what a shell reports for a program that SIGPIPE ended
FAILED = 5
BAD_FILE = 4
USAGE = 2

NO_COMMAND: tuple[type[Exception], ...] = (getattr(click.exceptions, "NoArgsIsHelpError", click.exceptions.NoSuchOption),)
"""What click raises for a group without a command, with the help as its message (older versions print it themselves)."""


class FailingGroup(WorkOrderGroup):
    """The outermost group: runs a command and turns whatever it raises into a sentence and an exit code."""

    def main(self, *args: Any, **options: Any) -> NoReturn:
        """As ``click.Group.main`` in standalone mode, with the exit codes of this program."""
        options["standalone_mode"] = False
        try:
            code = super().main(*args, **options)
        except click.exceptions.Abort:
            _say("interrupted")
            code = INTERRUPTED
        except click.ClickException as error:
            if isinstance(error, NO_COMMAND):
                click.echo(error.format_message(), err=True)
            else:
                _say(_usage_sentence(error))
            code = USAGE
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; faults end the context with their exit code."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except (click.ClickException, click.exceptions.Exit, click.exceptions.Abort):
            raise
        except Exception as error:
            ctx.exit(_report(error, ctx))
        return result


def _report(error: Exception, context: click.Context) -> int:
    """Say what went wrong, as a sentence and (with ``--json``) as a document; returns the exit code."""
    if isinstance(error, BrokenPipeError) and _stdout_is_closed():
        return READER_LEFT
    if os.environ.get(DEBUG_VARIABLE):
        traceback.print_exception(error)
    record, code = _record_of(error)
    if wants_json(context) and not result_was_emitted(context):
        emit_json({"error": {"exit_code": code, **record}}, context)
    _say(str(record["sentence"]))
    return code


def _record_of(error: Exception) -> tuple[dict[str, object], int]:
    """The fields of a fault for ``--json``, its sentence among them, and its exit code."""
    kind = type(error).__name__
    if isinstance(error, CleaveError):
        record: dict[str, object] = {
            "kind": kind, "sentence": error.sentence(), "what": error.what, "where": error.where,
            "expected": error.expected, "remedy": error.remedy,
        }  # fmt: skip
        if isinstance(error, InfeasibleError):
            record["facts"] = error.facts
        return record, error.exit_code
    if isinstance(error, OSError):
        return {"kind": kind, "sentence": _os_sentence(error)}, BAD_FILE if _is_about_input(error) else FAILED
    if isinstance(error, MemoryError):
        return {"kind": kind, "sentence": "memory ran out; use a smaller batch or a machine with more memory"}, FAILED
    hint = f"this is a defect of cleave-plan: set {DEBUG_VARIABLE}=1 and run it again to see the traceback, then report it"
    return {"kind": kind, "sentence": f"unexpected {kind}: {_one_line(str(error))}; {hint}"}, FAILED


def _os_sentence(error: OSError) -> str:
    reason = _one_line(error.strerror or str(error))
    return f"{error.filename}: {reason}" if error.filename else reason


def _is_about_input(error: OSError) -> bool:
    """Whether a named file could not be read or found, as opposed to a full disk or a failed socket."""
    return bool(error.filename) and error.errno in {errno.ENOENT, errno.EACCES, errno.EISDIR, errno.ENOTDIR, errno.EPERM}


def _usage_sentence(error: click.ClickException) -> str:
    message = _one_line(error.format_message()).rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{message}; see `{context.command_path} --help`" if context is not None else message


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _say(sentence: str) -> None:
    click.echo(f"cleave-plan: error: {sentence}", err=True)


def _stdout_is_closed() -> bool:
    """Whether it was our reader that left (``cleave-plan ... | head``); then stdout is silenced for good.

    A broken pipe may as well be one to a worker. Flushing again tells nothing (what could not be written is dropped),
    so one more newline is written, which harms no reader.
    """
    try:
        os.write(sys.stdout.fileno(), b"\n")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    except (OSError, ValueError):
        return False
    return False
