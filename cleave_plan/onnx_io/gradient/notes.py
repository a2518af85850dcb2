"""What a user must see of a gradient file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx


def notes_of(
    wanted: Sequence[str], detached: Sequence[str], ties: Mapping[str, str], nodes: Sequence[onnx.NodeProto]
) -> list[str]:  # fmt: skip
    """Sentences on parameters: without a gradient (``detached``), tied again (``ties``), and read by several of ``nodes``."""
    notes = []
    if detached:
        notes.append(f"the loss does not depend on {_listed(detached)}: no gradient is given")
    notes += [
        f"{copy} is {table} transposed, as exporters untie a head from its embedding: trained as one"
        for copy, table in ties.items()
    ]
    shared = [name for name, number in _readers(wanted, nodes).items() if number > 1]
    if shared:
        notes.append(
            f"{_listed(shared)}: read by several nodes, so the gradient is the sum of theirs (tied weights; but exporters "
            "also merge parameters that happen to be equal, such as the scales of untrained norms)"
        )
    return notes


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _readers(names: Sequence[str], nodes: Sequence[onnx.NodeProto]) -> dict[str, int]:
    """How many nodes read each tensor."""
    count = dict.fromkeys(names, 0)
    for node in nodes:
        for name in set(node.input) & count.keys():
            count[name] += 1
    return count
