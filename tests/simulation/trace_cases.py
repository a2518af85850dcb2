"""What tests of traces share: a trace read with Perfetto's own protocol buffers."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path


def decoded(path: Path) -> tuple[dict[str, list[tuple[str, int, int, int]]], str]:
    """Slices (name, depth, start, stop in ns; of an instant the same) by track, and the process; begin and end must match."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

    trace = proto.Trace()
    trace.ParseFromString(path.read_bytes())
    names, process, open_slices, found = {}, "", defaultdict(list), defaultdict(list)
    last: dict[int, int] = defaultdict(int)
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            if packet.track_descriptor.HasField("process"):
                process = packet.track_descriptor.process.process_name
            else:
                names[packet.track_descriptor.uuid] = packet.track_descriptor.name
        elif packet.HasField("track_event"):
            event = packet.track_event
            assert packet.timestamp >= last[event.track_uuid]
            last[event.track_uuid] = packet.timestamp
            if event.type == proto.TrackEvent.TYPE_SLICE_BEGIN:
                open_slices[event.track_uuid].append((event.name, packet.timestamp))
            elif event.type == proto.TrackEvent.TYPE_INSTANT:
                depth = len(open_slices[event.track_uuid])
                found[names[event.track_uuid]].append((event.name, depth, packet.timestamp, packet.timestamp))
            else:
                name, start = open_slices[event.track_uuid].pop()
                depth = len(open_slices[event.track_uuid])
                found[names[event.track_uuid]].append((name, depth, start, packet.timestamp))
    assert not any(open_slices.values())
    return dict(found), process
