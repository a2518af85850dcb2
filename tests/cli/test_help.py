"""Help and version: every command explains itself with examples, and nothing heavy is loaded for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cleave_plan.cli.main import cleave_plan

HEAVY = ("onnx", "onnxruntime", "numpy", "scipy", "pulp", "highspy", "rich", "ray", "msgspec", "yaml", "sqlite3")


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command with the words that call it."""
    for name, command in group.commands.items():
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


EVERY = list(commands(cleave_plan))


@pytest.mark.parametrize("path", [(), *(path for path, _ in EVERY)], ids=" ".join)
def test_every_help_has_examples_that_parse(path: tuple[str, ...]) -> None:
    """`--help` ends with examples, and each option that an example uses exists."""
    result = CliRunner().invoke(cleave_plan, [*path, "--help"], prog_name="cleave-plan")
    assert result.exit_code == 0
    assert "Examples:" in result.stdout
    examples = [line.split() for line in result.stdout.splitlines() if line.strip().startswith("cleave-plan ")]
    assert examples
    for words in examples:
        command = dict(EVERY)[tuple(words[1:3])] if tuple(words[1:3]) in dict(EVERY) else dict(EVERY)[(words[1],)]
        known = {option for parameter in command.params for option in parameter.opts}
        used = [word for word in words if word.startswith("-")]
        if "|" in words:
            used = [word for word in words[: words.index("|")] if word.startswith("-")]
        assert set(used) <= known, words


@pytest.mark.parametrize(("path", "command"), EVERY, ids=lambda value: " ".join(value) if isinstance(value, tuple) else "")
def test_every_option_says_what_it_does(path: tuple[str, ...], command: click.Command) -> None:
    """No option and no command without a sentence."""
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{' '.join(path)} {parameter.opts}"


def test_every_option_is_used_by_a_test() -> None:
    """No option without a test beside this file that gives it."""
    texts = "".join(path.read_text() for path in Path(__file__).parent.glob("*.py") if path != Path(__file__))
    for path, command in EVERY:
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert any(f'"{option}"' in texts for option in parameter.opts), f"{' '.join(path)} {parameter.opts}"


@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("from cleave_plan.cli.main import cleave_plan; cleave_plan(['--help'], prog_name='cleave-plan')", set()),
        ("from cleave_plan.cli.main import cleave_plan; cleave_plan(['plan', '--help'], prog_name='cleave-plan')", set()),
        ("import cleave_plan; dir(cleave_plan); cleave_plan.make_plan", set()),
        ("import cleave_plan.plan.plan, cleave_plan.fleet.device, cleave_plan.workload.graph", {"numpy"}),
    ],
)
def test_light_imports(code: str, allowed: set[str]) -> None:
    """Neither the help nor the package itself loads a library that takes time to load."""
    program = (
        "import sys\n"
        "try:\n"
        f"    {code}\n"
        "except SystemExit: pass\n"
        f"loaded = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "print('LOADED', *loaded, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    line = next(line for line in done.stderr.splitlines() if line.startswith("LOADED"))
    assert set(line.split()[1:]) <= allowed


def test_version() -> None:
    """The version is that of the installed package."""
    from importlib.metadata import version

    result = CliRunner().invoke(cleave_plan, ["--version"])
    assert result.stdout == f"cleave-plan {version('cleave-plan')}\n"


def test_python_interface() -> None:
    """What the README uses is there, and an unknown name is an AttributeError as in any module."""
    import cleave_plan as package
    from cleave_plan import api

    assert set(api.__all__) <= set(dir(package))
    assert package.load_onnx is api.load_onnx
    assert isinstance(package.__version__, str)
    with pytest.raises(AttributeError, match="no attribute 'plan_it'"):
        package.plan_it  # noqa: B018


def test_as_a_module() -> None:
    """``python -m cleave_plan`` is the same command."""
    done = subprocess.run([sys.executable, "-m", "cleave_plan", "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: cleave-plan ")
