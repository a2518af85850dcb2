r"""The lower bound of a level that holds several GEMMs, and who should work on which of them.

Devices divide their time: y_ig is the share of device i's time that goes to GEMM g, v_g the share of the servers'.
Because a_ig(T)/T never falls as T grows (:mod:`cleave_plan.planning.bounds`), a share y covers at most y*a_ig(T), so T is
possible only if the largest common factor lambda is at least 1:

    max lambda
    sum_i y_ig*a_ig(T) + v_g*F_g*T/(2K_g)  >=  lambda*size_g          for each g
    sum_g y_ig <= 1 for each device i,      sum_g v_g <= 1            y, v >= 0
    sum_ig y_ig*a_ig(T)/e_ig(T)            <=  E*T                    operand bytes out of the servers
    sum_ig y_ig*a_ig(T)*b_out,g            <=  I*T                    results into the servers

Where K may be cut, a and size count multiply-adds instead (:mod:`cleave_plan.planning.volume`). With S_ig = a_ig(T)/size_g,
v_g likewise, and L_rig the share of link r's budget that y_ig = 1 takes, the dual is

    min  sum_i max(0, max_g (p_g*S_ig - sum_r mu_r*L_rig)) + max_g p_g*v_g + sum_r mu_r          sum_g p_g = 1,   p, mu >= 0

so *any* prices p, mu prove that T is impossible where their value is below 1, however they were found. They are found by
the program over bands of nearly equal devices (:mod:`cleave_plan.planning.bands`) and valued on every device of the fleet.

The sum of separate bounds is not a bound: independent GEMMs share the fleet by groups of devices.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.plan.constraints import Caps
from cleave_plan.planning.ability import Ability, ability_of, bound_of, capped
from cleave_plan.planning.bounds import Links
from cleave_plan.planning.levelprogram import TOLERANCE, Shared, shared, supply_at
from cleave_plan.planning.roots import NEVER, latest_short
from cleave_plan.planning.sums import TOLERANCE as SUMS_TOLERANCE
from cleave_plan.planning.sums import most_done
from cleave_plan.planning.terms import Terms

Floats = NDArray[np.float64]


def level_bound(
    parts: Sequence[Terms],
    columns: Sequence[DeviceColumns],
    links: Links,
    rates: Sequence[float],
    *,
    inner: bool = False,
    caps: Caps | None = None,
    level_flop: float = 0.0,
) -> float:
    """Seconds that the GEMMs ``parts`` of one level take together at least, by ideal cost.

    ``columns[g]``: device figures for part g's element type; ``rates[g]``: the servers' FLOP/s for it (0 where they may
    not compute); ``inner``: K may be cut. Parts without work are ignored. ``caps``: what devices may do of the level at the most,
    whose FLOP are ``level_flop``; caps of work count where one GEMM is free (several may share a cap in any way).
    """
    kept = [g for g, part in enumerate(parts) if part.items * part.bound_rows * part.columns > 0]
    if not kept:
        return 0.0
    parts, columns, rates = [parts[g] for g in kept], [columns[g] for g in kept], [rates[g] for g in kept]
    alone = [
        bound_of(part, own, Links(egress=links.egress, ingress=links.ingress, flop_per_s=rate), inner=inner)
        for part, own, rate in zip(parts, columns, rates, strict=True)
    ]
    if max(alone) >= NEVER or max(alone) == 0:
        return max(alone)
    abilities = [ability_of(part, own, inner=inner) for part, own in zip(parts, columns, strict=True)]
    if len(parts) == 1 and caps is None:
        return _with_sums(abilities, links, rates, np.ones(1), alone[0])
    if caps is not None:
        most = [caps.work * level_flop / one.flop if len(parts) == 1 else np.full(len(caps.work), np.inf) for one in abilities]
        abilities = [capped(one, caps.time_s, own) for one, own in zip(abilities, most, strict=True)]

    def valued(T: float) -> float:
        supply = supply_at(abilities, links, rates, T)
        return supply.value(shared(supply).prices)

    bound_s = max(*alone, latest_short(valued, float(np.linalg.norm(alone)), TOLERANCE))
    if caps is not None:
        return bound_s
    prices = shared(supply_at(abilities, links, rates, bound_s)).prices.gemms
    return _with_sums(abilities, links, rates, prices, bound_s)


def _with_sums(abilities: Sequence[Ability], links: Links, rates: Sequence[float], prices: Floats, bound_s: float) -> float:
    """``bound_s``, or later where the servers cannot add by then what devices leave (:mod:`cleave_plan.planning.sums`)."""
    weights = prices / np.array([ability.size for ability in abilities])
    flop = np.array([ability.flop for ability in abilities])

    def done(T: float) -> float:
        served = float((weights * np.array(rates) * T / flop).max())
        return most_done([ability.ways(T) for ability in abilities], weights, links.sums_per_s * T) + served

    if np.isinf(links.sums_per_s) or bound_s <= 0 or done(bound_s) >= 1:
        return bound_s
    return max(bound_s, latest_short(done, bound_s * 1.1, SUMS_TOLERANCE))


def shares_at(
    abilities: Sequence[Ability], links: Links, rates: Sequence[float], T: float, stretch: Floats | float = 1.0
) -> Shared:
    """The program above at ``T``, sizes multiplied by ``stretch``. A device that the program splits goes to one of its
    GEMMs whole, those of a band so that the band's shares are kept."""
    return shared(supply_at(abilities, links, rates, T, stretch))
