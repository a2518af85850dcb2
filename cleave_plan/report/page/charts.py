"""Specifications of the charts (Vega-Lite), each over columns of the same names as its fields.

Colours are Okabe and Ito's, which the colour-blind can tell apart, and every colour has a label beside it or in a tooltip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8d8d8d", "#b3a500")

SHAPES = ("circle", "square", "triangle-up", "cross", "diamond", "triangle-right", "triangle-down")
"""Fewer than there are colours, so that the pairs of many systems differ."""

Spec = dict[str, Any]


def colour(field: str, domain: Sequence[str], title: str | None = None) -> Spec:
    """A colour for each of ``domain``, in its order."""
    scale = {"domain": list(domain), "range": [COLOURS[place % len(COLOURS)] for place in range(len(domain))]}
    return {"field": field, "type": "nominal", "scale": scale, "title": title}


def lanes_height(lanes: int) -> int:
    """Pixels for lanes that can be read, up to 40 of them; more share what 40 have, or a pixel each."""
    return max(20 * min(lanes, 40), lanes, 40)


def bars(name: str, value: str, *, by: Spec | None = None, rows: int, tooltip: Sequence[str]) -> Spec:
    """Horizontal bars, one for each name, in the rows' order."""
    encoding: Spec = {
        "y": {"field": name, "type": "nominal", "sort": None, "title": None, "axis": {"labelLimit": 320}},
        "x": {"field": value, "type": "quantitative"},
        "tooltip": [{"field": field} for field in tooltip],
    }
    if by is not None:
        encoding["color"] = by
    return {"mark": {"type": "bar", "aria": False}, "encoding": encoding, "height": lanes_height(rows)}


def with_ticks(spec: Mapping[str, Any], value: str) -> Spec:
    """Bars with a tick at ``value`` on each; the axis is called as the bars' values are, not after both."""
    shared = {"y": spec["encoding"]["y"]}
    own = spec["encoding"]["x"]
    axis = {"type": "quantitative", "title": own["field"]}
    tick = {
        "mark": {"type": "tick", "thickness": 2, "color": "#d55e00", "aria": False},
        "encoding": {"x": {"field": value, **axis}, **shared, "tooltip": spec["encoding"]["tooltip"]},
    }
    bar = {"mark": spec["mark"], "encoding": {**spec["encoding"], "x": {**own, **axis}}}
    return {"layer": [bar, tick], "height": spec["height"]}


def gantt(lane: str, start: str, stop: str, by: Spec, *, lanes: int, tooltip: Sequence[str], axis: str) -> Spec:
    """Slices of time, a lane for each name."""
    labels = lanes <= 40
    return {
        "mark": {"type": "rect", "aria": False},
        "encoding": {
            "y": {"field": lane, "type": "nominal", "sort": None, "title": None, "axis": {"labelLimit": 220} if labels else None},
            "x": {"field": start, "type": "quantitative", "title": axis}, "x2": {"field": stop},
            "color": by, "tooltip": [{"field": field} for field in tooltip],
        },
        "height": lanes_height(lanes),
    }  # fmt: skip


def boxes(*, by: Spec) -> Spec:
    """Tiles of a product to scale: columns of the result to the right, rows downwards."""
    return {
        "mark": {"type": "rect", "stroke": "currentColor", "strokeWidth": 0.5, "fillOpacity": 0.75, "aria": False},
        "encoding": {
            "x": {"field": "column from", "type": "quantitative", "title": "columns (N)", "scale": {"nice": False}},
            "x2": {"field": "column to"},
            "y": {"field": "row from", "type": "quantitative", "title": "rows (M)", "scale": {"reverse": True, "nice": False}},
            "y2": {"field": "row to"},
            "color": by,
            "tooltip": [
                {"field": field}
                for field in ("device", "row from", "row to", "column from", "column to", "inner from", "inner to", "batch items")
            ],
        },
        "height": 420,
    }


def lines(x: str, y: str, by: Spec, *, tooltip: Sequence[str], log: bool = True, axis: str = "") -> Spec:
    """One line for each name over ``x``; both axes logarithmic, or else linear over whole numbers."""
    scale = {"type": "log"} if log else {}
    ticks = {} if log else {"axis": {"tickMinStep": 1, "format": "d"}}
    return {
        "mark": {"type": "line", "point": True, "aria": False},
        "encoding": {
            "x": {"field": x, "type": "quantitative", "scale": {**scale, "nice": False}, "title": x, **ticks},
            "y": {"field": y, "type": "quantitative", "scale": scale, "title": axis or y},
            "color": by, "tooltip": [{"field": field} for field in tooltip],
        },
        "height": 360,
    }  # fmt: skip


def points(x: str, y: str, *, by: Spec | None = None, tooltip: Sequence[str], axes: tuple[str, str]) -> Spec:
    """One point for each row."""
    encoding: Spec = {
        "x": {"field": x, "type": "quantitative", "title": axes[0]}, "y": {"field": y, "type": "quantitative", "title": axes[1]},
        "tooltip": [{"field": field} for field in tooltip],
    }  # fmt: skip
    if by is not None:
        encoding["color"] = by
    return {"mark": {"type": "circle", "size": 40, "opacity": 0.7, "aria": False}, "encoding": encoding, "height": 320}
