"""Each command and each of its options on good input: what it prints, what it writes, and that JSON is all there is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from cli_cases import Files, cleave
from click.testing import Result

from cleave_plan.api import load_fleet, load_plan
from cleave_plan.cli.fleet import PRESETS
from cleave_plan.cli.plan import SWITCHES
from cleave_plan.fleet.synthetic import PRESETS as KNOWN_PRESETS
from cleave_plan.planning.planner import SWITCHES as KNOWN_SWITCHES


def document(result: Result) -> Any:
    """The one JSON document on stdout of a command that did what it was asked; stderr is empty off a terminal."""
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return json.loads(result.stdout)


def text(result: Result) -> str:
    """Stdout of a command that did what it was asked, with runs of blanks made one."""
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    assert "\x1b" not in result.stdout
    return " ".join(result.stdout.split())


def test_inspect(files: Files) -> None:
    """The GEMM table of an MLP of widths 256, 1024, 512, 10 at batch 64, by hand."""
    shown = text(cleave("inspect", files.model, "--dim", "batch=64"))
    assert "fc1 Gemm 1 1 64 256 1,024 float32 262,144 33.55 MFLOP" in shown
    assert "Relu 2" in shown
    found = document(cleave("inspect", files.model, "--dim", "batch=64", "--json"))
    assert [gemm["shape"] for gemm in found["gemms"]] == [[1, 64, 256, 1024], [1, 64, 1024, 512], [1, 64, 512, 10]]
    assert found["totals"]["gemm_macs"] == 64 * (256 * 1024 + 1024 * 512 + 512 * 10)
    assert found["totals"]["parameters"] == 256 * 1024 + 1024 + 1024 * 512 + 512 + 512 * 10 + 10
    assert [level["gemms"] for level in found["levels"]] == [["fc1"], ["fc2"], ["head"]]


def test_inspect_by_shape_is_inspect_by_dim(files: Files) -> None:
    """`--shape x=8x256` binds what `--dim batch=8` binds."""
    by_shape = document(cleave("inspect", files.model, "--shape", "x=8x256", "--json"))
    by_dim = document(cleave("inspect", files.model, "--dim", "batch=8", "--json"))
    assert by_shape["gemms"] == by_dim["gemms"]


def test_inspect_all_lists_each(files: Files, tmp_path: Path) -> None:
    """Folded rows stand for as many GEMMs as --all lists."""
    from models.registry import build

    model = tmp_path / "gpt.onnx"
    model.write_bytes(build("gpt-tiny", batch=2, seq=8).SerializeToString())
    folded, listed = text(cleave("inspect", model)), text(cleave("inspect", model, "--all"))
    assert "layers.*.mlp.c_fc MatMul 2" in folded
    assert "layers.0.mlp.c_fc MatMul 1" in listed
    assert "layers.1.mlp.c_fc MatMul 1" in listed


def test_fleet_generate_and_show(tmp_path: Path) -> None:
    """All options of generate shape the fleet, and the same options give the same bytes."""
    first, again, other = tmp_path / "a.yaml", tmp_path / "b.yaml", tmp_path / "c.yaml"
    options = ["--devices", "40", "--preset", "measured-2023", "--stragglers", "0.25", "--servers", "2"]
    text(cleave("fleet", "generate", *options, "--seed", "7", "-o", first))
    text(cleave("fleet", "generate", *options, "--seed", "7", "-o", again))
    text(cleave("fleet", "generate", *options, "--seed", "8", "--output", other))
    assert first.read_bytes() == again.read_bytes() != other.read_bytes()
    shown = document(cleave("fleet", "show", first, "--json"))
    assert (len(shown["devices"]), len(shown["servers"])) == (40, 2)
    slow = [device for device in shown["devices"] if "straggler" in device["provenance"]["downlink"]["source"]]
    assert len(slow) == 10
    assert "8 more devices not listed" in text(cleave("fleet", "show", first))
    assert shown["devices"][-1]["name"] in text(cleave("fleet", "show", first, "--all"))


def test_presets_are_those_of_the_fleet_package() -> None:
    """The help names every preset there is."""
    assert set(PRESETS) == set(KNOWN_PRESETS)


def test_the_fleet_file_is_for_people(tmp_path: Path) -> None:
    """A generated file is plain YAML with units."""
    text(cleave("fleet", "generate", "--devices", "2", "-o", tmp_path / "f.yaml"))
    assert yaml.safe_load((tmp_path / "f.yaml").read_text())["servers"][0]["egress"] == "100 Gbit/s"


def test_plan(files: Files, tmp_path: Path) -> None:
    """The summary names what a person wants to know; the JSON on stdout is the file's, with the seconds that planning took."""
    plan = tmp_path / "plan.json"
    shown = text(cleave("plan", files.model, "--dim", "batch=64", "--fleet", files.fleet, "-o", plan))
    for words in ("batch time", "bound", "gap", "of 3", "one device", "server only", "What binds", "executed cost", str(plan)):
        assert words in shown
    printed = document(cleave("plan", files.model, "--dim", "batch=64", "--fleet", files.fleet, "-o", plan, "--json"))
    assert min(printed["solver"].pop(name) for name in ("build_s", "solve_s")) > 0
    kept = json.loads(plan.read_text())
    assert [kept["solver"].pop(name) for name in ("build_s", "solve_s")] == [None, None]
    assert printed == kept
    predicted = printed["predicted"]
    assert predicted["batch_s"] == pytest.approx(predicted["levels_s"] + predicted["server_operators_s"])
    assert predicted["gap"] == pytest.approx(1 - predicted["bound_s"] / predicted["ideal_levels_s"])


def test_plan_at_a_percentile(files: Files, tmp_path: Path) -> None:
    """A fleet file with quartiles, shown as such; the plan says its percentile and what varies, and `check` approves it."""
    fleet, plan = tmp_path / "fleet.yaml", tmp_path / "plan.json"
    first = files.fleet.read_text()
    rate = re.search(r"downlink: ([^,]+),", first)
    assert rate is not None
    slow, fast = "1 kbit/s", "900 Gbit/s"
    fleet.write_text(first.replace(rate[0], f"{rate[0]} spread: {{downlink: [{slow}, {fast}, 9]}},", 1))
    assert "spread of" in text(cleave("fleet", "show", fleet))
    options = ("--dim", "batch=64", "--fleet", fleet, "-o", plan)
    shown = text(cleave("plan", files.model, *options, "--percentile", "75"))
    for words in ("planned at percentile 75", "downlink at percentile 75 for 1 device", "no spread of downlink is known for"):
        assert words in " ".join(shown.split())
    assert load_plan(plan).percentile == 75
    document(cleave("check", plan, "--model", files.model, "--fleet", fleet, "--json"))
    document(cleave("explain", plan, "--model", files.model, "--fleet", fleet, "--json"))
    assert cleave("plan", files.model, *options, "--percentile", "30").exit_code == 2


def test_plan_options(files: Files, tmp_path: Path) -> None:
    """Shapes, some of the servers, no GEMM on a server, gap and time limit reach the plan."""
    fleet = tmp_path / "fleet.yaml"
    attic = "  - {name: attic, flops: 1 GFLOP/s, memory: 1 GB, memory_bandwidth: 5 GB/s, egress: 1 Gbit/s, ingress: 1 Gbit/s}\n"
    fleet.write_text(files.fleet.read_text().replace("devices:\n", attic + "devices:\n"))
    options = ["--shape", "x=16x256", "--without", "server", "--gap", "0.01", "--time-limit", "20 s", "--fleet", fleet]
    for servers, names in (("1", ("home",)), ("attic", ("attic",)), ("attic, home", ("attic", "home"))):
        plan = tmp_path / "plan.json"
        text(cleave("plan", files.model, *options, "--servers", servers, "--output", plan))
        made = load_plan(plan)
        assert made.server_names == names
        assert made.shapes == {"x": (16, 256)}
        assert all(len(assignment.tiles) for assignment in made.assignments)
        document(cleave("check", plan, "--model", files.model, "--fleet", fleet, "--json"))


def test_check(files: Files) -> None:
    """The good plan holds; with less at hand, less is checked and the rest is named."""
    whole = ["check", files.plan, "--model", files.model, "--fleet", files.fleet]
    assert "The plan holds" in text(cleave(*whole))
    found = document(cleave(*whole, "--json"))
    assert found["ok"] is True
    assert found["not_checked"] == []
    assert found["recomputed"]["batch_s"] == pytest.approx(load_plan(files.plan).report.batch_s)
    alone = document(cleave("check", files.plan, "--json"))
    assert alone["ok"] is True
    assert len(alone["not_checked"]) == 5
    assert "not checked: the fleet's hash and names" in text(cleave("check", files.plan, "--model", files.model))
    assert "not checked: the model's hash" in text(cleave("check", files.plan, "--fleet", files.fleet))


def test_check_says_what_it_found_as_json(files: Files, tmp_path: Path) -> None:
    """A plan that states another batch time: exit 1, and stdout is still one document."""
    plan = json.loads(files.plan.read_text())
    plan["predicted"]["batch_s"] *= 0.5
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    for arguments in ([], ["--model", files.model, "--fleet", files.fleet]):
        result = cleave("check", tmp_path / "plan.json", *arguments, "--json")
        assert result.exit_code == 1
        findings = json.loads(result.stdout)["findings"]
        assert [(finding["code"], finding["where"]) for finding in findings] == [("figure", "$.predicted.batch_s")]


def test_run(files: Files, tmp_path: Path) -> None:
    """Seeded inputs, verification, and outputs that equal NumPy's."""
    out = tmp_path / "y.npz"
    run = ["run", files.plan, "--model", files.model, "--workers", "2"]
    assert "verified" in text(cleave(*run, "--seed", "3", "--verify"))
    x = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    found = document(
        cleave(
            *run,
            "--inputs",
            tmp_path / "x.npz",
            "--outputs",
            out,
            "--engine",
            "local",
            "--runtime",
            "reference",
            "--verify",
            "--json",
        )
    )
    assert found["verified"]["ok"] is True
    np.testing.assert_allclose(np.load(out)["logits"], forward(files.model, x), rtol=1e-4, atol=1e-5)


def forward(model: Path, x: np.ndarray) -> np.ndarray:
    """The MLP in NumPy, float64."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(model).graph
    weights = {tensor.name: numpy_helper.to_array(tensor).astype(np.float64) for tensor in graph.initializer}
    value = x.astype(np.float64)
    for node in graph.node:
        if node.op_type == "Gemm":
            transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
            b = weights[node.input[1]]
            value = value @ (b.T if transposed else b) + weights[node.input[2]]
        elif node.op_type == "Relu":
            value = np.maximum(value, 0)
        else:
            assert node.op_type == "Identity"  # gives the output its name
    return value


def test_a_run_is_the_same_for_the_same_seed(files: Files, tmp_path: Path) -> None:
    """--seed decides the inputs."""
    outputs = []
    for seed, name in ((1, "a"), (1, "b"), (2, "c")):
        path = tmp_path / f"{name}.npz"
        text(cleave("run", files.plan, "--model", files.model, "--seed", str(seed), "--workers", "1", "--outputs", path))
        outputs.append(np.load(path)["logits"])
    np.testing.assert_array_equal(outputs[0], outputs[1])
    assert not np.array_equal(outputs[0], outputs[2])


def test_python_says_the_same(files: Files) -> None:
    """The commands and the Python interface give the same plan."""
    import cleave_plan

    workload = cleave_plan.load_onnx(files.model, dims={"batch": 64})
    plan = cleave_plan.make_plan(workload, load_fleet(files.fleet))
    assert plan.report == load_plan(files.plan).report
    assert cleave_plan.verify(plan, workload, cleave_plan.load_fleet(files.fleet)).ok
    x = np.ones((64, 256), np.float32)
    outputs = cleave_plan.run(plan, files.model, {"x": x})
    np.testing.assert_allclose(outputs["logits"], forward(files.model, x), rtol=1e-4, atol=1e-5)


def test_training(files: Files, tmp_path: Path) -> None:
    """A training step is inspected, planned and checked as one; `check` derives the same work from the plan file alone."""
    sizes = [files.model, "--dim", "batch=64"]
    assert "a training step" in text(cleave("inspect", *sizes, "--training"))
    forward, step = (document(cleave("inspect", *sizes, *more, "--json")) for more in ([], ["--training"]))
    assert (forward["training"], step["training"]) == (False, True)
    first = 64 * 256 * 1024  # fc1 reads the data, towards which nothing is computed
    assert step["totals"]["gemm_macs"] == 3 * forward["totals"]["gemm_macs"] - first
    assert [gemm["name"] for gemm in step["gemms"][3:]] == ["head.dX", "head.dW", "fc2.dX", "fc2.dW", "fc1.dW"]
    plan = tmp_path / "plan.json"
    shown = text(cleave("plan", *sizes, "--training", "--fleet", files.fleet, "-o", plan))
    assert "Plan of a training step of mlp over three" in shown
    assert json.loads(plan.read_text())["training"] is True
    assert document(cleave("check", plan, "--model", files.model, "--fleet", files.fleet, "--json"))["ok"] is True


def test_a_plan_for_training_is_no_plan_for_a_forward_pass(files: Files, tmp_path: Path) -> None:
    """`run` refuses it in words; a plan that claims the other phase does not pass `check`."""
    plan = tmp_path / "plan.json"
    text(cleave("plan", files.model, "--dim", "batch=64", "--training", "--fleet", files.fleet, "-o", plan))
    result = cleave("run", plan, "--model", files.model)
    assert result.exit_code == 4
    assert "training step" in result.stderr
    assert "without --training" in result.stderr
    plan.write_text(plan.read_text().replace('"training": true', '"training": false'))
    assert cleave("check", plan, "--model", files.model, "--fleet", files.fleet).exit_code == 1


def test_diff(files: Files, tmp_path: Path) -> None:
    """Two plans of one model: the setting that differs and the GEMMs that move; a plan and itself."""
    other = tmp_path / "other.json"
    text(cleave("plan", files.model, "--dim", "batch=64", "--fleet", files.fleet, "--without", "server", "-o", other))
    shown = text(cleave("diff", files.plan, other))
    for words in ("settings.without nothing -> server", "batch_s", "work that moves"):
        assert words in shown
    found = document(cleave("diff", files.plan, other, "--json"))
    assert found["same"] is False
    assert found["made_for"] == {"settings.without": ["", "server"]}
    assert "The plans are the same." in text(cleave("diff", other, other))
    assert document(cleave("diff", other, other, "--json"))["same"] is True


def test_sweep(files: Files, tmp_path: Path) -> None:
    """A curve over devices or a dimension with its knee, whose plan is written where one asks for it."""
    base = ["plan", files.model, "--fleet", files.fleet]
    plan = tmp_path / "knee.json"
    shown = text(cleave(*base, "--dim", "batch=64", "--sweep", "devices=3,1", "-o", plan))
    assert "Knee: devices = " in shown
    document(cleave("check", plan, "--model", files.model, "--fleet", files.fleet, "--json"))
    found = document(cleave(*base, "--sweep", "batch=16,64", "--json"))
    assert [point["value"] for point in found["points"]] == [16, 64]
    assert found["points"][1]["batch_s"] == load_plan(files.plan).report.batch_s
    assert found["knee"] in (16, 64)
    one = document(cleave(*base, "--dim", "batch=64", "--sweep", "servers=1", "--json"))
    assert one["points"][0]["batch_s"] == load_plan(files.plan).report.batch_s


def test_switches_are_those_of_the_planner() -> None:
    """Whatever `--without` offers is known to the planner."""
    assert set(SWITCHES) <= KNOWN_SWITCHES


def test_constraints(files: Files, tmp_path: Path) -> None:
    """A constraint file reaches the plan, the summary lists it, and `check` proves it."""
    plan, demands = tmp_path / "plan.json", tmp_path / "constraints.yaml"
    demands.write_text(CONSTRAINTS)
    base = ["plan", files.model, "--dim", "batch=64", "--fleet", files.fleet, "--constraints", demands, "-o", plan]
    shown = text(cleave(*base))
    assert "constraint rows fc1: cut as row" in shown
    assert "constraint no board board: left out" in shown
    made = load_plan(plan)
    assert [constraint.name for constraint in made.constraints] == ["rows", "no board"]
    assert document(cleave("check", plan, "--model", files.model, "--fleet", files.fleet, "--json"))["ok"] is True
    plan.write_text(plan.read_text().replace('"exclude": true', '"exclude": false').replace('["row"]', '["column"]'))
    found = json.loads(cleave("check", plan, "--model", files.model, "--fleet", files.fleet, "--json").stdout)
    assert [finding["code"] for finding in found["findings"]] == ["constraint"]


def test_constraints_in_conflict(files: Files, tmp_path: Path) -> None:
    """Exit 3 with the names of those in conflict, and only those."""
    demands = tmp_path / "constraints.yaml"
    demands.write_text(CONSTRAINTS + '  - {name: columns, gemms: "fc*", mode: column}\n')
    plan = ["plan", files.model, "--dim", "batch=64", "--fleet", files.fleet, "--constraints", demands]
    result = cleave(*plan, "-o", tmp_path / "plan.json", "--json")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["error"]["facts"]["constraints"] == ["rows", "columns"]


CONSTRAINTS = """\
schema: 1
constraints:
  - {name: rows, gemms: fc1, mode: row}
  - {name: no board, devices: board, exclude: yes}
"""


def test_explain(files: Files) -> None:
    """Each decision with its alternatives, a chosen device with its changes; the JSON holds the same."""
    base = ["explain", files.plan, "--model", files.model, "--fleet", files.fleet]
    shown = text(cleave(*base, "--device", "phone"))
    for words in ("fc1 (1 GEMM)", "instead", "server only", "Device phone", "twice the uplink", "without it"):
        assert words in shown
    found = document(cleave(*base[:2], "fc2", *base[2:], "--json"))
    assert [gemm["gemms"] for gemm in found["gemms"]] == [["fc2"]]
    assert found["bound_s"] == load_plan(files.plan).report.bound_s
    assert cleave(*base[:2], "nothing", *base[2:]).exit_code == 2
    assert cleave("explain", files.plan, "--model", files.other_model, "--fleet", files.fleet).exit_code == 1
