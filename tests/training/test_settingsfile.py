"""Training settings in YAML: what is read, and the place of what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from cleave_plan import training_settings
from cleave_plan.errors import InputFileError
from cleave_plan.training import settingsfile
from cleave_plan.training.settings import Group, OptimizerKind, Schedule, ScheduleKind, Settings


def test_the_example_in_the_module(tmp_path: Path) -> None:
    """Every key, as the module's own example has it; arguments go before the file."""
    text = (settingsfile.__doc__ or "").split("\n\n")[1]
    path = tmp_path / "settings.yaml"
    path.write_text("\n".join(line.removeprefix("    ") for line in text.splitlines()))
    expected = Settings(
        optimizer=OptimizerKind.ADAMW, learning_rate=3e-4, betas=(0.9, 0.95), weight_decay=0.1,
        groups=(Group(parameters=("*.bias", "*norm*"), weight_decay=0.0), Group(parameters=("head.*",), learning_rate=1e-3)),
        clip_norm=1.0, schedule=Schedule(kind=ScheduleKind.COSINE, warmup_steps=100, final=0.1), accumulate=4, seed=7,
    )  # fmt: skip
    assert training_settings(path) == expected
    assert training_settings(path, optimizer="sgd", seed=1).optimizer is OptimizerKind.SGD


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("optimizer: adamw", "'schema' is missing"),
        ("schema: 2", "found schema '2'"),
        ("schema: 1\noptimiser: sgd", "did you mean 'optimizer'"),
        ("schema: 1\noptimizer: adam", "did you mean 'adamw'"),
        ("schema: 1\nlearning_rate: fast", "learning_rate: found 'fast'"),
        ("schema: 1\nlearning_rate: inf", "learning_rate: found 'inf'"),
        ("schema: 1\nbetas: [0.9]", "betas: found 1 entries"),
        ("schema: 1\naccumulate: -1", "accumulate: found '-1'"),
        ("schema: 1\nshuffle: maybe", "shuffle: found 'maybe'"),
        ("schema: 1\ngroups: [{weight_decay: 0}]", r"groups\[0\]: 'parameters' is missing"),
        ("schema: 1\nschedule: {kind: step}", "schedule: kind: unknown 'step'"),
    ],
)
def test_what_is_refused(text: str, place: str, tmp_path: Path) -> None:
    """With the key."""
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    with pytest.raises(InputFileError, match=place):
        training_settings(path)
