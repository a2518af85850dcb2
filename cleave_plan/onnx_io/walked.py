"""A model of which every tensor is known as far as it can be, and nodes that stand for others are written out as those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cleave_plan.onnx_io.bindings import Bindings
from cleave_plan.onnx_io.constants import initialiser_facts
from cleave_plan.onnx_io.expansion import Origin, expand_fused
from cleave_plan.onnx_io.facts import Fact
from cleave_plan.onnx_io.matrix_work import MICROSOFT
from cleave_plan.onnx_io.naming import unique_names
from cleave_plan.onnx_io.operators import OPERATORS
from cleave_plan.onnx_io.reader import ModelFile
from cleave_plan.onnx_io.regions import Region
from cleave_plan.onnx_io.shapes import ShapeWalk
from cleave_plan.onnx_io.standard_bodies import write_out_bodies
from cleave_plan.onnx_io.unrolling import write_out_scans
from cleave_plan.onnx_io.views import NodeView


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
    written = write_out_bodies(file, facts)
    if written is not None:
        file = written
        walk, facts, regions = _walk(file, bindings, trips)
    file, origins = write_out_scans(file, regions, facts, walk) if regions else (file, {})
    if _may_expand(file.nodes):
        file, expanded = expand_fused(file, facts, unique_names(file.nodes))
        origins |= {name: origins.get(origin.name, origin) for name, origin in expanded.items()}
    return Walked(file=file, walk=walk, facts=facts, regions=regions, origins=origins)


def _walk(file: ModelFile, bindings: Bindings, trips: Mapping[str, int]) -> tuple[ShapeWalk, dict[str, Fact], dict[str, Region]]:
    facts: dict[str, Fact] = initialiser_facts(file.model.graph, file.path) | dict(bindings.inputs)
    walk = ShapeWalk(opsets=file.opsets, names=bindings.names, path=file.path, trips=trips)
    return walk, facts, walk.run(file.model.graph, facts, nodes=file.nodes)


def _may_expand(nodes: Sequence[NodeView]) -> bool:
    """Whether a node may stand for others: a fused one, or a dequantisation before a product."""
    return not _EXPANDABLE.isdisjoint([(view.domain, view.op) for view in nodes])


_EXPANDABLE = frozenset(
    [(domain, "DequantizeLinear") for domain in ("", MICROSOFT)]
    + [kind for kind, operator in OPERATORS.items() if operator.expand is not None]
)
"""Domain and name of the operators that may stand for others, or for a part of one."""
