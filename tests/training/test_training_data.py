"""Batches from files, arrays and iterators: which samples, in which order, and what does not fit."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleave_plan.errors import InputFileError
from cleave_plan.training.data import ArrayBatches, batches_of
from cleave_plan.training.npzfile import map_arrays
from cleave_plan.training.step import Labels
from cleave_plan.workload.graph import TensorInfo

INPUTS = (
    TensorInfo(name="x", dtype="float32", shape=(4, 2)),
    TensorInfo(name="position", dtype="int64", shape=(1, 2)),
    TensorInfo(name="target", dtype="int64", shape=(4,)),
)


def arrays(rows: int) -> dict[str, np.ndarray]:
    """Samples whose label is their row."""
    label = np.arange(rows)
    return {
        "x": np.stack([label, label], axis=1).astype(np.float32), "position": np.array([[7, 8]]), "target": label, "more": label,
    }  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(4, 30), seed=st.integers(0, 5), shuffle=st.booleans())
def test_an_epoch_has_every_sample_once(rows: int, seed: int, shuffle: bool) -> None:
    """But for those that fill no batch; inputs stay together, and each batch is the same whenever it is asked for."""
    batches = batches_of(arrays(rows), INPUTS, seed=seed, shuffle=shuffle)
    per_epoch = rows // 4
    seen = [batches.batch(number) for number in range(2 * per_epoch)]
    for epoch in (seen[:per_epoch], seen[per_epoch:]):
        labels = np.concatenate([batch["target"] for batch in epoch])
        assert len(set(labels.tolist())) == 4 * per_epoch
        if not shuffle:
            assert labels.tolist() == list(range(4 * per_epoch))
    for number in reversed(range(2 * per_epoch)):
        again = batches.batch(number)
        assert set(again) == {"x", "position", "target"}
        assert np.array_equal(again["target"], seen[number]["target"])
        assert np.array_equal(again["x"][:, 0], again["target"])
        assert again["position"].tolist() == [[7, 8]]


@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_is_its_arrays(compressed: bool, tmp_path: Path) -> None:
    """Mapped where they are not compressed; Fortran order and empty arrays are arrays too."""
    given_ = {**arrays(9), "f": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "none": np.empty((0, 3)), "one": np.float32(2)}
    path = tmp_path / "d.npz"
    (np.savez_compressed if compressed else np.savez)(path, **given_)
    found, fingerprint = map_arrays(path)
    assert found.keys() == given_.keys()
    for name, array in given_.items():
        assert np.array_equal(found[name], array)
        assert found[name].dtype == array.dtype
    assert isinstance(found["x"], np.memmap) != compressed
    np.savez(tmp_path / "other.npz", **{**given_, "target": given_["target"] + 1})
    assert map_arrays(tmp_path / "other.npz")[1] != fingerprint == map_arrays(path)[1]


def test_files_that_are_refused(tmp_path: Path) -> None:
    """No file, no archive, pickled objects, a header that claims more than is there."""
    with pytest.raises(InputFileError, match="no such file"):
        map_arrays(tmp_path / "absent.npz")
    (tmp_path / "text.npz").write_text("x" * 50)
    with pytest.raises(InputFileError, match="cannot be read"):
        map_arrays(tmp_path / "text.npz")
    np.savez(tmp_path / "objects.npz", x=np.array([{}, 1], dtype=object))
    with pytest.raises(InputFileError, match="Python objects"):
        map_arrays(tmp_path / "objects.npz")
    np.savez(tmp_path / "short.npz", x=np.arange(10))
    (tmp_path / "short.npz").write_bytes((tmp_path / "short.npz").read_bytes().replace(b"(10,)", b"(99,)"))
    with pytest.raises(InputFileError, match="cannot be read"):
        batches_of(tmp_path / "short.npz", (TensorInfo(name="x", dtype="int64", shape=(2,)),), seed=0, shuffle=False).batch(0)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"x": None}, "no array for 'x'"),
        ({"x": np.zeros((9, 2))}, "'x' holds float64"),
        ({"x": np.zeros((9, 3), np.float32)}, r"'x' has the shape \[9, 3\]"),
        ({"target": np.arange(8)}, r"'target' has the shape \[8\]; expected \[9, \]|a row for each sample"),
        ({"position": np.zeros((2, 2), np.int64)}, r"'position' has the shape \[2, 2\]"),
    ],
)
def test_data_that_does_not_fit(change: dict[str, np.ndarray | None], text: str) -> None:
    """The error names the array and what is expected."""
    given_ = {name: array for name, array in {**arrays(9), **change}.items() if array is not None}
    with pytest.raises(InputFileError, match=text):
        batches_of(given_, INPUTS, seed=0, shuffle=True)


def test_too_few_samples() -> None:
    """Not one batch."""
    with pytest.raises(InputFileError, match="there are 3 samples"):
        ArrayBatches(arrays(3), INPUTS, seed=0, shuffle=True, fingerprint="", where="data")


def test_iterators() -> None:
    """A list begins again, a generator ends; batches before the one that is asked for are dropped."""
    made = [{"target": np.full(4, number)} for number in range(3)]
    again = batches_of(made, INPUTS, seed=0, shuffle=True)
    assert [int(again.batch(number)["target"][0]) for number in range(5)] == [0, 1, 2, 0, 1]
    later = batches_of(({"target": np.full(4, number)} for number in itertools.count()), INPUTS, seed=0, shuffle=True)
    assert int(later.batch(4)["target"][0]) == 4
    once = batches_of(iter(made), INPUTS, seed=0, shuffle=True)
    with pytest.raises(InputFileError, match="the data ended after 3 batches"):
        once.batch(3)
    with pytest.raises(InputFileError, match="the data ended after 0 batches"):
        batches_of([], INPUTS, seed=0, shuffle=True).batch(0)


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ([0, 2, 3, 1], r"label 3, at \[2\] .* from 0 to 2, as 'y' has 3 classes"),
        ([0, -1, 3, 1], r"label -1, at \[1\]"),
        ([[0, 1], [2, -7]], r"label -7, at \[1, 1\]"),
    ],
)
def test_labels_that_are_no_class(labels: list[Any], told: str) -> None:
    """To the graph -1 would be the last class: it is refused with its place."""
    with pytest.raises(InputFileError, match=told):
        Labels(target="target", output="y", classes=3, ignored=-100).counted(np.array(labels), where="step 1")


def test_labels_that_count() -> None:
    """All but the ignored one; any from 0 on where the number of classes is not known."""
    labels = np.array([[0, 2], [-100, 1]])
    assert Labels(target="t", output="y", classes=3, ignored=-100).counted(labels, where="") == 3
    unknown = Labels(target="t", output="y", classes=None, ignored=-100)
    assert unknown.counted(np.array([7, 12345, -100]), where="") == 2
    with pytest.raises(InputFileError, match="expected labels 0 or more"):
        unknown.counted(np.array([7, -1]), where="")
