"""The profile commands: measure, list, show, export, import, and a fleet file at the end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_cases import cleave

from cleave_plan.api import load_fleet

QUICK = ["--size", "16x16x16", "--size", "64X64X64", "--repeats", "2", "--threads", "1", "--budget", "5 s", "--dtype", "float32"]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with one profile of this machine, measured for a moment."""
    path = tmp_path_factory.mktemp("profiles") / "profiles.sqlite"
    result = cleave("profile", "measure", "--db", path, "--name", "here", *QUICK)
    assert result.exit_code == 0, result.stderr
    return path


def document(*arguments: str | Path) -> Any:
    """The JSON document of a command that did what it was asked."""
    result = cleave(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return json.loads(result.stdout)


def test_what_was_measured_is_shown(database: Path) -> None:
    """Two timings, their spread, and memory, all of this machine."""
    shown = document("profile", "show", "here", "--db", database)
    assert [(gemm["m"], gemm["dtype"], gemm["threads"]) for gemm in shown["gemms"]] == [(16, "float32", 1), (64, "float32", 1)]
    assert all(gemm["lower_quartile_s"] <= gemm["median_s"] <= gemm["upper_quartile_s"] for gemm in shown["gemms"])
    assert shown["figures"]["memory_bandwidth"]["provenance"]["quality"] == "measured"
    text = cleave("profile", "show", "here", "--db", database).stdout
    assert "GEMM timings on 1 thread" in text
    assert "FLOP/s" in text


def test_a_name_is_measured_again_only_on_request(database: Path) -> None:
    """A second measurement needs --replace, and says so before it measures."""
    result = cleave("profile", "measure", "--db", database, "--name", "here", *QUICK)
    assert result.exit_code == 2
    assert "--replace" in result.stderr
    again = document("profile", "measure", "--db", database, "--name", "here", "--replace", *QUICK)
    assert again["name"] == "here"
    assert again["skipped"] == []


def test_list(database: Path) -> None:
    """One line for each profile; an empty database says how to fill it."""
    listed = document("profile", "list", "--db", database)
    assert [(each["name"], each["gemms"]) for each in listed["profiles"]] == [("here", 2)]
    assert "here" in cleave("profile", "list", "--db", database).stdout
    assert "profile measure" in cleave("profile", "list", "--db", database.with_name("new.sqlite")).stdout


def test_export_and_import(database: Path, tmp_path: Path) -> None:
    """What is exported is imported the same; a taken name is refused unless replaced."""
    exported, other = tmp_path / "profiles.json", tmp_path / "other.sqlite"
    assert cleave("profile", "export", "here", "--db", database, "--output", exported).exit_code == 0
    assert cleave("profile", "import", exported, "--db", other).stdout == "imported here\n"
    assert document("profile", "show", "here", "--db", other) == document("profile", "show", "here", "--db", database)
    assert cleave("profile", "import", exported, "--db", other).exit_code == 2
    assert cleave("profile", "import", exported, "--db", other, "--replace").exit_code == 0


def test_a_fleet_of_profiles_and_catalogue_entries(database: Path, tmp_path: Path) -> None:
    """Machines and links by name, figures given by hand, servers of another file; each figure keeps its origin."""
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    phone = ["--device", "phone=apple-a17-pro@us-mobile-2023", "--set", "phone.memory=2 GB"]
    assert cleave("profile", "fleet", "--db", database, *phone, "--device", "here=here@us-fixed-2023", "-o", first).exit_code == 0
    fleet = load_fleet(first)
    assert [device.name for device in fleet.devices] == ["phone", "here"]
    assert fleet.devices[0].memory_bytes == 2e9
    assert fleet.devices[0].provenance["memory"].quality == "specified"
    assert fleet.devices[1].efficiency
    result = cleave("profile", "fleet", "--db", database, *phone, "--servers-from", first, "-o", second)
    assert result.exit_code == 0
    assert load_fleet(second).servers == fleet.servers


def test_the_catalogue() -> None:
    """Short on the terminal, with sources on request and in JSON."""
    assert "apple-m4" in cleave("profile", "catalogue").stdout
    assert "arXiv 2502.05317" in cleave("profile", "catalogue", "--all").stdout
    entries = document("profile", "catalogue")
    for kind in ("devices", "links"):
        for entry in entries[kind].values():
            assert all(figure["provenance"]["source"] for figure in entry["figures"].values())


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["fleet", "--device", "a"], 2, "NAME=MACHINE"),
        (["fleet", "--device", "a=b@"], 2, "NAME=MACHINE"),
        (["fleet", "--device", "a=nothing@us-fixed-2023"], 2, "nothing"),
        (["fleet", "--device", "a=apple-m4@nowhere", "--set", "a.memory=1 GB"], 2, "nowhere"),
        (["fleet", "--device", "a=apple-m4@us-fixed-2023"], 4, "memory"),
        (["fleet", "--device", "a=apple-m4", "--set", "b.memory=1 GB"], 2, "'b'"),
        (["fleet", "--device", "a=apple-m4", "--set", "a.memory"], 2, "NAME.FIGURE=VALUE"),
        (["fleet", "--device", "a=apple-m4", "--set", "a.colour=red"], 2, "colour"),
        (["fleet", "--device", "a=apple-m4", "--set", "a.memory=8 Gbit"], 2, "divide the bits by 8"),
        (["show", "nobody"], 2, "nobody"),
        (["import", "none.json"], 4, "none.json"),
        (["measure", "--dtype", "int3"], 2, "int3"),
        (["measure", "--size", "4x4"], 2, "MxKxN"),
        (["measure", "--size", "4x0x4"], 2, "1 or more"),
        (["measure", "--budget", "0"], 2, "--budget"),
        (["export", "nobody", "-o", "x.json"], 2, "nobody"),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, list) else None,
)
def test_bad_arguments(arguments: list[str], code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with its exit code and a sentence that holds what was wrong."""
    monkeypatch.chdir(tmp_path)
    output = ["-o", "fleet.yaml"] if arguments[0] == "fleet" else []
    result = cleave("profile", *arguments, *output, "--db", tmp_path / "profiles.sqlite")
    assert result.exit_code == code, result.stderr
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "fleet.yaml").exists()


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    """Exit 4 with the file's name."""
    (tmp_path / "p.sqlite").write_text("not a database, but long enough to be read as one " * 20)
    result = cleave("profile", "list", "--db", tmp_path / "p.sqlite")
    assert result.exit_code == 4
    assert "p.sqlite" in result.stderr


def test_a_link_to_an_agent(tmp_path: Path) -> None:
    """The agent in a process of its own, started by the command; the link is stored and makes a fleet's device."""
    token, database, fleet = tmp_path / "token", tmp_path / "p.sqlite", tmp_path / "fleet.yaml"
    token.write_text("swordfish")
    command = [sys.executable, "-m", "cleave_plan.cli.main", "profile", "agent"]
    options = ["--bind", "127.0.0.1", "--port", "0", "--token-file", token, "--once"]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as agent:
        assert agent.stderr is not None
        address = agent.stderr.readline().split()[-1]
        link = ["--link", address, "--token-file", token, "--repeats", "3", "--budget", "0.4 s"]
        found = document("profile", "measure", *link, "--here", "device", "--name", "lan", "--db", database)
        assert agent.wait(20) == 0
    assert found["figures"]["uplink"]["spread"]["samples"] == 3
    assert "samples" in cleave("profile", "show", "lan", "--db", database).stdout
    device = ["--device", "phone=apple-a17-pro@lan", "--set", "phone.memory=2 GB"]
    assert cleave("profile", "fleet", *device, "-o", fleet, "--db", database).exit_code == 0
    assert load_fleet(fleet).devices[0].provenance["uplink"].quality == "measured"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["measure", "--link", "127.0.0.1:1", "--size", "4x4x4"], "one at a time"),
        (["measure", "--link", "127.0.0.1:none"], "HOST:PORT"),
        (["measure", "--here", "device"], "--link HOST"),
        (["measure", "--tls-ca", "agent.pem"], "--link HOST"),
        (["agent", "--bind", "0.0.0.0"], "--token-file"),
        (["agent", "--tls-cert", "agent.pem"], "--tls-key"),
        (["agent", "--tls-key", "agent.key"], "--tls-cert"),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, list) else None,
)
def test_links_that_cannot_be_meant(arguments: list[str], words: str, tmp_path: Path) -> None:
    """Options that do not go together, and an agent that would serve everyone, are refused."""
    database = [] if arguments[0] == "agent" else ["--db", tmp_path / "p.sqlite"]
    result = cleave("profile", *arguments, *database)
    assert result.exit_code == 2, result.stderr
    assert words in result.stderr
