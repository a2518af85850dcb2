"""Random GEMMs, convolutions and exact tilings for Hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from cleave_plan.dtypes import DType
from cleave_plan.kernels.tile import Box, Product
from cleave_plan.workload.gemm import ConvWindow, Gemm, GemmShape, Operand, Role

Range = tuple[int, int]


@st.composite
def exact_tilings(draw: st.DrawFn, shape: GemmShape, *, inner: bool = True) -> list[Box]:
    """Boxes that cover ``shape`` once: random guillotine cuts along any axis (K only with ``inner``)."""
    axes = ["m", "n", "batch", *(["k"] if inner else [])]
    boxes = [{"m": (0, shape.m), "n": (0, shape.n), "k": (0, shape.k), "batch": (0, shape.batch)}]
    for _ in range(draw(st.integers(0, 6))):
        place = draw(st.integers(0, len(boxes) - 1))
        axis = draw(st.sampled_from(axes))
        start, stop = boxes[place][axis]
        if stop - start >= 2:
            middle = draw(st.integers(start + 1, stop - 1))
            box = boxes.pop(place)
            boxes += [{**box, axis: (start, middle)}, {**box, axis: (middle, stop)}]
    return [Box(*box["m"], *box["n"], *box["k"], *box["batch"]) for box in boxes]


@st.composite
def windows(draw: st.DrawFn) -> tuple[ConvWindow, int]:
    """A convolution's window (1 to 3 axes) and its number of groups."""
    axes = draw(st.integers(1, 3))
    side: dict[str, list[int]] = {name: [] for name in ("input", "output", "kernel", "strides", "dilations", "pads")}
    for _ in range(axes):
        kernel, stride, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
        reach = (kernel - 1) * dilation + 1
        begin, end = draw(st.integers(0, 3)), draw(st.integers(0, 3))
        size = draw(st.integers(max(1, reach - begin - end), 7))
        values = (size, (size + begin + end - reach) // stride + 1, kernel, stride, dilation, begin)
        for name, value in zip(side, values, strict=True):
            side[name].append(value)
    window = ConvWindow(
        images=draw(st.integers(1, 4)), channels=draw(st.integers(1, 2)), **{name: tuple(v) for name, v in side.items()}
    )
    return window, draw(st.integers(1, 3))


def gemm_of(
    shape: GemmShape,
    *,
    dtype: DType = DType.FLOAT32,
    out_dtype: DType | None = None,
    window: ConvWindow | None = None,
    name: str = "g",
) -> Gemm:
    """A Gemm value with operands ``x`` and ``w``."""
    return Gemm(
        name=name, node=name, op="MatMul" if window is None else "Conv", shape=shape,
        a=Operand(tensor="x", role=Role.ACTIVATION, dtype=dtype), b=Operand(tensor="w", role=Role.PARAMETER, dtype=dtype),
        output="y", out_dtype=out_dtype or dtype, level=0, window=window,
    )  # fmt: skip


def product_of(shape: GemmShape, **options: object) -> Product:
    """The Product of :func:`gemm_of`."""
    return Product.of(gemm_of(shape, **options))  # type: ignore[arg-type]
