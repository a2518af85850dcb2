"""The shape walk: shapes, element types and small values of every tensor, node by node in execution order.

For each node: our own rule (:mod:`shape_rules`) or onnx's inference on what is known of its inputs; then its values, when
its inputs are known and its outputs small; then, only for what is still open, what the file claims (``value_info``).
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from cleave_plan.errors import InputFileError
from cleave_plan.onnx_io import folding
from cleave_plan.onnx_io.attributes import get_graph, subgraphs
from cleave_plan.onnx_io.constants import constant_fact, initialiser_facts
from cleave_plan.onnx_io.facts import UNKNOWN, Dim, Fact, ShapeContradictionError, Value, fact_of_type, fact_of_value, is_small
from cleave_plan.onnx_io.inference import InferenceFailedError, NodeInference, question
from cleave_plan.onnx_io.matrix_work import MICROSOFT, domain_of
from cleave_plan.onnx_io.microsoft import MICROSOFT_RULES
from cleave_plan.onnx_io.order import captured, node_label
from cleave_plan.onnx_io.shape_rules import MOST_INPUTS, SHAPE_RULES

# Operators whose output size depends on values, and is no larger than their input: safe to compute on small tensors.
_SIZE_FROM_VALUES = frozenset({"NonZero", "Compress", "Unique"})

# Loops inside loops are walked to this depth; a body is walked twice, so that the work doubles with each.
_DEEPEST_LOOP = 4

Scope = MutableMapping[str, Fact]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a node's outputs are; ``fault`` is set when the node cannot run on its inputs (``certain``: by our own rule)."""

    outputs: list[Fact]
    fault: str = ""
    certain: bool = False


@dataclass(slots=True)
class ShapeWalk:
    """Walks the graphs of one model. ``names`` are the bound symbolic dimensions.

    Afterwards ``faults`` maps the first output of each node that onnx finds impossible to the reason, and ``conflicts``
    lists (node, tensor, what the file claims, what was found).
    """

    opsets: dict[str, int]
    names: Mapping[str, int]
    path: Path
    faults: dict[str, str] = field(default_factory=dict)
    conflicts: list[tuple[str, str, str, str]] = field(default_factory=list)
    _inference: NodeInference = field(init=False)
    _answers: dict[object, Answer] = field(default_factory=dict)
    _depth: int = 0

    def __post_init__(self) -> None:
        self._inference = NodeInference(self.opsets)

    def run(self, graph: onnx.GraphProto, scope: Scope) -> None:
        """Add the facts of every tensor that the nodes of ``graph`` make to ``scope``, which holds inputs and initialisers.

        Raises InputFileError when a node of the outermost graph contradicts its inputs by one of our own rules.
        """
        claims = {value.name: value.type for value in [*graph.value_info, *graph.output]}
        for node in graph.node:
            answer = self._visit(node, scope)
            if answer.fault and not self._depth:
                if answer.certain:
                    raise InputFileError(
                        f"{node_label(node)}: {answer.fault}", where=str(self.path), expected="shapes that fit the operator",
                        remedy="bind other sizes with --dim or --shape, or export the model for these sizes",
                    )  # fmt: skip
                self.faults[next((name for name in node.output if name), "")] = answer.fault
            for name, fact in zip(node.output, answer.outputs, strict=True):
                if name:
                    claimed = None if answer.fault else claims.get(name)
                    known = fact if claimed is None else self._completed(fact, claimed, node, name)
                    scope[name] = known if self._depth or answer.fault else self._named(known, name, node, scope)

    def _visit(self, node: onnx.NodeProto, scope: Scope) -> Answer:
        if node.op_type == "Constant" and domain_of(node) == "":
            return Answer(_filled([constant_fact(node, self.path)], len(node.output)))
        inputs = [scope.get(name, UNKNOWN) if name else UNKNOWN for name in node.input]
        if node.op_type == "If" and domain_of(node) == "":
            return Answer(self._branches(node, inputs, scope))
        if node.op_type == "Loop" and domain_of(node) == "" and self._depth < _DEEPEST_LOOP:
            return Answer(self._loop(node, inputs, scope))
        if subgraphs(node):
            return self._infer(node, inputs, {name: scope.get(name, UNKNOWN) for name in captured(node)})
        key = question(node, inputs)
        if key is None:
            return self._infer(node, inputs, None)
        answer = self._answers.get(key)
        if answer is None:
            answer = self._with_values(node, inputs, self._infer(node, inputs, None))
            self._answers[key] = answer
        return answer

    def _infer(self, node: onnx.NodeProto, inputs: list[Fact], outer: Mapping[str, Fact] | None) -> Answer:
        domain = domain_of(node)
        rule = MICROSOFT_RULES.get(node.op_type) if domain == MICROSOFT else SHAPE_RULES.get((domain, node.op_type))
        nothing = [UNKNOWN] * len(node.output)
        try:
            if rule is not None:
                return Answer(_filled(rule(node, inputs + [UNKNOWN] * (MOST_INPUTS - len(inputs))), len(nothing)))
            return Answer(self._inference.outputs(node, domain, inputs, outer))
        except ShapeContradictionError as error:
            return Answer(nothing, str(error), certain=True)
        except InferenceFailedError as error:
            known = all(fact.sizes is not None for name, fact in zip(node.input, inputs, strict=True) if name)
            return Answer(nothing, str(error) if known else "")

    def _with_values(self, node: onnx.NodeProto, inputs: list[Fact], answer: Answer) -> Answer:
        """Add the outputs' values where the inputs' are known and the outputs are small."""
        values = [fact.value for fact in inputs]
        present = [value for name, value in zip(node.input, values, strict=True) if name]
        if answer.fault or not node.input or any(value is None for value in present) or node.op_type in folding.RANDOM:
            return answer
        if any(fact.value is not None for fact in answer.outputs) or not self._may_fold(node, inputs, answer.outputs):
            return answer
        partly = any(value is not None and value.dtype == object for value in values)
        evaluate = folding.evaluate_partly if partly else folding.evaluate
        try:
            folded = evaluate(node, self.opsets, values)
        except folding.CannotFoldError:
            return answer
        return Answer([self._folded(fact, value) for fact, value in zip(answer.outputs, folded, strict=True)])

    def _may_fold(self, node: onnx.NodeProto, inputs: list[Fact], outputs: list[Fact]) -> bool:
        if domain_of(node) != "" or self._inference.schema(node.op_type, "") is None:
            return False
        if node.op_type in _SIZE_FROM_VALUES:
            return True
        return all(fact.sizes is not None and is_small(fact.elem, fact.sizes) for fact in outputs)

    @staticmethod
    def _folded(fact: Fact, value: Value) -> Fact:
        return fact_of_value(value, fact.elem) if is_small(fact.elem, value.shape) else Fact(elem=fact.elem, shape=value.shape)

    def _branches(self, node: onnx.NodeProto, inputs: list[Fact], scope: Scope) -> list[Fact]:
        """Outputs of If: those of the branch that runs when the condition is known, otherwise what both agree on."""
        condition = inputs[0].whole_value if inputs else None
        names = ["then_branch", "else_branch"]
        if condition is not None and condition.size == 1:
            names = names[:1] if bool(condition.reshape(())) else names[1:]
        results = [_filled(self._subgraph(get_graph(node, name), (), scope), len(node.output)) for name in names]
        return [_agreement(facts) for facts in zip(*results, strict=True)]

    def _loop(self, node: onnx.NodeProto, inputs: list[Fact], scope: Scope) -> list[Fact]:
        """Outputs of Loop: states keep the sizes that the body leaves alone; what it collects gets an axis of open length."""
        body = get_graph(node, "body")
        states = [Fact(elem=fact.elem, shape=fact.shape, other=fact.other) for fact in inputs[2:]]
        counter = [Fact(elem=onnx.TensorProto.INT64, shape=()), Fact(elem=onnx.TensorProto.BOOL, shape=())]
        results: list[Fact] = []
        for _ in range(2):  # the second pass shows whether what the first one left open was all that changes
            results = self._subgraph(body, (*counter, *states), scope)[1:]
            after = [_agreement(pair) for pair in zip(states, _filled(results, len(states)), strict=True)]
            if after == states:
                break
            states = after
        else:
            states = [Fact(elem=fact.elem) for fact in states]
            results = [Fact(elem=fact.elem) for fact in results]
        rows = [
            Fact(elem=fact.elem, shape=None if fact.shape is None else (None, *fact.shape)) for fact in results[len(states) :]
        ]
        return _filled(states + rows, len(node.output))

    def _subgraph(self, graph: onnx.GraphProto | None, given: Sequence[Fact], scope: Scope) -> list[Fact]:
        """Facts of a subgraph's outputs when its inputs are ``given`` and it sees ``scope``."""
        if graph is None:
            return []
        own = initialiser_facts(graph, self.path)
        own.update((value.name, fact) for value, fact in zip(graph.input, given, strict=False))
        inner: ChainMap[str, Fact] = ChainMap(own, scope)  # only the first map is written to
        self._depth += 1
        self.run(graph, inner)
        self._depth -= 1
        return [inner.get(value.name, UNKNOWN) for value in graph.output]

    def _named(self, fact: Fact, name: str, node: onnx.NodeProto, scope: Scope) -> Fact:
        """Give a name to each unknown size that begins here (the inputs' shapes are known: the data decides it)."""
        if fact.shape is None or None not in fact.shape:
            return fact
        if any(scope.get(source, UNKNOWN).sizes is None for source in node.input if source):
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


def _filled(facts: list[Fact], count: int) -> list[Fact]:
    """``facts`` cut or filled up with UNKNOWN to ``count``."""
    return (facts + [UNKNOWN] * count)[:count]


def inner_name(tensor: str, axis: int) -> str:
    """The name of a size that no file and no shape decides; it can be bound like a symbolic dimension."""
    return f"{tensor}[{axis}]"


def _agreement(facts: tuple[Fact, ...]) -> Fact:
    """What all of several possible facts have in common."""
    first = facts[0]
    if len(facts) == 1:
        return first
    if any(fact.other is not None for fact in facts):
        return first if all(fact.other == first.other for fact in facts) else UNKNOWN
    elem = first.elem if all(fact.elem == first.elem for fact in facts) else 0
    shapes = [fact.shape for fact in facts]
    ranks = {None if shape is None else len(shape) for shape in shapes}
    if len(ranks) != 1 or None in ranks:
        return Fact(elem=elem)
    sizes = zip(*(shape for shape in shapes if shape is not None), strict=True)
    return Fact(elem=elem, shape=tuple(row[0] if len(set(row)) == 1 else None for row in sizes))


def _more_certain(found: Dim, claimed: Dim) -> Dim:
    if isinstance(found, int) or claimed is None:
        return found
    return claimed if isinstance(claimed, int) or found is None else found


def _text(shape: tuple[Dim, ...]) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"
