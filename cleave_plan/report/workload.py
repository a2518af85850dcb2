"""A model's work on the terminal and as a JSON document: GEMMs, totals, levels, server operators."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from cleave_plan.report.tables import Column, Fact, Screen, Sheet, as_size
from cleave_plan.units import Unit, count, format_value, plural
from cleave_plan.workload.gemm import Gemm, Operand, Phase, Role
from cleave_plan.workload.graph import ServerOperator, TensorInfo, UnknownWork, Workload
from cleave_plan.workload.recompute import LEAST_SPARED, Recomputed

_COLUMNS = (
    Column("GEMM", numeric=False), Column("op", numeric=False),
    Column("×"), Column("batch"), Column("M"), Column("K"), Column("N"), Column("dtype", numeric=False),
    Column("parameters"), Column("FLOP"), Column("bytes"),
)  # fmt: skip


def weight_elements(gemm: Gemm) -> int:
    """Elements of the operands that are parameters (a weight that two GEMMs share counts in both).

    In a training step a weight counts with its forward GEMM and not again with the gradient that reads it.
    """
    if gemm.phase is not Phase.FORWARD:
        return 0
    shape = gemm.shape
    a = shape.batch * shape.m * shape.k if gemm.a.role is Role.PARAMETER else 0
    b = shape.batch * shape.k * shape.n if gemm.b.role is Role.PARAMETER else 0
    return a + b


def moved_bytes(gemm: Gemm) -> int:
    """Bytes of both operands and of the result, each once in every repeat."""
    return gemm.repeats * (gemm.a_bytes + gemm.b_bytes + gemm.out_bytes)


def workload_document(workload: Workload) -> dict[str, Any]:
    """The JSON document of ``inspect``: everything that the workload knows, in SI units."""
    return {
        "model": {"name": workload.name, "sha256": workload.sha256, "weights_present": workload.weights_present},
        "dims": dict(workload.dims),
        "shapes": {name: list(shape) for name, shape in workload.shapes.items()},
        "trips": dict(workload.trips),
        "training": workload.training,
        "recompute": None if workload.recompute is None else asdict(workload.recompute),
        "inputs": [{"name": t.name, "dtype": t.dtype, "shape": list(t.shape)} for t in workload.inputs],
        "outputs": [{"name": t.name, "dtype": t.dtype, "shape": list(t.shape)} for t in workload.outputs],
        "gemms": [_gemm_document(gemm) for gemm in workload.gemms],
        "totals": {
            "gemms": len(workload.gemms),
            "gemm_classes": len(workload.classes()),
            "gemm_macs": workload.gemm_macs,
            "gemm_flop": workload.gemm_flop,
            "gemm_bytes": sum(moved_bytes(gemm) for gemm in workload.gemms),
            "parameters": workload.parameter_elements,
            "parameter_bytes": sum(workload.parameters.values()),
            "server_operators": len(workload.server_operators),
        },
        "levels": [
            {"index": level.index, "gemms": [workload.gemms[place].name for place in level.gemms], "live_bytes": level.live_bytes}
            for level in workload.levels
        ],
        "server_operators": [_operator_document(operator) for operator in workload.server_operators],
        "unrecognised": [_operator_document(operator) for operator in workload.unrecognised],
        "unknown": [
            {"name": work.name, "op": work.op, "domain": work.domain, "reason": work.reason} for work in workload.unknown
        ],
        "notes": list(workload.notes),
    }


def _gemm_document(gemm: Gemm) -> dict[str, Any]:
    return {
        "name": gemm.name, "node": gemm.node, "op": gemm.op, "phase": gemm.phase.value, "level": gemm.level,
        "shape": list(gemm.shape), "dtype": gemm.dtype.value, "repeats": gemm.repeats, "pinned": gemm.pinned or None,
        "macs": gemm.macs, "flop": gemm.flop, "parameters": weight_elements(gemm), "bytes": moved_bytes(gemm),
        "a": _operand_document(gemm.a, gemm.a_bytes), "b": _operand_document(gemm.b, gemm.b_bytes),
        "out": {"tensor": gemm.output, "dtype": gemm.out_dtype.value, "bytes": gemm.out_bytes},
        "window": None if gemm.window is None else asdict(gemm.window),
    }  # fmt: skip


def _operand_document(operand: Operand, size: int) -> dict[str, Any]:
    return {"tensor": operand.tensor, "role": operand.role.value, "dtype": operand.dtype.value, "bytes": size}


def _operator_document(operator: ServerOperator) -> dict[str, Any]:
    return {
        "name": operator.name, "op": operator.op, "domain": operator.domain, "level": operator.level, "bytes": operator.bytes,
    }  # fmt: skip


def workload_text(workload: Workload, screen: Screen, *, every: bool = False) -> str:
    """The terminal report of ``inspect``; identical GEMMs share a row unless ``every`` is set."""
    sheet = Sheet(screen)
    sheet.heading(f"Model {workload.name}{', a training step' if workload.training else ''}")
    sheet.facts(_model_facts(workload))
    sheet.heading("Matrix multiplications")
    groups = [(gemm,) for gemm in workload.gemms] if every else list(workload.classes().values())
    total = ["total", "", count(len(workload.gemms)), "", "", "", "", "", *_sums(workload.gemms)]
    rows = [[*_row(group), _remark(group[0])] for group in groups]
    if not rows:
        sheet.notes(["there is none that a rule counts: everything runs on the server"])
    elif any(row[-1] for row in rows):
        sheet.table([*_COLUMNS, Column("", numeric=False)], rows, total=[*total, ""])
    else:
        sheet.table(_COLUMNS, [row[:-1] for row in rows], total=total)
    if not every and len(groups) < len(workload.gemms):
        sheet.notes(["a row stands for × identical GEMMs and its last three columns are their sums; --all lists each"])
    if workload.unknown:
        sheet.heading(f"Not known before the run, and in no total: {plural(len(workload.unknown), 'node')}")
        sheet.table(*_unknown_table(workload.unknown, every))
    sheet.heading(f"On the server: {plural(len(workload.server_operators), 'operator')}")
    if workload.server_operators:
        sheet.table(*_server_table(workload.server_operators))
    sheet.notes(workload.notes)
    return sheet.text()


def _model_facts(workload: Workload) -> list[Fact]:
    weights = "weights present" if workload.weights_present else "weights absent: it can be planned, not run"
    sizes = ", ".join(f"{name}={size}" for name, size in workload.dims.items())
    if workload.training:
        weights += "; bytes include gradients and optimizer state"
    widest = max((len(level.gemms) for level in workload.levels), default=0)
    facts = [
        Fact("inputs", count(len(workload.inputs)), ", ".join(_tensor(tensor) for tensor in workload.inputs)),
        Fact("parameters", count(workload.parameter_elements), f"{as_size(sum(workload.parameters.values()))}; {weights}"),
        Fact(
            "GEMM work", _flop(workload.gemm_flop), f"2 × {count(workload.gemm_macs)} multiply-adds, bias additions not counted"
        ),
        Fact(
            "levels", count(len(workload.levels)), f"up to {plural(widest, 'GEMM')} in one; a level waits for the one before it"
        ),
    ]
    if workload.recompute is not None:
        facts.append(Fact(*recompute_fact(workload.recompute)))
    if sizes:
        facts.insert(1, Fact("dimensions", count(len(workload.dims)), f"{sizes}; open in the file, bound by you"))
    return facts


def recompute_fact(found: Recomputed) -> tuple[str, str, str]:
    """What computing forward values again spares and costs: name, figure and words of a fact."""
    if found.segments == 1:
        return "recomputed", "nothing", f"it would not spare {LEAST_SPARED:.0%} of the memory: all forward values are kept"
    kept, every = as_size(found.kept_bytes), as_size(found.all_kept_bytes)
    return (
        "recomputed", f"{count(found.segments - 1)} of {plural(found.segments, 'segment')}",
        f"forward values kept for the backward pass: at most {kept} rather than {every}; {_flop(found.extra_flop)} more in GEMMs",
    )  # fmt: skip


def _tensor(tensor: TensorInfo) -> str:
    """A tensor's name, type and shape; a size that is open is a question mark."""
    sizes = ", ".join("?" if size < 0 else str(size) for size in tensor.shape)
    return f"{tensor.name} {tensor.dtype}[{sizes}]"


def _row(group: Sequence[Gemm]) -> tuple[str, ...]:
    first = group[0]
    sizes = (count(size) for size in first.shape)
    return (common_name([gemm.name for gemm in group]), first.op, count(len(group)), *sizes, first.dtype.value, *_sums(group))


def _remark(gemm: Gemm) -> str:
    """How often it runs if more than once, and why devices cannot compute it if they cannot."""
    times = f"runs {count(gemm.repeats)} times" if gemm.repeats > 1 else ""
    return "; ".join(part for part in (times, f"server: {gemm.pinned}" if gemm.pinned else "") if part)


def common_name(names: Sequence[str]) -> str:
    """One name for all: numbers that differ become ``*`` ("layers.*.fc1"); the first name where more than that differs."""
    parts = [re.split(r"(\d+)", name) for name in names]  # words stand at even places, numbers at odd ones
    if len({tuple(each[::2]) for each in parts}) > 1:
        return names[0]
    return "".join(column[0] if len(set(column)) == 1 else "*" for column in zip(*parts, strict=True))


def _sums(group: Sequence[Gemm]) -> tuple[str, str, str]:
    return (
        count(sum(weight_elements(gemm) for gemm in group)),
        _flop(sum(gemm.flop for gemm in group)),
        as_size(sum(moved_bytes(gemm) for gemm in group)),
    )


def _unknown_table(works: Sequence[UnknownWork], every: bool) -> tuple[list[Column], list[list[str]]]:
    """Work that nobody can count yet, with the reason; like works share a row unless ``every`` is set."""
    columns = [Column("node", numeric=False), Column("op", numeric=False), Column("×"), Column("reason", numeric=False)]
    groups: dict[object, list[UnknownWork]] = {}
    for work in works:
        groups.setdefault(work.name if every else (work.op, work.domain, work.reason), []).append(work)
    rows = []
    for group in groups.values():
        first = group[0]
        op = f"{first.domain}.{first.op}" if first.domain else first.op
        rows.append([common_name([work.name for work in group]), op, count(len(group)), first.reason])
    return columns, rows


def _server_table(operators: Sequence[ServerOperator]) -> tuple[list[Column], list[list[str]]]:
    """Operator types with how often they occur and what they read and write."""
    columns = [Column("operator", numeric=False), Column("×"), Column("bytes"), Column("", numeric=False)]
    kinds = Counter((operator.domain, operator.op) for operator in operators)
    rows = []
    for (domain, op), times in sorted(kinds.items(), key=lambda item: (-item[1], item[0])):
        members = [operator for operator in operators if (operator.domain, operator.op) == (domain, op)]
        known = sum(operator.bytes for operator in members if operator.bytes is not None)
        unknown = sum(operator.bytes is None for operator in members)
        remarks = [f"{unknown} of unknown size"] if unknown else []
        if any(operator.gemm_like for operator in members):
            remarks.append("holds matrix work that is not counted")
        rows.append([f"{domain}.{op}" if domain else op, count(times), as_size(known), "; ".join(remarks)])
    return columns, rows


def _flop(value: float) -> str:
    return format_value(value, Unit.FLOP)
