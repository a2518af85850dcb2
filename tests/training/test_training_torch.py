"""50 steps of a tiny GPT-2 on real text beside PyTorch, undisturbed and through disaster (long: needs PyTorch)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disturbed import BATCH, SEQUENCE, SETTINGS, STEPS

pytestmark = pytest.mark.long

ROOT = Path(__file__).parent.parent.parent
LETTERS = "abcdefghijklmnopqrstuvwxyz 0123456789.,\n"


def text() -> dict[str, np.ndarray]:
    """The README's letters in windows, and the letter after each."""
    places = {letter: place for place, letter in enumerate(LETTERS)}
    tokens = np.array([places[letter] for letter in (ROOT / "README.md").read_text().lower() if letter in places])
    windows = np.lib.stride_tricks.sliding_window_view(tokens, SEQUENCE + 1)[::SEQUENCE]
    return {"x": windows[:, :-1].astype(np.int64), "target": windows[:, 1:].astype(np.int64)}


def torch_losses(torch: Any, module: Any, data: dict[str, np.ndarray]) -> list[float]:
    """PyTorch's own training: the same batches, AdamW, clipping and schedule."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=SETTINGS.learning_rate, weight_decay=SETTINGS.weight_decay)
    shares = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: SETTINGS.schedule.share(step, STEPS))
    order = np.random.default_rng([SETTINGS.seed, 0]).permutation(len(data["x"]))
    losses = []
    for step in range(STEPS):
        chosen = order[step * BATCH : (step + 1) * BATCH]
        logits = module(torch.from_numpy(data["x"][chosen]))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(data["target"][chosen]).flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), SETTINGS.clip_norm)
        optimizer.step()
        shares.step()
        losses.append(float(loss.detach()))
    return losses


def run(model: Path, data: Path, folder: Path, *options: str) -> tuple[int, str]:
    """One process of ``disturbed.py``; its exit code, and the first line that it printed."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, str(Path(__file__).with_name("disturbed.py")), str(model), str(data), str(folder), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    print(done.stdout, done.stderr[-2000:])
    return done.returncode, done.stdout.split("\n")[0]


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_loss_curve_is_that_of_pytorch_whatever_happens(tmp_path: Path) -> None:
    """Over six unequal devices: within 1e-4 of PyTorch at every step; with a worker killed in step 11, a seventh device joining
    with the lost ones after step 20, and the server killed in step 31 and resumed, every bit is that of the undisturbed run.
    """
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-long installs it apart")
    from models import torch_gradients

    module, x = torch_gradients.make("gpt2", torch.float32)
    model, data = tmp_path / "gpt.onnx", tmp_path / "text.npz"
    torch_gradients.export(module, x, torch_gradients.CASES["gpt2"], "legacy", 18, model)
    samples = text()
    np.savez(data, **samples)  # type: ignore[arg-type]
    assert run(model, data, tmp_path / "undisturbed") == (0, "6 devices")
    disaster = ("--kill-worker", "10", "--join", "20", "--kill-server", "30")
    assert run(model, data, tmp_path / "disturbed", *disaster)[0] == -signal.SIGKILL
    assert run(model, data, tmp_path / "disturbed", *disaster)[0] == 0
    undisturbed, disturbed = lines_of(tmp_path / "undisturbed"), lines_of(tmp_path / "disturbed")
    assert [bool(line["lost_devices"]) for line in disturbed].index(True) == 10
    assert sum(len(line["joined_devices"]) for line in disturbed[20:30]) > 1
    for first, second in zip(undisturbed, disturbed, strict=True):
        assert (first["loss"], first["gradient_norm"]) == (second["loss"], second["gradient_norm"]), first["step"]
    expected = torch_losses(torch, module, samples)
    apart = [abs(line["loss"] - loss) for line, loss in zip(undisturbed, expected, strict=True)]
    print(f"loss from {expected[0]:.4f} to {expected[-1]:.4f}, at most {max(apart):.1e} from PyTorch's")
    assert max(apart) <= 1e-4
