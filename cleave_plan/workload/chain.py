r"""Attention as one piece of work: what a tile of it costs to send, to hold and to compute.

A chain is scores = Q K^T, row-wise operators (scale, mask, softmax), context = P V. For one batch item (one head of one
sequence) rows of Q go down with the item's K and V, rows of the context come up, and the scores never leave the device:

    down   rows * row_bytes + item_bytes            (Q and per-row masks; K, V and per-item masks)
    up     rows * out_row_bytes + out_item_bytes
    flop   2 * rows * S_kv * (d_k + d_v)            (the operators between are not counted, here as elsewhere)

As a GEMM it is (batch, S_q, S_kv*(d_k + d_v), 1): batch and rows can be cut, nothing else. Its backward pass is a chain too:
Q, dC and K, V down, the scores computed again, dQ and dK, dV up. Every row adds to dK and dV, so its items stay whole:
its M is 1 and a row is an item (scores, dP, dV, dQ, dK: S_q*S_kv*(3*d_k + 2*d_v) multiply-adds).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainForm:
    """Bytes of a chain, for each row (``row_bytes``, ``out_row_bytes``) and for each batch item of a tile (the others).

    ``held_bytes``: what a device keeps while an item's rows pass: K and V, those of the next item, which arrive meanwhile,
    and sums that grow over the rows. ``stream_bytes``: one row of Q with its scores and its result, for which the stream
    buffers must have room. ``scores_bytes`` and ``between_bytes``: what a server that computes the chain moves through its
    memory for each row besides operands and result: scores and probabilities of the two products, and the bytes that the
    operators between them read and write.
    """

    row_bytes: int
    item_bytes: int
    out_row_bytes: int
    out_item_bytes: int
    held_bytes: int
    stream_bytes: int
    scores_bytes: int
    between_bytes: int
