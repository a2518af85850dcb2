"""Segments of one model take their memory from one arena (in a process of its own, whose memory is looked at)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="onnxruntime is an extra")

SESSIONS, ELEMENTS = 12, 1 << 22
PROGRAM = f"""
import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from pathlib import Path
from cleave_plan.onnx_io.ort_session import session_options

nodes = [helper.make_node(op, [x], [y]) for op, x, y in (("Exp", "x", "a"), ("Sin", "a", "b"), ("ReduceMax", "b", "y"))]
infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "y")]
opsets = [helper.make_opsetid("", 18)]
model = helper.make_model(helper.make_graph(nodes, "g", infos[:1], infos[1:]), opset_imports=opsets, ir_version=10)
pages = lambda: int(Path("/proc/self/statm").read_text().split()[1])
x, sessions, before = np.zeros({ELEMENTS}, np.float32), [], pages()
for _ in range({SESSIONS}):
    options = session_options(onnxruntime)
    sessions.append(onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]))
    sessions[-1].run(None, {{"x": x}})
print((pages() - before) * 4096)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="looks at memory through /proc")
def test_sessions_share_their_arena() -> None:
    """Twelve sessions with 16 MB of intermediate values each hold what a few of them would."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(done.stdout) < SESSIONS // 2 * 4 * ELEMENTS
