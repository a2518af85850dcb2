"""Damaged and hostile files: mutations of real models end with a workload or an error for the user, in bounded time and memory.

By default a few hundred files, mostly small ones of our own; `make test-long` tries tens of thousands, of the shared corpus too.
"""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType

import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from import_cases import value
from import_mutations import damaged, own_models, swapped
from onnx import TensorProto, helper

from cleave_plan.errors import CleaveError, InputFileError
from cleave_plan.onnx_io.importer import load_model

CORPUS = Path(__file__).resolve().parents[3] / "shared" / "corpus"

LARGEST_FILE = 200_000
"""Bytes of the largest real file that is mutated."""

ROOM = 2 * 2**30
"""Bytes that an import may ask for beyond what the tests hold already; one that asks for more fails with MemoryError."""

HUNG_AFTER_S = 60
"""Seconds after which an import counts as hung."""


@cache
def seeds(with_corpus: bool) -> tuple[bytes, ...]:
    """Files to start from."""
    found = sorted(CORPUS.rglob("*.onnx")) if with_corpus else []
    real = [path.read_bytes() for path in found if 0 < path.stat().st_size <= LARGEST_FILE]
    return (*own_models(), *real)


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Fail when what runs inside hangs, or asks for much memory."""

    def hung(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"an import took more than {HUNG_AFTER_S} s")

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGALRM, hung)
    signal.alarm(HUNG_AFTER_S)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, before[1]))
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def mutate_and_import(tmp_path: Path, data: st.DataObject, with_corpus: bool) -> None:
    """One mutated file; any exception but an error for the user fails the test."""

    def number(least: int, most: int) -> int:
        return data.draw(st.integers(least, most))

    content = data.draw(st.sampled_from(seeds(with_corpus)))
    content = swapped(content, number) if data.draw(st.booleans()) else content
    content = damaged(content, number) if data.draw(st.booleans()) else content
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    (tmp_path / "data.bin").write_bytes(bytes(64))
    with bounded(), contextlib.suppress(InputFileError):
        load_model(path)


pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="the bound on memory is Linux's")


@settings(max_examples=300, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_mutated_files(tmp_path: Path, data: st.DataObject) -> None:
    """A few hundred mutations of small models of our own."""
    mutate_and_import(tmp_path, data, with_corpus=False)


@pytest.mark.long
@settings(max_examples=20_000, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(st.data())
def test_many_mutated_files(tmp_path: Path, data: st.DataObject) -> None:
    """The campaign: real files too."""
    mutate_and_import(tmp_path, data, with_corpus=True)


@pytest.mark.parametrize("depth", [7, 8, 9, 12, 90, 200, 5000])
def test_deep_nesting(tmp_path: Path, depth: int) -> None:
    """Bodies in bodies, deeper than anybody needs and deeper than protobuf reads."""
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["r0"])], "innermost", [], [value("r0", None)])
    content = graph.SerializeToString()
    for level in range(1, depth + 1):  # one branch each, wrapped as bytes: the file grows with the depth, not with its square
        content = wrapped(content, level)
    proto = onnx.ModelProto(ir_version=8, opset_import=[helper.make_opsetid("", 17)])
    header = proto.SerializeToString()
    path = tmp_path / "deep.onnx"
    inputs = helper.make_graph([], "g", [value("x", (2, 4)), value("w", (4, 4)), value("c", (), TensorProto.BOOL)], [])
    path.write_bytes(header + field(7, content + inputs.SerializeToString()))
    with bounded(), contextlib.suppress(CleaveError):
        load_model(path)


def wrapped(graph: bytes, level: int) -> bytes:
    """A graph of one If whose one branch is ``graph``."""
    branch = field(1, b"then_branch") + field(6, graph) + b"\xa0\x01\x05"
    inner = field(1, b"c") + field(2, f"r{level}".encode()) + field(4, b"If") + field(5, branch)
    return field(1, inner) + field(12, field(1, f"r{level}".encode()))


def field(number: int, content: bytes) -> bytes:
    """A length-delimited protobuf field."""
    head, size = [number << 3 | 2], len(content)
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    return bytes([*head, size]) + content


@pytest.mark.parametrize("to", [0, 37, 2**31, -(2**63)])
def test_cast_to_a_type_that_is_none(tmp_path: Path, to: int) -> None:
    """An attribute holds any number; one that names no element type is an error for the user, also where it fits no field."""
    cast = helper.make_node("Cast", ["x"], ["c"], to=to)
    nodes = [cast, helper.make_node("Identity", ["c"], ["same"]), helper.make_node("MatMul", ["same", "w"], ["y"])]
    graph = helper.make_graph(nodes, "g", [value("x", (2, 4)), value("w", (4, 4))], [value("y", None)])
    path = tmp_path / "cast.onnx"
    onnx.save(helper.make_model(graph), path)
    with bounded(), pytest.raises(InputFileError, match="Cast"):
        load_model(path)


@pytest.mark.parametrize("op_type", ["MatMul", "DequantizeLinear", "Add", "Gemm", "Softmax"])
@pytest.mark.parametrize("missing", ["input", "output"])
def test_node_without_operands(tmp_path: Path, op_type: str, missing: str) -> None:
    """A node with fewer operands than its operator must have is an error that says so, whoever would read them first."""
    inputs, outputs = ([], ["d"]) if missing == "input" else (["w", "w"], [])
    nodes = [helper.make_node(op_type, inputs, outputs), helper.make_node("MatMul", ["x", "d" if outputs else "w"], ["y"])]
    graph = helper.make_graph(nodes, "g", [value("x", (2, 4)), value("w", (4, 4))], [value("y", None)])
    path = tmp_path / "few.onnx"
    onnx.save(helper.make_model(graph), path)
    with bounded(), pytest.raises(InputFileError, match=rf"{op_type}.* has 0 {missing}s; expected [1-3] {missing}s? or more"):
        load_model(path)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1.0])
@pytest.mark.parametrize("op_type", ["Slice", "Reshape", "Expand", "Unsqueeze", "ReduceSum", "Split", "Pad", "TopK", "Tile"])
def test_floats_where_whole_numbers_belong(tmp_path: Path, op_type: str, number: float) -> None:
    """Bounds, axes and counts of a floating-point type are an error for the user, or leave the product open."""
    wrong = helper.make_tensor("n", TensorProto.FLOAT, [1], [number])
    inputs = ["x", "n", "n"] if op_type == "Slice" else ["x", "n"]
    outputs = ["c", "d"] if op_type in ("Split", "TopK") else ["c"]
    nodes = [helper.make_node(op_type, inputs, outputs), helper.make_node("MatMul", ["c", "w"], ["y"])]
    graph = helper.make_graph(nodes, "g", [value("x", (2, 4)), value("w", (4, 4))], [value("y", None)], [wrong])
    path = tmp_path / "floats.onnx"
    onnx.save(helper.make_model(graph), path)
    try:
        with bounded():
            workload = load_model(path).workload
    except InputFileError:
        return
    assert workload.unknown or op_type == "Expand"  # an unknown size beside 4 can only be 1 or 4
    assert [gemm.shape for gemm in workload.gemms] == [(1, 2, 4, 4)] * (op_type == "Expand")
