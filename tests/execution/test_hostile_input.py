"""Plans, arrays and messages that mean harm: they are refused, and nothing outside what belongs to a run is read or written."""

from __future__ import annotations

import io
import json
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_models
from hand_plans import random_plan
from hypothesis import given, settings
from hypothesis import strategies as st

from cleave_plan.dtypes import DType
from cleave_plan.errors import CleaveError, InputFileError
from cleave_plan.execution.cores import memory_bytes
from cleave_plan.execution.engines.base import Lost, Task
from cleave_plan.execution.engines.local import LocalEngine
from cleave_plan.execution.engines.wire import MOST_TEXT, Answer, Answers, BrokenLineError, answer
from cleave_plan.execution.inputs import load_inputs, random_inputs
from cleave_plan.execution.session import run
from cleave_plan.kernels.tile import Box, Product
from cleave_plan.onnx_io.importer import load_model
from cleave_plan.plan.planfile import load_plan, save_plan
from cleave_plan.workload.gemm import GemmShape

Document = dict[str, Any]


def first_tiled(document: Document) -> Document:
    """The first assignment that has tiles."""
    found: Document = next(assignment for assignment in document["assignments"] if assignment["device"])
    return found


def _huge_tile(document: Document) -> None:
    first_tiled(document)["m_stop"][0] = 2**62


def _negative_tile(document: Document) -> None:
    first_tiled(document)["n_start"][0] = -(2**40)


def _overlap(document: Document) -> None:
    columns = first_tiled(document)
    for name in ("device", *(f"{axis}_{end}" for axis in ("m", "n", "k", "batch") for end in ("start", "stop"))):
        columns[name].append(columns[name][0])


def _not_a_number(document: Document) -> None:
    document["predicted"]["batch_s"] = float("nan")


def _endless(document: Document) -> None:
    document["predicted"]["levels_s"] = float("inf")


def _no_such_device(document: Document) -> None:
    first_tiled(document)["device"][0] = 2**31


def _path_for_a_gemm(document: Document) -> None:
    first_tiled(document)["gemms"] = ["../../../../etc/passwd"]


def _huge_dimension(document: Document) -> None:
    document["dims"] = {"batch": 2**50}


def _huge_shape(document: Document) -> None:
    document["shapes"] = {"ids": [2**31, 2**31]}


@pytest.mark.parametrize(
    "edit",
    [
        _huge_tile, _negative_tile, _overlap, _not_a_number, _endless, _no_such_device, _path_for_a_gemm, _huge_dimension,
        _huge_shape,
    ],
    ids=lambda edit: edit.__name__.strip("_"),
)  # fmt: skip
def test_a_plan_that_means_harm_is_refused(tmp_path: Path, edit: Callable[[Document], None]) -> None:
    """An error of ours, before any worker starts, and nothing new in the folder."""
    model = small_models.transformer_block(tmp_path / "block.onnx")
    inputs = random_inputs(load_model(model))
    path = tmp_path / "plan.json"
    save_plan(random_plan(load_model(model).workload, seed=2, keep=0.0), path)
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))
    before = set(tmp_path.rglob("*"))
    with pytest.raises(CleaveError):
        run(load_plan(path), model, inputs, workers=1)
    assert set(tmp_path.rglob("*")) == before


def test_names_that_are_paths_are_only_names(tmp_path: Path) -> None:
    """Devices and servers called like files: the run is right and touches none of them."""
    model = small_models.transformer_block(tmp_path / "block.onnx")
    inputs = random_inputs(load_model(model))
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    path = tmp_path / "plan.json"
    save_plan(random_plan(load_model(model).workload, seed=2, keep=0.0, devices=2), path)
    document = json.loads(path.read_text())
    document["device_names"] = [str(victim), "../../escape"]
    document["model"]["name"] = str(victim)
    path.write_text(json.dumps(document))
    before = set(tmp_path.parent.rglob("*"))
    result = run(load_plan(path), model, inputs, workers=2)
    for name, wanted in small_models.unsplit(model, inputs).items():
        np.testing.assert_allclose(result.outputs[name], wanted, rtol=1e-4, atol=1e-4)
    assert victim.read_text() == "untouched"
    assert set(tmp_path.parent.rglob("*")) == before


def test_inputs_that_no_memory_holds_are_not_drawn(tmp_path: Path) -> None:
    """A size that a plan claims is compared with the machine before anything is allocated."""
    from onnx import TensorProto, helper

    path = tmp_path / "open.onnx"
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    small_models.save(path, nodes, {"x": (TensorProto.FLOAT, ["n"])}, ["y"])
    with pytest.raises(InputFileError, match=r"takes \d+ bytes; expected inputs that fit into this machine's"):
        random_inputs(load_model(path, dims={"n": memory_bytes()}))


def member(shape: tuple[int, ...], data: bytes = b"") -> bytes:
    """An .npy file that claims ``shape`` of float64 and holds ``data``."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return file.getvalue() + data


def test_an_archive_that_claims_too_much_is_not_unpacked(tmp_path: Path) -> None:
    """A header larger than its member, and a directory larger than memory."""
    with zipfile.ZipFile(tmp_path / "claim.npz", "w") as archive:
        archive.writestr("x.npy", member((2**40,), b"\0" * 64))
    with pytest.raises(InputFileError, match=r"'x.npy' claims the shape \[1099511627776\]; expected arrays that are there"):
        load_inputs(tmp_path / "claim.npz")
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", member((8,), b"\0" * 64))
    # The size in the directory (24 bytes into its entry) is what a bomb is honest about.
    data = bytearray((tmp_path / "bomb.npz").read_bytes())
    entry = data.index(b"PK\x01\x02")
    many = memory_bytes() // (2**32 - 2) + 1
    data[entry + 24 : entry + 28] = struct.pack("<I", 2**32 - 2)
    copies = bytes(data[entry : data.index(b"PK\x05\x06")]) * many
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, many, many, len(copies), entry, 0)
    (tmp_path / "bomb.npz").write_bytes(bytes(data[:entry]) + copies + end)
    with pytest.raises(InputFileError, match=r"it unpacks to \d+ bytes; expected at most"):
        load_inputs(tmp_path / "bomb.npz")


def test_pickled_arrays_are_never_opened(tmp_path: Path) -> None:
    """The object's own code, which would write a file, does not run."""

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "sprung",))

    np.savez(tmp_path / "trap.npz", x=np.array([Trap()], dtype=object))
    with pytest.raises(InputFileError, match=r"expected an \.npz file of arrays"):
        load_inputs(tmp_path / "trap.npz")
    assert not (tmp_path / "sprung").exists()


@settings(max_examples=200, deadline=None)
@given(parts=st.lists(st.binary(max_size=200), max_size=6))
def test_any_bytes_from_a_worker_are_answers_or_refused(parts: list[bytes]) -> None:
    """No other error, and no more kept than one answer can be long."""
    answers = Answers()
    try:
        for part in parts:
            for given_answer in answers.feed(part):
                assert len(given_answer.fault.encode(errors="replace")) <= 3 * MOST_TEXT
    except BrokenLineError:
        return
    assert len(answers._buffer) < 48 + MOST_TEXT


@given(cut=st.integers(0, 200), text=st.text(max_size=50))
def test_answers_arrive_whole_however_they_are_cut(cut: int, text: str) -> None:
    """The same answers from two parts as from one; text longer than its bound loses its beginning."""
    sent = [Answer(1, 2, 3, 4, 0.5), Answer(7, 8, fault=text or "x")]
    data = b"".join(map(answer, sent))
    answers = Answers()
    assert [*answers.feed(data[:cut]), *answers.feed(data[cut:])] == sent
    (long,) = Answers().feed(answer(Answer(0, 0, fault="a" * MOST_TEXT + "end")))
    assert long.fault.endswith("end")
    assert len(long.fault) == MOST_TEXT


RUDE = """
import os, socket, struct, sys
line = socket.socket(fileno=int(sys.argv[1]))
line.recv(1)
line.sendall({data})
line.recv(1 << 16)
while True:
    if not line.recv(1 << 16):
        break
"""
ANSWER = "struct.pack('<4qdq', {})"


@pytest.mark.skipif(sys.platform != "linux", reason="the local engine is tested on Linux")
@pytest.mark.parametrize(
    "data",
    [
        "os.urandom(4096).replace(bytes(4), b'abcd')",
        ANSWER.format("0, 0, 10, 10, 0.1, 1 << 40"),
        ANSWER.format("0, 0, -1, 10, 0.1, 0"),
        ANSWER.format("0, 0, 10, 10, float('nan'), 0"),
        ANSWER.format("0, 99, 10, 10, 0.1, 0"),
        ANSWER.format("5, 0, 10, 10, 0.1, 0"),
        "b'\\x80\\x04cos\\nsystem\\n(S\"touch sprung\"\\ntR.' * 8",
    ],
    ids=["noise", "endless text", "negative bytes", "no time", "another tile", "another job", "a pickle"],
)
def test_a_worker_that_sends_nonsense_is_ended(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts as lost with its tile, its process is gone, and nothing that it sent was executed."""
    monkeypatch.chdir(tmp_path)
    engine = LocalEngine(1, start=("-c", RUDE.format(data=data)))
    try:
        engine.start({"a": 1.0})
        shape = GemmShape(1, 2, 2, 2)
        product = Product(shape=shape, a_dtype=DType.FLOAT32, b_dtype=DType.FLOAT32, out_dtype=DType.FLOAT32, window=None)
        operand = np.ones((1, 2, 2), np.float32)
        engine.open(0, product, (operand, operand))
        task = Task(0, 0, "a", Box(0, 2, 0, 2, 0, 2, 0, 1))
        engine.send(task)
        event = engine.collect(20)
        assert isinstance(event, Lost), event
        assert (event.devices, event.tasks) == (("a",), (task,))
        assert "what is no answer" in event.reason
        assert engine.processes == ()
    finally:
        engine.stop()
    assert list(tmp_path.iterdir()) == []


def test_an_order_cannot_reach_outside_its_operands() -> None:
    """Whatever box a task names: it is computed right or refused, and memory beside the result keeps its values."""
    product = Product(
        shape=GemmShape(1, 4, 4, 4), a_dtype=DType.FLOAT32, b_dtype=DType.FLOAT32, out_dtype=DType.FLOAT32, window=None
    )  # fmt: skip
    around = np.full((3, 4, 4), 7, np.float32)
    operand = np.ones((1, 4, 4), np.float32)
    for box in [
        Box(0, 5, 0, 4, 0, 4, 0, 1),
        Box(-4, 4, 0, 4, 0, 4, 0, 1),
        Box(0, 4, 0, 4, 0, 4, 0, 2),
        Box(3, 1, 0, 4, 0, 4, 0, 1),
    ]:
        with pytest.raises(ValueError, match="leaves the product"):
            product.run_into((operand, operand), box, around[1:2])
    product.run_into((operand, operand), Box(1, 3, 0, 4, 0, 4, 0, 1), around[1:2])
    assert around[[0, 2]].min() == around[[0, 2]].max() == 7
    assert around[1, 1:3].tolist() == [[4.0] * 4] * 2
