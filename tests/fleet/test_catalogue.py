"""The shipped catalogue: the public figures as literals, and a loader that refuses what a figure must not lack."""

from __future__ import annotations

import pytest

from cleave_plan.errors import InputFileError, MissingFigureError
from cleave_plan.fleet.catalogue import catalogue, parse_catalogue
from cleave_plan.fleet.device import Quality
from cleave_plan.fleet.fleetfile import parse_fleet

PEAKS = {
    "apple-m1": 2.29, "apple-m2": 3.55, "apple-m3": 3.55, "apple-m3-pro": 4.97, "apple-m3-max": 14.2, "apple-m4": 4.26,
    "apple-a14": 0.75, "apple-a15": 1.37, "apple-a16": 1.79, "apple-a17-pro": 2.15, "rtx-3060": 13, "rtx-4060-ti": 22,
    "jetson-orin-nano": 1.28, "jetson-orin-nano-super": 2.09,
}  # fmt: skip
LINKS = {
    "us-fixed-2023": (213.75, 23.71), "us-mobile-2023": (97.09, 9.01), "us-provider-low-2023": (147, 11),
    "us-provider-high-2023": (197, 112), "worldwide-5g-2021": (166, 21), "fcc-benchmark": (100, 20),
}  # fmt: skip


def test_peaks_are_the_public_ones() -> None:
    """FP32 peaks in TFLOP/s; FP16 twice that where it is listed."""
    devices = catalogue().devices
    assert {name: entry.figures["peak.float32"].value / 1e12 for name, entry in devices.items()} == pytest.approx(PEAKS)
    for entry in devices.values():
        if "peak.float16" in entry.figures:
            assert entry.figures["peak.float16"].value == pytest.approx(2 * entry.figures["peak.float32"].value)


def test_links_are_the_public_ones() -> None:
    """Rates in Mbit/s, down and up; latencies where one is published."""
    links = catalogue().links
    rates = {name: (e.figures["downlink"].value * 8 / 1e6, e.figures["uplink"].value * 8 / 1e6) for name, e in links.items()}
    assert rates == {name: pytest.approx(pair) for name, pair in LINKS.items()}
    latencies = {name: entry.figures["latency"].value for name, entry in links.items() if "latency" in entry.figures}
    assert latencies == {"us-fixed-2023": 0.013, "us-mobile-2023": 0.031}


def test_every_figure_has_source_and_date() -> None:
    """Nothing ships without saying where it comes from and when."""
    for entry in (*catalogue().devices.values(), *catalogue().links.values()):
        assert entry.title
        for figure in entry.figures.values():
            assert figure.provenance is not None
            assert figure.provenance.source
            assert figure.provenance.date


def test_a_peak_is_never_planned_with_as_sustained() -> None:
    """What a fleet gets is measured, or the peak times an assumed share and called assumed."""
    m4, m1 = catalogue().devices["apple-m4"].known, catalogue().devices["apple-m1"].known
    assert m4["flops.float32"].value == 2.9e12
    assert m4["flops.float32"].provenance.quality is Quality.MEASURED  # type: ignore[union-attr]
    assert m1["flops.float32"].value == pytest.approx(0.68 * 2.29e12)
    assert m1["flops.float32"].provenance.quality is Quality.ASSUMED  # type: ignore[union-attr]
    assert not any(name.startswith("peak") for name in m1)


def test_entries_are_frozen() -> None:
    """Nobody can change a figure for everybody."""
    entry = catalogue().devices["apple-m1"]
    with pytest.raises(TypeError):
        entry.figures["memory"] = entry.figures["sustained"]  # type: ignore[index]
    with pytest.raises(AttributeError):
        entry.title = "x"  # type: ignore[misc]


def test_a_figure_the_catalogue_lacks_is_asked_for() -> None:
    """No memory is known for a phone's chip, no latency for the FCC benchmark: the fleet has to give them."""
    server = "servers: [{name: s, flops: 1 TFLOP/s, memory: 1 GB, memory_bandwidth: 1 GB/s, egress: 1 GB/s, ingress: 1 GB/s}]"
    text = f"schema: 1\n{server}\ndevices: [{{name: p, catalogue: apple-a16, link: us-mobile-2023}}]"
    with pytest.raises(MissingFigureError, match=r"devices\[0\].memory: no memory figure.*write it here"):
        parse_fleet(text, "f")
    with pytest.raises(MissingFigureError, match=r"devices\[0\].latency"):
        parse_fleet(text.replace("us-mobile-2023", "fcc-benchmark, memory: 1 GB"), "f")


GOOD = """
schema: 1
sources: {s: {quality: specified, source: sheet, date: 2024}}
devices: {d: {title: D, peak.float32: {value: 2 TFLOP/s, from: s}, sustained: {value: 0.5, from: s}}}
links: {l: {title: L, latency: {value: 3 ms, from: s}, overhead: {value: 2 ms, from: s}}}
"""


def test_overhead_is_paid_with_the_latency() -> None:
    """A link's per-message overhead adds to the latency that a device pays per tile."""
    known = parse_catalogue(GOOD, "c").links["l"].known
    assert known["latency"].value == pytest.approx(0.005)
    assert set(known) == {"latency"}


@pytest.mark.parametrize(
    ("change", "says", "place"),
    [
        (("schema: 1", "schema: 2"), "found schema '2'", "schema"),
        (("title: D, ", ""), "'title' is missing", "devices.d"),
        (("2 TFLOP/s", "2 TFLOPS"), "write TFLOP/s", "devices.d.peak.float32.value"),
        (("2 TFLOP/s, from: s", "2 TFLOP/s"), "'from' is missing", "devices.d.peak.float32"),
        (("2 TFLOP/s, from: s", "2 TFLOP/s, from: t"), "unknown source 't'", "devices.d.peak.float32.from"),
        (("peak.float32", "peak.fp32"), "unknown element type", "devices.d.peak.fp32"),
        (("peak.float32", "peek.float32"), "did you mean 'peak.float32'", "devices.d.peek.float32"),
        (("value: 0.5", "value: 1.5"), "at most 1", "devices.d.sustained.value"),
        (("value: 0.5", "value: half"), "at most 1", "devices.d.sustained.value"),
        ((", sustained: {value: 0.5, from: s}", ""), "without a sustained share", "devices.d"),
        (("latency: {", "latncy: {"), "did you mean 'latency'", "links.l.latncy"),
        (("latency: {", "memory: {"), "unknown figure 'memory'", "links.l.memory"),
        (("links:", "lnks:"), "did you mean 'links'", "c"),
    ],
)
def test_bad_catalogues(change: tuple[str, str], says: str, place: str) -> None:
    """Each fault with its place."""
    assert change[0] in GOOD
    with pytest.raises(InputFileError) as caught:
        parse_catalogue(GOOD.replace(*change), "c")
    assert says in str(caught.value)
    assert place in caught.value.where
