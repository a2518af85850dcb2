"""Operators that the standard defines by others and that hold matrix work, for which no rule of ours is quicker: written out.

LinearAttention (a Scan over time with two or three products a step), CausalConvWithState (a convolution by groups of what came
before and what comes) and FlexAttention (scores and context, with graphs of the user's own between them). What such a body is
depends on the inputs that are there and on their types, so it is asked for node by node, once the first walk knows the types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import onnx
from onnx import helper, inliner

from cleave_plan.errors import InputFileError
from cleave_plan.onnx_io.facts import UNKNOWN, Fact, type_of_fact
from cleave_plan.onnx_io.matrix_work import OWN, WRITTEN_OUT
from cleave_plan.onnx_io.order import sort_nodes
from cleave_plan.onnx_io.reader import ModelFile
from cleave_plan.onnx_io.views import NodeView


def write_out_bodies(file: ModelFile, facts: Mapping[str, Fact]) -> ModelFile | None:
    """The model with these operators of the outermost graph written out; None when it has none whose inputs are known.

    ``facts`` are those of a walk over ``file``; what they say of the nodes' outputs stays true. Raises InputFileError when onnx
    cannot put a body in the place of its node.
    """
    model = file.model
    defined = [view for view in file.nodes if view.kind in WRITTEN_OUT]
    found = [(view, body) for view in defined if (body := _body(view, facts, file.opsets)) is not None]
    if not found:
        return None
    for place, (view, body) in enumerate(found):
        body.domain = view.node.domain = OWN
        body.name = view.node.op_type = f"{view.op}_{place}"
        del body.opset_import[:], view.node.attribute[:]
        body.opset_import.extend(model.opset_import)
        for node in body.node:
            node.name = node.name or f"{view.name or view.first_output}/{node.op_type}"
    model.functions.extend(body for _, body in found)
    model.opset_import.append(helper.make_opsetid(OWN, 1))
    try:
        model = inliner.inline_local_functions(model)
    except Exception as error:  # the inliner raises bare RuntimeErrors and its own types, without a common base
        kinds = ", ".join(sorted({view.op for view, _ in found}))
        raise InputFileError(
            f"{kinds} cannot be written out as the standard defines it: {error}", where=str(file.path),
            expected="inputs as the operator is defined",
        ) from None  # fmt: skip
    return replace(file, model=model, nodes=sort_nodes(model.graph, str(file.path)))


def _body(view: NodeView, facts: Mapping[str, Fact], opsets: Mapping[str, int]) -> onnx.FunctionProto | None:
    """What the standard defines the node by; None where a type is not known."""
    inputs = [facts.get(name, UNKNOWN) for name in view.inputs]
    if any(name and not fact.elem for name, fact in zip(view.inputs, inputs, strict=True)):
        return None
    types = [type_of_fact(fact) if name else onnx.TypeProto() for name, fact in zip(view.inputs, inputs, strict=True)]
    try:
        schema = onnx.defs.get_schema(view.op, opsets.get(view.domain, 1), view.domain)
        body = schema.get_context_dependent_function(view.node.SerializeToString(), [kind.SerializeToString() for kind in types])
    except Exception:  # onnx's own errors share no base class; the node stays, and is listed as not counted
        return None
    return onnx.FunctionProto.FromString(body) if body else None
