"""Convolutions in any number of dimensions, with groups, strides, dilations and every padding.

With u an input position, v an output position and t a kernel position on one axis, u = v·stride + t·dilation - begin. Three
products share this: the convolution (over u to v), its transpose (over v to u), and the kernel's gradient (over images and v to
t), which is a convolution of the input with the output's gradient as its kernel, stride and dilation having changed places.

Sizes of the spatial axes must be known; the number of images need not be.
"""

from __future__ import annotations

from dataclasses import dataclass

from cleave_plan.onnx_io.convolution import Convolution
from cleave_plan.onnx_io.gradient.rule import NoRuleError, Op, Partials, gradient_of
from cleave_plan.onnx_io.gradient.tensor import Tensor
from cleave_plan.onnx_io.rules.transposed import Placement


def spatial(tensor: Tensor) -> tuple[int, ...]:
    """Sizes of all axes but images and channels; raises NoRuleError when one is not known."""
    shape = tensor.shape or ()
    sizes = tuple(size for size in shape[2:] if isinstance(size, int))
    if len(sizes) != len(shape) - 2 or not sizes:
        raise NoRuleError("the sizes of spatial axes must be known: bind them with --dim or --shape")
    return sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Geometry:
    """One convolution: sizes of its input (u), output (v) and kernel (t), in order of the spatial axes."""

    groups: int
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    kernel: tuple[int, ...]

    def end(self) -> list[int]:
        """Padding behind the input that the last kernel position of the last output reaches; below 0 where it falls short."""
        return [
            (v - 1) * stride + (t - 1) * dilation + 1 - u - begin
            for u, v, t, stride, dilation, begin in zip(
                self.inputs, self.outputs, self.kernel, self.strides, self.dilations, self.begin, strict=True
            )
        ]

    def convolve(self, x: Tensor, w: Tensor, phase: str) -> Tensor:
        """From ``x [N, C, *u]`` by ``w [O, C/groups, *t]`` to ``[N, O, *v]``."""
        x, ends = self._cropped(x)
        return x.op(
            "Conv", w, group=self.groups, strides=self.strides, dilations=self.dilations, pads=[*self.begin, *ends], phase=phase
        )

    def spread(self, y: Tensor, w: Tensor, phase: str) -> Tensor:
        """The transpose of :meth:`convolve`: from ``y [N, O, *v]`` to ``[N, C, *u]``."""
        ends = self.end()
        return y.op(
            "ConvTranspose", w, group=self.groups, strides=self.strides, dilations=self.dilations,
            pads=[*self.begin, *(max(end, 0) for end in ends)], output_padding=[max(-end, 0) for end in ends], phase=phase,
        )  # fmt: skip

    def kernel_gradient(self, x: Tensor, dy: Tensor, phase: str) -> Tensor:
        """``[O, C/groups, *t]`` from ``x [N, C, *u]`` and ``dy [N, O, *v]``.

        Images become channels: group g convolves its channels of all images, [C/groups, N, *u], with its kernels
        [O/groups, N, *v].
        """
        x, ends = self._cropped(x)
        axes = range(2, 2 + len(self.kernel))
        if self.groups == 1:
            images, kernels = x.transpose(1, 0, *axes), dy.transpose(1, 0, *axes)
        else:
            images = self._by_group(x).transpose(2, 1, 0, *(axis + 1 for axis in axes))
            images = images.op("Reshape", x.ints(0, -1, *self._sizes_of(x)))
            kernels = self._by_group(dy).transpose(1, 2, 0, *(axis + 1 for axis in axes))
            channels = self._channels(dy)
            kernels = kernels.op("Reshape", x.ints(channels, -1, *self.outputs))
        found = images.op(
            "Conv", kernels, group=self.groups, strides=self.dilations, dilations=self.strides, pads=[*self.begin, *ends],
            phase=phase,
        )  # fmt: skip
        return found.transpose(1, 0, *axes)

    def _cropped(self, x: Tensor) -> tuple[Tensor, list[int]]:
        """``x`` without what no output reads, and the padding behind it."""
        ends = self.end()
        if min(ends) < 0:
            stops = [u + min(end, 0) for u, end in zip(self.inputs, ends, strict=True)]
            axes = range(2, 2 + len(ends))
            x = x.op("Slice", x.ints(*[0] * len(ends)), x.ints(*stops), x.ints(*axes))
        return x, [max(end, 0) for end in ends]

    def _by_group(self, tensor: Tensor) -> Tensor:
        """``[N, groups * c, ...]`` as ``[N, groups, c, ...]``."""
        return tensor.op("Reshape", tensor.ints(0, self.groups, -1, *self._sizes_of(tensor)))

    @staticmethod
    def _sizes_of(tensor: Tensor) -> tuple[int, ...]:
        return spatial(tensor)

    @staticmethod
    def _channels(tensor: Tensor) -> int:
        channels = (tensor.shape or (None, None))[1]
        if not isinstance(channels, int):
            raise NoRuleError("the number of channels must be known")
        return channels


@gradient_of("Conv")
def conv(op: Op) -> Partials:
    """Y = X * W + B: dX = the transposed convolution of dY by W, dW = X * dY over the images, dB = Σ dY."""
    x, w, dy = op.x(0), op.x(1), op.dy
    convolution = Convolution.of(op.node, len(spatial(x)))
    begin = tuple(
        convolution.axis(axis, size, kernel)[1] for axis, (size, kernel) in enumerate(zip(spatial(x), spatial(w), strict=True))
    )
    geometry = _Geometry(
        groups=convolution.groups, strides=convolution.strides, dilations=convolution.dilations, begin=begin, inputs=spatial(x),
        outputs=spatial(op.y()), kernel=spatial(w),
    )  # fmt: skip
    return {
        0: lambda: geometry.spread(dy, w, op.phase(0)),
        1: lambda: geometry.kernel_gradient(x, dy, op.phase(1)),
        2: lambda: dy.sum(0, *range(2, dy.rank), keep=False),
    }


@gradient_of("ConvTranspose")
def conv_transpose(op: Op) -> Partials:
    """Y is the transposed convolution of X by W, plus B: dX = dY * W, dW = dY * X over the images, dB = Σ dY."""
    x, w, dy = op.x(0), op.x(1), op.dy
    convolution = Convolution.of(op.node, len(spatial(x)))
    placed = Placement.of(op.node, spatial(x), spatial(w))
    geometry = _Geometry(
        groups=convolution.groups, strides=convolution.strides, dilations=convolution.dilations, begin=placed.begin,
        inputs=placed.output, outputs=spatial(x), kernel=spatial(w),
    )  # fmt: skip
    return {
        0: lambda: geometry.convolve(dy, w, op.phase(0)),
        1: lambda: geometry.kernel_gradient(dy, x, op.phase(1)),
        2: lambda: dy.sum(0, *range(2, dy.rank), keep=False),
    }
