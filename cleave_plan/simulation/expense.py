r"""What a batch costs: the energy of devices that are there anyway, and the rent of what is paid by the hour.

    energy = sum over devices of watts * busy seconds            a rival's: devices used * mean watts * batch seconds
    cost   = energy * DOLLARS_PER_KWH                            a cloud's: GPUs * their price * batch seconds
    rent   = batch seconds * (prices of the devices used and of the servers, where a strategy needs them)
                                                                 a rival's: devices used * mean price

Which devices a rival uses is not told, so that it has the fleet's mean figures, and its devices are busy all the time. A figure
that one of them lacks makes the sum unknown, not smaller: what is there anyway has the price 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cleave_plan.fleet.device import Device, Fleet, Server
from cleave_plan.simulation.baselines.server_centred import Accelerator
from cleave_plan.simulation.baselines.setting import Outcome

DOLLARS_PER_KWH = 0.16
"""US average of homes in 2023 (EIA, Electric Power Annual)."""

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Expense:
    """Of one batch; None: a figure is missing, or it does not run."""

    energy_wh: float | None = None
    cost_dollars: float | None = None
    rent_dollars: float | None = None


UNKNOWN = Expense()


def of_plan(batch_s: float, busy_s: NDArray[np.float64], fleet: Fleet, servers: Iterable[str]) -> Expense:
    """Of a plan whose devices are busy for ``busy_s`` each (those with 0 are not used), around ``servers`` of ``fleet``."""
    named = set(servers)
    paid: list[Device | Server] = [device for device, busy in zip(fleet.devices, busy_s.tolist(), strict=True) if busy > 0]
    paid += [server for server in fleet.servers if server.name in named]
    watts = _known([device.power_watt for device in fleet.devices])
    prices = _known([one.dollars_per_hour for one in paid])
    return _expense(
        energy_wh=None if watts is None else float(busy_s @ watts) / HOUR_S,
        rent_dollars=None if prices is None else batch_s / HOUR_S * float(prices.sum()),
    )


def of_rival(found: Outcome, fleet: Fleet, servers: Sequence[Server] = ()) -> Expense:
    """Of a strategy over devices of ``fleet`` that needs these ``servers``."""
    if not math.isfinite(found.batch_s):
        return UNKNOWN
    hours, used = found.batch_s / HOUR_S, found.devices_used
    watts = _known([device.power_watt for device in fleet.devices])
    prices = _known([device.dollars_per_hour for device in fleet.devices]) if used else np.zeros(1)
    more = _known([server.dollars_per_hour for server in servers])
    return _expense(
        energy_wh=None if watts is None or servers else used * float(watts.mean()) * hours,
        rent_dollars=None if prices is None or more is None else hours * (used * float(prices.mean()) + float(more.sum())),
    )


def of_cloud(found: Outcome, accelerator: Accelerator) -> Expense:
    """Of so many GPUs, whose price is the rent and whose energy is in it."""
    hours = found.devices_used * found.batch_s / HOUR_S
    dollars = accelerator.dollars_per_hour * hours
    return Expense(energy_wh=accelerator.power_watt * hours, cost_dollars=dollars, rent_dollars=dollars)


def _expense(*, energy_wh: float | None, rent_dollars: float | None) -> Expense:
    cost = None if energy_wh is None else energy_wh / 1000 * DOLLARS_PER_KWH
    return Expense(energy_wh=energy_wh, cost_dollars=cost, rent_dollars=rent_dollars)


def _known(figures: Sequence[float | None]) -> NDArray[np.float64] | None:
    """All figures; None where one is missing."""
    found = [figure for figure in figures if figure is not None]
    return np.array(found, dtype=float) if len(found) == len(figures) else None
