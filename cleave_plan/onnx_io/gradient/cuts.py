"""Where to cut a forward pass into segments, so that the backward pass can compute each again from what lies at the cuts.

With cuts c_1 < ... < c_S, backward of segment s (the nodes between two cuts) needs, beside gradients,

    alive(s) = Σ_{r ≤ s} new(c_r) + held(s)

new(c_r): bytes of the tensors that cross c_r and were made after the cut before it, kept from the forward pass on; held(s): bytes
that the rules read of what segment s makes, which is computed again right before they read it. The cuts are those of the
smallest max over s of alive(s). (With S equal segments of equal layers this is Chen et al. 2016, arXiv:1604.06174, of which
√n is the best S.)

For a limit P on alive, let f(j) be the least bytes kept by cuts of which j is the last, all segments so far within P:

    f(j) = min over i < j with f(i) + held(i, j) ≤ P of f(i) + new(i, j)

Less kept is never worse for what follows, so f decides exactly whether P can be held; P is found by bisection.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cleave_plan.onnx_io.views import NodeView

Bytes = NDArray[np.float64]

MOST_CANDIDATES = 600
"""Places of a cut that are looked at (the search grows with their square): all, or the narrowest, where fewest bytes cross."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """What the search sees of the forward tensors, by name.

    ``sizes``: bytes of those that count (no weights, no constants); ``held``: those that backward rules read; ``kept``: those
    that are kept whatever is cut.
    """

    sizes: Mapping[str, int]
    held: Collection[str]
    kept: Collection[str]


def choose_cuts(nodes: Sequence[NodeView], values: Values) -> tuple[int, ...]:
    """Indices of the nodes behind which to cut, ascending; none where no cut lowers what is alive."""
    made = {name: index for index, view in enumerate(nodes) for name in view.made if name in values.sizes}
    last = {name: index for index, view in enumerate(nodes) for name in view.reads if name in made}
    last.update((name, len(nodes)) for name in values.kept if name in made)
    crossing = np.zeros(len(nodes) + 1)
    for name, start in made.items():
        crossing[start] += values.sizes[name]
        crossing[max(last.get(name, start), start)] -= values.sizes[name]
    places = _narrow_places(np.cumsum(crossing)[: len(nodes)])
    held_at = np.zeros(len(nodes) + 1)
    for name in values.held:
        if name in made:
            held_at[made[name] + 1] += values.sizes[name]
    total_held = np.cumsum(held_at)
    ends = np.array([-1, *places, len(nodes) - 1])
    held = total_held[ends + 1][None, :] - total_held[ends + 1][:, None]
    chosen = _least_peak(held, _newly_kept(ends, made, last, values.sizes))
    return tuple(int(ends[place]) for place in chosen)


def _narrow_places(crossing: Bytes) -> list[int]:
    """Every place; of many, those where no more bytes cross than on either side, and of these those with fewest."""
    inner = range(len(crossing) - 1)
    if len(inner) <= MOST_CANDIDATES:
        return list(inner)
    found = [at for at in inner if crossing[at] < crossing[at + 1] and (at == 0 or crossing[at] <= crossing[at - 1])]
    return sorted(sorted(found, key=lambda at: (crossing[at], at))[:MOST_CANDIDATES])


def _newly_kept(
    ends: NDArray[np.int64], made: Mapping[str, int], last: Mapping[str, int], sizes: Mapping[str, int]
) -> Bytes:  # fmt: skip
    """``[i, j]``: bytes of tensors that cross cut j and were made behind cut i."""
    names = [name for name in made if name in last]
    first = np.searchsorted(ends, [made[name] for name in names])  # the first cut behind the tensor's making
    beyond = np.searchsorted(ends, [last[name] for name in names])  # the first cut behind its last reader
    old = np.zeros((len(ends) + 1, len(ends) + 1))  # tensors made before cut i (or by its node) that cross cut j
    for name, start, stop in zip(names, first, beyond, strict=True):
        old[start, start] += sizes[name]
        old[start, stop] -= sizes[name]
    crossing = np.cumsum(np.cumsum(old, axis=0), axis=1)[:-1, :-1]
    result: Bytes = np.diagonal(crossing)[None, :] - crossing
    return result


def _least_peak(held: Bytes, new: Bytes) -> list[int]:
    """The places of the cuts, without the two ends: bisection over the limit, to a thousandth."""
    best: list[int] = []
    high, low = float(held[0, -1]), 0.0
    while high - low > 1e-3 * high:
        limit = (low + high) / 2
        path = _within(limit, held, new)
        if path is None:
            low = limit
        else:
            best, high = path, limit
    return best


def _within(limit: float, held: Bytes, new: Bytes) -> list[int] | None:
    """The cuts that keep least with every segment within ``limit``; None when there are none."""
    count = len(held)
    kept, before = np.full(count, np.inf), np.zeros(count, np.int64)
    kept[0] = 0.0
    for end in range(1, count):
        through = np.where(kept[:end] + held[:end, end] <= limit, kept[:end] + new[:end, end], np.inf)
        before[end] = np.argmin(through)
        kept[end] = through[before[end]]
    if not np.isfinite(kept[-1]):
        return None
    path, at = [], int(before[-1])
    while at > 0:
        path.append(at)
        at = int(before[at])
    return path[::-1]
