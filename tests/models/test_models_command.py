"""``python -m models``: what it prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from models.__main__ import main
from models.registry import MODELS, ModelRequestError, build


def test_writes_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One file, no weights beside it, one line that says what it is."""
    path = tmp_path / "small.onnx"
    assert main(["gpt-tiny", "-o", str(path), "--batch", "2", "--dtype", "float16"]) == 0
    assert list(tmp_path.iterdir()) == [path]
    assert onnx.load(path) == build("gpt-tiny", batch=2, dtype="float16")
    assert "114,432 parameters" in capsys.readouterr().out


def test_list_names_every_model_with_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    """As JSON and as text."""
    assert main(["--list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows.keys() == MODELS.keys()
    assert rows["opt-13b"]["parameters"] == 12_853_473_280
    assert "arXiv:2205.01068" in rows["opt-13b"]["source"]
    assert main(["--list"]) == 0
    assert "12,853,473,280" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["gpt3", "-o", "x.onnx"], "near it: gpt2"),
        (["gpt2"], "-o FILE.onnx"),
        (["gpt2", "-o", "x.onnx", "--seq", "1025"], "1 to 1024 positions"),
        (["gpt2", "-o", "x.onnx", "--batch", "0"], "at least 1"),
        (["mlp", "-o", "x.onnx", "--seq", "4"], "no sequence axis"),
        (["opt-13b", "-o", "x.onnx", "--weights", "seeded"], "leave them out"),
        (["mlp", "-o", "no/such/folder/x.onnx"], "cannot be written"),
    ],
)
def test_refuses_with_a_sentence(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2, what to do on stderr, and nothing written."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_name_that_is_not_there_is_refused_in_python_too() -> None:
    """The function raises where the command exits."""
    with pytest.raises(ModelRequestError, match="--list"):
        build("resnet-9000")
