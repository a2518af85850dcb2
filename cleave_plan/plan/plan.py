"""The plan as a value: who computes which tile of which GEMM, what it is predicted to take, and how near the best.

An :class:`Assignment` holds the tiles that a set of identical GEMMs (``gemms``, by name) share: the same boxes on the
same devices. GEMMs of one class may be in several assignments (other servers; other devices for the copies inside
one level). Times: ``ideal`` and ``executed`` are the two costs of :mod:`cleave_plan.cost.tile`.

    predicted.batch_s = predicted.levels_s + predicted.server_operators_s          (executed cost)
    predicted.gap     = 1 - predicted.bound_s / predicted.ideal_levels_s           (ideal cost)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from cleave_plan.cost.tile import Ints, Tiles
from cleave_plan.workload.recompute import Recomputed

SCHEMA_VERSION = 1


class Mode(StrEnum):
    """How a GEMM is cut."""

    ROW = "row"
    COLUMN = "column"
    TWO_DIMENSIONAL = "two-dimensional"
    INNER = "inner"
    SERVER = "server"


class SolverStatus(StrEnum):
    """What is known of the program's answer; there is no other outcome."""

    OPTIMAL = "optimal"
    WITHIN_GAP = "within-gap"
    TIME_LIMITED = "time-limited"


def _nothing() -> Ints:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assignment:
    """One decision: ``gemms`` (names) are cut by ``tiles`` (empty in server mode).

    ``tiles.device`` holds places in the plan's ``device_names``; ``len(device_names)`` stands for ``server``, which then
    computes that tile itself beside the devices. ``server`` holds the weights and adds the results; where the weights are
    striped, ``servers`` is the whole set (``server`` first), each with its share of the traffic in ``shares`` (sums to 1).

    GEMMs that share an operand or a result may be cut as one (:mod:`cleave_plan.workload.joined`): then each ``joined``
    names in a row are one such product, its members one after the other along ``join_axis`` ("n" or "k"; "chain" for
    attention as one piece of work), and the tiles are boxes of that product.

    ``held_a``, ``held_b``: columns like those of ``tiles`` (empty: all 0): of so many rows of its piece of A, and of so many
    columns of its piece of B, does a tile find on its device what that had of them before
    (:mod:`cleave_plan.workload.reuse`). It is not sent again, and takes memory.
    """

    class_name: str
    mode: Mode
    gemms: tuple[str, ...]
    server: str
    servers: tuple[str, ...]
    shares: tuple[float, ...]
    joined: int = 1
    join_axis: str = ""
    tiles: Tiles
    held_a: Ints = field(default_factory=_nothing)
    held_b: Ints = field(default_factory=_nothing)

    @property
    def finds(self) -> bool:
        """Whether any tile finds something on its device."""
        return bool(self.held_a.any() or self.held_b.any())

    def products(self) -> list[tuple[str, ...]]:
        """The names of each product's members."""
        return [tuple(self.gemms[start : start + self.joined]) for start in range(0, len(self.gemms), self.joined)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelReport:
    """One level (or ``count`` identical ones, the first being ``index``): seconds by both costs, bound, what binds.

    ``binds``: "device NAME", "egress NAME", "ingress NAME" or "server NAME". ``gemms`` are the names in one copy.
    """

    index: int
    count: int
    gemms: tuple[str, ...]
    ideal_s: float
    executed_s: float
    bound_s: float
    binds: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What the plan is predicted to take, in seconds, and its certificate.

    Devices and bytes to and from them leave out the tiles that servers compute themselves. Where devices keep frozen operands
    from batch to batch all figures are those of a batch after the first, which takes ``first_batch_s``; else that is
    ``batch_s``. ``spared_bytes``: what devices are not sent because they hold it; ``device_kept_bytes``: what each keeps.
    ``tokens``: how many a batch adds, where the model is a decoding step.
    """

    batch_s: float
    first_batch_s: float
    levels_s: float
    server_operators_s: float
    ideal_levels_s: float
    bound_s: float
    gap: float
    levels: tuple[LevelReport, ...]
    devices_used: int
    devices_total: int
    one_device_s: float | None
    one_device_name: str | None
    server_only_s: float | None
    downlink_bytes: float
    uplink_bytes: float
    server_memory_bytes: Mapping[str, float]
    device_memory_bytes: Mapping[str, float]
    spared_bytes: float
    device_kept_bytes: Mapping[str, float]
    tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverReport:
    """The integer program's own story: status, objective and dual bound in seconds (ideal cost), relative gap.

    ``build_s``, ``solve_s``: seconds that it took, which no plan file has (the same input gives the same file); None when the
    plan was read from one.
    """

    name: str
    status: SolverStatus
    objective: float
    bound: float
    gap: float
    build_s: float | None
    solve_s: float | None
    variables: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """One demand of a user on a plan (:mod:`cleave_plan.plan.constraints`): names or patterns of GEMMs or of devices, and
    what is demanded of them. Empty or None: nothing.
    """

    name: str
    gemms: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    modes: tuple[Mode, ...] = ()
    servers: tuple[str, ...] = ()
    exclude: bool = False
    memory_bytes: float | None = None
    headroom: float | None = None
    work: float | None = None
    time_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A model or fleet that the plan was made for."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """A whole plan. ``dims``/``shapes``/``trips`` are the bindings it was made with; ``settings`` the planner's options in words.

    ``training``: the plan is for a training step, whose backward GEMMs are derived from the model's. ``recompute``: what
    computing forward values again changes in it; None: all are kept. ``constraints``: what a user demanded of it; the bound is
    then that of the constrained problem, as far as a note says. ``percentile``: the figures of devices that have quartiles were
    taken at it (:mod:`cleave_plan.fleet.percentile`); None: as the fleet gives them.
    """

    model: Reference
    fleet: Reference
    dims: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]
    settings: Mapping[str, str]
    device_names: tuple[str, ...]
    server_names: tuple[str, ...]
    assignments: tuple[Assignment, ...]
    predicted: Predicted
    solver: SolverReport
    notes: tuple[str, ...] = ()
    training: bool = False
    trips: Mapping[str, int] = field(default_factory=dict)
    percentile: float | None = None
    constraints: tuple[Constraint, ...] = ()
    recompute: Recomputed | None = None
    schema_version: int = field(default=SCHEMA_VERSION)

    @property
    def report(self) -> Predicted:
        """The predicted figures (``plan.report.gap``)."""
        return self.predicted
