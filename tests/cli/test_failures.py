"""Faults become one sentence and an exit code, whatever was raised."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable

import click
import pytest
from click.testing import CliRunner, Result

from cleave_plan.cli.failures import FailingGroup
from cleave_plan.cli.options import json_option
from cleave_plan.cli.output import emit_json
from cleave_plan.errors import AnswerIsNoError, ExecutionError, InfeasibleError, InputFileError, MissingFigureError, UsageError


def failing(error: BaseException, *arguments: str, before: Callable[[], None] = lambda: None) -> Result:
    """What a command that raises ``error`` ends with."""

    @click.group(cls=FailingGroup)
    def group() -> None:
        pass

    @group.command()
    @json_option
    def work(as_json: bool) -> None:
        before()
        raise error

    return CliRunner().invoke(group, ["work", *arguments])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AnswerIsNoError("no"), 1),
        (UsageError("no"), 2),
        (InfeasibleError("no"), 3),
        (InputFileError("no"), 4),
        (MissingFigureError("no"), 4),
        (ExecutionError("no"), 5),
        (FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "model.onnx"), 4),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES), "model.onnx"), 4),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 5),
        (MemoryError(), 5),
        (ZeroDivisionError("division by zero"), 5),
        (KeyboardInterrupt(), 130),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_every_fault_has_its_exit_code_and_one_sentence(error: BaseException, code: int) -> None:
    """Exit codes are those of the design; stderr holds one line and no traceback; stdout stays empty."""
    result = failing(error)
    assert result.exit_code == code
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if line]
    assert len(lines) == 1
    assert lines[0].startswith("cleave-plan: error: ")
    assert "Traceback" not in result.stderr


def test_a_sentence_says_what_where_expected_and_remedy() -> None:
    """All four parts of the record are in the sentence."""
    result = failing(InputFileError("found -1", where="fleet.yaml: devices[0]", expected="a rate above 0", remedy="correct it"))
    assert result.stderr == "cleave-plan: error: fleet.yaml: devices[0]: found -1; expected a rate above 0; correct it\n"


def test_json_holds_the_record_of_a_fault() -> None:
    """With --json an infeasible plan's facts are on stdout, the sentence still on stderr."""
    facts: dict[str, object] = {"gemm": "fc1", "unit": "byte", "required": 12, "available": {"d0": 3}}
    result = failing(InfeasibleError("fits nowhere", facts=facts), "--json")
    document = json.loads(result.stdout)
    assert document["error"]["facts"] == facts
    assert document["error"]["exit_code"] == 3
    assert "fits nowhere" in result.stderr


def test_json_stays_one_document_when_the_result_is_out() -> None:
    """A check that failed has printed its findings: nothing is added to them."""
    result = failing(AnswerIsNoError("no"), "--json", before=lambda: emit_json({"ok": False}))
    assert json.loads(result.stdout) == {"ok": False}


def test_a_defect_shows_its_traceback_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hint names the variable, and the variable works."""
    assert "CLEAVE_PLAN_DEBUG=1" in failing(ZeroDivisionError("x")).stderr
    monkeypatch.setenv("CLEAVE_PLAN_DEBUG", "1")
    assert "Traceback" in failing(ZeroDivisionError("x")).stderr


def test_usage_faults_are_sentences_too() -> None:
    """An unknown option is exit 2 with a pointer to the help."""
    result = failing(AssertionError(), "--jsn")
    assert result.exit_code == 2
    assert "--jsn" in result.stderr
    assert "--help" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_reader_that_leaves_ends_the_command_quietly() -> None:
    """`cleave-plan ... | head` prints no complaint and does not pretend to have succeeded."""
    program = (
        "import click\n"
        "from cleave_plan.cli.failures import FailingGroup\n"
        "@click.group(cls=FailingGroup)\n"
        "def group(): pass\n"
        "@group.command()\n"
        "def work():\n"
        "    for line in range(200_000): click.echo(f'line {line}')\n"
        "group()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, "work"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    complaint = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 141
    assert complaint == b""
