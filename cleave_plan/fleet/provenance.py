"""Where figures come from: reading it from files, looking it up, and combining it.

In a file, ``sources:`` names records once (``{quality: measured, source: ..., date: ...}``) and figures refer to them
by that name, or hold a record of their own. A figure of a fleet without provenance counts as specified by the fleet
file itself; in the values it then has no entry, and :func:`provenance_of` says so.
"""

from __future__ import annotations

from collections.abc import Mapping

from cleave_plan.fleet.device import Device, Provenance, Quality, Server
from cleave_plan.fleet.reading import expect_date, expect_mapping, expect_name, expect_text, unknown

BY_THE_FLEET = Provenance(quality=Quality.SPECIFIED, source="the fleet itself")
"""What is known of a figure that was written down without saying where it comes from."""

_STRENGTH = (Quality.MEASURED, Quality.SPECIFIED, Quality.ASSUMED)


def provenance_of(member: Device | Server, figure: str) -> Provenance:
    """Where ``figure`` of a device or server comes from.

    ``figure`` is a fleet file's key: "downlink", "memory", "efficiency", ... or "flops.float32" for one element type,
    which an entry for "flops" also covers.
    """
    found = member.provenance.get(figure) or member.provenance.get(figure.partition(".")[0])
    return found or BY_THE_FLEET


def weakest(*qualities: Quality) -> Quality:
    """The quality of a figure made from several: assumed if any is assumed, measured only if all are."""
    return max(qualities, key=_STRENGTH.index)


def read_record(value: object, place: str) -> Provenance:
    """One ``{quality, source, date}`` record; the date may be missing."""
    record = expect_mapping(value, place, keys=("quality", "source", "date"), required=("quality", "source"))
    qualities = [quality.value for quality in Quality]
    if record["quality"] not in qualities:
        raise unknown(f"quality {record['quality']!r}", str(record["quality"]), qualities, f"{place}.quality")
    return Provenance(
        quality=Quality(record["quality"]),
        source=expect_text(record["source"], f"{place}.source", "the source in words"),
        date=expect_date(record.get("date"), f"{place}.date"),
    )


def read_sources(value: object, place: str) -> dict[str, Provenance]:
    """The ``sources:`` section (None: empty): names and their records."""
    entries = {} if value is None else expect_mapping(value, place)
    return {expect_name(name, place): read_record(record, f"{place}.{name}") for name, record in entries.items()}


def read_reference(value: object, sources: Mapping[str, Provenance], place: str) -> Provenance:
    """A source's name, or a record of its own."""
    if isinstance(value, dict):
        return read_record(value, place)
    name = expect_text(value, place, "the name of a source, or {quality, source, date}")
    if name not in sources:
        raise unknown(f"source {name!r}", name, sources, place, remedy="add it under sources:")
    return sources[name]
