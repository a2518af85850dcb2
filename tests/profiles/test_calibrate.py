"""Calibration: runs of devices whose true figures are known, and what is made of their records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleave_plan.errors import InputFileError, UsageError
from cleave_plan.fleet.catalogue import catalogue
from cleave_plan.fleet.device import Provenance, Quality
from cleave_plan.fleet.figures import Figure
from cleave_plan.profiles.calibrate import calibrate, calibrated_profiles
from cleave_plan.profiles.records import Profile, ProfileKind
from cleave_plan.profiles.runrecord import RunDevice, RunLevel, RunRecord, read_run

USED = {"latency": 0.01, "downlink": 1e7, "uplink": 2e6, "flops.float32": 1e10}
WAIT, DOWN, FLOP, UP = (0.01, 0.0, 0.0, 0.0), (0.0, 4e6, 0.0, 1e3), (0.0, 1e3, 0.5, 1e3), (0.0, 1e3, 0.0, 1e6)
OWNERS = {"a": ("machine", "line-a"), "b": ("machine", "line-b")}


def seconds(phases: list[tuple[float, float, float, float]], true: dict[str, float]) -> float:
    """What the phases really take on a device with ``true`` figures; arithmetic is told in seconds of the used FLOP/s."""
    total = 0.0
    for wait, down, flop_s, up in phases:
        flop = flop_s * USED["flops.float32"]
        total += wait * true["latency"] / USED["latency"]
        total += max(down / true["downlink"], flop / true["flops.float32"], up / true["uplink"])
    return total


def record(true: dict[str, dict[str, float]], levels: list[list[tuple[float, float, float, float]]], **options: Any) -> RunRecord:
    """A run of devices with these true figures, in which each has every level's phases."""
    return RunRecord(
        emulated=options.get("emulated", False), figures=dict.fromkeys(true, USED), where="run.json",
        levels=tuple(
            RunLevel(
                crowded=options.get("crowded", False), dtypes=("float32",),
                devices={name: RunDevice(measured_s=seconds(phases, own), work=tuple(phases)) for name, own in true.items()},
            )
            for phases in levels
        ),
    )  # fmt: skip


EACH = [[WAIT] * 3, [DOWN], [FLOP], [UP], [WAIT, DOWN], [WAIT, FLOP], [WAIT, UP]] * 3


@settings(deadline=None)
@given(st.tuples(*[st.floats(0.3, 3.0)] * 4))
def test_true_figures_are_found(factors: tuple[float, float, float, float]) -> None:
    """Every figure is wrong by a factor of its own; levels that each speak of one of them tell all four."""
    true = {name: value * factor for (name, value), factor in zip(USED.items(), factors, strict=True)}
    found = calibrate([record({"a": true}, EACH)], OWNERS)
    after = {change.figure: change.after for change in found.changes}
    assert after == pytest.approx(true)
    assert found.error_after == pytest.approx(0, abs=1e-9)
    assert all(change.lower <= change.after <= change.upper for change in found.changes)


def test_devices_share_what_they_share() -> None:
    """Two devices of one machine on two lines: one FLOP/s for both, an uplink for each."""
    slow = USED | {"flops.float32": 0.5e10}
    found = calibrate([record({"a": slow | {"uplink": 1e6}, "b": slow | {"uplink": 4e6}}, EACH)], OWNERS)
    after = {(change.profile, change.figure): change for change in found.changes}
    assert after["machine", "flops.float32"].after == pytest.approx(0.5e10)
    assert after["machine", "flops.float32"].levels == 2 * 6
    assert after["line-a", "uplink"].after == pytest.approx(1e6)
    assert after["line-b", "uplink"].after == pytest.approx(4e6)


def test_one_wild_level_does_not_count() -> None:
    """A level during which something else happened moves the spread, not the figure."""
    run = record({"a": USED}, [[UP]] * 5)
    wild = RunLevel(crowded=False, dtypes=("float32",), devices={"a": RunDevice(measured_s=50.0, work=(UP,))})
    found = calibrate([RunRecord(emulated=False, figures=run.figures, levels=(*run.levels, wild))], OWNERS)
    (change,) = found.changes
    assert (change.figure, change.after, change.levels) == ("uplink", pytest.approx(2e6), 6)


def test_figures_that_nothing_speaks_of_stay() -> None:
    """Two levels are too few; what never binds is named."""
    found = calibrate([record({"a": USED | {"uplink": 1e6}}, [[UP], [UP]])], OWNERS)
    assert found.changes == ()
    assert ("line-a", "uplink") in found.silent
    assert len(found.silent) == 4
    assert found.error_before == found.error_after == pytest.approx(1.0)


def test_crowded_levels_are_left_out() -> None:
    """There, devices may have waited for one another."""
    with pytest.raises(UsageError, match="no level"):
        calibrate([record({"a": USED}, EACH, crowded=True)], OWNERS)


def test_devices_that_no_profile_is_named_for() -> None:
    """They are left out; when nothing is left the run's devices are named."""
    with pytest.raises(UsageError, match="devices of the runs: a"):
        calibrate([record({"a": USED}, EACH)], {"c": ("machine", "line")})


def test_emulated_runs_are_refused() -> None:
    """They would only repeat the figures that they were played with."""
    with pytest.raises(InputFileError, match="emulated"):
        calibrate([record({"a": USED}, EACH, emulated=True)], OWNERS)


def test_runs_of_different_figures_do_not_mix() -> None:
    """Two predictions with different uplinks of one line cannot be corrected together."""
    one, other = record({"a": USED}, EACH), record({"a": USED}, EACH)
    other = RunRecord(emulated=False, levels=other.levels, figures={"a": USED | {"uplink": 3e6}}, where="other.json")
    with pytest.raises(InputFileError, match="one fleet at a time"):
        calibrate([one, other], OWNERS)


def test_what_is_stored() -> None:
    """The figure with its quartiles, samples and where it comes from; a latency without the overhead beside it; others stay."""
    mark = Provenance(quality=Quality.SPECIFIED, source="by hand", date="2025-01-01")
    link = {"latency": 0.008, "overhead": 0.002, "downlink": 1e7, "uplink": 2e6}
    profile = Profile(
        name="line-a", kind=ProfileKind.LINK, title="a line",
        figures={name: Figure(value=value, provenance=mark) for name, value in link.items()},
    )  # fmt: skip
    found = calibrate([record({"a": USED | {"latency": 0.03, "uplink": 1e6}}, [[WAIT]] * 4 + [[UP]] * 4)], OWNERS)
    (changed,) = calibrated_profiles(found, {"line-a": profile}, "run.json")
    assert changed.figures["latency"].value == pytest.approx(0.028)
    assert changed.figures["overhead"] == profile.figures["overhead"]
    assert changed.figures["downlink"] == profile.figures["downlink"]
    uplink = changed.figures["uplink"]
    assert uplink.value == pytest.approx(1e6)
    assert uplink.spread is not None
    assert uplink.spread.samples == 4
    assert uplink.provenance is not None
    assert uplink.provenance.quality is Quality.MEASURED
    assert "4 levels of run.json" in uplink.provenance.source
    with pytest.raises(UsageError, match="catalogue"):
        calibrated_profiles(found, {"line-a": next(iter(catalogue().links.values()))}, "run.json")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, "not say what was predicted"),
        ({"comparison": {"emulated": "no"}}, "comparison.emulated"),
        ({"comparison": {"measured_s": -1}}, "cannot be used"),
        ({"comparison": {"figures": {"a": USED | {"uplink": 0}}}}, "cannot be used"),
        ({"comparison": {"figures": {}}}, "cannot be used"),
    ],
    ids=["no comparison", "no boolean", "negative seconds", "no rate", "no figures"],
)
def test_records_that_cannot_be_read(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    """Each with the file and what is wrong."""
    given = change.get("comparison")
    comparison = None
    if given is not None:
        own = {"measured_s": given.get("measured_s", 1.0), "work": [list(UP)]}
        level = {"crowded": False, "dtypes": ["float32"], "devices": {"a": own}}
        comparison = {"emulated": given.get("emulated", False), "figures": given.get("figures", {"a": USED}), "levels": [level]}
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"seconds": 1.0, "comparison": comparison}))
    with pytest.raises(InputFileError, match=told):
        read_run(path)
    path.write_text("{")
    with pytest.raises(InputFileError):
        read_run(path)
