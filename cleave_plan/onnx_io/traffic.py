"""Bytes that a server operator reads and writes: what its time on the server is reckoned from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cleave_plan.onnx_io.views import NodeView

# Views: the data stays where it is.
_VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
# Only the header of the input is read.
_HEADER_READERS = frozenset({"Shape", "Size", "EyeLike", "RandomNormalLike", "RandomUniformLike"})
# Of the first input only as many elements are read as are written (an embedding table is not read whole).
_PICKERS = frozenset({"Gather", "GatherElements", "GatherND", "Slice"})


def bytes_moved(view: NodeView, sizes: Mapping[str, int]) -> int | None:
    """Bytes read plus written by a node, its subgraphs included; None when one of them is not in ``sizes``."""
    if not view.domain and view.op in _VIEWS:
        return 0
    written = _total(view.made, sizes)
    if view.domain:
        read = _total(view.reads, sizes)
    elif view.op in _HEADER_READERS:
        read = 0
    elif view.op in _PICKERS and written is not None:
        rest = _total(view.reads[1:], sizes)
        read = None if rest is None else rest + written
    else:
        read = _total(view.reads, sizes)
    return None if read is None or written is None else read + written


def _total(names: Sequence[str], sizes: Mapping[str, int]) -> int | None:
    try:
        return sum([sizes[name] for name in names])
    except KeyError:
        return None
