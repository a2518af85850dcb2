"""``cleave-plan train --trace``, decoded: steps, batches, levels and tiles inside one another, on the run's clock."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from cli_cases import Files, cleave
from trace_cases import decoded

Slices = list[tuple[str, int, int, int]]


def training(files: Files, tmp_path: Path, x: np.ndarray, *more: object) -> list[object]:
    """The command for two steps of two batches of the perceptron, traced."""
    np.savez(tmp_path / "data.npz", x=x.astype(np.float32), target=np.arange(len(x)) % 10)
    (tmp_path / "settings.yaml").write_text("schema: 1\naccumulate: 2\n")
    return [
        "train", files.model, "--dim", "batch=64", "--loss", "cross-entropy", "--fleet", files.fleet, "--workers", "2",
        "--data", tmp_path / "data.npz", "--config", tmp_path / "settings.yaml", "--steps", "2", "-o", tmp_path / "out.onnx",
        "--trace", tmp_path / "t.pftrace", *more,
    ]  # fmt: skip


def inside(inner: Slices, outer: Slices) -> bool:
    """Whether each slice lies in one of ``outer``, which follow one another."""
    ends = [0, *(stop for *_, stop in outer)]
    apart = all(end <= start for end, (_, _, start, _) in zip(ends, outer, strict=False))
    return apart and all(any(begin <= start <= stop <= end for _, _, begin, end in outer) for _, _, start, stop in inner)


def test_a_training_run_traced(files: Files, tmp_path: Path) -> None:
    """Each step as long as the metrics say, with two batches and the optimizer in it; levels lie in batches, tiles in levels."""
    x = np.random.default_rng(0).standard_normal((192, 256))
    metrics = tmp_path / "m.jsonl"
    done = cleave(*training(files, tmp_path, x, "--metrics", metrics, "--checkpoint", tmp_path / "run", "--json"))
    assert done.exit_code == 0, done.stderr
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    tracks, process = decoded(tmp_path / "t.pftrace")
    assert process == f"{files.model.stem} over three"
    steps, batches, levels, optimizer = (tracks.pop(name) for name in ("steps", "batches", "levels", "optimizer"))
    assert [name for name, *_ in steps] == ["step 1", "step 2"]
    assert [name for name, *_ in batches] == ["batch 1", "batch 2", "batch 3", "batch 4"]
    assert [name for name, *_ in tracks.pop("checkpoints")] == ["after step 2"]
    for slices, figure in ((steps, "step_s"), (optimizer, "optimizer_s")):
        assert [(stop - start) / 1e9 for *_, start, stop in slices] == pytest.approx([line[figure] for line in lines], abs=2e-9)
    assert [stop for *_, stop in optimizer] == [stop for *_, stop in steps]
    assert inside(batches, steps)
    assert inside(tracks.pop("server operators"), batches)
    assert inside(levels, batches)
    assert len({name for name, *_ in levels}) * 4 == len(levels)
    devices = {name: slices for name, slices in tracks.items() if not name.startswith("incident")}
    assert devices
    assert all(inside(tiles, levels) and {depth for _, depth, *_ in tiles} == {0} for tiles in devices.values())


def test_a_run_that_fails_is_traced_up_to_there(files: Files, tmp_path: Path) -> None:
    """A loss that is no number ends the run in its first step, whose batch is in the trace."""
    done = cleave(*training(files, tmp_path, np.full((128, 256), np.nan)))
    assert done.exit_code == 5
    tracks, _ = decoded(tmp_path / "t.pftrace")
    assert [name for name, *_ in tracks["batches"]] == ["batch 1"]
    assert "steps" not in tracks
    assert not (tmp_path / "out.onnx").exists()


def test_without_perfetto_nothing_is_begun(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after hours of training: the remedy is named before the first step."""
    monkeypatch.setitem(sys.modules, "perfetto.protos.perfetto.trace", None)
    done = cleave(*training(files, tmp_path, np.zeros((128, 256)), "--metrics", tmp_path / "m.jsonl"))
    assert done.exit_code == 2
    assert "cleave-plan[trace]" in done.stderr
    assert not (tmp_path / "m.jsonl").exists()
