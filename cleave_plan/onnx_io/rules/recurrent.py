"""LSTM, GRU and RNN (and DynamicQuantizeLSTM): the input's product for all steps at once, then one small product a step.

The input GEMM has a row for each step and batch item, the input size as K and all gates of all directions as columns; devices
compute it, cut along any axis. The recurrent GEMM (batch = directions, rows = batch items, K = hidden size, columns = gates)
runs once a step, each on the result of the one before: it is pinned to the server, which takes the steps in NumPy.
"""

from __future__ import annotations

import numpy as np
import onnx

from cleave_plan.onnx_io.attributes import get_float, get_floats, get_int, get_string, get_strings
from cleave_plan.onnx_io.facts import ShapeContradictionError
from cleave_plan.onnx_io.matrix_work import MICROSOFT
from cleave_plan.onnx_io.recurrence import DEFAULT_ACTIVATIONS, GATES, Array, Layer, activations, known_activations
from cleave_plan.onnx_io.rules.builder import ABSENT, Builder, DeclinedError, Tensor
from cleave_plan.onnx_io.rules.forms import Form, Operator, Sizes, needed
from cleave_plan.workload.gemm import GemmShape

ONE_BY_ONE = "one step after the other, each on the result of the one before"
WHOLE = "part of its recurrent layer"
_OF_STEPS = frozenset(
    {
        "activations",
        "activation_alpha",
        "activation_beta",
        "clip",
        "direction",
        "hidden_size",
        "input_forget",
        "linear_before_reset",
    }
)
"""Attributes of a layer that say how its steps are computed."""

_R_SCALE = 7  # the input of our own operator that says that R is quantised


def _forms(node: onnx.NodeProto, sizes: Sizes) -> tuple[Form, ...]:
    """X [steps, batch, I] (layout 1: [batch, steps, I]), W [directions, gates * H, I], R [directions, gates * H, H].

    DynamicQuantizeLSTM has W and R with their last two axes exchanged.
    """
    x, w, r = (needed(sizes, place) for place in range(3))
    if len(x) != 3 or len(w) != 3 or len(r) != 3:
        raise ShapeContradictionError(f"{node.op_type} needs X, W and R of 3 axes, these have {len(x)}, {len(w)} and {len(r)}")
    if node.op_type == "DynamicQuantizeLSTM":
        w, r = (w[0], w[2], w[1]), (r[0], r[2], r[1])
    steps, batch = (x[1], x[0]) if get_int(node, "layout", 0) else x[:2]
    if x[2] != w[2] or w[:2] != r[:2]:
        raise ShapeContradictionError(f"X {list(x)}, W {list(w)} and R {list(r)} do not fit")
    return (
        Form(shape=GemmShape(1, steps * batch, w[2], w[0] * w[1]), part="input", pinned=WHOLE),
        Form(shape=GemmShape(w[0], batch, r[2], r[1]), a=None, b=2, part="recurrent", repeats=steps, pinned=ONE_BY_ONE),
    )


def _hand_on(build: Builder) -> None:
    """Give the node that was made last those attributes of the layer that its steps have."""
    kept = [attribute for attribute in build.node.attribute if attribute.name in _OF_STEPS]
    build.nodes[-1].attribute.extend(kept)


def _expand(build: Builder) -> None:
    """X W^T as one MatMul, and the steps as an operator of our own."""
    node = build.node
    kind = node.op_type
    x, w, r = (build.input(place) for place in range(3))
    bias, lengths, hidden, cell, peepholes = (build.optional(place) for place in range(3, 8))
    directions, rows, depth = w.shape
    names = get_strings(node, "activations") or DEFAULT_ACTIVATIONS[kind] * directions
    if not known_activations(names) or len(names) != len(DEFAULT_ACTIVATIONS[kind]) * directions:
        raise DeclinedError(f"activations {names}")
    turned = get_int(node, "layout", 0) == 1
    if turned:
        x = build.transpose(x, 1, 0, 2)
        hidden, cell = (state and build.transpose(state, 1, 0, 2) if state.name else ABSENT for state in (hidden, cell))
    columns = build.reshape(build.transpose(w, 2, 0, 1), (depth, directions * rows))
    given = build.matmul(x, columns, "input")
    steps, batch, size = x.shape[0], x.shape[1], r.shape[2]
    all_states, last = (steps, directions, batch, size), (directions, batch, size)
    wanted = [build.output(place) for place in range(3)]
    made = build.own(
        "Recurrence", [given, r, bias, lengths, hidden, cell, peepholes],
        [("" if turned else name, shape, x.elem) for name, shape in zip(wanted, (all_states, last, last), strict=True)],
        part="recurrent", kind=kind,
    )  # fmt: skip
    _hand_on(build)
    if turned:
        for tensor, name, order in zip(made, wanted, ((2, 0, 1, 3), (1, 0, 2), (1, 0, 2)), strict=True):
            if name:
                build.transpose(tensor, *order, out=name)


def _expand_quantised(build: Builder) -> None:
    """DynamicQuantizeLSTM: a DynamicQuantizeMatMul for each direction, and steps that quantise their states.

    W [directions, I, gates * H] and R are integers; inputs 8 to 11 are their scales and zero points, one or one for each gate.
    """
    node = build.node
    x, w, r = (build.input(place) for place in range(3))
    bias, lengths, hidden, cell, peepholes = (build.optional(place) for place in range(3, 8))
    w_scale, w_zero, r_scale, r_zero = (build.input(place) for place in range(8, 12))
    names = get_strings(node, "activations") or DEFAULT_ACTIVATIONS["LSTM"] * w.shape[0]
    if not known_activations(names) or len(names) != 3 * w.shape[0]:
        raise DeclinedError(f"activations {names}")
    parts = []
    for d in range(w.shape[0]):
        of_one = [_of_direction(build, tensor, d) for tensor in (w, w_scale, w_zero)]
        shape = (*x.shape[:2], w.shape[2])
        part = "input" if w.shape[0] == 1 else f"input{d}"
        parts.append(build.add("DynamicQuantizeMatMul", [x, *of_one], shape, part=part, domain=MICROSOFT))
    given = parts[0] if len(parts) == 1 else build.concatenated(parts, 2)
    last = (r.shape[0], x.shape[1], r.shape[1])
    shapes = ((x.shape[0], *last[:1], *last[1:]), last, last)
    build.own(
        "Recurrence", [given, r, bias, lengths, hidden, cell, peepholes, r_scale, r_zero],
        [(build.output(place), shape, x.elem) for place, shape in enumerate(shapes)], part="recurrent", kind="LSTM",
    )  # fmt: skip
    _hand_on(build)


def _of_direction(build: Builder, x: Tensor, direction: int) -> Tensor:
    """One direction's part of a tensor whose first axis they are."""
    return build.reshape(build.slice(x, 0, direction, direction + 1), x.shape[1:])


def _step_forms(node: onnx.NodeProto, sizes: Sizes) -> tuple[Form, ...]:
    """The recurrent GEMM of our own operator."""
    given, r = needed(sizes, 0), needed(sizes, 1)
    if len(given) != 3 or len(r) != 3:
        raise ShapeContradictionError(f"operands {list(given)} and {list(r)} do not fit")
    gates, size = (r[2], r[1]) if len(sizes) > _R_SCALE else (r[1], r[2])
    shape = GemmShape(r[0], given[1], size, gates)
    return (Form(shape=shape, a=None, b=1, repeats=given[0], pinned=ONE_BY_ONE),)


def take_steps(node: onnx.NodeProto, arrays: list[Array | None]) -> tuple[Array, Array, Array]:
    """What the Recurrence node gives for its inputs."""
    kind = get_string(node, "kind", "")
    given, recurrent = arrays[0], arrays[1]
    if given is None or recurrent is None:
        raise ValueError("an operand of the recurrence is absent")
    directions = recurrent.shape[0]
    scales = None
    if len(arrays) > _R_SCALE:  # integers [directions, H, gates * H]
        scale, zero = arrays[_R_SCALE], arrays[_R_SCALE + 1]
        if scale is None or zero is None:
            raise ValueError("a scale of the recurrence is absent")
        scales = np.broadcast_to(scale.reshape(scale.shape[0], -1), (directions, scale.size // scale.shape[0]))
        recurrent = (recurrent.astype(np.float32) - zero.reshape(zero.shape[0], 1, -1)).transpose(0, 2, 1)
    names = get_strings(node, "activations") or DEFAULT_ACTIVATIONS[kind] * directions
    layer = Layer(
        kind=kind, scales=scales, direction=get_string(node, "direction", "forward"), clip=get_float(node, "clip", 0.0),
        functions=activations(names, get_floats(node, "activation_alpha"), get_floats(node, "activation_beta")),
        input_forget=bool(get_int(node, "input_forget", 0)), linear_before_reset=bool(get_int(node, "linear_before_reset", 0)),
    )  # fmt: skip
    rest = [*arrays[2:_R_SCALE], *[None] * 5][:5]
    shaped = given.reshape(*given.shape[:2], directions, GATES[kind] * recurrent.shape[-1])
    return layer.run(shaped, recurrent, *rest)


LAYER = Operator(forms=_forms, expand=_expand, operands=(0, 1, 2))
QUANTISED_LAYER = Operator(forms=_forms, expand=_expand_quantised, operands=(0, 1, 2))
RECURRENCE = Operator(forms=_step_forms)
