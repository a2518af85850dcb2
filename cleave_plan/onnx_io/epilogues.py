"""What follows a convolution and can be done tile by tile by whoever computes it: its bias, one Add, one Relu or Clip.

A node is taken along when nothing else reads the tensor before it. The other operand of an Add must be there before the
convolution's level begins, and of the same shape. Products of several convolutions that share an input have their bounds side
by side; where one of them has an Add, their biases alone. Floating point of 32 bits only, where sums are results as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import onnx

from cleave_plan.dtypes import DType
from cleave_plan.errors import ExecutionError
from cleave_plan.kernels.arrays import Array
from cleave_plan.kernels.epilogue import NOTHING_MORE, RELU, Epilogue
from cleave_plan.kernels.tile import Product
from cleave_plan.onnx_io.attributes import get_float
from cleave_plan.onnx_io.importer import ImportedModel
from cleave_plan.onnx_io.matrix_work import STANDARD
from cleave_plan.onnx_io.products import Operands, operands_of
from cleave_plan.onnx_io.refusal import Value
from cleave_plan.onnx_io.views import reads
from cleave_plan.workload.gemm import Gemm


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ending:
    """A convolution with what follows it: ``node`` is its node without a bias, ``output`` the tensor that it gives in the end.

    ``bias`` and ``addend`` are tensors, "" where there is none; ``nodes`` those that are done with it.
    """

    node: onnx.NodeProto
    bias: str
    output: str
    addend: str = ""
    nodes: tuple[onnx.NodeProto, ...] = ()
    epilogue: Epilogue = NOTHING_MORE

    @property
    def bias_alone(self) -> Ending:
        """The convolution with its bias and nothing else."""
        return Ending(node=self.node, bias=self.bias, output=self.node.output[0])


class EndingFinder:
    """Finds the endings of a model's convolutions.

    ``levels``: the level of each tensor that devices make; ``weights`` give bounds that are constant.
    """

    def __init__(self, imported: ImportedModel, levels: Mapping[str, int], weights: Mapping[str, Any]) -> None:
        graph = imported.model.graph
        self._imported, self._weights = imported, weights
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        self._made: dict[str, int] = {}  # the step after which a tensor is there: 2d of segment d, 2d + 1 of level d
        for index, node in enumerate(graph.node):
            for name in reads(node):
                self._readers.setdefault(name, []).append(node)
            for name in node.output:
                self._made[name] = 2 * levels[name] + 1 if name in levels else 2 * imported.depth.get(index, 0)
        self._outputs = {value.name for value in graph.output}

    def find(self, members: Sequence[Gemm]) -> tuple[Ending, ...]:
        """The endings of the convolutions of one product, with an Add only where it is one; none where there is nothing to do or
        it is no such product."""
        found = [self._follow(gemm) for gemm in members]
        if None in found:
            return ()
        endings = [ending for ending in found if ending is not None]
        if len(endings) > 1 and any(ending.addend for ending in endings):
            endings = [ending.bias_alone for ending in endings]
        return tuple(endings) if any(ending.bias or ending.nodes for ending in endings) else ()

    def _follow(self, gemm: Gemm) -> Ending | None:
        node = self._imported.nodes[gemm.name]
        floats = {gemm.a.dtype, gemm.b.dtype, gemm.out_dtype} == {DType.FLOAT32}
        if node.op_type != "Conv" or node.domain not in STANDARD or not floats or gemm.window is None:
            return None
        bare = onnx.NodeProto()
        bare.CopyFrom(node)
        del bare.input[2:]
        ending = Ending(node=bare, bias=node.input[2] if len(node.input) > 2 else "", output=node.output[0])
        ending = self._with_addend(ending, gemm.level)
        return self._with_bounds(ending)

    def _only_reader(self, tensor: str) -> onnx.NodeProto | None:
        """The node that alone reads a tensor, once."""
        readers = self._readers.get(tensor, [])
        return readers[0] if len(readers) == 1 and tensor not in self._outputs and readers[0].domain in STANDARD else None

    def _with_addend(self, ending: Ending, level: int) -> Ending:
        node = self._only_reader(ending.output)
        if node is None or node.op_type != "Add":
            return ending
        other = next((name for name in node.input if name != ending.output), ending.output)
        shapes, dtypes = self._imported.tensor_shapes, self._imported.tensor_dtypes
        alike = other in shapes and shapes[other] == shapes.get(ending.output) and dtypes.get(other) is DType.FLOAT32
        if not alike or self._made.get(other, -1) > 2 * level:
            return ending
        return replace(ending, addend=other, output=node.output[0], nodes=(node,))

    def _with_bounds(self, ending: Ending) -> Ending:
        node = self._only_reader(ending.output)
        bounds = None if node is None or node.input[0] != ending.output else self._bounds(node)
        if node is None or bounds is None:
            return ending
        return replace(ending, epilogue=bounds, output=node.output[0], nodes=(*ending.nodes, node))

    def _bounds(self, node: onnx.NodeProto) -> Epilogue | None:
        """What a node holds its input between; None where it does something else or the bounds are not constant."""
        if node.op_type == "Relu":
            return RELU
        if node.op_type != "Clip" or any(name and name not in self._weights for name in node.input[1:]):
            return None
        low, high = get_float(node, "min", -math.inf), get_float(node, "max", math.inf)
        given = [float(self._weights[name].reshape(())) if name else None for name in node.input[1:]] + [None, None]
        low, high = low if given[0] is None else given[0], high if given[1] is None else given[1]
        return None if math.isnan(low) or math.isnan(high) else Epilogue(low=low, high=high)


def ended_operands(
    product: Gemm,
    members: Sequence[Gemm],
    endings: Sequence[Ending],
    value: Callable[[str], Value],
    beside: Callable[[Sequence[Array], int], Array] = np.concatenate,
) -> Operands:
    """The operands of a product of convolutions and of its epilogue, as :func:`cleave_plan.onnx_io.products.operands_of` gives
    them.

    Raises ExecutionError also when a tensor of the epilogue has another shape in this run than the plan was made for.
    """
    ended = [replace(gemm, output=ending.output) for gemm, ending in zip(members, endings, strict=True)]
    nodes = {gemm.name: ending.node for gemm, ending in zip(members, endings, strict=True)}
    operands = operands_of(product, ended, nodes, value, beside)
    work = operands.work
    assert isinstance(work, Product), "convolutions are no chain"
    try:
        bias = _biases(endings, [gemm.shape.n for gemm in members], work.shape.batch, value)
        addend = np.asarray(value(endings[0].addend)).reshape(work.whole_shape) if endings[0].addend else None
    except ValueError as error:
        raise ExecutionError(
            f"what is added to its result has another shape in this run: {error}", where=f"GEMM {members[0].name!r}",
            remedy="plan with the shapes that the data really has",
        ) from None  # fmt: skip
    work = replace(work, epilogue=_side_by_side(endings, [gemm.shape.n for gemm in members]))
    return replace(operands, work=work, arrays=(*operands.arrays, bias, addend))


def _side_by_side(endings: Sequence[Ending], extents: Sequence[int]) -> Epilogue:
    """The epilogue of products with so many columns side by side."""
    own = [ending.epilogue for ending in endings]
    return own[0] if len(set(own)) == 1 else Epilogue(parts=tuple(zip(accumulate(extents), own, strict=True)))


def _biases(endings: Sequence[Ending], columns: Sequence[int], groups: int, value: Callable[[str], Value]) -> Array | None:
    """The biases side by side, [groups, N], zeros where one has none; None where none has one."""
    parts = [
        np.asarray(value(ending.bias)).reshape(groups, count) if ending.bias else np.zeros((groups, count), np.float32)
        for ending, count in zip(endings, columns, strict=True)
    ]
    if not any(ending.bias for ending in endings):
        return None
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
