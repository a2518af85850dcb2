r"""Forward values that a training step computes again instead of keeping them: the segments, and what they change.

The forward pass is cut into segments. The backward pass takes them from the last to the first; before it gets to one (but the
last, whose values are still there), those of the segment's GEMMs and operators that gradients read run a second time, from what
was kept at the cuts. Where the cuts are, :mod:`cleave_plan.onnx_io.gradient.cuts` decides, for a gradient file and for a
step that is only planned.
"""

from __future__ import annotations

from dataclasses import dataclass

AGAIN = "again/"
"""What names of GEMMs and operators that run a second time begin with."""

LEAST_SPARED = 0.05
"""Share of the memory that computing values again must spare to be worth its work; below it all are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """What computing forward values again changes in a step of ``segments`` segments (1: all values are kept).

    ``kept_bytes``: the most bytes of forward values that are there at once for the backward pass: those at the cuts so far, and
    what gradients read of the segment in hand. ``all_kept_bytes``: the same where every value is kept. ``extra_flop``: of the
    GEMMs that run a second time.
    """

    segments: int
    kept_bytes: int
    all_kept_bytes: int
    extra_flop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One segment: names of its GEMMs and of its server operators, ``again`` those of both that run a second time.

    ``kept_bytes``: forward values that are there while its backward pass runs.
    """

    gemms: frozenset[str]
    operators: frozenset[str]
    again: frozenset[str]
    kept_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """A forward pass in segments, in its order; together they hold every GEMM and server operator once.

    ``live_bytes``: of each forward level, activations alive while it runs, and those kept by then for the backward pass (None
    where a size is not known). ``all_kept_bytes``: forward values that the backward pass reads.
    """

    parts: tuple[Segment, ...]
    live_bytes: tuple[int | None, ...]
    all_kept_bytes: int
