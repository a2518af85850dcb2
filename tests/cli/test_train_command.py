"""``cleave-plan train``: what it prints and writes, that it goes on where it was, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from cli_cases import FLEET, PLAIN, Files, cleave

from models.registry import build


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three batches of 64 samples for the perceptron."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("train") / "data.npz"
    np.savez(path, x=rng.standard_normal((192, 256)).astype(np.float32), labels=rng.integers(0, 10, 192))
    return path


def test_a_run_that_is_resumed(files: Files, data: Path, tmp_path: Path) -> None:
    """Worker processes, a plan and settings from files, metrics line by line, checkpoints; then three steps more."""
    step, plan, config = tmp_path / "step.onnx", tmp_path / "plan.json", tmp_path / "settings.yaml"
    config.write_text("schema: 1\nweight_decay: 0.1\ngroups: [{parameters: '*.bias', weight_decay: 0}]\n")
    sizes, target = ["--dim", "batch=64"], ["--loss", "cross-entropy", "--target", "labels", "--batch-norm", "batch"]
    assert cleave("gradient", files.model, *sizes, *target, "-o", step).exit_code == 0
    assert cleave("plan", step, "--training", "--fleet", files.fleet, "-o", plan).exit_code == 0
    out, metrics = tmp_path / "trained.onnx", tmp_path / "metrics.jsonl"
    command = [
        "train", files.model, *sizes, *target, "--fleet", files.fleet, "--data", data, "--plan", plan, "--config", config,
        "--optimizer", "adamw", "--learning-rate", "0.0003", "--seed", "3", "--reproducible", "--workers", "2",
        "--metrics", metrics, "--checkpoint", tmp_path / "run", "--checkpoint-every", "2", "-o", out,
    ]  # fmt: skip
    first = cleave(*command, "--steps", "3")
    assert first.exit_code == 0, first.stderr
    shown = " ".join(first.stdout.split())
    assert "steps 3 1 to 3" in shown
    assert "server home 9.517 MB 3.172 MB of parameters, 6.345 MB of optimizer state" in shown
    assert "step-00000003.npz" in shown
    again = cleave(*command, "--steps", "6", "--resume", "--json")
    assert again.exit_code == 0, again.stderr
    document = json.loads(again.stdout)
    assert (document["first_step"], document["last_step"], document["samples"]) == (4, 6, 64)
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert lines[-1]["loss"] == document["loss"] < lines[0]["loss"]
    assert {"step_s", "predicted_step_s", "samples_per_s", "learning_rate", "gradient_norm"} <= lines[0].keys()
    onnx.checker.check_model(out, full_check=True)
    assert out.read_bytes() != files.model.read_bytes()


def test_several_servers(files: Files, data: Path, tmp_path: Path) -> None:
    """Some of a fleet's servers: each holds a part of the parameters in a process of its own, and the loss is one server's."""
    fleet, losses = tmp_path / "fleet.yaml", []
    home = next(line for line in FLEET.splitlines() if "home" in line)
    fleet.write_text(FLEET.replace(home, "\n".join(home.replace("home", name) for name in ("home", "shed", "barn"))))
    for servers in ("1", "home,barn"):
        result = cleave(
            "train", files.model, "--dim", "batch=64", "--loss", "cross-entropy", "--target", "labels", "--fleet", fleet,
            "--data", data, "--steps", "2", "--servers", servers, "--json", "-o", tmp_path / "out.onnx",
        )  # fmt: skip
        assert result.exit_code == 0, result.stderr
        document = json.loads(result.stdout)
        losses.append([step["loss"] for step in document["steps"]])
    assert losses[0] == losses[1]
    assert [server["name"] for server in document["servers"]] == ["home", "barn"]
    assert [server["process"] is None for server in document["servers"]] == [True, False]
    assert all(server["optimizer_bytes"] == 2 * server["parameter_bytes"] > 0 for server in document["servers"])


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--resume"], 2, "--checkpoint DIR"),
        (["--loss", "hinge"], 2, "there is no loss 'hinge'"),
        (["--target", "y"], 4, "no array for 'y'"),
        (["--data", "absent.npz"], 4, "absent.npz: there is no such file"),
        (["--config", "absent.yaml"], 4, "absent.yaml: cannot be read"),
        (["--shape", "x=63x256"], 2, "bound to 63 by --shape x, and to 64 by --dim"),
        (["--freeze", "*"], 4, "no parameter has a gradient"),
        (["--engine", "ray", "--workers", "2"], 2, "workers are of the local engine"),
        (["--metrics", "out.onnx"], 2, "--metrics: out.onnx is the file of --out, too"),
        (["--config", "out.onnx"], 2, "--out: out.onnx is the file of --config, too"),
        (["--servers", "2"], 2, "2 servers asked for; expected between 1 and 1"),
        (["--servers", "home", "--plan", "plan.json"], 2, "the plan says which servers there are"),
    ],
)
def test_refusals(
    files: Files, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], code: int, text: str
) -> None:  # fmt: skip
    """One sentence, its exit code, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    out = Path("out.onnx")
    base = [
        "--dim",
        "batch=64",
        "--loss",
        "cross-entropy",
        "--target",
        "labels",
        "--fleet",
        files.fleet,
        "--data",
        data,
        "--steps",
        "1",
    ]
    result = cleave(
        "train", files.model, *base, "--no-reproducible", "--runtime", "auto", "--integrity", "off", *options, "--out", out
    )
    assert result.exit_code == code, result.output
    assert text in result.stderr
    assert not out.exists()


def test_labels_out_of_range_and_ignored(files: Files, tmp_path: Path) -> None:
    """A label that is no class ends the run before its step; batches in which none counts are said."""
    rng = np.random.default_rng(0)
    base = ["train", files.model, "--dim", "batch=64", "--loss", "cross-entropy", "--fleet", files.fleet, "--steps", "2"]
    for label, code, told in ((10, 4, "holds the label 10, at [0] of the batch"), (-100, 0, "no label counts")):
        data = tmp_path / "data.npz"
        np.savez(data, x=rng.standard_normal((64, 256)).astype(np.float32), target=np.full(64, label))
        result = cleave(*base, "--data", data, "-o", tmp_path / "out.onnx")
        assert result.exit_code == code, result.stderr
        assert told in " ".join((result.stdout + result.stderr).split())


def test_open_sizes_are_refused(files: Files, data: Path, tmp_path: Path) -> None:
    """A batch has to have a size."""
    result = cleave(
        "train", files.model, "--loss", "cross-entropy", "--fleet", files.fleet, "--data", data, "--steps", "1",
        "-o", tmp_path / "out.onnx",
    )  # fmt: skip
    assert result.exit_code in (2, 4)
    assert "--dim" in result.stderr


def test_plans_of_another_kind_of_step(tmp_path: Path) -> None:
    """A plan of the forward file, and one of a step that computes forward values again where this run does not, are refused with
    what to do; one of the same step is taken."""
    model, fleet, data, step = (tmp_path / name for name in ("gpt.onnx", "fleet.yaml", "data.npz", "step.onnx"))
    model.write_bytes(build("gpt-tiny").SerializeToString())
    fleet.write_text(FLEET)
    tokens = np.random.default_rng(2).integers(0, 50, (4, 17))
    np.savez(data, input_ids=tokens[:, :-1], target=tokens[:, 1:])
    sizes = ["--dim", "batch=2", "--dim", "seq=16"]
    of_forward, of_step, out = tmp_path / "forward.json", tmp_path / "step.json", tmp_path / "out.onnx"
    base = ["train", model, *sizes, "--loss", "cross-entropy", "--fleet", fleet, "--data", data, "--steps", "1", "-o", out]
    assert cleave("plan", model, "--training", "--recompute", *sizes, *PLAIN, "--fleet", fleet, "-o", of_forward).exit_code == 0
    refused = cleave(*base, "--recompute", "--plan", of_forward)
    assert refused.exit_code == 1
    assert "leave --plan out, or: cleave-plan gradient MODEL --loss ... --recompute -o STEP.onnx" in refused.stderr
    cleave("gradient", model, *sizes, "--loss", "cross-entropy", "--batch-norm", "batch", "--recompute", "-o", step)
    assert cleave("plan", step, "--training", "--recompute", *PLAIN, "--fleet", fleet, "-o", of_step).exit_code == 0
    refused = cleave(*base, "--plan", of_step)
    assert refused.exit_code == 1
    assert "give --recompute to train" in refused.stderr
    assert not out.exists()
    taken = cleave(*base, "--recompute", "--plan", of_step)
    assert taken.exit_code == 0, taken.stderr
