"""From shaped links to a comparison, through the product's own commands: measure, make a fleet, plan, run, compare."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.shaped.engine import ShapedEngine
from benchmarks.shaped.hosts import MBIT, ROOT, Hosts, Link
from benchmarks.shaped.wire import make_certificate
from cleave_plan.cost.efficiency import device_columns
from cleave_plan.cost.tile import Tiles, price
from cleave_plan.execution.engines.base import Task
from cleave_plan.execution.inputs import random_inputs
from cleave_plan.execution.prices import FleetPrices
from cleave_plan.execution.session import Session
from cleave_plan.execution.truth import Comparison, compare
from cleave_plan.execution.verification import verify_run
from cleave_plan.fleet.device import Fleet
from cleave_plan.fleet.fleetfile import load_fleet
from cleave_plan.onnx_io.importer import load_model
from cleave_plan.plan.objective import products_of
from cleave_plan.plan.plan import Plan
from cleave_plan.plan.planfile import load_plan
from cleave_plan.workload.graph import Workload

AGENT_PORT, TILE_PORT = 7407, 7408
_LOCAL_AGENT, _LOCAL_TILES = 17407, 17408

SERVERS = """\
schema: 1
name: servers
servers:
  - {name: home, flops: 50 GFLOP/s, memory: 4 GB, memory_bandwidth: 8 GB/s, egress: 10 Gbit/s, ingress: 10 Gbit/s}
devices:
  - {name: unused, flops: 1 GFLOP/s, downlink: 1 Mbit/s, uplink: 1 Mbit/s, latency: 1 ms, memory: 1 GB}
"""


def drawn_links(devices: int, seed: int) -> list[Link]:
    """Links with 20 to 200 Mbit/s down and 5 to 50 up, even on a logarithmic scale, and 1 to 15 ms each way."""
    rng = np.random.default_rng(seed)
    down, up, delay = (10 ** rng.uniform(*np.log10(span), devices) for span in ((20, 200), (5, 50), (1e-3, 15e-3)))
    return [
        Link(down=MBIT * d, up=MBIT * u, delay_s=float(each))
        for d, u, each in zip(down.tolist(), up.tolist(), delay, strict=True)
    ]


def command(*arguments: str | Path) -> None:
    """A command of the product, as a user would type it; raises CalledProcessError with what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "cleave_plan.cli.main", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"cleave-plan {' '.join(map(str, arguments))}: {done.stderr.strip()}")


class Laboratory:
    """Hosts with an agent, a relay and a device on each, and a folder for what is measured."""

    def __init__(self, hosts: Hosts, folder: Path, say: Callable[[str], None]) -> None:
        self._hosts, self._folder, self._say = hosts, folder, say
        self._names = [f"device-{place}" for place in range(len(hosts.links))]
        self._token, self._database = folder / "token", folder / "profiles.sqlite"
        self._token.write_text("a token of this run\n")
        addresses = ["127.0.0.1", *map(hosts.address, range(len(hosts.links)))]
        self._certificate, self._key = make_certificate(folder, addresses)
        for place, link in enumerate(hosts.links):
            self._furnish(place, link)

    def _furnish(self, place: int, link: Link) -> None:
        tls = [str(self._certificate), str(self._key)]
        agent = ["-m", "cleave_plan.cli.main", "profile", "agent", "--port", str(_LOCAL_AGENT), "--token-file", str(self._token)]
        self._hosts.start(place, *agent, "--tls-cert", tls[0], "--tls-key", tls[1])
        ports = [f"{AGENT_PORT}={_LOCAL_AGENT}", f"{TILE_PORT}={_LOCAL_TILES}"]
        for module in (
            ["benchmarks.shaped.device", str(_LOCAL_TILES), *tls],
            ["benchmarks.shaped.relay", self._hosts.address(place), repr(link.delay_s), *ports],
        ):
            process = self._hosts.start(place, "-m", *module)
            assert process.stdout is not None
            if not process.stdout.readline():
                raise RuntimeError(f"{module[0]} does not start on host {place}")

    def measured_fleet(self, budget_s: float) -> Fleet:
        """Measure this machine and every link with ``profile measure``, and make a fleet of them with ``profile fleet``."""
        database = ["--db", str(self._database)]
        self._say("measuring this machine")
        command("profile", "measure", "--name", "host", "--dtype", "float32", "--budget", f"{budget_s} s", *database)
        for place, name in enumerate(self._names):
            self._say(f"measuring the link of {name}: {self._hosts.links[place]}")
            where = f"{self._hosts.address(place)}:{AGENT_PORT}"
            secret = ["--token-file", self._token, "--tls-ca", self._certificate]
            command(
                "profile", "measure", "--link", where, "--name", f"{name}-link", "--budget", f"{budget_s} s", *secret, *database
            )
        servers, fleet = self._folder / "servers.yaml", self._folder / "fleet.yaml"
        servers.write_text(SERVERS)
        members = [f"--device={name}=host@{name}-link" for name in self._names]
        memory = [f"--set={name}.memory=1 GB" for name in self._names]
        command("profile", "fleet", *members, *memory, "--servers-from", servers, "-o", fleet, *database)
        return load_fleet(fleet)

    def plan(self, model: Path, dims: Sequence[str]) -> Plan:
        """Plan the model for the measured fleet, every product on devices."""
        path = self._folder / f"{model.stem}.plan.json"
        bound = [option for dim in dims for option in ("--dim", dim)]
        command("plan", model, *bound, "--fleet", self._folder / "fleet.yaml", "--without", "server", "-o", path)
        return load_plan(path)

    def runs(self, plan: Plan, model: Path, fleet: Fleet, repeat: int) -> list[Comparison]:
        """Run batches over the links after one that only warms up; each beside the plan. The last one is verified."""
        imported = load_model(model, dims=plan.dims)
        inputs = random_inputs(imported)
        places = {name: (self._hosts.address(place), TILE_PORT) for place, name in enumerate(self._names)}
        kept = KeptOperands(plan, imported.workload, fleet)
        engine = ShapedEngine(places, self._certificate, self._key, kept)
        with Session(plan, model, engine=engine) as session:
            kept.jobs = session.jobs
            prices = FleetPrices(plan, session.workload, fleet, session.jobs)
            compared = []
            for turn in range(repeat + 1):
                self._say(f"{model.stem}: batch {turn} of {repeat}")
                result = session.run(inputs)
                if result.incidents:
                    raise RuntimeError(f"devices were lost: {result.incidents}")
                if turn:
                    compared.append(compare(prices, result.timings))
        verification = verify_run(plan, model, inputs, result.outputs)
        if not verification.ok:
            raise RuntimeError(f"{model.stem} is not verified: {verification.rows}")
        return compared


class KeptOperands:
    """Which operand of each tile the plan's price keeps on its device; ``jobs`` are those of the session that runs it."""

    def __init__(self, plan: Plan, workload: Workload, fleet: Fleet) -> None:
        view, _ = products_of(workload, plan.assignments)
        self._gemms = {view.members[gemm.name][0].name: gemm for gemm in view.workload.gemms}
        self._devices = {device.name: place for place, device in enumerate(fleet.devices)}
        self._fleet = fleet
        self.jobs: Sequence[str] = ()

    def __call__(self, task: Task) -> int:
        gemm = self._gemms[self.jobs[task.job % len(self.jobs)]]
        tiles = Tiles.of([(self._devices[task.device], *task.box)])
        return int(price(gemm, tiles, device_columns(self._fleet.devices, gemm.dtype)).kept[0])
