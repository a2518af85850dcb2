r"""The GEMMs of a training step, derived from the forward ones.

For C = A B with dC the gradient of the loss with respect to C (all in canonical form, one batch item):

    dA = dC B^T      shape (M, N, K):  A-gradient, needed where A is a parameter or depends on one
    dB = A^T dC      shape (K, M, N):  B-gradient, needed where B is a parameter or depends on one

so a GEMM with a weight gives dX and dW, one between activations gives the gradients of both, and nothing is computed
towards inputs before which nothing learns. Each has the forward GEMM's MACs. Forward level l of L is followed backwards
as level 2L - 1 - l; dX and dW of a GEMM share it. Axes that were folded into M or N because an operand is shared are summed
by these products as they must be.

What the servers hold grows: gradient and optimizer state of every parameter (``STATE_BYTES`` an element, two float32
moments as AdamW keeps them), and every activation that a GEMM reads or makes stays until its gradient is done. Where segments of
the forward pass are computed again (:mod:`cleave_plan.workload.recompute`), only what lies at the cuts stays, and on the way back
what is alive in the forward level is counted beside it: its own values, or gradients, which are as large.

Assumptions, said in the workload's notes: a convolution's gradients are priced on im2col matrices (no windows), and the other
operators' backward passes at twice the bytes of the forward ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from cleave_plan.workload.attention import backward_chain
from cleave_plan.workload.gemm import Gemm, GemmShape, Operand, Phase, Role
from cleave_plan.workload.graph import Chain, ServerOperator, Workload
from cleave_plan.workload.passes import Passes
from cleave_plan.workload.recompute import AGAIN, Recomputed, Segment, Segments

STATE_BYTES = 8
"""Optimizer state of one parameter element: AdamW's two moments in float32."""


def training_workload(forward: Workload, segments: Segments | None = None) -> Workload:
    """``forward`` with its backward GEMMs, levels, operators and the memory that training needs.

    ``segments``: those of which forward values are computed again; None: all are kept. A workload with backward GEMMs of its own
    (of a gradient file) gets only the optimizer: its step, and the memory of its state. Raises ValueError for a workload that
    is a training step already.
    """
    if forward.training:
        raise ValueError(f"{forward.name} is a training step already")
    if forward.has_backward:
        return _with_optimizer(forward)
    held = _activations_held(forward)
    passes = Passes(forward, held if segments is None else segments.live_bytes)
    again: list[tuple[Segment, Mapping[int, int]]] = []
    for part in reversed(_whole(forward) if segments is None else segments.parts):
        live = held if segments is None else [_beside(part, level.live_bytes) for level in forward.levels]
        again.append((part, passes.again(part, live)))
        passes.back(part, gradients, live)
    gemms, levels = tuple(passes.gemms), tuple(passes.levels)
    return replace(
        forward, gemms=gemms, levels=levels, server_operators=(*passes.operators, _optimizer(forward, len(levels))),
        parameters=_with_state(forward, copies=2), notes=(*forward.notes, *_notes(forward)),
        chains=_chains(forward, gemms, again), training=True,
        recompute=None if segments is None else _recomputed(segments, gemms),
    )  # fmt: skip


def _whole(forward: Workload) -> tuple[Segment, ...]:
    """All of the forward pass as one segment."""
    operators = frozenset(operator.name for operator in forward.server_operators)
    return (Segment(gemms=frozenset(gemm.name for gemm in forward.gemms), operators=operators, again=frozenset(), kept_bytes=0),)


def _beside(part: Segment, live_bytes: int | None) -> int | None:
    """What is alive while a forward level of a segment runs again or backwards: what is kept for the segment, and the level's own
    values or gradients."""
    return None if live_bytes is None else part.kept_bytes + live_bytes


def _recomputed(segments: Segments, gemms: Iterable[Gemm]) -> Recomputed:
    return Recomputed(
        segments=len(segments.parts), kept_bytes=max(part.kept_bytes for part in segments.parts),
        all_kept_bytes=segments.all_kept_bytes, extra_flop=sum(gemm.flop for gemm in gemms if gemm.phase is Phase.RECOMPUTE),
    )  # fmt: skip


def _with_optimizer(step: Workload) -> Workload:
    """A whole step's work with the optimizer; gradients are outputs of the step and count among its activations."""
    operators = (*step.server_operators, _optimizer(step, len(step.levels)))
    notes = (*step.notes, "training: the optimizer is counted as AdamW with float32 moments (assumed)")
    return replace(step, server_operators=operators, parameters=_with_state(step, copies=1), notes=notes, training=True)


def gradients(gemm: Gemm, level: int) -> list[Gemm]:
    """The gradients of one GEMM's operands that a training step needs, at backward level ``level``."""
    batch, m, k, n = gemm.shape
    flowing = Operand(tensor=f"grad:{gemm.output}", role=Role.ACTIVATION, dtype=gemm.out_dtype)
    of_a = (gemm.a, "dX", GemmShape(batch, m, n, k), flowing, gemm.b)
    of_b = (gemm.b, "dB", GemmShape(batch, k, m, n), gemm.a, flowing)
    return [
        replace(
            gemm, name=f"{gemm.name}.{'dW' if target.role is Role.PARAMETER else kind}", phase=_phase(target), shape=shape,
            a=left, b=right, output=f"grad:{target.tensor}", out_dtype=target.dtype, level=level, window=None,
        )
        for target, kind, shape, left, right in (of_a, of_b)
        if _learns(target)
    ]  # fmt: skip


def _learns(operand: Operand) -> bool:
    return operand.dtype.is_float and (operand.role is Role.PARAMETER or operand.learned)


def _phase(operand: Operand) -> Phase:
    return Phase.GRADIENT_WEIGHT if operand.role is Role.PARAMETER else Phase.GRADIENT_INPUT


def _chains(
    forward: Workload, gemms: Iterable[Gemm], again: Iterable[tuple[Segment, Mapping[int, int]]]
) -> tuple[Chain, ...]:  # fmt: skip
    """The forward chains, those that run again (``again``: segments with the levels that theirs have then), and their backward
    passes, where the gradients of their last GEMMs are computed."""
    by_name = {gemm.name: gemm for gemm in gemms}
    kept = [chain for chain in forward.chains if not chain.learned]
    found = [copy for part, levels in again for copy in _chains_again(kept, part, levels)]
    for chain in kept:
        scores, context = (by_name[name] for name in chain.gemms)
        first = by_name.get(f"{context.name}.dX")
        operators = tuple(f"{name}.backward" for name in chain.operators)
        if first is not None:
            backward = backward_chain(chain, scores, context, by_name, operators, level=first.level)
            found += [backward] if backward else []
    return (*kept, *found)


def _chains_again(chains: Iterable[Chain], part: Segment, levels: Mapping[int, int]) -> Iterator[Chain]:
    """The chains of which every GEMM and operator of a segment runs again."""
    for chain in chains:
        if part.again.issuperset((*chain.gemms, *chain.operators)):
            names = (tuple(f"{AGAIN}{name}" for name in group) for group in (chain.gemms, chain.operators))
            gemms, operators = names
            yield replace(chain, name=f"{AGAIN}{chain.name}", gemms=gemms, operators=operators, level=levels[chain.level])


def _activations_held(forward: Workload) -> list[int | None]:
    """Bytes alive during each forward level in training: what it has alive anyway, and all that GEMMs read or made so far."""
    seen: dict[str, int] = {}
    held: list[int | None] = []
    for level in forward.levels:
        for place in level.gemms:
            gemm = forward.gemms[place]
            for operand, size in ((gemm.a, gemm.a_bytes), (gemm.b, gemm.b_bytes)):
                if operand.role is Role.ACTIVATION:
                    seen.setdefault(operand.tensor, size)
            seen.setdefault(gemm.output, gemm.out_bytes)
        held.append(None if level.live_bytes is None else max(level.live_bytes, sum(seen.values())))
    return held


def _optimizer(workload: Workload, levels: int) -> ServerOperator:
    """Weights, gradients and moments are read; weights and moments are written."""
    weights = sum(workload.parameters.values())
    return ServerOperator(
        name="optimizer", op="AdamW", level=levels, bytes=3 * weights + 2 * STATE_BYTES * workload.parameter_elements
    )


def _with_state(forward: Workload, *, copies: int) -> dict[str, int]:
    """Bytes that the servers hold for each parameter: optimizer state, and ``copies`` of its size (weight, gradient)."""
    total = sum(forward.parameters.values())
    state = STATE_BYTES * forward.parameter_elements / total if total else 0.0
    return {name: round(size * (copies + state)) for name, size in forward.parameters.items()}


def _notes(forward: Workload) -> Iterable[str]:
    yield (
        "training: backward operators are counted at twice the forward ones' bytes, the optimizer as AdamW with float32 "
        "moments (assumed)"
    )
    if any(gemm.window is not None for gemm in forward.gemms):
        yield "training: gradients of convolutions are priced on im2col matrices, which move more bytes than windows would"
