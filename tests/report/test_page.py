"""Pages as files: whole, self-contained, readable without scripts, and safe with any name."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from page_cases import write_pages

from cleave_plan.api import write_page
from cleave_plan.errors import InputFileError, UsageError
from cleave_plan.report.page.charts import colour, lines
from cleave_plan.report.page.document import Chart, Data, Page, Section, page_html
from cleave_plan.report.page.run import SERVER, run_page
from cleave_plan.report.tables import Fact

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Reader(HTMLParser):
    """Checks that elements nest, and gathers text, addresses and ids."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.charts: list[dict[str, Any]] = []
        self.words: list[str] = []
        self._script = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids += [found["id"]] if found.get("id") else []
        self.addresses += [found[name] or "" for name in ("src", "href") if name in found]
        if tag not in VOID:
            self.open.append(tag)
        self._script = found.get("class") or "code" if tag == "script" else ""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._script in ("spec", "data"):
            self.charts.append({self._script: json.loads(data)})
        elif self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data)


def read(content: str) -> Reader:
    reader = Reader()
    reader.feed(content)
    assert reader.open == []
    assert len(reader.ids) == len(set(reader.ids))
    return reader


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_pages(tmp_path_factory.mktemp("pages"))


def test_a_run_needs_no_plan_beside_it(pages: dict[str, Path], tmp_path: Path) -> None:
    """What `run --record` writes without a fleet has its page: the timeline of its devices, incidents with what was seen."""
    document = json.loads((pages["run"].parent / "run.json").read_text())
    incident = {
        "kind": "lost", "devices": ["device-2"], "level": 1, "at_s": 0.25, "silent_s": 0.0, "tiles": 3, "pieces": 4, "takers": 2,
        "replan_s": 0.01, "recovery_s": 0.5, "where": "worker 1", "reason": "its process ended",
    }  # fmt: skip
    (tmp_path / "run.json").write_text(json.dumps(document | {"comparison": None, "incidents": [incident]}))
    write_page(tmp_path / "run.json", tmp_path / "run.html")
    reader = read((tmp_path / "run.html").read_text())
    assert {"A run", "its process ended", "250 ms", "500 ms"} <= set(reader.words)
    assert "A run beside its plan" not in reader.words
    columns = next(chart["data"] for chart in reader.charts if "data" in chart)[0]["columns"]
    assert rows_of(columns["device"]) == sum(max(len(level["device_s"]), 1) for level in document["levels"])


def test_devices_of_a_run_are_in_natural_order(pages: dict[str, Path]) -> None:
    """Twelve devices by their numbers, in the timeline's lanes and in the table; the server is the last."""
    document = json.loads((pages["run"].parent / "run.json").read_text())
    names = [f"device-{place}" for place in (10, 2, 11, 1, 9, 3, 12, 4, 8, 5, 7, 6)]
    for level in document["levels"]:
        level["device_s"] = dict.fromkeys(names, 1.0)
    for level in document["comparison"]["levels"]:
        level["devices"] = dict.fromkeys(names, next(iter(level["devices"].values()))) if level["devices"] else {}
    document["levels"].append(document["levels"][0] | {"device_s": {}})
    page = run_page(document)
    (timeline,) = (section for section in page.sections if section.heading == "Timeline")
    ordered = [f"device-{place}" for place in range(1, 13)]
    assert list(dict.fromkeys(timeline.charts[0].data[0].columns["device"])) == [*ordered, SERVER]
    (table,) = (section.table for section in page.sections if section.heading == "Devices")
    assert table is not None
    assert [row[0] for row in table[1]] == ordered


def rows_of(column: list[Any] | dict[str, list[Any]]) -> int:
    """How many rows a column of a chart's data has; one of repeated words holds places among its words."""
    if isinstance(column, list):
        return len(column)
    assert set(column["at"]) == set(range(len(column["words"])))
    return len(column["at"])


@pytest.mark.parametrize("kind", ["plan", "simulation", "churn", "comparison", "run"])
def test_a_page_is_whole_and_asks_for_nothing(pages: dict[str, Path], kind: str) -> None:
    """Elements nest, ids are unique, every address is inside the page, the policy forbids the network, charts have rows."""
    content = pages[kind].read_text()
    found = read(content)
    assert all(address.startswith("#") for address in found.addresses)
    assert "default-src 'none'" in content
    sets = [one for chart in found.charts for one in chart.get("data", [])]
    assert sets
    assert all(len({rows_of(column) for column in one["columns"].values()}) == 1 for one in sets)
    assert all(next(iter(one["columns"].values())) for one in sets)
    assert len(content) < 5e6


def test_a_plan_page_says_what_the_plan_says(pages: dict[str, Path]) -> None:
    """Headline figures and each kind of section are text, readable without scripts."""
    words = " ".join(read(pages["plan"].read_text()).words)
    for expected in (
        "batch time",
        "proven bound",
        "gap",
        "Where the time goes",
        "A level on its devices",
        "Tiles of a product",
        "SHA-256",
    ):
        assert expected in words


def test_names_cannot_break_out_of_a_page() -> None:
    """Markup in names, in text and in data, stays text."""
    bad = '</script><img src=x onerror="alert(1)"><!-- '
    spec = lines("x", "y", colour("who", (bad,)), tooltip=("x",))
    data = Data(columns={"x": [1.0], "y": [float("nan")], "who": [bad]}, label=bad)
    chart = Chart(title=bad, caption=bad, spec=spec, data=(data,), choice=bad)
    section = Section(heading=bad, sentences=(bad,), facts=(Fact(bad, bad, bad),), charts=(chart,), table=((bad,), ((bad,),)))
    content = page_html(Page(title=bad, subtitle=bad, sections=(section,)))
    found = read(content)
    assert "<img" not in re.sub(r"<script.*?</script>", "", content, flags=re.DOTALL)
    assert next(one["data"][0]["columns"] for one in found.charts if "data" in one) == {"x": [1.0], "y": [None], "who": [bad]}


def test_documents_without_a_page(tmp_path: Path) -> None:
    """Not JSON, JSON of something else, a damaged document, nothing there: exit 4 with what was expected."""
    for content in ("{", "[]", "3", '{"a": 1}', '{"planned_batch_s": 1}', '{"kind": "comparison"}'):
        (tmp_path / "x.json").write_text(content)
        with pytest.raises(InputFileError):
            write_page(tmp_path / "x.json", tmp_path / "x.html")
    with pytest.raises(InputFileError):
        write_page(tmp_path / "none.json", tmp_path / "x.html")
    assert not (tmp_path / "x.html").exists()
    (tmp_path / "s.json").write_text('{"planned_batch_s": 1}')
    with pytest.raises(UsageError, match="belong to a plan"):
        write_page(tmp_path / "s.json", tmp_path / "x.html", model="m.onnx")
