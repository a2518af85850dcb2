"""Options of `run` that change how a plan is executed, not what it computes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from cli_cases import FLEET, Files, cleave
from trace_cases import decoded

from cleave_plan.api import compare_run, draw_inputs, load_fleet, load_plan


def test_reproducible_runs_of_two_plans(tmp_path: Path, files: Files) -> None:
    """Plans that cut differently give the same bits."""
    fleet, other = tmp_path / "fleet.yaml", tmp_path / "other.json"
    fleet.write_text("\n".join(line for line in FLEET.splitlines() if "phone" not in line))
    made = cleave("plan", files.model, "--dim", "batch=64", "--fleet", fleet, "-o", other)
    assert made.exit_code == 0, made.stderr
    assert json.loads(files.plan.read_text())["assignments"] != json.loads(other.read_text())["assignments"]
    outputs = []
    for plan in (files.plan, other):
        done = cleave("run", plan, "--model", files.model, "--workers", "2", "--reproducible", "--outputs", tmp_path / "y.npz")
        assert done.exit_code == 0, done.stderr
        with np.load(tmp_path / "y.npz") as arrays:
            outputs.append({name: arrays[name].tobytes() for name in arrays.files})
    assert outputs[0] == outputs[1]


def test_returned_tiles_are_checked_when_asked(files: Files) -> None:
    """Off on this machine unless asked for; the report says how many tiles, and what share of the run it took."""
    run = ["run", files.plan, "--model", files.model, "--workers", "2"]
    documents = [json.loads(cleave(*run, *more, "--json").stdout) for more in ([], ["--integrity", "on"], ["--integrity", "off"])]
    assert [document["tiles_checked"] for document in documents] == [0, documents[1]["tiles"], 0]
    assert documents[1]["tiles"] > 0
    assert "tiles that devices returned" in cleave(*run, "--integrity", "on").stdout
    assert cleave(*run, "--integrity", "perhaps").exit_code == 2


def test_a_run_traced(tmp_path: Path, files: Files) -> None:
    """A track for each device that worked, with a slice for each tile inside its level; between levels the server works."""
    trace = tmp_path / "run.pftrace"
    done = cleave("run", files.plan, "--model", files.model, "--workers", "2", "--trace", trace, "--json")
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    tracks, _ = decoded(trace)
    levels = tracks.pop("levels")
    assert [name for name, *_ in levels] == [f"level {place}" for place in range(len(document["levels"]))]
    ends = [0, *(stop for *_, stop in levels)]
    assert all(start >= end for (_, _, start, _), end in zip(levels, ends, strict=False))
    assert tracks.pop("server operators")[-1][-1] <= document["seconds"] * 1e9 + 1
    told = [tracks.pop(f"incident {place + 1}") for place, _ in enumerate(document["incidents"])]  # a busy machine may be late
    assert set(tracks) >= set(document["device_s"])
    tiles = [tile for slices in tracks.values() for tile in slices]
    assert len(tiles) >= document["tiles"]
    assert len(tiles) == document["tiles"] or told
    for _, depth, start, stop in tiles:
        assert depth == 0
        assert any(begin <= start <= stop <= end for _, _, begin, end in levels)


def test_convolutions_by_onnxruntime(files: Files) -> None:
    """A model without convolutions runs as ever; other names, and the Ray engine, are usage errors."""
    run = ["run", files.plan, "--model", files.model, "--workers", "2"]
    assert cleave(*run, "--convolution", "onnxruntime", "--verify").exit_code == 0
    assert cleave(*run, "--convolution", "cudnn").exit_code == 2
    refused = cleave("run", files.plan, "--model", files.model, "--engine", "ray", "--convolution", "onnxruntime")
    assert refused.exit_code == 2
    assert "--engine ray without --convolution" in refused.stderr


def test_every_option_reaches_a_run_that_is_compared_with_its_prediction(files: Files) -> None:
    """What `run --engine ray --fleet` does, on local workers: it takes the options that a plain run takes."""
    plan = load_plan(files.plan)
    result, comparison = compare_run(
        plan, files.model, load_fleet(files.fleet), draw_inputs(plan, files.model, seed=0), engine="local", workers=2,
        runtime="auto", convolution="numpy", reproducible=True, integrity=True,
    )  # fmt: skip
    assert result.reproducible
    assert result.tiles_checked == result.tiles_run > 0
    assert len(comparison.levels) > 0
