r"""Stages of equal meshes, each cut by operators or by samples (Alpa, Zheng et al., OSDI 2022, arXiv 2201.12023).

P stages on meshes of k devices; within a mesh every operator is cut equally, by tensors (all-reduce of every second unit's
results) or by samples (all-reduce of gradients once a batch), whichever is faster. With M micro-batches:

    t = m/B * (flop/(k min F) + crossing both ways / (k * slowest link)) [+ all-reduces of a micro-batch]
    T = sum of t over stages + (M - 1) * max t [+ all-reduce of gradients]

Meshes are consecutive in the order of links or FLOP/s; the cut into stages by dynamic programming. Searched: P, k, m, which
devices. After a failure: restart from a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cleave_plan.simulation.baselines.setting import (
    Floats,
    Outcome,
    Setting,
    best,
    cannot,
    powers_of_two,
    restart_seconds,
    ring_all_reduce,
    selections,
)  # fmt: skip
from cleave_plan.simulation.baselines.stages import Spans, best_cut, in_blocks

NAME = "Alpa"


def alpa(setting: Setting) -> Outcome:
    """The best meshes."""
    return best(_outcomes(in_blocks(setting)), NAME)


def _outcomes(blocks: Setting) -> Iterator[Outcome]:
    spans, count = Spans.of(blocks), len(blocks.flop)
    for stages in powers_of_two(min(blocks.devices, max(count, 1))):
        for k in powers_of_two(blocks.devices // stages):
            for chosen in selections(blocks, stages * k):
                some = blocks.take(chosen)
                for figure in (some.rate, some.flop_per_s):
                    mesh = some.take(np.argsort(-figure, kind="stable"))
                    for micro in powers_of_two(blocks.batch):
                        yield from (_outcome(mesh, spans, stages, k, micro, by_samples=way) for way in (False, True))


def _outcome(mesh: Setting, spans: Spans, stages: int, k: int, micro: int, *, by_samples: bool) -> Outcome:
    passes, share, count = 2 if mesh.training else 1, micro / mesh.batch, len(mesh.flop)
    slow, link, room = (figure.reshape(stages, k).min(axis=1) for figure in (mesh.flop_per_s, mesh.rate, mesh.memory))
    degrees = {"stages": stages, "mesh": k, "micro-batch": micro, "by samples": int(by_samples)}
    if by_samples and k > micro:
        return Outcome(name=NAME, batch_s=np.inf, degrees=degrees, reason="fewer samples than devices in a mesh")
    summed = np.concatenate([[0.0], np.cumsum(mesh.out_bytes)])
    summed = summed[None, :] - summed[:, None]
    held = mesh.state * spans.parameters / (1 if by_samples else k)

    def cost(stage: int) -> Floats:
        seconds = share * (spans.flop / (k * slow[stage]) + passes * spans.crossing[:, None] / (k * link[stage]))
        if not by_samples:
            seconds = seconds + passes * share * ring_all_reduce(summed, k, link[stage])
        return np.where(held > room[stage], np.inf, seconds)

    slowest, ends = best_cut(stages, count, cost)
    if not np.isfinite(slowest):
        return cannot(NAME, degrees, float(held[0, -1]) / stages, room)
    starts = np.concatenate([[0], ends[:-1]])
    times = np.array([cost(stage)[starts[stage], ends[stage]] for stage in range(stages)])
    size = spans.parameters[starts, ends]
    reduce_s = float(ring_all_reduce(size, k, link).max()) if by_samples and mesh.training else 0.0
    batch_s = float(times.sum() + (np.ceil(mesh.batch / micro) - 1) * times.max() + reduce_s)
    ring = (passes - 1) * size if by_samples else passes * summed[starts, ends]
    moved = float((passes * spans.crossing[starts] / k + 2 * (k - 1) / k * ring).max())
    most = float(held[starts, ends].max())
    return Outcome(
        name=NAME, batch_s=batch_s, degrees=degrees, devices_used=stages * k, down_bytes=moved, up_bytes=moved,
        memory_bytes=most, recovery_s=restart_seconds(mesh, most, batch_s), recovery="restart from a checkpoint",
    )  # fmt: skip
