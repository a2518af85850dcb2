"""``cleave-plan gradient``: the file that it writes, what it says, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from cli_cases import PLAIN, Files, cleave

from models.registry import build


def test_a_training_graph(files: Files, tmp_path: Path) -> None:
    """The report names loss, targets and gradients; the file passes the checker."""
    out = tmp_path / "step.onnx"
    result = cleave("gradient", files.model, "--loss", "cross-entropy", "--target", "labels", "-o", out)
    assert result.exit_code == 0, result.output
    assert "labels holds the targets" in result.stdout
    assert "grad:fc1.weight" in result.stdout
    onnx.checker.check_model(onnx.load(out), full_check=True)


def test_every_option_in_json(files: Files, tmp_path: Path) -> None:
    """One document on stdout."""
    out = tmp_path / "step.onnx"
    result = cleave(
        "gradient", files.model, "--loss", "cross-entropy", "--output", "logits", "--ignore-index", "-1",
        "--label-smoothing", "0.1", "--class-axis", "1", "--parameters", "fc*", "--freeze", "*.bias",
        "--batch-norm", "batch", "--keep-outputs", "--dim", "batch=4", "-o", out, "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["out"] == str(out)
    assert document["loss"] == "loss"
    assert document["kept_outputs"] == ["logits"]
    assert {parameter["name"] for parameter in document["parameters"]} == {"fc1.weight", "fc2.weight"}
    assert document["constants"]["fc1.bias"] == "frozen"


def test_memory_for_work(tmp_path: Path) -> None:
    """Both figures with their units, before and after."""
    model, out = tmp_path / "gpt.onnx", tmp_path / "step.onnx"
    model.write_bytes(build("gpt-tiny").SerializeToString())
    arguments = ["gradient", model, "--loss", "cross-entropy", "--dim", "batch=8", "--dim", "seq=32", "--recompute", "-o", out]
    result = cleave(*arguments)
    assert result.exit_code == 0, result.output
    assert "with all forward values kept" in result.stdout
    assert "FLOP with all values kept" in " ".join(result.stdout.split())
    found = json.loads(cleave(*arguments, "--json").stdout)["recomputation"]
    assert found["live_bytes"] < found["plain_live_bytes"]
    assert found["gemm_flop"] > found["plain_gemm_flop"]


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--loss", "hinge"], 2, "there is no loss 'hinge'"),
        (["--loss", "output:nothing"], 2, "no output 'nothing'"),
        (["--loss", "mse", "--freeze", "zzz"], 2, "matches 'zzz'"),
        (["--loss", "mse", "--dim", "zzz=3"], 2, "no dimension 'zzz'"),
    ],
)
def test_refusals(files: Files, tmp_path: Path, options: list[str], code: int, text: str) -> None:
    """Names that do not exist; nothing is written."""
    out = tmp_path / "step.onnx"
    result = cleave("gradient", files.model, *options, "-o", out)
    assert result.exit_code == code
    assert text in result.stderr
    assert not out.exists()


def test_memory_for_work_before_anything_runs(files: Files, tmp_path: Path) -> None:
    """``inspect`` and ``plan`` of the forward file say what is kept and what it costs; plans tell it on, and a forward pass is
    refused."""
    model, plan, page = tmp_path / "gpt.onnx", tmp_path / "plan.json", tmp_path / "plan.html"
    model.write_bytes(build("gpt-tiny").SerializeToString())
    sizes = ["--dim", "batch=8", "--dim", "seq=32"]
    asked = cleave("inspect", model, *sizes, "--training", "--recompute")
    assert asked.exit_code == 0, asked.output
    shown = " ".join(asked.stdout.split())
    assert "4 of 5 segments" in shown
    assert "rather than" in shown
    found = json.loads(cleave("inspect", model, *sizes, "--training", "--recompute", "--json").stdout)
    assert found["recompute"]["kept_bytes"] < found["recompute"]["all_kept_bytes"]
    again = [gemm for gemm in found["gemms"] if gemm["phase"] == "recompute"]
    assert sum(gemm["flop"] for gemm in again) == found["recompute"]["extra_flop"] > 0
    made = cleave("plan", model, *sizes, "--training", "--recompute", *PLAIN, "--fleet", files.fleet, "-o", plan)
    assert made.exit_code == 0, made.output
    assert "4 of 5 segments" in " ".join(made.stdout.split())
    assert json.loads(plan.read_text())["recompute"] == found["recompute"]
    assert cleave("check", plan, "--model", model, "--fleet", files.fleet).exit_code == 0
    assert cleave("report", plan, "-o", page).exit_code == 0
    assert "4 of 5 segments" in page.read_text()
    refused = cleave("inspect", model, *sizes, "--recompute")
    assert refused.exit_code == 2
    assert "add --training" in refused.stderr
