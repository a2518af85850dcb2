"""Perfetto traces (https://perfetto.dev): who did what when, for the viewer at ui.perfetto.dev or its command-line tools.

A trace has one process and a track for each device, one for the levels, one for the server's operators, and one for each
incident of a run; of a training run it has steps, optimizer, re-plans and checkpoints besides, and of devices that come and go a
track for each kind of change (:mod:`cleave_plan.chronicle`). Slices on a track nest: a simulated tile's slice holds the slices
of its phases. Times are seconds from the start of the run or simulation, written as nanoseconds of the trace's own clock. Written
with the protocol buffers of the ``perfetto`` package (extra ``trace``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from cleave_plan.atomic import beside
from cleave_plan.chronicle import (
    BATCHES,
    CHECKPOINTS,
    INCIDENT,
    LEVELS,
    OPERATORS,
    OPTIMIZER,
    REPLANS,
    STEPS,
    Chronicle,
    Span,
)
from cleave_plan.errors import UsageError
from cleave_plan.ordering import natural
from cleave_plan.simulation.run import Moment, Simulation

LEFT_OUT = "left out"
ABOVE = (STEPS, BATCHES, LEVELS, OPERATORS, OPTIMIZER, REPLANS, CHECKPOINTS)
"""Tracks above those of devices, from the top."""

PROCESS = 1
SEQUENCE = 1


def require_perfetto() -> Any:
    """Perfetto's protocol buffers; raises UsageError, with the extra that brings them, where they are not installed."""
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto
    except ImportError as error:
        raise UsageError(
            "the perfetto package is not installed", where="--trace", remedy="pip install 'cleave-plan[trace]'"
        ) from error
    return proto


def write_trace(path: Path, spans: Iterable[Span], *, process: str) -> int:
    """Write ``spans`` as a Perfetto trace, beside its place first and then renamed; the number of slices.

    Slices of one track nest or follow one another. Raises UsageError when the perfetto package is not installed.
    """
    proto = require_perfetto()
    by_track: dict[str, list[Span]] = {}
    for span in spans:
        by_track.setdefault(span.track, []).append(span)
    with beside(path) as file:
        out = _Writer(proto, file)
        out.process(process)
        for place, track in enumerate(sorted(by_track, key=_rank)):
            out.track(PROCESS + 1 + place, track, place)
            out.slices(PROCESS + 1 + place, by_track[track])
    return sum(len(members) for members in by_track.values())


class _Writer:
    """Packets of one trace, each written as soon as it is made."""

    def __init__(self, proto: Any, file: IO[bytes]) -> None:
        self._proto, self._file = proto, file
        first = self._packet()
        first.sequence_flags = proto.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        self._write(first)

    def process(self, name: str) -> None:
        """The process that all tracks belong to."""
        packet = self._packet()
        packet.track_descriptor.uuid = PROCESS
        packet.track_descriptor.process.pid = PROCESS
        packet.track_descriptor.process.process_name = name
        packet.track_descriptor.child_ordering = self._proto.TrackDescriptor.EXPLICIT
        self._write(packet)

    def track(self, uuid: int, name: str, rank: int) -> None:
        """One track of the process, ``rank`` from the top."""
        packet = self._packet()
        packet.track_descriptor.uuid = uuid
        packet.track_descriptor.parent_uuid = PROCESS
        packet.track_descriptor.name = name
        packet.track_descriptor.sibling_order_rank = rank
        self._write(packet)

    def slices(self, uuid: int, spans: Sequence[Span]) -> None:
        """Begin and end events in the order of time; of slices that begin together the longer one is outside."""
        open_spans: list[int] = []
        for span in sorted(spans, key=_outside_first):
            start = _ns(span.start_s)
            while open_spans and open_spans[-1] <= start:
                self._end(uuid, open_spans.pop())
            self._begin(uuid, start, span)
            if span.stop_s is not None:
                open_spans.append(_ns(span.stop_s))
        while open_spans:
            self._end(uuid, open_spans.pop())

    def _begin(self, uuid: int, when: int, span: Span) -> None:
        kinds = self._proto.TrackEvent
        packet = self._event(uuid, when, kinds.TYPE_INSTANT if span.stop_s is None else kinds.TYPE_SLICE_BEGIN)
        packet.track_event.name = span.name
        for key, value in span.details.items():
            note = packet.track_event.debug_annotations.add()
            note.name = key
            if isinstance(value, str):
                note.string_value = value
            else:
                note.double_value = value
        self._write(packet)

    def _end(self, uuid: int, when: int) -> None:
        self._write(self._event(uuid, when, self._proto.TrackEvent.TYPE_SLICE_END))

    def _event(self, uuid: int, when: int, kind: int) -> Any:
        packet = self._packet()
        packet.timestamp = when
        packet.track_event.type = kind
        packet.track_event.track_uuid = uuid
        return packet

    def _packet(self) -> Any:
        packet = self._proto.TracePacket()
        packet.trusted_packet_sequence_id = SEQUENCE
        return packet

    def _write(self, packet: Any) -> None:
        trace = self._proto.Trace()
        trace.packet.append(packet)
        self._file.write(trace.SerializeToString())


def _rank(track: str) -> tuple[int, object]:
    """Tracks from the top: what all devices share, devices or what happened to them in natural order, incidents."""
    place = ABOVE.index(track) if track in ABOVE else len(ABOVE) + track.startswith(INCIDENT)
    return place, natural(track)


def _outside_first(span: Span) -> tuple[int, int]:
    start = _ns(span.start_s)
    return start, -_ns(span.stop_s) if span.stop_s is not None else -start


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def chronicle_spans(chronicle: Chronicle) -> Iterator[Span]:
    """What a chronicle has; at the end, where there was more than it keeps, an instant that says how much is left out."""
    yield from chronicle.entries
    if chronicle.left_out:
        last_s = max((span.start_s if span.stop_s is None else span.stop_s for span in chronicle.entries), default=0.0)
        yield Span(
            track=LEFT_OUT, name="the trace ends here", start_s=last_s, stop_s=None, details={"entries": chronicle.left_out}
        )  # fmt: skip


def simulation_spans(done: Simulation, device_names: Sequence[str]) -> Iterator[Span]:
    """The slices of a simulation that was made with its timeline: levels, tiles on their devices, the tiles' phases."""
    clock = 0.0
    for moment in done.moments:
        if moment.start_s > clock:
            yield Span(track=OPERATORS, name="operators", start_s=clock, stop_s=moment.start_s)
        clock = moment.start_s + moment.run.seconds
        if clock > moment.start_s:
            yield Span(
                track=LEVELS, name=f"batch {moment.batch}, level {moment.level}", start_s=moment.start_s, stop_s=clock,
                details={"waits for": moment.run.binds, "GEMMs": ", ".join(moment.work.gemms)},
            )  # fmt: skip
        yield from _tiles(moment, device_names)


def _tiles(moment: Moment, device_names: Sequence[str]) -> Iterator[Span]:
    work, run = moment.work, moment.run
    edges = np.flatnonzero(np.diff(work.tile, prepend=-1, append=-1) != 0)
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        track, gemm = device_names[int(work.device[first])], work.gemms[int(work.gemm[first])]
        yield Span(
            track=track, name=gemm, start_s=moment.start_s + run.start_s[first], stop_s=moment.start_s + run.stop_s[last - 1],
            details={"batch": moment.batch, "level": moment.level},
        )  # fmt: skip
        for place in range(first, last):
            down, flop, up = (float(column[place]) for column in (work.down_bytes, work.flop, work.up_bytes))
            yield Span(
                track=track, name=_phase_name(down, flop, up), start_s=moment.start_s + run.start_s[place],
                stop_s=moment.start_s + run.stop_s[place], details={"bytes down": down, "FLOP": flop, "bytes up": up},
            )  # fmt: skip


def _phase_name(down: float, flop: float, up: float) -> str:
    """What goes on side by side in a phase."""
    going = [name for name, amount in (("download", down), ("compute", flop), ("upload", up)) if amount > 0]
    return " + ".join(going) or "latency"
