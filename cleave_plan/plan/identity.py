"""Is a plan for this model and this fleet: hashes, bindings, names, and one decision for each GEMM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cleave_plan.fleet.device import Fleet
from cleave_plan.plan.finding import Code, Finding
from cleave_plan.plan.plan import Plan, Reference
from cleave_plan.workload.gemm import Gemm
from cleave_plan.workload.graph import Workload
from cleave_plan.workload.recompute import Recomputed


def same_model(plan: Plan, workload: Workload) -> Iterator[Finding]:
    """The plan was made for this model file, with the dimensions, shapes, trip counts and phases that ``workload`` has."""
    yield from _same_file(Code.MODEL, plan.model, workload)
    if dict(plan.dims) != dict(workload.dims):
        yield _bindings("dims", dict(plan.dims), dict(workload.dims))
    if plan.training != workload.training:
        stated_phase, given_phase = _phase(plan.training), _phase(workload.training)
        sentence = f"the plan was made for {stated_phase}, the model is loaded for {given_phase}"
        yield Finding(code=Code.BINDINGS, where="$.training", sentence=sentence)
    if plan.recompute != workload.recompute:
        sentence = (
            f"the plan was made for {_recomputed(plan.recompute)}, the model is loaded for {_recomputed(workload.recompute)}"
        )
        yield Finding(code=Code.BINDINGS, where="$.recompute", sentence=sentence)
    stated, given_shapes = _tuples(plan.shapes), _tuples(workload.shapes)
    if stated != given_shapes:
        yield _bindings("shapes", stated, given_shapes)
    if dict(plan.trips) != dict(workload.trips):
        yield _bindings("trips", dict(plan.trips), dict(workload.trips))


def same_fleet(plan: Plan, fleet: Fleet) -> Iterator[Finding]:
    """The plan was made for this fleet's figures."""
    yield from _same_file(Code.FLEET, plan.fleet, fleet)


def names(plan: Plan, fleet: Fleet) -> Iterator[Finding]:
    """Devices are the fleet's in its order; servers are some of the fleet's, at least one."""
    if list(plan.device_names) != [device.name for device in fleet.devices]:
        sentence = "the device names are not the fleet's in its order, so the tiles cannot be placed"
        yield Finding(code=Code.NAMES, where="$.device_names", sentence=sentence)
    known = {server.name for server in fleet.servers}
    for place, name in enumerate(plan.server_names):
        if name not in known or name in plan.server_names[:place]:
            sentence = f"{name!r} is not a server of the fleet, or is listed twice"
            yield Finding(code=Code.NAMES, where=f"$.server_names[{place}]", sentence=sentence)
    if not plan.server_names:
        yield Finding(code=Code.NAMES, where="$.server_names", sentence="no server is named: one must run the operators")


def decisions(plan: Plan, gemms: Mapping[str, Gemm]) -> Iterator[Finding]:
    """Every GEMM in exactly one assignment."""
    owner: dict[str, int] = {}
    for place, assignment in enumerate(plan.assignments):
        for position, name in enumerate(assignment.gemms):
            where = f"$.assignments[{place}].gemms[{position}]"
            if name not in gemms:
                yield Finding(code=Code.GEMM_UNKNOWN, where=where, sentence=f"the model has no GEMM named {name!r}")
            elif name in owner:
                sentence = f"GEMM {name!r} is already in $.assignments[{owner[name]}]"
                yield Finding(code=Code.GEMM_DOUBLED, where=where, sentence=sentence)
            owner.setdefault(name, place)
    for name in gemms:
        if name not in owner:
            yield Finding(code=Code.GEMM_MISSING, where="$.assignments", sentence=f"GEMM {name!r} is in no assignment")


def _same_file(code: Code, made_for: Reference, given: Workload | Fleet) -> Iterator[Finding]:
    if made_for.sha256 != given.sha256:
        sentence = (
            f"the plan was made for {code.value} {made_for.name!r} (sha256 {made_for.sha256[:12]}...), "
            f"this is {given.name!r} (sha256 {given.sha256[:12]}...): plan again"
        )
        yield Finding(code=code, where=f"$.{code.value}.sha256", sentence=sentence)


def _bindings(field: str, stated: object, given: object) -> Finding:
    sentence = f"the plan was made with {stated}, the model is loaded with {given}"
    return Finding(code=Code.BINDINGS, where=f"$.{field}", sentence=sentence)


def _phase(training: bool) -> str:
    return "a training step" if training else "a forward pass"


def _recomputed(found: Recomputed | None) -> str:
    if found is None:
        return "a step that keeps all forward values"
    return f"one that computes forward values again in {found.segments} segments (--recompute)"


def _tuples(shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(shape) for name, shape in shapes.items()}
