"""What a plan is predicted to take: levels priced from their assignments, the certificate, and the yardsticks beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.level import LevelTime, Load, Placement, level_time, server_load, server_seconds, tiled_load
from cleave_plan.cost.tile import Held, price
from cleave_plan.fleet.device import Fleet
from cleave_plan.plan.plan import Assignment, LevelReport, Mode, Predicted
from cleave_plan.planning.candidates import Candidates, total_bound
from cleave_plan.planning.decide import Decision
from cleave_plan.planning.holding import Holding
from cleave_plan.planning.option import Part
from cleave_plan.planning.options import options_on_one
from cleave_plan.planning.terms import eligible, terms_of
from cleave_plan.units import Unit, format_value, plural
from cleave_plan.workload.gemm import Gemm, Role
from cleave_plan.workload.graph import Workload
from cleave_plan.workload.joined import View

Floats = NDArray[np.float64]


def predict(
    found: Candidates, decisions: Sequence[Decision], assignments: Sequence[Assignment], base: Sequence[float]
) -> Predicted:
    """All predicted figures of a plan (see :class:`Predicted`), from its assignments."""
    fleet = found.fleet
    pricing = _Pricing(found, assignments)
    reports = [pricing.report(decision, found.bounds[decision.level_class]) for decision in decisions]
    reports.sort(key=lambda report: report.index)
    ideal = sum(report.count * report.ideal_s for report in reports)
    executed = sum(report.count * report.executed_s for report in reports)
    first = sum(len(decision.levels) * pricing.first_batch(decision) for decision in decisions)
    bound = total_bound(found.classes, found.bounds)
    operators = operator_seconds(found.workload, fleet)
    name, alone = one_device(found)
    used, kept = np.flatnonzero(pricing.memory > 0), np.flatnonzero(pricing.holding.resident > 0)
    return Predicted(
        batch_s=executed + operators, first_batch_s=first + operators, levels_s=executed, server_operators_s=operators,
        ideal_levels_s=ideal, bound_s=bound, gap=1 - bound / ideal if ideal > 0 else 0.0, levels=tuple(reports),
        devices_used=len(used), devices_total=len(fleet.devices), one_device_s=None if alone is None else alone + operators,
        one_device_name=name, server_only_s=server_only_seconds(found.view.original, fleet),
        downlink_bytes=pricing.down, uplink_bytes=pricing.up,
        server_memory_bytes=_server_memory(found, assignments, base),
        device_memory_bytes={fleet.devices[place].name: float(pricing.memory[place]) for place in used.tolist()},
        spared_bytes=pricing.spared, tokens=found.view.original.tokens,
        device_kept_bytes={fleet.devices[place].name: float(pricing.holding.resident[place]) for place in kept.tolist()},
    )  # fmt: skip


def operator_seconds(workload: Workload, fleet: Fleet) -> float:
    """Server operators between the GEMMs: bytes read and written over the first server's memory bandwidth."""
    moved = sum(operator.bytes or 0 for operator in workload.server_operators)
    return moved / fleet.servers[0].memory_bandwidth_bytes_per_s


def server_only_seconds(workload: Workload, fleet: Fleet) -> float:
    """Seconds of one batch on the first server, GEMM by GEMM, and of its operators."""
    return sum(server_seconds(gemm, fleet.servers[0]) for gemm in workload.gemms) + operator_seconds(workload, fleet)


class _Pricing:
    """Loads of products under their assignments, each kind priced once, and what they add up to over the whole batch."""

    def __init__(self, found: Candidates, assignments: Sequence[Assignment]) -> None:
        self._found = found
        name_of = {members[0].name: name for name, members in found.view.members.items()}
        gemms = {gemm.name: gemm for gemm in found.workload.gemms}
        products = [
            replace(assignment, gemms=tuple(name_of[names[0]] for names in assignment.products()), joined=1, join_axis="")
            for assignment in assignments
        ]
        devices = len(found.fleet.devices)
        self.holding = Holding(found.workload, products, devices)
        self.memory = np.zeros(devices)
        self.down = self.up = self.spared = 0.0
        self._load_of: dict[str, Load] = {}
        self._first_load_of: dict[str, Load] = {}
        for assignment in products:
            kinds: dict[tuple[int, ...], list[Gemm]] = {}
            for name in assignment.gemms:
                kinds.setdefault(self.holding.kind(gemms[name]), []).append(gemms[name])
            for members in kinds.values():
                self._add(assignment, members)
        self.memory = np.where(self.memory > 0, self.memory + self.holding.resident, 0.0)

    def _add(self, assignment: Assignment, members: Sequence[Gemm]) -> None:
        """Price ``members``, which find the same pieces held."""
        found, sample = self._found, members[0]
        places = {server.name: place for place, server in enumerate(found.fleet.servers)}
        spot = Placement(servers=tuple(places[name] for name in assignment.servers), shares=assignment.shares)
        devices = found.columns_of(sample)
        if assignment.mode is Mode.SERVER:
            first = load = server_load(sample, spot, len(devices), found.fleet.servers)
        else:
            held = self.holding.held(sample)
            first = load = tiled_load(sample, assignment.tiles, spot, devices, found.fleet.servers, held)
            if held is not None and not found.workload.training:
                cold = self.holding.held(sample, first_batch=True)
                first = tiled_load(sample, assignment.tiles, spot, devices, found.fleet.servers, cold)
            self._count(assignment, members, held)
        self._load_of.update({gemm.name: load for gemm in members})
        self._first_load_of.update({gemm.name: first for gemm in members})

    def _count(self, assignment: Assignment, members: Sequence[Gemm], held: Held | None) -> None:
        """Memory and bytes of ``members``."""
        devices = self._found.columns_of(members[0])
        on_device = assignment.tiles.device < len(devices)
        sent = assignment.tiles.select(on_device)
        there = None if held is None else held.select(on_device)
        costs = price(members[0], sent, devices, there)
        np.maximum.at(self.memory, sent.device, costs.memory_bytes)
        self.down += len(members) * float(costs.down_bytes.sum())
        self.up += len(members) * float(costs.up_bytes.sum())
        if there is not None:
            self.spared += len(members) * float((there.a_bytes + there.b_bytes).sum())

    def first_batch(self, decision: Decision) -> float:
        """Executed seconds of a level of ``decision`` in the first batch."""
        return self._time(decision, self._first_load_of).executed_s

    def report(self, decision: Decision, bound_s: float) -> LevelReport:
        """The first level of ``decision``, standing for all of them."""
        time, index = self._time(decision, self._load_of), decision.levels[0]
        return LevelReport(
            index=index, count=len(decision.levels), gemms=tuple(self._found.view.names(index)), ideal_s=time.ideal_s,
            executed_s=time.executed_s, bound_s=bound_s, binds=time.binds,
        )  # fmt: skip

    def _time(self, decision: Decision, load_of: Mapping[str, Load]) -> LevelTime:
        workload, fleet = self._found.workload, self._found.fleet
        load = Load.none(len(fleet.devices), len(fleet.servers))
        for place in workload.levels[decision.levels[0]].gemms:
            load = load + load_of[workload.gemms[place].name]
        return level_time(load, fleet)


def _server_memory(found: Candidates, assignments: Sequence[Assignment], base: Sequence[float]) -> dict[str, float]:
    """Bytes that each server holds: a tensor that several GEMMs use once, at its largest share."""
    workload = found.view.original
    gemms = {gemm.name: gemm for gemm in workload.gemms}
    share_of: dict[tuple[str, str], float] = {}
    for assignment in assignments:
        for name in assignment.gemms:
            for operand in (gemms[name].a, gemms[name].b):
                if operand.role is Role.PARAMETER and operand.tensor in workload.parameters:
                    for server, share in zip(assignment.servers, assignment.shares, strict=True):
                        key = (server, operand.tensor)
                        share_of[key] = max(share, share_of.get(key, 0.0))
    held = {server.name: size for server, size in zip(found.fleet.servers, base, strict=True)}
    for (server_name, tensor), share in share_of.items():
        held[server_name] += share * workload.parameters[tensor]
    return held


def one_device(found: Candidates) -> tuple[str | None, float | None]:
    """The device that is fastest alone (by ideal cost of whole GEMMs) and its executed seconds; None when none can."""
    total = np.zeros(len(found.fleet.devices))
    able = np.ones(len(found.fleet.devices), dtype=bool)
    classes = [(members[0], len(members)) for members in found.workload.classes().values() if members[0].macs > 0]
    samples = [(gemm, count) for gemm, count in classes if not gemm.pinned]
    for gemm, count in samples:
        devices = found.columns_of(gemm)
        able &= eligible(terms_of(gemm), devices)
        down, flop, up = (
            (gemm.a_bytes + gemm.b_bytes) / devices.downlink,
            gemm.flop / devices.flop_per_s,
            gemm.out_bytes / devices.uplink,
        )
        total += count * np.maximum(np.maximum(down, flop), up)
    if not samples or not able.any():
        return None, None
    best = int(np.where(able, total, np.inf).argmin())
    seconds = sum(count * server_seconds(gemm, found.fleet.servers[0]) for gemm, count in classes if gemm.pinned)
    for gemm, count in samples:
        alone = options_on_one(Part(gemm=gemm, copies=1), found.columns_of(gemm), best)
        if alone is None:
            return None, None
        seconds += count * alone
    return found.fleet.devices[best].name, seconds


def notes_of(view: View, predicted: Predicted, without: frozenset[str]) -> tuple[str, ...]:
    """Sentences that the summary must carry: the model's own, and what the figures leave out."""
    workload = view.original
    notes = [*workload.notes, *_chain_notes(view), *_keep_notes(view, predicted)]
    unknown = [operator for operator in workload.server_operators if operator.bytes is None]
    if unknown:
        notes.append(
            f"not in server_operators_s, their shapes being unknown: {plural(len(unknown), 'server operator')}, "
            f"{', '.join(operator.name for operator in unknown[:5])}{', ...' if len(unknown) > 5 else ''}"
        )
    cuts = ", tiles without inner splits" if "inner" in without else ""
    kept = "and nothing kept between tiles" if "reuse" in without else _reusing(workload)
    notes.append(f"the bound holds for schedules with a barrier after each level{cuts}, {kept}")
    return tuple(notes)


def _reusing(workload: Workload) -> str:
    """What devices may keep in the schedules that the bound is for."""
    if workload.recompute is not None and workload.recompute.segments > 1:
        return (
            "in which devices keep X and W for dW and dX since the last time that the forward product ran (what runs again is "
            "sent anew), and dY from dX to dW, as far as memory goes"
        )
    if workload.training:
        return "in which devices keep X and W of the forward pass for dW and dX, and dY from dX to dW, as far as memory goes"
    return "in which devices keep frozen weights from batch to batch, as far as their memory goes"


def _keep_notes(view: View, predicted: Predicted) -> list[str]:
    """What stays on the devices, and what would have to be sent again and again where nothing does."""
    workload = view.original
    if predicted.device_kept_bytes and not workload.training:
        total = format_value(sum(predicted.device_kept_bytes.values()), Unit.BYTES)
        first = format_value(predicted.first_batch_s, Unit.SECONDS)
        return [
            f"weights of {total} stay on {plural(len(predicted.device_kept_bytes), 'device')} from batch to batch; "
            f"the first batch sends them and takes {first}; all other figures are those of a later batch",
            _reading_note(predicted),
        ]
    streamed = [gemm for gemm in workload.gemms if gemm.shape.m == 1 and gemm.b.role is Role.PARAMETER and gemm.macs > 0]
    size = sum(gemm.b_bytes for gemm in streamed)
    if not size or size < 0.5 * sum(gemm.b_bytes for gemm in workload.gemms if gemm.b.role is Role.PARAMETER):
        return []
    return [
        f"M = 1 in {plural(len(streamed), 'GEMM')}: devices that keep nothing are sent "
        f"{format_value(float(size), Unit.BYTES)} of weights for one row of results each, in every batch; batch more rows, "
        "let devices keep them, or leave them to the server"
    ]


def _reading_note(predicted: Predicted) -> str:
    """How fast the fullest device would read what it keeps, which no figure of a fleet says."""
    name = max(predicted.device_kept_bytes, key=lambda device: predicted.device_kept_bytes[device])
    size = predicted.device_kept_bytes[name]
    rate = format_value(size / max(predicted.levels_s, 1e-12), Unit.BYTES_PER_S)
    return (
        f"fleets say nothing of the memory bandwidth of devices: their arithmetic is counted in FLOP, by measured curves where "
        f"there are some; {name} reads {format_value(size, Unit.BYTES)} of weights in every batch, {rate} over its levels"
    )


def _chain_notes(view: View) -> list[str]:
    """What is planned as chains, and what that leaves out."""
    planned = {tuple(member.name for member in members) for members in view.members.values()}
    chains = [chain for chain in view.original.chains if chain.gemms in planned]
    if not chains:
        return []
    note = (
        f"{plural(len(chains), 'attention')} computed as one piece of work each, scores never leaving the device; the bound "
        "holds for plans that do so (--without chains plans GEMM by GEMM)"
    )
    constant = max(chain.constant_bytes for chain in chains)
    if constant:
        size = format_value(float(constant), Unit.BYTES)
        note += f"; masks that depend on no input ({size} for each) are sent once when a device starts and not counted"
    return [note]
