r"""Rivals around a server: the paper's formulation for each GEMM apart, a single server, and a cloud of GPUs.

*2-D per GEMM* (the formulation in the paper's public code, planning for each GEMM apart): rows and columns cut, K never, no
chains, nothing joined, no memory limit, no latency. Its optimum is at least the area bound of each GEMM, which is what it is
taken at:

    T = sum over GEMMs of T*(GEMM) + operators of the server

*Single server*: every GEMM on the first server.

*Cloud GPUs*: n equal accelerators with enough memory together, T = FLOP / (n * peak * utilisation); links between them are not
counted. Peaks, power and memory are the makers' figures; utilisation and price are assumptions and said to be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from cleave_plan.cost.efficiency import device_columns
from cleave_plan.fleet.device import Fleet
from cleave_plan.planning.bounds import Links, gemm_bound
from cleave_plan.planning.predict import operator_seconds, server_only_seconds
from cleave_plan.planning.terms import terms_of
from cleave_plan.simulation.baselines.setting import Outcome
from cleave_plan.workload.gemm import Gemm
from cleave_plan.workload.graph import Workload

TWO_DIMENSIONAL = "2-D per GEMM"


def rival_gemm_s(gemm: Gemm, fleet: Fleet) -> float:
    """Seconds of one GEMM at least in the paper's formulation, which knows neither memory nor latency; the servers' links count,
    their arithmetic does not."""
    columns = device_columns(fleet.devices, gemm.dtype)
    free = replace(columns, memory=np.full(len(columns), math.inf), latency=np.zeros(len(columns)))
    links = Links(
        egress=sum(server.egress_bytes_per_s for server in fleet.servers),
        ingress=sum(server.ingress_bytes_per_s for server in fleet.servers), flop_per_s=0.0,
    )  # fmt: skip
    return gemm_bound(terms_of(gemm), free, links)


def two_dimensional(workload: Workload, fleet: Fleet) -> Outcome:
    """The bound of the paper's formulation, GEMM by GEMM."""
    classes = [members for members in workload.classes().values() if members[0].macs > 0]
    levels_s = sum(len(members) * rival_gemm_s(members[0], fleet) for members in classes)
    return Outcome(
        name=TWO_DIMENSIONAL, batch_s=levels_s + operator_seconds(workload, fleet), devices_used=len(fleet.devices),
        recovery="the lost tiles are planned and computed again",
    )  # fmt: skip


def single_server(workload: Workload, fleet: Fleet) -> Outcome:
    """Everything on the first server."""
    server = fleet.servers[0]
    held = float(sum(workload.parameters.values()))
    if held > server.memory_bytes:
        return Outcome(name="single server", batch_s=math.inf, reason=f"{held:.3g} B of parameters and their state")
    return Outcome(
        name="single server", batch_s=server_only_seconds(workload, fleet), recovery="restart from a checkpoint",
        memory_bytes=held,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """A data-centre GPU: dense 16-bit FLOP/s, bytes, watts (makers' data sheets), price of an hour in US dollars (assumed)."""

    name: str
    flop_per_s: float
    memory_bytes: float
    power_watt: float
    dollars_per_hour: float
    source: str


ACCELERATORS = (
    Accelerator(
        name="A100 80 GB", flop_per_s=312e12, memory_bytes=80e9, power_watt=400, dollars_per_hour=2.0,
        source="NVIDIA A100 data sheet (SXM): 312 TFLOP/s BF16 dense, 400 W; price assumed",
    ),
    Accelerator(
        name="H100 80 GB", flop_per_s=989e12, memory_bytes=80e9, power_watt=700, dollars_per_hour=3.0,
        source="NVIDIA H100 data sheet (SXM): 989 TFLOP/s BF16 dense, 700 W; price assumed",
    ),
)  # fmt: skip

UTILISATION = 0.45
"""Share of the peak that training reaches (PaLM, arXiv 2204.02311, reports 0.462 for its largest model; taken for all)."""


def cloud(workload: Workload, accelerator: Accelerator) -> Outcome:
    """As many of ``accelerator`` as hold the parameters and their state."""
    held = float(sum(workload.parameters.values()))
    count = max(1, math.ceil(held / accelerator.memory_bytes))
    return Outcome(
        name=accelerator.name, batch_s=workload.gemm_flop / (count * accelerator.flop_per_s * UTILISATION),
        degrees={"GPUs": count}, devices_used=count, memory_bytes=held / count, recovery="restart from a checkpoint",
    )  # fmt: skip
