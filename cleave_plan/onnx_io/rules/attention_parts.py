"""What all kinds of attention share: their two products, and the nodes that stand for them.

The scores (rows: queries, K: head size, columns: keys) and the context (rows: queries, K: keys, columns: head size) are
batched over (batch item, key head); query heads that share a key head are folded into the rows, so that it is sent once for
the group. All axes can be cut. Scale, masks, softmax and the order of heads are the server's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import helper

from cleave_plan.onnx_io.facts import ShapeContradictionError
from cleave_plan.onnx_io.rules.builder import ABSENT, Builder, DeclinedError, Tensor, broadcast
from cleave_plan.onnx_io.rules.forms import Form
from cleave_plan.workload.gemm import GemmShape

WHOLE = "part of its attention"

Weights = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attended:
    """Sizes of one attention: batch items, query and key heads, queries, keys, head size of keys and of values."""

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    size: int
    value_size: int

    def forms(self, q: int | None, k: int | None, v: int | None) -> tuple[Form, ...]:
        """Scores and context; ``q``, ``k``, ``v`` are the inputs that hold the operands, None for tensors made inside."""
        if min(self.key_heads, self.heads) < 1 or self.heads % self.key_heads:
            raise ShapeContradictionError(f"{self.heads} query heads cannot share {self.key_heads} key heads")
        items, rows = self.batch * self.key_heads, self.heads // self.key_heads * self.queries
        scores = GemmShape(items, rows, self.size, self.keys)
        context = GemmShape(items, rows, self.keys, self.value_size)
        return (
            Form(shape=scores, a=q, b=k, part="scores", pinned=WHOLE),
            Form(shape=context, a=None, b=v, part="context", pinned=WHOLE),
        )


def split_heads(build: Builder, x: Tensor, heads: int) -> Tensor:
    """[batch, length, heads * size] as [batch, length, heads, size]."""
    if len(x.shape) != 3 or heads < 1 or x.shape[2] % heads:
        raise DeclinedError(f"{x.name!r} is {list(x.shape)}, which {heads} heads do not divide")
    return build.reshape(x, (*x.shape[:2], heads, x.shape[2] // heads))


def heads_first(build: Builder, x: Tensor, *, out: str = "") -> Tensor:
    """[batch, length, heads, size] as [batch, heads, length, size]."""
    return build.transpose(x, 0, 2, 1, 3, out=out)


def merged_heads(build: Builder, x: Tensor, *, out: str) -> Tensor:
    """[batch, heads, length, size] as [batch, length, heads * size]."""
    batch, heads, length, size = x.shape
    return build.reshape(build.transpose(x, 0, 2, 1, 3), (batch, length, heads * size), out=out)


def with_past(build: Builder, x: Tensor, past: Tensor, *, out: str) -> Tensor:
    """Keys or values [batch, heads, length, size] after those of the past; ``out`` names the result where it is wanted."""
    if past.name and len(past.shape) != 4:
        raise DeclinedError(f"the past is {list(past.shape)}")
    if past.name and past.shape[2]:
        return build.concatenated([past, x], 2, out=out)
    return build.add("Identity", [x], x.shape, out=out) if out else x


def attend(build: Builder, q: Tensor, k: Tensor, v: Tensor, scale: float, weights: Weights, *, out: str = "") -> Tensor:
    """[batch, heads, queries, value size] from ``q`` [batch, heads, queries, size] and ``k``, ``v`` [batch, key heads, keys, .].

    ``weights`` writes what makes weights of scaled scores, both [batch, heads, queries, keys].
    """
    if not len(q.shape) == len(k.shape) == len(v.shape) == 4:
        raise DeclinedError(f"q {list(q.shape)}, k {list(k.shape)} and v {list(v.shape)} are not of four axes")
    batch, heads, queries, size = q.shape
    key_heads, keys = k.shape[1:3]
    if k.shape[0] != batch or v.shape[:3] != k.shape[:3] or k.shape[3] != size or heads % max(key_heads, 1):
        raise DeclinedError(f"q {list(q.shape)}, k {list(k.shape)} and v {list(v.shape)} do not fit")
    folded = (batch, key_heads, heads // key_heads * queries)
    scaled = build.both("Mul", q, build.scalar(scale, q))
    scores = build.matmul(_folded(build, scaled, (*folded, size)), build.transpose(k, 0, 1, 3, 2), "scores")
    parts = weights(_folded(build, scores, (batch, heads, queries, keys)))
    context = build.matmul(_folded(build, parts, (*folded, keys)), v, "context", out=out if heads == key_heads else "")
    return context if heads == key_heads else build.reshape(context, (batch, heads, queries, v.shape[3]), out=out)


def _folded(build: Builder, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return x if x.shape == shape else build.reshape(x, shape)


def softmax_of(build: Builder, scores: Tensor, terms: Sequence[Tensor], softcap: float = 0.0) -> Tensor:
    """Softmax over the last axis of ``scores`` (capped first) plus ``terms``; all of one type."""
    scores = capped(build, scores, softcap)
    for term in terms:
        if broadcast(term.shape, scores.shape) != scores.shape:
            raise DeclinedError(f"{term.name!r} is {list(term.shape)}, the scores are {list(scores.shape)}")
        scores = build.both("Add", scores, term)
    return build.add("Softmax", [scores], scores.shape, axis=len(scores.shape) - 1)


def capped(build: Builder, scores: Tensor, softcap: float) -> Tensor:
    """softcap * tanh(scores / softcap), or the scores as they are."""
    if not softcap:
        return scores
    bound = build.scalar(softcap, scores)
    return build.both("Mul", build.add("Tanh", [build.both("Div", scores, bound)], scores.shape), bound)


def key_mask(build: Builder, like: Tensor, index: Tensor, *, queries: int, keys: int, causal: bool, filler: float) -> Tensor:
    """What onnxruntime adds to the scores for a mask ``index`` (or ABSENT) and for causal attention, in the type of ``like``.

    The shape is [batch or 1, 1, queries or 1, keys]; ABSENT when there is nothing to add. Raises DeclinedError for masks of
    four axes, which its CPU kernels refuse.
    """
    if not index.name and not causal:
        return ABSENT
    if len(index.shape) > 3 or (index.name and not index.shape):
        raise DeclinedError(f"the mask {index.name!r} is {list(index.shape)}")
    if len(index.shape) == 3 and index.shape[1:] != (queries, keys):
        raise DeclinedError(f"the mask {index.name!r} is {list(index.shape)}")
    shape = (like.shape[0] if index.name else 1, 1, queries if causal or len(index.shape) == 3 else 1, keys)
    (mask,) = build.own(
        "KeyMask", [index], [("", shape, like.elem)], shape=list(shape), causal=int(causal), queries=queries,
        filler=filler, dtype=np.dtype(helper.tensor_dtype_to_np_dtype(like.elem)).name,
    )  # fmt: skip
    return mask
