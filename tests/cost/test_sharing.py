"""Fair rates: the conditions that define max-min fairness, and cases by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleave_plan.cost.sharing import fair_rates


@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 4))
def test_every_transfer_has_a_bottleneck(seed: int, transfers: int, servers: int) -> None:
    """No link is overfull, and each transfer is at its cap or on a full link on which nobody is faster (Bertsekas & Gallager)."""
    rng = np.random.default_rng(seed)
    caps = rng.choice([0.5, 1.0, 2.0, 3.7], transfers) * rng.uniform(0.5, 2, transfers)
    shares = rng.uniform(0.1, 1, (transfers, servers)) * (rng.random((transfers, servers)) < 0.7)
    shares[shares.sum(axis=1) == 0, 0] = 1
    shares /= shares.sum(axis=1, keepdims=True)
    capacity = rng.uniform(0.2, 6, servers)
    rates = fair_rates(caps, shares, capacity)
    used = rates @ shares
    assert np.all(used <= capacity * (1 + 1e-9))
    assert np.all(rates <= caps)
    full = used >= capacity * (1 - 1e-9)
    for i in range(transfers):
        at_bottleneck = any(
            full[j] and shares[i, j] > 0 and rates[i] >= rates[shares[:, j] > 0].max() * (1 - 1e-9) for j in range(servers)
        )
        assert rates[i] >= caps[i] * (1 - 1e-9) or at_bottleneck


def test_by_hand() -> None:
    """Link of 10 with caps 1, 4 and no limit: 1, 4, 5; an unlimited link gives everyone its cap; nobody shares nothing."""
    one = np.ones((3, 1))
    assert fair_rates(np.array([1, 4, math.inf]), one, np.array([10.0])).tolist() == [1, 4, 5]
    assert fair_rates(np.array([1, 4, 9.0]), one, np.array([math.inf])).tolist() == [1, 4, 9]
    assert fair_rates(np.empty(0), np.empty((0, 1)), np.array([1.0])).tolist() == []


def test_a_striped_transfer_stops_where_its_first_server_is_full() -> None:
    """a on s0 alone, b half on each, c on s1 alone; s0 carries 1, s1 carries 8: a = b = 2/3, c takes what s1 has left."""
    shares = np.array([[1, 0], [0.5, 0.5], [0, 1]])
    rates = fair_rates(np.array([9.0, 9.0, 9.0]), shares, np.array([1.0, 8.0]))
    assert rates == pytest.approx([2 / 3, 2 / 3, 8 - 1 / 3])
