"""What the tensors of a gradient file are called, and where it says so: JSON in the model's metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import onnx

KEY = "cleave_plan.gradient"
"""The metadata property that makes a model a gradient file."""

RECOMPUTED = ("segments", "kept_bytes", "all_kept_bytes")
"""Figures of a file that computes forward values again."""

GRADIENT_PREFIX = "grad:"
UPDATED_PREFIX = "updated:"


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientNames:
    """Names in a gradient file.

    ``loss``: the output that holds it; ``target``: the input for labels or values, "" when there is none. ``gradients``:
    parameter -> output with its gradient. ``statistics``: running statistic -> output with its value after the batch.
    ``kept``: outputs of the forward model that are outputs still. ``forward_sha256``: of the forward file. ``recomputed``: where
    forward values are computed again, the figures ``RECOMPUTED`` of
    :class:`cleave_plan.workload.recompute.Recomputed`.
    """

    loss: str
    target: str = ""
    gradients: Mapping[str, str] = field(default_factory=dict)
    statistics: Mapping[str, str] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    forward_sha256: str = ""
    recomputed: Mapping[str, int] = field(default_factory=dict)

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
        recomputed = {name: int(fields["recomputed"][name]) for name in RECOMPUTED if fields.get("recomputed")}
        return GradientNames(**{**fields, "kept": tuple(fields["kept"]), "recomputed": recomputed})
    except (ValueError, TypeError, KeyError):
        return None
