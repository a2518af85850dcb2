"""Options under a user's constraints: only allowed modes, and no device beyond its cap of work or time.

A cap is kept by showing the search a slower device: whoever has too much in the fastest option is slowed by that ratio and
the search is made again, a few times; a device that is still beyond its cap is then left out of this GEMM. What is offered is
priced with the true figures, and keeps every cap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.cost.tile import price
from cleave_plan.errors import InfeasibleError
from cleave_plan.fleet.device import Server
from cleave_plan.plan.constraints import Caps, GemmRule
from cleave_plan.plan.plan import Mode
from cleave_plan.planning.bounds import Links
from cleave_plan.planning.lines import line_tilings
from cleave_plan.planning.option import Option, Part, non_dominated, on_server, option_of
from cleave_plan.planning.terms import eligible, terms_of
from cleave_plan.workload.gemm import Gemm
from cleave_plan.workload.graph import Chain, Workload

Floats = NDArray[np.float64]
Find = Callable[[DeviceColumns], list[Option]]

_ROUNDS = 6
"""Times that a search is made again to keep the caps."""

_UNDER = 0.97
"""A device is slowed to this much under its cap, because whole rows move in steps."""

_SLACK = 1 + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules that GEMMs of a view carry by their key, and caps on devices (None: there is none)."""

    gemms: Mapping[str, GemmRule] = field(default_factory=dict)
    caps: Caps | None = None

    def of(self, gemm: Gemm) -> GemmRule | None:
        """The rule of a GEMM of the planned view."""
        return self.gemms[gemm.rule] if gemm.rule else None

    def modes(self, gemm: Gemm) -> frozenset[Mode]:
        """The modes that ``gemm`` may have."""
        rule = self.of(gemm)
        return frozenset(Mode) if rule is None else rule.modes

    def keep(self, chain: Chain, workload: Workload) -> bool:
        """Whether ``chain`` may be one piece of work: its GEMMs are under the same rule, which lets rows be cut."""
        if not self.gemms:
            return True
        members = [gemm for gemm in workload.gemms if gemm.name in chain.gemms]
        return len({gemm.rule for gemm in members}) == 1 and Mode.ROW in self.modes(members[0])

    def bind(self, gemm: Gemm) -> bool:
        """Whether a rule or a cap may be why nothing is left for ``gemm``."""
        return bool(gemm.rule) or self.caps is not None

    def allows_server(self, gemm: Gemm, server: str) -> bool:
        """Whether ``server`` may hold weights of ``gemm`` and compute of it."""
        rule = self.of(gemm)
        return rule is None or rule.servers is None or server in rule.servers


def ruled_options(
    part: Part, devices: DeviceColumns, links: Links, server: Server | None, rules: Rules, share: int, find: Find
) -> list[Option]:
    """The options of ``part`` that obey; ``find`` searches without rules, over devices as they are shown to it.

    ``share``: how many parts a level has at most; each may use that part of a device's cap in seconds.
    """
    modes = rules.modes(part.gemm)

    def allowed(shown: DeviceColumns) -> list[Option]:
        found = [option for option in find(shown) if option.mode in modes]
        missing = modes - {option.mode for option in found} if modes < frozenset(Mode) else frozenset()
        return found + _pinned(part, shown, links, frozenset(missing))

    if part.gemm.macs == 0 or part.gemm.pinned:
        return [option for option in find(devices) if option.mode in modes]
    if modes == {Mode.SERVER}:
        return [] if server is None else [on_server(part, len(devices), server)]
    if rules.caps is None:
        return allowed(devices)
    return _capped(part, devices, links, rules.caps, share, allowed)


def _pinned(part: Part, devices: DeviceColumns, links: Links, modes: frozenset[Mode]) -> list[Option]:
    """Plain tilings in ``modes`` over all devices and over the abler ones, halving."""
    terms = terms_of(part.gemm, part.copies)
    able = np.flatnonzero(eligible(terms, devices))
    if len(able) == 0 or part.gemm.macs == 0:
        return []
    order = able[np.argsort(-np.minimum(devices.downlink, devices.uplink)[able], kind="stable")]
    found: list[Option] = []
    count = len(order)
    while count:
        for boxes in line_tilings(terms, devices, order[:count], modes):
            option = option_of(part, boxes, devices)
            if option.mode in modes and np.isfinite(option.device_s.max()):
                found.append(option)
        count //= 2
    return non_dominated(found, links)


def _capped(part: Part, devices: DeviceColumns, links: Links, caps: Caps, share: int, find: Find) -> list[Option]:
    """Options within the caps, found with devices shown slower than they are."""
    time_cap = caps.time_s / share
    scale = np.ones(len(devices))
    kept: list[Option] = []
    for attempt in range(_ROUNDS + 1):
        found = [_repriced(part, option, devices) for option in find(_slowed(devices, scale))]
        used = [np.maximum(*_use(part, option, devices, caps.work, time_cap)) for option in found]
        kept += [option for option, use in zip(found, used, strict=True) if bool((use <= _SLACK).all())]
        cut = [place for place, option in enumerate(found) if option.mode is not Mode.SERVER]
        if not cut:
            break
        over = used[min(cut, key=lambda place: found[place].seconds(links))]
        if bool((over <= _SLACK).all()):
            break  # the fastest obeys
        left_out = attempt >= _ROUNDS - 1
        scale = np.where(over > _SLACK, 0.0 if left_out else scale * _UNDER / np.maximum(over, 1.0), scale)
    return non_dominated(kept, links)


def _slowed(devices: DeviceColumns, scale: Floats) -> DeviceColumns:
    """``devices`` at ``scale`` times their pace; where that is 0, without the memory to take part."""
    pace = np.where(scale > 0, scale, 1.0)
    return replace(
        devices, flop_per_s=devices.flop_per_s * pace, downlink=devices.downlink * pace, uplink=devices.uplink * pace,
        memory=np.where(scale > 0, devices.memory, 0.0),
    )  # fmt: skip


def _repriced(part: Part, option: Option, devices: DeviceColumns) -> Option:
    """``option`` with the true seconds of ``devices``."""
    seconds = np.zeros(len(devices))
    for tiles in option.tiles:
        sent = tiles.select(tiles.device < len(devices))
        seconds += np.bincount(sent.device, price(part.gemm, sent, devices).ideal_s, minlength=len(devices))
    return replace(option, device_s=seconds)


def _use(part: Part, option: Option, devices: DeviceColumns, work_cap: Floats, time_cap: Floats) -> tuple[Floats, Floats]:
    """What each device is given, over its caps of work and of time."""
    work, seconds = np.zeros(len(devices)), np.zeros(len(devices))
    for tiles in option.tiles:
        t = tiles.select(tiles.device < len(devices))
        macs = 1.0 * (t.m_stop - t.m_start) * (t.n_stop - t.n_start) * (t.k_stop - t.k_start) * (t.batch_stop - t.batch_start)
        work += np.bincount(t.device, macs, minlength=len(devices))
        seconds += np.bincount(t.device, price(part.gemm, t, devices).executed_s, minlength=len(devices))
    return work / (part.copies * part.gemm.shape.macs) / work_cap, seconds / time_cap


def nothing_obeys(gemm: Gemm, rules: Rules) -> InfeasibleError:
    """The error for a GEMM that no allowed option does."""
    rule = rules.of(gemm)
    modes = " or ".join(sorted(mode.value for mode in rules.modes(gemm))) or "no mode at all"
    caps = " within the caps on devices" if rules.caps is not None and rules.caps.any else ""
    return InfeasibleError(
        f"nothing does it as {modes}{caps}", where=f"GEMM {gemm.name}", remedy="loosen a constraint",
        facts={"gemm": gemm.name, "constraints": list(rule.names) if rule else []},
    )  # fmt: skip
