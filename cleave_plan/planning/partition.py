r"""Levels of a handful of elements, exactly: the best of all ways to part their GEMMs into boxes.

Tilings by strips, bars and slabs think in areas; a few elements over a few devices are won by single rows, latencies and what
the server keeps. Here everything is tried at once. x_bo = 1 where box b (ranges of batch items, rows, columns and K of one
GEMM) is owner o's: a device, several boxes if that is best, or the server that holds the weights.

    min  T
    sum over boxes b that hold cell e, and owners o, of x_bo   =  1     for each cell e of each GEMM's batch x M x N x K
    rest_r + sum_bo load_bo,r * x_bo                          <=  T     for each device's time, each server's egress and
                                                                       ingress, and each server's own time
    x binary

``load`` and ``rest`` (what moves between servers whatever the tiles) are ideal cost (:mod:`cleave_plan.cost.level`),
divided by the level's lower bound. For each choice of the servers that hold the weights one program is solved. The search
ends after so many nodes (:data:`NODES`), not after a time, so that the same input gives the same plan; what it has by then
is offered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array, csr_array

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.cost.level import Placement, partial_sum_seconds_of, server_seconds_of, tiled_load
from cleave_plan.cost.tile import Tiles, price
from cleave_plan.fleet.device import Fleet, Server
from cleave_plan.planning.option import Option, Part, on_server, option_from
from cleave_plan.planning.solver import quiet_stdout
from cleave_plan.planning.terms import eligible, terms_of
from cleave_plan.workload.gemm import Gemm

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

COLUMNS = 2000
"""Boxes times owners of a level, at the most."""

NODES, LEAST_NODES, WORK = 100, 10, 200_000
"""Nodes of the solver's search tree at the most; in larger programs (more cells in all boxes together) as many as make the third
number when multiplied by those cells, but not fewer than the second."""

HOMES = 4
"""Choices of servers for a level's GEMMs up to which all are tried; beyond, all GEMMs on one server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """Who may have boxes of a part: its devices' figures, the servers (their own boxes too?), and whether K may be cut."""

    columns: DeviceColumns
    server: bool
    inner: bool


def small(parts: Sequence[Part], owners: Sequence[Owners]) -> bool:
    """Is the level small enough for the program?"""
    total = 0
    for part, own in zip(parts, owners, strict=True):
        sides = _sides(part.gemm, own.inner)
        boxes = np.prod([1.0 if whole else size * (size + 1) / 2 for size, whole in sides])
        total += part.copies * int(boxes) * (len(own.columns) + own.server)
    return 0 < total <= COLUMNS


def partitions(parts: Sequence[Part], owners: Sequence[Owners], fleet: Fleet, unit_s: float) -> list[list[Option]]:
    """For each choice of servers that has one, the options of ``parts`` (one each) that together are its fastest level.

    ``unit_s``: seconds of about the level's length.
    """
    places = range(len(fleet.servers))
    every = list(product(places, repeat=len(parts)))
    homes = every if len(every) <= HOMES else [(place,) * len(parts) for place in places]
    found = [_fastest(parts, owners, fleet, home, unit_s) for home in homes]
    return [options for options in found if options]


def _fastest(
    parts: Sequence[Part], owners: Sequence[Owners], fleet: Fleet, homes: tuple[int, ...], unit_s: float
) -> list[Option]:
    """The fastest options with the weights of part p on server ``homes[p]``; empty when nothing fits."""
    blocks = [_Block.of(part, own, fleet, home) for part, own, home in zip(parts, owners, homes, strict=True)]
    loads = np.vstack([np.tile(block.loads, (block.copies, 1)) for block in blocks]) / unit_s
    rest = sum((block.copies * block.rest for block in blocks), np.zeros(loads.shape[1])) / unit_s
    count = len(loads)
    row, column = _incidence(blocks)
    cells = sum(block.copies * block.cells for block in blocks)
    covers = csr_array(coo_array((np.ones(len(row)), (row, column)), shape=(cells, count + 1)))
    limits = csr_array(np.hstack([loads.T, np.full((loads.shape[1], 1), -1.0)]))
    nodes = min(NODES, max(LEAST_NODES, WORK // max(len(row), 1)))
    with quiet_stdout():
        answer = milp(
            np.append(np.zeros(count), 1.0),
            constraints=[LinearConstraint(covers, 1.0, 1.0), LinearConstraint(limits, -np.inf, -rest)],
            integrality=np.append(np.ones(count), 0.0),
            bounds=Bounds(0.0, np.append(np.ones(count), np.inf)),
            options={"node_limit": nodes, "mip_rel_gap": 1e-9},
        )
    if answer.x is None:
        return []
    taken = np.asarray(answer.x[:count]) > 0.5
    options, start = [], 0
    for block, part, own, home in zip(blocks, parts, owners, homes, strict=True):
        copies = []
        for _ in range(block.copies):
            copies.append(block.boxes.select(taken[start : start + len(block.boxes)]))
            start += len(block.boxes)
        options.append(_option(part, tuple(copies), own.columns, fleet.servers[home], home))
    return options


def _option(part: Part, copies: tuple[Tiles, ...], columns: DeviceColumns, server: Server, home: int) -> Option:
    """Boxes of a part as an option that stays on its server; all on the server is that server's whole work."""
    if all(bool((tiles.device == len(columns)).all()) for tiles in copies):
        return replace(on_server(part, len(columns), server), homes=(home,))
    return replace(option_from(part, copies, columns, server), homes=(home,))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Block:
    """All boxes of one GEMM with all owners: what each asks of devices and servers, and the cells that it holds."""

    boxes: Tiles
    loads: Floats
    rest: Floats
    copies: int
    cells: int
    holds: tuple[Ints, Ints]

    @classmethod
    def of(cls, part: Part, own: Owners, fleet: Fleet, home: int) -> _Block:
        """The boxes of ``part`` whose weights are on server ``home``; those that fit no memory are left out."""
        gemm, sides = part.gemm, _sides(part.gemm, own.inner)
        able = np.flatnonzero(eligible(terms_of(gemm, part.copies), own.columns)).tolist()
        ranges = _boxes(sides)
        takers = able + [len(own.columns)] * own.server
        boxes = Tiles.of([(owner, *box) for owner in takers for box in ranges])
        loads, fits = _loads(gemm, boxes, own.columns, fleet, home)
        sizes = [1 if whole else size for size, whole in sides]
        cells = np.arange(int(np.prod(sizes))).reshape(sizes)
        held = [
            np.ravel(cells[tuple(slice(None) if sides[a][1] else slice(*box[p : p + 2]) for a, p in enumerate((0, 2, 4, 6)))])
            for box in ranges
        ]
        kept = np.flatnonzero(fits)
        row = np.concatenate([held[place % len(ranges)] for place in kept.tolist()] or [np.zeros(0, dtype=np.int64)])
        column = np.repeat(np.arange(len(kept)), [len(held[place % len(ranges)]) for place in kept.tolist()])
        return cls(
            boxes=boxes.select(fits), loads=loads[fits], rest=_rest(gemm, own.columns, fleet, home), copies=part.copies,
            cells=cells.size, holds=(row, column),
        )  # fmt: skip


def _sides(gemm: Gemm, inner: bool) -> list[tuple[int, bool]]:
    """Length along M, N, K and batch, and whether it stays whole."""
    shape, chain = gemm.shape, gemm.chain is not None
    return [(shape.m, False), (shape.n, chain), (shape.k, chain or not inner), (shape.batch, False)]


def _boxes(sides: Sequence[tuple[int, bool]]) -> list[tuple[int, ...]]:
    """All boxes ``(m_start, m_stop, n_start, n_stop, k_start, k_stop, batch_start, batch_stop)``."""
    spans = [
        [(0, size)] if whole else [(start, stop) for start in range(size) for stop in range(start + 1, size + 1)]
        for size, whole in sides
    ]
    return [(*m, *n, *k, *batch) for m, n, k, batch in product(*spans)]


def _loads(gemm: Gemm, boxes: Tiles, columns: DeviceColumns, fleet: Fleet, home: int) -> tuple[Floats, NDArray[np.bool_]]:
    """Seconds that each box asks of each device and of each server's egress, ingress and own time; and whether it fits."""
    devices, servers, keeper = len(columns), len(fleet.servers), fleet.servers[home]
    loads, fits = np.zeros((len(boxes), devices + 3 * servers)), np.ones(len(boxes), dtype=bool)
    sent = np.flatnonzero(boxes.device < devices)
    tiles = boxes.select(boxes.device < devices)
    costs = price(gemm, tiles, columns)
    loads[sent, tiles.device] = costs.ideal_s
    loads[sent, devices + home] = costs.down_bytes / keeper.egress_bytes_per_s
    loads[sent, devices + servers + home] = costs.up_bytes / keeper.ingress_bytes_per_s
    loads[sent, devices + 2 * servers + home] = partial_sum_seconds_of(gemm, tiles, costs, keeper)
    fits[sent] = costs.kept < 3
    own = boxes.device == devices
    loads[own, devices + 2 * servers + home] = server_seconds_of(gemm, boxes.select(own), keeper)
    return loads, fits & np.isfinite(loads).all(axis=1)


def _rest(gemm: Gemm, columns: DeviceColumns, fleet: Fleet, home: int) -> Floats:
    """What the GEMM asks of them whatever its boxes are."""
    load = tiled_load(gemm, Tiles.of([]), Placement(servers=(home,), shares=(1.0,)), columns, fleet.servers)
    egress = load.egress / np.array([server.egress_bytes_per_s for server in fleet.servers])
    ingress = load.ingress / np.array([server.ingress_bytes_per_s for server in fleet.servers])
    return np.concatenate([load.ideal_s, egress, ingress, load.server_s])


def _incidence(blocks: Sequence[_Block]) -> tuple[Ints, Ints]:
    """(cell, box) of every cell that a box holds, numbered through all copies of all blocks."""
    rows, columns, cell, box = [], [], 0, 0
    for block in blocks:
        for _ in range(block.copies):
            rows.append(block.holds[0] + cell)
            columns.append(block.holds[1] + box)
            cell, box = cell + block.cells, box + len(block.boxes)
    return np.concatenate(rows), np.concatenate(columns)
