"""What a plan must satisfy before anything of it is run: made for this model, every GEMM assigned, every tile in place.

A plan file is input like any other. These checks make sure that no tile can read or write outside the arrays of its GEMM
and that the assembled result has no holes, whoever wrote the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cleave_plan.cost.tile import BOX
from cleave_plan.errors import InputFileError
from cleave_plan.kernels.grid import Grid
from cleave_plan.kernels.tile import Box
from cleave_plan.plan.cover import cover_flaw
from cleave_plan.plan.plan import Assignment, Mode, Plan
from cleave_plan.workload.gemm import Gemm, Join
from cleave_plan.workload.graph import Workload
from cleave_plan.workload.joined import product_of

_PLAN_AGAIN = "make the plan again with `cleave-plan plan`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where one product runs: ``tiles`` as (device name, box), empty when the server computes it as one.

    A product is a GEMM or several ``members`` that are cut as one (``gemm`` is then the joined one). The device's name is
    None for a tile that the server computes beside the devices. ``grid``: the blocks in which it is computed, where a run is to
    be reproducible.
    """

    gemm: Gemm
    members: tuple[Gemm, ...]
    tiles: tuple[tuple[str | None, Box], ...]
    grid: Grid | None = None

    @property
    def away(self) -> dict[int, tuple[str, Box]]:
        """The tiles of devices, by their place among all."""
        return {place: (device, box) for place, (device, box) in enumerate(self.tiles) if device is not None}

    @property
    def home(self) -> dict[int, Box]:
        """The tiles of the server, by their place among all."""
        return {place: box for place, (device, box) in enumerate(self.tiles) if device is None}


def admit(plan: Plan, workload: Workload) -> dict[str, Placed]:
    """Each product of ``plan`` by the name of its first GEMM, with its tiles; every GEMM of ``workload`` is in one.

    Raises InputFileError when the plan is for another model, leaves a GEMM out, names one that is not there or twice,
    or has a tile outside its GEMM, on no device, doubled or missing, or tiles of a GEMM that cannot be cut so.
    """
    if plan.model.sha256 != workload.sha256:
        raise InputFileError(
            f"the plan was made for another model file (sha256 {plan.model.sha256[:12]}…, this one has {workload.sha256[:12]}…)",
            where=f"plan for {plan.model.name}", expected="the model file that the plan was made for", remedy=_PLAN_AGAIN,
        )  # fmt: skip
    gemms = {gemm.name: gemm for gemm in workload.gemms}
    assigned = _assignment_of_each(plan, gemms)
    missing = [name for name in gemms if name not in assigned]
    if missing:
        raise InputFileError(
            f"{len(missing)} GEMMs have no assignment, the first is {missing[0]!r}", where=f"plan for {plan.model.name}",
            expected="one assignment for each GEMM of the model", remedy=_PLAN_AGAIN,
        )  # fmt: skip
    placed = {}
    for assignment in plan.assignments:
        for names in assignment.products():
            place = _placed(tuple(gemms[name] for name in names), assignment, plan, workload)
            # A chain that the server computes is its GEMMs and the operators between, each in its place.
            apart = place.gemm.chain is not None and not place.tiles
            for part in [Placed(gemm=member, members=(member,), tiles=()) for member in place.members] if apart else [place]:
                placed[part.members[0].name] = part
    return placed


def _assignment_of_each(plan: Plan, gemms: Mapping[str, Gemm]) -> set[str]:
    assigned: set[str] = set()
    for place, assignment in enumerate(plan.assignments):
        for name in assignment.gemms:
            if name not in gemms or name in assigned:
                what = "is not in the model" if name not in gemms else "has a second assignment"
                raise InputFileError(
                    f"GEMM {name!r} {what}", where=f"$.assignments[{place}].gemms",
                    expected="each GEMM of the model once", remedy=_PLAN_AGAIN,
                )  # fmt: skip
            assigned.add(name)
    return assigned


def _placed(members: tuple[Gemm, ...], assignment: Assignment, plan: Plan, workload: Workload) -> Placed:
    tiles = assignment.tiles
    where = f"plan for {plan.model.name}: GEMM {members[0].name!r}"
    try:
        gemm = product_of(workload, members, Join(assignment.join_axis))
    except ValueError as error:
        raise InputFileError(
            str(error),
            where=where,
            expected="members that share an operand or a result, or are a chain of the model",
            remedy=_PLAN_AGAIN,
        ) from None
    if assignment.mode is Mode.SERVER:
        if len(tiles):
            raise InputFileError(f"it has {len(tiles)} tiles though the server computes it", where=where, expected="no tiles")
        return Placed(gemm=gemm, members=members, tiles=())
    if gemm.pinned and len(tiles):
        raise InputFileError(
            f"it has tiles, but only the server can compute it: {gemm.pinned}",
            where=where,
            expected="server mode",
            remedy=_PLAN_AGAIN,
        )
    columns = {name: tiles.column(name).tolist() for name in BOX}
    boxes = [Box(*row) for row in zip(*columns.values(), strict=True)]
    for place, (box, device) in enumerate(zip(boxes, tiles.device.tolist(), strict=True)):
        if not 0 <= device <= len(plan.device_names):
            raise InputFileError(
                f"tile {place} is on device number {device}", where=where,
                expected=f"0 to {len(plan.device_names) - 1}, or {len(plan.device_names)} for the server", remedy=_PLAN_AGAIN,
            )  # fmt: skip
        if any(start >= stop for start, stop in zip(box[::2], box[1::2], strict=True)):
            raise InputFileError(
                f"tile {place} is empty or turned round: {box}", where=where, expected="start < stop on every axis"
            )
        whole = "convolution" if gemm.window is not None else "chain" if gemm.chain is not None else ""
        if whole and box.k_stop - box.k_start != gemm.shape.k:
            raise InputFileError(
                f"tile {place} cuts K of a {whole}", where=where,
                expected=f"tiles of a {whole} that hold the whole of K", remedy=_PLAN_AGAIN,
            )  # fmt: skip
    flaw = cover_flaw(tiles, gemm.shape)
    if flaw is not None:
        kind = "lies outside the GEMM" if flaw.outside else "is computed twice" if flaw.tiles else "is computed by no tile"
        by = f" (tiles {', '.join(map(str, flaw.tiles[:4]))})" if flaw.tiles else ""
        raise InputFileError(
            f"the point (batch, m, n, k) = {flaw.point} {kind}{by}", where=where,
            expected=f"tiles that cover batch, M, K, N = {tuple(gemm.shape)} exactly once", remedy=_PLAN_AGAIN,
        )  # fmt: skip
    owners = (*plan.device_names, None)
    names = [owners[device] for device in tiles.device.tolist()]
    return Placed(gemm=gemm, members=members, tiles=tuple(zip(names, boxes, strict=True)))
