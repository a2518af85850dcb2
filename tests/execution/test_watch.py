"""Deadlines on machines that are busy for all devices at once: who hangs is noticed, and nobody else is taken for late."""

from __future__ import annotations

import numpy as np
import pytest

from cleave_plan.cost.lateness import GRACE_S
from cleave_plan.execution.engines.base import Task
from cleave_plan.execution.watch import Watch
from cleave_plan.kernels.tile import Box

DEVICES = tuple(f"d{place}" for place in range(8))
BOX = Box(0, 1000, 0, 1000, 0, 1000, 0, 1)
USUAL_S = 0.5


def level(watch: Watch, start_s: float, taken: dict[str, float]) -> dict[str, float]:
    """Play a level: each device's answer comes after its seconds. The deadline of those without any, when all others are done,
    and of every other when half of all are done and it is not, in seconds after the start."""
    watch.begin()
    tasks = {device: Task(0, place, device, BOX) for place, device in enumerate(DEVICES)}
    for task in tasks.values():
        watch.sent(task, start_s)
    due: dict[str, float] = {}
    for done, device in enumerate(sorted(taken, key=taken.__getitem__), start=1):
        watch.answered(tasks[device], start_s + taken[device])
        if 2 * done >= len(DEVICES):
            out = [other for other in DEVICES if other not in taken or taken[other] > taken[device]]
            due |= {other: min(due.get(other, np.inf), watch.due_s(other) - start_s) for other in out}
    return due


def play(watch: Watch, levels: int, seed: int, *, common: float, own: float) -> tuple[int, float]:
    """Levels of which each takes all devices a random factor longer (spread ``common``), and each device another (``own``): how
    often an honest device was past its deadline, and when the levels are over."""
    rng, now_s, late = np.random.default_rng(seed), 0.0, 0
    for _ in range(levels):
        factor = USUAL_S * rng.lognormal(0.0, common)
        taken = {device: factor * rng.lognormal(0.0, own) for device in DEVICES}
        due = level(watch, now_s, taken)
        late += sum(taken[device] > limit for device, limit in due.items())
        now_s += max(taken.values())
    return late, now_s


@pytest.mark.parametrize("seed", range(5))
def test_a_hang_on_a_busy_machine(seed: int) -> None:
    """Levels took from a third of to three times the usual half a second, all devices alike. One that hangs is due after a few
    times what the others took, not after the 20 times that such levels would allow a device alone (10 s)."""
    watch = Watch()
    late, now_s = play(watch, 60, seed, common=0.8, own=0.1)
    assert late == 0
    taken = dict.fromkeys(DEVICES[1:], USUAL_S)
    due = level(watch, now_s, taken)[DEVICES[0]]
    assert 1.5 * USUAL_S < due < 5 * USUAL_S + GRACE_S


@pytest.mark.parametrize("seed", range(5))
def test_half_of_the_devices_hang(seed: int) -> None:
    """As when the one process of four devices stops: the other four say how fast the level goes."""
    watch = Watch()
    _, now_s = play(watch, 60, seed, common=0.8, own=0.1)
    due = level(watch, now_s, dict.fromkeys(DEVICES[4:], USUAL_S))
    assert all(due[device] < 5 * USUAL_S + GRACE_S for device in DEVICES[:4])


@pytest.mark.parametrize("seed", range(5))
def test_devices_that_vary_each_by_itself(seed: int) -> None:
    """Where devices are unlike each other from level to level, deadlines are as wide as that: hardly anybody is late."""
    late, _ = play(Watch(), 120, seed, common=0.0, own=0.4)
    assert late <= 0.005 * 120 * len(DEVICES)


def test_levels_of_few_devices_go_by_their_own_pace() -> None:
    """Two devices do not say how fast a level goes: the deadline is that of the pace alone, whoever is done."""
    watch = Watch()
    first, second = (Task(0, place, device, BOX) for place, device in enumerate("ab"))
    for start_s in (0.0, 10.0):
        watch.begin()
        for task in (first, second):
            watch.sent(task, start_s)
        before = watch.due_s("b")
        watch.answered(first, start_s + 2.0)
        after = watch.due_s("b")
        watch.answered(second, start_s + 2.0)
    assert after == pytest.approx(before)
