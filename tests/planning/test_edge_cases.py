"""Shapes and fleets at the edge: each has a plan that covers exactly and holds, devices alone and beside the server."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from planning_cases import CURVE, conv_of, device, fleet_of, gemm_of, server, window_of, workload_of

from cleave_plan.dtypes import DType
from cleave_plan.errors import InfeasibleError
from cleave_plan.fleet.device import Device, Fleet
from cleave_plan.plan.plan import Mode, Plan
from cleave_plan.plan.planfile import plan_document
from cleave_plan.plan.verify import verify
from cleave_plan.planning.planner import make_plan
from cleave_plan.workload.gemm import Gemm, Role
from cleave_plan.workload.graph import ServerOperator, Workload

ALONE = frozenset({"server"})


def held(gemms: list[Gemm], fleet: Fleet, without: frozenset[str]) -> Plan:
    """A plan that the second opinion finds nothing wrong with (exact cover, integers, memory, times, bound)."""
    workload = workload_of(gemms)
    plan = make_plan(workload, fleet, without=without)
    assert verify(plan, workload, fleet).findings == ()
    assert 0 <= plan.predicted.bound_s <= plan.predicted.ideal_levels_s * (1 + 1e-9)
    json.dumps(plan_document(plan), allow_nan=False)
    return plan


def unequal(count: int, **changes: object) -> list[Device]:
    """Devices whose figures differ by up to a factor of three."""
    return [
        device(f"d{i}", downlink_bytes_per_s=100.0 + 40 * (i % 6), uplink_bytes_per_s=50.0 + 10 * (i % 4), **changes)
        for i in range(count)
    ]


SHAPES = {
    "one row": (1, 1, 5, 300), "one column": (1, 300, 5, 1), "one element": (1, 1, 7, 1), "depth one": (1, 40, 1, 40),
    "fewer rows than devices": (1, 3, 4, 5), "primes": (1, 97, 13, 89), "long and thin": (1, 10_007, 3, 2),
    "more batch items than devices": (50, 3, 4, 5), "fewer batch items than devices": (3, 20, 4, 30),
    "rows of 2^31": (1, 2**31, 2, 3), "sides of 2^31": (1, 2**31, 1, 2**31), "columns of 2^31": (1, 5, 2, 2**31),
    "batch of 2^20": (2**20, 2, 2, 2), "deep": (1, 4, 200_000, 4),
}  # fmt: skip


@pytest.mark.parametrize("without", [ALONE, frozenset()], ids=["devices", "with server"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_shapes(shape: tuple[int, int, int, int], without: frozenset[str]) -> None:
    """Over seven unequal devices with room for a row and a column, and a server with room for any weights."""
    held([gemm_of("g", shape)], fleet_of(unequal(7, memory_bytes=1e9), [server(memory_bytes=math.inf)]), without)


FLEETS = {
    "one device": unequal(1),
    "identical": [device(f"d{i}") for i in range(9)],
    "a thousandfold apart": [
        device(f"d{i}", flop_per_s={"any": 10.0**i}, downlink_bytes_per_s=1e3 / 10**i, uplink_bytes_per_s=10.0 ** (i % 3))
        for i in range(4)
    ],
    "latency over the whole job": unequal(6, latency_s=1e4),
    "one without latency": [*unequal(5, latency_s=1e4), device("near")],
    "curves": unequal(6, efficiency=CURVE),
    "more devices than elements": unequal(24),
}


@pytest.mark.parametrize("without", [ALONE, frozenset()], ids=["devices", "with server"])
@pytest.mark.parametrize("devices", FLEETS.values(), ids=FLEETS.keys())
def test_fleets(devices: list[Device], without: frozenset[str]) -> None:
    """A small product, a batch and a convolution in three levels."""
    conv = conv_of("c", window_of([(9, 3, 2, 1, 1), (5, 2, 1, 1, 0)], channels=2, images=2), filters=3, level=2)
    held([gemm_of("a", (1, 6, 9, 3), 0), gemm_of("b", (4, 3, 2, 1), 1), conv], fleet_of(devices), without)


def test_latency_alone_chooses_one_device() -> None:
    """Where every tile costs 10,000 s before it starts, two would only help by less: the near device does all."""
    plan = held([gemm_of("a", (1, 6, 9, 5))], fleet_of(FLEETS["one without latency"]), ALONE)
    assert plan.predicted.devices_used == 1
    assert set(plan.assignments[0].tiles.device.tolist()) == {5}


def test_identical_devices_share_evenly() -> None:
    """Nine equal devices and 90 x 90: each has 900 elements, and the plan meets its bound."""
    plan = held([gemm_of("a", (1, 90, 9, 90))], fleet_of(FLEETS["identical"]), ALONE)
    tiles = plan.assignments[0].tiles
    areas = (tiles.m_stop - tiles.m_start) * (tiles.n_stop - tiles.n_start)
    assert areas.tolist() == [900] * 9
    assert plan.predicted.gap == pytest.approx(0, abs=1e-9)


def test_memory_forces_passes() -> None:
    """4.5 kB for the kept operand and 100 B rows and columns: 45 of one side at a time, so the device makes several tiles."""
    small = [device(f"d{i}", memory_bytes=5e3, uplink_bytes_per_s=1e6) for i in range(2)]
    plan = held([gemm_of("a", (1, 400, 25, 300))], fleet_of(small), ALONE | {"inner"})
    tiles = plan.assignments[0].tiles
    assert len(tiles) > 2
    for r, c in zip(tiles.m_stop - tiles.m_start, tiles.n_stop - tiles.n_start, strict=True):
        assert min(r * 100, c * 100, r * c * 4) <= 4500
    assert plan.predicted.gap < 0.25


def test_devices_that_cannot_take_part_are_not_in_the_bound() -> None:
    """Nine devices whose buffers are a byte short add nothing, to the plan or to its certificate."""
    able = [device("able", memory_bytes=8000.0)]
    others = [device(f"short{i}", memory_bytes=7990.0, downlink_bytes_per_s=1e6, uplink_bytes_per_s=1e6) for i in range(9)]
    one = held([gemm_of("a", (1, 30, 100, 20))], fleet_of(able), ALONE)
    ten = held([gemm_of("a", (1, 30, 100, 20))], fleet_of([*able, *others]), ALONE)
    assert ten.predicted.ideal_levels_s == pytest.approx(one.predicted.ideal_levels_s)
    assert ten.predicted.bound_s == pytest.approx(one.predicted.bound_s)


@pytest.mark.parametrize("shape", [(1, 0, 4, 4), (1, 4, 0, 4), (1, 4, 4, 0), (0, 4, 4, 4)])
def test_nothing_to_compute_stays_on_the_server(shape: tuple[int, int, int, int]) -> None:
    """A side of 0, alone and beside real work in its level: no device is asked, and at most its operands are touched."""
    empty = held([gemm_of("e", shape)], fleet_of(unequal(3)), ALONE)
    assert empty.assignments[0].mode is Mode.SERVER
    assert empty.predicted.ideal_levels_s <= 64 / 1e4
    both = held([gemm_of("e", shape), gemm_of("a", (1, 6, 9, 5))], fleet_of(unequal(3)), ALONE)
    assert {a.gemms[0]: a.mode is Mode.SERVER for a in both.assignments} == {"e": True, "a": False}


def test_a_convolution_of_padding_alone_ends() -> None:
    """Its outputs read nothing, so the bound of what is read is 0; the search once never ended."""
    window = window_of([(1, 1, 3, 1, 1)], channels=2)
    plan = held([conv_of("c", window, filters=50)], fleet_of(unequal(3)), ALONE)
    assert plan.predicted.bound_s > 0


def test_row_column_and_two_dimensional_modes_are_named() -> None:
    """What is cut names the mode: rows of a tall product, columns of a wide one, both of a square."""
    four = fleet_of([device(f"d{i}") for i in range(4)])
    without = ALONE | {"inner"}
    for shape, mode in [((1, 400, 5, 2), Mode.ROW), ((1, 2, 5, 400), Mode.COLUMN), ((1, 40, 50, 40), Mode.TWO_DIMENSIONAL)]:
        assert held([gemm_of("g", shape)], four, without).assignments[0].mode is mode


# ------------------------------------------------------------------------------------------------ what the summary says


def notes(workload: Workload, without: frozenset[str] = frozenset()) -> str:
    return "\n".join(make_plan(workload, fleet_of(unequal(2, memory_bytes=1e9)), without=without).notes)


def test_decoding_one_token_is_said_to_stream_the_weights() -> None:
    """M = 1 against parameters: a note with the bytes that each token streams, or that devices keep; not with two rows, nor for
    activations."""
    token = [gemm_of(f"l{level}", (1, 1, 1000, 500), level) for level in range(3)]
    said = notes(workload_of(token), frozenset({"reuse"}))
    assert "M = 1" in said
    assert "6 MB" in said  # 3 * 1,000 * 500 * 4 bytes
    kept = notes(workload_of(token))
    assert "M = 1" not in kept
    assert "from batch to batch; the first batch sends them" in kept
    assert "M = 1" not in notes(workload_of([gemm_of("g", (1, 2, 1000, 500))]))
    scores = gemm_of("s", (1, 1, 64, 500))
    assert "M = 1" not in notes(workload_of([replace(scores, b=replace(scores.b, role=Role.ACTIVATION))]))


def test_operators_of_unknown_shape_are_named() -> None:
    """Their seconds are missing from the total, and the plan says which they are."""
    workload = workload_of([gemm_of("g", (1, 4, 4, 4))])
    operators = (
        ServerOperator(name="nms", op="NonMaxSuppression", level=1, bytes=None),
        ServerOperator(name="relu", op="Relu", level=0, bytes=10),
    )  # fmt: skip
    said = notes(replace(workload, server_operators=operators))
    assert "nms" in said
    assert "relu" not in said
    assert "unknown shape" not in notes(workload)


def test_notes_of_the_model_come_first() -> None:
    """What the importer had to say is said again."""
    workload = replace(workload_of([gemm_of("g", (1, 4, 4, 4))]), notes=("the If takes its else branch",))
    assert notes(workload).splitlines()[0] == "the If takes its else branch"


def test_alternatives_stand_beside_the_plan() -> None:
    """One device alone, the server alone, and how many of how many devices are used, by hand."""
    gemm = gemm_of("g", (1, 10, 10, 10))
    fleet = fleet_of([device("slow", flop_per_s={"any": 1.0}), device("quick", memory_bytes=1e9)], [server()])
    predicted = held([gemm], fleet, frozenset()).predicted
    # quick: A or B of 400 B kept: 4 + max(4, 2, 8) = 12; the server: 2,000 FLOP at 1,000 FLOP/s
    assert (predicted.one_device_name, predicted.one_device_s) == ("quick", pytest.approx(12))
    assert predicted.server_only_s == pytest.approx(2)
    assert predicted.devices_total == 2
    assert not math.isinf(predicted.batch_s)


def test_element_types_of_a_few_bits() -> None:
    """int4 weights against float16 rows."""
    gemm = gemm_of("g", (1, 33, 64, 47), dtype=DType.FLOAT16)
    held([replace(gemm, b=replace(gemm.b, dtype=DType.INT4))], fleet_of(unequal(5)), ALONE)


@pytest.mark.parametrize("without", [ALONE, frozenset()], ids=["devices", "with server"])
def test_a_model_without_products(without: frozenset[str]) -> None:
    """There is nothing to choose: the plan is empty, and takes what the server's operators take."""
    plan = held([], fleet_of(unequal(3), [server(memory_bytes=1e6)]), without)
    assert plan.assignments == ()
    assert (plan.predicted.levels_s, plan.predicted.bound_s, plan.predicted.gap) == (0.0, 0.0, 0.0)


def test_a_model_without_products_that_no_server_holds() -> None:
    """Parameters of no GEMM still have to lie somewhere."""
    workload = replace(workload_of([]), parameters={"table": 10_000})
    with pytest.raises(InfeasibleError, match="servers cannot hold the model"):
        make_plan(workload, fleet_of(unequal(3), [server(memory_bytes=5e3)]))
