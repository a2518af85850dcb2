r"""The lower bound of a level that holds several GEMMs.

Devices divide their time: y_ig is the share of device i's time that goes to GEMM g, v_g the share of the servers'.
Because a_ig(T)/T never falls as T grows (:mod:`cleave_plan.planning.bounds`), a share y covers at most y*a_ig(T), so T is
possible only if the largest common factor lambda is at least 1:

    max lambda
    sum_i y_ig*a_ig(T) + v_g*F_g*T/(2K_g)  >=  lambda*size_g          for each g
    sum_g y_ig <= 1 for each device i,      sum_g v_g <= 1            y, v >= 0
    sum_ig y_ig*a_ig(T)/e_ig(T)            <=  E*T                    operand bytes out of the servers
    sum_ig y_ig*a_ig(T)*b_out,g            <=  I*T                    results into the servers

Where K may be cut, a and size count multiply-adds instead (:mod:`cleave_plan.planning.volume`).

The sum of separate bounds is not a bound: independent GEMMs share the fleet by groups of devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import coo_array

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.planning.ability import Ability, ability_of, bound_of
from cleave_plan.planning.bounds import Links
from cleave_plan.planning.terms import Terms

Floats = NDArray[np.float64]

_TOLERANCE = 1e-5


def level_bound(
    parts: Sequence[Terms], columns: Sequence[DeviceColumns], links: Links, rates: Sequence[float], *, inner: bool = False
) -> float:
    """Seconds that the GEMMs ``parts`` of one level take together at least, by ideal cost.

    ``columns[g]``: device figures for part g's element type; ``rates[g]``: the servers' FLOP/s for it (0 where they may
    not compute); ``inner``: K may be cut. Parts without work are ignored.
    """
    kept = [g for g, part in enumerate(parts) if part.items * part.bound_rows * part.columns > 0]
    if not kept:
        return 0.0
    parts, columns, rates = [parts[g] for g in kept], [columns[g] for g in kept], [rates[g] for g in kept]
    alone = [
        bound_of(part, own, Links(egress=links.egress, ingress=links.ingress, flop_per_s=rate), inner=inner)
        for part, own, rate in zip(parts, columns, rates, strict=True)
    ]
    if len(parts) == 1:
        return alone[0]
    abilities = [ability_of(part, own, inner=inner) for part, own in zip(parts, columns, strict=True)]
    low, high = max(alone), sum(alone) * (1 + 1e-9)
    if shares_at(abilities, links, rates, low).factor >= 1:
        return low
    while high - low > _TOLERANCE * high:
        middle = (low + high) / 2
        if shares_at(abilities, links, rates, middle).factor >= 1:
            high = middle
        else:
            low = middle
    return low


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shares:
    """The program's answer: lambda (on the safe side), each device's shares y[g, i], and the server's shares v[g]."""

    factor: float
    devices: Floats
    server: Floats


def shares_at(
    abilities: Sequence[Ability], links: Links, rates: Sequence[float], T: float, stretch: Floats | float = 1.0
) -> Shares:
    """Solve the program above at ``T``, sizes multiplied by ``stretch``; its variables are y (g-major), v, lambda."""
    amount = np.array([ability.amount(T) for ability in abilities])
    count, devices = amount.shape
    size = np.array([ability.size for ability in abilities]) * stretch
    served = np.array([rate * T / ability.flop for ability, rate in zip(abilities, rates, strict=True)])
    shares, g_of, i_of = count * devices, np.repeat(np.arange(count), devices), np.tile(np.arange(devices), count)
    scaled = (amount / size[:, None]).ravel()
    # Rows: count covers, then devices, then the server's time, then egress and ingress.
    rows = [g_of, np.arange(count), np.arange(count), count + i_of, np.full(count, count + devices)]
    places = [
        np.arange(shares),
        shares + np.arange(count),
        np.full(count, shares + count),
        np.arange(shares),
        shares + np.arange(count),
    ]
    values = [-scaled, -served / size, np.ones(count), np.ones(shares), np.ones(count)]
    limits = [np.zeros(count), np.ones(devices + 1)]
    for budget, per_unit in _link_rows(abilities, links, T):
        rows.append(np.full(shares, count + devices + len(limits) - 1))
        places.append(np.arange(shares))
        values.append((amount * per_unit).ravel() / budget)
        limits.append(np.ones(1))
    matrix = coo_array(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(places))),
        shape=(sum(len(part) for part in limits), shares + count + 1),
    )
    goal = np.zeros(shares + count + 1)
    goal[-1] = -1.0
    answer = milp(goal, constraints=LinearConstraint(matrix.tocsr(), -np.inf, np.concatenate(limits)))
    if answer.status != 0:
        raise AssertionError(f"the level's bound program ended with: {answer.message}")
    return Shares(
        factor=float(answer.x[-1]) * (1 + 1e-7),  # on the safe side of the solver's own tolerance
        devices=answer.x[:shares].reshape(count, devices), server=answer.x[shares:-1],
    )  # fmt: skip


def _link_rows(abilities: Sequence[Ability], links: Links, T: float) -> list[tuple[float, Floats]]:
    """``(bytes that may pass in T, bytes per unit of each part and device)`` for the links that are limited."""
    found: list[tuple[float, Floats]] = []
    if np.isfinite(links.egress):
        efficiency = np.array([ability.efficiency(T) for ability in abilities])
        found.append((links.egress * T, 1 / np.maximum(efficiency, 1e-300)))
    if np.isfinite(links.ingress):
        found.append((links.ingress * T, np.array([[ability.out_bytes] for ability in abilities])))
    return found
