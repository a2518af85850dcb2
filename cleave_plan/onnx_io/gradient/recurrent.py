"""Recurrent layers written out, so that gradients go through them: one product for the inputs of all steps, a Scan over steps.

Notation of the standard: X_t the input, H the hidden state, W and R weights, Wb and Rb biases, f, g, h activations, products
without a sign elementwise. Directions are scans of their own; the second runs over the steps in reverse (of each sequence, if
their lengths are given). Beyond the end of a sequence the state stays and the output is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from cleave_plan.onnx_io.attributes import get_float, get_floats, get_int, get_string, get_strings
from cleave_plan.onnx_io.gradient.rule import NoRuleError
from cleave_plan.onnx_io.gradient.scans import Loop, write_scan
from cleave_plan.onnx_io.gradient.tensor import Tensor
from cleave_plan.onnx_io.gradient.writer import Writer

_ACTIVATIONS = frozenset({"Relu", "Sigmoid", "Softplus", "Softsign", "Tanh"})
"""Those without settings."""

_DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}

RECURRENT = frozenset(_GATES)
"""The operators that are written out here."""


@dataclass(frozen=True)
class _Layer:
    """One direction of one layer: weights without the axis of directions (W and R transposed), and what the node says."""

    node: onnx.NodeProto
    activations: tuple[str, ...]
    hidden: int
    w: Tensor
    r: Tensor
    w_bias: Tensor | None
    r_bias: Tensor | None
    peepholes: Tensor | None

    def activate(self, place: int, x: Tensor) -> Tensor:
        """Activation ``place`` of a gate's sum, which is clipped first if the node says so."""
        limit = get_float(self.node, "clip", 0.0)
        if limit:
            x = x.op("Clip", -limit, limit)
        return x.op(self.activations[place])

    def gate(self, sums: Tensor, place: int, number: int = 1) -> Tensor:
        """Some gates' columns of the sums of all."""
        return _part(sums, place * self.hidden, (place + number) * self.hidden)


def _part(x: Tensor, start: int, stop: int) -> Tensor:
    return x.op("Slice", x.ints(start), x.ints(stop), x.ints(-1))


Step = Callable[[_Layer, Tensor, Sequence[Tensor]], list[Tensor]]
"""From a step's input sums and states to the next states, H first."""


def _rnn(layer: _Layer, inputs: Tensor, states: Sequence[Tensor]) -> list[Tensor]:
    """H' = f(X_t W^T + H R^T + Wb + Rb)."""
    return [layer.activate(0, inputs + states[0].op("MatMul", layer.r))]


def _gru(layer: _Layer, inputs: Tensor, states: Sequence[Tensor]) -> list[Tensor]:
    """z, r = f(X_t W^T + H R^T + Wb + Rb); c = g(X_t Wh^T + (r H) Rh^T + Rbh + Wbh), or with linear_before_reset
    g(X_t Wh^T + r (H Rh^T + Rbh) + Wbh); H' = (1 - z) c + z H."""
    (h,) = states
    after = bool(get_int(layer.node, "linear_before_reset", 0))
    recurrent = h.op("MatMul", layer.r if after else layer.gate(layer.r, 0, 2))
    if after and layer.r_bias is not None:
        recurrent = recurrent + layer.r_bias
    gates = layer.activate(0, layer.gate(inputs, 0, 2) + layer.gate(recurrent, 0, 2))
    z, r = layer.gate(gates, 0), layer.gate(gates, 1)
    through = r * layer.gate(recurrent, 2) if after else (r * h).op("MatMul", layer.gate(layer.r, 2))
    candidate = layer.activate(1, layer.gate(inputs, 2) + through)
    return [(1 - z) * candidate + z * h]


def _lstm(layer: _Layer, inputs: Tensor, states: Sequence[Tensor]) -> list[Tensor]:
    """i, f, c = f, f, g(X_t W^T + H R^T + Wb + Rb (+ P C)); C' = f C + i c; o likewise (+ P C'); H' = o h(C').

    With input_forget, f = 1 - i. The standard's order of the gates is i, o, f, c.
    """
    h, c = states
    sums = inputs + h.op("MatMul", layer.r)

    def gate(place: int, peephole: int, cell: Tensor) -> Tensor:
        total = layer.gate(sums, place)
        if layer.peepholes is not None:
            total = total + cell * layer.gate(layer.peepholes, peephole)
        return layer.activate(0, total)

    i = gate(0, 0, c)
    f = 1 - i if get_int(layer.node, "input_forget", 0) else gate(2, 2, c)
    cell = f * c + i * layer.activate(1, layer.gate(sums, 3))
    return [gate(1, 1, cell) * cell.op(layer.activations[2]), cell]


_STEPS: dict[str, Step] = {"RNN": _rnn, "GRU": _gru, "LSTM": _lstm}


def write_out(node: onnx.NodeProto, writer: Writer) -> None:
    """Append nodes that give what ``node`` gives, under the same names; raises NoRuleError for a form that is not covered."""
    wish = node.name or node.output[0]
    x, w, r, bias, lengths, first_h, first_c, peepholes = (
        Tensor(writer, node.input[place], wish) if place < len(node.input) and node.input[place] else None for place in range(8)
    )
    if x is None or w is None or r is None:
        raise NoRuleError("a recurrent layer without input or weights")
    batch_first = bool(get_int(node, "layout", 0))
    steps = x.transpose(1, 0, 2) if batch_first else x
    direction = get_string(node, "direction", "forward")
    reverse = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    results = []
    for place, backwards in enumerate(reverse):
        layer = _layer(node, place, len(reverse), w, r, bias, peepholes)
        given = [first_h, first_c] if node.op_type == "LSTM" else [first_h]
        if batch_first:
            given = [None if first is None else first.transpose(1, 0, 2) for first in given]
        states = [_first_state(steps, layer.hidden, None if first is None else _at(first, place)) for first in given]
        results.append(_one_direction(layer, steps, lengths, states, backwards))
    outputs = [_stacked([found[0] for found in results], 1)]
    outputs += [_stacked([found[place] for found in results], 0) for place in range(1, len(results[0]))]
    if batch_first:
        outputs = [outputs[0].transpose(2, 0, 1, 3), *(state.transpose(1, 0, 2) for state in outputs[1:])]
    for name, tensor in zip(node.output, outputs, strict=False):
        if name:
            writer.keep(helper.make_node("Identity", [tensor.name], [name], name=name))


def _layer(
    node: onnx.NodeProto, place: int, directions: int, w: Tensor, r: Tensor, bias: Tensor | None, peepholes: Tensor | None
) -> _Layer:
    names = get_strings(node, "activations") or _DEFAULTS[node.op_type] * directions
    each = len(names) // directions
    chosen = tuple(name.capitalize() for name in names[place * each : (place + 1) * each])
    if not _ACTIVATIONS.issuperset(chosen) or get_floats(node, "activation_alpha") or get_floats(node, "activation_beta"):
        raise NoRuleError(f"activations {', '.join(names)} (covered: {', '.join(sorted(_ACTIVATIONS))})")
    hidden = get_int(node, "hidden_size", 0)
    both = None if bias is None else _at(bias, place)
    width = _GATES[node.op_type] * hidden
    return _Layer(
        node=node, activations=chosen, hidden=hidden, w=_at(w, place).transpose(1, 0), r=_at(r, place).transpose(1, 0),
        w_bias=None if both is None else _part(both, 0, width), r_bias=None if both is None else _part(both, width, 2 * width),
        peepholes=None if peepholes is None else _at(peepholes, place),
    )  # fmt: skip


def _at(x: Tensor, place: int) -> Tensor:
    """One element of the first axis."""
    return x.op("Gather", x.constant(np.int64(place)), axis=0)


def _first_state(steps: Tensor, hidden: int, given: Tensor | None) -> Tensor:
    if given is not None:
        return given
    return steps.like(0).expand(steps.size_of(1).op("Concat", steps.ints(hidden), axis=0))


def _stacked(parts: list[Tensor], axis: int) -> Tensor:
    apart = [part.op("Unsqueeze", part.ints(axis)) for part in parts]
    return apart[0].op("Concat", *apart[1:], axis=axis) if len(apart) > 1 else apart[0]


def _one_direction(
    layer: _Layer, steps: Tensor, lengths: Tensor | None, states: Sequence[Tensor], backwards: bool
) -> list[Tensor]:
    """Y ``[steps, batch, hidden]`` and the last states of one direction."""
    turned = _turned(steps, lengths) if backwards else steps
    sums = turned.op("MatMul", layer.w)
    if layer.w_bias is not None and layer.r_bias is not None:
        # The recurrent bias of a GRU that resets after the product is reset with it, in the step.
        later = layer.node.op_type == "GRU" and get_int(layer.node, "linear_before_reset", 0)
        sums = sums + (layer.w_bias if later else layer.w_bias + layer.r_bias)
    loop = Loop(steps.writer, steps.wish if not layer.node.name else layer.node.name)
    inside = [loop.state(state) for state in states]
    after = _STEPS[layer.node.op_type](layer, loop.scanned(sums), inside)
    output = after[0]
    if lengths is not None:
        number = loop.scanned(_numbers(steps))
        running = number.op("Less", lengths.cast(number.elem)).op("Unsqueeze", number.ints(-1))
        after = [new.where(running, old) for new, old in zip(after, inside, strict=True)]
        output = output.where(running)
    for state, new in zip(inside, after, strict=True):
        loop.carry(state, new)
    loop.emit(output)
    *last, whole = write_scan(loop)
    return [_turned(whole, lengths) if backwards else whole, *last]


def _numbers(steps: Tensor) -> Tensor:
    """0, 1, 2, ... one for each step."""
    count = steps.size_of(0).op("Squeeze", steps.ints(0))
    return count.constant(np.int64(0)).op("Range", count, count.constant(np.int64(1)))


def _turned(steps: Tensor, lengths: Tensor | None) -> Tensor:
    """The steps in reverse; of each sequence by itself, if the lengths are given."""
    if lengths is not None:
        return steps.op("ReverseSequence", lengths.cast(onnx.TensorProto.INT64), batch_axis=1, time_axis=0)
    return steps.op("Slice", steps.ints(-1), steps.ints(-(2**62)), steps.ints(0), steps.ints(-1))
