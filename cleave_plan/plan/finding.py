"""What the second opinion answers with: findings, each a code, a place and a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cleave_plan.plan.objective import Figures


class Code(StrEnum):
    """The kinds of findings."""

    MODEL = "model"
    """The plan was made for another model."""
    FLEET = "fleet"
    """The plan was made for another fleet."""
    BINDINGS = "bindings"
    """The plan was made for other dimensions or input shapes."""
    NAMES = "names"
    """Device or server names are not the fleet's."""
    GEMM_UNKNOWN = "gemm-unknown"
    """A GEMM is assigned that the model does not have."""
    GEMM_MISSING = "gemm-missing"
    """A GEMM of the model is not assigned."""
    GEMM_DOUBLED = "gemm-doubled"
    """A GEMM is assigned more than once."""
    SERVERS = "servers"
    """The servers or shares of an assignment do not make sense."""
    MODE = "mode"
    """The tiles are not cut as the mode says."""
    TILE = "tile"
    """A tile is empty or on a device that does not exist."""
    GAP = "gap"
    """Something is computed by no tile."""
    OVERLAP = "overlap"
    """Something is computed by several tiles."""
    OUTSIDE = "outside"
    """A tile reaches beyond its GEMM."""
    HELD = "held"
    """A tile finds more on its device than its piece of an operand, or what the device cannot have had before."""
    DEVICE_MEMORY = "device-memory"
    """A tile does not fit its device."""
    SMALLEST_TILE = "smallest-tile"
    """A device takes part whose stream buffers do not hold one row and one column."""
    SERVER_MEMORY = "server-memory"
    """A server does not hold what is placed on it."""
    CONSTRAINT = "constraint"
    """A constraint that the plan was made under does not hold."""
    LEVELS = "levels"
    """The predicted levels are not the model's levels."""
    FIGURE = "figure"
    """A predicted figure is not what the tiles give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One reason not to trust the plan: its kind, the JSON path in the plan file, and a sentence for people."""

    code: Code
    where: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Verdict:
    """The second opinion on a plan.

    ``figures`` are the recomputed ones, None when the plan is too broken to have any. ``gemms`` and ``tiles`` say how much
    was checked (tiles of GEMMs that share an assignment count once).
    """

    findings: tuple[Finding, ...]
    figures: Figures | None
    gemms: int
    tiles: int

    @property
    def ok(self) -> bool:
        """True when nothing was found: cover, memory, hashes and objective hold."""
        return not self.findings
