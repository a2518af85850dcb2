"""The geometry of convolutions: kernel, strides, dilations and the paddings that auto_pad stands for."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from cleave_plan.onnx_io.attributes import get_int, get_ints, get_string
from cleave_plan.onnx_io.facts import Dim, ShapeContradictionError


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """Attributes of a Conv node for a number of spatial axes, defaults filled in; tuples have one entry per axis."""

    groups: int
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    auto_pad: str

    @classmethod
    def of(cls, node: onnx.NodeProto, axes: int) -> Convolution:
        """Read the attributes; raises ShapeContradictionError when one has a wrong length or a value that cannot be."""
        ones, zeros = (1,) * axes, (0,) * (2 * axes)
        strides = get_ints(node, "strides", ones) or ones
        dilations = get_ints(node, "dilations", ones) or ones
        pads = get_ints(node, "pads", zeros) or zeros
        groups = get_int(node, "group", 1)
        if len(strides) != axes or len(dilations) != axes or len(pads) != 2 * axes:
            raise ShapeContradictionError(
                f"strides {strides}, dilations {dilations} and pads {pads} are not for {axes} spatial axes"
            )
        if min(strides + dilations, default=1) < 1 or groups < 1:
            raise ShapeContradictionError(f"strides {strides}, dilations {dilations} and group {groups} must be 1 or more")
        auto_pad = get_string(node, "auto_pad", "NOTSET") or "NOTSET"
        if auto_pad not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
            raise ShapeContradictionError(f"auto_pad {auto_pad!r} is not one of NOTSET, VALID, SAME_UPPER, SAME_LOWER")
        if auto_pad == "VALID":
            pads = zeros
        return cls(
            groups=groups, strides=strides, dilations=dilations, begin=pads[:axes], end=pads[axes:], auto_pad=auto_pad
        )  # fmt: skip

    def axis(self, axis: int, size: Dim, kernel: Dim) -> tuple[Dim, int]:
        """``(output size, padding at the begin)`` of one axis; the size is None when it depends on an unknown.

        SAME_*: the output is ceil(size / stride) and the padding follows, counted with the dilated kernel, the odd
        element at the end (UPPER) or the begin (LOWER). Raises ShapeContradictionError when the kernel does not fit.
        """
        stride = self.strides[axis]
        if not isinstance(size, int) or not isinstance(kernel, int):
            same = self.auto_pad.startswith("SAME") and stride == 1
            return (size if same else None), self.begin[axis]
        reach = (kernel - 1) * self.dilations[axis] + 1
        if not self.auto_pad.startswith("SAME"):
            room = size + self.begin[axis] + self.end[axis] - reach
            if room < 0 < size:
                raise ShapeContradictionError(
                    f"a kernel that spans {reach} does not fit an input of size {size} with its padding"
                )
            return max(0, room // stride + 1), self.begin[axis]
        output = -(-size // stride)
        padding = max(0, (output - 1) * stride + reach - size)
        return output, padding // 2 if self.auto_pad == "SAME_UPPER" else padding - padding // 2

    def output(self, sizes: tuple[Dim, ...], kernel: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Output sizes of all axes."""
        return tuple(self.axis(axis, size, kernel[axis])[0] for axis, size in enumerate(sizes))
