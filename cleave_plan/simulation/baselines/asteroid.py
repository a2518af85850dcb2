r"""Hybrid pipelines with groups of devices in each stage (Asteroid, Ye et al., MobiCom 2024).

P <= 8 stages in a row; the devices of a stage split every micro-batch in proportion to their FLOP/s and sum their gradients
once a batch in a ring:

    T = (M + P - 1) * max over stages (m/B * (flop / sum F + crossing / min(sum u, sum d) both ways))
        + max over stages all-reduce(parameters of the stage, members, slowest link)

Devices are sorted by FLOP/s and taken by stages in ``SHARES`` equal slices; stages, slices and blocks by dynamic programming
(least costliest stage). Searched besides: P, m, how many devices. After a failure: the authors' 15 s time-out, the weights of a
stage over one link, and the micro-batches in flight once more.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cleave_plan.simulation.baselines.confidant import TIME_OUT_S
from cleave_plan.simulation.baselines.setting import (
    Floats,
    Outcome,
    Setting,
    best,
    cannot,
    powers_of_two,
    ring_all_reduce,
    selections,
)  # fmt: skip
from cleave_plan.simulation.baselines.stages import Spans, in_blocks

NAME = "Asteroid"
MOST_STAGES = 8
MICRO_BATCHES = (1, 4)
"""Samples of a micro-batch that are tried besides a whole batch."""

SHARES = 16
"""Slices of the sorted devices that stages are made of."""


def asteroid(setting: Setting) -> Outcome:
    """The best hybrid pipeline."""
    return best(_outcomes(in_blocks(setting)), NAME)


def _outcomes(blocks: Setting) -> Iterator[Outcome]:
    spans = Spans.of(blocks)
    for count in powers_of_two(blocks.devices):
        for chosen in selections(blocks, count):
            some = blocks.take(chosen[np.argsort(-blocks.flop_per_s[chosen], kind="stable")])
            edges = np.unique(np.rint(np.linspace(0, count, min(SHARES, count) + 1)).astype(np.int64))
            yield from _planned(some, spans, edges)


def _planned(some: Setting, spans: Spans, edges: np.ndarray) -> Iterator[Outcome]:
    """The best pipelines of 1 to ``MOST_STAGES`` stages with every slice of the devices used, for every size of a micro-batch:
    all times of one are its share of a whole batch's, so that all have the same best pipeline."""
    slices, blocks, passes = len(edges) - 1, len(some.flop), 2 if some.training else 1
    table = _costs(some, spans, edges, passes)
    reached = np.full((slices + 1, blocks + 1), np.inf)
    reached[0, 0] = 0.0
    trail: list[np.ndarray] = []
    for stages in range(1, min(MOST_STAGES, slices) + 1):
        ways = np.maximum(reached.reshape(-1), table)
        trail.append(ways.argmin(axis=2))
        reached = np.take_along_axis(ways, trail[-1][:, :, None], axis=2)[:, :, 0]
        slowest = float(reached[slices, blocks])
        degrees = {"stages": stages, "micro-batch": some.batch, "devices": some.devices}
        if not np.isfinite(slowest):
            yield cannot(NAME, degrees, some.state * float(some.parameter_bytes.sum()) / stages, some.memory)
            continue
        walk = _walk(trail, slices, blocks)
        for micro in sorted({min(size, some.batch) for size in MICRO_BATCHES} | {some.batch}):
            share_s = micro / some.batch * slowest
            yield _outcome(some, spans, edges, walk, share_s, {**degrees, "micro-batch": micro}, passes)


def _costs(some: Setting, spans: Spans, edges: np.ndarray, passes: int) -> Floats:
    """Seconds of a whole batch on devices a..b-1 with blocks i..j-1, of shape (slice b, block j, slice a times block i)."""
    flop, up, down = (np.concatenate([[0.0], np.cumsum(c)])[edges] for c in (some.flop_per_s, some.uplink, some.downlink))
    with np.errstate(divide="ignore", invalid="ignore"):
        link = np.minimum(up[None, :] - up[:, None], down[None, :] - down[:, None])
        rate = flop[None, :] - flop[:, None]
        seconds = spans.flop / rate[:, :, None, None]
        seconds = seconds + passes * spans.crossing[None, None, :, None] / link[:, :, None, None]
    places = range(len(edges))
    smallest = np.array([[some.memory[edges[a] : edges[b]].min(initial=np.inf) for b in places] for a in places])
    fits = some.state * spans.parameters <= smallest[:, :, None, None]
    taken = np.tri(len(edges), k=-1, dtype=bool).T[:, :, None, None] & ~np.tri(len(spans.flop), k=-1, dtype=bool)
    costs = np.where(taken & fits, seconds, np.inf).transpose(1, 3, 0, 2)
    return costs.reshape(*costs.shape[:2], -1)


def _walk(trail: list[np.ndarray], slices: int, blocks: int) -> list[tuple[int, int, int, int]]:
    """The stages as (slice a, slice b, block i, block j), first to last."""
    found, b, j = [], slices, blocks
    for best_from in reversed(trail):
        a, i = divmod(int(best_from[b, j]), blocks + 1)
        found.append((a, b, i, j))
        b, j = a, i
    return found[::-1]


def _outcome(
    some: Setting, spans: Spans, edges: np.ndarray, stages: list[tuple[int, int, int, int]], slowest: float,
    degrees: dict[str, int], passes: int,
) -> Outcome:  # fmt: skip
    reduce_s, down, held, refill = 0.0, 0.0, 0.0, 0.0
    for a, b, i, j in stages:
        members = slice(int(edges[a]), int(edges[b]))
        size, k = float(spans.parameters[i, j]), int(edges[b] - edges[a])
        rate = float(some.rate[members].min())
        if some.training:
            reduce_s = max(reduce_s, float(ring_all_reduce(size, k, rate)))
        weight = float((some.flop_per_s[members] / some.flop_per_s[members].sum()).max())
        down = max(down, passes * weight * float(spans.crossing[i]) + (passes - 1) * 2 * (k - 1) / k * size)
        held, refill = max(held, some.state * size), max(refill, size / rate)
    samples = np.ceil(some.batch / degrees["micro-batch"])
    batch_s = float((samples + degrees["stages"] - 1) * slowest + reduce_s)
    return Outcome(
        name=NAME, batch_s=batch_s, degrees=degrees, devices_used=some.devices, down_bytes=down, up_bytes=down,
        memory_bytes=held, recovery_s=TIME_OUT_S + refill + degrees["stages"] * slowest,
        recovery="15 s time-out, a stage's weights over a link, micro-batches in flight again",
    )  # fmt: skip
