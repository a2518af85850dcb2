"""`run --record` and `profile calibrate`: from a record to corrected figures in the database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_cases import Files, cleave

LINK = {"downlink": 1e7, "uplink": 2e6, "latency": 0.01}


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database with a machine and a line."""

    def profile(name: str, kind: str, figures: dict[str, float]) -> dict[str, Any]:
        known = {key: {"value": value, "quality": "assumed", "source": "test"} for key, value in figures.items()}
        return {"name": name, "kind": kind, "title": name, "figures": known}

    profiles = [profile("box", "machine", {"flops.float32": 1e10, "memory": 1e9}), profile("line", "link", LINK)]
    file = tmp_path / "profiles.json"
    file.write_text(json.dumps({"schema_version": 1, "profiles": profiles}))
    path = tmp_path / "profiles.sqlite"
    assert cleave("profile", "import", file, "--db", path).exit_code == 0
    return path


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """A run on a device whose uplink is half as fast as was predicted, with three levels that only send up."""
    own = {"predicted_s": 0.5, "measured_s": 1.0, "work": [[0.0, 0.0, 0.0, 1e6]]}
    level = {"level": 0, "crowded": False, "dtypes": ["float32"], "devices": {"a": own}}
    comparison = {"emulated": False, "levels": [level] * 3, "figures": {"a": LINK | {"flops.float32": 1e10}}}
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"comparison": comparison}))
    return path


def test_a_figure_is_corrected(database: Path, record: Path) -> None:
    """First only said, then stored with its spread and source."""
    calibrate = ["profile", "calibrate", record, "--device", "a=box@line", "--db", database]
    said = json.loads(cleave(*calibrate, "--dry-run", "--json").stdout)
    assert not said["stored"]
    assert [(change["figure"], change["after"]) for change in said["changes"]] == [("uplink", pytest.approx(1e6))]
    shown = json.loads(cleave("profile", "show", "line", "--db", database, "--json").stdout)
    assert shown["figures"]["uplink"]["value"] == 2e6
    done = cleave(*calibrate)
    assert done.exit_code == 0, done.stderr
    assert "16 Mbit/s" in done.stdout
    assert "8 Mbit/s" in done.stdout
    shown = json.loads(cleave("profile", "show", "line", "--db", database, "--json").stdout)
    assert shown["figures"]["uplink"]["value"] == pytest.approx(1e6)
    assert shown["figures"]["uplink"]["spread"]["samples"] == 3
    assert "3 levels of run.json" in shown["figures"]["uplink"]["provenance"]["source"]
    assert shown["figures"]["downlink"]["value"] == LINK["downlink"]


def test_what_cannot_be_calibrated(database: Path, record: Path, tmp_path: Path) -> None:
    """A device without a link, profiles that are not there, and a file that is no record."""
    calibrate = ["profile", "calibrate", record, "--db", database, "--device"]
    assert cleave(*calibrate, "a=box").exit_code == 2
    assert "NAME=MACHINE@LINK" in cleave(*calibrate, "a=box").stderr
    assert cleave(*calibrate, "a=box@nothing").exit_code == 2
    other = tmp_path / "other.json"
    other.write_text("[]")
    assert cleave("profile", "calibrate", other, "--db", database, "--device", "a=box@line").exit_code == 4


def test_a_run_is_recorded_and_an_emulated_one_teaches_nothing(files: Files, database: Path, tmp_path: Path) -> None:
    """The record is what --json prints, with the figures that were predicted with."""
    path = tmp_path / "record.json"
    run = ["run", files.plan, "--model", files.model, "--emulate", "--fleet", files.fleet, "--scale", "0.05"]
    printed = cleave(*run, "--record", path, "--json")
    assert printed.exit_code == 0, printed.stderr
    document = json.loads(path.read_text())
    assert document == json.loads(printed.stdout)
    assert cleave("report", path, "-o", tmp_path / "run.html").exit_code == 0
    page = (tmp_path / "run.html").read_text()
    assert all(device in page for level in document["comparison"]["levels"] for device in level["devices"])
    name, figures = next(iter(document["comparison"]["figures"].items()))
    assert {"latency", "downlink", "uplink"} <= set(figures)
    taught = cleave("profile", "calibrate", path, "--db", database, "--device", f"{name}=box@line")
    assert taught.exit_code == 4
    assert "emulated" in taught.stderr
