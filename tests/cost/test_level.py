"""What a level takes: loads on devices and servers by hand, and the largest of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cost_cases import device, fleet_of, gemm_of, server

from cleave_plan.cost.efficiency import device_columns
from cleave_plan.cost.level import Load, Placement, level_time, server_load, server_seconds, tiled_load
from cleave_plan.cost.tile import Tiles
from cleave_plan.workload.gemm import Operand, Role

GEMM = gemm_of((1, 20, 10, 30))
"""A 800 B (an activation), B 1,200 B (a parameter), C 2,400 B, 12,000 FLOP."""

HALVES = Tiles.of([(0, 0, 10, 0, 30, 0, 10, 0, 1), (1, 10, 20, 0, 30, 0, 10, 0, 1)])
"""Each half: A 400 B, B 1,200 B, up 1,200 B, 6,000 FLOP."""

DEVICES = [device("d0"), device("d1", uplink_bytes_per_s=100.0)]
COLUMNS = device_columns(DEVICES, GEMM.dtype)
FIRST = Placement(servers=(0,), shares=(1.0,))


def test_devices_and_one_server() -> None:
    """d0: 0.5 + max(16, 6, 120); d1: 0.5 + max(16, 6, 12). 3,200 B out at 40 B/s, 2,400 B in at 20 B/s."""
    load = tiled_load(GEMM, HALVES, FIRST, COLUMNS, [server()])
    assert load.ideal_s == pytest.approx([120.5, 16.5])
    # A kept: 4 + max(12, 6, up); d0 124, d1 4 + 12 = 16
    assert load.executed_s == pytest.approx([124.5, 16.5])
    assert (load.egress[0], load.ingress[0], load.server_s[0]) == (3200, 2400, 0)
    time = level_time(load, fleet_of(DEVICES, [server()]))
    assert time.ideal_s == pytest.approx(120.5)
    assert time.executed_s == pytest.approx(124.5)
    assert time.binds == "device d0"


@pytest.mark.parametrize(
    ("changes", "seconds", "binds"),
    [
        ({"egress_bytes_per_s": 20.0}, 160.0, "egress s0"),
        ({"ingress_bytes_per_s": 10.0}, 240.0, "ingress s0"),
        ({"egress_bytes_per_s": math.inf, "ingress_bytes_per_s": math.inf}, 124.5, "device d0"),
    ],
)
def test_what_binds_by_executed_cost(changes: dict[str, float], seconds: float, binds: str) -> None:
    """3,200 B out and 2,400 B in against each link."""
    load = tiled_load(GEMM, HALVES, FIRST, COLUMNS, [server()])
    time = level_time(load, fleet_of(DEVICES, [server(**changes)]))
    assert (time.executed_s, time.binds) == (pytest.approx(seconds), binds)


def test_the_server_by_arithmetic_or_by_memory() -> None:
    """12,000 FLOP at 500 FLOP/s are 24 s; 4,400 B at 80 B/s are 55 s; the longer one counts."""
    assert server_seconds(GEMM, server()) == pytest.approx(55)
    assert server_seconds(GEMM, server(memory_bandwidth_bytes_per_s=1e9)) == pytest.approx(24)
    load = server_load(GEMM, FIRST, 2, [server()])
    assert load.server_s.tolist() == pytest.approx([55])
    assert load.egress.sum() == load.ingress.sum() == load.ideal_s.sum() == 0
    assert level_time(load, fleet_of(DEVICES, [server()])).binds == "server s0"


def test_a_tile_of_the_servers_own_crosses_no_link() -> None:
    """The second half on the server (2 is one past the last device): 6,000 FLOP 12 s, 2,800 B at 80 B/s 35 s."""
    shared = Tiles.of([(0, 0, 10, 0, 30, 0, 10, 0, 1), (2, 10, 20, 0, 30, 0, 10, 0, 1)])
    load = tiled_load(GEMM, shared, FIRST, COLUMNS, [server()])
    assert load.server_s[0] == pytest.approx(35)
    assert (load.egress[0], load.ingress[0]) == (1600, 1200)
    assert load.ideal_s == pytest.approx([120.5, 0])


def test_weights_on_the_second_server_move_the_activations() -> None:
    """s0 sends A (800 B) to s1 and receives C (2,400 B) from it; s1 sends 3,200 B and receives 2,400 B from devices."""
    load = tiled_load(GEMM, HALVES, Placement(servers=(1,), shares=(1.0,)), COLUMNS, [server("s0"), server("s1")])
    assert load.egress.tolist() == [800, 3200 + 2400]
    assert load.ingress.tolist() == [2400, 2400 + 800]
    alone = server_load(GEMM, Placement(servers=(1,), shares=(1.0,)), 2, [server("s0"), server("s1")])
    assert alone.egress.tolist() == [800, 2400]
    assert alone.ingress.tolist() == [2400, 800]
    assert alone.server_s.tolist() == pytest.approx([0, 55])


def test_weights_striped_over_servers_share_traffic_and_moves() -> None:
    """Three quarters on s0, a quarter on s1: tiles' bytes and the moves of activations by shares."""
    striped = Placement(servers=(0, 1), shares=(0.75, 0.25))
    load = tiled_load(GEMM, HALVES, striped, COLUMNS, [server("s0"), server("s1")])
    assert load.egress.tolist() == [0.75 * 3200 + 0.25 * 800, 0.25 * 3200 + 0.25 * 2400]
    assert load.ingress.tolist() == [0.75 * 2400 + 0.25 * 2400, 0.25 * 2400 + 0.25 * 800]


def test_activations_on_both_sides_are_moved() -> None:
    """Attention scores: B is an activation too, 1,200 B more from s0."""
    scores = gemm_of((1, 20, 10, 30), b=Operand(tensor="k", role=Role.ACTIVATION, dtype=GEMM.dtype))
    load = tiled_load(scores, HALVES, Placement(servers=(1,), shares=(1.0,)), COLUMNS, [server("s0"), server("s1")])
    assert load.egress[0] == 2000
    assert load.ingress[1] == 2400 + 2000


def test_partial_sums_are_added_by_the_server() -> None:
    """K cut in two: 2 * 600 sums of 4 B come back, and each costs 12 B of memory traffic at 80 B/s."""
    cut = Tiles.of([(0, 0, 20, 0, 30, 0, 5, 0, 1), (1, 0, 20, 0, 30, 5, 10, 0, 1)])
    load = tiled_load(GEMM, cut, FIRST, COLUMNS, [server()])
    assert load.ingress[0] == 2 * 600 * 4
    assert load.server_s[0] == pytest.approx(12 * 1200 / 80)


def test_loads_add_up() -> None:
    """Two GEMMs of a level: their tiles follow one another on each device, their bytes share the links."""
    one = tiled_load(GEMM, HALVES, FIRST, COLUMNS, [server()])
    both = one + server_load(GEMM, FIRST, 2, [server()]) + one + Load.none(2, 1)
    assert both.ideal_s == pytest.approx([241, 33])
    assert both.egress[0] == 6400
    assert both.server_s[0] == pytest.approx(55)
    assert isinstance(both.executed_s, np.ndarray)
