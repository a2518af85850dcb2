"""Fleets at a percentile of their measurements: by hand, against drawn samples, from profiles, and through plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cleave_plan.dtypes import DType
from cleave_plan.errors import InputFileError, UsageError
from cleave_plan.fleet.device import Device, Fleet, Provenance, Quality, Server, Spread
from cleave_plan.fleet.figures import OVERHEAD, Figure
from cleave_plan.fleet.identity import make_fleet
from cleave_plan.fleet.percentile import at_percentile, told
from cleave_plan.plan.difference import difference
from cleave_plan.plan.finding import Code
from cleave_plan.plan.verify import verify
from cleave_plan.planning.planner import make_plan
from cleave_plan.profiles.assemble import assemble_device
from cleave_plan.profiles.records import GemmMeasurement, Profile, ProfileKind
from cleave_plan.workload.gemm import Gemm, GemmShape, Operand, Role
from cleave_plan.workload.graph import Level, Workload

MEASURED = Provenance(quality=Quality.MEASURED, source="speed test at home", date="2025-11-02")


def device(name: str = "phone", **changes: object) -> Device:
    """100 MFLOP/s, 1 MB/s down, 500 kB/s up, 2 ms, 1 GB."""
    figures: dict[str, object] = {
        "flop_per_s": {"any": 1e8}, "downlink_bytes_per_s": 1e6, "uplink_bytes_per_s": 5e5, "latency_s": 0.002,
        "memory_bytes": 1e9,
    }  # fmt: skip
    return Device(name=name, **(figures | changes))  # type: ignore[arg-type]


def varying(name: str = "phone") -> Device:
    """Every figure with quartiles."""
    return device(
        name, provenance={"downlink": MEASURED, "uplink": MEASURED},
        spread={
            "flops.any": Spread(lower=8e7, upper=1.1e8, samples=5), "downlink": Spread(lower=5e5, upper=2e6, samples=9),
            "uplink": Spread(lower=4e5, upper=5e5, samples=9), "latency": Spread(lower=0.001, upper=0.003, samples=9),
        },
    )  # fmt: skip


def fleet(*devices: Device) -> Fleet:
    """``devices`` around a slow server with links that never bind."""
    server = Server(
        name="home", flop_per_s={"any": 1e3}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e9, egress_bytes_per_s=1e12,
        ingress_bytes_per_s=1e12,
    )  # fmt: skip
    return make_fleet("home", [server], devices)


def test_the_median_and_the_adverse_quartile() -> None:
    """50 is the fleet as it is, 75 the lower quartile of rates and the upper one of latencies."""
    (same,) = at_percentile(fleet(varying()), 50).devices
    assert same == replace(varying(), spread={})
    (slow,) = at_percentile(fleet(varying()), 75).devices
    assert slow.flop_per_s == {"any": pytest.approx(8e7)}
    assert slow.downlink_bytes_per_s == pytest.approx(5e5)
    assert slow.uplink_bytes_per_s == pytest.approx(4e5)
    assert slow.latency_s == pytest.approx(0.003)
    assert slow.memory_bytes == 1e9


def test_ninety_by_hand() -> None:
    """z is 1.281552 at 90 and 0.674490 at 75, so 1.900031 quartiles: 1 MB/s halves 1.900031 times; 2 ms + 1.900031 ms."""
    (slow,) = at_percentile(fleet(varying()), 90).devices
    assert slow.downlink_bytes_per_s == pytest.approx(1e6 * 0.5**1.900031, rel=1e-6)
    assert slow.latency_s == pytest.approx(0.002 + 1.900031 * 0.001, rel=1e-6)


@pytest.mark.parametrize("percentile", [60.0, 90.0, 99.0])
def test_drawn_samples_are_at_least_as_good(percentile: float) -> None:
    """Rates by a lognormal law, latencies by a normal one: the asked share of 200,000 samples is as good or better."""
    rng = np.random.default_rng(4)
    rates, latencies = 1e6 * rng.lognormal(0.0, 0.5, 200_000), rng.normal(0.05, 0.01, 200_000)
    low, middle, high = np.percentile(rates, [25, 50, 75])
    first, second, third = np.percentile(latencies, [25, 50, 75])
    known = device(
        downlink_bytes_per_s=middle, latency_s=second,
        spread={"downlink": Spread(lower=low, upper=high, samples=9), "latency": Spread(lower=first, upper=third, samples=9)},
    )  # fmt: skip
    (slow,) = at_percentile(fleet(known), percentile).devices
    assert (rates >= slow.downlink_bytes_per_s).mean() == pytest.approx(percentile / 100, abs=0.003)
    assert (latencies <= slow.latency_s).mean() == pytest.approx(percentile / 100, abs=0.003)


@pytest.mark.parametrize("percentile", [0.0, 49.9, 100.0, float("nan")])
def test_percentiles_that_cannot_be_meant(percentile: float) -> None:
    """Below the median a plan would hope, at 100 nothing is slow enough."""
    with pytest.raises(UsageError, match="at least 50"):
        at_percentile(fleet(varying()), percentile)


@pytest.mark.parametrize(
    "spread",
    [
        {"memory": Spread(lower=1e8, upper=1e9, samples=3)},
        {"flops.float32": Spread(lower=1e8, upper=1e9, samples=3)},
        {"downlink": Spread(lower=2e6, upper=3e6, samples=3)},
        {"downlink": Spread(lower=0.0, upper=3e6, samples=3)},
        {"uplink": Spread(lower=1e5, upper=float("inf"), samples=3)},
        {"uplink": Spread(lower=1e5, upper=1e6, samples=0)},
    ],
)
def test_spreads_that_make_no_sense(spread: dict[str, Spread]) -> None:
    """Of a figure that does not vary or is not there, around another value, or of no samples."""
    with pytest.raises(InputFileError, match=r"device phone"):
        device(spread=spread)


def test_what_is_told() -> None:
    """The percentile, what varies by which measurements, and who has no spread, by name."""
    sentences = "\n".join(told(fleet(varying(), device("board")), 90))
    assert "planned at percentile 90" in sentences
    assert "downlink at percentile 90 for 1 device (phone), from 9 samples each: speed test at home" in sentences
    assert "no spread of downlink is known for 1 device (board)" in sentences
    assert "no device has a spread of flops, downlink, uplink, latency" in "\n".join(told(fleet(device()), 90))


def test_profiles_hand_their_quartiles_on() -> None:
    """Of the fastest shape's samples, of the link's rates, and of latency and overhead together; one given by hand has none."""
    gemms = tuple(
        GemmMeasurement(
            dtype="float32", m=m, k=10, n=10, threads=1, median_s=seconds, lower_quartile_s=seconds / 2,
            upper_quartile_s=2 * seconds, repeats=7, numpy="2", blas="b", date="2025-11-02",
        )
        for m, seconds in ((10, 1e-3), (100, 4e-3))
    )  # fmt: skip
    memory = {"memory": Figure(value=1e9, provenance=MEASURED)}
    machine = Profile(name="laptop", kind=ProfileKind.MACHINE, title="a laptop", figures=memory, gemms=gemms)
    quartiles = {
        "downlink": (9e5, 1e6, 2e6), "uplink": (4e5, 5e5, 6e5), "latency": (0.01, 0.02, 0.04), OVERHEAD: (0.001, 0.002, 0.003),
    }  # fmt: skip
    figures = {
        name: Figure(value=value, provenance=MEASURED, spread=Spread(lower=lower, upper=upper, samples=7))
        for name, (lower, value, upper) in quartiles.items()
    }
    link = Profile(name="home", kind=ProfileKind.LINK, title="a line", figures=figures)
    made = assemble_device(machine, link, name="d", given={})
    assert made.rate(DType.FLOAT32) == pytest.approx(20_000 / 4e-3)
    assert made.spread["flops.float32"] == Spread(lower=20_000 / 8e-3, upper=20_000 / 2e-3, samples=7)
    assert made.spread["downlink"] == Spread(lower=9e5, upper=2e6, samples=7)
    assert (made.spread["latency"].lower, made.spread["latency"].upper) == pytest.approx((0.011, 0.043))
    by_hand = assemble_device(machine, link, name="d", given={"downlink": Figure(value=1e6, provenance=MEASURED)})
    assert "downlink" not in by_hand.spread


def workload() -> Workload:
    """One product of 600 x 40 by 40 x 500."""
    a = Operand(tensor="x", role=Role.ACTIVATION, dtype=DType.FLOAT32)
    b = Operand(tensor="w", role=Role.PARAMETER, dtype=DType.FLOAT32)
    gemm = Gemm(
        name="fc",
        node="fc",
        op="MatMul",
        shape=GemmShape(1, 600, 40, 500),
        output="y",
        level=0,
        a=a,
        b=b,
        out_dtype=DType.FLOAT32,
    )
    return Workload(
        name="toy", sha256="a" * 64, gemms=(gemm,), levels=(Level(index=0, gemms=(0,), live_bytes=0),), server_operators=(),
        inputs=(), outputs=(), parameters={"w": 80_000}, parameter_elements=20_000,
    )  # fmt: skip


def test_a_plan_at_a_percentile() -> None:
    """It predicts what a plan for the slower devices does, belongs to the fleet as it is, says so, and is approved as such."""
    known = fleet(varying("a"), varying("b"), device("c"))
    plan = make_plan(workload(), known, percentile=75)
    slow = device(flop_per_s={"any": 8e7}, downlink_bytes_per_s=5e5, uplink_bytes_per_s=4e5, latency_s=0.003)
    by_hand = make_plan(workload(), fleet(replace(slow, name="a"), replace(slow, name="b"), device("c")))
    assert plan.predicted.ideal_levels_s == pytest.approx(by_hand.predicted.ideal_levels_s, rel=1e-9)
    assert plan.predicted.bound_s == pytest.approx(by_hand.predicted.bound_s, rel=1e-6)
    assert (plan.percentile, plan.fleet.sha256) == (75, known.sha256)
    assert any("no spread of uplink is known for 1 device (c)" in note for note in plan.notes)
    assert verify(plan, workload(), known).findings == ()
    hopeful = replace(plan, percentile=None)
    assert Code.FIGURE in {finding.code for finding in verify(hopeful, workload(), known).findings}
    assert difference(hopeful, plan).made_for == {"percentile": ("", "75")}


def test_quartiles_are_part_of_what_a_fleet_is() -> None:
    """A plan at a percentile depends on them, so another spread is another fleet; without any, nothing changes."""
    other = replace(varying(), spread=dict(varying().spread) | {"downlink": Spread(lower=6e5, upper=2e6, samples=9)})
    assert len({fleet(device()).sha256, fleet(varying()).sha256, fleet(other).sha256}) == 3
