"""Small devices, servers, GEMMs and workloads for the tests of this folder, and random ones for its property tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from cleave_plan.dtypes import DType
from cleave_plan.fleet.device import Device, EfficiencyPoint, Fleet, Server
from cleave_plan.fleet.identity import make_fleet
from cleave_plan.workload.gemm import ConvWindow, Gemm, GemmShape, Operand, Role
from cleave_plan.workload.graph import Level, ServerOperator, Workload

CURVE = (
    EfficiencyPoint(flop=20, fraction=0.3),
    EfficiencyPoint(flop=400, fraction=0.6),
    EfficiencyPoint(flop=1e5, fraction=1.0),
)
"""A measured curve whose points lie among the FLOP of tiny tiles."""


def device(name: str, **changes: Any) -> Device:
    """1,000 FLOP/s, 100 B/s down, 50 B/s up, no latency, 1 MB."""
    figures: dict[str, Any] = {
        "flop_per_s": {"any": 1e3}, "downlink_bytes_per_s": 100.0, "uplink_bytes_per_s": 50.0, "latency_s": 0.0,
        "memory_bytes": 1e6,
    }  # fmt: skip
    return Device(name=name, **(figures | changes))


def server(name: str = "s0", **changes: Any) -> Server:
    """1,000 FLOP/s, 10 kB/s memory bandwidth, links without limit, 1 GB."""
    figures: dict[str, Any] = {
        "flop_per_s": {"any": 1e3}, "memory_bytes": 1e9, "memory_bandwidth_bytes_per_s": 1e4,
        "egress_bytes_per_s": math.inf, "ingress_bytes_per_s": math.inf,
    }  # fmt: skip
    return Server(name=name, **(figures | changes))


def fleet_of(devices: Sequence[Device], servers: Sequence[Server] | None = None) -> Fleet:
    """``devices`` around ``servers`` (default: one)."""
    return make_fleet("home", [server()] if servers is None else servers, devices)


def gemm_of(name: str, shape: tuple[int, int, int, int], level: int = 0, **changes: Any) -> Gemm:
    """A float32 MatMul of an activation and the parameter ``NAME.weight``; ``shape`` is (batch, m, k, n)."""
    dtype = changes.pop("dtype", DType.FLOAT32)
    parts: dict[str, Any] = {
        "a": Operand(tensor=f"{name}.in", role=Role.ACTIVATION, dtype=dtype),
        "b": Operand(tensor=f"{name}.weight", role=Role.PARAMETER, dtype=dtype),
        "out_dtype": dtype,
    }
    return Gemm(
        name=name, node=name, op="MatMul", shape=GemmShape(*shape), output=f"{name}.out", level=level, **(parts | changes)
    )


def conv_of(name: str, window: ConvWindow, filters: int, level: int = 0, groups: int = 1, **changes: Any) -> Gemm:
    """A convolution as a GEMM: rows are output positions of all images, K is channels x kernel positions."""
    shape = (groups, window.images * window.rows_per_image, window.channels * math.prod(window.kernel), filters)
    return gemm_of(name, shape, level, window=window, **changes)


def window_of(axes: Sequence[tuple[int, int, int, int, int]], *, images: int = 1, channels: int = 1) -> ConvWindow:
    """A window from one ``(input, kernel, stride, dilation, pad at both ends)`` for each axis."""
    inputs, kernels, strides, dilations, pads = (tuple(column) for column in zip(*axes, strict=True))
    outputs = tuple((size + 2 * pad - (kernel - 1) * dilation - 1) // stride + 1 for size, kernel, stride, dilation, pad in axes)
    return ConvWindow(
        images=images, channels=channels, input=inputs, output=outputs, kernel=kernels, strides=strides, dilations=dilations,
        pads=pads,
    )  # fmt: skip


def workload_of(gemms: Sequence[Gemm], **changes: Any) -> Workload:
    """Levels as the GEMMs say; no operators, no live activations unless ``changes`` says otherwise."""
    depth = 1 + max((gemm.level for gemm in gemms), default=-1)
    levels = tuple(
        Level(index=index, gemms=tuple(i for i, gemm in enumerate(gemms) if gemm.level == index), live_bytes=0)
        for index in range(depth)
    )
    parameters = {gemm.b.tensor: gemm.b_bytes for gemm in gemms if gemm.b.role is Role.PARAMETER}
    operators: tuple[ServerOperator, ...] = ()
    parts: dict[str, Any] = {
        "name": "toy", "sha256": "a" * 64, "gemms": tuple(gemms), "levels": levels, "server_operators": operators,
        "inputs": (), "outputs": (), "parameters": parameters, "parameter_elements": 0,
    }  # fmt: skip
    return Workload(**(parts | changes))


def spread(rng: np.random.Generator, low: float, high: float) -> float:
    """A number between ``low`` and ``high``, its logarithm uniform."""
    return float(np.exp(rng.uniform(math.log(low), math.log(high))))
