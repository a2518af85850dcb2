r"""Decentralised training of foundation models (DTFM, Yuan et al., NeurIPS 2022, arXiv 2206.01288).

The devices form P groups of g; group s holds stage s (equal work), and the i-th members of all groups are one of g pipelines,
each with B/g samples in micro-batches of m:

    data-parallel part   max over groups, members i: sum over members j: 2 (l_i + l_j + w/(bw_ij g))
    pipeline part        (M + P - 1) * max over devices (m/B flop/F) and boundaries (crossing m/B / bw both ways)

bw_ij = min(u_i, d_j) or the reverse, whichever is slower. Where a link is as slow as the slower of two devices' own, the best
matching of two groups is as good as any: its slowest pair joins the slowest link of either side. Groups are found by an
evolutionary search from groups of like links, like FLOP/s and random ones: swaps of two devices, kept when better; their
order as an open tour, by exchanging two groups. Searched besides: P, g, m, which devices. After a failure: restart from a
checkpoint (the authors give no other way).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cleave_plan.simulation.baselines.setting import (
    Floats,
    Ints,
    Outcome,
    Setting,
    best,
    cannot,
    powers_of_two,
    restart_seconds,
    selections,
)  # fmt: skip
from cleave_plan.simulation.baselines.stages import Spans, best_cut, in_blocks

NAME = "DTFM"
TRIES = 60
"""Swaps of the evolutionary search for each size."""


def dtfm(setting: Setting, seed: int = 0) -> Outcome:
    """The best sizes and groups."""
    return best(_outcomes(in_blocks(setting), seed), NAME)


def _outcomes(blocks: Setting, seed: int) -> Iterator[Outcome]:
    spans, count = Spans.of(blocks), len(blocks.flop)
    for stages in powers_of_two(min(blocks.devices, max(count, 1))):
        _, ends = best_cut(stages, count, lambda _: spans.flop)
        if np.any(np.diff(ends, prepend=0) == 0):
            continue
        for group in powers_of_two(min(blocks.devices // stages, blocks.batch)):
            for chosen in selections(blocks, stages * group):
                some = blocks.take(chosen)
                micro = min(powers_of_two(max(blocks.batch // group, 1)), key=lambda m: _pace(some, spans, ends, group, m))
                yield _searched(some, spans, ends, group, micro, seed)


def _pace(some: Setting, spans: Spans, ends: Ints, group: int, micro: int) -> float:
    """Rounds of the pipeline times what each takes, for the choice of the micro-batch."""
    rounds = np.ceil(some.batch / group / micro) + len(ends) - 1
    return float(rounds * micro * spans.flop.max() / some.batch / some.flop_per_s.min() + rounds * some.latency.max())


def _searched(some: Setting, spans: Spans, ends: Ints, group: int, micro: int, seed: int) -> Outcome:
    """The best groups that the evolutionary search finds."""
    stages, rng = len(ends), np.random.default_rng(seed)
    degrees = {"stages": stages, "group": group, "micro-batch": micro}
    starts = np.concatenate([[0], ends[:-1]])
    size, held = spans.parameters[starts, ends], some.state * spans.parameters[starts, ends]

    def seconds(groups: Ints) -> float:
        return batch_seconds(some, spans, ends, groups.reshape(stages, group), micro)

    begun = [np.argsort(-figure, kind="stable") for figure in (some.rate, some.flop_per_s, some.uplink, some.memory)]
    groups = min([*begun, rng.permutation(stages * group)], key=seconds)
    found = seconds(groups)
    for _ in range(TRIES if stages > 1 else 0):
        changed = groups.copy()
        if rng.random() < 0.5:
            i, j = rng.integers(0, stages * group, 2)
            changed[[i, j]] = changed[[j, i]]
        else:
            table, (i, j) = changed.reshape(stages, group), rng.integers(0, stages, 2)
            table[[i, j]] = table[[j, i]]
        tried = seconds(changed)
        if tried <= found:
            groups, found = changed, tried
    room = some.memory[groups].reshape(stages, group).min(axis=1)
    if np.any(held > room):
        return cannot(NAME, degrees, float(held.max()), room)
    moved = 2 * spans.crossing[starts] / group + 2 * size * (group - 1) / group * some.training
    return Outcome(
        name=NAME, batch_s=found, degrees=degrees, devices_used=stages * group, down_bytes=float(moved.max()),
        up_bytes=float(moved.max()), memory_bytes=float(held.max()), recovery_s=restart_seconds(some, float(held.max()), found),
        recovery="restart from a checkpoint",
    )  # fmt: skip


def batch_seconds(some: Setting, spans: Spans, ends: Ints, groups: Ints, micro: int) -> float:
    """Seconds of a batch for ``groups``, device indices of shape (stages, members); infinite where memory does not suffice."""
    stages, group = groups.shape
    starts, passes = np.concatenate([[0], ends[:-1]]), 2 if some.training else 1
    share = micro / some.batch
    up, down, latency = some.uplink[groups], some.downlink[groups], some.latency[groups]
    work_s = share * spans.flop[starts, ends] / some.flop_per_s[groups].min(axis=1)
    slowest = float(work_s.max())
    if stages > 1:
        onward = np.minimum(up[:-1].min(axis=1), down[1:].min(axis=1))
        back = np.minimum(up[1:].min(axis=1), down[:-1].min(axis=1))
        crossing = share * spans.crossing[ends[:-1]]
        hop_s = crossing / onward + (passes - 1) * crossing / back + latency[:-1].max(axis=1) + latency[1:].max(axis=1)
        slowest = max(slowest, float(hop_s.max()))
    reduce_s = 0.0
    if some.training and group > 1:
        sizes = spans.parameters[starts, ends].tolist()
        reduce_s = max(_reduce_seconds(up[s], down[s], latency[s], sizes[s]) for s in range(stages))
    rounds = np.ceil(some.batch / group / micro) + stages - 1
    return float(rounds * slowest + reduce_s)


def _reduce_seconds(up: Floats, down: Floats, latency: Floats, size: float) -> float:
    """The data-parallel part of one group."""
    members = len(up)
    link = np.minimum(np.minimum(up[:, None], down[None, :]), np.minimum(up[None, :], down[:, None]))
    pair_s = 2 * (latency[:, None] + latency[None, :] + size / (link * members))
    np.fill_diagonal(pair_s, 0.0)
    return float(pair_s.sum(axis=1).max())
