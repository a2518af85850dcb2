"""The published JSON Schema: it is the code's, it is valid, and it accepts and refuses what the reader does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from jsonschema import Draft202012Validator
from plan_cases import example
from planfile_cases import BAD_DOCUMENTS, random_plans

from cleave_plan.plan.document import COLUMNS
from cleave_plan.plan.plan import SCHEMA_VERSION, Plan
from cleave_plan.plan.planfile import plan_document
from cleave_plan.plan.schema import SCHEMA_FILE, plan_schema, schema_text

VALIDATOR = Draft202012Validator(json.loads(SCHEMA_FILE.read_text()))

BEYOND_A_SCHEMA = {
    "columns of unequal length", "device column longer", "stop at start", "stop below start", "device out of range",
    "GEMM named twice", "GEMM in two assignments", "unknown server", "server twice", "server not first", "share missing",
    "shares above 1", "device name twice", "server name twice",
}  # fmt: skip
"""Relations between fields, which JSON Schema cannot state; docs/plan-format.md lists them."""


def test_the_committed_schema_is_the_codes() -> None:
    """After a change of the structs: ``python -m cleave_plan.plan.schema``."""
    assert SCHEMA_FILE.read_text() == schema_text()
    Draft202012Validator.check_schema(plan_schema())
    assert plan_schema()["properties"]["schema_version"]["enum"] == [SCHEMA_VERSION]


@given(random_plans())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_plan_is_valid(plan: Plan) -> None:
    """Whatever is written validates."""
    VALIDATOR.validate(plan_document(plan))


@pytest.mark.parametrize("name", BAD_DOCUMENTS)
def test_the_schema_refuses_what_the_reader_refuses(name: str) -> None:
    """Every fault of one field is visible to the schema; relations between fields are not."""
    edit = BAD_DOCUMENTS[name][0]
    document = plan_document(example()[0])
    edit(document)
    assert VALIDATOR.is_valid(document) == (name in BEYOND_A_SCHEMA)


def described(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every property of the schema and of its definitions."""
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
    for name, definition in schema.get("$defs", {}).items():
        yield from described(definition, name)


def leaves(field: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The numbers inside a field: itself, its items, its values, its alternatives."""
    if field.get("type") in ("number", "integer"):
        yield field
    for inner in (field.get("items"), field.get("additionalProperties"), *field.get("anyOf", [])):
        if isinstance(inner, dict):
            yield from leaves(inner)


def test_every_field_is_described_and_every_number_has_a_unit() -> None:
    """A reader of the schema alone learns what each field means, and the unit of each number."""
    fields = dict(described(plan_schema(), "$"))
    assert len(fields) > 50
    for name, field in fields.items():
        assert field.get("description", "").endswith("."), name
        for number in leaves(field):
            assert number.get("x-unit"), name


def test_nothing_unknown_is_allowed_anywhere() -> None:
    """Every object refuses further fields and requires its own; what is younger than the format may be absent."""
    schema = plan_schema()
    objects = [schema, *(definition for definition in schema["$defs"].values() if definition.get("type") == "object")]
    assert len(objects) == 8
    for definition in objects:
        assert definition["additionalProperties"] is False
        younger = {"trips", "percentile", "recompute", "held_a", "held_b"}
        assert set(definition["required"]) == set(definition["properties"]) - younger
    assert set(COLUMNS) <= set(schema["$defs"]["AssignmentDocument"]["properties"])
