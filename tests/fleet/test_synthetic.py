"""Seeded fleets against NumPy called directly, in the documented order."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cleave_plan.dtypes import DType
from cleave_plan.errors import MissingFigureError, UsageError
from cleave_plan.fleet.device import Quality
from cleave_plan.fleet.fleetfile import dump_fleet, parse_fleet
from cleave_plan.fleet.provenance import BY_THE_FLEET, provenance_of
from cleave_plan.fleet.synthetic import PRESETS, generate_fleet, reference_server

FIGURES = ("downlink", "uplink", "latency", "memory")


def test_cleave_draws_in_the_documented_order() -> None:
    """FLOP/s, downlink, uplink, memory: one array after another from default_rng(42)."""
    rng = np.random.default_rng(42)
    flops, downlink = rng.uniform(5e12, 7e12, 64), rng.uniform(10e6, 100e6, 64)
    uplink, memory = rng.uniform(5e6, 10e6, 64), rng.uniform(1e9, 3e9, 64)
    devices = generate_fleet(64).devices
    assert [device.name for device in devices[:2]] == ["device-1", "device-2"]
    assert [device.rate(DType.INT8) for device in devices] == flops.tolist()
    assert [device.downlink_bytes_per_s for device in devices] == downlink.tolist()
    assert [device.uplink_bytes_per_s for device in devices] == uplink.tolist()
    assert [device.memory_bytes for device in devices] == memory.tolist()
    assert {device.latency_s for device in devices} == {0.0}
    assert devices[0].flop_per_s["any"] == 6547912097111.927, "the first draw of seed 42, as a literal"


def test_measured_2023_draws_in_the_documented_order() -> None:
    """Class, link kind, FLOP/s, memory, downlink factor, uplink factor; every device draws all six."""
    rng = np.random.default_rng(7)
    kind = rng.choice(4, size=200, p=[0.5, 0.3, 0.15, 0.05])
    mobile = rng.uniform(size=200) < 0.5
    flops, memory = rng.uniform(size=200), rng.uniform(size=200)
    down, up = rng.lognormal(0, 0.5, 200), rng.lognormal(0, 0.5, 200)
    classes = [("phone", 0.7, 2.2, 0.6, 1, 2), ("laptop", 2.3, 4.3, 0.68, 3, 6), ("desktop", 10, 22, 0.7, 6, 10),
               ("board", 1.2, 2.1, 0.68, 2, 4)]  # fmt: skip
    for index, device in enumerate(generate_fleet(200, preset="measured-2023", seed=7).devices):
        name, low, high, sustained, least, most = classes[kind[index]]
        on_air = name == "phone" and mobile[index]
        assert device.name == f"{name}-{index + 1}"
        expected = 1e12 * sustained * (low + (high - low) * flops[index])
        assert device.flop_per_s == pytest.approx({"float32": expected, "float16": 2 * expected})
        assert device.memory_bytes == pytest.approx(1e9 * (least + (most - least) * memory[index]))
        assert device.downlink_bytes_per_s == pytest.approx((97e6 if on_air else 214e6) / 8 * down[index])
        assert device.uplink_bytes_per_s == pytest.approx((9e6 if on_air else 24e6) / 8 * up[index])
        assert device.latency_s == (0.031 if on_air else 0.013)


def test_reference_server() -> None:
    """The setting's server: 1 TFLOP/s, 200 GB/s, 4 TB, 100 Gbit/s each way; unlimited lifts links and memory only."""
    server = generate_fleet(1).servers[0]
    assert (server.rate(DType.FLOAT16), server.memory_bandwidth_bytes_per_s, server.memory_bytes) == (1e12, 200e9, 4e12)
    assert server.egress_bytes_per_s == server.ingress_bytes_per_s == 12.5e9
    lifted = reference_server(unlimited=True)
    assert lifted.egress_bytes_per_s == lifted.ingress_bytes_per_s == lifted.memory_bytes == math.inf
    assert (lifted.rate(DType.FLOAT16), lifted.memory_bandwidth_bytes_per_s) == (1e12, 200e9)
    assert [server.name for server in generate_fleet(1, servers=3).servers] == ["server-1", "server-2", "server-3"]


@pytest.mark.parametrize("preset", PRESETS)
def test_same_arguments_same_fleet_and_files_read_back(preset: str) -> None:
    """Generating is deterministic, other seeds differ, and the file of any size reads back exactly."""
    fleet = generate_fleet(30, preset=preset, seed=3, stragglers=0.2)
    assert generate_fleet(30, preset=preset, seed=3, stragglers=0.2) == fleet
    assert generate_fleet(30, preset=preset, seed=4, stragglers=0.2).sha256 != fleet.sha256
    assert parse_fleet(dump_fleet(fleet), "f") == fleet
    assert parse_fleet(dump_fleet(fleet, table_from=1), "f") == fleet


@pytest.mark.parametrize("preset", PRESETS)
def test_every_figure_says_where_it_comes_from(preset: str) -> None:
    """No figure of a generated fleet is without a source; nothing invented is called measured."""
    fleet = generate_fleet(40, preset=preset, stragglers=0.1)
    for device in fleet.devices:
        marks = [provenance_of(device, figure) for figure in (*FIGURES, *(f"flops.{dtype}" for dtype in device.flop_per_s))]
        assert BY_THE_FLEET not in marks
        assert provenance_of(device, "memory").quality is Quality.ASSUMED
    latency = Quality.MEASURED if preset == "measured-2023" else Quality.ASSUMED
    assert {provenance_of(device, "latency").quality for device in fleet.devices} == {latency}


@pytest.mark.parametrize("preset", PRESETS)
def test_stragglers_are_ten_times_slower_on_all_three(preset: str) -> None:
    """The stated share is slowed in FLOP/s, downlink and uplink; the others keep every figure."""
    plain, slowed = generate_fleet(40, preset=preset).devices, generate_fleet(40, preset=preset, stragglers=0.25).devices
    changed = [(old, new) for old, new in zip(plain, slowed, strict=True) if old != new]
    assert len(changed) == 10
    for old, new in changed:
        assert new.downlink_bytes_per_s == old.downlink_bytes_per_s / 10
        assert new.uplink_bytes_per_s == old.uplink_bytes_per_s / 10
        assert {dtype: rate * 10 for dtype, rate in new.flop_per_s.items()} == pytest.approx(dict(old.flop_per_s))
        assert (new.name, new.memory_bytes, new.latency_s) == (old.name, old.memory_bytes, old.latency_s)
        assert "straggler" in provenance_of(new, "uplink").source


def test_element_types_without_a_public_figure_stay_absent() -> None:
    """measured-2023 has FP32 and FP16 only: anything else raises instead of being invented."""
    device = generate_fleet(1, preset="measured-2023").devices[0]
    assert device.rate(DType.FLOAT16) == 2 * device.rate(DType.FLOAT32)
    for dtype in (DType.FLOAT64, DType.BFLOAT16, DType.INT8):
        with pytest.raises(MissingFigureError, match="add it to the fleet file"):
            device.rate(dtype)


@pytest.mark.parametrize(
    "arguments",
    [
        {"devices": 0},
        {"devices": -1},
        {"devices": 10**9},
        {"devices": 1, "servers": 0},
        {"devices": 1, "stragglers": 1.5},
        {"devices": 1, "stragglers": float("nan")},
        {"devices": 1, "seed": -1},
        {"devices": 1, "preset": "cleaves"},
    ],
)
def test_arguments_that_cannot_be_meant(arguments: dict[str, object]) -> None:
    """Refused as usage (exit 2) with what is expected."""
    with pytest.raises(UsageError) as caught:
        generate_fleet(**arguments)  # type: ignore[arg-type]
    assert caught.value.exit_code == 2
    assert caught.value.expected
