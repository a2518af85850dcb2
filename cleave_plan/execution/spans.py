"""A run as slices of a trace: levels, what the server did between them, tiles on their devices, incidents."""

from __future__ import annotations

from collections.abc import Iterator

from cleave_plan.chronicle import INCIDENT, LEVELS, OPERATORS, Span
from cleave_plan.execution.server import RunResult


def run_spans(done: RunResult, *, begun_s: float = 0.0, incidents: int = 0) -> Iterator[Span]:
    """The slices of a run that began at ``begun_s``, after so many ``incidents`` of others: tiles until they were there, and
    incidents until they were made good."""
    clock, end = begun_s, begun_s + done.seconds
    for index, timing in enumerate(done.timings):
        start = begun_s + timing.start_s
        if start > clock:
            yield Span(track=OPERATORS, name="operators", start_s=clock, stop_s=start)
        clock = start + timing.seconds
        yield Span(track=LEVELS, name=f"level {index}", start_s=start, stop_s=clock)
    if end > clock:
        yield Span(track=OPERATORS, name="operators", start_s=clock, stop_s=end)
    for tile in done.tile_times:
        yield Span(
            track=tile.device, name=tile.gemm, start_s=begun_s + tile.start_s, stop_s=begun_s + tile.stop_s,
            details={
                "level": tile.level, "multiplying s": tile.multiply_s, "bytes down": tile.bytes_down, "bytes up": tile.bytes_up
            },
        )  # fmt: skip
    for place, incident in enumerate(done.incidents, start=incidents + 1):
        noticed_s = begun_s + incident.at_s
        yield Span(
            track=f"{INCIDENT}{place}", name=f"{incident.kind.value} {', '.join(incident.devices)}", start_s=noticed_s,
            stop_s=noticed_s + max(incident.recovery_s or 0.0, incident.replan_s), details={"seen": incident.reason},
        )  # fmt: skip
