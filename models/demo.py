"""``make demo``: the whole line on a small GPT and eight unequal devices, command by command.

Everything is written to ``demo-out``; the commands are the ones a person types, each shown before its output. The
devices of the demo's fleet are played by processes of this machine, so the predicted times are those of the fleet, not
of the run.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import cleave_plan
from cleave_plan.units import Unit, format_value
from models.registry import build

OUT = Path("demo-out")
FLEET = Path(__file__).with_name("demo_fleet.yaml")
MODEL = "gpt-small"
DIMS = ("--dim", "batch=16", "--dim", "seq=128")


def main() -> int:
    """Run the demo; exit code 0 when every command did, else that of the first that did not."""
    model, fleet, plan, outputs = (str(OUT / name) for name in ("gpt.onnx", "fleet.yaml", "plan.json", "outputs.npz"))
    print(f"A small GPT with seeded weights, and eight unequal devices around one home server. Files go to {OUT}/.")
    OUT.mkdir(exist_ok=True)
    Path(model).write_bytes(build(MODEL).SerializeToString())
    shutil.copyfile(FLEET, fleet)
    said = ""
    for command in (
        ("inspect", model, *DIMS),
        ("fleet", "show", fleet),
        ("plan", model, *DIMS, "--fleet", fleet, "-o", plan),
        ("check", plan, "--model", model, "--fleet", fleet),
        ("run", plan, "--model", model, "--outputs", outputs, "--verify"),
    ):
        code, said = show(command)
        if code != 0:
            print(f"\nThe demo stopped: `cleave-plan {command[0]}` ended with exit code {code}.", file=sys.stderr)
            return code
    print("\n" + closing(Path(plan), said.splitlines()[-1]))
    return 0


def show(command: tuple[str, ...]) -> tuple[int, str]:
    """Run one command after showing it; its exit code, and what it printed (which is also shown)."""
    print(f"\n$ cleave-plan {shlex.join(command)}\n", flush=True)
    call = [sys.executable, "-m", "cleave_plan.cli.main", *command]
    done = subprocess.run(call, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout, end="", flush=True)
    return done.returncode, done.stdout


def closing(plan: Path, verdict: str) -> str:
    """What a person wants to know at the end, in one paragraph; ``verdict`` is the last line of the run."""
    p = cleave_plan.load_plan(plan).report
    words = (
        f"In short: the plan uses {p.devices_used} of {p.devices_total} devices and is predicted to take "
        f"{_seconds(p.batch_s)} a batch on this fleet (server alone: {_optional(p.server_only_s)}; best single device: "
        f"{_optional(p.one_device_s)}). No plan of its kind computes the levels in less than {_seconds(p.bound_s)}; the "
        f"gap to that bound is {100 * p.gap:.3g} %. The check recomputed every figure and found each output element computed "
        f"exactly once. {verdict} The plan is {plan}: read it, edit it, and check it again."
    )
    return textwrap.fill(words, width=100)


def _seconds(value: float) -> str:
    return format_value(value, Unit.SECONDS)


def _optional(value: float | None) -> str:
    return "impossible" if value is None else _seconds(value)


if __name__ == "__main__":
    sys.exit(main())
