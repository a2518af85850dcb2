"""A tiny model, a fleet of three devices and a plan of the one over the other, made once by the commands themselves."""

from __future__ import annotations

import pytest
from cli_cases import FLEET, Files, cleave

from models.registry import build


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """An MLP with a symbolic batch, bound to 64."""
    folder = tmp_path_factory.mktemp("cli")
    made = Files(folder, folder / "mlp.onnx", folder / "other.onnx", folder / "fleet.yaml", folder / "plan.json")
    made.model.write_bytes(build("mlp", seed=1).SerializeToString())
    made.other_model.write_bytes(build("mlp", seed=2).SerializeToString())
    made.fleet.write_text(FLEET)
    result = cleave("plan", made.model, "--dim", "batch=64", "--fleet", made.fleet, "-o", made.plan)
    assert result.exit_code == 0, result.output
    return made
