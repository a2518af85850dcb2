"""A gradient file on the terminal and as a JSON document: what its inputs and outputs are called, and what has no gradient."""

from __future__ import annotations

from math import prod
from typing import Any

from cleave_plan.onnx_io.gradient.build import GradientModel
from cleave_plan.onnx_io.gradient.work import Recomputation
from cleave_plan.report.tables import Column, Fact, Screen, Sheet
from cleave_plan.units import Unit, count, format_value, plural

_COLUMNS = (
    Column("parameter", numeric=False), Column("shape", numeric=False), Column("elements"), Column("gradient", numeric=False),
)  # fmt: skip
_LISTED = 40
"""Most parameters that the terminal report lists."""


def gradient_document(made: GradientModel, out: str) -> dict[str, Any]:
    """The JSON document of ``gradient``."""
    names = made.names
    return {
        "out": out,
        "loss": names.loss,
        "target": names.target,
        "inputs": list(made.inputs),
        "parameters": [
            {"name": name, "shape": list(made.shapes[name]), "gradient": output} for name, output in names.gradients.items()
        ],
        "statistics": dict(names.statistics),
        "kept_outputs": list(names.kept),
        "constants": dict(made.constants),
        "nodes": {"forward": made.forward_nodes, "added": made.added_nodes},
        "recomputation": _recomputation_document(made.recomputation),
        "notes": list(made.notes),
    }


def _recomputation_document(found: Recomputation | None) -> dict[str, Any] | None:
    """``live_bytes``: most bytes alive during a level of GEMMs, weights left out; ``plain_…``: with every forward value kept."""
    return None if found is None else {
        "segments": found.segments, "live_bytes": found.after.live_bytes, "plain_live_bytes": found.before.live_bytes,
        "gemm_flop": found.after.gemm_flop, "plain_gemm_flop": found.before.gemm_flop,
    }  # fmt: skip


def gradient_text(made: GradientModel, screen: Screen, *, out: str) -> str:
    """The terminal report of ``gradient``."""
    names, sheet = made.names, Sheet(screen)
    sheet.heading(f"Training graph {out}")
    elements = sum(prod(made.shapes[name]) for name in names.gradients)
    facts = [
        Fact("loss", names.loss, "output"),
        Fact("inputs", ", ".join(made.inputs) or "none", f"{names.target} holds the targets" if names.target else ""),
        Fact("parameters", count(len(names.gradients)), f"{count(elements)} elements, each with an output for its gradient"),
        Fact("nodes", count(made.forward_nodes + made.added_nodes), f"{count(made.forward_nodes)} of them forward"),
    ]
    if names.statistics:
        facts.append(
            Fact("statistics", count(len(names.statistics)), "running statistics, each with an output for its new value")
        )
    if made.recomputation is not None and made.recomputation.segments > 1:
        facts += _recomputation_facts(made.recomputation)
    if made.constants:
        facts.append(Fact("constants", count(len(made.constants)), _reasons(made)))
    sheet.facts(facts)
    rows = [
        (name, f"[{', '.join(map(str, made.shapes[name]))}]", count(prod(made.shapes[name])), output)
        for name, output in list(names.gradients.items())[:_LISTED]
    ]
    sheet.heading("Gradients")
    sheet.table(_COLUMNS, rows)
    if len(names.gradients) > _LISTED:
        sheet.notes([f"{plural(len(names.gradients) - _LISTED, 'parameter')} more: --json lists all"], label="and")
    sheet.notes(made.notes)
    return sheet.text()


def _recomputation_facts(found: Recomputation) -> list[Fact]:
    before, after = found.before, found.after
    return [
        Fact(
            "live memory", _size(after.live_bytes),
            f"at most at once, weights left out; {_size(before.live_bytes)} with all forward values kept, of which "
            f"{found.segments - 1} of {plural(found.segments, 'segment')} are now computed twice",
        ),
        Fact(
            "GEMM work", format_value(after.gemm_flop, Unit.FLOP),
            f"{after.gemm_flop / before.gemm_flop:.2f} x the {format_value(before.gemm_flop, Unit.FLOP)} with all values kept",
        ),
    ]  # fmt: skip


def _size(found: int | None) -> str:
    return "not known" if found is None else format_value(found, Unit.BYTES)


def _reasons(made: GradientModel) -> str:
    """Floating-point initialisers without a gradient, by reason."""
    groups: dict[str, list[str]] = {}
    for name, reason in made.constants.items():
        groups.setdefault(reason.split(" of ")[0], []).append(name)
    parts = []
    for reason, members in groups.items():
        listed = ", ".join(members[:3]) + (", ..." if len(members) > 3 else "")
        parts.append(f"{reason}: {listed}")
    return "without a gradient; " + "; ".join(parts)
