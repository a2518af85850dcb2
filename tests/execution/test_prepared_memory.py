"""Pages of shared memory are mapped before they are touched, at both ends of a line."""

from __future__ import annotations

import resource
import sys

import pytest

from cleave_plan.dtypes import DType
from cleave_plan.execution.engines.memory import Arena

PAGES = 2000


def faults() -> int:
    """Pages that this process has had to wait for so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux maps pages ahead")
def test_pages_are_there_before_they_are_touched() -> None:
    """Writing 2,000 fresh pages costs hardly any trap, for the server, which allocates, and for a worker, which is told."""
    server = Arena()
    array = server.empty((PAGES * 4096,), DType.UINT8)
    before = faults()
    array[:] = 1
    if faults() - before >= PAGES:
        pytest.skip("this kernel does not map pages ahead")
    worker = Arena(server.descriptor)
    block = server.block_of(array)
    assert block is not None
    worker.prepare(block)
    seen = worker.view(block)
    before = faults()
    seen[:] += 1
    assert faults() - before < PAGES / 4
    assert (array == 2).all()
