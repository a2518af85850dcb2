"""Devices that come and go: nothing is lost, nothing is computed twice, and the times are those of cases by hand."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_cases import device, fleet_of, gemm_of, server, workload_of
from random_cases import random_cases

from cleave_plan.cost.tile import BOX, Tiles, price
from cleave_plan.errors import InfeasibleError, InputFileError, UsageError
from cleave_plan.fleet.churn import Change, Event, Rates, drawn, rates_of, read_trace
from cleave_plan.fleet.device import Fleet
from cleave_plan.plan.cover import cover_flaw
from cleave_plan.plan.plan import Mode, Plan
from cleave_plan.planning.planner import make_plan
from cleave_plan.simulation import effort
from cleave_plan.simulation.churn import churn
from cleave_plan.simulation.disturbed import REPLAN_S
from cleave_plan.simulation.player import Player
from cleave_plan.workload.graph import Workload


def case(devices: int = 8, levels: int = 3) -> tuple[Plan, Workload, Fleet]:
    """Levels of one product of 240 x 60 (K = 20) over equal devices."""
    workload = workload_of([gemm_of(f"g{i}", (1, 240, 20, 60), level=i) for i in range(levels)])
    fleet = fleet_of([device(f"d{i}") for i in range(devices)], [server(flop_per_s={"any": 1e-3})])
    return make_plan(workload, fleet, without=frozenset({"server"})), workload, fleet


@given(random_cases())
@settings(deadline=None, max_examples=25)
def test_without_events_it_is_the_plan(case: tuple[Plan, Workload, Fleet]) -> None:
    """Nobody comes or goes: each batch takes what the plan predicts."""
    plan, workload, fleet = case
    done = churn(plan, workload, fleet, (), batches=2)
    assert done.batch_s == pytest.approx((plan.predicted.batch_s,) * 2, rel=1e-9)
    assert done.efficiency == pytest.approx(1)


@given(st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=4)
def test_every_level_is_computed_exactly_once(seed: int) -> None:
    """Failures, leaves, slow devices and joins at random: what devices that stayed deliver covers each product exactly."""
    plan, workload, fleet = case(6, levels=1)
    seconds = plan.predicted.batch_s
    rates = Rates(failures=6 * seconds, leaves=9 * seconds, stragglers=5 * seconds, joins=seconds / 2, slowdown=3.0)
    player = Player(plan, workload, fleet, drawn(rates, [one.name for one in fleet.devices], seed), seconds / 5, 0.05)
    for _ in range(4):
        player.result = []
        try:
            player.batch()
        except InfeasibleError:
            return  # everyone had gone
        boxes = defaultdict(list)
        for part, box in player.result:
            boxes[part].append((0, *box))
        assert cover_flaw(Tiles.of(boxes[0]), workload.gemms[0].shape) is None
    assert player.told((1.0,)).unfinished == 0


@given(random_cases(), st.integers(0, 99))
@settings(deadline=None, max_examples=15)
def test_what_a_seat_takes_on_a_device(case: tuple[Plan, Workload, Fleet], drawn_at: int) -> None:
    """All seats at once, one alone, and each on its own device: the sum of its tiles, each priced by itself."""
    player = Player(*case, (), 1.0, 0.05)
    like = drawn_at % len(case[2].devices)
    for kind in player.kinds:
        expected, own = ([0.0] * len(case[2].devices) for _ in range(2))
        for gemm, tiles, columns in zip(kind.parts, kind.tiles, kind.columns, strict=True):
            for place, seat in enumerate(tiles.device.tolist()):
                box = tuple(int(tiles.column(name)[place]) for name in BOX)
                expected[seat] += float(price(gemm, Tiles.of([(like, *box)]), columns).executed_s[0])
                own[seat] += float(price(gemm, Tiles.of([(seat, *box)]), columns).executed_s[0])
        assert kind.seconds_on(like).tolist() == pytest.approx(expected)
        assert [kind.seconds(seat, like) for seat in range(len(own))] == pytest.approx(expected)
        assert kind.own_seconds().tolist() == pytest.approx(own)


def test_a_failure_by_hand() -> None:
    """Two devices share 64 x 20 (K = 20): 16 s for the kept 20 x 20, then 51.2 s. One fails after 10 s and is noticed 2 s later;
    the other then has 55.2 s left, and computes the lost half after it: 67.2 s more."""
    workload = workload_of([gemm_of("g", (1, 64, 20, 20))])
    fleet = fleet_of([device(f"d{i}") for i in range(2)], [server(flop_per_s={"any": 1e-3})])
    plan = make_plan(workload, fleet, without=frozenset({"server", "inner"}))
    assert plan.assignments[0].mode is Mode.ROW
    events = (Event(time_s=10.0, change=Change.FAIL, device="d1"),)
    done = churn(plan, workload, fleet, events, batches=1, detect_s=2.0)
    assert done.batch_s[0] == pytest.approx(67.2 + 67.2, abs=2 * REPLAN_S)
    assert (done.tiles, done.pieces, done.events["fail"]) == (1, 1, 1)
    assert done.redone == pytest.approx(0.5)
    late = (Event(time_s=10.0, change=Change.FAIL, device="d1", noticed_s=70.0),)  # 12.8 s after the other is done
    done = churn(plan, workload, fleet, late, batches=1, detect_s=2.0)
    assert done.batch_s[0] == pytest.approx(80.0 + 67.2, abs=2 * REPLAN_S)


def test_who_joins_takes_the_lost_part() -> None:
    """A device fails and an equal one comes: the next batch takes what the plan says, nobody else having moved."""
    plan, workload, fleet = case()
    events = (
        Event(time_s=0.0, change=Change.LEAVE, device="d3"), Event(time_s=0.0, change=Change.JOIN, device="new", like="d5")
    )  # fmt: skip
    done = churn(plan, workload, fleet, events, batches=3)
    assert done.batch_s[1:] == pytest.approx((plan.predicted.batch_s,) * 2)
    assert (done.moves, done.empty) == (1, 0)


HALF_S = 67.2
"""What half of 64 x 20 (K = 20) takes a device of these tests."""


def halves(levels: int = 1) -> tuple[Plan, Workload, Fleet]:
    """Two devices share 64 x 20 (K = 20) in every level, ``HALF_S`` each."""
    workload = workload_of([gemm_of(f"g{level}", (1, 64, 20, 20), level) for level in range(levels)])
    fleet = fleet_of([device(f"d{i}") for i in range(2)], [server(flop_per_s={"any": 1e-3})])
    return make_plan(workload, fleet, without=frozenset({"server", "inner", "level-joint"})), workload, fleet


def leave(time_s: float, name: str) -> Event:
    return Event(time_s=time_s, change=Change.LEAVE, device=name)


def join(time_s: float, name: str) -> Event:
    return Event(time_s=time_s, change=Change.JOIN, device=name, like="d0")


def test_a_level_waits_for_who_joins_by_hand() -> None:
    """Both devices leave. One joins at 100 s and computes both halves from the start, in the level (20 ms to cut them anew) or
    before it; one that fails unnoticed until 120 s makes no difference but the wait from then on. Without anybody it ends."""
    plan, workload, fleet = halves()
    gone = (leave(10.0, "d0"), leave(20.0, "d1"))
    done = churn(plan, workload, fleet, (*gone, join(100.0, "d2")), batches=1)
    assert done.batch_s[0] == pytest.approx(100.0 + REPLAN_S + 2 * HALF_S)
    assert (done.waited_s, done.tiles, done.unfinished) == (pytest.approx(80.0), 3, 0)  # d0's half twice
    late = Event(time_s=20.0, change=Change.FAIL, device="d1", noticed_s=100.0)
    done = churn(plan, workload, fleet, (gone[0], late, join(150.0, "d2")), batches=1)
    assert done.batch_s[0] == pytest.approx(150.0 + REPLAN_S + 2 * HALF_S)
    assert done.waited_s == pytest.approx(30.0)
    before = (leave(0.0, "d0"), leave(0.0, "d1"), join(50.0, "d2"))
    done = churn(plan, workload, fleet, before, batches=2)
    assert done.batch_s == pytest.approx((50.0 + 2 * HALF_S, 2 * HALF_S))
    assert (done.waited_s, done.tiles) == (50.0, 0)
    for events in (gone, before[:2], (*before, leave(60.0, "d2"))):
        with pytest.raises(InfeasibleError, match="none joins later"):
            churn(plan, workload, fleet, events, batches=1)


@given(st.lists(st.tuples(st.integers(1, 150), st.integers(0, 150)), max_size=6), st.integers(1, 3))
@settings(deadline=None, max_examples=40)
def test_one_device_at_a_time_by_a_loop(stays: list[tuple[int, int]], levels: int) -> None:
    """A fleet of one. It leaves, and another joins some time later, and so on: each level starts anew with each of them until one
    stays for as long as it takes."""
    plan, workload, fleet = _ONE[levels - 1]
    level_s = plan.predicted.batch_s / levels
    events, there, start = [], [], 0.0
    for place, (stay, pause) in enumerate(stays):
        events += [leave(start + stay, f"d{place}"), join(start + stay + pause, f"d{place + 1}")]
        there.append((start, start + stay))
        start += stay + pause
    there.append((start, math.inf))
    now, inside = 0.0, False
    for _ in range(levels):
        while True:
            come, go = next(one for one in there if one[1] > now)
            end = max(now, come) + (REPLAN_S if inside else 0.0) + level_s
            inside = end > go
            if not inside:
                break
            now = go
        now = end
    assert churn(plan, workload, fleet, events, batches=1).seconds == pytest.approx(now)


def test_who_joins_helps_a_device_that_hangs_alone() -> None:
    """Who joins computes what it owes: when it is due, after e times its time and 0.25 s, or at once where it is past that."""
    plan, workload, fleet = _ONE[0]
    alone_s = plan.predicted.batch_s
    hangs = Event(time_s=1.0, change=Change.SLOW, device="d0", factor=1e12)
    for joins_s, helped_s in ((1.0, math.e * alone_s + 0.25), (4 * alone_s, 4 * alone_s)):
        done = churn(plan, workload, fleet, (hangs, join(joins_s, "d1")), batches=1)
        assert done.seconds == pytest.approx(helped_s + alone_s)
        assert (done.tiles, done.waited_s) == (1, 0.0)


@pytest.mark.parametrize(
    ("factor", "level_s", "excluded"),
    [
        (2.0, 2 * 67.2, 0),  # in time
        (3.0, 3 * 67.2, 1),  # late, but there before the copy, which is given e * 67.2 s + 0.25 s after the level began
        (1000.0, (math.e + 1) * 67.2 + 0.25, 1),
    ],
)
def test_late_devices_by_hand(factor: float, level_s: float, excluded: int) -> None:
    """Two devices with 67.2 s each in every level. One is slow: the other computes its tile too, once it is late, and after three
    such levels it is excluded, so that the fourth is the other's alone."""
    workload = workload_of([gemm_of(f"g{level}", (1, 64, 20, 20), level) for level in range(4)])
    fleet = fleet_of([device(f"d{i}") for i in range(2)], [server(flop_per_s={"any": 1e-3})])
    plan = make_plan(workload, fleet, without=frozenset({"server", "inner", "level-joint"}))
    events = (Event(time_s=0.0, change=Change.SLOW, device="d1", factor=factor),)
    done = churn(plan, workload, fleet, events, batches=1)
    assert done.batch_s[0] == pytest.approx(3 * level_s + 2 * 67.2)
    assert (done.excluded, done.pieces) == (excluded, 3 * excluded)
    gone = (*events, Event(time_s=1000.0, change=Change.FAIL, device="d1"))  # nobody expects anything of it by then
    assert churn(plan, workload, fleet, gone, batches=2).events["fail"] == 1


def test_a_slow_device_is_not_waited_for_without_end() -> None:
    """A hundred times slower: others compute its tiles too."""
    plan, workload, fleet = case()
    events = (Event(time_s=0.1, change=Change.SLOW, device="d0", factor=100.0),)
    done = churn(plan, workload, fleet, events, batches=1)
    assert done.batch_s[0] < 10 * plan.predicted.batch_s
    assert done.tiles >= 1


def test_rates_and_their_events() -> None:
    """The same seed, the same events, in order; lives have their mean, and as many join as go."""
    rates = rates_of("failures=30 min, stragglers=2 h,slowdown=3")
    assert (rates.failures, rates.stragglers, rates.slowdown, rates.joins) == (1800, 7200, 3, None)
    names = [f"d{i}" for i in range(100)]
    first = list(islice(drawn(rates, names, 1), 5000))
    assert first == list(islice(drawn(rates, names, 1), 5000))
    times = [event.time_s for event in first]
    assert times == sorted(times)
    count = {change: sum(event.change is change for event in first) for change in Change}
    assert count[Change.JOIN] == pytest.approx(count[Change.FAIL], rel=0.1)
    assert count[Change.FAIL] / times[-1] == pytest.approx(100 / 1800, rel=0.1)
    assert list(drawn(Rates(), names, 1)) == []
    assert (rates_of("failures=1 h,joins=never").joins, rates_of("leaves=never").leaves) == (math.inf, math.inf)
    for text in (
        "deaths=3 s", "failures=0", "failures=soon", "failures=1 s,failures=2 s", "slowdown=1", "slowdown=2 s", "joins=-1",
        "joins=inf", "joins=nan", "joins=1e999", "leaves=", "=",
    ):  # fmt: skip
        with pytest.raises(UsageError):
            rates_of(text)


def test_traces(tmp_path: Path) -> None:
    """Events of a file in order of time; what cannot be is refused with its line."""
    path = tmp_path / "trace.csv"
    head = "time,event,device,detail\n"
    path.write_text(
        "\ufeff" + head + "30 s,join,e,d1\n12.5,fail,d0,\n13,fail,d2,300 ms\n40 s,slow,e,4\n41 s,leave,d1,\n50 s,join,d0,\n"
    )
    found = read_trace(path, ["d0", "d1", "d2"])
    assert [event.noticed_s for event in found] == [None, 0.3, None, None, None, None]
    assert [(event.time_s, event.change, event.device, event.like) for event in found] == [
        (12.5, "fail", "d0", ""), (13, "fail", "d2", ""), (30, "join", "e", "d1"), (40, "slow", "e", ""), (41, "leave", "d1", ""),
        (50, "join", "d0", "d0"),
    ]  # fmt: skip
    for text, words in (
        ("", "is empty"), ("when,what\n", "line 1: found 'when,what'"),
        (head + "1,fail,d0\n", "cells"), (head + "1,burn,d0,\n", "one of fail"),
        (head + "x,fail,d0,\n", "line 2"),
        (head + "1,fail,d0,-1\n", "0 or more"), (head + "1,fail,d0,soon\n", "line 2"), (head + "-1,fail,d0,\n", "0 or more"),
        (head + "1,slow,d0,0.5\n", "above 1"), (head + "1,slow,d0,inf\n", "above 1"),
        (head + "1,join,e,d9\n", "line 2: the fleet has no device 'd9'.*last column"),
        (head + "1,join,d0,\n", "line 2: 'd0' is there already at 1 s"),
        (head + "2,fail,d0,\n1,fail,d0,\n", "line 2: 'd0' is gone at 2 s"),
        (head + "\n1,fail,e,\n2,join,e,d0\n", "line 3: the fleet has no device 'e'.*let it join before it can fail"),
    ):  # fmt: skip
        path.write_text(text)
        with pytest.raises(InputFileError, match=words):
            read_trace(path, ["d0", "d1"])
    with pytest.raises(InputFileError, match="cannot be read"):
        read_trace(tmp_path / "none.csv", ["d0"])


def test_memory_does_not_grow_with_time() -> None:
    """Rows of devices that have gone are used again: after many events there are about as many as can be there at once."""
    plan, workload, fleet = case(6, levels=1)
    seconds = plan.predicted.batch_s
    events = drawn(Rates(failures=40 * seconds), [one.name for one in fleet.devices], 3)
    player = Player(plan, workload, fleet, events, seconds / 50, 0.05)
    for _ in range(60):
        player.batch()
    assert player.told((1.0,)).events["fail"] > 5
    assert len(player.crowd) < 40
    assert np.count_nonzero(player.crowd.used) < 20


@pytest.mark.parametrize("life_s", [1e-300, 1e-3, 1e-2, 0.1])
def test_lives_too_short_are_an_answer(life_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices are gone long before anyone notices: the simulation says so as soon as a level has had its share of losses."""
    monkeypatch.setattr(effort, "LEAST_TILES", 40)
    monkeypatch.setattr(effort, "LEAST_CHANGES", 1000)
    plan, workload, fleet = case(3, levels=1)
    events = drawn(Rates(failures=life_s * plan.predicted.batch_s), [one.name for one in fleet.devices], 0)
    with pytest.raises(InfeasibleError, match=r"level 0: a level planned to take .* is not done after") as found:
        churn(plan, workload, fleet, events, batches=3, detect_s=2 * plan.predicted.batch_s)
    assert found.value.facts["planned_s"] == pytest.approx(plan.predicted.batch_s)


def test_lives_far_shorter_than_the_time_to_notice_are_an_answer() -> None:
    """Of 200 devices that live a thousandth of that time, 3,000 and more are gone before the first is noticed: said at once."""
    plan, workload, fleet = case(200, levels=1)
    events = drawn(Rates(failures=1e-3), [one.name for one in fleet.devices], 0)
    with pytest.raises(InfeasibleError, match="3,001 devices are gone without anyone having noticed"):
        churn(plan, workload, fleet, events, batches=1, detect_s=1.0)


def test_joins_without_end_are_an_answer() -> None:
    """More devices join in no time than a level's share of changes; a thousand of one kind cost no more than one."""
    plan, workload, fleet = case(3, levels=2)
    names = [one.name for one in fleet.devices]
    with pytest.raises(InfeasibleError, match="came, went or became slow"):
        churn(plan, workload, fleet, drawn(Rates(joins=1e-9), names, 0), batches=1)
    many = drawn(Rates(joins=plan.predicted.batch_s / 1000), names, 0)
    assert churn(plan, workload, fleet, many, batches=1).batch_s[0] == pytest.approx(plan.predicted.batch_s)


def test_slow_without_end_is_finite() -> None:
    """However often a device becomes slower, and by how much, times stay finite, and the others do its part."""
    plan, workload, fleet = case()
    events = [Event(time_s=0.0, change=Change.SLOW, device="d0", factor=1e308) for _ in range(3)]
    done = churn(plan, workload, fleet, events, batches=2)
    assert done.batch_s[1] < 10 * plan.predicted.batch_s
    assert done.excluded == 1


_WORKS, _GIVEN_UP, _GONE = "works", "given up", "gone"
_STEPS = st.lists(st.tuples(st.sampled_from([*Change, _GIVEN_UP]), st.sampled_from(["d0", "d1", "d2", "new"])), max_size=25)


@given(_STEPS)
@settings(deadline=None, max_examples=60)
def test_who_is_counted_on_is_what_a_list_says(steps: list[tuple[str, str]]) -> None:
    """Devices join, go, become slow and are given up in any order, and join again with or without having left: who is counted on
    is what a list of states says."""
    plan, workload, fleet = _FOUR
    state = {"d0": _WORKS, "d1": _WORKS, "d2": _WORKS, "d3": _WORKS, "new": _GONE}
    player = Player(plan, workload, fleet, (), 1.0, 0.05)
    for step, name in steps:
        player.now_s += 1
        if step == _GIVEN_UP:
            if state[name] == _WORKS:
                state[name] = _GIVEN_UP
                player.attendance.give_up(player.crowd.row_of[name], player.now_s)
            continue
        if (state[name] == _WORKS) if step == Change.JOIN else (state[name] == _GONE):
            continue  # no trace can say so
        player.upcoming = Event(
            time_s=player.now_s,
            change=Change(step),
            device=name,
            like="d1" if step == Change.JOIN else "",
            factor=2.0,
            noticed_s=0.0,
        )
        player.rest(0.0)
        state[name] = {Change.JOIN: _WORKS, Change.SLOW: state[name]}.get(Change(step), _GONE)
    player.rest(0.0)
    crowd = player.crowd
    assert set(crowd.row_of) == {name for name, is_so in state.items() if is_so == _WORKS}
    assert set(np.flatnonzero(crowd.used & crowd.known).tolist()) == set(crowd.row_of.values())
    assert player.attendance.excluded == {name for name, is_so in state.items() if is_so == _GIVEN_UP}


_FOUR = case(4, levels=1)
_ONE = [case(1, levels=levels) for levels in (1, 2, 3)]
