"""A page as values, and as one HTML file: text first, charts from Vega-Lite, every chart's numbers in a table beside it.

The file asks nothing of the network: styles, script, data and the chart library are in it, and a content security policy
forbids the rest. Without scripts the facts and tables are still there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from cleave_plan.errors import UsageError
from cleave_plan.report.tables import Fact
from cleave_plan.units import count

TABLE_ROWS = 200
"""Rows of a chart's table; a longer one says how many are left out."""

VEGA_LITE = "https://vega.github.io/schema/vega-lite/v6.json"
"""The schema that specifications follow: that of the newest version in the bundle (never fetched)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """One set of rows as columns of equal length. ``label`` names it in a choice; ``sizes``: parts of the specification that
    go with it (a height, a scale's domain)."""

    columns: Mapping[str, Sequence[Any]]
    label: str = ""
    sizes: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A Vega-Lite specification over the rows named "rows", and those rows; with several sets the reader chooses by ``choice``
    (the label of the list). ``caption``: one sentence on what is shown and in which unit."""

    title: str
    caption: str
    spec: Mapping[str, Any]
    data: tuple[Data, ...]
    choice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading with sentences, facts, charts and a table (headers, rows)."""

    heading: str
    sentences: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    charts: tuple[Chart, ...] = ()
    table: tuple[Sequence[str], Sequence[Sequence[str]]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A title, one sentence that says what the page is of, and its sections."""

    title: str
    subtitle: str
    sections: tuple[Section, ...]


def page_html(page: Page) -> str:
    """The page as one self-contained HTML document. Raises UsageError when the chart library is not installed."""
    charts = [chart for section in page.sections for chart in section.charts if any(len(one) for one in chart.data)]
    scripts = f"<script>{_library()}</script><script>{_asset('page.js')}</script>" if charts else ""
    body = "".join(_section(place, section) for place, section in enumerate(page.sections))
    policy = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(page.title)}</title><style>{_asset('page.css')}</style></head><body>"
        f'<a class="skip" href="#main">Skip to the content</a><header><h1>{escape(page.title)}</h1>'
        f'<p class="quiet">{escape(page.subtitle)}</p></header><main id="main">{body}</main>{scripts}</body></html>\n'
    )


@cache
def _library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script; ``window.vegaEmbed`` is what the page calls."""
    try:
        import vl_convert
    except ImportError as error:
        raise UsageError(
            "the chart library is not installed", where="report", remedy="pip install 'cleave-plan[page]'"
        ) from error
    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle.replace("</script", "<\\/script")


@cache
def _asset(name: str) -> str:
    return files("cleave_plan.report.page").joinpath(name).read_text(encoding="utf-8")


def _section(place: int, section: Section) -> str:
    parts = [f'<section aria-labelledby="h{place}"><h2 id="h{place}">{escape(section.heading)}</h2>']
    parts += [f"<p>{escape(sentence)}</p>" for sentence in section.sentences]
    if section.facts:
        parts.append(f'<dl class="facts">{"".join(map(_fact, section.facts))}</dl>')
    parts += [_figure(f"c{place}-{number}", chart) for number, chart in enumerate(section.charts)]
    if section.table is not None:
        parts.append(f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(section.heading)}">')
        parts.append(f"{_table(*section.table)}</div>")
    return "".join([*parts, "</section>"])


def _fact(fact: Fact) -> str:
    value = f'<dd class="value">{escape(fact.value)}</dd>' if fact.value else ""
    origin = f'<dd class="origin">{escape(fact.origin)}</dd>' if fact.origin else ""
    return f"<div><dt>{escape(fact.label)}</dt>{value}{origin}</div>"


def _figure(name: str, chart: Chart) -> str:
    choice = ""
    if chart.choice:
        options = "".join(f'<option value="{place}">{escape(one.label)}</option>' for place, one in enumerate(chart.data))
        choice = f'<label>{escape(chart.choice)}: <select id="{name}-choice">{options}</select></label>'
    spec = {"$schema": VEGA_LITE, "width": "container", **chart.spec, "data": {"name": "rows"}}
    data = [{"columns": {name: _packed(one.columns[name]) for name in one.columns}, "sizes": one.sizes} for one in chart.data]
    return (
        f'<figure data-chart id="{name}" aria-describedby="{name}-caption"><figcaption id="{name}-caption">'
        f"<strong>{escape(chart.title)}</strong>{escape(chart.caption)}</figcaption>{choice}"
        f'<div class="chart" role="img" aria-label="{escape(chart.title)}. {escape(chart.caption)}"></div>'
        f"<details><summary>The numbers</summary>{''.join(map(_numbers, chart.data))}</details>"
        f'<script type="application/json" class="spec">{_json(spec)}</script>'
        f'<script type="application/json" class="data">{_json(data)}</script></figure>'
    )


def _packed(column: Sequence[Any]) -> Sequence[Any] | dict[str, Sequence[Any]]:
    """A column of words that come again and again as the words and each row's place among them; any other as it is."""
    words = list(dict.fromkeys(column)) if all(isinstance(value, str) for value in column) else []
    if not words or 2 * len(words) > len(column):
        return column
    place = {word: number for number, word in enumerate(words)}
    return {"words": words, "at": [place[word] for word in column]}


def _numbers(data: Data) -> str:
    """A chart's rows as a table."""
    names = list(data.columns)
    shown = [[_cell(data.columns[name][row]) for name in names] for row in range(min(len(data), TABLE_ROWS))]
    label = f"<p><strong>{escape(data.label)}</strong></p>" if data.label else ""
    rest = len(data) - len(shown)
    more = f'<p class="quiet">{count(rest)} more rows are not listed here.</p>' if rest > 0 else ""
    return f'{label}<div class="scroll" tabindex="0" role="region" aria-label="numbers">{_table(names, shown)}</div>{more}'


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    numeric = [bool(rows) and all(_is_number(row[place]) for row in rows) for place in range(len(headers))]
    style = ['class="number"' if number else "" for number in numeric]
    head = "".join(f'<th scope="col" {kind}>{escape(text)}</th>' for kind, text in zip(style, headers, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td {kind}>{escape(text)}</td>" for kind, text in zip(style, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _is_number(text: str) -> bool:
    return not text or text[0].isdigit() or (text[0] in "-−" and text[1:2].isdigit())


def _json(value: Any) -> str:
    """JSON that may stand inside a script element; numbers that are not finite become null, floats are cut to six digits."""
    return json.dumps(_plain(value), separators=(",", ":")).replace("<", "\\u003c")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
