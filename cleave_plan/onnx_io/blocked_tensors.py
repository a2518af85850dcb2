"""Which tensors of a run lie in blocks of channels: those that only convolutions by onnxruntime make and read.

A tensor does when

- a convolution without groups over two axes makes it, whose kernels are weights and whose tiles are on devices, and as many of
  its channels as make whole blocks; so do the other tensors of the same product;
- it is read by such convolutions only, as their images or as what their epilogue adds; and it is no output of the model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx

from cleave_plan.kernels.channel_blocks import PLAIN, Blocks
from cleave_plan.kernels.tile import Product
from cleave_plan.onnx_io.conv_kernel import takes
from cleave_plan.onnx_io.epilogues import Ending
from cleave_plan.onnx_io.importer import ImportedModel
from cleave_plan.onnx_io.matrix_work import STANDARD
from cleave_plan.onnx_io.views import reads
from cleave_plan.workload.gemm import Gemm


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConvProduct:
    """A product of convolutions (``nodes``) whose tiles are on devices, with their endings, if they have any."""

    product: Gemm
    nodes: Sequence[onnx.NodeProto]
    endings: Sequence[Ending]

    @property
    def outputs(self) -> tuple[str, ...]:
        """The tensors that it gives."""
        return tuple(each.output if isinstance(each, Ending) else each.output[0] for each in self.endings or self.nodes)

    @property
    def images(self) -> str:
        """The tensor that it reads."""
        name: str = self.nodes[0].input[0]
        return name

    @property
    def addend(self) -> str:
        """The tensor that its epilogue adds, "" for none."""
        return self.endings[0].addend if self.endings else ""

    def blocks(self, size: int, tensors: Collection[str]) -> Blocks:
        """Which of its arrays lie in blocks, where ``tensors`` do."""
        places = (self.images in tensors, self.addend in tensors, self.outputs[0] in tensors)
        return Blocks(size, *places) if any(places) else PLAIN


def blocked_tensors(
    imported: ImportedModel, products: Iterable[ConvProduct], weights: Mapping[str, object], size: int
) -> frozenset[str]:
    """The tensors that lie in blocks of ``size`` channels, if onnxruntime computes all of ``products`` that it can."""
    able = [own for own in products if _able(own, weights, size)]
    allowed = {node.output[0]: own.images for own in able for node in own.nodes}
    allowed |= {node.output[0]: own.addend for own in able for ending in own.endings for node in ending.nodes}
    # What is read between a convolution and the end of its epilogue never exists.
    within = {output for own in able for ending in own.endings for output in _before_its_end(ending)}
    elsewhere = {value.name for value in imported.model.graph.output}
    for node in imported.model.graph.node:
        names = reads(node)
        mine = allowed.get(node.output[0], "")
        elsewhere.update(name for name in names if name not in within and (name != mine or names.count(name) > 1))
    shapes = imported.tensor_shapes
    made = [own.outputs for own in able if all(shapes[node.output[0]][1] % size == 0 for node in own.nodes)]
    return frozenset(name for outputs in made if not elsewhere & set(outputs) for name in outputs)


def _able(own: ConvProduct, weights: Mapping[str, object], size: int) -> bool:
    """Whether onnxruntime may compute a product of images in blocks; its input's channels are whole ones, or fewer than one."""
    window = own.product.window
    standard = all(node.op_type == "Conv" and node.domain in STANDARD and node.input[1] in weights for node in own.nodes)
    if window is None or len(window.kernel) != 2 or own.product.shape.batch != 1 or not standard:
        return False
    return takes(Product.of(own.product)) and (window.channels < size or window.channels % size == 0)


def _before_its_end(ending: Ending) -> list[str]:
    """The tensors between a convolution and its last node."""
    return [name for name in (ending.node.output[0], *(node.output[0] for node in ending.nodes)) if name != ending.output]
