"""A whole model as the planner sees it: GEMMs in levels, the operators between them, parameters and live memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from cleave_plan.workload.chain import ChainForm
from cleave_plan.workload.gemm import ClassKey, Gemm, GemmShape, Phase
from cleave_plan.workload.recompute import Recomputed


class ServerOperator(NamedTuple):
    """A node that runs on the server; a tuple, because a large model has a hundred thousand.

    ``level`` is the level that it precedes (``len(workload.levels)`` for what follows the last level);
    ``bytes`` are the bytes it reads and writes, None when a shape is unknown; ``domain`` is "" for standard ONNX.
    ``gemm_like`` marks an operator that holds matrix work that no rule counts (it is listed, never counted as 0).
    """

    name: str
    op: str
    level: int
    bytes: int | None
    domain: str = ""
    gemm_like: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownWork:
    """Matrix work of a recognised place in the model that cannot be counted before a run, and ``reason``, why not.

    ``name`` is the node's (inside a body: its path); it runs on the server.
    """

    name: str
    op: str
    domain: str = ""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """GEMMs of one longest-path depth; ``gemms`` are indices into ``Workload.gemms``.

    ``live_bytes``: activations that are alive on the server while the level runs (None when unknown).
    """

    index: int
    gemms: tuple[int, ...]
    live_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """GEMMs that one tile can compute together, one feeding the other (:mod:`cleave_plan.workload.chain`).

    ``gemms`` and ``operators``: names of the GEMMs and of the server operators that it takes in. ``level``: the one that it
    runs in, when all that it reads is there; its GEMMs leave theirs. ``shape`` and ``form`` are those of its product.
    ``constant_bytes``: masks that depend on no input; a device is sent them once, when it starts, and not for each batch.
    ``learned``: whether what the operators add depends on parameters (a learned position bias), so that it changes from
    step to step and needs a gradient of its own: training then leaves its GEMMs alone.
    """

    name: str
    gemms: tuple[str, ...]
    operators: tuple[str, ...]
    level: int
    shape: GemmShape
    form: ChainForm
    constant_bytes: int = 0
    learned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """A graph input or output: name, ONNX element type name and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The work of one batch of a model.

    ``sha256`` is of the model file (weights beside it not included); ``dims`` are the symbolic dimensions as bound;
    ``shapes`` the input shapes and ``trips`` the trip counts of Loops as bound; ``parameters`` maps each weight tensor to its
    bytes (tied weights once). ``chains`` are GEMMs that can be computed as one, none being in two. ``training``: a whole
    training step, backward GEMMs included, not only a forward pass. ``unknown`` is work that ``gemm_macs`` lacks because its
    size or its number of runs is not known: listed, never counted as 0. ``notes`` are sentences that a user must see
    (assumptions, operators that were not recognised). ``recompute``: what computing forward values again changes in a training
    step; None where it was not asked for.
    """

    name: str
    sha256: str
    gemms: tuple[Gemm, ...]
    levels: tuple[Level, ...]
    server_operators: tuple[ServerOperator, ...]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    parameters: Mapping[str, int]
    parameter_elements: int
    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    weights_present: bool = True
    notes: tuple[str, ...] = ()
    chains: tuple[Chain, ...] = ()
    training: bool = False
    trips: Mapping[str, int] = field(default_factory=dict)
    unknown: tuple[UnknownWork, ...] = ()
    recompute: Recomputed | None = None

    @property
    def gemm_macs(self) -> int:
        """Multiply-adds of all GEMMs."""
        return sum(gemm.macs for gemm in self.gemms)

    @property
    def gemm_flop(self) -> int:
        """2 * MACs."""
        return 2 * self.gemm_macs

    @property
    def has_backward(self) -> bool:
        """Whether the model itself computes gradients (a gradient file)."""
        return any(gemm.phase is not Phase.FORWARD for gemm in self.gemms)

    @property
    def unrecognised(self) -> tuple[ServerOperator, ...]:
        """Server operators with matrix work inside that is not counted in ``gemm_macs``."""
        return tuple(operator for operator in self.server_operators if operator.gemm_like)

    @property
    def tokens(self) -> int | None:
        """Tokens that one batch adds, one for each sequence, where the model is a decoding step: an integer input of one
        column beside inputs called ``past...`` that hold a cache. None for any other model."""
        if not any(tensor.name.startswith(("past", "cache")) for tensor in self.inputs):
            return None
        columns = [tensor.shape for tensor in self.inputs if tensor.dtype in ("int64", "int32") and len(tensor.shape) == 2]
        return columns[0][0] if columns and columns[0][1] == 1 else None

    def classes(self) -> dict[ClassKey, tuple[Gemm, ...]]:
        """Identical GEMMs together, in order of first appearance."""
        groups: dict[ClassKey, list[Gemm]] = {}
        for gemm in self.gemms:
            groups.setdefault(gemm.class_key, []).append(gemm)
        return {key: tuple(members) for key, members in groups.items()}
