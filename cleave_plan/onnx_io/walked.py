"""A model of which every tensor is known as far as it can be, and nodes that stand for others are written out as those."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cleave_plan.onnx_io.bindings import Bindings
from cleave_plan.onnx_io.constants import initialiser_facts
from cleave_plan.onnx_io.facts import Fact
from cleave_plan.onnx_io.matrix_work import MICROSOFT, WRITTEN_OUT
from cleave_plan.onnx_io.naming import Origin, unique_names
from cleave_plan.onnx_io.operators import FUSED
from cleave_plan.onnx_io.reader import ModelFile
from cleave_plan.onnx_io.regions import Region
from cleave_plan.onnx_io.shapes import ShapeWalk


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Walked:
    """``facts`` of every tensor of ``file``, ``walk``, which found them, ``regions``: what nodes with subgraphs run, by the first
    output; ``origins``: where nodes come from that were written out, by their names."""

    file: ModelFile
    walk: ShapeWalk
    facts: dict[str, Fact]
    regions: dict[str, Region]
    origins: dict[str, Origin]


def walked(file: ModelFile, bindings: Bindings, trips: Mapping[str, int]) -> Walked:
    """Walk over ``file`` with its inputs as bound; raises InputFileError for what contradicts itself."""
    walk, facts, regions = _walk(file, bindings, trips)
    origins: dict[str, Origin] = {}
    # Each of these rooms is opened when a model needs it: most need none.
    if _has_any(file, WRITTEN_OUT):
        from cleave_plan.onnx_io.standard_bodies import write_out_bodies

        written = write_out_bodies(file, facts)
        if written is not None:
            file = written
            walk, facts, regions = _walk(file, bindings, trips)
    if regions:
        from cleave_plan.onnx_io.unrolling import write_out_scans

        file, origins = write_out_scans(file, regions, facts, walk)
    if _has_any(file, _EXPANDABLE):
        from cleave_plan.onnx_io.expansion import expand_fused

        file, expanded = expand_fused(file, facts, unique_names(file.nodes))
        origins |= {name: origins.get(origin.name, origin) for name, origin in expanded.items()}
    return Walked(file=file, walk=walk, facts=facts, regions=regions, origins=origins)


def _walk(file: ModelFile, bindings: Bindings, trips: Mapping[str, int]) -> tuple[ShapeWalk, dict[str, Fact], dict[str, Region]]:
    facts: dict[str, Fact] = initialiser_facts(file.model.graph, file.path) | dict(bindings.inputs)
    walk = ShapeWalk(opsets=file.opsets, names=bindings.names, path=file.path, trips=trips)
    return walk, facts, walk.run(file.model.graph, facts, nodes=file.nodes)


def _has_any(file: ModelFile, kinds: frozenset[tuple[str, str]]) -> bool:
    """Whether a node of the outermost graph is one of ``kinds``."""
    return not kinds.isdisjoint([view.kind for view in file.nodes])


_EXPANDABLE = FUSED | {("", "DequantizeLinear"), (MICROSOFT, "DequantizeLinear")}
"""Domain and name of the operators that may stand for others, or for a part of one."""
