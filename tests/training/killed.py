"""``python killed.py MODEL FOLDER STEPS``: a run that writes a checkpoint after every step, and resumes, until it is over."""

from __future__ import annotations

import sys
from pathlib import Path

from training_cases import samples, train_here

from cleave_plan.training.run import Duration
from cleave_plan.training.settings import Settings


def main() -> None:
    """Train the perceptron in this process."""
    model, folder, steps = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    duration = Duration(
        steps=steps, metrics=folder / "metrics.jsonl", checkpoints=folder / "run", checkpoint_every=1, resume=True
    )
    result = train_here(model, samples(), Settings(learning_rate=1e-3, weight_decay=0.1, momentum=0.0, seed=2), duration)
    print(*result.notes, sep="\n")


if __name__ == "__main__":
    main()
