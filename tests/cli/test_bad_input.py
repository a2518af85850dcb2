"""Bad input, case by case: the exit code, and a sentence that says where and what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from cli_cases import FLEET, Files, cleave

Arguments = list[str | Path]


class Case(NamedTuple):
    """One kind of bad input: how to call, the exit code, and words that the sentence must hold."""

    name: str
    call: Callable[[Files, Path], Arguments]
    code: int
    words: tuple[str, ...]


def planning(
    files: Files, folder: Path, *, model: Path | None = None, fleet: str | None = None, dim: str = "batch=64"
) -> Arguments:
    """`plan` with one thing changed."""
    fleet_file = files.fleet
    if fleet is not None:
        fleet_file = folder / "fleet.yaml"
        fleet_file.write_text(fleet)
    return ["plan", model or files.model, "--dim", dim, "--fleet", fleet_file, "-o", folder / "plan.json"]


def written(folder: Path, name: str, content: bytes) -> Path:
    """A file of the test's own."""
    path = folder / name
    path.write_bytes(content)
    return path


def fleet_with(old: str, new: str) -> str:
    """The good fleet with one piece of text replaced."""
    assert old in FLEET
    return FLEET.replace(old, new)


def no_devices() -> str:
    """The good fleet with an empty list of devices."""
    return FLEET[: FLEET.index("devices:")] + "devices: []\n"


def edited(files: Files, folder: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    """The good plan after ``edit`` of its first assignment that has tiles."""
    document = json.loads(files.plan.read_text())
    edit(next(assignment for assignment in document["assignments"] if assignment["device"]))
    path = folder / "plan.json"
    path.write_text(json.dumps(document))
    return path


COLUMNS = ("device", "m_start", "m_stop", "n_start", "n_stop", "k_start", "k_stop", "batch_start", "batch_stop")


def drop_last_tile(assignment: dict[str, Any]) -> None:
    """A block of the output is computed by nobody."""
    for column in COLUMNS:
        assignment[column].pop()


def double_last_tile(assignment: dict[str, Any]) -> None:
    """A block of the output is computed twice."""
    for column in COLUMNS:
        assignment[column].append(assignment[column][-1])


def checking(files: Files, plan: Path, *, model: Path | None = None, fleet: Path | None = None) -> Arguments:
    """`check` with one thing changed."""
    return ["check", plan, "--model", model or files.model, "--fleet", fleet or files.fleet]


def running(files: Files, folder: Path, **arrays: np.ndarray) -> Arguments:
    """`run` on given inputs."""
    np.savez(folder / "inputs.npz", **arrays)  # type: ignore[arg-type]
    return ["run", files.plan, "--model", files.model, "--inputs", folder / "inputs.npz"]


X = np.zeros((64, 256), np.float32)

CASES = [
    Case("gap that is no number", lambda f, t: [*planning(f, t), "--gap", "nan"], 2, ("--gap", "not a number")),
    Case(
        "stragglers that are no number",
        lambda f, t: ["fleet", "generate", "--devices", "2", "--stragglers", "nan", "-o", t / "f.yaml"],
        2,
        ("not a number",),
    ),
    Case("no such model", lambda f, t: planning(f, t, model=t / "none.onnx"), 4, ("none.onnx", "no such file")),
    Case("no such model to inspect", lambda f, t: ["inspect", t / "none.onnx"], 4, ("none.onnx", "no such file")),
    Case("a folder for a model", lambda f, t: ["inspect", t], 4, ("folder",)),
    Case("an empty model", lambda f, t: ["inspect", written(t, "m.onnx", b"")], 4, ("m.onnx", "empty")),
    Case(
        "a truncated model",
        lambda f, t: ["inspect", written(t, "m.onnx", f.model.read_bytes()[:5000]), "--dim", "batch=1"],
        4,
        ("m.onnx", "truncated"),
    ),
    Case("text for a model", lambda f, t: ["inspect", written(t, "m.onnx", b"hello, this is no model\n")], 4, ("m.onnx", "ONNX")),
    Case("an unbound dimension", lambda f, t: ["inspect", f.model], 4, ("batch", "--dim")),
    Case("a dimension of 0", lambda f, t: ["inspect", f.model, "--dim", "batch=0"], 2, ("batch", "1 or more")),
    Case("a dimension without a size", lambda f, t: ["inspect", f.model, "--dim", "batch"], 2, ("--dim", "batch=8")),
    Case("a dimension twice", lambda f, t: ["inspect", f.model, "--dim", "batch=1", "--dim", "batch=2"], 2, ("two values",)),
    Case("a dimension that is not there", lambda f, t: ["inspect", f.model, "--dim", "seq=3"], 2, ("seq", "batch")),
    Case("a shape of an input that is not there", lambda f, t: ["inspect", f.model, "--shape", "y=1x2"], 2, ("'y'", "x")),
    Case("a shape against the file", lambda f, t: ["inspect", f.model, "--shape", "x=64x255"], 2, ("--shape", "256")),
    Case("an unknown option", lambda f, t: ["inspect", f.model, "--jsn"], 2, ("--jsn", "--help")),
    Case("no such command", lambda f, t: ["inspekt", f.model], 2, ("inspekt",)),
    Case(
        "an unknown key",
        lambda f, t: planning(f, t, fleet=fleet_with("{name: phone, ", "{name: phone, colour: red, ")),
        4,
        ("devices[1]", "colour"),
    ),
    Case(
        "a negative bandwidth",
        lambda f, t: planning(f, t, fleet=fleet_with("downlink: 400 Mbit/s", "downlink: -4 Mbit/s")),
        4,
        ("devices[1].downlink", "negative"),
    ),
    Case(
        "bits for bytes",
        lambda f, t: planning(f, t, fleet=fleet_with("memory: 1 GB", "memory: 8 Gbit")),
        4,
        ("devices[1].memory", "divide the bits by 8"),
    ),
    Case(
        "a rate that may be bits or bytes",
        lambda f, t: planning(f, t, fleet=fleet_with("400 Mbit/s, uplink: 100", "400 Mbps, uplink: 100")),
        4,
        ("devices[1].downlink", "bits or"),
    ),
    Case("two devices of one name", lambda f, t: planning(f, t, fleet=fleet_with("board", "phone")), 4, ("phone", "rename")),
    Case("no devices", lambda f, t: planning(f, t, fleet=no_devices()), 4, ("no devices", "at least one device")),
    Case("a fleet that is not YAML", lambda f, t: planning(f, t, fleet="devices: [}"), 4, ("fleet.yaml", "line 1")),
    Case("no such fleet", lambda f, t: ["fleet", "show", t / "none.yaml"], 4, ("none.yaml",)),
    Case("a model for a fleet", lambda f, t: ["fleet", "show", f.model], 4, ("mlp.onnx",)),
    Case("no servers of that number", lambda f, t: [*planning(f, t), "--servers", "3"], 2, ("3 servers",)),
    Case("no server of that name", lambda f, t: [*planning(f, t), "--servers", "attic"], 2, ("attic", "home")),
    Case("a gap of 1", lambda f, t: [*planning(f, t), "--gap", "1"], 2, ("--gap",)),
    Case("no place for the plan", lambda f, t: planning(f, t)[:-2], 2, ("-o FILE", "--sweep")),
    Case("a sweep over nothing", lambda f, t: [*planning(f, t), "--sweep", "devices"], 2, ("--sweep", "devices=8,16,32")),
    Case("a sweep over too many", lambda f, t: [*planning(f, t), "--sweep", "devices=4"], 2, ("at most 3",)),
    Case("a sweep over what is bound", lambda f, t: [*planning(f, t), "--sweep", "batch=1,2"], 2, ("both swept and bound",)),
    Case("no such plan to compare", lambda f, t: ["diff", f.plan, t / "none.json"], 4, ("none.json",)),
    Case("no time", lambda f, t: [*planning(f, t), "--time-limit", "0"], 2, ("--time-limit",)),
    Case(
        "nowhere to write",
        lambda f, t: ["fleet", "generate", "--devices", "3", "-o", t / "missing" / "fleet.yaml"],
        2,
        ("missing", "mkdir"),
    ),
    Case("a folder to write to", lambda f, t: ["fleet", "generate", "--devices", "3", "-o", t], 2, ("directory",)),
    Case("no such plan", lambda f, t: checking(f, t / "none.json"), 4, ("none.json",)),
    Case("a plan cut short", lambda f, t: checking(f, written(t, "p.json", f.plan.read_bytes()[:-50])), 4, ("p.json", "JSON")),
    Case(
        "a plan for another model",
        lambda f, t: checking(f, f.plan, model=f.other_model),
        1,
        ("made for model 'mlp'", "plan again"),
    ),
    Case(
        "a plan for another fleet",
        lambda f, t: checking(f, f.plan, fleet=written(t, "f.yaml", fleet_with("2 GFLOP/s", "3 GFLOP/s").encode())),
        1,
        ("fleet", "plan again"),
    ),
    Case("a block missing", lambda f, t: checking(f, edited(f, t, drop_last_tile)), 1, ("no tile computes",)),
    Case("a block doubled", lambda f, t: checking(f, edited(f, t, double_last_tile)), 1, ("all compute",)),
    Case("a block missing in a plan alone", lambda f, t: ["check", edited(f, t, double_last_tile)], 1, ("all compute",)),
    Case(
        "running a plan for another model",
        lambda f, t: ["run", f.plan, "--model", f.other_model],
        4,
        ("another model", "plan again"),
    ),
    Case(
        "running with a block missing", lambda f, t: ["run", edited(f, t, drop_last_tile), "--model", f.model], 4, ("by no tile",)
    ),
    Case("running with a block doubled", lambda f, t: ["run", edited(f, t, double_last_tile), "--model", f.model], 4, ("twice",)),
    Case("an input of the wrong name", lambda f, t: running(f, t, y=X), 4, ("'y'", "x")),
    Case("an input of the wrong shape", lambda f, t: running(f, t, x=X[:3]), 4, ("'x'", "64")),
    Case("an input of the wrong dtype", lambda f, t: running(f, t, x=X.astype(np.float64)), 4, ("'x'", "float32")),
    Case(
        "inputs that are no arrays",
        lambda f, t: ["run", f.plan, "--model", f.model, "--inputs", written(t, "x.npz", b"not a zip file")],
        4,
        ("x.npz",),
    ),
    Case("no such inputs", lambda f, t: ["run", f.plan, "--model", f.model, "--inputs", t / "x.npz"], 4, ("x.npz",)),
    Case("no workers", lambda f, t: ["run", f.plan, "--model", f.model, "--workers", "0"], 2, ("--workers",)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input(case: Case, files: Files, tmp_path: Path) -> None:
    """The documented exit code, one sentence on stderr with the words that help, and no traceback."""
    result = cleave(*case.call(files, tmp_path))
    assert result.exit_code == case.code, result.stderr
    sentences = [line for line in result.stderr.splitlines() if line]
    assert len(sentences) == 1
    assert sentences[0].startswith("cleave-plan: error: ")
    for word in case.words:
        assert word in sentences[0]
    assert "Traceback" not in result.output


def small_fleet(folder: Path, server: str) -> Path:
    """The good fleet with devices of 20 kB, and this much memory on the server."""
    path = folder / "small.yaml"
    path.write_text(re.sub(r"(?<= memory: )[0-9]+ .?B(?=})", "20 kB", FLEET).replace("8 GB", server))
    return path


def infeasible(*arguments: str | Path) -> dict[str, Any]:
    """The facts of a plan that cannot be, from the JSON of the command."""
    result = cleave(*arguments, "--json")
    assert result.exit_code == 3
    assert "required" in result.stderr
    facts = json.loads(result.stdout)["error"]["facts"]
    assert facts["unit"] == "byte"
    assert facts["required"] > 0
    return dict(facts)


def test_a_gemm_that_fits_no_device(files: Files, tmp_path: Path) -> None:
    """Exit 3 when no GEMM may stay on the server and no device holds a row and a column: required and available, per device."""
    plan = tmp_path / "plan.json"
    fleet = small_fleet(tmp_path, "8 GB")
    facts = infeasible("plan", files.model, "--dim", "batch=64", "--fleet", fleet, "--without", "server", "-o", plan)
    assert set(facts["available"]) == {"laptop", "phone", "board"}
    assert max(facts["available"].values()) < facts["required"]
    assert not plan.exists()


def test_a_model_that_fits_no_server(files: Files, tmp_path: Path) -> None:
    """Exit 3 when the server cannot hold the weights: what is required, what each server and device has."""
    plan = tmp_path / "plan.json"
    facts = infeasible("plan", files.model, "--dim", "batch=64", "--fleet", small_fleet(tmp_path, "500 kB"), "-o", plan)
    assert facts["available"] == {"home": 500e3}
    assert facts["available_on_devices"] == {"laptop": 20e3, "phone": 20e3, "board": 20e3}
    assert not plan.exists()
