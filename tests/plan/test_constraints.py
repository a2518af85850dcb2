"""Constraint files, what each constraint matches, and that a plan which breaks one is found out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from plan_cases import device, example, fleet_of, server

from cleave_plan.errors import InputFileError
from cleave_plan.plan.constraints import caps_of, check_names, excluded, fleet_view, in_words, rule_of
from cleave_plan.plan.constraintsfile import load_constraints
from cleave_plan.plan.finding import Code
from cleave_plan.plan.plan import Constraint, Mode
from cleave_plan.plan.verify import verify

GOOD = """\
schema: 1
constraints:
  - {name: home, gemms: "*.scores", mode: server}
  - {name: not so, gemms: [fc1, "l*.fc2"], forbid: [column, inner], server: main}
  - {name: rest, devices: "phone-*", exclude: yes}
  - {name: busy, devices: laptop, memory: 2 GB, work: 0.2, time: 5 s, headroom: 0.1}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "constraints.yaml"
    path.write_text(text)
    return path


def test_a_file_is_read(tmp_path: Path) -> None:
    """Every key, in SI; forbidding leaves the other modes."""
    left = tuple(mode for mode in Mode if mode not in (Mode.COLUMN, Mode.INNER))
    assert load_constraints(written(tmp_path, GOOD)) == (
        Constraint(name="home", gemms=("*.scores",), modes=(Mode.SERVER,)),
        Constraint(name="not so", gemms=("fc1", "l*.fc2"), modes=left, servers=("main",)),
        Constraint(name="rest", devices=("phone-*",), exclude=True),
        Constraint(name="busy", devices=("laptop",), memory_bytes=2e9, work=0.2, time_s=5.0, headroom=0.1),
    )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("schema: 1", "schema: 2", "schema: 1"),
        ("name: home, ", "", "'name' is missing"),
        ("name: rest", "name: home", "second time"),
        ("mode: server", "mod: server", "did you mean 'mode'"),
        ("mode: server", "mode: diagonal", "row, column"),
        ("mode: server", "work: 0.5", "'work' is not for gemms"),
        (", mode: server", "", "demands nothing"),
        ("mode: server", "mode: server, forbid: server", "no mode is left"),
        ("gemms: [fc1", "devices: a, gemms: [fc1", "either gemms or devices"),
        ("exclude: yes", "exclude: perhaps", "yes"),
        ("memory: 2 GB", "memory: 2", "unit"),
        ("work: 0.2", "work: 20", "share"),
        ("headroom: 0.1", "headroom: 1", "below 1"),
        ("[fc1, \"l*.fc2\"]", "[]", "at least one"),
    ],
)  # fmt: skip
def test_faults_of_a_file(tmp_path: Path, old: str, new: str, words: str) -> None:
    """Unknown keys, missing names, and demands that cannot be meant are refused with their place."""
    assert old in GOOD
    with pytest.raises(InputFileError, match=r"constraints\.yaml") as caught:
        load_constraints(written(tmp_path, GOOD.replace(old, new)))
    assert words in str(caught.value)


def test_rules_add_up() -> None:
    """Two constraints on a GEMM both hold: modes and servers are what both allow."""
    constraints = [
        Constraint(name="a", gemms=("fc*",), modes=(Mode.ROW, Mode.SERVER), servers=("s0", "s1")),
        Constraint(name="b", gemms=("fc1",), modes=(Mode.ROW, Mode.COLUMN), servers=("s1",)),
    ]
    rule = rule_of(constraints, "fc1")
    assert (rule.modes, rule.servers, rule.names) == (frozenset({Mode.ROW}), frozenset({"s1"}), ("a", "b"))
    assert rule_of(constraints, "fc2").key == "a"
    assert rule_of(constraints, "head").key == ""
    assert rule_of(constraints, "head").modes == frozenset(Mode)


def test_devices_as_constraints_leave_them() -> None:
    """Memory is the least that caps and headroom leave; figures else, name and hash stay; caps are the smallest given."""
    fleet = fleet_of([device("a"), device("b"), device("c[1]")], [server("s0")])
    constraints = [
        Constraint(name="room", devices=("*",), headroom=0.25),
        Constraint(name="cap", devices=("b",), memory_bytes=5000.0, work=0.5),
        Constraint(name="tight", devices=("b",), work=0.25, time_s=2.0),
        Constraint(name="out", devices=("c[1]",), exclude=True),  # a name with a bracket is a name
    ]
    view = fleet_view(constraints, fleet)
    assert [one.memory_bytes for one in view.devices] == [7500.0, 5000.0, 7500.0]
    assert (view.name, view.sha256, view.servers) == (fleet.name, fleet.sha256, fleet.servers)
    assert excluded(constraints, fleet) == {"c[1]": "out"}
    caps = caps_of(constraints, fleet.devices)
    assert (caps.work.tolist(), caps.time_s.tolist()) == ([float("inf"), 0.25, float("inf")], [float("inf"), 2.0, float("inf")])
    assert fleet_view(constraints[3:], fleet) is fleet


def test_patterns_must_match() -> None:
    """A GEMM, device or server that is not there is refused by the constraint's name."""
    fleet = fleet_of([device("a")], [server("s0")])
    for constraint, words in (
        (Constraint(name="c", gemms=("fc9",), modes=(Mode.ROW,)), "GEMM of the model matches 'fc9'"),
        (Constraint(name="c", devices=("b*",), exclude=True), "device of the fleet matches 'b"),
        (Constraint(name="c", gemms=("fc1",), servers=("s9",)), "no server is named 's9'"),
    ):
        with pytest.raises(InputFileError, match="constraint 'c'") as caught:
            check_names([constraint], ["fc1"], fleet)
        assert words in str(caught.value)


def test_in_words() -> None:
    """What the report shows."""
    assert in_words(Constraint(name="x", gemms=("a", "b"), modes=(Mode.ROW, Mode.SERVER), servers=("s",))) == (
        "a, b: cut as row or server, on s"
    )
    every = Constraint(name="y", devices=("p*",), exclude=True, memory_bytes=2e9, headroom=0.1, work=0.2, time_s=5.0)
    assert in_words(every) == (
        "p*: left out, at most 2 GB of memory, 0.1 of the memory left free, at most 0.2 of the work of a level, at most 5 s in a "
        "level"
    )


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        (Constraint(name="c", gemms=("l1.*",), modes=(Mode.ROW,)), "'l1.fc' has mode 'two-dimensional'"),
        (Constraint(name="c", gemms=("l0.fc",), servers=("s0",)), "'l0.fc' is on server 's1'"),
        (Constraint(name="c", devices=("d2",), exclude=True), "'d2' computes a tile of 'l0.fc'"),
        (Constraint(name="c", devices=("d*",), work=0.4), "'d2' has 0.5 of the work of a level"),  # 24 of 48 outputs
        (Constraint(name="c", devices=("d*",), time_s=0.1), "of a level"),
    ],
)
def test_a_plan_that_breaks_its_constraints(constraint: Constraint, words: str) -> None:
    """The second opinion names the constraint and what the plan does; a plan that obeys passes."""
    plan, workload, fleet = example()
    findings = verify(replace(plan, constraints=(constraint,)), workload, fleet).findings
    assert [finding.code for finding in findings] == [Code.CONSTRAINT]
    assert "constraint 'c'" in findings[0].sentence
    assert words in findings[0].sentence
    obeyed = (
        Constraint(name="modes", gemms=("l*",), modes=(Mode.TWO_DIMENSIONAL,), servers=("s0", "s1")),
        Constraint(name="caps", devices=("*",), work=0.5, time_s=1e9),
    )
    assert verify(replace(plan, constraints=obeyed), workload, fleet).ok


def test_memory_is_judged_as_the_constraints_leave_it() -> None:
    """Tiles that fit the fleet's devices need not fit what a cap leaves of them."""
    plan, workload, fleet = example()
    capped = replace(plan, constraints=(Constraint(name="c", devices=("*",), memory_bytes=100.0),))
    assert Code.SMALLEST_TILE in {finding.code for finding in verify(capped, workload, fleet).findings}
