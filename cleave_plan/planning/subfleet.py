"""Planning on some of a fleet's devices: the plan that comes back is one for the whole fleet, the others being idle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cleave_plan.fleet.device import Fleet
from cleave_plan.plan.plan import Assignment, Plan


def some_devices(fleet: Fleet, places: Sequence[int]) -> Fleet:
    """``fleet`` with the devices at ``places`` only (rising); its hash stays that of the whole fleet."""
    return replace(fleet, devices=tuple(fleet.devices[place] for place in places))


def restored(plan: Plan, fleet: Fleet, places: Sequence[int]) -> Plan:
    """``plan``, made for ``some_devices(fleet, places)``, with its tiles numbered by the whole fleet's devices."""
    if len(places) == len(fleet.devices):
        return plan
    new = np.array([*places, len(fleet.devices)], dtype=np.int64)  # one past the last device is the server

    def renumbered(assignment: Assignment) -> Assignment:
        tiles = assignment.tiles
        return replace(assignment, tiles=replace(tiles, device=new[tiles.device]))

    return replace(
        plan, device_names=tuple(device.name for device in fleet.devices),
        assignments=tuple(renumbered(assignment) for assignment in plan.assignments),
        predicted=replace(plan.predicted, devices_total=len(fleet.devices)),
    )  # fmt: skip
