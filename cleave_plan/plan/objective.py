"""A plan's figures computed a second time, from its tiles up: level times, totals, traffic and memory.

The time of a level is the largest of (planning.md section 1):

    per device   the sum of the times of its tiles, of all GEMMs of the level
    per server   bytes it sends / egress, bytes it receives / ingress,
                 seconds of the GEMMs and of the tiles that it computes itself
                 + 12 bytes * partial sums it receives / memory bandwidth   (K is cut)

A GEMM whose weights lie on the servers j with shares w_j loads server j with w_j of the bytes to and from devices.
Activations live on the first server F: a server j other than F receives w_j of the bytes of each operand that is an
activation (egress of F, ingress of j) and returns w_j of the result (egress of j, ingress of F). A GEMM computed on
server s takes max(flop / F_s, (a + b + out bytes) / memory bandwidth) there, with the same moves for w_s = 1. So does
each tile that a GEMM's first server keeps for itself (its device is one past the last), with its own pieces of a, b and
out; such a tile crosses no link between server and devices, and leaves the moves of whole activations as they are. What
a server computes of a chain moves its scores besides, and the bytes of the operators between its products come on top of
the maximum; in every plan that has a chain these operators are left out of the others.

What a device holds it is not sent (:mod:`cleave_plan.plan.keeping`); its tiles have the memory that its kept pieces leave.
All figures are those of a batch after the first, whose time stands apart.

Nothing here comes from the planner; tiles are priced by :mod:`cleave_plan.plan.repricing`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cleave_plan.cost.tile import Floats
from cleave_plan.fleet.device import Device, Server
from cleave_plan.plan.keeping import Keeping
from cleave_plan.plan.plan import Assignment, Mode
from cleave_plan.plan.repricing import GemmPrice, price_gemm
from cleave_plan.workload.gemm import ClassKey, Gemm, Join, Role
from cleave_plan.workload.graph import Workload
from cleave_plan.workload.joined import View, view_of_groups

PARTIAL_SUM_BYTES = 12
"""Memory traffic of adding one partial sum: read the sum, read the addend, write the sum, 4 bytes each."""


_Kind = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LevelTimes:
    """One level: seconds by both costs; seconds of each device (columns over devices) and of each server resource
    ("egress NAME", "ingress NAME", "server NAME")."""

    ideal_s: float
    executed_s: float
    device_ideal_s: Floats
    device_executed_s: Floats
    server_s: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Figures:
    """What a plan takes, as recomputed. ``levels`` has one entry per level of the workload, in order."""

    levels: tuple[LevelTimes, ...]
    levels_s: float
    ideal_levels_s: float
    server_operators_s: float
    batch_s: float
    first_batch_s: float
    downlink_bytes: float
    uplink_bytes: float
    spared_bytes: float
    device_memory_bytes: Mapping[str, float]
    device_kept_bytes: Mapping[str, float]
    server_memory_bytes: Mapping[str, float]


@dataclass(slots=True, kw_only=True)
class _Load:
    """What a level asks of the servers: bytes, seconds of own GEMMs and tiles, partial sums received; by server name."""

    egress: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    ingress: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    gemm_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    partial_sums: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))


def products_of(workload: Workload, assignments: Sequence[Assignment]) -> tuple[View, list[Assignment]]:
    """The view of the workload with each product in place of its members, and the assignments naming products.

    Raises ValueError when an assignment joins what cannot be joined.
    """
    gemms = {gemm.name: gemm for gemm in workload.gemms}
    groups = [
        (Join(assignment.join_axis), tuple(gemms[name] for name in product))
        for assignment in assignments
        for product in assignment.products()
    ]
    view = view_of_groups(workload, groups)
    name_of = {members[0].name: name for name, members in view.members.items()}
    renamed = [
        replace(assignment, gemms=tuple(name_of[product[0]] for product in assignment.products()), joined=1, join_axis="")
        for assignment in assignments
    ]
    return view, renamed


class Recount:
    """Recomputes the figures of ``assignments``; each pair of assignment and class is priced once, and each kind of level.

    ``servers`` are those of the plan, the first one being F; tiles index ``devices`` (one past the last: the
    assignment's server). Every GEMM of ``workload`` must be in
    exactly one assignment and every index and name valid (:func:`cleave_plan.plan.verify.verify` checks that before).
    """

    def __init__(
        self, workload: Workload, assignments: Sequence[Assignment], devices: Sequence[Device], servers: Sequence[Server]
    ) -> None:
        self._original = (workload, assignments)
        view, self._assignments = products_of(workload, assignments)
        self._workload = view.workload
        self._devices = devices
        self._servers = {server.name: server for server in servers}
        self._first = servers[0].name
        self._place = {name: place for place, assignment in enumerate(self._assignments) for name in assignment.gemms}
        self._class: dict[ClassKey, int] = {key: place for place, key in enumerate(self._workload.classes())}
        self._keeping = Keeping(self._workload, self._assignments)
        self._first_batch = False
        self._prices: dict[_Kind, GemmPrice] = {}
        self._kinds: dict[tuple[_Kind, ...], LevelTimes] = {}

    def price(self, gemm: Gemm) -> GemmPrice:
        """The price of ``gemm`` under its assignment (all zeros in server mode)."""
        key = self._kind(gemm)
        if key not in self._prices:
            assignment = self._assignment(gemm)
            holds = self._keeping.holds(gemm, first_batch=self._first_batch)
            self._prices[key] = price_gemm(
                gemm, assignment.tiles, self._devices, self._servers[assignment.server], holds, self._keeping.resident
            )
        return self._prices[key]

    def from_nowhere(self) -> list[tuple[int, str, str]]:
        """Assignments (by place) whose tiles find an operand that their devices never had, with the operand and a GEMM's name."""
        return list(self._keeping.from_nowhere())

    def kept_bytes(self) -> Floats:
        """Memory that kept pieces take on each device."""
        kept = np.zeros(len(self._devices))
        for place, size in self._keeping.resident.items():
            kept[place] = size
        return kept

    def figures(self) -> Figures:
        """All figures; raises MissingFigureError when the fleet lacks a FLOP/s figure that they need."""
        gemms = self._workload.gemms
        levels = self._levels()
        levels_s = first_s = math.fsum(level.executed_s for level in levels)
        if self._keeping.resident and not self._workload.training:
            self._first_batch = True
            first_s = math.fsum(level.executed_s for level in self._levels())
            self._first_batch = False
        operators_s = self._operators_s()
        return Figures(
            levels=levels, levels_s=levels_s, ideal_levels_s=math.fsum(level.ideal_s for level in levels),
            server_operators_s=operators_s, batch_s=levels_s + operators_s,
            first_batch_s=first_s + operators_s,
            downlink_bytes=math.fsum(self.price(gemm).down_bytes for gemm in gemms),
            uplink_bytes=math.fsum(self.price(gemm).up_bytes for gemm in gemms),
            spared_bytes=math.fsum(self.price(gemm).spared_bytes for gemm in gemms),
            device_memory_bytes=self._device_memory(), server_memory_bytes=self._server_memory(),
            device_kept_bytes={self._devices[place].name: size for place, size in self._keeping.resident.items()},
        )  # fmt: skip

    def _levels(self) -> tuple[LevelTimes, ...]:
        gemms = self._workload.gemms
        return tuple(self._level([gemms[index] for index in level.gemms]) for level in self._workload.levels)

    def _assignment(self, gemm: Gemm) -> Assignment:
        return self._assignments[self._place[gemm.name]]

    def _kind(self, gemm: Gemm) -> _Kind:
        """GEMMs of one kind (assignment, class and assignments of those whose pieces they read) have one price in a batch."""
        return (self._first_batch, self._place[gemm.name], self._class[gemm.class_key], *self._keeping.kind(gemm))

    def _level(self, gemms: Sequence[Gemm]) -> LevelTimes:
        kind = tuple(sorted(self._kind(gemm) for gemm in gemms))
        if kind not in self._kinds:
            self._kinds[kind] = self._level_times(gemms)
        return self._kinds[kind]

    def _level_times(self, gemms: Sequence[Gemm]) -> LevelTimes:
        load = _Load()
        ideal, executed = np.zeros(len(self._devices)), np.zeros(len(self._devices))
        for gemm in gemms:
            ideal += self.price(gemm).ideal_s
            executed += self.price(gemm).executed_s
            self._add(load, gemm)
        server_s: dict[str, float] = {}
        for name, server in self._servers.items():
            adding_s = PARTIAL_SUM_BYTES * load.partial_sums[name] / server.memory_bandwidth_bytes_per_s
            server_s[f"egress {name}"] = load.egress[name] / server.egress_bytes_per_s
            server_s[f"ingress {name}"] = load.ingress[name] / server.ingress_bytes_per_s
            server_s[f"server {name}"] = load.gemm_s[name] + adding_s
        slowest = max(server_s.values())
        return LevelTimes(
            ideal_s=max(slowest, float(ideal.max())), executed_s=max(slowest, float(executed.max())),
            device_ideal_s=ideal, device_executed_s=executed, server_s=server_s,
        )  # fmt: skip

    def _add(self, load: _Load, gemm: Gemm) -> None:
        assignment, price = self._assignment(gemm), self.price(gemm)
        moved_in = sum(
            bytes_ for operand, bytes_ in ((gemm.a, gemm.a_bytes), (gemm.b, gemm.b_bytes)) if operand.role is Role.ACTIVATION
        )
        for name, share in _holders(assignment):
            load.egress[name] += share * price.down_bytes
            load.ingress[name] += share * price.up_bytes
            load.partial_sums[name] += share * price.partial_sums
            if name != self._first:
                load.egress[self._first] += share * moved_in
                load.ingress[name] += share * moved_in
                load.egress[name] += share * gemm.out_bytes
                load.ingress[self._first] += share * gemm.out_bytes
        load.gemm_s[assignment.server] += price.server_s
        if assignment.mode is Mode.SERVER:
            server = self._servers[assignment.server]
            load.gemm_s[server.name] += _whole_s(gemm, server)

    def _operators_s(self) -> float:
        """Operators between the levels: bytes / memory bandwidth of the first server; unknown bytes cannot count."""
        bandwidth = self._servers[self._first].memory_bandwidth_bytes_per_s
        return math.fsum(op.bytes / bandwidth for op in self._workload.server_operators if op.bytes is not None)

    def _device_memory(self) -> dict[str, float]:
        """The most that any tile needs on each device that has one, beside all that the device keeps."""
        most = np.zeros(len(self._devices))
        for gemm in self._workload.gemms:
            most = np.maximum(most, self.price(gemm).memory_bytes)
        most += self.kept_bytes()
        return {device.name: float(need) for device, need in zip(self._devices, most, strict=True) if need > 0}

    def _server_memory(self) -> dict[str, float]:
        """Parameters on the servers that hold them by shares; other parameters and live activations on the first.

        A tensor that several GEMMs read (tied weights) is held once by each server, by its largest share there.
        """
        workload, assignments = self._original
        assignment_of = {name: assignment for assignment in assignments for name in assignment.gemms}
        held: dict[str, dict[str, float]] = {}
        for gemm in workload.gemms:
            for operand in (gemm.a, gemm.b):
                if operand.role is Role.PARAMETER and operand.tensor in workload.parameters:
                    shares = held.setdefault(operand.tensor, {})
                    for name, share in _holders(assignment_of[gemm.name]):
                        shares[name] = max(share, shares.get(name, 0.0))
        need = dict.fromkeys(self._servers, 0.0)
        for tensor, size in self._workload.parameters.items():
            for name, share in held.get(tensor, {self._first: 1.0}).items():
                need[name] += share * size
        need[self._first] += max((level.live_bytes or 0 for level in self._workload.levels), default=0)
        return need


def _whole_s(gemm: Gemm, server: Server) -> float:
    """Seconds of a whole GEMM or chain on ``server``."""
    touched = gemm.repeats * (gemm.a_bytes + gemm.b_bytes + gemm.out_bytes)
    between = 0
    if gemm.chain is not None:
        touched += gemm.shape.batch * gemm.shape.m * gemm.chain.scores_bytes
        between = gemm.shape.batch * gemm.shape.m * gemm.chain.between_bytes
    bandwidth = server.memory_bandwidth_bytes_per_s
    return max(gemm.flop / server.rate(gemm.dtype), touched / bandwidth) + between / bandwidth


def _holders(assignment: Assignment) -> tuple[tuple[str, float], ...]:
    if assignment.mode is Mode.SERVER:
        return ((assignment.server, 1.0),)
    return tuple(zip(assignment.servers, assignment.shares, strict=True))
