"""The published JSON Schema (draft 2020-12) of the plan file, generated from :mod:`cleave_plan.plan.document`.

``plan.schema.json`` beside this module is what other programs read; ``python -m cleave_plan.plan.schema`` writes it
again after a change of the structs, and a test holds the two together.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from cleave_plan.plan.document import PlanDocument
from cleave_plan.plan.plan import SCHEMA_VERSION

SCHEMA_FILE = Path(__file__).with_name("plan.schema.json")


def plan_schema() -> dict[str, Any]:
    """The schema as a new JSON-ready dictionary."""
    generated = msgspec.json.schema(PlanDocument)
    definitions = generated["$defs"]
    root = definitions.pop(PlanDocument.__name__)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:cleave-plan:plan:{SCHEMA_VERSION}",
        **root,
        "title": "cleave-plan plan",
        "$defs": {name: definitions[name] for name in sorted(definitions)},
    }


def schema_text() -> str:
    """The schema as the text of ``plan.schema.json``."""
    return json.dumps(plan_schema(), indent=2) + "\n"


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
