"""The matrix work inside the bodies of If, Loop and Scan: counted with how often it runs, or listed with the reason why not.

Such work stays on the server, as a part of the outermost node that runs it. Of an If that the data decides, the dearer branch
counts, and that is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self

import onnx

from cleave_plan.dtypes import DType
from cleave_plan.onnx_io.control_flow import BRANCHES
from cleave_plan.onnx_io.elements import dtype_of
from cleave_plan.onnx_io.facts import UNKNOWN, ShapeContradictionError
from cleave_plan.onnx_io.matrix_work import may_hold_matrix_work
from cleave_plan.onnx_io.naming import inside, unique_names
from cleave_plan.onnx_io.operators import RULES, rule_of
from cleave_plan.onnx_io.parameters import constant_tensors
from cleave_plan.onnx_io.phases import phase_of
from cleave_plan.onnx_io.regions import Pass, Region
from cleave_plan.onnx_io.rules.forms import Form, Operator
from cleave_plan.onnx_io.views import NodeView, views_of
from cleave_plan.workload.gemm import Operand, Phase, Role
from cleave_plan.workload.graph import UnknownWork

NO_RULE = "no rule counts the work of this operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerGemm:
    """One GEMM of a body: the node's path, its operator, the form with all repeats, and the operands."""

    name: str
    node: str
    op: str
    form: Form
    a: Operand
    b: Operand
    output: str
    out_dtype: DType
    phase: Phase = Phase.FORWARD

    @property
    def macs(self) -> int:
        """Multiply-adds of all repeats."""
        return self.form.repeats * self.form.shape.macs


@dataclass(frozen=True, slots=True)
class Choice:
    """The branch of the If at ``path`` that is counted: because it runs (``known``), or because it is the dearer one."""

    path: str
    branch: str
    known: bool


@dataclass(frozen=True, slots=True)
class InnerWork:
    """What was found in bodies."""

    gemms: tuple[InnerGemm, ...] = ()
    unknown: tuple[UnknownWork, ...] = ()
    choices: tuple[Choice, ...] = ()

    @property
    def macs(self) -> int:
        """Multiply-adds of what is counted."""
        return sum(gemm.macs for gemm in self.gemms)

    @classmethod
    def together(cls, parts: Iterable[InnerWork]) -> Self:
        """All of ``parts``: equal GEMMs of one node are one that repeats, and what is said twice is said once."""
        gemms: dict[InnerGemm, int] = {}
        unknown: dict[UnknownWork, None] = {}
        choices: dict[Choice, None] = {}
        for part in parts:
            for gemm in part.gemms:
                key = replace(gemm, form=gemm.form._replace(repeats=1))
                gemms[key] = gemms.get(key, 0) + gemm.form.repeats
            unknown.update(dict.fromkeys(part.unknown))
            choices.update(dict.fromkeys(part.choices))
        merged = tuple(replace(gemm, form=gemm.form._replace(repeats=times)) for gemm, times in gemms.items())
        return cls(merged, tuple(unknown), tuple(choices))

    def times(self, number: int | None, region: Region) -> InnerWork:
        """The work of ``number`` runs of the region's body."""
        if number is None:
            reason = f"it runs in {region.op} {region.path!r} as often as {region.reason}"
            if region.op == "Loop":
                reason = f"the trip count of Loop {region.path!r} is not known: {region.reason}; --trip {region.path}=N binds it"
            lost = tuple(UnknownWork(name=gemm.name, op=gemm.op, reason=reason) for gemm in self.gemms)
            return InnerWork((), lost + self.unknown, self.choices)
        if number == 0:
            return InnerWork()
        gemms = (replace(gemm, form=gemm.form._replace(repeats=gemm.form.repeats * number)) for gemm in self.gemms)
        return InnerWork(tuple(gemms), self.unknown, self.choices)

    def with_unique_names(self) -> InnerWork:
        """GEMMs of one node that differ in shape get a number behind their name."""
        seen: dict[str, int] = {}
        gemms = []
        for gemm in self.gemms:
            seen[gemm.name] = seen.get(gemm.name, 0) + 1
            number = seen[gemm.name]
            gemms.append(gemm if number == 1 else replace(gemm, name=f"{gemm.name}#{number}"))
        return InnerWork(tuple(gemms), self.unknown, self.choices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Enclosing:
    """What a body sees of the graphs around it: names of tensors as the workload has them, and which are constant or learned."""

    names: Mapping[str, str]
    constants: frozenset[str]
    learned: frozenset[str]


def work_inside(region: Region, around: Enclosing) -> InnerWork:
    """The matrix work of all that a node with subgraphs runs."""
    listed = InnerWork.together(_unwalked(region, graph) for graph in region.unwalked)
    works = [_work_of(made, region, around).times(times, region) for made, times in region.passes]
    held = any(work.gemms or work.unknown for work in works) or any(next(_workers(graph, ""), None) for graph in region.skipped)
    if region.op != "If" or not works or not held:
        return InnerWork.together([*works, listed])
    if region.choice:
        return InnerWork.together([*works, listed, InnerWork(choices=(Choice(region.path, region.choice, known=True),))])
    dearer = max(range(len(works)), key=lambda place: works[place].macs)
    choice = Choice(region.path, BRANCHES[dearer], known=False)
    rest = InnerWork(unknown=tuple(entry for work in works for entry in work.unknown), choices=(choice,))
    return InnerWork.together([works[dearer], rest, listed])


def _work_of(made: Pass, region: Region, around: Enclosing) -> InnerWork:
    """One run of a body."""
    graph = made.graph
    nodes = views_of(graph.node)
    own = {name: inside(region.path, name) for name in made.own}
    given = {value.name for value in graph.input[:]}
    seen = constant_tensors(graph, nodes, given, outer=around.constants - own.keys())
    scope = Enclosing(names={**around.names, **own}, constants=frozenset(seen), learned=around.learned | own.keys())
    parts = []
    for view, name in zip(nodes, unique_names(nodes), strict=True):
        path = inside(region.path, name)
        inner = made.regions.get(view.first_output)
        operator = rule_of(view.kind)
        if inner is not None:
            parts.append(work_inside(inner, scope))
        elif operator is not None:
            parts.append(_node_work(view, operator, path, made, region, scope))
        if operator is None and may_hold_matrix_work(view.domain, view.op):
            parts.append(_unknown(path, view, NO_RULE))
    return InnerWork.together(parts)


def _node_work(view: NodeView, operator: Operator, path: str, made: Pass, region: Region, scope: Enclosing) -> InnerWork:
    facts = made.facts
    sizes = [facts[name].sizes if name in facts else None for name in view.inputs]
    places = [place for place in operator.operands if place < len(sizes) and view.inputs[place]]
    if any(sizes[place] is None for place in places):
        return _unknown(path, view, f"its size inside {region.op} {region.path!r} is not known")
    try:
        forms = operator.forms(view.node, sizes)
    except ShapeContradictionError as error:
        return _unknown(path, view, f"its operands do not fit: {error}")
    output = view.first_output
    gemms = []
    for form in forms:
        name = f"{path}/{form.part}" if form.part else path
        a = _operand(view, form.a, form.a_dtype, f"{name}:a", made, scope)
        b = _operand(view, form.b, form.b_dtype, f"{name}:b", made, scope)
        if a is None or b is None:
            return _unknown(path, view, "the element type of its operands is not known")
        out_dtype = form.out_dtype or dtype_of(facts.get(output, UNKNOWN).elem) or a.dtype
        pinned = form._replace(pinned=f"inside {region.op} {region.path}")
        gemms.append(
            InnerGemm(
                name=name, node=path, op=view.op, form=pinned, a=a, b=b, output=scope.names.get(output, output),
                out_dtype=out_dtype, phase=phase_of(view.node),
            )
        )  # fmt: skip
    return InnerWork(gemms=tuple(gemms))


def _operand(
    view: NodeView, place: int | None, dtype: DType | None, own_name: str, made: Pass, scope: Enclosing
) -> Operand | None:
    name = view.inputs[place or 0] if view.inputs else ""
    dtype = dtype or dtype_of(made.facts.get(name, UNKNOWN).elem)
    if dtype is None:
        return None
    if place is None:
        return Operand(tensor=own_name, role=Role.ACTIVATION, dtype=dtype)
    role = Role.PARAMETER if name in scope.constants else Role.ACTIVATION
    return Operand(tensor=scope.names.get(name, name), role=role, dtype=dtype, learned=name in scope.learned)


def _unknown(name: str, view: NodeView, reason: str) -> InnerWork:
    return InnerWork(unknown=(UnknownWork(name=name, op=view.op, domain=view.domain, reason=reason),))


def _unwalked(region: Region, graph: onnx.GraphProto) -> InnerWork:
    """Everything in ``graph`` that is or may be matrix work, listed."""
    reason = f"inside {region.op} {region.path!r}: {region.reason}"
    return InnerWork.together(_unknown(name, view, reason) for name, view in _workers(graph, region.path))


def _workers(graph: onnx.GraphProto, path: str) -> Iterator[tuple[str, NodeView]]:
    nodes = views_of(graph.node)
    for view, name in zip(nodes, unique_names(nodes), strict=True):
        if view.kind in RULES or may_hold_matrix_work(view.domain, view.op):
            yield inside(path, name), view
        for inner in view.bodies:
            yield from _workers(inner, inside(path, name))
