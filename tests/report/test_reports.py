"""What the reports say about values built by hand: the numbers a person needs are there, with their units."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from cleave_plan.cost.tile import Tiles
from cleave_plan.dtypes import DType
from cleave_plan.fleet.device import Device, Fleet, Provenance, Quality, Server
from cleave_plan.plan.plan import (
    Assignment,
    LevelReport,
    Mode,
    Plan,
    Predicted,
    Reference,
    SolverReport,
    SolverStatus,
)
from cleave_plan.report.fleet import fleet_document, fleet_text
from cleave_plan.report.plan import plan_text, worth
from cleave_plan.report.tables import Screen
from cleave_plan.report.workload import workload_document, workload_text
from cleave_plan.workload.gemm import Gemm, GemmShape, Operand, Role
from cleave_plan.workload.graph import Level, ServerOperator, TensorInfo, Workload

SCREEN = Screen(width=120)


def gemm(name: str, level: int) -> Gemm:
    """32 x 64 times 64 x 16 in float32; B is a parameter."""
    return Gemm(
        name=name, node=name, op="MatMul", shape=GemmShape(1, 32, 64, 16), level=level,
        a=Operand(tensor="x", role=Role.ACTIVATION, dtype=DType.FLOAT32),
        b=Operand(tensor=f"{name}.weight", role=Role.PARAMETER, dtype=DType.FLOAT32),
        output=f"{name}.out", out_dtype=DType.FLOAT32,
    )  # fmt: skip


WORKLOAD = Workload(
    name="tiny", sha256="ab" * 32, gemms=(gemm("first", 0), gemm("second", 1)),
    levels=(Level(index=0, gemms=(0,), live_bytes=100), Level(index=1, gemms=(1,), live_bytes=None)),
    server_operators=(
        ServerOperator(name="act", op="Relu", level=1, bytes=4096),
        ServerOperator(name="odd", op="Fused", domain="com.example", level=1, bytes=None, gemm_like=True),
    ),
    inputs=(TensorInfo(name="x", dtype="float32", shape=(32, 64)),),
    outputs=(TensorInfo(name="y", dtype="float32", shape=(32, 16)),),
    parameters={"first.weight": 4096, "second.weight": 4096}, parameter_elements=2048, dims={"batch": 32},
    notes=("Fused holds matrix work that no rule counts",),
)  # fmt: skip

FLEET = Fleet(
    name="pair", sha256="cd" * 32,
    servers=(
        Server(
            name="main", flop_per_s={"any": 1e12}, memory_bytes=math.inf, memory_bandwidth_bytes_per_s=2e11,
            egress_bytes_per_s=math.inf, ingress_bytes_per_s=1.25e9,
        ),
    ),
    devices=(
        Device(
            name="laptop", flop_per_s={"float32": 2e12, "float16": 4e12}, downlink_bytes_per_s=1e7, uplink_bytes_per_s=1e6,
            latency_s=0.013, memory_bytes=4e9, power_watt=30,
            provenance={"memory": Provenance(quality=Quality.MEASURED, source="free", date="2025-01-01")},
        ),
        Device(
            name="phone", flop_per_s={"any": 1e12}, downlink_bytes_per_s=5e6, uplink_bytes_per_s=1e6, latency_s=0.031,
            memory_bytes=1e9,
        ),
    ),
)  # fmt: skip

PREDICTED = Predicted(
    batch_s=0.5, first_batch_s=0.75, levels_s=0.4, server_operators_s=0.1, ideal_levels_s=0.3, bound_s=0.27, gap=0.1,
    levels=(
        LevelReport(index=0, count=1, gemms=("first",), ideal_s=0.2, executed_s=0.3, bound_s=0.19, binds="device laptop"),
        LevelReport(index=1, count=1, gemms=("second",), ideal_s=0.1, executed_s=0.1, bound_s=0.08, binds="egress main"),
    ),
    devices_used=1, devices_total=2, one_device_s=2.0, one_device_name="laptop", server_only_s=1.0,
    downlink_bytes=3e6, uplink_bytes=1e6, server_memory_bytes={"main": 8292.0}, device_memory_bytes={"laptop": 5e6},
    spared_bytes=2e6, device_kept_bytes={"laptop": 1e6},
)  # fmt: skip

PLAN = Plan(
    model=Reference(name="tiny", sha256="ab" * 32), fleet=Reference(name="pair", sha256="cd" * 32), dims={"batch": 32}, shapes={},
    settings={"gap": "0.1 %"}, device_names=("laptop", "phone"), server_names=("main",),
    assignments=(
        Assignment(
            class_name="c0", mode=Mode.ROW, gemms=("first",), server="main", servers=("main",), shares=(1.0,),
            tiles=Tiles.of([(0, 0, 32, 0, 16, 0, 64, 0, 1)]),
        ),
        Assignment(
            class_name="c1", mode=Mode.SERVER, gemms=("second",), server="main", servers=("main",), shares=(1.0,),
            tiles=Tiles.of([]),
        ),
    ),
    predicted=PREDICTED,
    solver=SolverReport(
        name="HiGHS", status=SolverStatus.OPTIMAL, objective=0.3, bound=0.3, gap=0.0, build_s=0.01, solve_s=0.02,
        variables=12, rows=8,
    ),
    notes=("every batch streams the weights",),
)  # fmt: skip


def squeezed(text: str) -> str:
    """Text with runs of blanks made one, so that a test reads as the screen does."""
    return " ".join(text.split())


def test_the_plan_says_what_a_person_wants_to_know() -> None:
    """Batch time and its parts, bound, gap, devices used, alternatives, what binds, notes: all with units and costs named."""
    text = squeezed(plan_text(PLAN, SCREEN))
    for fact in (
        "batch time 500 ms levels 400 ms + server operators 100 ms, by executed cost",
        "bound 270 ms",
        "gap 10 %",
        "uses 1 of 2",
        "one device 2 s laptop, 4 × the plan's batch time",
        "server only 1 s 2 × the plan's batch time",
        "2 × faster than the server alone (1 s), the fleet takes 500 ms",
        "3 MB down, 1 MB up, per batch",
        "device laptop",
        "egress main",
        "note: every batch streams the weights",
        "1 device left out",
        "row 1, server 1",
        "HiGHS, gap 0 % among the options offered",
    ):
        assert fact in text


@pytest.mark.parametrize(
    ("changes", "good", "words"),
    [
        ({}, True, "2 × faster than the server alone"),
        ({"server_only_s": 0.4}, False, "not worth it: the server alone takes 400 ms"),
        ({"server_only_s": None}, True, "4 × faster than one device (laptop)"),
        ({"server_only_s": None, "one_device_s": 0.5}, False, "not worth it: one device (laptop)"),
        ({"server_only_s": None, "one_device_s": None, "one_device_name": None}, True, "Only the fleet can run it"),
        ({"devices_used": 0, "server_only_s": 0.5}, False, "not worth it"),
    ],
)
def test_the_verdict_on_the_fleet(changes: dict[str, object], good: bool, words: str) -> None:
    """The best alternative decides whether the fleet is worth it, and both times are named."""
    answer, sentence = worth(dataclasses.replace(PREDICTED, **changes))
    assert answer is good
    assert words in sentence


def test_long_plans_are_summed_up() -> None:
    """Beyond ten levels and sixteen devices the rest is one row each, and shares still sum to the whole."""
    names = tuple(f"d{place}" for place in range(20))
    levels = tuple(
        LevelReport(index=place, count=2, gemms=(f"g{place}",), ideal_s=0.01, executed_s=0.0125, bound_s=0.01, binds="device d0")
        for place in range(20)
    )
    tiles = Tiles.of([(place, place, place + 1, 0, 16, 0, 64, 0, 1) for place in range(20)])
    plan = dataclasses.replace(
        PLAN, device_names=names, predicted=dataclasses.replace(PREDICTED, levels=levels, devices_used=20, devices_total=20),
        assignments=(dataclasses.replace(PLAN.assignments[0], tiles=tiles),),
    )  # fmt: skip
    text = squeezed(plan_text(plan, SCREEN))
    assert "others 20 50 %" in text
    assert "4 others 4 20 %" in text


def test_a_level_that_a_chain_left_empty_is_not_shown() -> None:
    """Attention as one product takes the level of its scores; the context's level holds nothing and takes no time."""
    empty = LevelReport(index=9, count=3, gemms=(), ideal_s=0.0, executed_s=0.0, bound_s=0.0, binds="device tv")
    predicted = dataclasses.replace(PREDICTED, levels=(*PREDICTED.levels, empty))
    shown = [squeezed(line) for line in plan_text(dataclasses.replace(PLAN, predicted=predicted), SCREEN).splitlines()]
    assert not any(line.startswith("9 3") for line in shown)
    assert any(line.startswith("0 ") for line in shown)


def test_the_workload_on_the_terminal() -> None:
    """Identical GEMMs fold into one row with their sums; what no rule counts is said."""
    text = squeezed(workload_text(WORKLOAD, SCREEN))
    assert "first MatMul 2 1 32 64 16 float32 2,048 131.1 kFLOP 28.67 kB" in text
    assert "total 2" in text
    assert "com.example.Fused 1 0 B 1 of unknown size; holds matrix work that is not counted" in text
    assert "note: Fused holds matrix work" in text
    listed = squeezed(workload_text(WORKLOAD, SCREEN, every=True))
    assert "first MatMul 1 1 32 64 16" in listed
    assert "second MatMul 1 1 32 64 16" in listed


def test_a_model_without_matrix_work() -> None:
    """No empty table, a sentence instead; an open size is a question mark."""
    empty = dataclasses.replace(
        WORKLOAD, gemms=(), levels=(), inputs=(TensorInfo(name="x", dtype="float32", shape=(-1, 64)),), notes=()
    )
    text = squeezed(workload_text(empty, SCREEN))
    assert "there is none that a rule counts" in text
    assert "x float32[?, 64]" in text
    assert "total" not in text


def test_gemms_that_repeat_or_stay_are_marked() -> None:
    """A recurrent step's work counts every time it runs, and the reason why it stays on the server is said."""
    step = dataclasses.replace(gemm("first", 0), repeats=100, pinned="a recurrent step")
    workload = dataclasses.replace(WORKLOAD, gemms=(step, WORKLOAD.gemms[1]))
    text = squeezed(workload_text(workload, SCREEN))
    assert "first MatMul 1 1 32 64 16 float32 1,024 6.554 MFLOP 1.434 MB runs 100 times; server: a recurrent step" in text
    document = workload_document(workload)
    assert document["totals"]["gemm_macs"] == 101 * 32 * 64 * 16
    assert [(each["repeats"], each["pinned"]) for each in document["gemms"]] == [(100, "a recurrent step"), (1, None)]


def test_the_workload_as_a_document() -> None:
    """Names that scripts rely on, with literal values: 32*64*16 multiply-adds twice."""
    document = json.loads(json.dumps(workload_document(WORKLOAD), allow_nan=False))
    assert document["totals"]["gemm_macs"] == 65536
    assert document["totals"]["gemm_flop"] == 131072
    assert document["totals"]["parameters"] == 2048
    first = document["gemms"][0]
    assert first["shape"] == [1, 32, 64, 16]
    assert (first["macs"], first["flop"], first["level"], first["phase"]) == (32768, 65536, 0, "forward")
    assert first["b"] == {"tensor": "first.weight", "role": "parameter", "dtype": "float32", "bytes": 4096}
    assert [operator["op"] for operator in document["unrecognised"]] == ["Fused"]


def test_the_fleet_on_the_terminal() -> None:
    """Links in bits, types of arithmetic, unlimited links, and the origin of each figure."""
    text = squeezed(fleet_text(FLEET, SCREEN))
    for fact in (
        "2 TFLOP/s float32, 4 TFLOP/s float16",
        "80 Mbit/s",
        "13 ms",
        "unlimited",
        "30 W",
        "device memory measured free 2025-01-01 1",
        "not stated",
    ):
        assert fact in text


def test_large_fleets_are_cut_unless_all_is_asked_for() -> None:
    """The first 32 devices are listed, the rest counted."""
    many = dataclasses.replace(FLEET, devices=tuple(dataclasses.replace(FLEET.devices[1], name=f"d{i}") for i in range(40)))
    assert "8 more devices not listed" in fleet_text(many, SCREEN)
    assert "d39" in fleet_text(many, SCREEN, every=True)


def test_the_fleet_as_a_document_is_plain_json() -> None:
    """An unlimited link is a word, because JSON knows no infinity."""
    document = json.loads(json.dumps(fleet_document(FLEET), allow_nan=False))
    assert document["servers"][0]["egress_bytes_per_s"] == "unlimited"
    assert document["devices"][0]["flop_per_s"] == {"float32": 2e12, "float16": 4e12}
    assert document["devices"][0]["provenance"]["memory"]["quality"] == "measured"


def test_many_outputs() -> None:
    """Of 2,000 outputs the table shows 24, those that are furthest off, in their order; none that differs is left out of them."""
    from cleave_plan.execution.verification import OutputCheck
    from cleave_plan.report.run import most_telling

    rows = tuple(
        OutputCheck(
            name=f"o{place}", dtype="float32", shape=(2,), max_absolute_error=0.0, max_relative_error=place % 7 * 1e-6,
            tolerance=1e-4 if place % 2 else None, different=0, ties=0, ok=True,
        )
        for place in range(2000)
    )  # fmt: skip
    wrong = {3: dataclasses.replace(rows[3], ok=False, different=1), 1998: dataclasses.replace(rows[1998], ok=False, different=2)}
    shown = most_telling(tuple(wrong.get(place, row) for place, row in enumerate(rows)))
    assert len(shown) == 24
    assert shown[0].name == "o3"
    assert shown[-1].name == "o1998"
    assert {row.max_relative_error for row in shown[1:-1]} == {6e-6}
    assert most_telling(rows[:24]) == rows[:24]
