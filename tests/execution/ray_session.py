"""What :mod:`test_ray_cluster` runs inside a network namespace: a Ray cluster of three nodes, and the engine's whole contract.

Usage: python ray_session.py MODEL FOLDER. One JSON document on stdout says what happened.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
from hand_plans import random_plan
from ray.cluster_utils import Cluster
from training_cases import perceptron, samples, train_here

from cleave_plan.api import load_fleet, train
from cleave_plan.dtypes import DType
from cleave_plan.errors import ExecutionError
from cleave_plan.execution.engines.base import Event, Failed, Finished, Joined, Lost, Task
from cleave_plan.execution.engines.ray import RayEngine
from cleave_plan.execution.inputs import random_inputs
from cleave_plan.execution.session import Session
from cleave_plan.kernels.chain import ChainProduct, Step
from cleave_plan.kernels.tile import Box, Product
from cleave_plan.onnx_io.importer import load_model
from cleave_plan.training.run import Duration
from cleave_plan.training.settings import Settings
from cleave_plan.workload.gemm import GemmShape

STORE_BYTES, STEPS = 80 << 20, 40
SIDE = 256


def node(cluster: Cluster, *devices: str) -> Any:
    """A node more that offers the resources of ``devices``."""
    return cluster.add_node(num_cpus=1, resources=dict.fromkeys(devices, 1), object_store_memory=STORE_BYTES)


def batch(cluster: Cluster, model: Path, outputs: Path, lose: Any = None) -> dict[str, Any]:
    """Run a plan of random tiles for all four devices; the outputs go to a file. The node ``lose`` goes after three tiles."""
    imported = load_model(model)
    plan = random_plan(imported.workload, seed=4, devices=4, cuts=6, keep=0.0)

    def progress(done: int, total: int, label: str) -> None:
        if done == 3 and lose is not None:
            cluster.remove_node(lose, allow_graceful=False)

    with Session(plan, model, engine=RayEngine(cluster.address), progress=progress) as session:
        result = session.run(random_inputs(imported))
    np.savez(outputs, **result.outputs)
    return {
        "tiles": result.tiles_run, "devices": sorted(result.device_s), "down": result.bytes_down, "up": result.bytes_up,
        "lost": [list(incident.devices) for incident in result.incidents],
    }  # fmt: skip


def trained(cluster: Cluster, folder: Path, lose: Any) -> dict[str, Any]:
    """Six steps of training with each tile checked, the node ``lose`` gone after the third; and the same in this process."""
    model, data = perceptron(folder / "perceptron.onnx"), samples()

    def observe(step: int) -> None:
        if step == 3:
            cluster.remove_node(lose, allow_graceful=False)

    engine = RayEngine(cluster.address, gathering_s=3)  # the plan's other four devices never come
    runs = {
        "ray": train_here(model, data, Settings(), Duration(steps=6), engine=engine, observe=observe),
        "here": train_here(model, data, Settings(), Duration(steps=6)),
    }
    return {
        "losses": {name: [report.loss for report in run.steps] for name, run in runs.items()},
        "lost": [list(incident.devices) for report in runs["ray"].steps for incident in report.incidents],
    }


def listed(path: Path, devices: int) -> Path:
    """A fleet file of so many equal devices beside a server that is too slow for anything."""
    links = "downlink: 1 Gbit/s, uplink: 1 Gbit/s, latency: 1 us, memory: 1 GB"
    rows = "".join(f"  - {{name: device-{place}, flops: 1 MFLOP/s, {links}}}\n" for place in range(devices))
    server = "{name: home, flops: 1 kFLOP/s, memory: 8 GB, memory_bandwidth: 5 GB/s, egress: 2 Gbit/s, ingress: 2 Gbit/s}"
    path.write_text(f"schema: 1\nname: some\nservers:\n  - {server}\ndevices:\n{rows}")
    return path


def joined(cluster: Cluster, folder: Path) -> dict[str, Any]:
    """``train`` over three devices, to which the fleet file adds a fourth after the third step, while its node comes."""
    model, fleet = perceptron(folder / "perceptron.onnx"), listed(folder / "fleet.yaml", 3)
    whole = train(model, load_fleet(fleet), samples(), loss="mse", steps=STEPS)
    came: list[Any] = []

    def observe(done: int, total: int, label: str) -> None:
        if total == STEPS and done == 3:
            listed(fleet, 4)
            came.append(node(cluster, "device-3"))
        elif total == STEPS and done > 3:
            time.sleep(0.3)

    os.environ["RAY_ADDRESS"] = cluster.address
    found = train(
        model, load_fleet(fleet), samples(), loss="mse", steps=STEPS, engine="ray", fleet_file=fleet, progress=observe
    )  # fmt: skip
    cluster.remove_node(came[0], allow_graceful=False)
    return {
        "losses": [[report.loss for report in run.steps] for run in (whole, found)],
        "changes": [[change.lost, change.joined] for report in found.steps if (change := report.change) is not None],
    }


class Job:
    """A product of two square matrices, opened as a job, and its tiles: equal strips of rows."""

    def __init__(self, engine: RayEngine, number: int, strips: int) -> None:
        rng = np.random.default_rng(number)
        self.a, self.b = (rng.standard_normal((1, SIDE, SIDE)).astype(np.float32) for _ in range(2))
        self.work = Product(
            shape=GemmShape(1, SIDE, SIDE, SIDE),
            a_dtype=DType.FLOAT32,
            b_dtype=DType.FLOAT32,
            out_dtype=DType.FLOAT32,
            window=None,
        )
        self.number, self.engine = number, engine
        high = SIDE // strips
        self.boxes = [Box(start, start + high, 0, SIDE, 0, SIDE, 0, 1) for start in range(0, SIDE, high)]
        engine.open(number, self.work, (self.a, self.b))

    def send(self, tile: int, device: str) -> None:
        """Send a tile to a device."""
        self.engine.send(Task(self.number, tile, device, self.boxes[tile]))

    def right(self, event: Event | None) -> bool:
        """Whether an event is the right result of its tile."""
        if not isinstance(event, Finished):
            return False
        wanted = self.a[:, event.task.box.rows] @ self.b
        return bool(np.allclose(event.result, wanted, rtol=1e-4, atol=1e-4))


def sharing(engine: RayEngine) -> dict[str, Any]:
    """Two devices of one node read the same B: it travels there once, and again to a device elsewhere."""
    job = Job(engine, 100, 4)
    down = {}
    for tile, device in enumerate(("device-1", "device-2", "device-3")):
        job.send(tile, device)
        event = engine.collect(60)
        assert job.right(event), event
        down[device] = event.bytes_down  # type: ignore[union-attr]
    engine.close(100)
    return {"down": down, "a_strip": job.a.nbytes // 4, "b": job.b.nbytes}


def losing(engine: RayEngine, cluster: Cluster, lost: Any) -> dict[str, Any]:
    """A node goes while its device and another have tiles: those of the others come back right, the rest as owed."""
    job = Job(engine, 101, 64)
    for tile in range(64):
        job.send(tile, ("device-1", "device-3")[tile % 2])
    first = engine.collect(60)
    cluster.remove_node(lost, allow_graceful=False)
    events = [first]
    began = time.monotonic()
    while len(events) < 200 and time.monotonic() < began + 60:
        events.append(engine.collect(1.0))
        answered = sum(isinstance(event, Finished) for event in events)
        owed = sum(len(event.tasks) for event in events if isinstance(event, Lost))
        if answered + owed == 64:
            break
    losses = [event for event in events if isinstance(event, Lost)]
    return {
        "answered": answered,
        "owed": owed,
        "lost": [list(loss.devices) for loss in losses],
        "owed_by": sorted({task.device for loss in losses for task in loss.tasks}),
        "right": all(job.right(event) for event in events if isinstance(event, Finished)),
        "devices": list(engine.devices),
    }


def rejoining(engine: RayEngine, cluster: Cluster) -> dict[str, Any]:
    """A node that offers the lost device comes while a job is open: the device joins and computes."""
    node(cluster, "device-3")
    job = Job(engine, 102, 2)
    event = engine.collect(60)
    joined = list(event.devices) if isinstance(event, Joined) else []
    job.send(0, "device-3")
    right = job.right(engine.collect(60))
    engine.close(102)
    return {"joined": joined, "right": right}


def failing(engine: RayEngine) -> dict[str, Any]:
    """A tile that raises on its device is reported with the reason; the device goes on."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 4, 3), (1, 3, 5), (1, 5, 2)))
    chain = ChainProduct(
        shape=GemmShape(1, 4, 8, 1), d_k=3, length=5, d_v=2, dtype=DType.FLOAT32, scores_dtype=DType.FLOAT32,
        out_dtype=DType.FLOAT32, steps=(Step("NoSuchOperator", (0,), DType.FLOAT32),), result=1, constant=(),
    )  # fmt: skip
    engine.open(103, chain, (q, k, v))
    engine.send(Task(103, 0, "device-1", Box(0, 4, 0, 1, 0, 8, 0, 1)))
    event = engine.collect(60)
    engine.close(103)
    job = Job(engine, 104, 2)
    job.send(0, "device-1")
    after = job.right(engine.collect(60))
    return {"failed": isinstance(event, Failed), "reason": getattr(event, "reason", ""), "after": after}


def dropping(engine: RayEngine) -> dict[str, Any]:
    """A device that is given up is lost with what it owes, for good."""
    job = Job(engine, 105, 4)
    engine.drop("device-2", "answers wrong numbers")
    event = engine.collect(60)
    engine.drop("device-2", "again")
    quiet = engine.collect(1.0)
    job.send(0, "device-1")
    return {
        "lost": list(event.devices) if isinstance(event, Lost) else [],
        "reason": getattr(event, "reason", ""),
        "quiet": quiet is None,
        "others": job.right(engine.collect(60)),
        "devices": list(engine.devices),
    }


def refusal(engine: RayEngine, device: str) -> str:
    """The sentence with which an engine does not start."""
    try:
        engine.start({device: 1.0})
    except ExecutionError as error:
        return error.sentence()
    finally:
        engine.stop()
    return ""


def absent(cluster: Cluster) -> dict[str, Any]:
    """One device is there, the other is not: a task for it comes back with its loss."""
    engine = RayEngine(cluster.address, gathering_s=3)
    engine.start({"device-0": 1.0, "nobody": 1.0})
    job = Job(engine, 0, 2)
    job.send(0, "nobody")
    event = engine.collect(60)
    devices = list(engine.devices)
    engine.stop()
    lost = isinstance(event, Lost)
    return {"lost": list(event.devices) if lost else [], "owed": len(event.tasks) if lost else 0, "devices": devices}


def main() -> None:
    """Everything on one cluster, as starting one is what takes time."""
    model, outputs = Path(sys.argv[1]), Path(sys.argv[2])
    said: dict[str, Any] = {"no cluster": refusal(RayEngine(), "device-0")}
    head = {"num_cpus": 1, "resources": {"device-0": 1}, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        said["no device"] = refusal(RayEngine(cluster.address, gathering_s=1), "nobody")
        said["absent"] = absent(cluster)
        node(cluster, "device-1", "device-2")
        third = node(cluster, "device-3")
        said["batch"] = batch(cluster, model, outputs / "whole.npz")
        said["disturbed"] = batch(cluster, model, outputs / "disturbed.npz", lose=third)
        third = node(cluster, "device-3")
        said["trained"] = trained(cluster, outputs, lose=third)
        said["joined"] = joined(cluster, outputs)
        third = node(cluster, "device-3")
        engine = RayEngine(cluster.address)
        engine.start({f"device-{place}": 1.0 for place in range(4)})
        said["sharing"] = sharing(engine)
        said["losing"] = losing(engine, cluster, third)
        said["rejoining"] = rejoining(engine, cluster)
        said["failing"] = failing(engine)
        said["dropping"] = dropping(engine)
        engine.stop()
        engine.stop()
    finally:
        ray.shutdown()
        cluster.shutdown()
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
