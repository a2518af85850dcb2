"""Exceptions that are records first and sentences second.

Every error that a user can cause carries what was found, where, what was expected and what to do about it, and
the exit code of the command line that it ends with. Anything else that escapes is a defect of ours.
"""

from __future__ import annotations


class CleaveError(Exception):
    """Base of every error that is meant for a user.

    Fields: ``what`` (the fault, one clause), ``where`` (file, JSON path, ONNX node, device; may be empty),
    ``expected`` (may be empty), ``remedy`` (what to do; may be empty). ``str(error)`` joins them to one sentence.
    """

    exit_code = 5

    def __init__(self, what: str, *, where: str = "", expected: str = "", remedy: str = "") -> None:
        self.what = what
        self.where = where
        self.expected = expected
        self.remedy = remedy
        super().__init__(self.sentence())

    def sentence(self) -> str:
        """The record as one line: where, what, expected, remedy."""
        text = f"{self.where}: {self.what}" if self.where else self.what
        if self.expected:
            text += f"; expected {self.expected}"
        if self.remedy:
            text += f"; {self.remedy}"
        return text


class AnswerIsNoError(CleaveError):
    """The command ran, and the answer is no: a check or a verification failed (exit 1)."""

    exit_code = 1


class UsageError(CleaveError):
    """An argument or option that cannot be meant (exit 2)."""

    exit_code = 2


class InfeasibleError(CleaveError):
    """No plan exists: what is required and what is available, per device, and what would make it fit (exit 3).

    ``facts`` holds the numbers for ``--json``: for instance ``{"gemm": ..., "unit": "byte", "required": ...,
    "available": {"phone-1": ...}}``.
    """

    exit_code = 3

    def __init__(
        self, what: str, *, facts: dict[str, object] | None = None, where: str = "", expected: str = "", remedy: str = ""
    ) -> None:
        self.facts = facts or {}
        super().__init__(what, where=where, expected=expected, remedy=remedy)


class InputFileError(CleaveError):
    """A file that cannot be used: which, the place in it, what was expected, what to do (exit 4)."""

    exit_code = 4


class ExecutionError(CleaveError):
    """A run that could not be finished: a worker died, shared memory ran out (exit 5)."""

    exit_code = 5


class RunInterruptedError(CleaveError):
    """A run that was told to end (Ctrl-C, a kill), and what is kept of it (exit 130)."""

    exit_code = 130


class MissingFigureError(CleaveError):
    """A figure that nobody measured, specified or assumed was needed (exit 4: the fleet or profile lacks it)."""

    exit_code = 4
