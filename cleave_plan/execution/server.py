"""The parameter server: it walks the model level by level, sends tiles to devices, and runs everything else itself."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from cleave_plan.execution.admission import Placed
from cleave_plan.execution.cores import usable_cores
from cleave_plan.execution.engines.base import Engine
from cleave_plan.execution.incidents import Incident
from cleave_plan.execution.inspection import Inspector
from cleave_plan.execution.recovery import Figures
from cleave_plan.execution.tally import LevelTiming, Tally, TileTime
from cleave_plan.execution.tiles import LevelRun
from cleave_plan.execution.watch import Watch
from cleave_plan.kernels.arrays import Array
from cleave_plan.kernels.channel_blocks import PLAIN, Blocks
from cleave_plan.kernels.tile import Product
from cleave_plan.onnx_io.blocked_tensors import ConvProduct, blocked_tensors
from cleave_plan.onnx_io.epilogues import Ending, EndingFinder, ended_operands
from cleave_plan.onnx_io.importer import ImportedModel
from cleave_plan.onnx_io.ort_session import Outlets
from cleave_plan.onnx_io.products import Operands, chain_operands, operands_of
from cleave_plan.onnx_io.refusal import Value
from cleave_plan.onnx_io.runtime import ServerRuntime
from cleave_plan.onnx_io.segments import RunOrder, run_order, segment_of
from cleave_plan.onnx_io.weights import Weights
from cleave_plan.progress import Progress
from cleave_plan.workload.gemm import Gemm

if TYPE_CHECKING:
    from cleave_plan.onnx_io.chains import ChainOfNodes

SHARED_BYTES = 1 << 8
"""Weights of this size are brought within reach of devices once; smaller ones go with each job."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunResult:
    """What a run gave.

    ``level_s[d]``: seconds of level d with the server nodes before it; the last entry is what follows the last level.
    ``timings[d]``: what of them the tiles of level d took, from the first one's leaving to the last result.
    ``device_s``: seconds in which each device multiplied. Bytes are those of operand pieces and results, as a link would
    carry them. ``tiles_run`` are those of devices, ``tiles_on_server`` those that a plan leaves to the server in a GEMM that
    devices share; a GEMM counts as on devices when any tile of it is. ``runtime`` ran the server's nodes; ``notes`` are
    sentences about what else had to. ``incidents``: what happened to devices on the way, and where their tiles went.
    ``tiles_checked`` tiles of devices were checked, which took the server ``check_s`` seconds; ``reproducible``: in fixed blocks.
    ``tile_times``: when each tile was there, in the order of their coming.
    """

    outputs: Mapping[str, Value]
    seconds: float
    level_s: tuple[float, ...]
    timings: tuple[LevelTiming, ...]
    tiles_run: int
    tiles_on_server: int
    gemms_on_devices: int
    gemms_on_server: int
    bytes_down: int
    bytes_up: int
    device_s: Mapping[str, float]
    workers: int
    runtime: str
    notes: tuple[str, ...]
    incidents: tuple[Incident, ...] = ()
    tiles_checked: int = 0
    check_s: float = 0.0
    reproducible: bool = False
    tile_times: tuple[TileTime, ...] = ()


class Walk:
    """Batches through one model, one after another.

    ``integrity``: returned tiles are checked. ``finishing``: convolutions are finished tile by tile, with what follows them in
    the model, where tiles are neither checked (a check is of products) nor computed in fixed blocks. ``block``: so many channels
    are a block of the images between those that onnxruntime finishes (0: images lie as the model has them).
    """

    def __init__(
        self,
        imported: ImportedModel,
        placed: Mapping[str, Placed],
        engine: Engine,
        *,
        runtime: str,
        progress: Progress,
        integrity: bool = False,
        finishing: bool = False,
        block: int = 0,
    ) -> None:
        workload = imported.workload
        self._imported, self._engine, self._progress = imported, engine, progress
        self._weights = Weights(imported.model, imported.path)
        outlets = Outlets(room=engine.empty, shapes=imported.tensor_shapes, threads=usable_cores())
        self._runtime = ServerRuntime(
            imported.model, self._weights, choice=runtime, where=str(imported.path), outlets=outlets
        )  # fmt: skip
        # A pinned GEMM is a part of its node, which runs with the server's other nodes.
        self._own = [gemm for gemm in workload.gemms if not gemm.pinned]
        self._finder = EndingFinder(imported, {gemm.output: gemm.level for gemm in self._own}, self._weights)
        self._finishing = finishing and not integrity
        self._block = block if self._finishing else 0
        self._blocks: dict[str, Blocks] = {}
        self._joined: dict[tuple[str, ...], Array] = {}
        self._chains: dict[str, ChainOfNodes] = {}
        self._endings: dict[str, tuple[Ending, ...]] = {}
        self._seams: list[tuple[str, tuple[Gemm, ...]]] = []
        self._order = self._run_order(placed)
        self.place(placed)
        self._tally, self._watch, self._inspector = Tally(), Watch(), Inspector(on=integrity)
        self._figures: Figures | None = None
        self._next_job = 0
        self._alone = {gemm.name: segment_of([node := imported.nodes[gemm.name]], node.output) for gemm in self._own}
        self._shared: dict[str, Value] = {}

    def place(self, placed: Mapping[str, Placed]) -> None:
        """Cut the products of the batches that follow as ``placed`` says."""
        first = [gemm.name for gemm in self._own if gemm.name in placed]
        chains = {name: self._imported.chains[name] for name in first if placed[name].gemm.chain is not None}
        ends = [name for name in first if self._finishing and placed[name].away and placed[name].grid is None]
        endings = {name: found for name in ends if (found := self._finder.find(placed[name].members))}
        self._convolutions = {
            name: ConvProduct(
                product=placed[name].gemm, nodes=[self._imported.nodes[gemm.name] for gemm in placed[name].members],
                endings=endings.get(name, ()),
            )
            for name in ends if self._block and placed[name].gemm.window is not None
        }  # fmt: skip
        made_by = self._convolutions.values()
        tensors = blocked_tensors(self._imported, made_by, self._weights, self._block) if made_by else ()
        self._blocks = {name: own.blocks(self._block, tensors) for name, own in self._convolutions.items()}
        self._placed = placed
        self._levels = [
            [name for name in first if placed[name].gemm.level == level.index] for level in self._imported.workload.levels
        ]  # fmt: skip
        seams = [(name, placed[name].members) for name in first if name in chains or name in endings]
        if seams != self._seams:  # else the segments between levels stay, with what is prepared for them
            self._chains, self._endings, self._seams = chains, endings, seams
            self._order = self._run_order(placed)
        self._total = sum(len(place.away) for place in placed.values())

    def _run_order(self, placed: Mapping[str, Placed]) -> RunOrder:
        """Segments and levels. A chain's nodes are all in the chain's level."""
        levels = {gemm.output: gemm.level for gemm in self._own}
        kept: dict[str, int] = {}
        for found in self._chains.values():
            levels.update(dict.fromkeys(found.outputs, found.chain.level))
            for tensor, _ in found.sides:
                kept[tensor] = max(kept.get(tensor, 0), found.chain.level)
        for name, endings in self._endings.items():
            made = [output for ending in endings for node in ending.nodes for output in node.output]
            levels.update(dict.fromkeys(made, placed[name].gemm.level))
        workload = self._imported.workload
        return run_order(self._imported.model.graph, self._imported.depth, levels, len(workload.levels), kept)

    @property
    def jobs(self) -> tuple[str, ...]:
        """The first GEMM of each product with tiles, in the order in which a batch opens them as jobs of the engine."""
        return tuple(name for level in self._levels for name in level if self._placed[name].tiles)

    @property
    def runtime(self) -> str:
        """What runs the server's nodes, with its version."""
        return self._runtime.name

    def use(self, engine: Engine, figures: Figures | None) -> None:
        """Run the batches that follow on ``engine``, whose devices have these ``figures`` (None: they are not known).

        What was learnt of the pace of devices is forgotten: it was another engine's.
        """
        self._engine, self._figures = engine, figures
        self._watch = Watch() if figures is None else Watch(figures.seconds)

    def run(self, values: dict[str, Value], *, workers: int = 0) -> RunResult:
        """The outputs for ``values`` (graph inputs by name)."""
        begin = time.perf_counter()
        self._tally = Tally()
        self._inspector.reset()
        level_s, timings = [], []
        for depth, segment in enumerate(self._order.segments):
            start = time.perf_counter()
            values.update(self._runtime.run(segment, values))
            if depth < len(self._levels):
                timings.append(self._run_level(depth, values))
            for name in self._order.dead_after[depth]:
                values.pop(name, None)
            level_s.append(time.perf_counter() - start)
        on_devices = sum(len(place.members) for place in self._placed.values() if place.away)
        all_gemms = sum(len(place.members) for place in self._placed.values())
        return RunResult(
            outputs={value.name: self._value(value.name, values) for value in self._imported.model.graph.output},
            seconds=time.perf_counter() - begin, level_s=tuple(level_s), timings=tuple(timings),
            tiles_run=self._tally.tiles, tiles_on_server=self._tally.at_home,
            gemms_on_devices=on_devices, gemms_on_server=all_gemms - on_devices,
            bytes_down=self._tally.down, bytes_up=self._tally.up, device_s=self._tally.device_s,
            workers=workers, runtime=self._runtime.name, notes=self._runtime.notes,
            incidents=self._tally.journal.incidents, tiles_checked=self._inspector.tiles, check_s=self._inspector.seconds,
            reproducible=any(place.grid is not None for place in self._placed.values()),
            tile_times=tuple(self._tally.tile_times),
        )  # fmt: skip

    def _run_level(self, depth: int, values: dict[str, Value]) -> LevelTiming:
        """All GEMMs of a level: tiles go out first, then the server computes its own, then results are placed."""
        level = LevelRun(
            self._engine, self._tally, self._next_job, watch=self._watch, inspector=self._inspector, figures=self._figures,
            index=depth, total=self._total, label=f"level {depth + 1} of {len(self._levels)}", progress=self._progress,
        )  # fmt: skip
        lowered: dict[int, Operands] = {}
        for name in self._levels[depth]:
            if self._placed[name].tiles:
                operands = self._lowered(name, values)
                lowered[level.add(self._placed[name], operands)] = operands
        self._next_job += len(lowered)
        results: dict[str, Value] = {}
        for name in self._levels[depth]:
            if not self._placed[name].tiles:
                for member in self._placed[name].members:
                    results.update(self._runtime.run(self._alone[member.name], values))
        finished = level.finish()
        timing = level.timing
        for job, result in finished.items():
            results.update(lowered[job].finish(result))
        values.update(results)
        return timing

    def _lowered(self, name: str, values: Mapping[str, Value]) -> Operands:
        """The operands of a product or a chain."""
        placed, nodes = self._placed[name], self._imported.nodes
        tensors, beside = partial(self._operand, values=values), partial(self._side_by_side, placed.members, values)
        if name in self._chains:
            lowered = chain_operands(self._chains[name], placed.members, nodes, tensors)
        elif name in self._endings:
            lowered = ended_operands(placed.gemm, placed.members, self._endings[name], tensors, beside)
        else:
            lowered = operands_of(placed.gemm, placed.members, nodes, tensors, beside)
        if isinstance(lowered.work, Product) and self._blocks.get(name, PLAIN) != PLAIN:
            return replace(lowered, work=replace(lowered.work, blocks=self._blocks[name]))
        return lowered if placed.grid is None else replace(lowered, work=replace(lowered.work, grid=placed.grid))

    def _side_by_side(self, members: Sequence[Gemm], values: Mapping[str, Value], parts: Sequence[Array], axis: int) -> Array:
        """B operands of a joined product; kernels of convolutions that are weights lie so once for all batches."""
        key = tuple(gemm.name for gemm in members)
        nodes = [self._imported.nodes[name] for name in key]
        if any(node.op_type != "Conv" or node.input[1] in values for node in nodes):
            return np.concatenate(parts, axis)
        if key not in self._joined:
            joined = np.concatenate(parts, axis)
            joined.flags.writeable = False
            self._joined[key] = self._engine.share(joined)
        return self._joined[key]

    def _operand(self, name: str, values: Mapping[str, Value]) -> Value:
        """A tensor that devices read; a weight lies within their reach from its first use on."""
        if name in values:
            return values[name]
        if name not in self._shared:
            weight = self._weights[name].view()
            weight.flags.writeable = False  # a constant, for which devices may make themselves ready
            self._shared[name] = self._engine.share(weight) if weight.nbytes >= SHARED_BYTES else weight
        return self._shared[name]

    def _value(self, name: str, values: Mapping[str, Value]) -> Value:
        return values[name] if name in values else self._weights[name]
