"""Why the shape of a GEMM is not known, and what the user can do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx

from cleave_plan.errors import InputFileError
from cleave_plan.onnx_io.bindings import Bindings
from cleave_plan.onnx_io.facts import UNKNOWN, Fact
from cleave_plan.onnx_io.order import node_label
from cleave_plan.onnx_io.views import NodeView


class Diagnosis:
    """Finds out, for those of the ``nodes`` of one graph that are GEMMs and whose operands have unknown sizes, why."""

    def __init__(
        self, nodes: Sequence[NodeView], facts: Mapping[str, Fact], bindings: Bindings, faults: Mapping[str, str], where: str
    ) -> None:
        self._nodes, self._facts, self._bindings, self._faults, self._where = nodes, facts, bindings, faults, where

    def reasons(self, failing: Mapping[int, Sequence[str]]) -> dict[int, str]:
        """Why the sizes of each node (index -> the operands that matter) are known only at run time, in words.

        Raises InputFileError when dimensions of inputs are open, all of them at once, because the user can bind them; and when
        an operator upstream cannot run on its inputs.
        """
        causes = self._causes()
        found = {index: self._why(operands, causes) for index, operands in failing.items()}
        unbound = dict.fromkeys(size for why in found.values() for size in self._bindings.origins if size in why.open)
        shapeless = dict.fromkeys(name for why in found.values() for name in why.shapeless)
        if unbound or shapeless:
            first = next(index for index, why in found.items() if why.shapeless or why.open & self._bindings.origins.keys())
            raise _unbound_error(self._nodes[first].node, list(unbound), list(shapeless), self._bindings, self._where)
        return {index: self._sentence(index, why) for index, why in found.items()}

    def _causes(self) -> dict[str, _Cause]:
        """For each tensor that is not settled: the inputs and the first node that it comes from."""
        causes: dict[str, _Cause] = {}
        for name, fact in self._bindings.inputs.items():
            if not _settled(fact):
                causes[name] = _Cause(inputs=frozenset({name}))
        for index, view in enumerate(self._nodes):
            outputs = [name for name in view.made if not _settled(self._facts.get(name, UNKNOWN))]
            if not outputs:
                continue
            before = [causes[name] for name in view.reads if name in causes]
            makers = [cause.node for cause in before if cause.node is not None]
            cause = before[0] if len(before) == 1 else _Cause(
                inputs=frozenset().union(*(cause.inputs for cause in before)),
                node=min(makers, default=None) if before else index,
            )  # fmt: skip
            causes.update(dict.fromkeys(outputs, cause))
        return causes

    def _why(self, operands: Sequence[str], causes: Mapping[str, _Cause]) -> _Why:
        """What stands open in the shapes of ``operands``; behind a size without a name, whatever stands open upstream."""
        shapes = [self._facts.get(name, UNKNOWN).shape for name in operands]
        names = {size for shape in shapes for size in shape or () if isinstance(size, str)}
        vague = [name for name, shape in zip(operands, shapes, strict=True) if shape is None or None in shape]
        upstream = [causes[name] for name in operands if name in causes]
        shapeless: set[str] = set()
        for cause in (causes[name] for name in vague if name in causes):
            for source in cause.inputs:
                shape = self._bindings.inputs[source].shape
                names.update(size for size in shape or () if isinstance(size, str))
                if shape is None:
                    shapeless.add(source)
        makers = [cause.node for cause in upstream if cause.node is not None]
        return _Why(open=frozenset(names), shapeless=tuple(sorted(shapeless)), node=min(makers, default=None))

    def _sentence(self, index: int, why: _Why) -> str:
        """The reason of one node; raises InputFileError when the node upstream is impossible."""
        node = self._nodes[index].node
        if why.node is None:
            return "the shapes of its operands are not known"
        culprit = self._nodes[why.node].node
        fault = next((self._faults[name] for name in self._nodes[why.node].outputs if name in self._faults), None)
        if fault is not None:
            raise InputFileError(
                f"the shape of {node_label(node)} is not known, because {node_label(culprit)} cannot run on its inputs: {fault}",
                where=self._where, expected="operators that fit their inputs",
                remedy="bind other sizes with --dim or --shape, or export the model for these sizes",
            )  # fmt: skip
        if why.open:
            return f"the data decides its size, in {node_label(culprit)}; bound by {_options(sorted(why.open))} it is counted"
        return f"its size depends on {node_label(culprit)}, whose result has no shape that is known before the run"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cause:
    """Why a tensor is not settled: inputs that are open, and the first node (its index) whose result is open on known inputs."""

    inputs: frozenset[str] = frozenset()
    node: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Why:
    """Names of the open sizes that matter, inputs without a shape that do, and the first node to blame."""

    open: frozenset[str]
    shapeless: tuple[str, ...]
    node: int | None


def _unbound_error(
    node: onnx.NodeProto, unbound: list[str], shapeless: list[str], bindings: Bindings, where: str
) -> InputFileError:
    clauses = [f"the shape of input {name!r}" for name in shapeless]
    options = [f"--shape {name}=AxBxC" for name in shapeless]
    named = []
    for size in unbound:
        name, axis = bindings.origins[size]
        if size == f"{name}[{axis}]":
            text = "x".join(str(entry) if isinstance(entry, int) else "INT" for entry in bindings.inputs[name].shape or ())
            clauses.append(f"axis {axis} of input {name!r}, which has no name")
            options.append(f"--shape {name}={text}")
        else:
            clauses.append(f"dimension {size!r} (axis {axis} of input {name!r})")
            named.append(size)
    return InputFileError(
        f"{node_label(node)} has no size before these are bound: {', '.join(clauses)}",
        where=where,
        expected="a size for each",
        remedy="bind them with " + " ".join(dict.fromkeys([*([_options(named)] if named else []), *options])),
    )


def _options(names: Iterable[str]) -> str:
    return " ".join(f"--dim {_quoted(name)}=INT" for name in names)


def _quoted(name: str) -> str:
    """The name as a shell takes it."""
    return name if name.replace("_", "").isalnum() else f"'{name}'"


def _settled(fact: Fact) -> bool:
    """Whether a tensor is no reason for an unknown result: shape and values are as known as they get."""
    return fact.sizes is not None and fact.partial_value is None
