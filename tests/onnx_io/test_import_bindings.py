"""Symbolic sizes: bound by name or by whole shapes, and an error that says what is missing and how to give it."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import helper

from cleave_plan.errors import InputFileError, UsageError

from import_cases import Dims, load, model, shapes_of, value, weight  # isort: skip

node = helper.make_node


def product(dims: Dims) -> onnx.ModelProto:
    """One product whose input has the given declaration."""
    return model([node("MatMul", ["x", "w"], ["y"], name="product")], [value("x", dims)], ["y"], {"w": weight(3, 4)})


def test_dims_and_shapes(tmp_path: Path) -> None:
    """A name or a whole shape binds; both are kept with the workload."""
    by_name = load(tmp_path, product(("batch", "seq", 3)), dims={"batch": 2, "seq": 5})
    by_shape = load(tmp_path, product(("batch", "seq", 3)), shapes={"x": (2, 5, 3)})
    assert shapes_of(by_name) == shapes_of(by_shape) == {"product": (1, 10, 3, 4)}
    assert dict(by_name.workload.dims) == {"batch": 2, "seq": 5}
    assert dict(by_shape.workload.shapes) == {"x": (2, 5, 3)}
    assert by_shape.workload.inputs[0].shape == (2, 5, 3)


def test_a_shape_binds_its_names_everywhere(tmp_path: Path) -> None:
    """A name that one input's shape decides is decided for the other inputs."""
    nodes = [node("MatMul", ["x", "w"], ["a"]), node("MatMul", ["z", "w"], ["b"])]
    proto = model(nodes, {"x": ("batch", 3), "z": ("batch", 3)}, ["a", "b"], {"w": weight(3, 4)})
    assert shapes_of(load(tmp_path, proto, shapes={"x": (7, 3)})) == {"a": (1, 7, 3, 4), "b": (1, 7, 3, 4)}


def test_every_missing_name_is_told_at_once(tmp_path: Path) -> None:
    """The error names the dimensions, their inputs and the options that bind them."""
    nodes = [node("MatMul", ["x", "w"], ["a"]), node("MatMul", ["z", "w"], ["b"])]
    inputs = [value("x", ("batch", 3)), value("z", ("seq", None, 3))]
    with pytest.raises(InputFileError) as error:
        load(tmp_path, model(nodes, inputs, ["a", "b"], {"w": weight(3, 4)}))
    assert error.value.exit_code == 4
    for fragment in ("'batch' (axis 0 of input 'x')", "'seq' (axis 0 of input 'z')", "axis 1 of input 'z'", "--dim batch=INT"):
        assert fragment in str(error.value)
    assert "--shape z=INTxINTx3" in error.value.remedy


@pytest.mark.parametrize("dims", [(None, 3), (-1, 3), ("?", 3), (None, None)])
def test_sizes_without_a_name(tmp_path: Path, dims: Dims) -> None:
    """Absent sizes, -1 and "?" are unknown, and bound by the input's shape."""
    with pytest.raises(InputFileError, match="--shape x="):
        load(tmp_path, product(dims))
    assert shapes_of(load(tmp_path, product(dims), shapes={"x": (5, 3)})) == {"product": (1, 5, 3, 4)}


def test_question_marks_are_not_one_size(tmp_path: Path) -> None:
    """Two unknown sizes that an exporter calls "?" may differ."""
    proto = model([node("Conv", ["x", "w"], ["y"])], {"x": (1, 2, "?", "?")}, ["y"], {"w": weight(4, 2, 3, 3)})
    assert shapes_of(load(tmp_path, proto, shapes={"x": (1, 2, 8, 5)})) == {"y": (1, 18, 18, 4)}


def test_an_input_without_a_shape(tmp_path: Path) -> None:
    """Even the rank may be missing."""
    with pytest.raises(InputFileError, match=r"the shape of input 'x'.*--shape x=AxBxC"):
        load(tmp_path, product(None))
    assert shapes_of(load(tmp_path, product(None), shapes={"x": (2, 5, 3)})) == {"product": (1, 10, 3, 4)}


def test_only_what_matters_must_be_bound(tmp_path: Path) -> None:
    """A size that no product depends on may stay open; that is noted, and bytes that depend on it are unknown."""
    nodes = [node("MatMul", ["x", "w"], ["y"]), node("Relu", ["z"], ["r"], name="relu"), node("Relu", ["x"], ["s"], name="other")]
    workload = load(tmp_path, model(nodes, {"x": (2, 3), "z": ("n", 5)}, ["y", "r", "s"], {"w": weight(3, 4)})).workload
    assert workload.inputs[1].shape == (-1, 5)
    assert {operator.name: operator.bytes for operator in workload.server_operators} == {"relu": None, "other": 48}
    assert any("dimension 'n' (axis 0) of input 'z'" in note for note in workload.notes)


@pytest.mark.parametrize(
    ("bindings", "fragment"),
    [
        ({"dims": {"bacth": 2}}, "no dimension 'bacth'; expected one of batch, seq"),
        ({"dims": {"batch": 0, "seq": 1}}, "dimension 'batch' is bound to 0"),
        ({"dims": {"batch": -3}}, "dimension 'batch' is bound to -3"),
        ({"dims": {"batch": 2**70}}, "is bound to"),
        ({"shapes": {"y": (1, 2, 3)}}, "no input 'y'; expected one of x"),
        ({"shapes": {"w": (3, 4)}}, "no input 'w'; expected one of x"),
        ({"shapes": {"x": (2, 5)}}, "contradicts the file; expected a shape of the form batchxseqx3"),
        ({"shapes": {"x": (2, 5, 4)}}, "contradicts the file"),
        ({"shapes": {"x": (2, -5, 3)}}, "below 0"),
        ({"shapes": {"x": (2, 5, 3)}, "dims": {"batch": 4}}, "dimension 'batch' is bound to 2 by --shape x, and to 4 by --dim"),
    ],
)
def test_bindings_that_cannot_be_meant(tmp_path: Path, bindings: dict[str, dict[str, object]], fragment: str) -> None:
    """Wrong names and sizes are errors of usage (exit 2) that name what exists."""
    with pytest.raises(UsageError) as error:
        load(tmp_path, product(("batch", "seq", 3)), **bindings)
    assert fragment in str(error.value)
    assert error.value.exit_code == 2


def test_empty_inputs(tmp_path: Path) -> None:
    """A shape may hold 0: the product is empty and still listed."""
    workload = load(tmp_path, product(("batch", 3)), shapes={"x": (0, 3)}).workload
    assert [(gemm.name, gemm.macs) for gemm in workload.gemms] == [("product", 0)]
