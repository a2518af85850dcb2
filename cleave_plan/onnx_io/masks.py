"""Masks of attention in NumPy: what is added to the scores."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def key_mask(index: Array | None, *, shape: tuple[int, ...], queries: int, causal: bool, filler: float, dtype: Any) -> Array:
    """onnxruntime's mask of [batch or 1, 1, queries or 1, keys].

    ``index`` is [batch] (the number of keys), [2 * batch] (ends, then begins), [3 * batch + 2] (counts, then offsets),
    [batch, keys] or [batch, queries, keys] (1: attend); what it hides gets ``filler``. ``causal`` hides the keys after each
    query (the last query sees all) with the lowest number.
    """
    batch, _, _, keys = shape
    mask = np.zeros(shape, dtype)
    if index is not None:
        seen = index[:, None] > 0 if index.ndim == 3 else _seen(index, batch, keys)[:, None, None, :]
        mask += np.where(seen, 0, filler).astype(dtype)
    if causal:
        after = np.arange(keys) > np.arange(queries)[:, None] + (keys - queries)
        mask = np.where(after, np.array(np.finfo(dtype).min, dtype), mask)
    return mask


def _seen(index: Array, batch: int, keys: int) -> Array:
    """[batch, keys]: whether a key is seen."""
    if index.ndim == 2:
        return index > 0
    place = np.arange(keys)
    seen: Array = place < index[:batch, None]
    if index.size == 2 * batch:
        seen = seen & (place >= index[batch:, None])
    return seen


def attention_bias(
    mask: Array | None, used: Array | None, *, queries: int, keys: int, past: int, causal: bool, left: int, right: int, dtype: Any
) -> tuple[Array, Array]:
    """ONNX's additive mask, broadcastable to [batch, heads, queries, keys], and which rows see any key, [..., queries, 1].

    ``mask`` is boolean (True: attend) or added as it is, and may end early; ``used`` [batch] are the keys that are no padding.
    Query i stands at position i + ``past`` (or at the end of the keys in use); it sees ``left`` keys before it and ``right``
    after it (-1: all), and none after it when ``causal``.
    """
    ends = None if used is None else used.reshape(-1, 1, 1, 1)
    at = np.arange(queries)[:, None] + (past if ends is None else ends - queries)
    place = np.arange(keys)
    seen = np.broadcast_to(np.array(True), np.broadcast_shapes(at.shape, place.shape)).copy()
    if causal:
        seen &= place <= at
    if left >= 0:
        seen &= at - place <= left
    if right >= 0:
        seen &= place - at <= right
    if ends is not None:
        seen = seen & (place < ends)
    bias = np.where(seen, np.array(0, dtype), np.array(-np.inf, dtype))
    if mask is not None:
        bias = bias + _additive(mask, keys, dtype)
    return bias, ~np.isneginf(bias.max(axis=-1, keepdims=True, initial=-np.inf))


def _additive(mask: Array, keys: int, dtype: Any) -> Array:
    hidden = np.array(-np.inf, dtype)
    added: Array = np.where(mask, np.array(0, dtype), hidden) if mask.dtype == np.bool_ else mask.astype(dtype)
    if added.shape[-1] < keys:
        ends = [(0, 0)] * (added.ndim - 1) + [(0, keys - added.shape[-1])]
        added = np.pad(added, ends, constant_values=hidden)
    return added
