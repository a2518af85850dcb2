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
                    for way in (False, True):
                        yield from _meshed(mesh, spans, stages, k, by_samples=way)


def _meshed(mesh: Setting, spans: Spans, stages: int, k: int, *, by_samples: bool) -> Iterator[Outcome]:
    """Every size of a micro-batch: all times of one are its share of a whole batch's, so that all have the same best cut."""
    passes, count = 2 if mesh.training else 1, len(mesh.flop)
    slow, link, room = (figure.reshape(stages, k).min(axis=1) for figure in (mesh.flop_per_s, mesh.rate, mesh.memory))
    sizes = [micro for micro in powers_of_two(mesh.batch) if not by_samples or k <= micro]
    degrees = {"stages": stages, "mesh": k, "micro-batch": mesh.batch, "by samples": int(by_samples)}
    if not sizes:
        yield Outcome(name=NAME, batch_s=np.inf, degrees=degrees, reason="fewer samples than devices in a mesh")
        return
    summed = np.concatenate([[0.0], np.cumsum(mesh.out_bytes)])
    summed = summed[None, :] - summed[:, None]
    held = mesh.state * spans.parameters / (1 if by_samples else k)

    def cost(stage: int) -> Floats:
        seconds = spans.flop / (k * slow[stage]) + passes * spans.crossing[:, None] / (k * link[stage])
        if not by_samples:
            seconds = seconds + passes * ring_all_reduce(summed, k, link[stage])
        return np.where(held > room[stage], np.inf, seconds)

    slowest, ends = best_cut(stages, count, cost)
    if not np.isfinite(slowest):
        yield cannot(NAME, degrees, float(held[0, -1]) / stages, room)
        return
    starts = np.concatenate([[0], ends[:-1]])
    whole_s = np.array([cost(stage)[starts[stage], ends[stage]] for stage in range(stages)])
    size = spans.parameters[starts, ends]
    reduce_s = float(ring_all_reduce(size, k, link).max()) if by_samples and mesh.training else 0.0
    ring = (passes - 1) * size if by_samples else passes * summed[starts, ends]
    moved = float((passes * spans.crossing[starts] / k + 2 * (k - 1) / k * ring).max())
    most = float(held[starts, ends].max())
    for micro in sizes:
        times = micro / mesh.batch * whole_s
        batch_s = float(times.sum() + (np.ceil(mesh.batch / micro) - 1) * times.max() + reduce_s)
        yield Outcome(
            name=NAME, batch_s=batch_s, degrees={**degrees, "micro-batch": micro}, devices_used=stages * k, down_bytes=moved,
            up_bytes=moved, memory_bytes=most, recovery_s=restart_seconds(mesh, most, batch_s),
            recovery="restart from a checkpoint",
        )  # fmt: skip
