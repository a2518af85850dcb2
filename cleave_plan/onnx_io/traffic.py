"""Bytes that a server operator reads and writes: what its time on the server is reckoned from."""

from __future__ import annotations

from collections.abc import Mapping

from cleave_plan.onnx_io.views import NodeView

# Views: the data stays where it is.
_VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
# Only the header of the input is read.
_HEADER_READERS = frozenset({"Shape", "Size", "EyeLike", "RandomNormalLike", "RandomUniformLike"})
# Of the first input only as many elements are read as are written (an embedding table is not read whole).
_PICKERS = frozenset({"Gather", "GatherElements", "GatherND", "Slice"})


def bytes_moved(view: NodeView, sizes: Mapping[str, int]) -> int | None:
    """Bytes read plus written by a node, its subgraphs included; None when one of them is not in ``sizes``."""
    op, moved = "" if view.domain else view.op, view.reads + view.made
    if op in _VIEWS:
        return 0
    if op in _HEADER_READERS:
        moved = view.made
    elif op in _PICKERS:
        moved = view.reads[1:] + 2 * view.made
    try:
        return sum([sizes[name] for name in moved])
    except KeyError:
        return None
