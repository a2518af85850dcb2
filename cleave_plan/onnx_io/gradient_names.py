"""What the tensors of a gradient file are called, and where it says so: JSON in the model's metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import onnx

KEY = "cleave_plan.gradient"
"""The metadata property that makes a model a gradient file."""

GRADIENT_PREFIX = "grad:"
UPDATED_PREFIX = "updated:"


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientNames:
    """Names in a gradient file.

    ``loss``: the output that holds it; ``target``: the input for labels or values, "" when there is none. ``gradients``:
    parameter -> output with its gradient. ``statistics``: running statistic -> output with its value after the batch.
    ``kept``: outputs of the forward model that are outputs still. ``forward_sha256``: of the forward file.
    """

    loss: str
    target: str = ""
    gradients: Mapping[str, str] = field(default_factory=dict)
    statistics: Mapping[str, str] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    forward_sha256: str = ""

    def write(self, model: onnx.ModelProto) -> None:
        """Put the names into the metadata of ``model``."""
        model.metadata_props.add(key=KEY, value=json.dumps(asdict(self)))


def gradient_names(model: onnx.ModelProto) -> GradientNames | None:
    """The names that a gradient file states; None for any other model (and for metadata that cannot be read)."""
    text = next((entry.value for entry in model.metadata_props[:] if entry.key == KEY), None)
    if text is None:
        return None
    try:
        fields = json.loads(text)
        return GradientNames(**{**fields, "kept": tuple(fields["kept"])})
    except (ValueError, TypeError, KeyError):
        return None
