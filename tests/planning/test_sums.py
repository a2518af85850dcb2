"""What servers can add of partial sums: the bound against every allotment of sums, footprints against others, and a fleet of
2,000 devices planned where the sums bind."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from cleave_plan.planning.sums import Ways, footprints, most_done


def ways_of(rng: np.random.Generator, devices: int) -> Ways:
    """Random abilities; a cut device makes about as much as one of whole depth."""
    root, results = rng.uniform(0.5, 2.0, devices), rng.uniform(5.0, 40.0, devices)
    return Ways(
        whole=rng.uniform(0.0, 3.0, devices),
        cut=root * np.sqrt(results) * rng.uniform(0.7, 1.0, devices),
        root=root,
        results=results,
    )


@pytest.mark.parametrize("seed", range(8))
def test_no_allotment_of_sums_does_more(seed: int) -> None:
    """Three devices, two GEMMs, sums in 40 steps: what is done at most is under the bound, and near it."""
    rng = np.random.default_rng(seed)
    gemms, weights, budget = [ways_of(rng, 3), ways_of(rng, 3)], np.array([0.4, 0.6]), float(rng.uniform(1.0, 60.0))
    steps = np.linspace(0.0, budget, 41)
    worth = np.zeros((3, len(steps)))
    for way, weight in zip(gemms, weights, strict=True):
        for device in range(3):
            sums = np.minimum(steps, way.results[device])
            cut = np.minimum(way.root[device] * np.sqrt(sums), way.cut[device])
            worth[device] = np.maximum(worth[device], weight * np.maximum(cut, way.whole[device]))
    best = max(
        float(sum(worth[device, step] for device, step in enumerate(taken)))
        for taken in product(range(len(steps)), repeat=3)
        if sum(taken) < len(steps)
    )
    bound = most_done(gemms, weights, budget)
    assert best <= bound * (1 + 1e-12)
    assert bound <= best * 1.35  # the bound may share a device out between ways, these devices may not


@pytest.mark.parametrize("budget", [0.5, 10.0, 1e4])
def test_footprints_use_the_budget_and_none_makes_more(budget: float) -> None:
    """Two hundred random allotments of the same budget make no more volume."""
    rng = np.random.default_rng(11)
    root, most = rng.uniform(0.5, 3.0, 30), rng.uniform(0.1, 2.0, 30)
    found = footprints(root, most, budget)
    assert bool((found <= most).all())
    assert found.sum() == pytest.approx(min(budget, most.sum()), rel=1e-6)
    volume = float((root * np.sqrt(found)).sum())
    for _ in range(200):
        other = rng.dirichlet(np.full(30, 0.5)) * budget
        assert float((root * np.sqrt(np.minimum(other, most))).sum()) <= volume * (1 + 1e-6)
