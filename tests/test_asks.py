"""What users of neighbouring tools asked for or ran into, each as a case of ours with the right value.

The case is named by the thread in which it was told (repository #number). Cases that need what is not built yet (a new plan
after devices left, with hysteresis) are not here.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cleave_plan.dtypes import DType
from cleave_plan.errors import CleaveError, InfeasibleError
from cleave_plan.fleet.catalogue import catalogue
from cleave_plan.fleet.device import Device, Fleet, Server
from cleave_plan.fleet.figures import figures_of
from cleave_plan.fleet.fleetfile import load_fleet
from cleave_plan.fleet.identity import make_fleet
from cleave_plan.fleet.synthetic import PRESETS, generate_fleet
from cleave_plan.onnx_io.importer import load_model
from cleave_plan.plan.finding import Code
from cleave_plan.plan.plan import Constraint, Plan, SolverStatus
from cleave_plan.plan.schema import plan_schema
from cleave_plan.plan.verify import verify
from cleave_plan.planning import planner
from cleave_plan.planning.formulation import Program, Row
from cleave_plan.planning.planner import make_plan
from cleave_plan.planning.solver import Answer, Outcome, available, solve
from cleave_plan.report.plan import worth
from cleave_plan.workload.gemm import Gemm, GemmShape, Operand, Role
from cleave_plan.workload.graph import Level, Workload
from models.registry import build

AWAY = frozenset({"server"})
"""No GEMM stays on the server, so that devices must share it."""


def device(name: str, **changes: Any) -> Device:
    """1 GFLOP/s, 10 MB/s down, 5 MB/s up, no latency, 100 MB."""
    figures: dict[str, Any] = {
        "flop_per_s": {"any": 1e9}, "downlink_bytes_per_s": 1e7, "uplink_bytes_per_s": 5e6, "latency_s": 0.0, "memory_bytes": 1e8,
    }  # fmt: skip
    return Device(name=name, **(figures | changes))


def server(**changes: Any) -> Server:
    """1 GFLOP/s, 1 GB/s of memory bandwidth, links without limit, 10 GB."""
    figures: dict[str, Any] = {
        "flop_per_s": {"any": 1e9}, "memory_bytes": 1e10, "memory_bandwidth_bytes_per_s": 1e9, "egress_bytes_per_s": math.inf,
        "ingress_bytes_per_s": math.inf,
    }  # fmt: skip
    return Server(name="home", **(figures | changes))


def fleet_of(*devices: Device, **changes: Any) -> Fleet:
    """``devices`` around one server."""
    return make_fleet("home", [server(**changes)], devices)


def layers(count: int, m: int, k: int, n: int, *, live: int = 0) -> Workload:
    """``count`` float32 layers of [m, k] times a weight [k, n], one after the other; ``live`` bytes of activations."""
    gemms = tuple(
        Gemm(
            name=f"layer{i}", node=f"layer{i}", op="MatMul", shape=GemmShape(1, m, k, n), level=i, output=f"y{i}",
            a=Operand(tensor=f"x{i}", role=Role.ACTIVATION, dtype=DType.FLOAT32),
            b=Operand(tensor=f"w{i}", role=Role.PARAMETER, dtype=DType.FLOAT32), out_dtype=DType.FLOAT32,
        )
        for i in range(count)
    )  # fmt: skip
    return Workload(
        name="layers", sha256="a" * 64, gemms=gemms, server_operators=(), inputs=(), outputs=(),
        levels=tuple(Level(index=i, gemms=(i,), live_bytes=live) for i in range(count)),
        parameters={f"w{i}": 4 * k * n for i in range(count)}, parameter_elements=count * k * n,
    )  # fmt: skip


def planned(workload: Workload, fleet: Fleet, **options: Any) -> Plan:
    """A plan that the second opinion approves."""
    plan = make_plan(workload, fleet, **options)
    assert verify(plan, workload, fleet).findings == ()
    return plan


def work(plan: Plan, place: int = 0) -> dict[str, int]:
    """Multiply-adds of each device in one assignment."""
    tiles = plan.assignments[place].tiles
    volume = (tiles.m_stop - tiles.m_start) * (tiles.n_stop - tiles.n_start) * (tiles.k_stop - tiles.k_start)
    found: dict[str, int] = {}
    for owner, macs in zip(tiles.device.tolist(), (volume * (tiles.batch_stop - tiles.batch_start)).tolist(), strict=True):
        name = (*plan.device_names, "server")[owner]
        found[name] = found.get(name, 0) + macs
    return found


def imported(folder: Path, name: str, **sizes: Any) -> Workload:
    """A model of the registry."""
    path = folder / f"{name}.onnx"
    path.write_bytes(build(name, **sizes).SerializeToString())
    return load_model(path).workload


# Splits


def test_any_number_of_devices_for_any_number_of_heads(tmp_path: Path) -> None:
    """distributed-llama #139: five boards, 8 heads of which 2 key-value heads, neither a power of two nor a divisor."""
    workload = imported(tmp_path, "llama-tiny", batch=2, seq=16)
    plan = planned(workload, fleet_of(*(device(f"board{i}") for i in range(5))), without=AWAY)
    assert plan.predicted.devices_used == 5


def test_seven_layers_over_two_devices() -> None:
    """mlx-lm PR 1816: no layer is lost, and a plan that lost one does not pass."""
    workload, fleet = layers(7, 30, 20, 10), fleet_of(device("a"), device("b"))
    plan = planned(workload, fleet, without=AWAY)
    assert sorted(name for assignment in plan.assignments for name in assignment.gemms) == [f"layer{i}" for i in range(7)]
    first = plan.assignments[0]
    lost = replace(plan, assignments=(replace(first, gemms=first.gemms[:-1]), *plan.assignments[1:]))
    assert Code.GEMM_MISSING in {finding.code for finding in verify(lost, workload, fleet).findings}


@pytest.mark.parametrize("m", [97, 101, 211])
def test_the_spare_piece_does_not_overfill_the_fullest_device(m: int) -> None:
    """exo PR 2227: prime sizes over devices whose memory holds hardly more than their share."""
    fleet = fleet_of(*(device(f"d{i}", memory_bytes=60e3 + 7e3 * i) for i in range(3)))
    plan = planned(layers(1, m, 50, 103), fleet, without=AWAY)
    for one in fleet.devices:
        assert plan.predicted.device_memory_bytes.get(one.name, 0.0) <= one.memory_bytes


def test_equal_devices_have_equal_work() -> None:
    """llama.cpp PR 28510: rounding favours nobody by more than a row or a column of a GEMM."""
    plan = planned(layers(3, 101, 30, 53), fleet_of(*(device(f"d{i}") for i in range(4))), without=AWAY)
    shares = work(plan).values()
    assert len(shares) == 4
    assert max(shares) - min(shares) <= 30 * max(101, 53)


def test_the_smallest_device_limits_nobody() -> None:
    """exo PR 2064: beside a device of a tenth of everything, the plan is near the fast one alone, not near equal shards."""
    slow = device("slow", flop_per_s={"any": 1e8}, downlink_bytes_per_s=1e6, uplink_bytes_per_s=5e5)
    workload = layers(1, 200, 100, 200)
    both = planned(workload, fleet_of(device("fast"), slow), without=AWAY)
    alone = planned(workload, fleet_of(device("fast")), without=AWAY)
    equal_s = 200 * 100 * 4 / 5e5  # the slow one's half of the result, uploaded
    assert both.predicted.ideal_levels_s <= alone.predicted.ideal_levels_s < equal_s / 2


@pytest.mark.parametrize("sizes", [(1, 1, 1), (7, 3, 2), (13, 17, 19), (127, 1, 31), (1, 40, 97)])
def test_shards_add_up(sizes: tuple[int, int, int]) -> None:
    """DeepSpeed PR 8185: whatever the sizes, the shards are the whole."""
    m, k, n = sizes
    some = fleet_of(*(device(f"d{i}", uplink_bytes_per_s=1e6 * (i + 1)) for i in range(3)))
    plan = planned(layers(1, m, k, n), some, without=AWAY)
    assert plan.predicted.devices_used >= 1
    assert sum(work(plan).values()) == m * k * n


# Links and slow devices


def test_one_machine_that_is_better_alone_is_said_to_be() -> None:
    """distributed-llama #262, #193, #179: the times of one device and of the server alone always stand beside; k of n."""
    far = device("far", downlink_bytes_per_s=10.0, uplink_bytes_per_s=10.0, latency_s=60.0)
    plan = planned(layers(2, 200, 100, 200), fleet_of(device("near"), far, flop_per_s={"any": 1e6}))
    assert (plan.predicted.devices_used, plan.predicted.devices_total) == (1, 2)
    assert plan.predicted.one_device_name == "near"
    assert plan.predicted.one_device_s is not None
    assert plan.predicted.server_only_s == pytest.approx(2 * 2 * 200 * 100 * 200 / 1e6)
    good, sentence = worth(planned(layers(2, 20, 10, 20), fleet_of(far)).predicted)
    assert not good
    assert "The fleet is not worth it" in sentence


def test_overhead_of_messages_and_contention_at_the_server() -> None:
    """distributed-llama #58: 510 kB at 1 Gbit/s are 4 ms and the latency; ten devices at once share the server's link."""
    sent = layers(1, 425, 150, 425)  # A and B together are 510 kB
    latency_s = 0.196
    link = {"downlink_bytes_per_s": 125e6, "uplink_bytes_per_s": 125e6, "flop_per_s": {"any": 1e15}}
    one = planned(sent, fleet_of(device("d", latency_s=latency_s, **link)), without=AWAY)
    assert one.predicted.ideal_levels_s == pytest.approx(latency_s + 425 * 425 * 4 / 125e6)  # the result is the longer part
    assert one.predicted.levels_s >= latency_s + 510e3 / 125e6
    shared = fleet_of(*(device(f"d{i}", **link) for i in range(10)), egress_bytes_per_s=125e6, ingress_bytes_per_s=125e6)
    plan = planned(sent, shared, without=AWAY)
    assert plan.predicted.levels_s >= plan.predicted.downlink_bytes / 125e6
    assert plan.predicted.levels_s >= 425 * 425 * 4 / 125e6


def test_memory_alone_decides_nothing() -> None:
    """exo #957: of two devices the one with ten times the memory and a tenth of the speed has the smaller part."""
    large = device("large", memory_bytes=1e9, flop_per_s={"any": 1e8}, downlink_bytes_per_s=1e6, uplink_bytes_per_s=5e5)
    shares = work(planned(layers(1, 200, 100, 200), fleet_of(device("fast"), large), without=AWAY))
    assert shares["fast"] > 5 * shares.get("large", 0)


def test_a_link_known_in_one_direction_is_refused(tmp_path: Path) -> None:
    """exo #2077: no uplink is made up; the device and the figure are named."""
    path = tmp_path / "fleet.yaml"
    path.write_text(
        "schema: 1\nname: f\nservers:\n  - {name: s, flops: 1 GFLOP/s, memory: 1 GB, memory_bandwidth: 1 GB/s, egress: 1 Gbit/s,"
        " ingress: 1 Gbit/s}\ndevices:\n  - {name: phone, flops: 1 GFLOP/s, downlink: 10 Mbit/s, latency: 1 ms, memory: 1 GB}\n"
    )
    with pytest.raises(CleaveError, match=r"uplink"):
        load_fleet(path)


def test_the_faster_of_two_links_is_chosen() -> None:
    """exo #2295: one machine on its slow and on its fast link, as two entries: the fast one counts."""
    slow, fast = (
        device("wireless", downlink_bytes_per_s=8.7e5, uplink_bytes_per_s=8.7e5),
        device("cable", downlink_bytes_per_s=25.4e5, uplink_bytes_per_s=25.4e5),
    )
    workload = layers(1, 200, 10, 200)
    both = planned(workload, fleet_of(slow, fast), without=AWAY)
    assert both.predicted.one_device_name == "cable"
    assert work(both)["cable"] > 2 * work(both).get("wireless", 0)
    alone = [planned(workload, fleet_of(one), without=AWAY).predicted.ideal_levels_s for one in (slow, fast)]
    assert alone[0] / alone[1] == pytest.approx(25.4 / 8.7)


def test_compute_and_network_are_apart() -> None:
    """petals #192: a device that claims a thousand times the compute gains nothing where its uplink binds."""
    workload, options = layers(1, 200, 10, 200), {"without": AWAY}
    honest = planned(workload, fleet_of(device("a"), device("b")), **options)
    boast = planned(workload, fleet_of(device("a", flop_per_s={"any": 1e12}), device("b")), **options)
    assert boast.predicted.ideal_levels_s == pytest.approx(honest.predicted.ideal_levels_s, rel=1e-3)


# Memory


def test_memory_can_be_capped_and_left_free() -> None:
    """exo #118: per device, and as headroom; the plan lists both and keeps them."""
    demands = (Constraint(name="cap", devices=("a",), memory_bytes=2e6), Constraint(name="spare", devices=("b",), headroom=0.9))
    plan = planned(layers(1, 400, 300, 400), fleet_of(device("a"), device("b")), without=AWAY, constraints=demands)
    assert plan.predicted.device_memory_bytes["a"] <= 2e6
    assert plan.predicted.device_memory_bytes["b"] <= 1e7
    assert plan.constraints == demands


def test_too_little_memory_is_told_in_figures() -> None:
    """exo #1754: required, and available on each device, in bytes."""
    fleet = fleet_of(device("a", memory_bytes=1e4), device("b", memory_bytes=2e4))
    with pytest.raises(InfeasibleError, match="required 8 kB") as caught:
        make_plan(layers(1, 10, 1000, 10), fleet, without=AWAY)  # one row and one column of 1000 float32
    assert caught.value.facts["required"] == 8000
    assert caught.value.facts["available"] == {"a": 1e3, "b": 2e3}  # a tenth, the stream buffers


def test_memory_is_the_peak_with_its_buffers() -> None:
    """omlx #3522: what a device needs includes the buffers through which operands arrive, a tenth of its memory."""
    plan = planned(layers(1, 100, 100, 100), fleet_of(device("a")), without=AWAY)
    assert plan.predicted.device_memory_bytes["a"] == pytest.approx(1e7 + 4 * 100 * 100)


def test_activations_count() -> None:
    """autoparallel PR 22: a server with room for the weights, but not for the activations beside them, does not do."""
    weights = 3 * 4 * 50 * 50
    fits = fleet_of(device("a"), memory_bytes=weights + 1000)
    assert planned(layers(3, 10, 50, 50, live=1000), fits).predicted.server_memory_bytes["home"] == weights + 1000
    with pytest.raises(InfeasibleError, match="live activations"):
        make_plan(layers(3, 10, 50, 50, live=1001), fits)


# Solver


def test_an_answer_within_a_time_limit_is_not_optimal(monkeypatch: pytest.MonkeyPatch) -> None:
    """pulp #711, #649: an incumbent with half its objective as bound is "time-limited", with a gap of a half."""

    def hurried(program: Program, **options: Any) -> Answer:
        answer = solve(program, **options)
        return replace(answer, outcome=Outcome.TIME_LIMITED, bound=answer.objective / 2)

    monkeypatch.setattr(planner, "solve", hurried)
    plan = planned(layers(1, 20, 10, 20), fleet_of(device("a")))
    assert plan.solver.status is SolverStatus.TIME_LIMITED
    assert plan.solver.gap == pytest.approx(0.5)


def test_an_answer_that_does_not_add_up_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """pulp #383: whatever a solver claims, the objective is that of the tiles, or there is no plan."""

    def wrong(program: Program, **options: Any) -> Answer:
        answer = solve(program, **options)
        return replace(answer, objective=answer.objective * 0.9)

    monkeypatch.setattr(planner, "solve", wrong)
    with pytest.raises(CleaveError, match="objective"):
        make_plan(layers(1, 20, 10, 20), fleet_of(device("a")))


@pytest.mark.parametrize("name", ["HiGHS", "CBC"])
def test_a_small_feasible_program_is_feasible(name: str) -> None:
    """pulp #662: five variables with coefficients like 9000, 7200 and 10800, at least 16200 together."""
    if name not in available():
        pytest.skip(f"{name} is not installed")
    sizes = (9000.0, 7200.0, 10800.0, 9000.0, 7200.0)
    names = [f"z{i}" for i in range(5)]
    at_least = Row(
        name="enough", coefficients=dict(zip(names, (-size for size in sizes), strict=True)), relation="<=", limit=-16200
    )
    goal = dict(zip(names, (5.0, 4.0, 6.5, 5.5, 4.5), strict=True))
    program = Program(goal=goal, integers=dict.fromkeys(names, 1), rows=[at_least])
    answer = solve(program, gap=0.0, time_limit_s=30, solver=name)
    assert answer.objective == pytest.approx(9.0)  # 9000 + 7200, for 5 + 4


def test_repeated_blocks_are_shared() -> None:
    """ColossalAI #2853: sixty layers are as many variables as three."""
    fleet = fleet_of(device("a"), device("b"))
    sizes = {count: planned(layers(count, 40, 30, 20), fleet).solver.variables for count in (3, 60)}
    assert sizes[3] == sizes[60]


# Plans


def test_every_assumption_is_printed() -> None:
    """autoparallel PR 333: settings, the schedule that the bound holds for, and constraints; there are no hidden ones."""
    plan = planned(layers(1, 20, 10, 20), fleet_of(device("a")))
    assert {"without", "gap", "time_limit_s"} <= plan.settings.keys()
    assert any("barrier" in note for note in plan.notes)
    assert plan.constraints == ()


def test_no_licence_is_needed() -> None:
    """stream PR 47: the solver is HiGHS or CBC, and comes with the installation."""
    assert planned(layers(1, 20, 10, 20), fleet_of(device("a"))).solver.name in ("HiGHS", "CBC")


def test_a_plan_for_another_batch_is_refused(tmp_path: Path) -> None:
    """nnscaler #28: times of one batch size are not those of another; the model's own bindings are compared."""
    path = tmp_path / "mlp.onnx"
    path.write_bytes(build("mlp").SerializeToString())
    small, large = (load_model(path, dims={"batch": size}).workload for size in (8, 16))
    fleet = fleet_of(device("a"))
    findings = verify(planned(small, fleet), large, fleet).findings
    assert Code.BINDINGS in {finding.code for finding in findings}
    other = replace(fleet, sha256="f" * 64)
    assert Code.FLEET in {finding.code for finding in verify(planned(small, fleet), small, other).findings}


def test_a_device_can_be_given_its_share() -> None:
    """exo #1720: propose, inspect, edit, commit: a cap on a device's work is kept and listed."""
    workload, fleet = layers(1, 200, 100, 200), fleet_of(device("a"), device("b"))
    assert work(planned(workload, fleet, without=AWAY))["a"] > 0.4 * 200 * 100 * 200
    capped = planned(workload, fleet, without=AWAY, constraints=[Constraint(name="less", devices=("a",), work=0.1)])
    assert work(capped).get("a", 0) <= 0.1 * 200 * 100 * 200


def test_a_device_that_left_blocks_nothing() -> None:
    """exo #2194, #1823: planned without it, by name, for the same fleet's file."""
    fleet = fleet_of(device("a"), device("gone"), device("c"))
    plan = planned(
        layers(1, 60, 30, 60), fleet, without=AWAY, constraints=[Constraint(name="left", devices=("gone",), exclude=True)]
    )
    assert set(work(plan)) == {"a", "c"}
    assert plan.fleet.sha256 == fleet.sha256


def test_hardware_that_one_does_not_own_is_labelled() -> None:
    """FlexFlow #1172: every figure of the catalogue says how it is known, where from and when."""
    entries = [*catalogue().devices.values(), *catalogue().links.values()]
    assert len(entries) > 10
    for entry in entries:
        for figure in entry.figures.values():
            assert figure.provenance is not None
            assert figure.provenance.source


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_no_magic_constants(preset: str) -> None:
    """FLEXLLMGen #122: each figure of a generated device and server has its source."""
    fleet = generate_fleet(5, preset=preset)
    for member in (*fleet.devices, *fleet.servers):
        for name in figures_of(member):
            assert name in member.provenance or name.partition(".")[0] in member.provenance, (member.name, name)


def test_numbers_have_a_name_and_a_unit() -> None:
    """dnn-partitioning #3: no number of a plan file is without its unit."""
    text = json.dumps(plan_schema())
    assert text.count('"x-unit"') > 30
    for field in plan_schema()["$defs"]["PredictedDocument"]["properties"].items():
        name, schema = field
        if schema.get("type") == "number":
            assert name.endswith(("_s", "_bytes")) or name == "gap"
