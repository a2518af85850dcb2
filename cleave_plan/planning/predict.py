"""What a plan is predicted to take: levels priced from their assignments, the certificate, and the yardsticks beside it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.level import Load, Placement, level_time, server_load, server_seconds, tiled_load
from cleave_plan.cost.tile import price
from cleave_plan.fleet.device import Fleet
from cleave_plan.plan.plan import Assignment, LevelReport, Mode, Predicted
from cleave_plan.planning.candidates import Candidates, total_bound
from cleave_plan.planning.decide import Decision
from cleave_plan.planning.option import Part
from cleave_plan.planning.options import options_on_one
from cleave_plan.planning.terms import eligible, terms_of
from cleave_plan.units import Unit, format_value
from cleave_plan.workload.gemm import Join, Role
from cleave_plan.workload.graph import Workload
from cleave_plan.workload.joined import View, product_of

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
    bound = total_bound(found.classes, found.bounds)
    operators = operator_seconds(found.workload, fleet)
    name, alone = one_device(found)
    used = np.flatnonzero(pricing.memory > 0)
    return Predicted(
        batch_s=executed + operators, levels_s=executed, server_operators_s=operators, ideal_levels_s=ideal, bound_s=bound,
        gap=1 - bound / ideal if ideal > 0 else 0.0, levels=tuple(reports), devices_used=len(used),
        devices_total=len(fleet.devices), one_device_s=None if alone is None else alone + operators, one_device_name=name,
        server_only_s=server_only_seconds(found.view.original, fleet), downlink_bytes=pricing.down, uplink_bytes=pricing.up,
        server_memory_bytes=_server_memory(found, assignments, base),
        device_memory_bytes={fleet.devices[place].name: float(pricing.memory[place]) for place in used.tolist()},
    )  # fmt: skip


def operator_seconds(workload: Workload, fleet: Fleet) -> float:
    """Server operators between the GEMMs: bytes read and written over the first server's memory bandwidth."""
    moved = sum(operator.bytes or 0 for operator in workload.server_operators)
    return moved / fleet.servers[0].memory_bandwidth_bytes_per_s


def server_only_seconds(workload: Workload, fleet: Fleet) -> float:
    """Seconds of one batch on the first server, GEMM by GEMM, and of its operators."""
    return sum(server_seconds(gemm, fleet.servers[0]) for gemm in workload.gemms) + operator_seconds(workload, fleet)


class _Pricing:
    """Loads of assignments, each priced once, and what they add up to over the whole batch."""

    def __init__(self, found: Candidates, assignments: Sequence[Assignment]) -> None:
        self._found = found
        places = {server.name: place for place, server in enumerate(found.fleet.servers)}
        gemms = {gemm.name: gemm for gemm in found.view.original.gemms}
        self._load_of: dict[str, Load] = {}
        self.memory = np.zeros(len(found.fleet.devices))
        self.down = self.up = 0.0
        for assignment in assignments:
            products = assignment.products()
            sample = product_of(found.view.original, [gemms[name] for name in products[0]], Join(assignment.join_axis))
            spot = Placement(servers=tuple(places[name] for name in assignment.servers), shares=assignment.shares)
            devices = found.columns_of(sample)
            if assignment.mode is Mode.SERVER:
                load = server_load(sample, spot, len(devices), found.fleet.servers)
            else:
                load = tiled_load(sample, assignment.tiles, spot, devices, found.fleet.servers)
                sent = assignment.tiles.select(assignment.tiles.device < len(devices))
                costs = price(sample, sent, devices)
                np.maximum.at(self.memory, sent.device, costs.memory_bytes)
                self.down += len(products) * float(costs.down_bytes.sum())
                self.up += len(products) * float(costs.up_bytes.sum())
            self._load_of.update({product[0]: load for product in products})

    def report(self, decision: Decision, bound_s: float) -> LevelReport:
        """The first level of ``decision``, standing for all of them."""
        workload, fleet = self._found.workload, self._found.fleet
        index = decision.levels[0]
        planned = [workload.gemms[place].name for place in workload.levels[index].gemms]
        load = Load.none(len(fleet.devices), len(fleet.servers))
        for name in planned:
            load = load + self._load_of[self._found.view.members[name][0].name]
        time = level_time(load, fleet)
        return LevelReport(
            index=index, count=len(decision.levels), gemms=tuple(self._found.view.names(index)), ideal_s=time.ideal_s,
            executed_s=time.executed_s, bound_s=bound_s, binds=time.binds,
        )  # fmt: skip


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


def notes_of(view: View, without: frozenset[str]) -> tuple[str, ...]:
    """Sentences that the summary must carry: the model's own, and what the figures leave out."""
    workload = view.original
    notes = [*workload.notes, *_chain_notes(view)]
    streamed = [gemm for gemm in workload.gemms if gemm.shape.m == 1 and gemm.b.role is Role.PARAMETER and gemm.macs > 0]
    size = sum(gemm.b_bytes for gemm in streamed)
    if size and size >= 0.5 * sum(gemm.b_bytes for gemm in workload.gemms if gemm.b.role is Role.PARAMETER):
        notes.append(
            f"{len(streamed)} GEMMs have M = 1: every token would stream {format_value(float(size), Unit.BYTES)} of weights to "
            "the devices for one row of results each; batch more rows, or keep this model on the server"
        )
    unknown = [operator for operator in workload.server_operators if operator.bytes is None]
    if unknown:
        notes.append(
            f"{len(unknown)} server operators have unknown shapes and are not in server_operators_s: "
            f"{', '.join(operator.name for operator in unknown[:5])}{', ...' if len(unknown) > 5 else ''}"
        )
    cuts = ", tiles without inner splits" if "inner" in without else ""
    notes.append(f"the bound holds for schedules with a barrier after each level{cuts}, and nothing kept between tiles")
    return tuple(notes)


def _chain_notes(view: View) -> list[str]:
    """What is planned as chains, and what that leaves out."""
    planned = {tuple(member.name for member in members) for members in view.members.values()}
    chains = [chain for chain in view.original.chains if chain.gemms in planned]
    if not chains:
        return []
    note = (
        f"{len(chains)} times attention is computed as one piece of work, scores never leaving the device; the bound holds for "
        "plans that do so (--without chains plans GEMM by GEMM)"
    )
    constant = max(chain.constant_bytes for chain in chains)
    if constant:
        size = format_value(float(constant), Unit.BYTES)
        note += f"; masks that depend on no input ({size} for each) are sent once when a device starts and not counted"
    return [note]
