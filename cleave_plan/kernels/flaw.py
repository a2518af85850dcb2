"""What a check found wrong with a tile."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaw:
    """One wrong element, by its place in the whole product: what stands there and what should."""

    item: int
    row: int
    column: int
    found: float
    expected: float

    def __str__(self) -> str:
        place = f"element [{self.item}, {self.row}, {self.column}]"
        return f"{place} is {self.found:.9g} where {self.expected:.9g} belongs"
