"""A device, a server and GEMMs with round figures for the tests of this folder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cleave_plan.dtypes import DType
from cleave_plan.fleet.device import Device, Fleet, Server
from cleave_plan.workload.gemm import ConvWindow, Gemm, GemmShape, Operand, Role


def device(name: str = "d0", **changes: Any) -> Device:
    """1,000 FLOP/s, 100 B/s down, 10 B/s up, half a second of latency, 10 kB."""
    figures: dict[str, Any] = {
        "flop_per_s": {"any": 1000.0}, "downlink_bytes_per_s": 100.0, "uplink_bytes_per_s": 10.0, "latency_s": 0.5,
        "memory_bytes": 10_000.0,
    }  # fmt: skip
    return Device(name=name, **(figures | changes))


def server(name: str = "s0", **changes: Any) -> Server:
    """500 FLOP/s, 80 B/s memory bandwidth, 40 B/s out, 20 B/s in, 1 MB."""
    figures: dict[str, Any] = {
        "flop_per_s": {"any": 500.0}, "memory_bytes": 1e6, "memory_bandwidth_bytes_per_s": 80.0, "egress_bytes_per_s": 40.0,
        "ingress_bytes_per_s": 20.0,
    }  # fmt: skip
    return Server(name=name, **(figures | changes))


def fleet_of(devices: Sequence[Device], servers: Sequence[Server]) -> Fleet:
    return Fleet(name="home", devices=tuple(devices), servers=tuple(servers))


def gemm_of(shape: tuple[int, int, int, int], **changes: Any) -> Gemm:
    """A MatMul of an activation and a parameter, float32 unless ``dtype`` says otherwise; ``shape`` is (batch, m, k, n)."""
    dtype = changes.pop("dtype", DType.FLOAT32)
    parts: dict[str, Any] = {
        "a": Operand(tensor="x", role=Role.ACTIVATION, dtype=dtype), "b": Operand(tensor="w", role=Role.PARAMETER, dtype=dtype),
        "out_dtype": dtype,
    }  # fmt: skip
    return Gemm(name="g", node="g", op="MatMul", shape=GemmShape(*shape), output="y", level=0, **(parts | changes))


def window_of(axes: Sequence[tuple[int, int, int, int, int]], *, images: int = 1, channels: int = 1) -> ConvWindow:
    """A window from one ``(input, kernel, stride, dilation, pad at both ends)`` for each axis."""
    inputs, kernels, strides, dilations, pads = (tuple(column) for column in zip(*axes, strict=True))
    outputs = tuple((size + 2 * pad - (kernel - 1) * dilation - 1) // stride + 1 for size, kernel, stride, dilation, pad in axes)
    return ConvWindow(
        images=images, channels=channels, input=inputs, output=outputs, kernel=kernels, strides=strides, dilations=dilations,
        pads=pads,
    )  # fmt: skip


def conv_of(window: ConvWindow, filters: int, *, groups: int = 1, **changes: Any) -> Gemm:
    """A convolution as a GEMM: rows are output positions of all images, K is channels x kernel positions."""
    shape = (groups, window.images * window.rows_per_image, window.channels * math.prod(window.kernel), filters)
    return gemm_of(shape, window=window, **changes)
