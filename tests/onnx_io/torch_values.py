"""What PyTorch computed for its exported fixtures (models/torch_fixtures.py)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Values:
    """``tensors``: (initialiser, parameter, whether the one is the other transposed)."""

    inputs: dict[str, Array]
    target: Array
    loss: float
    gradients: dict[str, Array]
    tensors: list[tuple[str, str, bool]]


def load_values(folder: Path, file: str) -> Values:
    """The values of one file, MODEL-EXPORTER."""
    model, exporter = file.split("-")
    with np.load(folder / f"{model}.npz") as arrays:
        tensors = [str(entry).rpartition("=") for entry in arrays[f"tensors.{exporter}"]]
        return Values(
            inputs={name.removeprefix("input."): arrays[name] for name in arrays if name.startswith("input.")},
            target=arrays["target"],
            loss=float(arrays["loss"]),
            gradients={name.removeprefix("gradient."): arrays[name] for name in arrays if name.startswith("gradient.")},
            tensors=[(tensor, name.removesuffix("^T"), name.endswith("^T")) for tensor, _, name in tensors],
        )
