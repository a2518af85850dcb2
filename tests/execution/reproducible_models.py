"""Models whose products are larger than the blocks of a grid."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import helper
from small_models import FLOAT, save, weights


def attention_block(path: Path) -> Path:
    """Three projections that share their input, attention of four heads, a deep product: every kind of tile but convolutions."""
    rows, width, heads = 150, 96, 4
    nodes = [helper.make_node("MatMul", ["x", f"w{name}"], [name], name=name) for name in "qkv"]
    for name in "qkv":
        nodes.append(helper.make_node("Reshape", [name, "apart"], [f"{name}4"]))
        order = [0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]
        nodes.append(helper.make_node("Transpose", [f"{name}4"], [f"{name}h"], perm=order))
    nodes += [
        helper.make_node("MatMul", ["qh", "kh"], ["scores"], name="scores"),
        helper.make_node("Softmax", ["scores"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "vh"], ["context"], name="context"),
        helper.make_node("Transpose", ["context"], ["back"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["back", "rows"], ["flat"]),
        helper.make_node("MatMul", ["flat", "up"], ["wide"], name="up"),
        helper.make_node("Relu", ["wide"], ["active"]),
        helper.make_node("Gemm", ["active", "down", "bias"], ["y"], name="down", transB=1),
    ]
    square = (width, width)
    constants = weights(2, wq=square, wk=square, wv=square, up=(width, 2300), down=(200, 2300), bias=(200,))
    constants |= {"apart": np.array([1, rows, heads, width // heads]), "rows": np.array([rows, width])}
    return save(path, nodes, {"x": (FLOAT, [1, rows, width])}, ["y"], constants)


def convolutions(path: Path) -> Path:
    """Strides, dilations, padding and groups over images of 37 x 29, then a point-wise layer."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], name="c1", dilations=[1, 2], pads=[1, 2, 1, 2]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], name="c2", group=2, strides=[2, 1], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["c2", "w3"], ["c3"], name="c3"),
        helper.make_node("GlobalAveragePool", ["c3"], ["y"]),
    ]
    constants = weights(3, w1=(8, 3, 3, 3), w2=(12, 4, 3, 3), w3=(90, 12, 1, 1))
    return save(path, nodes, {"x": (FLOAT, [3, 3, 37, 29])}, ["y"], constants)
