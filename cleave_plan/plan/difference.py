"""What changed between two plans: what they were made for, what they predict, and who computes what.

GEMMs are compared by name. ``moved`` says how much of a GEMM's multiply-adds another device (or the server) computes:
1 - sum over devices of the smaller of its two shares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from cleave_plan.plan.constraints import in_words
from cleave_plan.plan.plan import Assignment, Plan
from cleave_plan.units import Unit, format_value

FIGURES = (
    "batch_s", "levels_s", "server_operators_s", "ideal_levels_s", "bound_s", "gap", "devices_used", "one_device_s",
    "server_only_s", "downlink_bytes", "uplink_bytes",
)  # fmt: skip
"""Predicted figures that are compared."""

SAME = 1e-12
"""Shares of work that differ by less are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """How one plan does a GEMM: mode, servers, how it is joined, and each device's share of its multiply-adds."""

    mode: str
    servers: tuple[str, ...]
    joined: int
    work: tuple[tuple[str, float], ...]

    @property
    def devices(self) -> int:
        """Devices (and the server, where it takes tiles) that compute some of it."""
        return len(self.work)


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmChange:
    """GEMMs that changed in the same way; a side is None where the plan does not have them."""

    gemms: tuple[str, ...]
    before: Side | None
    after: Side | None
    moved: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """All that differs. ``made_for`` and ``figures`` map a name to (before, after) and hold only what changed."""

    made_for: Mapping[str, tuple[str, str]]
    figures: Mapping[str, tuple[float | None, float | None]]
    devices_gone: tuple[str, ...]
    devices_new: tuple[str, ...]
    gemms: tuple[GemmChange, ...]
    gemms_same: int

    @property
    def none(self) -> bool:
        """Whether the plans are the same but for how long the solver took."""
        return not (self.made_for or self.figures or self.devices_gone or self.devices_new or self.gemms)


def difference(before: Plan, after: Plan) -> Difference:
    """What changed from ``before`` to ``after``; the solver's own times are left out."""
    old, new = _sides(before), _sides(after)
    grouped: dict[tuple[Side | None, Side | None], list[str]] = {}
    same = 0
    for name in [*old, *(name for name in new if name not in old)]:
        pair = (old.get(name), new.get(name))
        if pair[0] == pair[1]:
            same += 1
        else:
            grouped.setdefault(pair, []).append(name)
    changes = tuple(
        GemmChange(gemms=tuple(names), before=one, after=other, moved=_moved(one, other))
        for (one, other), names in grouped.items()
    )
    return Difference(
        made_for=_made_for(before, after), figures=_figures(before, after),
        devices_gone=tuple(name for name in before.device_names if name not in set(after.device_names)),
        devices_new=tuple(name for name in after.device_names if name not in set(before.device_names)),
        gemms=changes, gemms_same=same,
    )  # fmt: skip


def _made_for(before: Plan, after: Plan) -> dict[str, tuple[str, str]]:
    """Model, fleet, bindings, phase, servers and settings that differ, in words."""
    pairs = {
        "model": (_reference(before.model.name, before.model.sha256), _reference(after.model.name, after.model.sha256)),
        "fleet": (_reference(before.fleet.name, before.fleet.sha256), _reference(after.fleet.name, after.fleet.sha256)),
        "training": (str(before.training).lower(), str(after.training).lower()),
        "recompute": (_recomputed(before), _recomputed(after)),
        "servers": (", ".join(before.server_names), ", ".join(after.server_names)),
        "percentile": (_percentile(before), _percentile(after)),
    }
    old, new = ({one.name: in_words(one) for one in plan.constraints} for plan in (before, after))
    pairs |= {f"constraints.{name}": (old.get(name, ""), new.get(name, "")) for name in sorted({*old, *new})}
    for kind in ("dims", "shapes", "trips", "settings"):
        one, other = getattr(before, kind), getattr(after, kind)
        for name in sorted({*one, *other}):
            pairs[f"{kind}.{name}"] = (str(one.get(name, "")), str(other.get(name, "")))
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _percentile(plan: Plan) -> str:
    return "" if plan.percentile is None else f"{plan.percentile:g}"


def _recomputed(plan: Plan) -> str:
    """Segments, and bytes of forward values that are kept."""
    found = plan.recompute
    return "" if found is None else f"{found.segments} segments, {format_value(found.kept_bytes, Unit.BYTES)} kept"


def _reference(name: str, sha256: str) -> str:
    return f"{name} ({sha256[:12]})" if sha256 else name


def _figures(before: Plan, after: Plan) -> dict[str, tuple[float | None, float | None]]:
    pairs = {name: (getattr(before.predicted, name), getattr(after.predicted, name)) for name in FIGURES}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _sides(plan: Plan) -> dict[str, Side]:
    """Each GEMM's side; the GEMMs of one assignment share theirs."""
    found: dict[str, Side] = {}
    for assignment in plan.assignments:
        side = Side(
            mode=assignment.mode.value, servers=assignment.servers, joined=assignment.joined, work=_work(assignment, plan)
        )
        found.update(dict.fromkeys(assignment.gemms, side))
    return found


def _work(assignment: Assignment, plan: Plan) -> tuple[tuple[str, float], ...]:
    """Each device's share of the multiply-adds, by name; empty in server mode."""
    t = assignment.tiles
    owners = (*plan.device_names, f"{assignment.server} (server)")
    columns = (t.device, t.m_start, t.m_stop, t.n_start, t.n_stop, t.k_start, t.k_stop, t.batch_start, t.batch_stop)
    macs: Counter[str] = Counter()
    for device, m, m_stop, n, n_stop, k, k_stop, b, b_stop in zip(*(column.tolist() for column in columns), strict=True):
        macs[owners[device]] += (m_stop - m) * (n_stop - n) * (k_stop - k) * (b_stop - b)
    whole = sum(macs.values())
    return tuple(sorted((name, work / whole) for name, work in macs.items()))


def _moved(before: Side | None, after: Side | None) -> float:
    """The share of the multiply-adds that changes hands; 1 where one of the plans does not have the GEMM."""
    if before is None or after is None:
        return 1.0
    one, other = (dict(side.work or ((side.servers[0] + " (server)", 1.0),)) for side in (before, after))
    moved = 1 - sum(min(share, other.get(name, 0.0)) for name, share in one.items())
    return moved if moved > SAME else 0.0
