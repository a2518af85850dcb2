"""The training demo: its picture, its data, and (long) that it ends well."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from models.picture import HEIGHT, WIDTH, loss_picture


def test_the_picture_shows_every_step() -> None:
    """Well-formed, one point a step, all inside, higher losses higher up; names are escaped."""
    losses = [2.3, 1.1, 0.4, 0.5, 0.01]
    root = ElementTree.fromstring(loss_picture(losses, "a < b"))
    curves = [element.attrib["points"] for element in root.iter("{http://www.w3.org/2000/svg}polyline")]
    points = [tuple(map(float, point.split(","))) for point in curves[0].split()]
    assert len(points) == len(losses)
    assert all(0 < x < WIDTH and 0 < y < HEIGHT for curve in curves for x, y in [map(float, p.split(",")) for p in curve.split()])
    heights = [-y for _, y in points]
    assert np.argsort(heights).tolist() == np.argsort(losses).tolist()
    labels = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a < b", "1", "0.1", "step", "loss"} <= set(labels)


def test_a_flat_loss_has_a_picture() -> None:
    """One step, and equal losses."""
    assert "nan" not in loss_picture([1.0], "one") + loss_picture([2.0, 2.0], "two")


@pytest.mark.long
def test_digits_end_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """97 % or more of the test images, by the command."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed (extra `digits`)")
    from models.digits import main

    monkeypatch.chdir(tmp_path)
    assert main(["--picture", str(tmp_path / "loss.svg")]) == 0
    assert "test images are classified right" in capsys.readouterr().out
    ElementTree.parse(tmp_path / "loss.svg")
