"""A plan whose results do not depend on how it cuts: every product in its fixed blocks, whoever computes them.

A run gives the same bits under every plan of a model, over any devices and through any loss of them, when

- each floating-point product is computed on its grid (:mod:`cleave_plan.kernels.grid`), to which its tiles are snapped; a tile
  that a coarse grid leaves nothing of is dropped, and one that holds several nodes of K is several tiles of its device;
- products that a plan leaves to the server are computed by the same kernels, as tiles of the server;
- attention is always computed as a chain, by the server where the plan does not cut it as one.

All else runs on the server, in segments that do not depend on the plan either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cleave_plan.execution.admission import Placed
from cleave_plan.kernels.grid import Grid, grid_of, snapped
from cleave_plan.kernels.tile import Box
from cleave_plan.workload.gemm import Gemm, Join
from cleave_plan.workload.graph import Workload
from cleave_plan.workload.joined import product_of


def on_grid(placed: Mapping[str, Placed], workload: Workload) -> dict[str, Placed]:
    """``placed`` as a reproducible run computes it; see the module."""
    return {name: _gridded(place) for name, place in _with_chains(placed, workload).items()}


def snapped_box(box: Box, grid: Grid) -> Box:
    """``box`` with its ends at the nearest cuts of the grid; it may be empty then."""
    m_start, m_stop = (snapped(place, grid.rows) for place in box[:2])
    n_start, n_stop = (snapped(place, grid.columns) for place in box[2:4])
    k_start, k_stop = (snapped(place, grid.inner) for place in box[4:6])
    return Box(m_start, m_stop, n_start, n_stop, k_start, k_stop, box.batch_start, box.batch_stop)


def is_empty(box: Box) -> bool:
    """Whether a box has nothing in it."""
    return any(start >= stop for start, stop in zip(box[::2], box[1::2], strict=True))


def _with_chains(placed: Mapping[str, Placed], workload: Workload) -> dict[str, Placed]:
    """Every chain of the model as one product; members of products that such a chain breaks up go to the server."""
    result = dict(placed)
    gemms = {gemm.name: gemm for gemm in workload.gemms}
    for chain in workload.chains:
        members = tuple(gemms[name] for name in chain.gemms)
        broken = {first: place for first, place in result.items() if {part.name for part in place.members} & set(chain.gemms)}
        if any(place.gemm.join is Join.CHAIN for place in broken.values()) or any(gemm.pinned for gemm in members):
            continue
        for first, place in broken.items():
            del result[first]
            others = [member for member in place.members if member.name not in chain.gemms]
            result |= {member.name: Placed(gemm=member, members=(member,), tiles=()) for member in others}
        result[members[0].name] = Placed(gemm=product_of(workload, members, Join.CHAIN), members=members, tiles=())
    return result


def _gridded(place: Placed) -> Placed:
    gemm = place.gemm
    if gemm.pinned or 0 in gemm.shape:
        return place
    if not place.tiles:
        place = replace(place, tiles=((None, _whole(gemm)),))
    grid = grid_of(gemm)
    if grid is None:
        return place
    tiles: list[tuple[str | None, Box]] = []
    for device, box in place.tiles:
        own = snapped_box(box, grid)
        if not is_empty(own):
            tiles += [(device, own._replace(k_start=start, k_stop=stop)) for start, stop in grid.nodes(own.k_start, own.k_stop)]
    return replace(place, tiles=tuple(tiles), grid=grid)


def _whole(gemm: Gemm) -> Box:
    batch, m, k, n = gemm.shape
    return Box(0, m, 0, n, 0, k, 0, batch)
