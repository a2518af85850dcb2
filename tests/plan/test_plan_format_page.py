"""docs/plan-format.md names everything that the code has."""

from __future__ import annotations

from pathlib import Path

from cleave_plan.plan.finding import Code
from cleave_plan.plan.plan import Mode
from cleave_plan.plan.schema import plan_schema

PAGE = (Path(__file__).parents[2] / "docs" / "plan-format.md").read_text()


def test_the_page_names_every_field_mode_and_finding() -> None:
    """Top-level fields, the fields of an assignment, the modes, and the codes of findings."""
    schema = plan_schema()
    words = [*schema["properties"], *schema["$defs"]["AssignmentDocument"]["properties"]]
    words += [member.value for member in (*Mode, *Code)]
    assert [word for word in words if f"`{word}`" not in PAGE and f'"{word}"' not in PAGE] == []
