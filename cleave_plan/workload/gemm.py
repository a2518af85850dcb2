"""GEMMs as values: shapes, operands, and the window of a convolution.

A GEMM is ``C[batch, M, N] = A[batch, M, K] @ B[batch, K, N]``. Whatever the ONNX operator was, its work is brought
to this form exactly, so that no operand is shared between batch items:

- ``MatMul`` with broadcasting: axes that both operands have are ``batch``; axes that only A has are folded into M
  (B is shared by them); axes that only B has are folded into N.
- ``Conv``: ``batch`` = groups, M = images * output positions, K = C_in/group * kernel positions,
  N = C_out/group; A is never built as a matrix on the link, :class:`ConvWindow` says which inputs a row reads.

One multiply-add is 2 FLOP.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import ceil, prod
from typing import NamedTuple

from cleave_plan.dtypes import DType
from cleave_plan.workload.chain import ChainForm


class Phase(StrEnum):
    """Which part of a training step a GEMM belongs to (:mod:`cleave_plan.workload.recompute` for the second)."""

    FORWARD = "forward"
    RECOMPUTE = "recompute"
    GRADIENT_INPUT = "dX"
    GRADIENT_WEIGHT = "dW"


class GemmShape(NamedTuple):
    """``(batch, m, k, n)``, all non-negative."""

    batch: int
    m: int
    k: int
    n: int

    @property
    def macs(self) -> int:
        """Multiply-adds, bias additions not counted."""
        return self.batch * self.m * self.k * self.n


class Join(StrEnum):
    """How the members of a joined GEMM belong together (:mod:`cleave_plan.workload.joined`): the axis along which they lie one
    after the other, or that one feeds the other."""

    NONE = ""
    N = "n"
    K = "k"
    CHAIN = "chain"


class Role(StrEnum):
    """Where an operand comes from."""

    PARAMETER = "parameter"
    ACTIVATION = "activation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """One operand of a GEMM: the ONNX tensor's name, its role and its element type.

    ``learned``: whether an activation depends on a parameter, so that a training step needs its gradient. ``scale_bits``: bits
    of scales and zero points that travel with each element of packed weights, on average.
    """

    tensor: str
    role: Role
    dtype: DType
    learned: bool = True
    scale_bits: float = 0.0

    @property
    def bits(self) -> float:
        """Bits of one element on the link and in memory, with its share of scales."""
        return self.dtype.bits + self.scale_bits


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvWindow:
    """Which input positions each row (output position) of a convolution reads.

    All tuples have one entry per spatial axis. Row index = position in the row-major order of
    (image, output position). ``pads`` are the paddings at the begin of each axis (the end follows from the sizes).
    ``channels`` is C_in/group; one input position is ``channels`` elements for each group.
    """

    images: int
    channels: int
    input: tuple[int, ...]
    output: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]

    @property
    def rows_per_image(self) -> int:
        """Output positions of one image."""
        return prod(self.output)

    def span(self, first: int, last: int) -> tuple[tuple[int, int], ...]:
        """Input box ``((start, stop), ...)`` per axis that output positions ``first..last`` (inclusive) of one image reach.

        It may begin below 0 and end beyond the input: that part is padding. The output positions that it serves are the
        smallest slab that holds the range: one coordinate on the leading axes, a range on the first axis on which
        ``first`` and ``last`` differ, everything after it.
        """
        return tuple(
            (
                low * self.strides[axis] - self.pads[axis],
                high * self.strides[axis] - self.pads[axis] + (self.kernel[axis] - 1) * self.dilations[axis] + 1,
            )
            for axis, (low, high) in enumerate(self.slab(first, last))
        )

    def slab(self, first: int, last: int) -> tuple[tuple[int, int], ...]:
        """Output coordinates ``((low, high), ...)``, inclusive, of the smallest slab that holds ``first..last`` of one image."""
        box: list[tuple[int, int]] = []
        free = False
        for axis, size in enumerate(self.output):
            inner = prod(self.output[axis + 1 :])
            low, high = (0, size - 1) if free else (first // inner % size, last // inner % size)
            box.append((low, high))
            free = free or low != high
        return tuple(box)

    def region(self, first: int, last: int) -> tuple[tuple[int, int], ...]:
        """:meth:`span` without the padding: the box of the input that is sent. All padding gives start == stop."""
        box: list[tuple[int, int]] = []
        for (begin, end), size in zip(self.span(first, last), self.input, strict=True):
            start, stop = min(max(begin, 0), size), min(max(end, 0), size)
            box.append((start, max(start, stop)))
        return tuple(box)


class ClassKey(NamedTuple):
    """What makes two GEMMs identical for the planner (repeated layers are one class with a multiplicity)."""

    shape: GemmShape
    phase: Phase
    a: tuple[Role, DType]
    b: tuple[Role, DType, float]
    out_dtype: DType
    window: ConvWindow | None
    repeats: int
    pinned: bool
    join: tuple[Join, tuple[int, ...]]
    chain: ChainForm | None
    rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """One matrix multiplication found in the model.

    ``name`` is unique in the workload; ``node`` is the ONNX node it came from; ``op`` its operator; ``level`` the
    longest-path depth in GEMMs (0 first); ``output`` the tensor that holds the result after biases and reshapes.
    ``repeats``: how often it runs in one batch, one time after the other (a Loop body, a recurrent step). ``pinned``: why it
    can only be computed on the server, as a part of its node ("" when devices may compute it). ``join`` and ``extents``:
    of a joined GEMM, the axis and the members' lengths along it; ``chain``: what a tile of a chain costs.
    ``rule``: names of the user's constraints that it is planned under ("" in a model).
    """

    name: str
    node: str
    op: str
    phase: Phase = Phase.FORWARD
    shape: GemmShape
    a: Operand
    b: Operand
    output: str
    out_dtype: DType
    level: int
    window: ConvWindow | None = None
    repeats: int = 1
    pinned: str = ""
    join: Join = Join.NONE
    extents: tuple[int, ...] = ()
    chain: ChainForm | None = None
    rule: str = ""

    @property
    def dtype(self) -> DType:
        """Element type of the A operand, which names the GEMM's arithmetic."""
        return self.a.dtype

    @property
    def macs(self) -> int:
        """Multiply-adds without bias, all repeats together."""
        return self.repeats * self.shape.macs

    @property
    def flop(self) -> int:
        """2 * MACs."""
        return 2 * self.macs

    @property
    def class_key(self) -> ClassKey:
        """The identity under which the planner shares one decision."""
        return ClassKey(
            self.shape, self.phase, (self.a.role, self.a.dtype), (self.b.role, self.b.dtype, self.b.scale_bits), self.out_dtype,
            self.window, self.repeats, bool(self.pinned), (self.join, self.extents), self.chain,
            self.rule,
        )  # fmt: skip

    @property
    def a_bytes(self) -> int:
        """Bytes of the A operand as it is stored (a convolution's input, not its im2col matrix); a chain's rows."""
        if self.chain is not None:
            return self.shape.batch * self.shape.m * self.chain.row_bytes
        if self.window is not None:
            return self.a.dtype.bytes_of(self.shape.batch * self.window.images * self.window.channels * prod(self.window.input))
        return self.a.dtype.bytes_of(self.shape.batch * self.shape.m * self.shape.k)

    @property
    def b_bytes(self) -> int:
        """Bytes of the B operand; what a chain sends once for each item."""
        if self.chain is not None:
            return self.shape.batch * self.chain.item_bytes
        return ceil(self.shape.batch * self.shape.k * self.shape.n * self.b.bits / 8)

    @property
    def out_bytes(self) -> int:
        """Bytes of the result in its storage type."""
        if self.chain is not None:
            return self.shape.batch * (self.shape.m * self.chain.out_row_bytes + self.chain.out_item_bytes)
        return self.out_dtype.bytes_of(self.shape.batch * self.shape.m * self.shape.n)
