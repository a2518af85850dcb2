r"""Further search: devices move and change places between the bars of an arrangement, by annealing.

The time T is held a little under the best known one and what is reached by T grows: of one slab the widths of its strips,
of several the depths. Slab s reaches the depth kappa_s at which the widths W_s of its strips add up to its plane N_s, so a
change of its strips that widens them by dW at that depth deepens it by

    d kappa_s  =  dW / (- dW_s/d kappa_s) ,    - dW_s/d kappa_s  =  sum over strips  (-dH/d kappa) / (-dH/dw)

where H(w, kappa) are the rows that a strip's bars reach (each bar's are those of :mod:`cleave_plan.planning.barlayout`).

A step proposes a batch of moves and swaps, finds the new widths of the one or two strips that each touches (Newton's method
on all of them at once, from the old widths, kept between a width too small and one too large), and takes a change that loses
x with probability exp(-x/temperature), the best first, one for a strip; then all depths are found anew, in the same way.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.planning.bararrangement import Arrangement, Fit
from cleave_plan.planning.barlayout import Plane
from cleave_plan.planning.boxes import run_of
from cleave_plan.planning.groups import Abilities, Members, abilities, members
from cleave_plan.planning.terms import Terms

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

TARGET = 0.998
"""The time that is aimed at, of the best known one."""

BATCH, SWAPS = 64, 0.7
"""Changes proposed in one step, and the share of them that are swaps."""

HOT, COLD = 3e-4, 3e-6
"""Temperatures from first to last step, as shares of what is to be reached."""

_ITERATIONS, _PRECISION = 60, 1e-5
"""Newton's method ends when nothing changes by more than this share, or after so many steps."""

TINY = 1e-12
"""Widths, and what they are divided by, are never less."""


def refined(
    terms: Terms, devices: DeviceColumns, place: Arrangement, fit: Fit, steps: int, deadline: float, seed: int
) -> Arrangement:
    """``place`` after ``steps`` steps (fewer when the thread's processor time passes ``deadline``): the best seen on the way.

    ``fit``: its sizes; devices keep their slabs' and strips' frames, only who stands in which bar changes."""
    if len(place.bars) < 2:
        return place
    walk = _Walk.of(terms, devices, place, fit, seed)
    best, kept = walk.measure(), walk.bar.copy()
    for step in range(steps):
        if time.thread_time() > deadline:
            break
        walk.step(HOT * (COLD / HOT) ** (step / steps))
        reached = walk.measure()
        if reached > best:
            best, kept = reached, walk.bar.copy()
    order = np.argsort(kept, kind="stable")
    return replace(place, devices=place.devices[order], bars=np.searchsorted(kept[order], np.arange(len(place.bars))))


@dataclass(kw_only=True, eq=False)
class _Walk:
    """The arrangement as it changes. ``bar``: label of every device; ``slots``: bars of every strip, -1 where it has fewer.

    ``operand`` and ``limit`` stand in the strips' slots; ``worth``: what is reached more for a unit of a strip's width."""

    able: Abilities
    single: bool
    total: float
    bar: Ints
    slots: Ints
    strip_of: Ints  # of each bar
    slab_of: Ints  # of each strip
    sides: Floats  # a, b and rows of each strip, as rows of this array
    columns: Floats  # of each slab
    depth: Floats
    width: Floats
    rng: np.random.Generator
    now: Members = field(init=False)
    operand: Floats = field(init=False)
    limit: Floats = field(init=False)
    worth: Floats = field(init=False)

    @classmethod
    def of(cls, terms: Terms, devices: DeviceColumns, place: Arrangement, fit: Fit, seed: int) -> _Walk:
        single = len(place.slabs) == 1
        own = devices.take(place.devices)
        strip_of, slab_of = run_of(place.strips, len(place.bars)), run_of(place.slabs, len(place.strips))
        size = np.diff(np.append(place.strips, len(place.bars)))
        slots = place.strips[:, None] + np.arange(int(size.max()))
        planes = [Plane.of(terms, bool(transposed)) for transposed in place.transposed]
        return cls(
            able=abilities(terms, own, fit.seconds * TARGET, None if single else terms.depth / 2), single=single,
            total=float(terms.depth), bar=run_of(place.bars, len(own)), slab_of=slab_of, strip_of=strip_of,
            slots=np.where(np.arange(slots.shape[1]) < size[:, None], slots, -1),
            sides=np.array([(plane.a, plane.b, float(plane.rows)) for plane in planes]).T[:, slab_of],
            columns=np.array([float(plane.columns) for plane in planes]), depth=fit.depth.copy(),
            width=np.maximum(fit.width, 1.0), rng=np.random.default_rng(seed),
        )  # fmt: skip

    def measure(self) -> float:
        """Find widths and depths anew; what is reached, as a share of what is to be reached."""
        self.now = members(self.able, self.bar, len(self.strip_of))
        self.operand = np.where(self.slots < 0, 0.0, self.now.operand[self.slots])
        self.limit = np.where(self.slots < 0, 0.0, self.now.limit(self.able)[self.slots])
        everyone = np.arange(len(self.slots))
        if self.single:
            self.width, _, _ = self._widths(self.operand, self.limit, everyone, self.width)
            self.worth = np.full(len(self.slots), 1 / float(self.columns[0]))
            return float(self.width.sum() / self.columns[0])
        low, high = np.zeros(len(self.depth)), np.full(len(self.depth), np.inf)
        for _ in range(_ITERATIONS):
            self.width, fall, sink = self._widths(self.operand, self.limit, everyone, self.width)
            short = self.columns - np.bincount(self.slab_of, self.width)
            low, high = np.where(short <= 0, self.depth, low), np.where(short > 0, self.depth, high)
            narrowing = np.maximum(np.bincount(self.slab_of, sink / fall), TINY)
            before, self.depth = self.depth, _inside(self.depth - short / narrowing, low, high, self.depth)
            if (np.abs(self.depth - before) <= _PRECISION * before).all():
                break
        self.worth = (1 / narrowing / self.total)[self.slab_of]
        return float(self.depth.sum() / self.total)

    def _widths(self, operand: Floats, limit: Floats, strip: Ints, guess: Floats) -> tuple[Floats, Floats, Floats]:
        """Widths at which the bars in the last axis fill their strips' rows, from ``guess``; rows lost to width and to depth.

        The last two are what the heights lose for a unit of the width, and of the slab's depth."""
        a, b, rows = self.sides[:, strip]
        depth = self.depth[self.slab_of[strip]][..., None]
        straight, slope = operand / (depth * a[..., None]), (b / a)[..., None]
        low, high, width = np.zeros(guess.shape), np.full(guess.shape, np.inf), guess
        for _ in range(_ITERATIONS):
            w = width[..., None]
            by_operand, by_limit = straight - slope * w, limit / w
            height = np.maximum(np.minimum(by_operand, by_limit), 0.0)
            bound = (height > 0) & (by_operand < by_limit)
            fall = np.maximum(np.where(bound, slope, height / w).sum(axis=-1), TINY)
            over = height.sum(axis=-1) - rows
            low, high = np.where(over >= 0, width, low), np.where(over < 0, width, high)
            before, width = width, _inside(width + over / fall, low, high, width)
            if (np.abs(width - before) <= _PRECISION * before).all():
                break
        return width, fall, np.where(bound, straight / depth, 0.0).sum(axis=-1)

    def _without(self, device: Ints) -> tuple[Floats, Floats]:
        """For each device's bar without it: the limit for others to join, and the limit of those who stay."""
        bar = self.bar[device]
        stays = np.where(self.now.least[bar] == device, self.now.second[bar], self.now.least[bar])
        size = self.now.size[bar]
        join = np.where(size == 1, np.inf, self.able.cut[stays])
        return join, np.where(size == 2, self.able.alone[stays], join)

    def step(self, temperature: float) -> None:
        """Propose a batch of moves and swaps and take the good ones (:attr:`bar` changes; :meth:`measure` must follow)."""
        count, able = len(self.bar), self.able
        mine, other = self.rng.integers(0, count, (2, BATCH))
        swap = self.rng.random(BATCH) < SWAPS
        source, target = self.bar[mine], np.where(swap, self.bar[other], self.rng.integers(0, len(self.strip_of), BATCH))
        chance = temperature * self.rng.exponential(size=BATCH)
        kept = (source != target) & (swap | (self.now.size[source] > 1))
        mine, other, swap, source, target, chance = (x[kept] for x in (mine, other, swap, source, target, chance))
        come, stay = self._without(mine)
        into, _ = self._without(other)
        joined = np.where(self.now.size[source] == 1, able.alone[other], np.minimum(come, able.cut[other]))
        swapped = np.where(self.now.size[target] == 1, able.alone[mine], np.minimum(into, able.cut[mine]))
        added = np.minimum(able.cut[self.now.least[target]], able.cut[mine])
        difference = np.where(swap, able.operand[other], 0.0) - able.operand[mine]
        strips = np.stack([self.strip_of[source], self.strip_of[target]], axis=1)
        slots, operand, limit = self.slots[strips], self.operand[strips], self.limit[strips]
        for bar, change, new in (
            (source, difference, np.where(swap, joined, stay)),
            (target, -difference, np.where(swap, swapped, added)),
        ):
            here = slots == bar[:, None, None]
            operand = operand + np.where(here, change[:, None, None], 0.0)
            limit = np.where(here, new[:, None, None], limit)
        width, _, _ = self._widths(operand, limit, strips, self.width[strips])
        gain = (width - self.width[strips]) * self.worth[strips]
        score = gain[:, 0] + np.where(strips[:, 0] == strips[:, 1], 0.0, gain[:, 1]) + chance
        touched = np.zeros(len(self.slots), dtype=np.bool_)
        for place in np.argsort(-score, kind="stable").tolist():
            if score[place] <= 0:
                break
            if not touched[strips[place]].any():
                self.bar[mine[place]] = target[place]
                if swap[place]:
                    self.bar[other[place]] = source[place]
                touched[strips[place]] = True


def _inside(guess: Floats, low: Floats, high: Floats, last: Floats) -> Floats:
    """``guess`` where it lies between ``low`` and ``high``; else halfway, where no ``high`` is known yet twice ``last``."""
    half = np.where(np.isinf(high), 2 * last, (low + np.minimum(high, 2 * last)) / 2)
    return np.maximum(np.where((guess > low) & (guess < high), guess, half), TINY)
