r"""The program that shares a fleet among the GEMMs of one level (:mod:`cleave_plan.planning.level`) at a given T.

Its devices are put together in bands of nearly equal ones that follow *plans*, so that it stays small for any fleet, and
its prices are valued on every device, so that what they prove is true of the fleet itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from cleave_plan.planning.ability import Ability
from cleave_plan.planning.bands import bands_of
from cleave_plan.planning.bounds import Links

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BANDS = 48
"""Bands that the program knows of at the most; a fleet of no more devices is solved as it is."""

TOLERANCE = 1e-5
"""What bands may lose of lambda, relative."""

_PLANS = 24
"""Plans that are added at the most."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prices:
    """p of each GEMM (they sum to 1) and mu of each limited link."""

    gemms: Floats
    links: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Supply:
    """What devices (``done[g, i]``) and servers (``served[g]``) do of each GEMM by T, as shares of its size, and the share of
    every limited link's bytes that it takes (``loads[r][g, i]``)."""

    done: Floats
    served: Floats
    loads: tuple[Floats, ...]

    def worth(self, prices: Prices) -> Floats:
        """What each device's work on each GEMM is worth, links paid."""
        worth = prices.gemms[:, None] * self.done
        for price, load in zip(prices.links.tolist(), self.loads, strict=True):
            worth = worth - price * load
        return worth

    def value(self, prices: Prices) -> float:
        """The dual's value: no lambda above it is possible."""
        of_devices = np.maximum(self.worth(prices).max(axis=0), 0.0).sum()
        return float(of_devices + (prices.gemms * self.served).max() + prices.links.sum())


def supply_at(
    abilities: Sequence[Ability], links: Links, rates: Sequence[float], T: float, stretch: Floats | float = 1.0
) -> Supply:
    """What devices and servers can do by ``T``, sizes multiplied by ``stretch``; ``rates[g]``: the servers' FLOP/s."""
    size = np.array([ability.size for ability in abilities]) * stretch
    amount = np.array([ability.amount(T) for ability in abilities])
    loads = []
    if np.isfinite(links.egress):
        efficiency = np.array([ability.efficiency(T) for ability in abilities])
        loads.append(amount / np.maximum(efficiency, 1e-300) / (links.egress * T))
    if np.isfinite(links.ingress):
        loads.append(amount * np.array([[ability.out_bytes] for ability in abilities]) / (links.ingress * T))
    served = np.array([rate * T / ability.flop for ability, rate in zip(abilities, rates, strict=True)])
    return Supply(done=amount / size[:, None], served=served / size, loads=tuple(loads))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Answer:
    """The program's answer over bands: lambda, prices, how much each band follows each plan (``shares[plan, band]``), and the
    servers' shares."""

    factor: float
    prices: Prices
    shares: Floats
    server: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shared:
    """lambda, the prices of least value, the GEMM of each device (-1: none) and the servers' shares."""

    factor: float
    prices: Prices
    owner: Ints
    server: Floats


def shared(supply: Supply) -> Shared:
    """Solve the program over bands of devices that follow *plans*: at first "all of the band on GEMM g" for every g.

    What the plans' shares do is possible, and the prices' value is a limit, so the distance between the two is what is
    lost; while it is more than the tolerance, what every device would choose at those prices is one more plan (columns
    are made as they are wanted: Dantzig and Wolfe 1960).
    """
    count, devices = supply.done.shape
    band = bands_of(_ratios(supply), BANDS)
    plans = [np.full(devices, g) for g in range(count)]
    best, limit = None, np.inf
    while True:
        answer = _solved(supply, band, plans)
        value = supply.value(answer.prices)
        if value < limit:
            best, limit = answer.prices, value
        if limit <= answer.factor * (1 + TOLERANCE) or len(plans) == count + _PLANS:
            break
        worth = supply.worth(answer.prices)
        plans.append(np.where(worth.max(axis=0) > 0, worth.argmax(axis=0), -1))
    return Shared(
        factor=answer.factor, prices=best or answer.prices, owner=_owners(answer.shares, band, plans), server=answer.server
    )


def _ratios(supply: Supply) -> Floats:
    """What decides on which GEMM a device works: logarithms of the ratios between what it can do of each and what that loads."""
    done, *loads = (np.log(np.maximum(rows, 1e-300)) for rows in (supply.done, *supply.loads))
    return np.concatenate([done[1:] - done[0], *(load - done for load in loads)])


def _owners(shares: Floats, band: Ints, plans: Sequence[Ints]) -> Ints:
    """The GEMM of each device: the devices of a band follow its plans in proportion to ``shares[plan, band]``, in order."""
    order = np.argsort(band, kind="stable")
    size = np.bincount(band)
    place = np.empty(len(band))
    place[order] = np.arange(len(band)) - np.repeat(np.cumsum(size) - size, size)
    reached = np.cumsum(shares, axis=0)[:, band]
    followed = ((place + 0.5) / size[band] > reached).sum(axis=0)
    idle = np.full((1, len(band)), -1)
    owner: Ints = np.take_along_axis(np.concatenate([*np.array(plans)[:, None], idle]), followed[None], axis=0)[0]
    return owner


def _solved(supply: Supply, band: Ints, plans: Sequence[Ints]) -> _Answer:
    """The program over the bands; its variables are shares (plan-major), v, lambda, its rows covers, bands, server, links."""
    count, bands = len(supply.done), int(band.max()) + 1

    def banded(columns: Floats) -> Floats:
        """What each plan takes of each GEMM's row of ``columns``, summed over bands: [GEMM, plan * band]."""
        made = [
            [np.bincount(band, np.where(plan == g, columns[g], 0.0), minlength=bands) for plan in plans] for g in range(count)
        ]
        return np.array(made).reshape(count, -1)

    done, loads = banded(supply.done), [banded(load).sum(axis=0) for load in supply.loads]
    shares = len(plans) * bands
    limits = np.concatenate([np.zeros(count), np.ones(bands + 1 + len(loads))])
    matrix = np.zeros((len(limits), shares + count + 1))
    matrix[:count, :shares], matrix[:count, shares:-1], matrix[:count, -1] = -done, np.diag(-supply.served), 1.0
    matrix[count : count + bands, :shares] = np.tile(np.eye(bands), len(plans))
    matrix[count + bands, shares:-1] = 1.0
    matrix[count + bands + 1 :, :shares] = np.array(loads).reshape(len(loads), shares)
    goal = np.zeros(shares + count + 1)
    goal[-1] = -1.0
    answer = linprog(goal, A_ub=matrix, b_ub=limits, method="highs-ds")
    if answer.status != 0:
        raise AssertionError(f"the level's bound program ended with: {answer.message}")
    x, dual = np.asarray(answer.x), np.maximum(-answer.ineqlin.marginals, 0.0)
    return _Answer(
        factor=float(x[-1]), prices=Prices(gemms=dual[:count] / dual[:count].sum(), links=dual[count + bands + 1 :]),
        shares=x[:shares].reshape(len(plans), bands), server=x[shares:-1],
    )  # fmt: skip
