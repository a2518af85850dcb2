"""``python -m models.digits``: train a network on handwritten digits over eight unequal devices, command by command.

The data are scikit-learn's 1,797 digits of 8 x 8 pixels (extra ``digits``), every fifth one of a seeded order kept for the test.
Everything goes to ``demo-out/digits``; ``--picture FILE.svg`` also draws the loss.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from sklearn.datasets import load_digits

from models.builder import Dims, GraphBuilder, Seeded
from models.demo import FLEET, show
from models.picture import loss_picture
from models.small import CnnConfig, build_cnn

OUT = Path("demo-out/digits")
CONFIG = CnnConfig(size=(8, 8), channels=1, stem=16, stages=(32, 64), groups=1)
BATCH, STEPS = 64, 200
BAR = 0.97
SETTINGS = """\
schema: 1
optimizer: adamw
learning_rate: 0.003
weight_decay: 0.01
groups: [{parameters: ["*.bias", "*.norm.*"], weight_decay: 0}]
schedule: {kind: cosine, warmup_steps: 20, final: 0.01}
"""


def network(seed: int = 0) -> onnx.ModelProto:
    """A residual network with batch norms: ``image [batch, 1, 8, 8]`` to ``logits [batch, 10]``."""
    builder = GraphBuilder("digits", np.dtype(np.float32), Seeded(seed), Dims())
    build_cnn(builder, CONFIG)
    return builder.model()


def digits(seed: int = 0) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Images (from 0 to 1) and labels to train and to test with."""
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(labels))
    image = (pixels / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    test = np.arange(len(order)) % 5 == 0
    return tuple({"image": image[rows], "target": labels[rows].astype(np.int64)} for rows in (order[~test], order[test]))  # type: ignore[return-value]


def accuracy(model: Path, test: dict[str, np.ndarray]) -> float:
    """The share of test images that onnxruntime classifies right with the model in a file."""
    logits = onnxruntime.InferenceSession(str(model)).run(None, {"image": test["image"]})[0]
    return float((logits.argmax(1) == test["target"]).mean())


def main(arguments: list[str] | None = None) -> int:
    """Train and test; exit code 0 when the accuracy reaches the bar, 1 when not, the command's own when it fails."""
    parser = argparse.ArgumentParser(prog="python -m models.digits", description="Train a small network on handwritten digits.")
    parser.add_argument("--picture", type=Path, metavar="FILE.svg", help="draw the loss")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help=f"steps of {BATCH} images (default: {STEPS})")
    options = parser.parse_args(arguments)
    OUT.mkdir(parents=True, exist_ok=True)
    train, test = digits()
    np.savez(OUT / "train.npz", **train)  # type: ignore[arg-type]
    (OUT / "digits.onnx").write_bytes(network().SerializeToString())
    (OUT / "settings.yaml").write_text(SETTINGS)
    shutil.copyfile(FLEET, OUT / "fleet.yaml")
    code, _ = show(
        (
            "train", str(OUT / "digits.onnx"), "--dim", f"batch={BATCH}", "--fleet", str(OUT / "fleet.yaml"),
            "--data", str(OUT / "train.npz"), "--loss", "cross-entropy", "--config", str(OUT / "settings.yaml"),
            "--steps", str(options.steps), "--metrics", str(OUT / "metrics.jsonl"), "-o", str(OUT / "trained.onnx"),
        )
    )  # fmt: skip
    if code != 0:
        return code
    if options.picture is not None:
        lines = [json.loads(line) for line in (OUT / "metrics.jsonl").read_text().splitlines()]
        title = f"Digits: loss of {len(train['target']):,} images, {BATCH} a step"
        options.picture.write_text(loss_picture([line["loss"] for line in lines], title))
    right = accuracy(OUT / "trained.onnx", test)
    print(f"\nonnxruntime on trained.onnx: {right:.2%} of {len(test['target'])} test images are classified right.")
    return 0 if right >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
