"""Random GEMMs, devices, levels and plans for the property tests of this folder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from plan_cases import assigned, device, fleet_of, gemm_of, plan_of, server, workload_of

from cleave_plan.cost.tile import Tiles
from cleave_plan.dtypes import DType
from cleave_plan.fleet.device import Device, EfficiencyPoint, Fleet, Server
from cleave_plan.plan.plan import Assignment, Mode, Plan
from cleave_plan.workload.gemm import ConvWindow, Gemm, GemmShape, Operand, Role
from cleave_plan.workload.graph import Workload

POSITIVE = st.floats(0.5, 1e4)
DTYPES = st.sampled_from([DType.FLOAT32, DType.FLOAT16, DType.FLOAT64, DType.INT8, DType.INT4])
CURVE = (
    EfficiencyPoint(flop=30, fraction=0.2),
    EfficiencyPoint(flop=900, fraction=0.7),
    EfficiencyPoint(flop=9e4, fraction=1),
)


@st.composite
def windows(draw: st.DrawFn) -> ConvWindow:
    """Convolutions of one to three axes, padded and dilated."""
    axes = []
    for _ in range(draw(st.integers(1, 3))):
        kernel, stride, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
        reach = (kernel - 1) * dilation + 1
        size, pad = draw(st.integers(1, 6)), draw(st.integers(0, 2))
        output = (max(size + 2 * pad, reach) - reach) // stride + 1
        axes.append((size, output, kernel, stride, dilation, pad))
    sizes, outputs, kernels, strides, dilations, pads = (tuple(column) for column in zip(*axes, strict=True))
    return ConvWindow(
        images=draw(st.integers(1, 3)), channels=draw(st.integers(1, 3)), input=sizes, output=outputs, kernel=kernels,
        strides=strides, dilations=dilations, pads=pads,
    )  # fmt: skip


@st.composite
def random_gemms(draw: st.DrawFn, name: str = "g", level: int = 0) -> Gemm:
    """A GEMM or a convolution of any element types, its B a parameter or an activation."""
    window = draw(st.one_of(st.none(), windows()))
    if window is None:
        shape = GemmShape(*(draw(st.integers(1, 30)) for _ in range(4)))
    else:
        depth = window.channels * math.prod(window.kernel)
        shape = GemmShape(draw(st.integers(1, 3)), window.images * window.rows_per_image, depth, draw(st.integers(1, 20)))
    a = Operand(tensor=f"{name}.a", role=Role.ACTIVATION, dtype=draw(DTYPES))
    b = Operand(tensor=f"{name}.b", role=draw(st.sampled_from([Role.ACTIVATION, Role.PARAMETER])), dtype=draw(DTYPES))
    return gemm_of(name, tuple(shape), level, a=a, b=b, out_dtype=draw(DTYPES), window=window)


@st.composite
def random_devices(draw: st.DrawFn, least: int = 1, most: int = 3) -> list[Device]:
    """Unequal devices, some with a curve and some short of memory."""
    return [
        device(
            f"d{place}", flop_per_s={"any": draw(POSITIVE)}, downlink_bytes_per_s=draw(POSITIVE),
            uplink_bytes_per_s=draw(POSITIVE), latency_s=draw(st.floats(0, 2)), memory_bytes=draw(POSITIVE),
            efficiency=draw(st.sampled_from([(), CURVE, CURVE[:2]])),
        )
        for place in range(draw(st.integers(least, most)))
    ]  # fmt: skip


@st.composite
def random_servers(draw: st.DrawFn) -> list[Server]:
    """One to three unequal servers, s0 first."""
    return [
        server(
            f"s{place}", flop_per_s={"any": draw(POSITIVE)}, memory_bandwidth_bytes_per_s=draw(POSITIVE),
            egress_bytes_per_s=draw(POSITIVE), ingress_bytes_per_s=draw(POSITIVE),
        )
        for place in range(draw(st.integers(1, 3)))
    ]  # fmt: skip


@st.composite
def random_boxes(draw: st.DrawFn, shape: GemmShape, devices: int) -> Tiles:
    """Boxes anywhere inside the GEMM, which need not cover it, on devices or (index ``devices``) on the server."""
    rows = []
    for _ in range(draw(st.integers(1, 5))):
        box: list[int] = []
        for size in (shape.m, shape.n, shape.k, shape.batch):
            low = draw(st.integers(0, size - 1))
            box += [low, draw(st.integers(low + 1, size))]
        rows.append((draw(st.integers(0, devices)), *box))
    return Tiles.of(rows)


@st.composite
def random_levels(draw: st.DrawFn) -> tuple[Workload, list[Assignment], Fleet]:
    """GEMMs in levels with boxes on devices and servers, striped over servers or whole on one: priced, never run."""
    devices, servers = draw(random_devices()), draw(random_servers())
    names = [member.name for member in servers]
    gemms, assignments = [], []
    for place in range(draw(st.integers(1, 4))):
        gemm = draw(random_gemms(f"g{place}", draw(st.integers(0, place))))
        gemms.append(gemm)
        if draw(st.integers(0, 4)) == 0:
            changes = _on_one(draw(st.sampled_from(names)))
            assignments.append(assigned([gemm.name], [], mode=Mode.SERVER, **changes))
        else:
            tiles = draw(random_boxes(gemm.shape, len(devices)))
            assignments.append(assigned([gemm.name], tiles, **_striped(draw, names)))
    return workload_of(gemms), assignments, fleet_of(devices, servers)


@st.composite
def random_cases(draw: st.DrawFn) -> tuple[Plan, Workload, Fleet]:
    """Plans that hold: random GEMMs in levels, cut along every axis at random, on random devices and servers."""
    positive = st.floats(1.0, 1e3)
    devices = [
        device(
            f"d{i}", flop_per_s={"any": draw(positive)}, downlink_bytes_per_s=draw(positive),
            uplink_bytes_per_s=draw(positive),
        )
        for i in range(draw(st.integers(1, 4)))
    ]  # fmt: skip
    servers = draw(random_servers())
    names = [member.name for member in servers]
    gemms, assignments = [], []
    for place in range(draw(st.integers(1, 4))):
        batch, m, k, n = (draw(st.integers(1, 6)) for _ in range(4))
        gemms.append(gemm_of(f"g{place}", (batch, m, k, n), draw(st.integers(0, place))))
        if draw(st.booleans()):
            assignments.append(assigned([f"g{place}"], [], mode=Mode.SERVER, **_on_one(draw(st.sampled_from(names)))))
            continue
        rows = [(draw(st.integers(0, len(devices))), *box) for box in _cut(draw, (m, n, k, batch))]
        assignments.append(assigned([f"g{place}"], rows, **_striped(draw, names)))
    workload, fleet = workload_of(gemms), fleet_of(devices, servers)
    return plan_of(workload, fleet, assignments), workload, fleet


def _cut(draw: st.DrawFn, sizes: tuple[int, int, int, int]) -> list[tuple[int, ...]]:
    """An exact cover of m x n x k x batch by boxes: the last one is halved again and again."""
    m, n, k, batch = sizes
    boxes: list[tuple[int, ...]] = [(0, m, 0, n, 0, k, 0, batch)]
    for axis in draw(st.lists(st.integers(0, 3), max_size=4)):
        box = boxes.pop()
        low, high = box[2 * axis : 2 * axis + 2]
        middle = draw(st.integers(low, high))
        parts = [(low, middle), (middle, high)]
        boxes += [(*box[: 2 * axis], *part, *box[2 * axis + 2 :]) for part in parts if part[0] < part[1]]
    return boxes


def _on_one(name: str) -> dict[str, Any]:
    return {"server": name, "servers": (name,), "shares": (1.0,)}


def _striped(draw: st.DrawFn, names: Sequence[str]) -> dict[str, Any]:
    holders = draw(st.permutations(names))[: draw(st.integers(1, len(names)))]
    weights = [draw(st.integers(1, 5)) for _ in holders]
    return {"server": holders[0], "servers": tuple(holders), "shares": tuple(weight / sum(weights) for weight in weights)}
