"""What the search for chains knows of a graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from cleave_plan.dtypes import DType
from cleave_plan.onnx_io.constants import RANDOM
from cleave_plan.onnx_io.levels import Schedule
from cleave_plan.onnx_io.views import NodeView
from cleave_plan.workload.gemm import Gemm


class NoChainError(Exception):
    """Operators are no chain: one mixes rows, or a size or type that is needed is not known."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Surroundings:
    """The ``nodes`` of a graph and its ``outputs``, with the shapes and types of its tensors.

    By the nodes' indices: ``products`` hold matrix work, ``gemms`` one GEMM each, ``moved`` are the bytes that server operators
    move, ``names`` the nodes' names; ``readers`` and ``producer`` of tensors. ``fixed`` tensors are the same in every run,
    ``learned`` ones depend on parameters.
    """

    nodes: Sequence[NodeView]
    outputs: Collection[str]
    schedule: Schedule
    shapes: Mapping[str, tuple[int, ...] | None]
    dtypes: Mapping[str, DType]
    products: Collection[int]
    gemms: Mapping[int, Gemm]
    moved: Mapping[int, int | None]
    names: Sequence[str]
    fixed: Collection[str]
    learned: Collection[str]
    opset: int
    readers: dict[str, list[int]] = field(default_factory=dict)
    producer: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for index, view in enumerate(self.nodes):
            for name in view.reads:
                if name in self.readers:
                    self.readers[name].append(index)
                else:
                    self.readers[name] = [index]
            for name in view.made:
                self.producer[name] = index

    def ready(self, tensor: str) -> int:
        """The first level that can read ``tensor``."""
        index = self.producer.get(tensor)
        return 0 if index is None else self.schedule.depth[index] + (index in self.products)

    def known_shape(self, tensor: str) -> tuple[int, ...]:
        """The shape of ``tensor``; raises NoChainError."""
        shape = self.shapes.get(tensor)
        if shape is None:
            raise NoChainError(tensor)
        return shape

    def known_dtype(self, tensor: str) -> DType:
        """The element type of ``tensor``; raises NoChainError."""
        if tensor not in self.dtypes:
            raise NoChainError(tensor)
        return self.dtypes[tensor]


def fixed_tensors(
    nodes: Sequence[NodeView], constants: Collection[str], shapes: Mapping[str, tuple[int, ...] | None]
) -> set[str]:
    """Tensors that are the same in every run with these sizes: constants, shapes, and what only they determine."""
    fixed = set(constants)
    for view in nodes:
        if (view.op in ("Shape", "Size") and all(shapes.get(name) is not None for name in view.reads)) or (
            view.reads and fixed.issuperset(view.reads) and view.op not in RANDOM
        ):
            fixed.update(view.made)
    return fixed
