"""The shape walk: shapes, element types and small values of every tensor, node by node in execution order.

For each node: our own rule (:mod:`shape_rules`) or onnx's inference on what is known of its inputs; then its values, when
its inputs are known and its outputs small; then, only for what is still open, what the file claims (``value_info``).
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from cleave_plan.errors import InputFileError
from cleave_plan.onnx_io.agreement import filled
from cleave_plan.onnx_io.arithmetic import VALUE_RULES, fact_on, is_plain
from cleave_plan.onnx_io.arity import refuse_too_few
from cleave_plan.onnx_io.common_shapes import COMMON_RULES, FIRST_OPSET, CommonRule
from cleave_plan.onnx_io.constants import RANDOM, constant_fact, initialiser_facts
from cleave_plan.onnx_io.facts import UNKNOWN, Dim, Fact, ShapeContradictionError, Value, fact_of_type, fact_of_value, is_small
from cleave_plan.onnx_io.inference import InferenceFailedError, NodeInference, question
from cleave_plan.onnx_io.matrix_work import MICROSOFT
from cleave_plan.onnx_io.naming import inside, unique_names
from cleave_plan.onnx_io.order import node_label
from cleave_plan.onnx_io.regions import Pass, Region
from cleave_plan.onnx_io.shape_rules import EARLY_OPSETS, EARLY_RULES, MOST_INPUTS, SHAPE_RULES, ShapeRule
from cleave_plan.onnx_io.views import NodeView, view_of, views_of

if TYPE_CHECKING:
    from cleave_plan.onnx_io.control_flow import ControlFlow, Scope

# Operators whose output size depends on values, and is no larger than their input: safe to compute on small tensors.
_SIZE_FROM_VALUES = frozenset({"NonZero", "Compress", "Unique"})

# Values of tensors, not of shapes: no size depends on them.
_NEVER_FOLDED = frozenset({"DequantizeLinear", "QuantizeLinear"})

_FILLING = [UNKNOWN] * MOST_INPUTS

_DEEPEST = 8
"""Bodies inside bodies are walked to this depth: each level may multiply the walks of the next."""

_BODY_VISITS = 200_000
"""Most visits to nodes of bodies in one import, so that no file keeps it busy for ever."""


@dataclass(slots=True)
class Answer:
    """What a node's outputs are; ``fault`` is set when the node cannot run on its inputs (``certain``: by our own rule)."""

    outputs: list[Fact]
    fault: str = ""
    certain: bool = False


@dataclass(slots=True)
class ShapeWalk:
    """Walks the graphs of one model. ``names`` are the bound symbolic dimensions, ``trips`` the bound trip counts of Loops.
    ``name_all``: every unknown size gets a name of its own, also one that follows from other open sizes.

    Afterwards ``faults`` maps the first output of each node that onnx finds impossible to the reason, and ``conflicts``
    lists (node, tensor, what the file claims, what was found).
    """

    opsets: dict[str, int]
    names: Mapping[str, int]
    path: Path
    trips: Mapping[str, int] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    conflicts: list[tuple[str, str, str, str]] = field(default_factory=list)
    name_all: bool = False
    _inference: NodeInference = field(init=False)
    _answers: dict[object, Answer] = field(default_factory=dict)
    _bodies: dict[int, tuple[onnx.GraphProto, tuple[NodeView, ...]]] = field(default_factory=dict)
    _flow: ControlFlow | None = None
    _has_common_rules: bool = field(init=False)
    _plain_rules: Mapping[str, CommonRule] = field(init=False)
    _depth: int = 0
    _visits_left: int = _BODY_VISITS

    def __post_init__(self) -> None:
        self._inference = NodeInference(self.opsets)
        opset = self.opsets.get("", 1)
        self._has_common_rules = opset >= FIRST_OPSET
        self._plain_rules = COMMON_RULES if self._has_common_rules else EARLY_RULES if opset in EARLY_OPSETS else {}

    def run(self, graph: onnx.GraphProto, scope: Scope, path: str = "", nodes: Sequence[NodeView] = ()) -> dict[str, Region]:
        """Add the facts of every tensor that the nodes of ``graph`` make to ``scope``, which holds inputs and initialisers.

        ``nodes`` are the views of the graph's nodes, where the caller has them. ``path`` is that of the node whose body the graph
        is. The result is what each node with subgraphs runs, by the node's first output. Raises InputFileError when a node of the
        outermost graph contradicts its inputs by one of our own rules.
        """
        claims = {value.name: value for values in (graph.value_info, graph.output) for value in values[:]}
        nodes = nodes or views_of(graph.node)
        regions: dict[str, Region] = {}
        names: list[str] = []
        for index, view in enumerate(nodes):
            if view.bodies:
                names = names or unique_names(nodes)
                answer, region = self._enter(view, scope, inside(path, names[index]))
                regions[view.first_output] = region
            else:
                answer = self._visit(view, scope)
            if answer.fault and not self._depth:
                self._note_fault(view, answer)
            for name, fact in zip(view.outputs, answer.outputs, strict=True):
                if not name:
                    continue
                if not answer.fault:
                    if name in claims and not _says(claim := claims[name].type, fact):
                        fact = self._completed(fact, claim, view.node, name)
                    if fact.sizes is None and not self._depth:
                        fact = self._named(fact, name, view, scope)
                scope[name] = fact
        return regions

    def add(self, node: onnx.NodeProto, scope: Scope) -> None:
        """Add the facts of what one more node without subgraphs makes to ``scope``; what is impossible stays unknown."""
        view = view_of(node)
        answer = self._visit(view, scope)
        for name, fact in zip(view.outputs, answer.outputs, strict=True):
            if name:
                scope[name] = self._named(fact, name, view, scope)

    def _note_fault(self, view: NodeView, answer: Answer) -> None:
        """Keep the fault of a node of the outermost graph; raises InputFileError when it is certain."""
        if answer.certain:
            raise InputFileError(
                f"{node_label(view.node)}: {answer.fault}", where=str(self.path), expected="shapes that fit the operator",
                remedy="bind other sizes with --dim or --shape, or export the model for these sizes",
            )  # fmt: skip
        self.faults[view.first_output] = answer.fault

    def _visit(self, view: NodeView, scope: Scope) -> Answer:
        if view.op == "Constant" and not view.domain:
            return Answer(filled([constant_fact(view.attributes, self.path)], len(view.outputs)))
        fact_of = scope.get
        inputs = [fact_of(name, UNKNOWN) if name else UNKNOWN for name in view.inputs]
        key = question(view, inputs)
        answer = None if key is None else self._answers.get(key)
        if answer is None:
            refuse_too_few(view, self._inference, str(self.path))
            if key is None:
                return self._infer(view, inputs, None)
            answer = self._valued(view, inputs) if _have_values(view, inputs) else self._infer(view, inputs, None)
            self._answers[key] = answer
        return answer

    def _valued(self, view: NodeView, inputs: list[Fact]) -> Answer:
        """The answer for a node of which the values of all inputs are known, at least in part."""
        return self._known(view, inputs) or self._with_values(view, inputs, self._infer(view, inputs, None))

    def _known(self, view: NodeView, inputs: list[Fact]) -> Answer | None:
        """The answer for a node of which the values can be computed by our own rules, None for any other."""
        if view.op not in VALUE_RULES or not self._has_common_rules or view.domain or not all(map(is_plain, inputs)):
            return None
        fact = fact_on(view.node, inputs)
        return None if fact is None or fact.value is None else Answer([self._folded(fact, fact.value)])

    def _infer(self, view: NodeView, inputs: list[Fact], outer: Mapping[str, Fact] | None) -> Answer:
        node, op, domain = view.node, view.op, view.domain
        padded = inputs + _FILLING[len(inputs) :]
        common = None if domain else self._plain_rules.get(op)
        plain = None if common is None else common(node, padded)
        if plain is not None:
            return Answer(filled(plain, len(view.outputs)))
        rule = _microsoft_rule(op) if domain == MICROSOFT else SHAPE_RULES.get(view.kind)
        try:
            if rule is not None:
                return Answer(filled(rule(node, padded), len(view.outputs)))
            return Answer(self._inference.outputs(node, domain, inputs, outer))
        except ShapeContradictionError as error:
            return Answer([UNKNOWN] * len(view.outputs), str(error), certain=True)
        except InferenceFailedError as error:
            known = all(fact.sizes is not None for name, fact in zip(view.inputs, inputs, strict=True) if name)
            return Answer([UNKNOWN] * len(view.outputs), str(error) if known else "")

    def _with_values(self, view: NodeView, inputs: list[Fact], answer: Answer) -> Answer:
        """Add the outputs' values, where they are small."""
        if answer.fault or view.op in RANDOM:
            return answer
        values = [fact.value for fact in inputs]
        if any(fact.value is not None for fact in answer.outputs) or not self._may_fold(view, answer.outputs):
            return answer
        from cleave_plan.onnx_io import folding

        partly = any(value is not None and value.dtype == object for value in values)
        evaluate = folding.evaluate_partly if partly else folding.evaluate
        try:
            folded = evaluate(view.node, self.opsets, values)
        except folding.CannotFoldError:
            return answer
        return Answer([self._folded(fact, value) for fact, value in zip(answer.outputs, folded, strict=True)])

    def _may_fold(self, view: NodeView, outputs: list[Fact]) -> bool:
        if view.domain or view.op in _NEVER_FOLDED:
            return False
        small = all(fact.sizes is not None and is_small(fact.elem, fact.sizes) for fact in outputs)
        return (small or view.op in _SIZE_FROM_VALUES) and self._inference.schema(view.op, "") is not None

    @staticmethod
    def _folded(fact: Fact, value: Value) -> Fact:
        return fact_of_value(value, fact.elem) if is_small(fact.elem, value.shape) else Fact(elem=fact.elem, shape=value.shape)

    def _enter(self, view: NodeView, scope: Scope, path: str) -> tuple[Answer, Region]:
        """The answer for a node with subgraphs, and what it runs."""
        inputs = [scope.get(name, UNKNOWN) if name else UNKNOWN for name in view.inputs]
        node = view.node
        if not view.domain and view.op in ("If", "Loop", "Scan"):
            flow = self._flow = self._flow or self._control_flow()
            if view.op == "If":
                outcome = flow.branches(node, inputs, scope, path)
            elif view.op == "Loop":
                outcome = flow.loop(node, inputs, scope, path)
            else:
                outcome = flow.scan(node, inputs, scope, path, self.opsets[""])
            return Answer(outcome.outputs), outcome.region
        answer = self._infer(view, inputs, {name: scope.get(name, UNKNOWN) for name in view.reads})
        # A stranger is listed itself, as an operator without a rule.
        bodies = () if view.domain else view.bodies
        reason = f"how often {view.op} runs its bodies is not known"
        return answer, Region(path=path, op=view.op, unwalked=bodies, reason=reason)

    def _control_flow(self) -> ControlFlow:
        """What walks the bodies; only where it is needed: the two hold each other, and would wait for the collector."""
        from cleave_plan.onnx_io.control_flow import ControlFlow

        return ControlFlow(self, self.trips)

    def body(self, graph: onnx.GraphProto, given: Sequence[Fact], scope: Scope, path: str) -> Pass | None:
        """A walk through a subgraph of the node at ``path``; None when it is nested too deeply or the walk's budget is used."""
        if self._depth >= _DEEPEST or self._visits_left < len(graph.node):
            return None
        nodes = self._views_of(graph)
        self._visits_left -= len(nodes)
        own = initialiser_facts(graph, self.path)
        own.update((value.name, fact) for value, fact in zip(graph.input, given, strict=False))
        inner: ChainMap[str, Fact] = ChainMap(own, scope)  # only the first map is written to
        self._depth += 1
        regions = self.run(graph, inner, path, nodes)
        self._depth -= 1
        outputs = tuple(inner.get(value.name, UNKNOWN) for value in graph.output[:])
        return Pass(graph=graph, own=own, facts=inner, outputs=outputs, regions=regions)

    def _views_of(self, graph: onnx.GraphProto) -> tuple[NodeView, ...]:
        """The nodes of a subgraph, which may be walked often; the graph is kept so that its id stays its own."""
        known = self._bodies.get(id(graph))
        if known is None:
            known = self._bodies[id(graph)] = (graph, views_of(graph.node))
        return known[1]

    def _named(self, fact: Fact, name: str, view: NodeView, scope: Scope) -> Fact:
        """Give a name to each unknown size that begins here (the inputs' shapes are known: the data decides it)."""
        if fact.shape is None or None not in fact.shape:
            return fact
        if not self.name_all and any(scope.get(source, UNKNOWN).sizes is None for source in view.inputs if source):
            return fact
        shape = tuple(
            self.names.get(inner_name(name, axis), inner_name(name, axis)) if size is None else size
            for axis, size in enumerate(fact.shape)
        )
        return Fact(elem=fact.elem, shape=shape, value=fact.value)

    def _completed(self, fact: Fact, claimed: onnx.TypeProto, node: onnx.NodeProto, name: str) -> Fact:
        """``fact`` with its gaps filled from the file's claim; a claim that contradicts it is noted and ignored."""
        claim = fact_of_type(claimed, self.names)
        if fact.other is not None or claim.other is not None:
            return claim if fact.other is None and fact.shape is None and not fact.elem else fact
        elem = fact.elem or claim.elem
        if fact.shape is None or claim.shape is None:
            return Fact(elem=elem, shape=claim.shape if fact.shape is None else fact.shape, value=fact.value)
        fits = len(fact.shape) == len(claim.shape) and not any(
            isinstance(x, int) and isinstance(y, int) and x != y for x, y in zip(fact.shape, claim.shape, strict=True)
        )
        if not fits:
            self.conflicts.append((node_label(node), name, _text(claim.shape), _text(fact.shape)))
            return Fact(elem=elem, shape=fact.shape, value=fact.value)
        return Fact(elem=elem, shape=tuple(map(_more_certain, fact.shape, claim.shape)), value=fact.value)


def _have_values(view: NodeView, inputs: list[Fact]) -> bool:
    """Whether the values of all inputs are known, at least in part; of most nodes already the first has none."""
    for name, fact in zip(view.inputs, inputs, strict=True):
        if fact.value is None and name:
            return False
    return bool(inputs)


def _microsoft_rule(op: str) -> ShapeRule | None:
    from cleave_plan.onnx_io.microsoft import MICROSOFT_RULES

    return MICROSOFT_RULES.get(op)


def _says(claimed: onnx.TypeProto, fact: Fact) -> bool:
    """Whether a claim says nothing but what is known already: the usual case, told without making a fact of the claim."""
    return bool(fact.elem) and fact.sizes == tuple([dim.dim_value for dim in claimed.tensor_type.shape.dim[:]])


def inner_name(tensor: str, axis: int) -> str:
    """The name of a size that no file and no shape decides; it can be bound like a symbolic dimension."""
    return f"{tensor}[{axis}]"


def _more_certain(found: Dim, claimed: Dim) -> Dim:
    if isinstance(found, int) or claimed is None:
        return found
    return claimed if isinstance(claimed, int) or found is None else found


def _text(shape: tuple[Dim, ...]) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"
