"""The Ray engine on a real cluster of three nodes, in a network namespace of its own that holds nothing but loopback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_models
from hand_plans import random_plan
from in_process import InProcess

from cleave_plan.errors import UsageError
from cleave_plan.execution.engines.choice import engine_named
from cleave_plan.execution.inputs import random_inputs
from cleave_plan.execution.server import RunResult
from cleave_plan.execution.session import Session
from cleave_plan.onnx_io.importer import load_model

pytest.importorskip("ray", reason="Ray is an extra")

pytestmark = pytest.mark.long

HERE = Path(__file__).parent
ALONE = ["unshare", "--net", *(["--map-root-user"] if os.geteuid() else [])]


def namespaces_work() -> bool:
    """Whether this user may make a network namespace and set its loopback up."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    return subprocess.run([*ALONE, "ip", "link", "set", "lo", "up"], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A transformer block."""
    return small_models.transformer_block(tmp_path_factory.mktemp("cluster") / "block.onnx")


@pytest.fixture(scope="module")
def said(model: Path) -> Iterator[dict[str, Any]]:
    """What :mod:`ray_session` says of everything that it did, and the arrays of its two runs."""
    if not namespaces_work():
        pytest.skip("needs `ip`, and the right to make network namespaces")
    # Ray's sockets have long names below this folder, and a socket's path may have 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    paths = [*filter(None, sys.path), str(HERE.parent / "training")]
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join(paths), "RAY_TMPDIR": str(folder),
        "RAY_USAGE_STATS_ENABLED": "0",
    }  # fmt: skip
    environment.pop("RAY_ADDRESS", None)
    script = [sys.executable, str(HERE / "ray_session.py"), str(model), str(folder)]
    done = subprocess.run(
        [*ALONE, "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *script],
        env=environment, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    try:
        assert done.returncode == 0, done.stderr[-3000:]
        with np.load(folder / "whole.npz") as whole, np.load(folder / "disturbed.npz") as disturbed:
            arrays = {"outputs": dict(whole), "disturbed outputs": dict(disturbed)}
        yield json.loads(done.stdout.splitlines()[-1]) | arrays
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def here(model: Path) -> RunResult:
    """The same tiles computed in this process."""
    imported = load_model(model)
    plan = random_plan(imported.workload, seed=4, devices=4, cuts=6, keep=0.0)
    with Session(plan, model, engine=InProcess()) as session:
        return session.run(random_inputs(imported))


def test_a_plan_runs_on_the_cluster(said: dict[str, Any], here: RunResult) -> None:
    """On four devices of three nodes: the outputs, tiles and results' bytes of the same plan in this process."""
    assert set(said["outputs"]) == set(here.outputs)
    for name, value in here.outputs.items():
        np.testing.assert_allclose(said["outputs"][name], value, rtol=1e-5, atol=1e-5)
    assert said["batch"]["tiles"] == here.tiles_run
    assert said["batch"]["devices"] == sorted(here.device_s)
    assert said["batch"]["up"] == here.bytes_up
    assert 0 < said["batch"]["down"] <= here.bytes_down
    assert said["batch"]["lost"] == []


def test_a_plan_survives_the_loss_of_a_node(said: dict[str, Any], here: RunResult) -> None:
    """A node goes in the middle of the run: the others take its tiles, and the numbers are right."""
    for name, value in here.outputs.items():
        np.testing.assert_allclose(said["disturbed outputs"][name], value, rtol=1e-5, atol=1e-5)
    assert ["device-3"] in said["disturbed"]["lost"]
    assert {name for lost in said["disturbed"]["lost"] for name in lost} == {"device-3"}


def test_training_on_the_cluster(said: dict[str, Any]) -> None:
    """A node goes between two steps: every loss is that of the same run in this process, bit for bit."""
    assert said["trained"]["losses"]["ray"] == said["trained"]["losses"]["here"]
    assert len(said["trained"]["losses"]["ray"]) == 6
    assert ["device-3"] in said["trained"]["lost"]


def test_a_device_joins_a_training_run(said: dict[str, Any]) -> None:
    """It is written into the fleet file, and its node comes: the plan takes it in, and no bit of the losses shows it."""
    assert said["joined"]["losses"][0] == said["joined"]["losses"][1]
    assert said["joined"]["changes"] == [[[], ["device-3"]]]


def test_a_piece_travels_once_to_a_node(said: dict[str, Any]) -> None:
    """Two devices of one node read the same B: the second is sent its rows of A only; a device elsewhere is sent both."""
    sharing = said["sharing"]
    both = sharing["a_strip"] + sharing["b"]
    assert sharing["down"] == {"device-1": both, "device-2": sharing["a_strip"], "device-3": both}


def test_a_node_is_lost_in_the_middle(said: dict[str, Any]) -> None:
    """Every tile is answered right or owed, exactly once; only the lost node's device owes."""
    losing = said["losing"]
    assert losing["answered"] + losing["owed"] == 64
    assert losing["owed"] > 0
    assert losing["right"]
    assert losing["lost"] == [["device-3"]]
    assert losing["owed_by"] == ["device-3"]
    assert sorted(losing["devices"]) == ["device-0", "device-1", "device-2"]


def test_a_node_comes_late(said: dict[str, Any]) -> None:
    """A node that offers the lost device's resource joins by itself, and its tile is right."""
    assert said["rejoining"] == {"joined": ["device-3"], "right": True}


def test_a_tile_that_fails(said: dict[str, Any]) -> None:
    """The device says why, and computes the next one."""
    assert said["failing"]["failed"]
    assert "NoSuchOperator" in said["failing"]["reason"]
    assert said["failing"]["after"]


def test_a_device_that_is_given_up(said: dict[str, Any]) -> None:
    """It is lost once and for good, and others go on."""
    dropping = said["dropping"]
    assert (dropping["lost"], dropping["reason"]) == (["device-2"], "answers wrong numbers")
    assert dropping["quiet"]
    assert dropping["others"]
    assert sorted(dropping["devices"]) == ["device-0", "device-1", "device-3"]


def test_what_cannot_be_started(said: dict[str, Any]) -> None:
    """No cluster, and a cluster in which no node offers any of the devices, each with what to do."""
    assert "ray start --head" in said["no cluster"]
    assert "none of the plan's 1 devices" in said["no device"]
    assert "device-0" in said["no device"]  # what is offered
    assert "--resources" in said["no device"]


def test_a_device_that_is_not_there_at_the_start(said: dict[str, Any]) -> None:
    """A task for it comes back with its loss, which is told first."""
    assert said["absent"] == {"lost": ["nobody"], "owed": 1, "devices": ["device-0"]}


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence that names the extra; workers are of the other engine."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"cleave-plan\[ray\]"):
        engine_named("ray").start({"a": 1.0})
    with pytest.raises(UsageError, match="--workers"):
        engine_named("ray", workers=2)
