"""Attention of onnxruntime and products between DequantizeLinear and QuantizeLinear, in their forms."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
from onnx import helper
from operator_cases import MICROSOFT, RNG, Case, case, floats, scales, signed, unsigned

BATCH, QUERIES, WIDTH, HEADS, PAST = 2, 5, 8, 2, 3


def masks(kind: str, keys: int) -> dict[str, np.ndarray]:
    """One of onnxruntime's forms of a mask."""
    made = {
        "lengths": np.array([3, 5], np.int32), "ends-begins": np.array([4, 5, 1, 0], np.int32),
        "keys": RNG.integers(0, 2, (BATCH, keys)).astype(np.int32), "pairs": RNG.integers(0, 2, (BATCH, QUERIES,
        keys)).astype(np.int32),
    }  # fmt: skip
    return {"m": made[kind]} if kind else {"-m": np.empty(0)}


def attention_cases() -> Iterator[Case]:
    """Attention and QAttention: masks, causal, past and present, widths, biases of the scores."""
    head = WIDTH // HEADS
    past = {"p": floats(2, BATCH, HEADS, PAST, head)}
    plain = {"x": floats(BATCH, QUERIES, WIDTH), "w": floats(WIDTH, 3 * WIDTH), "b": floats(3 * WIDTH)}

    def attention(name: str, arrays: dict[str, Any], outputs: tuple[str, ...] = ("y",), **options: Any) -> Case:
        return case("Attention", arrays, name=name, outputs=outputs, domain=MICROSOFT, num_heads=HEADS, **options)

    for kind, causal in itertools.product(("", "lengths", "ends-begins", "keys", "pairs"), (0, 1)):
        yield attention(f"{kind}-{causal}", plain | masks(kind, QUERIES), unidirectional=causal)
    for kind, causal in (("", 1), ("keys", 0), ("keys", 1), ("lengths", 0)):
        arrays = plain | masks(kind, QUERIES + PAST) | past
        yield attention(f"past-{kind}-{causal}", arrays, ("y", "present"), unidirectional=causal)
    wide = plain | {"w": floats(WIDTH, 28), "b": floats(28)}
    yield attention("widths", wide, qkv_hidden_sizes=[8, 8, 12])
    yield attention("scaled", plain | masks("keys", QUERIES), scale=0.3, mask_filter_value=-50.0)
    for shape in ((BATCH, HEADS, QUERIES, QUERIES), (1, HEADS, QUERIES, QUERIES)):
        yield attention(f"bias-{shape[0]}", plain | {"-m": None, "-p": None, "a": floats(*shape)}, unidirectional=1)
    for kind, zero in itertools.product(("", "lengths"), (False, True)):
        arrays = {
            "x": unsigned(BATCH, QUERIES, WIDTH), "w": signed(WIDTH, 3 * WIDTH), "b": floats(3 * WIDTH),
            "xs": np.float32(0.02), "ws": np.float32(0.01)
        }  # fmt: skip
        arrays |= masks(kind, QUERIES) | {"xz": np.uint8(128)} | ({"wz": np.int8(3)} if zero else {})
        yield case("QAttention", arrays, name=f"QAttention-{kind}-{zero}", domain=MICROSOFT, num_heads=HEADS)


def multi_head_cases() -> Iterator[Case]:
    """MultiHeadAttention: operands of other lengths and widths, biases, masks, past, keys that come with heads first."""
    head, other = WIDTH // HEADS, 6
    apart = {"x": floats(BATCH, QUERIES, WIDTH), "k": floats(BATCH, other, WIDTH), "v": floats(BATCH, other, 12)}
    same = {name: floats(BATCH, QUERIES, WIDTH) for name in "xkv"}
    ready = {"x": apart["x"], "k": floats(BATCH, HEADS, other, head), "v": floats(BATCH, HEADS, other, head)}

    def attention(name: str, arrays: dict[str, Any], outputs: tuple[str, ...] = ("y",), **options: Any) -> Case:
        return case("MultiHeadAttention", arrays, name=name, outputs=outputs, domain=MICROSOFT, num_heads=HEADS, **options)

    for name, arrays, bias in (("apart", apart, 28), ("same", same, 24), ("ready", ready, 24)):
        yield attention(name, arrays)
        yield attention(f"{name}-bias", arrays | {"b": floats(bias)})
    for kind in ("lengths", "keys", "pairs"):
        yield attention(f"apart-{kind}", apart | {"-b": None} | masks(kind, other))
        yield attention(f"same-{kind}-causal", same | {"-b": None} | masks(kind, QUERIES), unidirectional=1)
    yield attention("added", apart | {"-b": None, "-m": None, "a": floats(1, 1, QUERIES, other)})
    kept = {"pk": floats(BATCH, HEADS, PAST, head), "pv": floats(BATCH, HEADS, PAST, head)}
    present = ("y", "k1", "v1")
    for causal in (0, 1):
        yield attention(f"past-{causal}", same | {"b": floats(24), "-m": None, "-a": None} | kept, present, unidirectional=causal)
    yield attention("present", same | {"b": floats(24)}, present)


def grouped_cases() -> Iterator[Case]:
    """GroupQueryAttention: packed operands, rotation, windows, caps, a prompt and a step after a past."""
    heads, key_heads, size = 4, 2, 16

    def attention(name: str, *, queries: int = 4, past: int = 0, total: int = 0, packed: bool = False, turned: bool = False,
                  lengths: tuple[int, ...] = (), bias: bool = False, **options: Any) -> Case:  # fmt: skip
        total = total or queries + past
        arrays: dict[str, Any] = {"x": floats(BATCH, queries, (heads + 2 * key_heads if packed else heads) * size)}
        for name_ in "kv":
            arrays |= {f"-{name_}": None} if packed else {name_: floats(BATCH, queries, key_heads * size)}
        for name_ in ("pk", "pv"):
            arrays |= {name_: floats(BATCH, key_heads, past, size)} if past else {f"-{name_}": None}
        arrays |= {"l": np.array(lengths or [total - 1] * BATCH, np.int32), "t": np.array(total, np.int32)}
        arrays |= {"c": np.cos(floats(32, size // 2)), "s": np.sin(floats(32, size // 2))} if turned else {"-c": None, "-s": None}
        arrays |= {"-i": None, "a": floats(1, 1, queries, max(total, past))} if bias else {}
        return case(
            "GroupQueryAttention", arrays, name=name, outputs=("y", "k1", "v1"), domain=MICROSOFT, num_heads=heads,
            kv_num_heads=key_heads,
            do_rotary=int(turned), **options,
        )  # fmt: skip

    yield attention("prompt")
    yield attention("packed", packed=True, turned=True)
    yield attention("turned", turned=True)
    yield attention("interleaved", turned=True, rotary_interleaved=1)
    yield attention("capped", softcap=5.0, scale=0.2)
    yield attention("bias", bias=True)
    yield attention("window", queries=6, local_window_size=3)
    yield attention("step", queries=1, past=5, turned=True)
    yield attention("step-window", queries=1, past=5, local_window_size=3)
    yield attention("step-buffer", queries=1, past=8, total=6, lengths=(5, 3), turned=True)


def pair_cases() -> Iterator[Case]:
    """MatMul, Gemm and Conv between dequantised operands, with a quantised result or not; weights alone dequantised."""
    shapes = {"MatMul": ((3, 5, 20), (20, 6), 1), "Gemm": ((5, 20), (6, 20), 0), "Conv": ((2, 4, 6, 5), (6, 2, 3, 3), 0)}
    options: dict[str, dict[str, Any]] = {"MatMul": {}, "Gemm": {"transB": 1}, "Conv": {"group": 2, "pads": [1, 1, 1, 1]}}
    for op, kind, columns, back in itertools.product(shapes, (np.int8, np.uint8), (False, True), (False, True)):
        left, right, axis = shapes[op]
        width = (6,) if columns else ()
        arrays: dict[str, Any] = {
            "x": floats(*left), "xs": np.float32(0.02), "xz": np.uint8(120), "w": RNG.integers(0, 100, right).astype(kind),
            "ws": scales(*width),
            "wz": np.zeros(width, kind), "ys": np.float32(0.05), "yz": np.uint8(128), "c": RNG.integers(-500, 500,
            6).astype(np.int32),
        }  # fmt: skip
        arrays["cs"] = (arrays["xs"] * arrays["ws"]).astype(np.float32)
        nodes = [
            helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
            helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
            helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=axis),
            helper.make_node("DequantizeLinear", ["c", "cs"], ["cd"], axis=0),
            helper.make_node(op, ["xd", "wd"] + (["cd"] if op != "MatMul" else []), ["f" if back else "y"], **options[op]),
            *([helper.make_node("QuantizeLinear", ["f", "ys", "yz"], ["y"])] if back else []),
        ]
        arrays = {name: np.asarray(array) for name, array in arrays.items()}
        yield Case(name=f"{op}-{kind.__name__}-{columns}-{back}", nodes=nodes, arrays=arrays)
    for kind, low, high in ((ml_dtypes.int4, -8, 8), (ml_dtypes.uint4, 0, 16), (np.int8, -128, 128)):
        for depth in (32, 33):
            blocks = -(-depth // 16)
            arrays = {
                "x": floats(3, 5, depth), "w": RNG.integers(low, high, (depth, 6)).astype(kind), "s": scales(blocks, 6),
                "z": RNG.integers(0, 7, (blocks, 6)).astype(kind),
            }  # fmt: skip
            nodes = [
                helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"], axis=0, block_size=16),
                helper.make_node("MatMul", ["x", "d"], ["y"]),
            ]
            yield Case(name=f"weights-{np.dtype(kind).name}-{depth}", nodes=nodes, arrays=arrays, opset=21, basic=True)
