"""What is planned, on which fleet, under which rules: what servers may do of a GEMM, and the least time of a level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cleave_plan.cost.efficiency import DeviceColumns, device_columns
from cleave_plan.cost.level import SUM_BYTES, server_rate
from cleave_plan.dtypes import DType
from cleave_plan.fleet.device import Fleet
from cleave_plan.plan.plan import Mode
from cleave_plan.planning.bounds import Links
from cleave_plan.planning.formulation import LevelClass
from cleave_plan.planning.level import level_bound
from cleave_plan.planning.option import Part
from cleave_plan.planning.rules import Rules
from cleave_plan.planning.serverpace import common_paces
from cleave_plan.planning.terms import eligible, only, terms_of
from cleave_plan.workload.gemm import Gemm
from cleave_plan.workload.graph import Workload
from cleave_plan.workload.joined import View


@dataclass(kw_only=True)
class Setting:
    """A workload and a fleet; ``server_allowed``: servers may compute GEMMs, ``inner``: K may be cut. ``columns`` are the fleet's
    figures for each element type in use."""

    view: View
    fleet: Fleet
    server_allowed: bool
    inner: bool = True
    rules: Rules = field(default_factory=Rules)
    columns: dict[DType, DeviceColumns] = field(default_factory=dict)

    @property
    def workload(self) -> Workload:
        """What is planned: joined GEMMs in place of their members."""
        return self.view.workload

    def columns_of(self, gemm: Gemm) -> DeviceColumns:
        """Device figures for the GEMM's arithmetic."""
        if gemm.dtype not in self.columns:
            self.columns[gemm.dtype] = device_columns(self.fleet.devices, gemm.dtype)
        return self.columns[gemm.dtype]

    def links(self, gemm: Gemm, copies: int = 1) -> Links:
        """The servers' links together, and the arithmetic that ``copies`` such GEMMs can use (one server each), if allowed.

        Every result ends on the first server, wherever its weights are: what is received is received by that one.
        """
        servers = self.fleet.servers
        return Links(
            egress=sum(server.egress_bytes_per_s for server in servers),
            ingress=servers[0].ingress_bytes_per_s,
            flop_per_s=self._server_rate(gemm, copies) if self.server_may(gemm) else 0.0,
            sums_per_s=sum(server.memory_bandwidth_bytes_per_s for server in servers) / SUM_BYTES,
        )

    def _server_rate(self, gemm: Gemm, copies: int) -> float:
        """FLOP/s of the fastest servers, one for each of ``copies`` GEMMs."""
        allowed = [server for server in self.fleet.servers if self.rules.allows_server(gemm, server.name)]
        return sum(sorted((server_rate(gemm, server) for server in allowed), reverse=True)[:copies])

    def paces(self, parts: Sequence[Part], count: int) -> list[float]:
        """FLOP/s of all servers together for each of ``parts`` of a level of ``count`` GEMMs."""
        paces = np.zeros((len(parts), len(self.fleet.servers)))
        for place, part in enumerate(parts):
            if self.server_may(part.gemm) or part.gemm.pinned:
                for column, server in enumerate(self.fleet.servers):
                    allowed = self.rules.allows_server(part.gemm, server.name)
                    paces[place, column] = server_rate(part.gemm, server) if allowed else 0.0
        return common_paces(paces, [part.copies * part.gemm.flop for part in parts], count)

    def server_may(self, gemm: Gemm) -> bool:
        """Whether servers may compute some of ``gemm``."""
        return self.server_allowed and Mode.SERVER in self.rules.modes(gemm)

    def server_kinds(self, gemm: Gemm) -> list[tuple[int, ...]]:
        """Servers (indices) that may compute of ``gemm`` at the same pace, together; a kind without servers where none may."""
        kinds: dict[tuple[float, float], list[int]] = {}
        for place, server in enumerate(self.fleet.servers):
            if (self.server_may(gemm) or gemm.pinned) and self.rules.allows_server(gemm, server.name):
                kinds.setdefault((server_rate(gemm, server), server.memory_bandwidth_bytes_per_s), []).append(place)
        return [tuple(places) for places in kinds.values()] or [()]

    def pinned_bound(self, level: LevelClass) -> float:
        """Seconds that the servers need for what is pinned to them."""
        pinned = [part for part in level.parts if part.gemm.macs > 0 and part.gemm.pinned]
        paces = self.paces(pinned, sum(part.copies for part in level.parts))
        return sum(part.copies * part.gemm.flop / pace for part, pace in zip(pinned, paces, strict=True))

    def level_bound(self, level: LevelClass) -> float:
        """Lower bound of a level in which nothing is held: what may be shared, and what is pinned, whichever is longer."""
        free = [part for part in level.parts if part.gemm.macs > 0 and not part.gemm.pinned]
        copies = sum(part.copies for part in level.parts)
        pinned_s = self.pinned_bound(level)
        if not free:
            return pinned_s
        shared_s = level_bound(
            [terms_of(part.gemm, part.copies) for part in free],
            [self.able(part) for part in free],
            self.links(free[0].gemm),
            self.paces(free, copies),
            inner=self.inner, caps=self.rules.caps, level_flop=sum(part.copies * part.gemm.flop for part in level.parts),
        )  # fmt: skip
        return max(shared_s, pinned_s)

    def able(self, part: Part) -> DeviceColumns:
        """Device figures for the bound: of those that can take part in the GEMM, or in one of those that it joins."""
        devices = self.columns_of(part.gemm)
        kinds = {terms_of(gemm) for gemm in (part.gemm, *self.view.members[part.gemm.name])}
        return only(devices, np.any([eligible(kind, devices) for kind in kinds], axis=0))
