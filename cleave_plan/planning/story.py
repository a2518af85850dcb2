"""What :mod:`cleave_plan.planning.explain` tells, as values: of GEMMs, of devices, of what else could be."""

from __future__ import annotations

from dataclasses import dataclass

from cleave_plan.plan.plan import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another way to do a GEMM: its ideal seconds alone (None: there is no such way) and how many devices it uses."""

    name: str
    ideal_s: float | None
    devices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmStory:
    """One decision of the plan: ``gemms`` are done as ``mode`` over ``devices`` devices, ``joined`` of them as one.

    ``ideal_s``, ``executed_s`` and ``bound_s``: of one product alone. ``binds``: what it waits for, with the resource of a
    device ("device phone: uplink"). ``alternatives`` are sorted, those that do not exist last.
    """

    gemms: tuple[str, ...]
    mode: Mode
    joined: int
    devices: int
    ideal_s: float
    executed_s: float
    bound_s: float
    binds: str
    constraints: tuple[str, ...]
    alternatives: tuple[Alternative, ...]

    @property
    def next_best(self) -> Alternative | None:
        """The shortest alternative."""
        best = self.alternatives[0] if self.alternatives else None
        return best if best is not None and best.ideal_s is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a device: seconds by which the bound and the plan's levels (ideal cost, same tiles) become shorter.

    Negative: longer. ``plan_s`` is None where the plan's tiles cannot stay, ``bound_s`` where no device would be left.
    """

    name: str
    bound_s: float | None
    plan_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPiece:
    """What a device holds of an operand ("a" or "b") for one tile of each of ``products`` (names of joined GEMMs with " + "):
    ``bytes`` in each, of the tile ``m`` x ``n`` x ``k`` (a frozen operand's rows or columns from the first on)."""

    products: tuple[str, ...]
    operand: str
    m: tuple[int, int]
    n: tuple[int, int]
    k: tuple[int, int]
    bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStory:
    """What a device does in the plan, in seconds of the batch by resource, what binds it, what it holds when its tiles start, and
    what changes would bring."""

    device: str
    seconds: dict[str, float]
    binds: str
    holds_up_s: float
    held: tuple[HeldPiece, ...]
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The stories of the GEMMs and devices asked for, beside the plan's ideal time and bound of all levels."""

    ideal_levels_s: float
    bound_s: float
    gemms: tuple[GemmStory, ...]
    devices: tuple[DeviceStory, ...]
