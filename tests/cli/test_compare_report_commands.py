"""`cleave-plan compare` and `cleave-plan report`: every option, on files that the command line made."""

from __future__ import annotations

import json
from pathlib import Path

from cli_cases import Files, cleave


def test_compare(files: Files) -> None:
    """Both numbers of devices in the document and on the terminal; options that bind sizes, servers and the batch."""
    base = ["compare", files.model, "--dim", "batch=64", "--fleet", files.fleet, "--devices", "1,2"]
    result = cleave(*base, "--training", "--servers", "1", "--batch", "32", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["kind"], found["batch"], found["training"]) == ("comparison", 32, True)
    assert {row["devices"] for row in found["rows"]} == {1, 2}
    shown = cleave(*base)
    assert shown.exit_code == 0
    assert "64 samples" in " ".join(shown.stdout.split())
    assert "Devices of use" in shown.stdout
    assert cleave(*base[:-1], "9").exit_code == 2
    assert cleave(*base[:-1], "0").exit_code == 2


def test_a_gradient_file_is_not_compared(files: Files, tmp_path: Path) -> None:
    """Its backward products are its own, so that no other strategy could say which layer they belong to."""
    step = tmp_path / "step.onnx"
    assert cleave("gradient", files.model, "--dim", "batch=64", "--loss", "cross-entropy", "-o", step).exit_code == 0
    refused = cleave("compare", step, "--training", "--fleet", files.fleet)
    assert refused.exit_code == 2
    assert "compare that model with --training" in refused.stderr


def test_report(files: Files, tmp_path: Path) -> None:
    """A page of a plan alone and with its model and fleet, which says more; a document of another kind is refused."""
    alone, more = tmp_path / "alone.html", tmp_path / "more.html"
    assert cleave("report", files.plan, "-o", alone).exit_code == 0
    assert cleave("report", files.plan, "--model", files.model, "--fleet", files.fleet, "-o", more).exit_code == 0
    assert "A level on its devices" in more.read_text()
    assert "A level on its devices" not in alone.read_text()
    assert "limits of memory and busy times are not known" in alone.read_text()
    refused = cleave("report", files.fleet, "-o", tmp_path / "x.html")
    assert refused.exit_code == 4
    assert "JSON" in refused.stderr
