"""Level times, totals and memory of small plans, with the arithmetic written out."""

from __future__ import annotations

import pytest
from plan_cases import assigned, device, example, fleet_of, gemm_of, server, workload_of

from cleave_plan.cost.tile import Tiles
from cleave_plan.dtypes import DType
from cleave_plan.plan.objective import Figures, Recount
from cleave_plan.plan.plan import Assignment, Mode
from cleave_plan.workload.gemm import Operand, Role
from cleave_plan.workload.graph import Level, ServerOperator, Workload

ONE = (0, 0, 2, 0, 3, 0, 4, 0, 1)
"""The whole of a (1, 2, 4, 3) GEMM on device 0: 32 + 48 bytes down, 24 up, 48 FLOP."""


def figures(workload: Workload, assignments: list[Assignment], servers: int = 1, **changes: float) -> Figures:
    fleet = fleet_of([device("d0"), device("d1")], [server(f"s{i}", **changes) for i in range(servers)])
    return Recount(workload, assignments, fleet.devices, fleet.servers).figures()


def test_the_example_by_hand() -> None:
    """Two equal layers over three devices and two servers, then one GEMM on the server.

    Layer 8 x 4 x 6, float32. d0 (5 x 3): 80 + 48 down, 60 up at 10 and 5 B/s: 12.8 and 12 s; B kept: 4.8 + max(8, 12) = 16.8.
    d1 (3 x 3): 36 up at 2 B/s = 18 s; 4.8 + 18 = 22.8. d2 (8 x 3): 128 + 48 down = 17.6, 96 up = 19.2; 4.8 + 19.2 = 24.
    """
    plan, workload, fleet = example()
    found = Recount(workload, plan.assignments, fleet.devices, fleet.servers).figures()
    layer, head = found.levels[0], found.levels[2]
    assert found.levels[1] is layer
    assert layer.device_ideal_s.tolist() == pytest.approx([12.8, 18.0, 19.2])
    assert layer.device_executed_s.tolist() == pytest.approx([16.8, 22.8, 24.0])
    assert layer.server_s == pytest.approx({
        "egress s0": (0.75 * 400 + 0.25 * 128) / 50,  # tiles, and a quarter of X to s1
        "ingress s0": (0.75 * 192 + 0.25 * 192) / 20,  # tiles, and a quarter of the result from s1
        "server s0": 0.0,
        "egress s1": (0.25 * 400 + 0.25 * 192) / 50,
        "ingress s1": (0.25 * 192 + 0.25 * 128) / 20,
        "server s1": 0.0,
    })  # fmt: skip
    assert (layer.ideal_s, layer.executed_s) == pytest.approx((19.2, 24.0))
    assert head.ideal_s == head.executed_s == pytest.approx((192 + 24 + 32) / 100)  # 96 FLOP take 0.096 s, memory longer
    assert found.levels_s == pytest.approx(24.0 + 24.0 + 2.48)
    assert found.ideal_levels_s == pytest.approx(19.2 + 19.2 + 2.48)
    assert found.server_operators_s == pytest.approx(200 / 100)
    assert found.batch_s == pytest.approx(50.48 + 2.0)
    assert (found.downlink_bytes, found.uplink_bytes) == (800, 384)
    assert found.device_memory_bytes == {"d0": 1048, "d1": 1036, "d2": 1048}
    assert found.server_memory_bytes == pytest.approx({"s0": 0.75 * 192 + 24 + 100, "s1": 0.25 * 192})


def test_gemms_of_one_level_add_on_a_device_and_on_the_links() -> None:
    """Two GEMMs side by side: a device that works for both takes the sum, and the server sends both."""
    workload = workload_of([gemm_of("p", (1, 2, 4, 3)), gemm_of("q", (1, 2, 4, 3))])
    together = figures(workload, [assigned(["p", "q"], [ONE])])
    assert together.levels_s == pytest.approx(16.0)
    apart = figures(workload, [assigned(["p"], [ONE]), assigned(["q"], [(1, *ONE[1:])])])
    assert apart.levels_s == pytest.approx(8.0)
    assert together.levels[0].server_s["egress s0"] == apart.levels[0].server_s["egress s0"] == pytest.approx(160 / 50)


def test_a_slow_link_of_the_server_binds() -> None:
    """80 bytes at 4 B/s take the server 20 s, whatever the device can receive; without limit it takes nothing."""
    workload = workload_of([gemm_of("p", (1, 2, 4, 3))])
    assert figures(workload, [assigned(["p"], [ONE])], egress_bytes_per_s=4.0).levels_s == pytest.approx(20.0)
    assert figures(workload, [assigned(["p"], [ONE])], ingress_bytes_per_s=0.5).levels_s == pytest.approx(48.0)
    free = figures(workload, [assigned(["p"], [ONE])], egress_bytes_per_s=float("inf"))
    assert free.levels[0].server_s["egress s0"] == 0.0


def test_partial_sums_load_the_servers_memory() -> None:
    """K cut in two: 12 partial sums of 4 bytes; at 12 bytes each and 2 B/s of memory bandwidth, 72 s."""
    workload = workload_of([gemm_of("p", (1, 2, 4, 3))])
    halves = [(0, 0, 2, 0, 3, 0, 2, 0, 1), (1, 0, 2, 0, 3, 2, 4, 0, 1)]
    found = figures(workload, [assigned(["p"], halves)], memory_bandwidth_bytes_per_s=2.0)
    assert found.levels[0].server_s["server s0"] == pytest.approx(12 * 12 / 2)
    assert found.uplink_bytes == 48
    striped = assigned(["p"], halves, servers=("s0", "s1"), shares=(0.25, 0.75))
    shared = figures(workload, [striped], servers=2, memory_bandwidth_bytes_per_s=2.0)
    assert (shared.levels[0].server_s["server s0"], shared.levels[0].server_s["server s1"]) == pytest.approx((18, 54))


def test_a_server_adds_partial_sums_after_its_own_gemms() -> None:
    """A GEMM of its own (104 bytes at 100 B/s) and 12 partial sums (144 bytes) on one server: the two times add."""
    workload = workload_of([gemm_of("p", (1, 2, 4, 3)), gemm_of("own", (1, 2, 4, 3))])
    halves = [(0, 0, 2, 0, 3, 0, 2, 0, 1), (1, 0, 2, 0, 3, 2, 4, 0, 1)]
    found = figures(workload, [assigned(["p"], halves), assigned(["own"], [], mode=Mode.SERVER)])
    assert found.levels[0].server_s["server s0"] == pytest.approx(1.04 + 1.44)


def test_a_gemm_on_another_server_moves_its_activations() -> None:
    """Server mode on s1: X (32 bytes) comes from s0, the result (24) goes back; the weight is already there."""
    workload = workload_of([gemm_of("p", (1, 2, 4, 3))])
    found = figures(workload, [assigned(["p"], [], mode=Mode.SERVER, server="s1", servers=("s1",))], servers=2)
    assert found.levels[0].server_s == pytest.approx({
        "egress s0": 32 / 50, "ingress s0": 24 / 20, "server s0": 0.0,
        "egress s1": 24 / 50, "ingress s1": 32 / 20, "server s1": (32 + 48 + 24) / 100,
    })  # fmt: skip
    assert found.levels_s == pytest.approx(1.6)
    assert found.server_memory_bytes == {"s0": 100, "s1": 48}
    assert (found.downlink_bytes, found.device_memory_bytes) == (0, {})


def test_both_operands_may_be_activations() -> None:
    """Scores of attention: both operands move to another server."""
    key = Operand(tensor="key", role=Role.ACTIVATION, dtype=DType.FLOAT32)
    workload = workload_of([gemm_of("p", (1, 2, 4, 3), b=key)])
    found = figures(workload, [assigned(["p"], [ONE], server="s1", servers=("s1",))], servers=2)
    assert found.levels[0].server_s["egress s0"] == pytest.approx((32 + 48) / 50)
    assert found.levels[0].server_s["egress s1"] == pytest.approx((80 + 24) / 50)
    assert found.server_memory_bytes == {"s0": 100, "s1": 0}


def test_compute_bound_server_gemm() -> None:
    """48 FLOP at 4 FLOP/s take longer than the memory: 12 s."""
    workload = workload_of([gemm_of("p", (1, 2, 4, 3))])
    found = figures(workload, [assigned(["p"], [], mode=Mode.SERVER)], flop_per_s={"float32": 4.0})
    assert found.levels_s == pytest.approx(12.0)


def test_operators_of_unknown_size_and_parameters_outside_gemms() -> None:
    """Unknown bytes count nothing; biases and tables stay on the first server; live bytes count at their peak."""
    gemm = gemm_of("p", (1, 2, 4, 3))
    operators = (
        ServerOperator(name="a", op="Relu", level=0, bytes=300),
        ServerOperator(name="b", op="Mystery", level=1, bytes=None),
        ServerOperator(name="c", op="Add", level=1, bytes=50),
    )
    levels = (Level(index=0, gemms=(0,), live_bytes=70), Level(index=1, gemms=(), live_bytes=None))
    workload = workload_of(
        [gemm], server_operators=operators, levels=levels, parameters={"p.weight": 48, "bias": 12, "table": 1000}
    )
    found = figures(workload, [assigned(["p"], [ONE], server="s1", servers=("s1",))], servers=2)
    assert found.server_operators_s == pytest.approx(3.5)
    assert found.server_memory_bytes == {"s0": 12 + 1000 + 70, "s1": 48}


def test_tied_weights_are_held_once_by_each_server() -> None:
    """Two GEMMs read one tensor: s0 holds the larger of its two shares."""
    tied = Operand(tensor="table", role=Role.PARAMETER, dtype=DType.FLOAT32)
    workload = workload_of([gemm_of("p", (1, 2, 4, 3), b=tied), gemm_of("q", (1, 2, 4, 3), 1, b=tied)])
    halves = assigned(["p"], [ONE], servers=("s0", "s1"), shares=(0.5, 0.5))
    found = figures(workload, [halves, assigned(["q"], [ONE])], servers=2)
    assert found.server_memory_bytes == {"s0": 48 + 100, "s1": 24}


def test_a_model_without_gemms_takes_its_operators() -> None:
    """No levels at all: only operator time is left."""
    found = figures(workload_of([]), [])
    assert (found.levels, found.levels_s, found.batch_s) == ((), 0.0, 2.0)
    assert len(Tiles.of([])) == 0
