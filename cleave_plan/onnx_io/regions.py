"""What a node with subgraphs (If, Loop, Scan) runs: its bodies, how often each, and what is known inside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from cleave_plan.onnx_io.facts import Fact


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pass:
    """One walk through a subgraph: ``own`` are the facts of its tensors, ``facts`` those of all that it sees.

    ``outputs`` are its results, ``regions`` those of its own nodes with subgraphs, by the first output of the node.
    """

    graph: onnx.GraphProto
    own: Mapping[str, Fact]
    facts: Mapping[str, Fact]
    outputs: tuple[Fact, ...]
    regions: Mapping[str, Region]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Region:
    """What the node ``path`` (an ``op``) runs.

    ``passes`` are its bodies with how often each runs, one time after the other (None: unknown, ``reason`` says why).
    ``choice`` is the branch of an If that is known to run; when the data decides (""), both branches are in ``passes`` and
    one of them runs. ``skipped`` are branches that never run, ``unwalked`` bodies of which ``reason`` says why nothing is known.
    """

    path: str
    op: str
    passes: tuple[tuple[Pass, int | None], ...] = ()
    choice: str = ""
    reason: str = ""
    skipped: tuple[onnx.GraphProto, ...] = ()
    unwalked: tuple[onnx.GraphProto, ...] = ()
