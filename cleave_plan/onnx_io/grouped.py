"""What GroupQueryAttention of onnxruntime does before its products, in NumPy: heads, rotation, the cache of keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """Sizes that a plan was made for: heads of queries and keys, and keys in the cache after this call."""

    heads: int
    key_heads: int
    keys: int
    rotated: bool
    interleaved: bool

    def prepared(self, arrays: Sequence[Array | None]) -> tuple[Array, Array, Array]:
        """q [batch, heads, queries, size], keys and values [batch, key heads, ``keys``, size].

        ``arrays``: query, key, value [batch, queries, heads * size] (or all in the query), past keys and values, lengths
        (of each item, less 1), the longest length, cosines, sines [position, size / 2], positions. Raises ValueError when the
        longest length is not the one that was planned for.
        """
        query, key, value, past_key, past_value, last, longest, cosines, sines, positions = arrays
        if query is None or last is None or longest is None:
            raise ValueError("an operand of GroupQueryAttention is absent")
        batch, queries, _ = query.shape
        past = 0 if past_key is None else past_key.shape[2]
        if max(past, int(longest.reshape(-1)[0])) != self.keys:
            raise ValueError(f"{int(longest.reshape(-1)[0])} keys, planned for {self.keys}")
        if key is None or value is None:
            packed = query.reshape(batch, queries, self.heads + 2 * self.key_heads, -1)
            parts = np.split(packed, [self.heads, self.heads + self.key_heads], axis=2)
        else:
            counts = (self.heads, self.key_heads, self.key_heads)
            parts = [x.reshape(batch, queries, n, -1) for x, n in zip((query, key, value), counts, strict=True)]
        q, k, v = (part.transpose(0, 2, 1, 3) for part in parts)
        begins = first_places(last, queries, int(longest.reshape(-1)[0]))
        if self.rotated and cosines is not None and sines is not None:
            at = begins[:, None] + np.arange(queries) if positions is None else positions.reshape(batch, queries)
            at = np.clip(at, 0, len(cosines) - 1)
            q, k = (rotated(x, cosines[at][:, None], sines[at][:, None], interleaved=self.interleaved) for x in (q, k))
        return q, self._appended(past_key, k, begins), self._appended(past_value, v, begins)

    def _appended(self, past: Array | None, new: Array, begins: Array) -> Array:
        batch, heads, queries, size = new.shape
        whole = np.zeros((batch, heads, self.keys, size), new.dtype)
        for item, begin in enumerate(begins):
            if past is not None:
                whole[item, :, :begin] = past[item, :, :begin]
            whole[item, :, begin : begin + queries] = new[item]
        return whole


def first_places(last: Array, queries: int, longest: int) -> Array:
    """The place of the first query of each batch item among its keys: 0 in a first prompt, else after its past."""
    flat = last.reshape(-1).astype(np.int64)
    return np.zeros_like(flat) if queries == longest else np.maximum(flat + 1 - queries, 0)


def rotated(x: Array, cosines: Array, sines: Array, *, interleaved: bool) -> Array:
    """Rotary embedding of the first 2 * half components of ``x`` [..., size], with ``cosines`` and ``sines`` [..., half]."""
    half = cosines.shape[-1]
    one, other = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(half), slice(half, 2 * half))
    first, second = x[..., one], x[..., other]
    result = x.copy()
    result[..., one] = first * cosines - second * sines
    result[..., other] = second * cosines + first * sines
    return result


def window_mask(last: Array, longest: Array, *, queries: int, keys: int, window: int, dtype: Any) -> Array:
    """What is added to the scores, [batch, 1, queries, keys].

    A query sees the keys up to itself, and of those only the last ``window`` (-1: all).
    """
    begins = first_places(last, queries, int(longest.reshape(-1)[0]))
    at = begins.reshape(-1, 1, 1, 1) + np.arange(queries)[:, None]
    place = np.arange(keys)
    seen = place <= at
    if window >= 0:
        seen = seen & (place > at - window)
    return np.where(seen, np.array(0, dtype), np.array(np.finfo(dtype).min, dtype))
