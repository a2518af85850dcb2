"""The table: which model, at which dimensions, over how many devices of which preset."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row. ``model`` is a name of ``python -m models --list``; ``dims`` bind its free dimensions."""

    model: str
    dims: dict[str, int]
    preset: str
    devices: tuple[int, ...]


CASES = {
    "opt-13b": Case(model="opt-13b", dims={"batch": 128, "seq": 1024}, preset="cleave", devices=(64, 256, 1024)),
    "llama-2-70b": Case(model="llama-2-70b", dims={"batch": 128, "seq": 1024}, preset="cleave", devices=(64, 256, 1024)),
    "vit-base": Case(model="vit-base", dims={"batch": 128}, preset="measured-2023", devices=(16, 64, 256)),
    "smoke": Case(model="gpt-tiny", dims={"batch": 2, "seq": 16}, preset="cleave", devices=(4, 8)),
}
