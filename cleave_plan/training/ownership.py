"""Which server a parameter lives on: the one whose products read it, as the plan says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from cleave_plan.plan.plan import Assignment, Plan
from cleave_plan.workload.gemm import Phase
from cleave_plan.workload.graph import Workload


class Shard(NamedTuple):
    """Elements ``start`` to ``stop`` of a parameter, in C order, and the server that has them with their optimizer state."""

    parameter: str
    server: str
    start: int
    stop: int


def shards_of(plan: Plan, workload: Workload, elements: Mapping[str, int]) -> tuple[Shard, ...]:
    """The shards of each parameter of ``elements`` (name -> number of elements).

    A parameter belongs to the server of the forward GEMM that reads it, directly or (where it reads it transposed) by its
    name; where the plan stripes that GEMM's weights over servers, each has its share. What no GEMM reads (norms, biases,
    embedding tables) belongs to the first server, which runs the operators.
    """
    assigned = {name: assignment for assignment in plan.assignments for name in assignment.gemms}
    reader: dict[str, Assignment] = {}
    for gemm in workload.gemms:
        if gemm.phase is Phase.FORWARD and gemm.name in assigned:
            for tensor in (gemm.a.tensor, gemm.b.tensor):
                reader.setdefault(tensor, assigned[gemm.name])
    found: list[Shard] = []
    for name, count in elements.items():
        assignment = reader.get(name)
        if assignment is None:
            found.append(Shard(name, plan.server_names[0], 0, count))
        else:
            found += _striped(name, count, assignment.servers, assignment.shares)
    return tuple(found)


def _striped(name: str, count: int, servers: Sequence[str], shares: Sequence[float]) -> list[Shard]:
    """``count`` elements in ranges as large as ``shares`` (sums to 1), rounded so that none is lost."""
    stops = [round(count * share) for share in accumulate(shares)]
    stops[-1] = count
    starts = [0, *stops[:-1]]
    ranges = zip(servers, starts, stops, strict=True)
    return [Shard(name, server, start, stop) for server, start, stop in ranges if stop > start]
