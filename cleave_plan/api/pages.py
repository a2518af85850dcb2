"""Pages for people who would rather look than read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cleave_plan.api.fleets import load_fleet, with_servers
from cleave_plan.api.models import load_model_of
from cleave_plan.api.plans import load_plan
from cleave_plan.api.runs import simulate_plan
from cleave_plan.errors import InputFileError, UsageError


def write_page(file: str | Path, output: str | Path, *, model: str | Path | None = None, fleet: str | Path | None = None) -> int:
    """Write the page of ``file`` (a plan, or the JSON document of a simulation, a comparison or a run); its size in bytes.

    With ``model`` and ``fleet`` a plan's page also shows levels on their devices and memory beside its limits. Raises
    InputFileError for a file that has no page, UsageError without the chart library (extra ``page``).
    """
    from cleave_plan.atomic import replace_file
    from cleave_plan.plan.planfile import holds_plan
    from cleave_plan.report.page.document import page_html
    from cleave_plan.report.page.kinds import page_of
    from cleave_plan.report.page.plan import plan_page

    raw = _read(Path(file))
    if holds_plan(raw):
        plan = load_plan(file)
        some = None if fleet is None else with_servers(load_fleet(fleet), plan.server_names)
        played = None
        if some is not None and model is not None:
            played = simulate_plan(plan, load_model_of(plan, model), some, timeline=True)
        page = plan_page(plan, some, played)
    elif model is not None or fleet is not None:
        raise UsageError("--model and --fleet belong to a plan", where=str(file), remedy="leave them out")
    else:
        page = page_of(_json(raw, str(file)), str(file))
    content = page_html(page).encode()
    replace_file(Path(output), content)
    return len(content)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputFileError(f"cannot be read ({error.strerror})", where=str(path), expected="a JSON document") from error


def _json(raw: bytes, where: str) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InputFileError(f"is not JSON ({error})", where=where, expected="a JSON document") from error
