"""Pages in headless Chromium (Debian's package): nothing is asked of the network, every chart has marks, keys suffice."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from page_cases import write_pages

from cleave_plan.api import generate_fleet, make_plan, simulate_plan
from cleave_plan.report.page.document import page_html
from cleave_plan.report.page.plan import plan_page

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (apt-get install chromium)"),
]

KINDS = ["plan", "simulation", "churn", "comparison", "run"]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_pages(tmp_path_factory.mktemp("pages"))


def marks_of(browser: Browser) -> list[int]:
    """Drawn marks (paths in the chart's marks group) of each figure."""
    marks = "f.querySelectorAll('.chart svg path, .chart svg rect').length"
    return list(browser.run(f"[...document.querySelectorAll('figure')].map(f => {marks})"))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_page_opens_without_network_or_errors(pages: dict[str, Path], kind: str, dark: bool) -> None:
    """No console error, no request but the file itself, every figure drawn with marks, the ground follows the colour scheme."""
    with Browser(dark=dark) as browser:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        browser.call("Emulation.setEmulatedMedia", features=[scheme])
        browser.open(pages[kind])
        drawn = browser.run("[...document.querySelectorAll('figure')].map(f => Number(f.dataset.drawn || 0))")
        assert drawn
        assert min(drawn) > 0
        assert min(marks_of(browser)) > 3
        asked = [event["params"]["request"]["url"] for event in browser.seen("Network.requestWillBeSent")]
        assert {url for url in asked if not url.startswith(("file:", "data:", "blob:", "about:"))} == set()
        assert browser.seen("Runtime.exceptionThrown") == browser.seen("Log.entryAdded") == []
        said = browser.seen("Runtime.consoleAPICalled")
        assert [event for event in said if event["params"]["type"] in ("error", "warning")] == []
        ground = browser.run("getComputedStyle(document.documentElement).backgroundColor").strip("rgb()").split(",")
        assert (sum(map(int, ground)) < 200) == dark
        assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
        assert browser.run("[...document.querySelectorAll('.chart')].every(c => c.scrollWidth <= c.clientWidth)")
        assert len(browser.screenshot()) > 20_000


def test_a_dark_page_prints_on_white(pages: dict[str, Path]) -> None:
    """Printed from a dark screen, lines of the grid are pale and marks dark, and a list says what is chosen."""
    with Browser(dark=True) as browser:
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        browser.open(pages["plan"])
        browser.call("Emulation.setEmulatedMedia", media="print")
        line = browser.run("getComputedStyle(document.querySelector('.mark-rule.role-axis-grid line')).stroke")
        assert min(map(int, line.strip("rgb()").split(","))) > 200
        assert browser.run("[...document.querySelectorAll('select')].every(s => s.offsetWidth > 0)")


def test_keys_reach_everything(pages: dict[str, Path]) -> None:
    """Tab goes to the skip link first, then to every list and table; an arrow key in a list draws another product's tiles."""
    with Browser() as browser:
        browser.open(pages["plan"])
        at, seen = "document.activeElement", []
        for _ in range(40):
            browser.press("Tab")
            seen.append(browser.run(f"{at}.tagName + '.' + ({at}.id || {at}.className)"))
        assert seen[0] == "A.skip"
        lists = browser.run("[...document.querySelectorAll('select')].map(s => 'SELECT.' + s.id)")
        assert set(lists) <= set(seen)
        assert any(place.startswith("SUMMARY") for place in seen)
        tiles = lists[-1].removeprefix("SELECT.")
        picture = f"document.getElementById('{tiles}').closest('figure').querySelector('svg').outerHTML"
        before = browser.run(picture)
        browser.run(f"document.getElementById('{tiles}').focus()")
        browser.press("ArrowDown")
        browser.run("new Promise(done => setTimeout(done, 500))")
        assert browser.run(f"document.getElementById('{tiles}').value") == "1"
        assert browser.run(picture) != before


@pytest.mark.parametrize("training", [False, True], ids=["forward", "training"])
def test_a_thousand_devices_stay_small_and_quick(tmp_path: Path, training: bool) -> None:
    """Under 5 MB; something is seen at once, nothing holds the page up for long, every chart answers a choice at once."""
    from cleave_plan.api import load_onnx
    from models.registry import build

    model = tmp_path / "opt.onnx"
    model.write_bytes(build("opt-13b").SerializeToString())
    workload = load_onnx(model, dims={"batch": 128, "seq": 1024}, training=training)
    fleet = generate_fleet(1000)
    plan = make_plan(workload, fleet)
    page = tmp_path / "plan.html"
    page.write_text(page_html(plan_page(plan, fleet, simulate_plan(plan, workload, fleet, timeline=True))))
    assert page.stat().st_size < 5e6
    with Browser(height=900) as browser:
        browser.call("Page.addScriptToEvaluateOnNewDocument", source=LONG_TASKS)
        browser.open(page)
        painted_ms = browser.run("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        longest_ms = browser.run("Math.max(0, ...window.longTasks)")
        redraw = "const t = performance.now(); await draw(f); took.push(performance.now() - t);"
        all_again = f"for (const f of document.querySelectorAll('figure')) {{ {redraw} }}"
        answers_ms = browser.run(f"(async () => {{ const took = []; {all_again} return took }})()")
        assert min(marks_of(browser)) > 3
    print(f"painted after {painted_ms:.0f} ms, longest task {longest_ms:.0f} ms, a chart drawn in {max(answers_ms):.0f} ms")
    assert max(painted_ms, longest_ms, *answers_ms) < 20_000  # a hang, not a speed, is what this finds


LONG_TASKS = """
window.longTasks = [];
new PerformanceObserver((list) => window.longTasks.push(...list.getEntries().map((entry) => entry.duration)))
  .observe({ type: "longtask", buffered: true });
"""
