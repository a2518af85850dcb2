"""Devices that come and go: rates, traces and the events that they give, as values.

Rates are mean times: until a device that is there fails, leaves or becomes slow (each exponentially distributed, for each device
anew), and between two that join (a Poisson process; default: as many join as fail and leave while the fleet is whole). A device
that joins has the figures of one of the fleet's, drawn at random. A trace is a CSV file with these columns:

    time,event,device,detail
    12.5 s,fail,phone-3,              (detail: when it is noticed, "0.2 s" later; empty: as --detect says)
    30 s,join,phone-3b,phone-3        (detail: the device of the fleet whose figures it has; empty: its own name's)
    41 s,slow,laptop-1,4              (detail: how many times longer everything takes from now on)
    50 s,leave,laptop-2,
"""

from __future__ import annotations

import csv
import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path

import numpy as np

from cleave_plan.errors import CleaveError, InputFileError, UsageError
from cleave_plan.fleet.stranger import one_of
from cleave_plan.units import Unit, is_number, parse

NEVER = "never"
"""The mean time of what does not happen."""

HEADS = ("time", "event", "device", "detail")


class Change(StrEnum):
    """What can happen to a device: it fails without a word, it leaves and says so, it becomes slow, it joins."""

    FAIL = "fail"
    LEAVE = "leave"
    SLOW = "slow"
    JOIN = "join"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """``change`` of ``device`` at ``time_s``; ``like``: of one that joins, the fleet's device whose figures it has; ``factor``:
    of one that becomes slow, how many times longer everything takes; ``noticed_s``: of one that fails, seconds until the server
    notices (None: as long as it always takes)."""

    time_s: float
    change: Change
    device: str
    like: str = ""
    factor: float = 1.0
    noticed_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Mean seconds until a device fails, leaves or becomes ``slowdown`` times slower (infinite: never), and between two that
    join (None: as many join as go while the fleet is whole)."""

    failures: float = math.inf
    leaves: float = math.inf
    stragglers: float = math.inf
    joins: float | None = None
    slowdown: float = 4.0


def rates_of(text: str) -> Rates:
    """``failures=30 min,joins=never``: rates by name; raises UsageError for anything else."""
    known = [field.name for field in fields(Rates)]
    given: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in known or name in given:
            expected = f"each of {', '.join(known)} once at the most, as NAME=TIME"
            raise UsageError(f"{part.strip()!r}", where="--churn", expected=expected)
        given[name] = _factor(value) if name == "slowdown" else _mean(value, name)
    return Rates(**given)


def _factor(value: str) -> float:
    factor = float(value) if is_number(value) else math.nan
    if not 1 < factor < math.inf:
        raise UsageError(f"{value!r}", where="--churn slowdown", expected="a number above 1")
    return factor


def _mean(value: str, name: str) -> float:
    if value == NEVER:
        return math.inf
    try:
        mean = float(value) if is_number(value) else parse(value, Unit.SECONDS, "")
    except CleaveError as error:
        raise UsageError(error.what, where=f"--churn {name}", expected=f'a mean time ("30 min"), or {NEVER}') from error
    if not 0 < mean < math.inf:
        raise UsageError(f"{value!r}", where=f"--churn {name}", expected=f"a mean time above 0, or {NEVER}")
    return mean


def drawn(rates: Rates, devices: Sequence[str], seed: int) -> Iterator[Event]:
    """Events without end, in order of time, for a fleet of ``devices``; the same arguments, the same events."""
    rng = np.random.default_rng(seed)
    waiting: list[tuple[float, int, Event]] = []
    number = 0

    def push(event: Event) -> None:
        nonlocal number
        if math.isfinite(event.time_s):
            number += 1
            heapq.heappush(waiting, (event.time_s, number, event))

    def live(device: str, now: float) -> None:
        """Draw how long ``device`` is there from ``now``, how it goes, and whether it becomes slow before."""
        means = (rates.failures, rates.leaves)
        ends = [now + float(rng.exponential(mean)) if math.isfinite(mean) else math.inf for mean in means]
        push(Event(time_s=min(ends), change=Change.FAIL if ends[0] <= ends[1] else Change.LEAVE, device=device))
        slow = now + float(rng.exponential(rates.stragglers)) if math.isfinite(rates.stragglers) else math.inf
        if slow < min(ends):
            push(Event(time_s=slow, change=Change.SLOW, device=device, factor=rates.slowdown))

    def join(now: float, count: int) -> None:
        like = devices[int(rng.integers(len(devices)))]
        push(Event(time_s=now + float(rng.exponential(between)), change=Change.JOIN, device=f"joined-{count}", like=like))

    between = rates.joins if rates.joins is not None else balanced(rates, len(devices))
    for device in devices:
        live(device, 0.0)
    joined = 1
    if math.isfinite(between):
        join(0.0, joined)
    while waiting:
        _, _, event = heapq.heappop(waiting)
        if event.change is Change.JOIN:
            live(event.device, event.time_s)
            joined += 1
            join(event.time_s, joined)
        yield event


def balanced(rates: Rates, devices: int) -> float:
    """Seconds between two that join, so that as many join as go while ``devices`` are there."""
    going = devices * (1 / rates.failures + 1 / rates.leaves)
    return 1 / going if going > 0 else math.inf


def read_trace(path: Path, devices: Sequence[str]) -> tuple[Event, ...]:
    """The events of a trace file for a fleet of ``devices``, in order of time; raises InputFileError with the line."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets put a mark before the first cell
            reader = csv.reader(file, skipinitialspace=True)
            rows = [(f"{path}: line {reader.line_num}", row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputFileError(
            f"cannot be read ({error})", where=str(path), expected='a CSV file, or mean times ("failures=30 min")'
        ) from error
    head = ",".join(HEADS)
    if not rows:
        raise InputFileError("is empty", where=str(path), expected=f"the line {head}, and a line for each event")
    if tuple(cell.strip() for cell in rows[0][1]) != HEADS:
        raise InputFileError(f"found {','.join(rows[0][1])!r}", where=rows[0][0], expected=f"the head {head}")
    known = set(devices)
    events = [(_event(row, where, known), where) for where, row in rows[1:] if row]
    events.sort(key=lambda found: found[0].time_s)
    _possible(events, known)
    return tuple(event for event, _ in events)


def _event(row: Sequence[str], where: str, known: set[str]) -> Event:
    if len(row) != len(HEADS):
        raise InputFileError(f"has {len(row)} cells", where=where, expected=f"{len(HEADS)}: {', '.join(HEADS)}")
    when, what, device, detail = (cell.strip() for cell in row)
    time_s = _seconds(when, where)
    if what not in set(Change) or not device:
        expected = f"a time, one of {', '.join(Change)}, a device"
        raise InputFileError(f"{', '.join(row)}", where=where, expected=expected)
    change = Change(what)
    if change is Change.JOIN and (detail or device) not in known:
        raise _stranger(detail or device, known, where, "name in the last column the device whose figures it has")
    factor = 1.0
    if change is Change.SLOW:
        factor = float(detail) if is_number(detail) else math.nan
        if not 1 < factor < math.inf:
            raise InputFileError(f"slow by {detail!r}", where=where, expected="a number above 1")
    noticed_s = _seconds(detail, where) if change is Change.FAIL and detail else None
    return Event(
        time_s=time_s, change=change, device=device, like=(detail or device) if change is Change.JOIN else "", factor=factor,
        noticed_s=noticed_s,
    )  # fmt: skip


def _stranger(name: str, known: set[str], where: str, remedy: str) -> InputFileError:
    """What to say of a device that the fleet does not have."""
    return InputFileError(f"the fleet has no device {name!r}", where=where, expected=one_of(known, name), remedy=remedy)


def _seconds(text: str, where: str) -> float:
    try:
        seconds = float(text) if is_number(text) else parse(text, Unit.SECONDS, "")
    except CleaveError as error:
        raise InputFileError(error.sentence(), where=where, expected='a time such as "12.5 s"') from error
    if not 0 <= seconds < math.inf:
        raise InputFileError(f"{text!r}", where=where, expected="a time of 0 or more")
    return seconds


def _possible(events: Sequence[tuple[Event, str]], known: set[str]) -> None:
    """Only who is there can go, only who is not can join; events in order of time, each with its line."""
    there = dict.fromkeys(known, True)
    for event, where in events:
        if event.device not in there and event.change is not Change.JOIN:
            raise _stranger(event.device, known, where, f"let it join before it can {event.change}")
        if there.get(event.device, False) == (event.change is Change.JOIN):
            joins = event.change is Change.JOIN
            what = f"{event.device!r} is {'there already' if joins else 'gone'} at {event.time_s:g} s"
            raise InputFileError(what, where=where, expected=f"{'another name' if joins else 'that it joins'}, or another time")
        if event.change is not Change.SLOW:
            there[event.device] = event.change is Change.JOIN
