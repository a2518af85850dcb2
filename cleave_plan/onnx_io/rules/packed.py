"""MatMulNBits and MatMulBnb4 of onnxruntime: float activations times weights of 2 to 8 bits.

Rows, columns and K can be cut. Weights travel packed as they lie in the file, with the scales (and zero points) of their
columns and blocks; the device unpacks them. The bias is the server's.
"""

from __future__ import annotations

from math import prod

import numpy as np
import onnx

from cleave_plan.dtypes import DType
from cleave_plan.kernels.quantised import Coding, Companions
from cleave_plan.onnx_io.attributes import get_int
from cleave_plan.onnx_io.facts import ShapeContradictionError
from cleave_plan.onnx_io.rules.forms import Array, Arrays, Form, Lowered, Operator, Sizes, in_type, needed, operand, optional
from cleave_plan.workload.gemm import Gemm, GemmShape

_CODES = {2: DType.UINT2, 4: DType.UINT4, 8: DType.UINT8}
_REORDERING = 4  # the input that assigns positions of K to groups


def _shape(node: onnx.NodeProto, sizes: Sizes) -> GemmShape:
    x, k, n = needed(sizes, 0), get_int(node, "K", 0), get_int(node, "N", 0)
    if not x or x[-1] != k or n < 0:
        raise ShapeContradictionError(f"inner sizes differ: {x[-1] if x else 'a scalar'} and K = {k}")
    return GemmShape(1, prod(x[:-1]), k, n)


def _forms(node: onnx.NodeProto, sizes: Sizes) -> tuple[Form, ...]:
    bits, block = get_int(node, "bits", 4), get_int(node, "block_size", 0)
    shape = _shape(node, sizes)
    if bits not in _CODES or block < 1:
        return (Form(shape=shape, b_dtype=DType.UINT8, pinned=f"weights of {bits} bits in blocks of {block}"),)
    reordered = len(node.input) > _REORDERING and bool(node.input[_REORDERING])
    pinned = "its groups of weights are not in order along K" if reordered else ""
    return (Form(shape=shape, b_dtype=_CODES[bits], b_scales=(2, 3), pinned=pinned),)


def _lower(node: onnx.NodeProto, gemm: Gemm, arrays: Arrays) -> Lowered:
    """Inputs: A, B [N, blocks, bytes], scales, zero points (packed, or one number each), none, bias."""
    a, codes, scales = (operand(arrays, place) for place in range(3))
    zeros, bias = optional(arrays, 3), optional(arrays, 5)
    _, rows, depth, columns = gemm.shape
    coding = Coding(get_int(node, "bits", 4), get_int(node, "block_size", 0))
    blocks = -(-depth // coding.block)
    along = Companions(
        b_scale=scales.reshape(1, columns, blocks), b_offset=_offsets(zeros, columns, blocks, coding.bits)
    )  # fmt: skip
    packed = codes.reshape(1, columns, -1)[..., : coding.bytes_of(depth)]

    def finish(result: Array) -> Array:
        output = result.reshape(*a.shape[:-1], columns)
        return output if bias is None else in_type(output + bias, output.dtype)

    return Lowered(a=a.reshape(1, rows, depth), b=packed, finish=finish, along=along, coding=coding)


def _offsets(zeros: Array | None, columns: int, blocks: int, bits: int) -> Array:
    """Zero points as one number for each column and block; the middle of the range where there are none."""
    if zeros is None:
        return np.full((1, 1, 1), 2 ** (bits - 1), np.uint8)
    if zeros.dtype != np.uint8 or bits == np.iinfo(np.uint8).bits:
        return zeros.reshape(1, columns, blocks)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    apart = (zeros.reshape(columns, -1, 1) >> shifts) & np.uint8(2**bits - 1)
    return apart.reshape(1, columns, -1)[..., :blocks]


def _code_book_forms(node: onnx.NodeProto, sizes: Sizes) -> tuple[Form, ...]:
    return (Form(shape=_shape(node, sizes), b_dtype=DType.UINT4, pinned="weights in the code book of bitsandbytes"),)


MATMUL_N_BITS = Operator(forms=_forms, lower=_lower, operands=(0,))
MATMUL_BNB4 = Operator(forms=_code_book_forms, operands=(0,))
