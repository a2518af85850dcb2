"""The pacer: moments worked out by hand, whatever the steps in which time is moved on."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleave_plan.execution.pacing import Done, Pacer, Phase, Rates

ALL = (1.0,)


def pacer(*, egress: float = math.inf, ingress: float = math.inf, **links: tuple[float, float]) -> Pacer:
    """One server; rows with their links in bytes/s."""
    return Pacer({name: Rates(*link) for name, link in links.items()}, [egress], [ingress])


def moments(done: list[Done]) -> dict[object, float]:
    """When each thing was done."""
    return {each.key: each.at_s for each in done}


def test_a_phase_is_latency_and_then_the_longest_of_three() -> None:
    """1 s of latency, then 100 bytes at 10 B/s (10 s) beside 3 s of arithmetic and 20 bytes at 5 B/s (4 s)."""
    one = pacer(a=(10, 5))
    one.add("a", "tile", [Phase(1, 100, 3, 20)], ALL, 0)
    assert one.next_s() == 1
    assert one.advance(10.9) == []
    assert one.busy("a")
    assert moments(one.advance(20)) == {"tile": pytest.approx(11)}
    assert not one.busy("a")
    assert one.next_s() == math.inf


def test_phases_and_tiles_follow_one_another() -> None:
    """2 + 4 s, then 1 + 6 s; an idle device starts when it is given something, not before; an empty tile takes no time."""
    one = pacer(a=(10, 5))
    one.add("a", 1, [Phase(0, 20, 0, 0), Phase(0, 0, 1, 20)], ALL, 0)
    one.add("a", 2, [Phase(1, 0, 0, 0), Phase(0, 60, 0, 0)], ALL, 0)
    assert moments(one.advance(13.5)) == {1: pytest.approx(6), 2: pytest.approx(13)}
    one.add("a", 3, [Phase(0, 0, 2, 0)], ALL, 13.5)
    one.add("a", 4, [Phase(0, 0, 0, 0)], ALL, 13.5)
    assert moments(one.advance(99)) == {3: pytest.approx(15.5), 4: pytest.approx(15.5)}


def test_a_servers_link_is_shared() -> None:
    """Two devices of 10 B/s behind 10 B/s: 5 each until the first has its 20 bytes at 4 s; the other's last 30 then take 3 s."""
    two = pacer(a=(10, 5), b=(10, 5), egress=10)
    two.add("a", "a", [Phase(0, 20, 0, 0)], ALL, 0)
    two.add("b", "b", [Phase(0, 50, 0, 0)], ALL, 0)
    assert moments(two.advance(100)) == {"a": pytest.approx(4), "b": pytest.approx(7)}


def test_directions_do_not_share_and_a_slow_link_leaves_the_rest() -> None:
    """Up and down are apart; of 12 B/s the device with 2 B/s takes 2, and the other 10."""
    two = pacer(a=(2, 4), b=(100, 4), egress=12, ingress=4)
    two.add("a", "a", [Phase(0, 20, 0, 0)], ALL, 0)
    two.add("b", "b", [Phase(0, 50, 0, 0), Phase(0, 0, 0, 8)], ALL, 0)
    assert moments(two.advance(100)) == {"b": pytest.approx(7), "a": pytest.approx(10)}


def test_what_is_removed_holds_nobody_up() -> None:
    """The other device has the link for itself from then on: 10 bytes in 2 s, the other 40 in 4 s."""
    two = pacer(a=(10, 5), b=(10, 5), egress=10)
    two.add("a", "a", [Phase(0, 99, 0, 0)], ALL, 0)
    two.add("b", "b", [Phase(0, 50, 0, 0)], ALL, 0)
    assert two.advance(2) == []
    two.remove("a")
    assert moments(two.advance(100)) == {"b": pytest.approx(6)}


def test_rows_without_a_link_are_held_by_the_server_alone() -> None:
    """Activations between two servers: 80 bytes at the first one's 8 B/s, though the second has no limit."""
    two = Pacer({}, [8, math.inf], [math.inf, math.inf])
    two.add("from server 0", "moved", [Phase(0, 80, 0, 0)], (1.0, 0.0), 0)
    assert moments(two.advance(100)) == {"moved": pytest.approx(10)}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0.001, 3), max_size=20))
def test_steps_do_not_matter(steps: list[float]) -> None:
    """However time is moved on, everything is done at its moment and is told in the order of moments."""
    three = pacer(a=(10, 5), b=(7, 5), c=(3, 1), egress=12, ingress=6)
    for row, size in (("a", 30), ("b", 44), ("c", 10)):
        for tile in range(2):
            three.add(row, (row, tile), [Phase(0.5, size, 1, 4), Phase(0, size / 2, 2, 9)], ALL, 0)
    whole = pacer(a=(10, 5), b=(7, 5), c=(3, 1), egress=12, ingress=6)
    for row, size in (("a", 30), ("b", 44), ("c", 10)):
        for tile in range(2):
            whole.add(row, (row, tile), [Phase(0.5, size, 1, 4), Phase(0, size / 2, 2, 9)], ALL, 0)
    now, told = 0.0, []
    for step in steps:
        now += step
        told += three.advance(now)
    told += three.advance(1000)
    wanted = whole.advance(1000)
    assert [done.key for done in told] == [done.key for done in wanted]
    assert [done.at_s for done in told] == pytest.approx([done.at_s for done in wanted])
