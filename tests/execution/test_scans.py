"""Scans of a few steps, whose products devices share, against the same loop in NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import small_models
from in_process import run_split
from onnx import TensorProto, helper, numpy_helper
from operator_cases import floats

node = helper.make_node


@pytest.mark.parametrize("opset", [9, 13, 21])
@pytest.mark.parametrize(("back", "turned"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_a_scan_cut_over_devices(tmp_path: Path, opset: int, back: int, turned: int) -> None:
    """A running product with a weight of the body's own: read from either end, collected from either end, along any axis."""
    inner, weight = floats(4, 4), floats(3, 4)
    body = helper.make_graph(
        [
            node("MatMul", ["item", "outer"], ["fed"], name="in"),
            node("MatMul", ["state", "inner"], ["kept"], name="keep"),
            node("Add", ["fed", "kept"], ["next"]),
            node("Neg", ["next"], ["row"]),
        ],
        "body",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("state", [2, 4]), ("item", [2, 3]))],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in ("next", "row")],
        [numpy_helper.from_array(inner, "inner")],
    )  # fmt: skip
    scan = node(
        "Scan", ["start", "x"], ["end", "rows"], name="scan", body=body, num_scan_inputs=1, scan_input_axes=[1],
        scan_input_directions=[back], scan_output_axes=[2], scan_output_directions=[turned],
    )  # fmt: skip
    inputs = {"start": (TensorProto.FLOAT, [2, 4]), "x": (TensorProto.FLOAT, [2, 5, 3])}
    path = small_models.save(tmp_path / "m.onnx", [scan], inputs, ["end", "rows"], {"outer": weight}, opset=opset)
    state, x = floats(2, 4), floats(2, 5, 3)
    _, result = run_split(path, {"start": state, "x": x})
    assert result.gemms_on_devices == 10
    rows = []
    for step in range(5)[::-1] if back else range(5):
        state = x[:, step] @ weight + state @ inner
        rows.append(-state)
    np.testing.assert_allclose(result.outputs["end"], state, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(result.outputs["rows"], np.stack(rows[::-1] if turned else rows, axis=2), rtol=1e-4, atol=1e-4)
