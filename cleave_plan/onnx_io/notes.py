"""Sentences about an import that a user must see: what was not counted, what was assumed, what did not agree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from cleave_plan.workload.graph import ServerOperator, UnknownWork

if TYPE_CHECKING:
    from cleave_plan.onnx_io.bindings import Bindings
    from cleave_plan.onnx_io.bodies import Choice
    from cleave_plan.onnx_io.shapes import ShapeWalk


def make_notes(
    operators: Iterable[ServerOperator],
    unknown: Sequence[UnknownWork],
    choices: Iterable[Choice],
    bindings: Bindings,
    walk: ShapeWalk,
    shapeless: Iterable[str],
) -> tuple[str, ...]:
    """All notes, most important first; empty when there is nothing to say. ``shapeless``: outputs of unknown rank."""
    return (
        *_unknown(unknown), *_uncounted(operators), *_choices(choices), *_open_sizes(bindings), *_defaults(bindings),
        *_shapeless(shapeless), *_contradictions(walk),
    )  # fmt: skip


def _unknown(unknown: Sequence[UnknownWork]) -> Iterable[str]:
    if unknown:
        first = unknown[0]
        nodes = "one node is" if len(unknown) == 1 else f"{len(unknown)} nodes are"
        yield (
            f"the matrix work of {nodes} not known before the run, and is in no total; the first is {first.name!r} "
            f"({first.op}): {first.reason}"
        )


def _choices(choices: Iterable[Choice]) -> Iterable[str]:
    """Which branches of Ifs are counted, those of a kind in one sentence."""
    groups: dict[tuple[str, bool], list[str]] = {}
    for choice in choices:
        groups.setdefault((choice.branch, choice.known), []).append(choice.path)
    for (branch, known), paths in groups.items():
        nodes = f"If {paths[0]!r}" if len(paths) == 1 else f"{len(paths)} Ifs (the first is {paths[0]!r})"
        if known:
            yield f"{nodes}: the condition is constant, {branch} is the one that runs and is counted"
        else:
            yield f"{nodes}: the data decides which branch runs; {branch} is assumed, which has the most work"


def _uncounted(operators: Iterable[ServerOperator]) -> Iterable[str]:
    """One sentence for each operator with matrix work that no GEMM counts."""
    groups: dict[tuple[str, str], list[str]] = {}
    for operator in operators:
        if operator.gemm_like:
            groups.setdefault((operator.domain, operator.op), []).append(operator.name)
    for (domain, op), names in groups.items():
        operator_name = f"{domain}.{op}" if domain else op
        nodes = f"node {names[0]!r}" if len(names) == 1 else f"{len(names)} nodes (the first is {names[0]!r})"
        yield f"{operator_name}: {nodes} with matrix work that is not counted; it runs on the server"


def _open_sizes(bindings: Bindings) -> Iterable[str]:
    for size, (name, axis) in bindings.origins.items():
        label = f"axis {axis}" if size == f"{name}[{axis}]" else f"dimension {size!r} (axis {axis})"
        yield f"{label} of input {name!r} has no size; no GEMM depends on it, but bytes and memory that do are unknown"


def _defaults(bindings: Bindings) -> Iterable[str]:
    if bindings.defaults:
        yield (
            f"the file has default values for {len(bindings.defaults)} inputs (the first is {bindings.defaults[0]!r}); "
            "they are used as constants, unless --shape names the input and it is fed"
        )


def _shapeless(outputs: Iterable[str]) -> Iterable[str]:
    for name in outputs:
        yield f"the shape of output {name!r} is not known before the run (it is listed without axes)"


def _contradictions(walk: ShapeWalk) -> Iterable[str]:
    if walk.conflicts:
        node, tensor, claimed, found = walk.conflicts[0]
        yield (
            f"the file states shapes of {len(walk.conflicts)} tensors that are not what their operators make of the inputs; "
            f"the first is {tensor!r} of {node}: {claimed} stated, {found} found and used"
        )
    for tensor, reason in walk.faults.items():
        yield f"the node that makes {tensor!r} cannot run on these inputs: {reason}"
