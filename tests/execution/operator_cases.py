"""One node of each operator with a rule, in its forms: nodes, arrays, and which arrays are weights."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

RNG = np.random.default_rng(11)
MICROSOFT = "com.microsoft"


@dataclass(frozen=True, kw_only=True)
class Case:
    """``exact``: integers must be equal; ``steps``: by how many steps a quantised result may differ."""

    name: str
    nodes: Sequence[onnx.NodeProto]
    arrays: dict[str, np.ndarray]
    fed: Sequence[str] = ("x",)
    outputs: Sequence[str] = ("y",)
    opset: int = 17
    tolerance: float = 1e-4
    basic: bool = field(default=False)
    """Compare with onnxruntime without fusions that change the arithmetic."""

    def save(self, path: Path) -> Path:
        """Write the model."""
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(self.arrays[name].dtype), self.arrays[name].shape)
            for name in self.fed
        ]
        weights = [numpy_helper.from_array(array, name) for name, array in self.arrays.items() if name not in self.fed]
        graph = helper.make_graph(
            list(self.nodes), "case", inputs, [onnx.ValueInfoProto(name=name) for name in self.outputs], weights
        )
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid(MICROSOFT, 1)]
        onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), path)
        return path

    def inputs(self) -> dict[str, np.ndarray]:
        """What is fed."""
        return {name: self.arrays[name] for name in self.fed}

    def wanted(self, path: Path) -> list[np.ndarray]:
        """onnxruntime's outputs."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        if self.basic:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return list(session.run(list(self.outputs), self.inputs()))


def case(op: str, arrays: dict[str, Any], *, name: str = "", absent: str = "", domain: str = "", **options: Any) -> Case:
    """A node that reads ``arrays`` in order; a name that begins with "-" is an absent input."""
    kept = {field_: options.pop(field_) for field_ in ("fed", "outputs", "opset", "tolerance", "basic") if field_ in options}
    outputs = kept.get("outputs", ("y",))
    inputs = ["" if key.startswith("-") else key for key in arrays]
    node = helper.make_node(op, inputs, list(outputs), domain=domain, **options)
    present = {key: np.asarray(value) for key, value in arrays.items() if not key.startswith("-")}
    return Case(name=name or f"{op}-{'-'.join(map(str, options.values()))}", nodes=[node], arrays=present, **kept)


def floats(*shape: int) -> np.ndarray:
    """Seeded float32 numbers."""
    return RNG.standard_normal(shape).astype(np.float32)


def unsigned(*shape: int) -> np.ndarray:
    """Seeded uint8 numbers over their whole range."""
    return RNG.integers(0, 256, shape).astype(np.uint8)


def signed(*shape: int) -> np.ndarray:
    """Seeded int8 numbers over their whole range."""
    return RNG.integers(-128, 128, shape).astype(np.int8)


def scales(*shape: int) -> np.ndarray:
    """Seeded scales."""
    return (RNG.random(shape) * 0.02 + 0.001).astype(np.float32)


def fused_cases() -> Iterator[Case]:
    """FusedMatMul, FusedGemm, FusedConv."""
    for shapes, options in (
        (((2, 4, 3), (2, 4, 5)), {"transA": 1, "alpha": 0.5}), (((2, 3, 4), (5, 4)), {"transB": 1}),
        (((3, 2, 4), (4, 2, 5)), {"transBatchA": 1, "transBatchB": 1}), (((4, 2, 3), (2, 5, 4)), {"transBatchA": 1,
        "transA": 1, "transB": 1}),
        (((3, 6, 2, 4), (4, 6, 2, 5)), {"transBatchA": 1, "transBatchB": 1}),
    ):  # fmt: skip
        yield case("FusedMatMul", {"x": floats(*shapes[0]), "b": floats(*shapes[1])}, domain=MICROSOFT, **options)
    for activation, parameters in (
        ("Relu", ()), ("LeakyRelu", (0.1,)), ("Tanh", ()), ("Sigmoid", ()), ("HardSigmoid", (0.3, 0.4)), ("Elu", (0.7,)),
        ("Softplus", ()), ("Softsign", ()), ("ThresholdedRelu", (0.2,)), ("ScaledTanh", (0.5, 0.6)), ("ParametricSoftplus",
        (0.5, 0.6)),
    ):  # fmt: skip
        named = dict(zip(("activation_alpha", "activation_beta"), parameters, strict=False))
        arrays = {"x": floats(3, 4), "b": floats(4, 5), "c": floats(5)}
        yield case("FusedGemm", arrays, domain=MICROSOFT, alpha=0.5, beta=0.7, activation=activation, **named)
    for activation, parameters in (("Relu", ()), ("LeakyRelu", (0.1,)), ("Clip", (-0.5, 0.6)), ("HardSigmoid", (0.3, 0.4))):
        named = {"activation_params": list(parameters)} if parameters else {}
        arrays = {"x": floats(2, 3, 5, 6), "w": floats(4, 3, 3, 3), "b": floats(4)}
        yield case("FusedConv", arrays, domain=MICROSOFT, activation=activation, pads=[1, 1, 1, 1], **named)
    arrays = {"x": floats(2, 3, 5, 6), "w": floats(4, 3, 3, 3), "b": floats(4), "z": floats(2, 4, 3, 4)}
    yield case("FusedConv", arrays, domain=MICROSOFT, name="FusedConv-addend", activation="Relu")


def convolution_cases() -> Iterator[Case]:
    """ConvTranspose and DeformConv."""
    for groups, options in (
        (1, {}), (2, {"strides": [2, 2], "pads": [1, 0, 1, 1]}), (1, {"strides": [3, 2], "output_padding": [1, 1],
        "dilations": [2, 1]}),
        (2, {"strides": [2, 2], "auto_pad": "SAME_UPPER"}), (1, {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
        (1, {"strides": [2, 3], "output_shape": [10, 12]}), (1, {"strides": [2, 2], "output_shape": [11, 10],
        "auto_pad": "SAME_UPPER"}),
        (1, {"auto_pad": "VALID"}),
    ):  # fmt: skip
        arrays = {"x": floats(2, 4, 5, 4), "w": floats(4, 3, 3, 3), "b": floats(3 * groups)}
        yield case("ConvTranspose", arrays, group=groups, **options)
    yield case("ConvTranspose", {"x": floats(2, 4, 5), "w": floats(4, 3, 3)}, name="ConvTranspose-1d", strides=[2])
    yield case("ConvTranspose", {"x": floats(2, 4, 3, 3, 4), "w": floats(4, 2, 3, 3, 2)}, strides=[2, 1, 2], pads=[1] * 6)
    for groups, shares, size, options in (
        (1, 1, (5, 4), {}), (2, 2, (3, 6), {"strides": [2, 1], "pads": [1, 1, 0, 1]}), (1, 2, (5, 6), {"dilations": [2, 1],
        "pads": [1, 1, 1, 1]}),
    ):  # fmt: skip
        arrays = {
            "x": floats(2, 4, 7, 6), "w": floats(6, 4 // groups, 3, 3), "o": 1.5 * floats(2, shares * 18, *size),
            "b": floats(6),
            "m": floats(2, shares * 9, *size),
        }  # fmt: skip
        yield case("DeformConv", arrays, opset=19, group=groups, offset_group=shares, **options)


EQUATIONS = [
    ("ij,jk->ik", [(3, 4), (4, 5)]), ("bhid,bhjd->bhij", [(2, 3, 4, 5), (2, 3, 6, 5)]), ("bhij,bjhd->bihd", [(2, 3, 4, 6),
    (2, 6, 3, 5)]),
    ("...ij,...jk", [(2, 1, 3, 4), (1, 5, 4, 6)]), ("i,j->ij", [(3,), (4,)]), ("i,i->", [(3,), (3,)]), ("ijk,lj->il", [(2,
    3, 4), (5, 3)]),
    ("iij,jk->ik", [(3, 3, 4), (4, 5)]), ("bij,jk->bki", [(2, 3, 4), (4, 5)]), ("ab,bc->b", [(3, 4), (4, 5)]),
    ("ij,jk,kl->il", [(3, 4), (4, 5), (5, 6)]), ("bij,jk,kl,bl->bi", [(2, 3, 4), (4, 5), (5, 6), (2, 6)]), ("i,j,k->ijk",
    [(3,), (4,), (5,)]),
    ("...ij,jk,kl", [(2, 3, 4), (4, 5), (5, 6)]),
]  # fmt: skip


def einsum_cases() -> Iterator[Case]:
    """Products of two and chains of more."""
    for equation, shapes in EQUATIONS:
        arrays = {name: floats(*shape) for name, shape in zip("xbcd", shapes, strict=False)}
        yield case("Einsum", arrays, equation=equation)


def integer_cases() -> Iterator[Case]:
    """MatMulInteger, ConvInteger, QLinear and onnxruntime's quantised products: zero points and scales for each row or column."""
    yield case("MatMulInteger", {"x": unsigned(2, 5, 7), "b": signed(7, 6), "az": unsigned(), "bz": signed(6)}, name="columns")
    yield case("MatMulInteger", {"x": unsigned(5, 7), "b": unsigned(7, 6), "az": unsigned(), "bz": unsigned()}, name="one")
    yield case("MatMulInteger", {"x": unsigned(2, 5, 300), "b": signed(2, 300, 6)}, name="deep")
    arrays = {"x": unsigned(2, 3, 6, 5), "w": unsigned(4, 3, 3, 3), "xz": unsigned(), "wz": unsigned()}
    yield case("ConvInteger", arrays, pads=[1, 1, 1, 1])
    for columns, (left, right) in itertools.product(((), (6,)), ((unsigned, signed), (unsigned, unsigned), (signed, signed))):
        arrays = {
            "x": left(4, 5, 20), "xs": scales(), "xz": left(), "b": right(20, 6), "bs": scales(*columns), "bz": right(*columns),
            "ys": np.float32(0.05), "yz": left(),
        }  # fmt: skip
        yield case("QLinearMatMul", arrays, name=f"QLinearMatMul-{columns}-{left.__name__}-{right.__name__}")
        weights_zero = np.zeros(columns, np.int8) if right is signed else np.full(columns, 7, np.uint8)
        for groups in (1, 2):
            arrays = {
                "x": left(2, 4, 7, 6), "xs": scales(), "xz": left(), "w": right(6, 4 // groups, 3, 3), "ws": scales(*columns),
                "wz": weights_zero, "ys": np.float32(0.05), "yz": left(), "b": RNG.integers(-5000, 5000, 6).astype(np.int32),
            }  # fmt: skip
            name = f"QLinearConv-{columns}-{left.__name__}-{right.__name__}"
            yield case("QLinearConv", arrays, name=name, group=groups, pads=[1, 0, 2, 1], strides=[1, 2])
    for columns, result in itertools.product(((), (6,)), (True, False)):
        arrays = {
            "x": unsigned(9, 5), "xs": scales(), "xz": unsigned(), "b": signed(6, 9), "bs": scales(*columns),
            "bz": np.zeros(columns, np.int8),
            "c": RNG.integers(-900, 900, 6).astype(np.int32),
        }  # fmt: skip
        arrays |= {"ys": np.float32(0.05), "yz": unsigned()} if result else {}
        yield case("QGemm", arrays, name=f"QGemm-{columns}-{result}", domain=MICROSOFT, alpha=0.5, transA=1, transB=1)
        arrays = {
            "x": unsigned(2, 5, 9), "b": signed(9, 6), "xs": scales(), "bs": scales(*columns), "xz": unsigned(),
            "bz": signed(*columns), "c": floats(6)
        }  # fmt: skip
        yield case("MatMulIntegerToFloat", arrays, name=f"MatMulIntegerToFloat-{columns}-{result}", domain=MICROSOFT)
        arrays = {"x": floats(2, 5, 9), "b": signed(9, 6), "bs": scales(*columns), "bz": signed(*columns), "c": floats(6)}
        yield case("DynamicQuantizeMatMul", arrays, name=f"DynamicQuantizeMatMul-{columns}-{result}", domain=MICROSOFT)


def packed_cases() -> Iterator[Case]:
    """MatMulNBits: bits, blocks that do not divide K, zero points."""
    for bits, (depth, block), zeros in itertools.product((2, 4, 8), ((64, 32), (50, 16), (130, 64)), (False, True)):
        blocks = -(-depth // block)
        arrays = {"x": floats(2, 5, depth), "b": unsigned(7, blocks, block * bits // 8), "s": scales(7 * blocks)}
        arrays |= {"z": unsigned(7 * -(-blocks * bits // 8))} if zeros else {}
        yield case(
            "MatMulNBits",
            arrays,
            name=f"{bits}-{depth}-{block}-{zeros}",
            domain=MICROSOFT,
            K=depth,
            N=7,
            bits=bits,
            block_size=block,
        )


def recurrent_cases() -> Iterator[Case]:
    """LSTM, GRU, RNN: directions, biases, states, peepholes, lengths, clipping, other activations."""
    steps, batch, size, hidden = 5, 3, 4, 6
    for (op, gates), (direction, d) in itertools.product(
        (("LSTM", 4), ("GRU", 3), ("RNN", 1)), (("forward", 1), ("reverse", 1), ("bidirectional", 2))
    ):
        outputs = ("y", "h1", "c1") if op == "LSTM" else ("y", "h1")
        options: dict[str, Any] = {"direction": direction, "hidden_size": hidden}
        plain = {
            "x": floats(steps, batch, size),
            "w": floats(d, gates * hidden, size) / 2,
            "r": floats(d, gates * hidden, hidden) / 2,
        }
        yield case(op, plain, name=f"{op}-{direction}-plain", outputs=outputs, **options)
        states = {"h": floats(d, batch, hidden)} | (
            {"c": floats(d, batch, hidden), "p": floats(d, 3 * hidden)} if op == "LSTM" else {}
        )
        full = plain | {"b": floats(d, 2 * gates * hidden), "l": np.array([5, 2, 3], np.int32)} | states
        before = {"linear_before_reset": 1} if op == "GRU" else {}
        yield case(op, full, name=f"{op}-{direction}-full", outputs=outputs, **options, **before)
        clipped = plain | {"b": floats(d, 2 * gates * hidden), "-l": None} | states
        other = {"activations": ["LeakyRelu"] * d, "activation_alpha": [0.1] * d} if op == "RNN" else {}
        yield case(op, clipped, name=f"{op}-{direction}-clipped", outputs=outputs, clip=0.4, **options, **other)
    for d in (1, 2):
        arrays = {
            "x": floats(steps, batch, size), "w": signed(d, size, 4 * hidden), "r": signed(d, hidden, 4 * hidden),
            "b": floats(d, 8 * hidden),
            "-l": None, "-h": None, "-c": None, "-p": None, "ws": np.full(d, 0.01, np.float32), "wz": np.zeros(d, np.int8),
            "rs": np.full(d, 0.01, np.float32), "rz": np.zeros(d, np.int8),
        }  # fmt: skip
        options = {"hidden_size": hidden, "direction": "bidirectional" if d == 2 else "forward"}
        # onnxruntime's own result moves by 1e-3 with the number of its threads: each quantises its batch items alone.
        yield case("DynamicQuantizeLSTM", arrays, domain=MICROSOFT, tolerance=2e-2, outputs=("y", "h1", "c1"), **options)
