r"""What every rival plans for: the model as a row of units, the devices as columns, and what an answer tells.

A *unit* is one level of the forward pass: its FLOP forward and backward, the bytes of its parameters, and the activation
bytes that leave it (whole batch). Backward FLOP are those of the gradient GEMMs that a training step derives
(:mod:`cleave_plan.workload.backward`). A batch of B samples can be cut into micro-batches; FLOP and activation bytes of a
micro-batch are its share.

Memory of a training step on a device that holds parameters of w bytes (elements of b bytes): w for the weights, w for their
gradients, 8/b*w for AdamW's two float32 moments; of inference w alone. Activations of the micro-batches in flight are counted
at unit boundaries only (everything inside is recomputed, at no cost in time: kind to the rivals).

Devices speak to one another over their own links: i to j at min(u_i, d_j), as in the rivals' own papers, with latency l_i + l_j.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import device_columns
from cleave_plan.dtypes import DType
from cleave_plan.fleet.device import Fleet
from cleave_plan.units import Unit, format_value
from cleave_plan.workload.backward import STATE_BYTES
from cleave_plan.workload.gemm import Phase
from cleave_plan.workload.graph import Workload

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setting:
    """Columns over units: FLOP forward and backward, parameter bytes, activation bytes out; columns over devices: FLOP/s, bytes/s
    down and up, seconds, bytes. ``batch``: samples; ``state``: bytes held on a device for each byte of parameters."""

    forward_flop: Floats
    backward_flop: Floats
    parameter_bytes: Floats
    out_bytes: Floats
    flop_per_s: Floats
    downlink: Floats
    uplink: Floats
    latency: Floats
    memory: Floats
    batch: int
    state: float
    training: bool

    @property
    def flop(self) -> Floats:
        """FLOP of each unit over a whole batch."""
        return self.forward_flop + self.backward_flop

    @property
    def rate(self) -> Floats:
        """The slower of each device's two links, bytes/s: what a ring asks of it."""
        return np.minimum(self.downlink, self.uplink)

    @property
    def devices(self) -> int:
        """How many there are."""
        return len(self.flop_per_s)

    def take(self, chosen: Ints) -> Setting:
        """The same with the devices ``chosen`` only, in that order."""
        return Setting(
            forward_flop=self.forward_flop, backward_flop=self.backward_flop, parameter_bytes=self.parameter_bytes,
            out_bytes=self.out_bytes, flop_per_s=self.flop_per_s[chosen], downlink=self.downlink[chosen],
            uplink=self.uplink[chosen], latency=self.latency[chosen], memory=self.memory[chosen], batch=self.batch,
            state=self.state, training=self.training,
        )  # fmt: skip

    def without_memory(self) -> Setting:
        """The same with memory that never ends."""
        lifted = self.take(np.arange(self.devices))
        lifted.memory[:] = np.inf
        return lifted


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a rival does at its best.

    ``batch_s`` is infinite and ``reason`` says why when it cannot run. ``degrees``: what its search chose. Bytes of one batch:
    the most that any device receives and sends. ``memory_bytes``: the most on any device. ``recovery_s``: seconds until work
    goes on after one device fails (infinite: it never does), ``recovery`` how.
    """

    name: str
    batch_s: float
    degrees: Mapping[str, int] = field(default_factory=dict)
    devices_used: int = 0
    down_bytes: float = 0.0
    up_bytes: float = 0.0
    memory_bytes: float = 0.0
    recovery_s: float = math.inf
    recovery: str = ""
    reason: str = ""


def setting_of(workload: Workload, fleet: Fleet, batch: int) -> Setting:
    """The setting of a forward or training ``workload`` of ``batch`` samples over ``fleet``'s devices."""
    first = min((gemm.level for gemm in workload.gemms if gemm.phase is not Phase.FORWARD), default=len(workload.levels))
    forward = [gemm for gemm in workload.gemms if gemm.phase is Phase.FORWARD]
    level_of = {gemm.name: gemm.level for gemm in forward}
    shape = (first,)
    forward_flop, backward_flop, out_bytes, parameters = (np.zeros(shape) for _ in range(4))
    seen: set[str] = set()
    for gemm in forward:
        forward_flop[gemm.level] += gemm.flop
        out_bytes[gemm.level] += gemm.out_bytes
        for operand in (gemm.a, gemm.b):
            if operand.tensor in workload.parameters and operand.tensor not in seen:
                seen.add(operand.tensor)
                parameters[gemm.level] += gemm.b_bytes if operand is gemm.b else gemm.a_bytes
    for gemm in workload.gemms:
        if gemm.phase is not Phase.FORWARD:
            backward_flop[level_of[gemm.name.rsplit(".", 1)[0]]] += gemm.flop
    dtype = forward[0].dtype if forward else DType.FLOAT32
    columns = device_columns(fleet.devices, dtype)
    state = 2 + STATE_BYTES / (dtype.bits / 8) if workload.training else 1.0
    return Setting(
        forward_flop=forward_flop, backward_flop=backward_flop, parameter_bytes=parameters, out_bytes=out_bytes,
        flop_per_s=columns.best_rate.copy(), downlink=columns.downlink, uplink=columns.uplink, latency=columns.latency,
        memory=columns.memory.copy(), batch=batch, state=state, training=workload.training,
    )  # fmt: skip


def ring_all_reduce(size: float | Floats, members: int | Floats | Ints, rate: float | Floats) -> Floats:
    """Seconds of a ring all-reduce of ``size`` bytes among ``members`` at ``rate`` bytes/s each: 2 (k-1)/k * size / rate."""
    k = np.asarray(members, dtype=float)
    return np.asarray(2 * (k - 1) / k * size / rate)


def powers_of_two(most: int) -> list[int]:
    """1, 2, 4, ... and ``most`` itself."""
    powers = [1 << place for place in range(most.bit_length()) if 1 << place <= most]
    return powers if powers and powers[-1] == most else [*powers, most]


def cannot(name: str, degrees: Mapping[str, int], need_bytes: float, memory: Floats) -> Outcome:
    """A rival that does not fit: what a device would hold, and what the smallest one has."""
    need, there = format_value(need_bytes, Unit.BYTES), format_value(float(memory.min()), Unit.BYTES)
    chosen = ", ".join(f"{key} {value}" for key, value in degrees.items())
    return Outcome(name=name, batch_s=math.inf, degrees=degrees, reason=f"needs {need} on a device that has {there} ({chosen})")


def best(outcomes: Iterable[Outcome], name: str) -> Outcome:
    """The fastest of ``outcomes``; one that cannot run, with the last reason, when none can."""
    found = Outcome(name=name, batch_s=math.inf, reason="no degree was possible")
    for outcome in outcomes:
        if outcome.batch_s < found.batch_s or math.isinf(found.batch_s):
            found = outcome
    return found


def selections(setting: Setting, count: int) -> list[Ints]:
    """Ways to choose ``count`` devices for a synchronous group: the fastest links, FLOP/s, memory, and balances of these."""
    ranks = [np.argsort(np.argsort(-figure, kind="stable")) for figure in (setting.rate, setting.flop_per_s, setting.memory)]
    orders = [*ranks, np.maximum(ranks[0], ranks[1]), np.maximum.reduce(ranks)]
    chosen = {tuple(np.sort(np.argsort(order, kind="stable")[:count]).tolist()) for order in orders}
    return [np.array(members, dtype=np.int64) for members in sorted(chosen)]


def restart_seconds(setting: Setting, held_bytes: float | Floats, batch_s: float) -> float:
    """Restart from a checkpoint: every device loads what it holds again, and half a batch is lost on average."""
    return float(np.max(np.asarray(held_bytes) / setting.downlink)) + batch_s / 2


def synchronous(
    setting: Setting, name: str, degree: str, sizes: Iterable[int], cost: Callable[[Setting], tuple[float, float, float]]
) -> Outcome:
    """The best group of equal members that go in step: every one of ``sizes``, every way to choose the members.

    ``cost`` of a group: bytes that a member holds, seconds of a batch, bytes that a member sends and receives. ``degree`` is what
    its size is called. After a failure: a restart from a checkpoint.
    """

    def outcomes() -> Iterator[Outcome]:
        for k in sizes:
            for chosen in selections(setting, k):
                some = setting.take(chosen)
                held, batch_s, moved = cost(some)
                if np.any(held > some.memory):
                    yield cannot(name, {degree: k}, held, some.memory)
                    continue
                yield Outcome(
                    name=name, batch_s=batch_s, degrees={degree: k}, devices_used=k, down_bytes=moved, up_bytes=moved,
                    memory_bytes=held, recovery_s=restart_seconds(some, held, batch_s), recovery="restart from a checkpoint",
                )  # fmt: skip

    return best(outcomes(), name)
