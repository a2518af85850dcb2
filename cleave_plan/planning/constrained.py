"""Planning under a user's constraints, and saying which of them are in each other's way.

Excluded devices leave the fleet that is planned on, memory caps and headroom shrink the others', rules ride on the GEMMs of
the planned view. The bound is therefore that of the constrained problem in these respects, and knows caps of time, and of
work in levels of one GEMM; it does not know pinned cuts, nor caps of work that several GEMMs share, and stays valid without.

When no plan exists, constraints are taken away one by one as long as there is still none: what is left cannot hold together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from cleave_plan.errors import InfeasibleError
from cleave_plan.fleet.device import Fleet
from cleave_plan.plan.constraints import caps_of, check_names, excluded, fleet_view, rule_of
from cleave_plan.plan.plan import Constraint, Plan
from cleave_plan.planning.rules import Rules
from cleave_plan.planning.subfleet import restored, some_devices
from cleave_plan.units import Unit, format_value
from cleave_plan.workload.graph import Workload

Plans = Callable[[Workload, Fleet, Rules], Plan]


def plan_under(constraints: Sequence[Constraint], workload: Workload, fleet: Fleet, plan: Plans) -> Plan:
    """The plan that ``plan`` makes of the constrained workload and fleet, as one for the whole fleet.

    Raises InfeasibleError that names constraints in conflict (``facts["constraints"]``), InputFileError for patterns that
    match nothing.
    """
    check_names(constraints, (gemm.name for gemm in workload.gemms), fleet)
    try:
        return _attempt(constraints, workload, fleet, plan)
    except InfeasibleError as error:
        blamed = _conflict(constraints, workload, fleet, plan)
        if not blamed:
            raise
        names = [constraint.name for constraint in blamed]
        listed = ", ".join(repr(name) for name in names)
        raise InfeasibleError(
            f"no plan obeys the constraint{'s' if len(names) > 1 else ''} {listed}{' together' if len(names) > 1 else ''}: "
            f"{error.sentence()}",
            facts={**error.facts, "constraints": names}, remedy="loosen one of them",
        ) from error  # fmt: skip


def _conflict(constraints: Sequence[Constraint], workload: Workload, fleet: Fleet, plan: Plans) -> list[Constraint]:
    """A set of constraints that cannot hold together and that has none too many; empty when it is not theirs."""
    left = list(constraints)
    for constraint in constraints:
        without = [other for other in left if other is not constraint]
        try:
            _attempt(without, workload, fleet, plan)
        except InfeasibleError:
            left = without
    return left


def _attempt(constraints: Sequence[Constraint], workload: Workload, fleet: Fleet, plan: Plans) -> Plan:
    banned = excluded(constraints, fleet)
    places = [place for place, device in enumerate(fleet.devices) if device.name not in banned]
    if not places:
        raise InfeasibleError("every device is excluded", where=f"fleet {fleet.name}", facts={"unit": "device", "available": 0})
    view = fleet_view(constraints, some_devices(fleet, places))
    tagged, rules = ruled(constraints, workload)
    caps = caps_of(constraints, view.devices)
    made = restored(plan(tagged, view, replace(rules, caps=caps if caps.any else None)), fleet, places)
    return replace(made, constraints=tuple(constraints), notes=(*made.notes, *_notes(constraints, fleet, view)))


def ruled(constraints: Sequence[Constraint], workload: Workload) -> tuple[Workload, Rules]:
    """``workload`` with the key of its rule on each GEMM, and the rules; raises InfeasibleError when one leaves nothing."""
    rules = {gemm.name: rule_of(constraints, gemm.name) for gemm in workload.gemms}
    for name, rule in rules.items():
        if not rule.modes or rule.servers == frozenset():
            what = "mode" if not rule.modes else "server"
            raise InfeasibleError(f"no {what} is allowed", where=f"GEMM {name}", facts={"gemm": name})
    tagged = replace(workload, gemms=tuple(replace(gemm, rule=rules[gemm.name].key) for gemm in workload.gemms))
    return tagged, Rules(gemms={rule.key: rule for rule in rules.values() if rule.key})


def _notes(constraints: Sequence[Constraint], fleet: Fleet, view: Fleet) -> list[str]:
    """What the bound knows of the constraints, and what they take away."""
    if not constraints:
        return []
    notes = [
        "the bound is that of the constrained problem as far as devices, memory, servers and caps of time go, and caps of work "
        "in levels of one GEMM; it does not know pinned cuts, nor caps of work that several GEMMs of a level share"
    ]
    before, after = (sum(device.memory_bytes for device in one.devices) for one in (fleet, view))
    if len(view.devices) < len(fleet.devices) or after < before:
        notes.append(
            f"constraints leave {len(view.devices)} of {len(fleet.devices)} devices and {format_value(after, Unit.BYTES)} of "
            f"{format_value(before, Unit.BYTES)} of their memory"
        )
    return notes
