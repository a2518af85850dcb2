"""The house rule: a module imports only from floors below its own, or from its own package."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "cleave_plan"

FLOORS = {
    "errors": -1, "units": 0, "progress": 0, "dtypes": 0, "atomic": 0, "ordering": 0, "chronicle": 0,
    "workload": 1, "fleet": 1,
    "cost": 2, "kernels": 2,
    "plan": 3,
    "planning": 4, "onnx_io": 4, "profiles": 4,
    "execution": 5, "simulation": 5,
    "training": 6,
    "report": 7,
    "api": 8, "__init__": 9, "__main__": 10,
    "cli": 9,
}  # fmt: skip

MODULES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    """The package (or top-level module) that a file belongs to."""
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    """Rooms of this package that a file imports, wherever in it the import stands."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import: write the whole name"
            base = node.module or ""
            names = [f"{base}.{alias.name}" for alias in node.names] if base == "cleave_plan" else [base]
        rooms |= {name.split(".")[1] for name in names if name.startswith("cleave_plan.")}
    return rooms


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_downward(path: Path) -> None:
    """Every arrow goes to a lower floor or stays in its room."""
    room = room_of(path)
    for other in imported_rooms(path):
        assert other == room or FLOORS[other] < FLOORS[room], (
            f"{path.name} (floor {FLOORS[room]}) imports {other} (floor {FLOORS[other]})"
        )


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_rooms_stay_small(path: Path) -> None:
    """A file that passes 350 lines is asking to be two."""
    assert len(path.read_text().splitlines()) <= 350


def test_names_of_test_modules_are_unique() -> None:
    """pytest imports them by name alone: of two with one name the second is an error, but only where both are collected."""
    names = [path.name for path in Path(__file__).parent.rglob("*.py") if path.name not in ("__init__.py", "conftest.py")]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []
