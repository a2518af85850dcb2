"""Large fleets: what is found over bands of nearly equal devices, against what is found without them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from planning_cases import gemm_of
from scipy.optimize import linprog

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.planning.ability import ability_of
from cleave_plan.planning.bands import bands_of
from cleave_plan.planning.bounds import Links, gemm_bound
from cleave_plan.planning.level import level_bound, shares_at
from cleave_plan.planning.levelprogram import BANDS
from cleave_plan.planning.roots import latest_short
from cleave_plan.planning.terms import terms_of


def drawn(count: int, seed: int) -> DeviceColumns:
    """Devices whose figures spread over a factor of ten each."""
    rng = np.random.default_rng(seed)
    low = {"flop_per_s": 1e5, "downlink": 1e3, "uplink": 100.0, "memory": 1e5}
    figures = {name: 10 ** rng.uniform(0, 1, count) * least for name, least in low.items()}
    latency = rng.choice([0.0, 0.01], count)
    return DeviceColumns(latency=latency, curve=np.full(count, -1), curves=(), **figures)


# ------------------------------------------------------------------------------------------------ roots and bands


@pytest.mark.parametrize("start", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("limit", [1e-20, 0.3, 7.0, 1e12])
@pytest.mark.parametrize("power", [0.2, 1.0, 2.0, 9.0])
def test_latest_short_is_just_below_the_moment(limit: float, start: float, power: float) -> None:
    """Powers of time, smooth, with a jump at the moment, and with a plateau before it."""
    for done in (
        lambda T: (T / limit) ** power,
        lambda T: (T / limit) ** power * (0.1 if limit > T else 10.0),
        lambda T: 0.999 if 0.5 * limit < T < limit else (T / limit) ** power * 0.999 ** (limit > T),
    ):
        found = latest_short(done, start)
        assert done(found) < 1
        assert found == pytest.approx(limit, rel=1e-9)


def test_nothing_is_never_and_everything_is_at_once() -> None:
    """No T is enough, every T is."""
    assert latest_short(lambda T: 0.0, 1.0) == pytest.approx(1e30)
    assert latest_short(lambda T: math.inf, 1.0) == 0


def test_bands_hold_like_devices() -> None:
    """Two figures on a grid of 16 clusters: 16 bands are the clusters, of any number of devices at least that many."""
    rng = np.random.default_rng(5)
    cluster = rng.permutation(np.repeat(np.arange(16), 20))
    features = np.array([cluster // 4, cluster % 4]) + rng.uniform(0, 1e-3, (2, len(cluster)))
    label = bands_of(features, 16)
    assert len(set(zip(label.tolist(), cluster.tolist(), strict=True))) == 16
    assert bands_of(features, 320).tolist() == list(range(320))
    assert len(set(bands_of(features * 0, 5).tolist())) == 1  # nothing to tell them apart


# ------------------------------------------------------------------------------------------------ the bound of a level

SHAPES = [((1, 300, 40, 200), (1, 200, 300, 40)), ((1, 400, 30, 90), (1, 50, 500, 80), (3, 70, 90, 60))]
FREE = Links(egress=math.inf, ingress=math.inf, flop_per_s=0.0)
NARROW = Links(egress=2e5, ingress=4e4, flop_per_s=0.0)


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("links", [FREE, NARROW], ids=["free", "narrow"])
@pytest.mark.parametrize("shapes", SHAPES, ids=["two", "three"])
def test_bound_over_bands_is_that_of_the_whole_program(shapes: tuple[tuple[int, ...], ...], links: Links, inner: bool) -> None:
    """Five times as many devices as bands: at the bound the program over every device has lambda just below 1."""
    parts, columns = [terms_of(gemm_of("g", shape)) for shape in shapes], drawn(5 * BANDS, seed=len(shapes))  # type: ignore[arg-type]
    rates = [2e5] * len(parts)
    bound = level_bound(parts, [columns] * len(parts), links, rates, inner=inner)
    abilities = [ability_of(part, columns, inner=inner) for part in parts]
    amount = np.array([ability.amount(bound) / ability.size for ability in abilities])
    served = np.array([rate * bound / ability.flop / ability.size for rate, ability in zip(rates, abilities, strict=True)])
    limited = []
    if math.isfinite(links.egress):
        bytes_out = np.array([ability.amount(bound) / ability.efficiency(bound) for ability in abilities])
        bytes_in = np.array([ability.amount(bound) * ability.out_bytes for ability in abilities])
        limited = [bytes_out / links.egress / bound, bytes_in / links.ingress / bound]
    factor = largest_factor(amount, served, limited)
    assert 1 - 1e-3 < factor < 1


def largest_factor(amount: np.ndarray, served: np.ndarray, limited: list[np.ndarray]) -> float:
    """The program of :mod:`cleave_plan.planning.level` over every device by itself, rows written out one by one."""
    parts, devices = amount.shape
    size = parts * devices + parts + 1
    rows, limits = [], []
    for g in range(parts):
        row = np.zeros(size)
        row[g * devices : (g + 1) * devices], row[parts * devices + g], row[-1] = -amount[g], -served[g], 1.0
        rows, limits = [*rows, row], [*limits, 0.0]
    for i in range(devices):
        row = np.zeros(size)
        row[i : parts * devices : devices] = 1.0
        rows, limits = [*rows, row], [*limits, 1.0]
    row = np.zeros(size)
    row[parts * devices : -1] = 1.0
    rows, limits = [*rows, row], [*limits, 1.0]
    for load in limited:
        rows, limits = [*rows, np.concatenate([load.ravel(), np.zeros(parts + 1)])], [*limits, 1.0]
    goal = np.zeros(size)
    goal[-1] = -1.0
    return float(linprog(goal, A_ub=np.array(rows), b_ub=limits).x[-1])


def test_groups_do_nearly_as_much_as_shares() -> None:
    """Devices that go to one GEMM whole cover lambda of both sizes up to one device's work."""
    parts, columns = [terms_of(gemm_of("g", shape)) for shape in SHAPES[0]], drawn(5 * BANDS, seed=2)  # type: ignore[arg-type]
    abilities = [ability_of(part, columns, inner=False) for part in parts]
    T = level_bound(parts, [columns, columns], FREE, [0.0, 0.0])
    shares = shares_at(abilities, FREE, [0.0, 0.0], T)
    for g, ability in enumerate(abilities):
        assert ability.amount(T)[shares.owner == g].sum() / ability.size == pytest.approx(shares.factor, rel=2e-2)
    assert shares.factor == pytest.approx(1, rel=1e-3)


# ------------------------------------------------------------------------------------------------ items that are not cut


def test_items_that_cannot_be_cut_are_bounded_by_whole_ones() -> None:
    """The moment at which whole items, handed to whoever ends first, are all done; a hair before, they are not."""
    whole = replace(terms_of(gemm_of("g", (50, 1, 400, 1))), whole_depth=True)
    devices = drawn(12, seed=3)
    each = np.maximum(whole.row_bytes + whole.col_bytes, 0) / devices.downlink
    each = np.maximum(each, np.maximum(whole.flop / devices.flop_per_s, whole.out_bytes / devices.uplink))
    ends = np.sort(np.concatenate([latency + np.arange(1, 51) * own for latency, own in zip(devices.latency, each, strict=True)]))
    assert gemm_bound(whole, devices, FREE) == pytest.approx(float(ends[49]), rel=1e-8)
    cut = gemm_bound(replace(whole, whole_depth=False), devices, FREE)
    assert cut < gemm_bound(whole, devices, FREE)
