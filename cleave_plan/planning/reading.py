r"""Training steps: tilings of dX and dW that find on their devices what these were sent before.

What may be found (:mod:`cleave_plan.workload.reuse`): X and W of the forward GEMM, and, by dW, dY of the dX beside it. The
forward tilings are those that the program chose without reuse. Offered for a backward level are

- *mirrors*: the boxes of the forward tiling once more. In (tokens, features, columns) the three products of a layer are one
  box: C needs X and W, dX dY and W, dW X and dY. A device that has the same box of all three is sent dY and nothing else;
- *searched again*: the planner's own search over devices whose downlinks are shown as much faster as they were spared in the
  round before, a few times.

In both the pieces of a group of devices that share K of a dW or dX (a bar) are put in the order of what each was sent in the
forward pass, which costs nothing and makes the overlaps large. How much of it is kept is limited for each device: its memory
beside the largest tile is shared by the classes of levels in proportion to what they could find, a part of it set aside for
dY, which is held only within its level.

An option that finds pieces needs the options that left them there, in all copies of its level:

    after/c             n_L * b[c]  <=  sum of z over the choices of each option that c reads after

dY by itself is worth nothing in large fleets: with |X| + |W| + |dY| <= S and |dX| + |dW| <= U, by Loomis and Whitney and then
Cauchy and Schwarz, V_dX + V_dW <= sqrt(|dY|)*(sqrt(|W||dX|) + sqrt(|X||dW|)) <= sqrt(|dY|*(|X| + |W|)*U) <= S*sqrt(U)/2,
which is what two groups of devices reach that share nothing. It helps where sides of the GEMM limit the tiles, in small fleets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.cost.level import partial_sum_seconds, server_rate, server_tile_seconds
from cleave_plan.cost.tile import BOX, STREAM_SHARE, Held, Ints, Tiles, price
from cleave_plan.fleet.device import Server
from cleave_plan.plan.plan import Mode
from cleave_plan.planning.bounds import Links
from cleave_plan.planning.holding import found_elements, largest_overlap, on_devices, pieces
from cleave_plan.planning.joint import joint_options
from cleave_plan.planning.level import level_bound
from cleave_plan.planning.option import Option, Part, mode_of
from cleave_plan.planning.options import options_for
from cleave_plan.planning.terms import eligible, only, terms_of
from cleave_plan.workload.gemm import Gemm
from cleave_plan.workload.reuse import SIDES, Reading, Side, operand_of

Floats = NDArray[np.float64]

_ROUNDS = 2
"""Searches with downlinks shown faster."""

_WORTH = 0.15
"""A level is searched again where some part's tiles as they are would be spared at least this share of their bytes: below,
what each device is spared is too uneven for the level to end sooner."""

_MOST_SPARED = 0.05
"""A downlink is shown as at most so much faster as if only this share of the bytes had to be sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where an operand of a part may be found: the reading, and the forward option whose tiles had it (None: the dX option
    of the same level)."""

    reading: Reading
    option: Option | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One part of a backward level (of one copy) and its place there, with where each of its operands may be found."""

    place: int
    part: Part
    columns: DeviceColumns
    sources: Mapping[Side, Source]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingLevel:
    """A backward level class; ``readers`` stand after those whose pieces they find.

    ``room``: bytes that each device may keep for one copy of the level; ``brief_room``: bytes of pieces that come and are
    found within it. ``server`` (None: it may not compute) stands for ``homes``.
    """

    readers: Sequence[Reader]
    links: Links
    server: Server | None
    homes: tuple[int, ...]
    inner: bool
    room: Floats
    brief_room: Floats

    def options(self, plain: Sequence[Option]) -> Iterator[list[Option]]:
        """Sets of options, one for each part; ``plain``: those of the level without reuse, a first guess of the tiles."""
        mirrored = [_mirror(reader) for reader in self.readers]
        if all(tiles is not None for tiles in mirrored):
            yield self._found([tiles for tiles in mirrored if tiles is not None])
        found = self._found([option.tiles[0] for option in plain])
        yield found
        for _ in range(_ROUNDS if max(_spared(option) for option in found) >= _WORTH else 0):
            again = self._searched([self._shown(reader, option) for reader, option in zip(self.readers, found, strict=True)])
            if not again:
                return
            found = self._found([option.tiles[0] for option in again])
            yield found

    def _searched(self, shown: Sequence[DeviceColumns]) -> list[Option]:
        """The level over devices as they are shown: by groups of devices, or its only part."""
        parts = [reader.part for reader in self.readers]
        if len(parts) > 1:
            terms = [terms_of(part.gemm) for part in parts]
            able = [only(one, eligible(own, one)) for own, one in zip(terms, shown, strict=True)]
            rates = [0.0 if self.server is None else server_rate(part.gemm, self.server) for part in parts]
            bound_s = level_bound(terms, able, self.links, rates, inner=self.inner)
            return joint_options(parts, shown, self.links, self.server, bound_s, inner=self.inner)
        found = options_for(parts[0], shown[0], self.links, self.server, inner=self.inner)
        cut = [option for option in found if option.mode is not Mode.SERVER]
        return [min(cut, key=lambda option: option.seconds(self.links))] if cut else []

    def _shown(self, reader: Reader, option: Option) -> DeviceColumns:
        """The devices with downlinks as much faster as they were spared bytes; those without a tile, as the others usually."""
        tiles, devices = option.tiles[0], len(reader.columns)
        on_device = tiles.device < devices
        whole = np.bincount(
            tiles.device[on_device], price(reader.part.gemm, tiles.select(on_device), reader.columns).down_bytes, devices
        )
        held = option.held[0].select(on_device)
        left = whole - np.bincount(tiles.device[on_device], held.a_bytes + held.b_bytes, devices)
        pace = whole / np.maximum(left, _MOST_SPARED * whole + 1e-9)
        usual = float(np.median(pace[whole > 0])) if bool((whole > 0).any()) else 1.0
        return replace(reader.columns, downlink=reader.columns.downlink * np.where(whole > 0, pace, usual))

    def _found(self, tilings: Sequence[Tiles]) -> list[Option]:
        """Options over these tiles, groups that share K put in the order of what they had, with what they find."""
        made: list[Option] = []
        for reader, tiles in zip(self.readers, tilings, strict=True):
            sources = {side: self._tiles_of(source, made) for side, source in reader.sources.items()}
            had = {side: tiles for side, tiles in sources.items() if tiles is not None}
            made.append(self._option(reader, _ordered(reader, tiles, had), had, made))
        return made

    def _tiles_of(self, source: Source, made: Sequence[Option]) -> Tiles | None:
        """The tiles that had an operand before; None where the source is not planned yet."""
        keeper = self._keeper(source, made)
        return None if keeper is None or not len(keeper.tiles[0]) else keeper.tiles[0]

    def _keeper(self, source: Source, made: Sequence[Option]) -> Option | None:
        if source.option is not None:
            return source.option
        named = {reader.part.gemm.name: option for reader, option in zip(self.readers, made, strict=False)}
        return named.get(source.reading.keeper)

    def _option(self, reader: Reader, tiles: Tiles, had: Mapping[Side, Tiles], made: Sequence[Option]) -> Option:
        """The option over ``tiles`` that finds what the memory allows of what ``had`` were sent."""
        gemm, devices = reader.part.gemm, len(reader.columns)
        lasting = sum((own.kept_bytes for own in made if own.kept_bytes is not None), np.zeros(devices))
        held, elements = ({side: np.zeros(len(tiles), dtype=np.int64) for side in SIDES} for _ in range(2))
        kept, brief = np.zeros(devices), np.zeros(devices)
        after: list[Option] = []
        for side, sent in had.items():
            source = reader.sources[side]
            room = self.brief_room if source.option is None else self.room - lasting
            held[side] = _within(gemm, tiles, side, source.reading, sent, room)
            elements[side] = found_elements(tiles, held[side], side, source.reading, sent)
            size = on_devices(gemm, tiles, elements[side], side, devices)
            kept, brief = (kept, brief + size) if source.option is None else (kept + size, brief)
            keeper = self._keeper(source, made)
            after += [keeper] if keeper is not None and size.any() else []
        option = self._priced(reader, tiles, elements)
        return replace(
            option, held_a=(held["a"],), held_b=(held["b"],), kept_bytes=kept, brief_bytes=brief, after=tuple(after),
        )  # fmt: skip

    def _priced(self, reader: Reader, tiles: Tiles, elements: Mapping[Side, Ints]) -> Option:
        gemm, devices = reader.part.gemm, reader.columns
        on_device = tiles.device < len(devices)
        size = {side: elements[side].astype(np.float64) * (operand_of(gemm, side).bits / 8) for side in SIDES}
        found = Held(a_bytes=size["a"], b_bytes=size["b"], a_item=size["a"], b_item=size["b"], resident=0.0 * size["a"])
        sent = tiles.select(on_device)
        costs = price(gemm, sent, devices, found.select(on_device))
        seconds, work = np.where(costs.kept == 3, np.inf, costs.ideal_s), np.zeros(len(devices))
        np.maximum.at(work, sent.device, costs.memory_bytes - STREAM_SHARE * devices.memory[sent.device])
        server_s = sums_s = 0.0
        if self.server is not None:
            sums_s = partial_sum_seconds(gemm, sent, costs, self.server)
            server_s = server_tile_seconds(gemm, tiles.select(~on_device), self.server)
        return Option(
            mode=mode_of(gemm, (tiles,)), tiles=(tiles,), device_s=_on_each(sent, seconds, len(devices)),
            down_bytes=float(costs.down_bytes.sum()), up_bytes=float(costs.up_bytes.sum()), work_bytes=work,
            server_s=server_s + sums_s, sums_s=sums_s, homes=self.homes if server_s > 0 else (), held=(found,),
        )  # fmt: skip


def _spared(option: Option) -> float:
    """The share of an option's operand bytes that need not be sent."""
    spared = float((option.held[0].a_bytes + option.held[0].b_bytes).sum())
    return spared / max(option.down_bytes + spared, 1.0)


def _mirror(reader: Reader) -> Tiles | None:
    """The boxes of the forward tiling, turned to the reader's axes; None where its forward GEMM is not cut."""
    for side, source in reader.sources.items():
        if source.option is None or not len(source.option.tiles[0]):
            continue
        t = source.option.tiles[0]
        m, n, k = (t.m_start, t.m_stop), (t.n_start, t.n_stop), (t.k_start, t.k_stop)
        rows, columns, depth = (k, n, m) if side == "a" else (m, k, n)  # dW = X^T dY, dX = dY W^T
        return replace(
            t, m_start=rows[0], m_stop=rows[1], n_start=columns[0], n_stop=columns[1], k_start=depth[0], k_stop=depth[1]
        )
    return None


def _ordered(reader: Reader, tiles: Tiles, had: Mapping[Side, Tiles]) -> Tiles:
    """``tiles`` with those of one footprint that share K in the order in which their devices had pieces along K."""
    if not had or not len(tiles):
        return tiles
    key = (tiles.k_start + tiles.k_stop) / 2
    for side in sorted(had, key=lambda side: reader.sources[side].option is not None):  # what lasts has the last word
        centre = _centres(reader, side, had[side], int(tiles.device.max()))
        key = np.where(np.isnan(centre[tiles.device]), key, centre[tiles.device])
    footprint = np.stack([tiles.column(f"{axis}_{end}") for axis in ("m", "n", "batch") for end in ("start", "stop")])
    _, group = np.unique(footprint, axis=1, return_inverse=True)
    group = group.ravel()
    before = np.lexsort((tiles.k_start, group))
    starts = np.flatnonzero(np.diff(group[before], prepend=-1))
    joins = tiles.k_start[before][1:] == tiles.k_stop[before][:-1]
    gaps = np.flatnonzero(~joins & (np.diff(group[before]) == 0))
    broken = np.unique(group[before][gaps])
    order = np.lexsort((np.where(np.isin(group, broken), tiles.k_start, key), group))
    length = (tiles.k_stop - tiles.k_start)[order]
    ends = np.cumsum(length)
    first = tiles.k_start[before][starts]
    base = np.repeat(first - np.concatenate([[0], ends[starts[1:] - 1]]), np.diff(np.append(starts, len(order))))
    moved = np.isin(group[order], broken)
    stop = np.where(moved, tiles.k_stop[order], ends + base)
    taken = Tiles(device=tiles.device[order], **{name: tiles.column(name)[order] for name in BOX})
    return replace(taken, k_start=stop - length, k_stop=stop)


def _centres(reader: Reader, side: Side, had: Tiles, most: int) -> Floats:
    """Where along the reader's K each device (up to number ``most``) had its piece; NaN where it had none."""
    sent = pieces(had, reader.sources[side].reading.keeper_side)
    sent = sent.turned() if reader.sources[side].reading.turned else sent
    along = (sent.column + sent.column_stop) / 2 if side == "a" else (sent.row + sent.row_stop) / 2
    centre = np.full(max(most, int(had.device.max())) + 1, np.nan)
    centre[had.device] = along
    return centre


def _within(gemm: Gemm, tiles: Tiles, side: Side, reading: Reading, had: Tiles, room: Floats) -> Ints:
    """The most rows of A (columns of B) that tiles find within ``room`` bytes of each device, which its tiles share evenly."""
    sent = pieces(had, reading.keeper_side)
    rows, columns = largest_overlap(pieces(tiles, side), sent.turned() if reading.turned else sent)
    count, across = (rows, columns) if side == "a" else (columns, rows)
    sharing = np.bincount(tiles.device, count > 0, len(room) + 1)
    own = np.append(np.maximum(room, 0.0), 0.0)[tiles.device] / np.maximum(sharing[tiles.device], 1)
    size = operand_of(gemm, side).bits / 8
    most = np.minimum(own / np.maximum(across * size, 1.0), count.astype(np.float64))
    return np.asarray(np.floor(most), dtype=np.int64)


def _on_each(tiles: Tiles, amount: Floats, devices: int) -> Floats:
    """Sums of ``amount`` (one entry per tile) over each device."""
    return np.asarray(np.bincount(tiles.device, amount, devices), dtype=np.float64)
