"""Plan files: the same plan comes back, the same bytes are written, and no bad file gets through."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_cases import SOLVER, assigned, example, with_tiles
from planfile_cases import BAD_DOCUMENTS, random_plans

from cleave_plan.cost.tile import Tiles
from cleave_plan.errors import ExecutionError, InputFileError, UsageError
from cleave_plan.plan import planfile
from cleave_plan.plan.plan import Plan
from cleave_plan.plan.planfile import load_plan, plan_document, save_plan


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def assert_equal(first: Any, second: Any) -> None:
    """Deep equality of plans, whose columns make ``==`` of no use."""
    if isinstance(first, np.ndarray):
        assert first.dtype == second.dtype == np.int64
        assert first.tolist() == second.tolist()
    elif is_dataclass(first) and not isinstance(first, type):
        assert type(first) is type(second)
        for field in fields(first):
            assert_equal(getattr(first, field.name), getattr(second, field.name))
    elif isinstance(first, tuple):
        assert len(first) == len(second)
        for mine, other in zip(first, second, strict=True):
            assert_equal(mine, other)
    else:
        assert type(first) is type(second)
        assert first == second


@given(random_plans())
@settings(max_examples=60, deadline=None)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, plan: Plan) -> None:
    """What is saved is what is loaded, to the last bit of every float, and saving that gives the same bytes."""
    folder = tmp_path_factory.mktemp("plans")
    save_plan(plan, folder / "first.json")
    loaded = load_plan(folder / "first.json")
    assert_equal(loaded, plan)
    save_plan(loaded, folder / "second.json")
    assert (folder / "first.json").read_bytes() == (folder / "second.json").read_bytes()


def test_bytes_do_not_depend_on_the_order_of_mappings(tmp_path: Path) -> None:
    """Two equal plans whose mappings were filled in another order are one file; NumPy numbers and integers are numbers."""
    plan = example()[0]
    first = replace(plan, dims={"a": 1, "b": 2}, settings={"x": "1", "y": "2"})
    second = replace(
        plan, dims={"b": 2, "a": 1}, settings={"y": "2", "x": "1"}, solver=replace(SOLVER, objective=np.float64(1.0), bound=1)
    )
    save_plan(first, tmp_path / "1.json")
    save_plan(second, tmp_path / "2.json")
    assert (tmp_path / "1.json").read_bytes() == (tmp_path / "2.json").read_bytes()


def test_a_file_does_not_depend_on_how_long_anything_took(tmp_path: Path) -> None:
    """Seconds of the solver are in the document that `plan --json` prints, and null in the file."""
    plan = replace(example()[0], solver=replace(SOLVER, build_s=0.5, solve_s=2.0))
    save_plan(plan, tmp_path / "slow.json")
    save_plan(example()[0], tmp_path / "fast.json")
    assert (tmp_path / "slow.json").read_bytes() == (tmp_path / "fast.json").read_bytes()
    assert (plan_document(plan)["solver"]["build_s"], plan_document(plan)["solver"]["solve_s"]) == (0.5, 2.0)
    kept = json.loads((tmp_path / "slow.json").read_text())["solver"]
    assert (kept["build_s"], kept["solve_s"]) == (None, None)
    assert load_plan(tmp_path / "slow.json").solver.solve_s is None


def test_the_document_has_the_names_that_scripts_rely_on(tmp_path: Path) -> None:
    """The names that the design fixes, and the file is that document."""
    plan = example()[0]
    document = plan_document(plan)
    assert list(document) == [
        "schema_version", "model", "fleet", "dims", "shapes", "training", "settings", "constraints", "device_names",
        "server_names", "predicted",
        "solver", "assignments", "notes", "trips", "percentile", "recompute",
    ]  # fmt: skip
    assert list(document["assignments"][0]) == [
        "class_name", "mode", "gemms", "server", "servers", "shares", "joined", "join_axis", "device", "m_start", "m_stop",
        "n_start", "n_stop", "k_start", "k_stop", "batch_start", "batch_stop", "held_a", "held_b",
    ]  # fmt: skip
    assert document["assignments"][0]["m_stop"] == [5, 8, 8]
    assert document["assignments"][1]["mode"] == "server"
    assert {"batch_s", "levels_s", "server_operators_s", "ideal_levels_s", "bound_s", "gap"} <= set(document["predicted"])
    save_plan(plan, tmp_path / "plan.json")
    assert json.loads((tmp_path / "plan.json").read_text()) == document


def test_trip_counts_are_kept_and_may_be_absent(tmp_path: Path) -> None:
    """Plans hold the bound trip counts; a file from before they existed has none."""
    plan = replace(example()[0], trips={"decoder/loop": 20, "idle": 0})
    save_plan(plan, tmp_path / "plan.json")
    assert dict(load_plan(tmp_path / "plan.json").trips) == {"decoder/loop": 20, "idle": 0}
    document = json.loads((tmp_path / "plan.json").read_text())
    del document["trips"]
    (tmp_path / "older.json").write_text(json.dumps(document))
    assert dict(load_plan(tmp_path / "older.json").trips) == {}
    document["trips"] = {"loop": -1}
    (tmp_path / "wrong.json").write_text(json.dumps(document))
    with pytest.raises(InputFileError, match=r"\$\.trips"):
        load_plan(tmp_path / "wrong.json")


def test_people_can_read_it(tmp_path: Path) -> None:
    """Objects are indented, a column is one line, the file ends with a newline."""
    save_plan(example()[0], tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text()
    assert '\n      "m_stop": [5,8,8],\n' in text
    assert text.startswith('{\n  "schema_version": 1,\n  "model": {\n    "name": "toy",\n')
    assert text.endswith("\n}\n")


@pytest.mark.parametrize("name", BAD_DOCUMENTS)
def test_bad_documents(tmp_path: Path, name: str) -> None:
    """Each fault is refused with exit code 4, the file, the JSON path, what was expected and what to do."""
    edit, path, words = BAD_DOCUMENTS[name]
    document = plan_document(example()[0])
    edit(document)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(document))
    with pytest.raises(InputFileError) as caught:
        load_plan(file)
    error = caught.value
    assert error.exit_code == 4
    assert error.where.startswith(f"{file}: {path}")
    assert words in str(error)
    assert error.expected
    assert error.remedy


def saved_text() -> str:
    return json.dumps(plan_document(example()[0]))


BAD_BYTES: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "truncated": lambda: saved_text().encode()[:-40],
    "cut inside a number": lambda: saved_text().encode()[:200],
    "words": lambda: b"not json",
    "an ONNX file": lambda: b"\x08\x08\x12\x04test\xff\xfe",
    "invalid UTF-8": lambda: saved_text().replace('"toy"', '"t\\u00ff"').encode().replace(b"\\u00ff", b"\xff"),
    "two documents": lambda: (saved_text() * 2).encode(),
    "a list": lambda: b"[1, 2]",
    "null": lambda: b"null",
    "NaN": lambda: saved_text().replace('"gap": 0.5', '"gap": NaN').encode(),
    "infinity": lambda: saved_text().replace('"gap": 0.5', '"gap": -Infinity').encode(),
    "a float beyond doubles": lambda: saved_text().replace('"gap": 0.5', '"gap": -1e999').encode(),
    "an abyss of lists": lambda: b"[" * 300_000,
    "an abyss inside": lambda: b'{"schema_version": 1, "x": ' + b"[" * 300_000 + b"]" * 300_000 + b"}",
    "bytes 0": lambda: bytes(1000),
}


@pytest.mark.parametrize("name", BAD_BYTES)
def test_bad_bytes(tmp_path: Path, name: str) -> None:
    """What is no JSON document, or not one of ours, is refused in the same way."""
    file = tmp_path / "plan.json"
    file.write_bytes(BAD_BYTES[name]())
    with pytest.raises(InputFileError) as caught:
        load_plan(file)
    assert str(file) in caught.value.where
    assert caught.value.expected


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_no_truncation_and_no_damage_gets_a_traceback(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Cut the file anywhere, or overwrite a byte anywhere: it loads as some plan or is refused, nothing else."""
    content = bytearray(saved_text().encode())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        del content[place:]
    else:
        content[place] = data.draw(st.integers(0, 255))
    file = tmp_path_factory.mktemp("damaged") / "plan.json"
    file.write_bytes(content)
    with suppress(InputFileError):
        load_plan(file)


def test_a_file_of_two_gigabytes_is_refused_unread(tmp_path: Path) -> None:
    """A sparse file of 2 GiB takes no memory and no time."""
    file = tmp_path / "huge.json"
    with file.open("wb") as handle:
        handle.truncate(2 * 2**30)
    with pytest.raises(InputFileError, match="too large"):
        load_plan(file)


def test_an_endless_source_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device has no size to ask for; reading stops at the limit."""
    monkeypatch.setattr(planfile, "SIZE_LIMIT_BYTES", 1000)
    with pytest.raises(InputFileError, match="too large"):
        load_plan("/dev/zero")


def test_no_such_file_and_a_folder(tmp_path: Path) -> None:
    """Both are named."""
    with pytest.raises(InputFileError, match="No such file") as caught:
        load_plan(tmp_path / "absent.json")
    assert caught.value.where == str(tmp_path / "absent.json")
    with pytest.raises(InputFileError, match="directory"):
        load_plan(tmp_path)


BAD_PLANS: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "NaN": (lambda p: replace(p, predicted=replace(p.predicted, gap=math.nan)), "$.predicted.gap"),
    "infinity": (lambda p: replace(p, solver=replace(p.solver, bound=-math.inf)), "$.solver.bound"),
    "infinite memory": (
        lambda p: replace(p, predicted=replace(p.predicted, server_memory_bytes={"s0": math.inf})),
        "$.predicted.server_memory_bytes.s0",
    ),
    "NaN share": (
        lambda p: replace(p, assignments=(replace(p.assignments[1], shares=(math.nan,)),)), "$.assignments[0].shares[0]",
    ),
    "empty tile": (lambda p: with_tiles(p, 0, [(0, 1, 1, 0, 1, 0, 1, 0, 1)]), "$.assignments[0].m_stop[0]"),
    "unknown device": (lambda p: with_tiles(p, 0, [(9, 0, 1, 0, 1, 0, 1, 0, 1)]), "$.assignments[0].device[0]"),
    "GEMM twice": (
        lambda p: replace(p, assignments=(*p.assignments, assigned(["head"], []))), "$.assignments[2].gemms[0]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_PLANS)
def test_what_could_not_be_read_is_not_written(tmp_path: Path, name: str) -> None:
    """A plan that no reader would accept leaves the old file as it was, and says where the fault is."""
    damage, path = BAD_PLANS[name]
    file = tmp_path / "plan.json"
    file.write_text("old")
    with pytest.raises(InputFileError) as caught:
        save_plan(damage(example()[0]), file)
    assert caught.value.where == f"{file}: {path}"
    assert file.read_text() == "old"
    assert entries(tmp_path) == ["plan.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full when the file is flushed: the old plan is whole, and nothing lies beside it."""
    file = tmp_path / "plan.json"
    save_plan(example()[0], file)
    before = file.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ExecutionError, match="No space left"):
        save_plan(replace(example()[0], notes=("other",)), file)
    assert file.read_bytes() == before
    assert entries(tmp_path) == ["plan.json"]


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C just before the rename."""
    file = tmp_path / "plan.json"
    file.write_text("old")

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_plan(example()[0], file)
    assert file.read_text() == "old"
    assert entries(tmp_path) == ["plan.json"]


@pytest.mark.parametrize("target", ["absent/plan.json", "file/plan.json", "folder"])
def test_places_that_cannot_be_written_to(tmp_path: Path, target: str) -> None:
    """A missing folder, a file for a folder, a folder for a file: usage errors that name the place."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError) as caught:
        save_plan(example()[0], tmp_path / target)
    assert caught.value.where == str(tmp_path / target)
    assert entries(tmp_path) == ["file", "folder"]


def test_a_plan_for_ten_thousand_devices_stays_small(tmp_path: Path) -> None:
    """Twenty classes cut over 10,000 devices: far below 50 MB, and the columns come back as int64 arrays."""
    plan = example()[0]
    count = 10_000
    index = np.arange(count, dtype=np.int64)
    zero = np.zeros(count, dtype=np.int64)
    tiles = Tiles(
        device=index, m_start=zero, m_stop=zero + 131_072, n_start=5 * index, n_stop=5 * index + 5, k_start=zero,
        k_stop=zero + 20_480, batch_start=zero, batch_stop=zero + 1,
    )  # fmt: skip
    wide = replace(
        plan, device_names=tuple(f"device-{place}" for place in range(count)),
        assignments=tuple(replace(plan.assignments[0], gemms=(f"g{place}",), tiles=tiles) for place in range(20)),
    )  # fmt: skip
    file = tmp_path / "plan.json"
    save_plan(wide, file)
    assert file.stat().st_size < 20e6
    assert_equal(load_plan(file), wide)
