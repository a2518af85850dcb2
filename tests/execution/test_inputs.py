"""Inputs that are checked, drawn, read and written."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
import small_models
from onnx import TensorProto, helper

from cleave_plan.errors import ExecutionError, InputFileError
from cleave_plan.execution.inputs import check_inputs, load_inputs, random_inputs, save_outputs
from cleave_plan.onnx_io.importer import ImportedModel, load_model


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> ImportedModel:
    """A model that takes token numbers, a mask, an image in bytes, text, a scalar and an input of open length."""
    path = tmp_path_factory.mktemp("model") / "many.onnx"
    nodes = [
        helper.make_node("Unsqueeze", ["ids", "one"], ["wide"]),
        helper.make_node("Gather", ["table", "wide"], ["embedded"], axis=1),
        helper.make_node("Identity", ["mask"], ["m"]), helper.make_node("Identity", ["image"], ["i"]),
        helper.make_node("Identity", ["text"], ["t"]), helper.make_node("Identity", ["scalar"], ["s"]),
        helper.make_node("Identity", ["half"], ["h"]),
    ]  # fmt: skip
    inputs = {
        "ids": (TensorProto.INT64, [2, 300]), "mask": (TensorProto.BOOL, [40]), "image": (TensorProto.UINT8, [400]),
        "text": (TensorProto.STRING, [2]), "scalar": (TensorProto.FLOAT, []), "half": (TensorProto.BFLOAT16, [3]),
    }  # fmt: skip
    weights = {"table": np.zeros((3, 7), np.float32), "one": np.array([0])}
    return load_model(small_models.save(path, nodes, inputs, ["embedded", "m", "i", "t", "s", "h"], weights))


def test_drawn_inputs_are_legal_and_repeatable(imported: ImportedModel) -> None:
    """Token numbers stay within the axis they look up; the same seed gives the same arrays, another seed others."""
    drawn = random_inputs(imported, seed=1)
    assert set(np.unique(drawn["ids"])) == set(range(7))
    assert drawn["mask"].dtype == np.bool_
    assert drawn["image"].max() > 200
    assert drawn["scalar"].shape == ()
    assert drawn["half"].dtype.name == "bfloat16"
    check_inputs(imported, drawn)
    again, other = random_inputs(imported, seed=1), random_inputs(imported, seed=2)
    assert all(np.array_equal(drawn[name], again[name]) for name in drawn)
    assert not np.array_equal(drawn["ids"], other["ids"])


def test_an_open_size_cannot_be_drawn(tmp_path: Path) -> None:
    """The error names the input and what binds its size; an array of any length is taken."""
    path = tmp_path / "open.onnx"
    model = load_model(
        small_models.save(path, [helper.make_node("Relu", ["x"], ["y"])], {"x": (TensorProto.FLOAT, ["n", 2])}, ["y"])
    )
    with pytest.raises(InputFileError, match=r"no value can be made up for 'x': float32 \[any, 2\].*--dim"):
        random_inputs(model)
    assert check_inputs(model, {"x": np.zeros((5, 2), np.float32)})["x"].shape == (5, 2)
    with pytest.raises(InputFileError, match=r"'x' has the shape \[5, 3\]; expected 'x': float32 \[any, 2\]"):
        check_inputs(model, {"x": np.zeros((5, 3), np.float32)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": None}, r"no array for 'ids'; expected 'ids': int64 \[2, 300\]; 'mask': bool \[40\]"),
        ({"Ids": np.zeros(1)}, "the model has no input 'Ids'; expected 'ids'"),
        ({"ids": np.zeros((2, 300), np.int32)}, r"'ids' holds int32; expected 'ids': int64 \[2, 300\]"),
        ({"ids": np.zeros((300, 2), np.int64)}, r"'ids' has the shape \[300, 2\]"),
        ({"scalar": np.zeros(1, np.float32)}, r"'scalar' has the shape \[1\]; expected 'scalar': float32 \[\]"),
        ({"text": np.zeros(2)}, "'text' holds float64; expected 'text': string"),
        ({"half": np.zeros(3, np.float16)}, "'half' holds float16; expected 'half': bfloat16"),
    ],
)
def test_wrong_inputs_are_told_what_is_expected(
    imported: ImportedModel, change: dict[str, np.ndarray | None], message: str
) -> None:
    """Name, type or shape: nothing is converted silently."""
    inputs = {name: value for name, value in {**random_inputs(imported), **change}.items() if value is not None}
    with pytest.raises(InputFileError, match=message):
        check_inputs(imported, inputs)


def test_inputs_survive_a_file(imported: ImportedModel, tmp_path: Path) -> None:
    """bfloat16 comes back from .npz as raw bytes and is taken as what it was."""
    drawn = random_inputs(imported)
    drawn["text"] = drawn["text"].astype(str)
    np.savez(tmp_path / "x.npz", **drawn)
    read = check_inputs(imported, load_inputs(tmp_path / "x.npz"))
    assert all(np.array_equal(drawn[name], read[name]) for name in drawn)


def test_files_that_are_no_inputs(tmp_path: Path) -> None:
    """Absent, not a zip, cut short, a single array, pickled objects: an error that says what is expected."""
    (tmp_path / "text.npz").write_text("hello")
    np.save(tmp_path / "one.npy", np.zeros(3))
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object))
    np.savez(tmp_path / "whole.npz", x=np.arange(1000))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:500])
    with zipfile.ZipFile(tmp_path / "strange.npz", "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00broken")
    for name in ("absent.npz", "text.npz", "one.npy", "objects.npz", "cut.npz", "strange.npz"):
        with pytest.raises(InputFileError, match=r"expected an \.npz file of arrays"):
            load_inputs(tmp_path / name)


def test_outputs_are_written_whole(tmp_path: Path) -> None:
    """Sequences by member, bfloat16 as float32, any name; a folder that is not there is an error and leaves nothing."""
    import ml_dtypes

    outputs = {
        "file": np.arange(3), "a/b": np.array(["x", "yz"], object), "list": [np.zeros(1), np.ones(2)],
        "half": np.array([1.5], ml_dtypes.bfloat16), "none": None,
    }  # fmt: skip
    save_outputs(outputs, tmp_path / "y.npz")
    with np.load(tmp_path / "y.npz", allow_pickle=False) as read:
        assert sorted(read.files) == ["a/b", "file", "half", "list/0", "list/1"]
        assert read["half"].dtype == np.float32
        assert read["half"].tolist() == [1.5]
        assert read["a/b"].tolist() == ["x", "yz"]
    assert [path.name for path in tmp_path.iterdir()] == ["y.npz"]
    with pytest.raises(ExecutionError, match="cannot be written"):
        save_outputs(outputs, tmp_path / "nowhere" / "y.npz")
