"""The plan file's shape as msgspec structs: field by field what a plan's JSON holds, with units and ranges.

These structs are the one description of the file: reading, writing and the published JSON Schema
(:mod:`cleave_plan.plan.schema`) come from them. Unknown fields are refused everywhere. What a type cannot say (columns
of equal length, start < stop, names that exist) is checked in :mod:`cleave_plan.plan.planfile`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from cleave_plan.cost.tile import BOX
from cleave_plan.plan.plan import Mode, SolverStatus

INT64_MAX = 2**63 - 1

COLUMNS = ("device", *BOX)
"""Names of the tile columns, in the order of the file."""

HELD = ("held_a", "held_b")
"""Names of the columns that say what tiles find on their devices; they may be empty."""


def _text(description: str, pattern: str | None = None) -> Meta:
    return Meta(description=description, pattern=pattern)


def _count(description: str, unit: str, *, least: int = 0) -> Meta:
    return Meta(description=description, ge=least, le=INT64_MAX, extra_json_schema={"x-unit": unit})


def _amount(description: str, unit: str) -> Meta:
    return Meta(description=description, ge=0.0, extra_json_schema={"x-unit": unit})


def _of(description: str) -> Meta:
    return Meta(description=description)


def _starts(axis: str) -> Meta:
    return _of(f"Column: first index along {axis} of each tile.")


def _stops(axis: str) -> Meta:
    return _of(f"Column: one past the last index along {axis} of each tile; above the start of the same tile.")


Index = Annotated[int, _count("An index, counted from 0.", "1")]
Stop = Annotated[int, _count("One past the last index of a range.", "1", least=1)]
Size = Annotated[int, _count("A size of one axis.", "element")]
Trips = Annotated[int, _count("Iterations of a Loop.", "1")]
Name = Annotated[str, _text("A name.")]
Share = Annotated[float, Meta(description="A share of a whole.", ge=0.0, le=1.0, extra_json_schema={"x-unit": "1"})]
Bytes = Annotated[float, _amount("An amount of memory.", "byte")]


_TOLD = "null in plan files, which do not depend on how long anything took; `plan --json` tells it."


class _Document(Struct, forbid_unknown_fields=True, kw_only=True):
    pass


class ReferenceDocument(_Document):
    """What the plan was made for, by name and by hash."""

    name: Annotated[str, _text("Name of the model or fleet, for people.")]
    sha256: Annotated[
        str,
        _text(
            "SHA-256 in hexadecimal: of the model file without the weights beside it, or of the fleet's figures in canonical "
            "form. Empty only for values that were built in Python and never had a file.",
            "^([0-9a-f]{64})?$",
        ),
    ]


class AssignmentDocument(_Document):
    """One decision, shared by identical GEMMs: the same boxes on the same devices (or kept by the server). The nine columns
    have equal length."""

    class_name: Annotated[str, _text("Name of the class of identical GEMMs, for people.")]
    mode: Annotated[
        Mode,
        _of(
            "How each GEMM is cut: 'row' cuts M (every tile spans N), 'column' cuts N (every tile spans M), 'two-dimensional' "
            "cuts both, 'inner' cuts K (perhaps M and N too), 'server' leaves it whole on the server (no tiles). 'batch' may be "
            "cut in every mode."
        ),
    ]
    gemms: Annotated[tuple[Name, ...], Meta(description="Names of the GEMMs that follow this decision.", min_length=1)]
    server: Annotated[
        str, _text("Name of the server that holds the weights, adds results and computes its own tiles; first of 'servers'.")
    ]
    servers: Annotated[
        tuple[Name, ...], Meta(description="All servers that hold a stripe of the weights, by name.", min_length=1)
    ]
    shares: Annotated[
        tuple[Share, ...],
        Meta(description="Share of weights and traffic of each of 'servers'; the shares sum to 1.", min_length=1),
    ]
    joined: Annotated[
        int,
        _count(
            "How many names of 'gemms' in a row are cut as one product, because they share an operand or a result or are the "
            "chain of attention; the columns are boxes of it.",
            "GEMM",
            least=1,
        ),
    ]
    join_axis: Annotated[
        Literal["", "n", "k", "chain"],
        _of(
            "What joins a product: members one after the other along 'n' (shared A) or 'k' (added results), 'chain' (attention: "
            "M are its rows, N is 1, K stands for all multiply-adds of a row), '' (nothing)."
        ),
    ]
    device: Annotated[
        tuple[Index, ...],
        _of(
            "Column: the device of each tile, as a place (from 0) in 'device_names'; one past the last place for a tile that "
            "'server' computes itself."
        ),
    ]
    m_start: Annotated[tuple[Index, ...], _starts("M (rows of the result)")]
    m_stop: Annotated[tuple[Stop, ...], _stops("M")]
    n_start: Annotated[tuple[Index, ...], _starts("N (columns of the result)")]
    n_stop: Annotated[tuple[Stop, ...], _stops("N")]
    k_start: Annotated[tuple[Index, ...], _starts("K (the inner axis)")]
    k_stop: Annotated[tuple[Stop, ...], _stops("K")]
    batch_start: Annotated[tuple[Index, ...], _starts("the batch axis")]
    batch_stop: Annotated[tuple[Stop, ...], _stops("the batch axis")]
    held_a: Annotated[
        tuple[Index, ...],
        _of(
            "Column, or empty for nothing: for how many rows of its piece of A each tile finds on its device what the device had "
            "of them before."
        ),
    ] = ()
    held_b: Annotated[tuple[Index, ...], _of("The same for so many columns of its piece of B.")] = ()


class LevelDocument(_Document):
    """One level, or several identical ones: GEMMs that run side by side between two barriers."""

    index: Annotated[int, _count("Index of the level (of the first one, if it stands for several).", "1")]
    count: Annotated[int, _count("How many identical levels this entry stands for.", "1", least=1)]
    gemms: Annotated[tuple[Name, ...], _of("Names of the GEMMs of the first of these levels.")]
    ideal_s: Annotated[float, _amount("Time of one such level by ideal cost.", "second")]
    executed_s: Annotated[float, _amount("Time of one such level by executed cost.", "second")]
    bound_s: Annotated[float, _amount("Proven lower bound of one such level by ideal cost.", "second")]
    binds: Annotated[str, _text("The resource that the level waits for, by name.", "^(device|egress|ingress|server) [\\s\\S]+$")]


class PredictedDocument(_Document):
    """What the plan is predicted to take, and its certificate."""

    batch_s: Annotated[float, _amount("Time of one batch: levels_s + server_operators_s.", "second")]
    first_batch_s: Annotated[
        float,
        _amount(
            "Time of the first batch, in which devices are sent what they then keep; batch_s where nothing stays from batch to "
            "batch.",
            "second",
        ),
    ]
    levels_s: Annotated[float, _amount("Time of all levels by executed cost.", "second")]
    server_operators_s: Annotated[float, _amount("Time of the operators between the levels, on the first server.", "second")]
    ideal_levels_s: Annotated[float, _amount("Time of all levels by ideal cost.", "second")]
    bound_s: Annotated[float, _amount("Proven lower bound of the time of all levels by ideal cost.", "second")]
    gap: Annotated[
        float, Meta(description="1 - bound_s / ideal_levels_s (0 without levels).", le=1.0, extra_json_schema={"x-unit": "1"})
    ]
    levels: Annotated[tuple[LevelDocument, ...], _of("The levels; their counts sum to the number of levels.")]
    devices_used: Annotated[int, _count("Devices that compute at least one tile; the server is none of them.", "device")]
    devices_total: Annotated[int, _count("Devices of the fleet.", "device", least=1)]
    one_device_s: Annotated[
        Annotated[float, _amount("Time of the best single device.", "second")] | None,
        _of("Time of one batch on the best single device beside the server; null when no device can do it alone."),
    ]
    one_device_name: Annotated[str | None, _of("Name of that device; null when there is none.")]
    server_only_s: Annotated[
        Annotated[float, _amount("Time of the server alone.", "second")] | None,
        _of("Time of one batch with every GEMM on the server; null when it was not allowed or does not fit."),
    ]
    downlink_bytes: Annotated[float, _amount("Bytes sent to devices in one batch (not: tiles that a server keeps).", "byte")]
    uplink_bytes: Annotated[float, _amount("Bytes received from devices in one batch.", "byte")]
    server_memory_bytes: Annotated[dict[str, Bytes], _of("Memory needed on each server, by name.")]
    device_memory_bytes: Annotated[dict[str, Bytes], _of("Most memory needed at one time on each device that is used, by name.")]
    spared_bytes: Annotated[float, _amount("Bytes that devices are not sent in one batch because they hold them.", "byte")]
    device_kept_bytes: Annotated[dict[str, Bytes], _of("Memory that kept pieces take on each device that keeps any, by name.")]
    tokens: Annotated[
        Annotated[int, _count("Tokens of one batch.", "token", least=1)] | None,
        _of("Tokens that one batch adds, one for each sequence, where the model is a decoding step; null for any other."),
    ]


class SolverDocument(_Document):
    """The integer program's own story. Its bound covers the options that were offered; predicted.bound_s covers all plans."""

    name: Annotated[str, _text("Name of the solver.")]
    status: Annotated[
        SolverStatus,
        _of("What is known: 'optimal', 'within-gap' (proven within the asked gap) or 'time-limited' (best found so far)."),
    ]
    objective: Annotated[float, _amount("Objective of the chosen options by ideal cost.", "second")]
    bound: Annotated[float, _amount("The solver's lower bound of the objective.", "second")]
    gap: Annotated[float, _amount("Relative distance between objective and bound.", "1")]
    build_s: Annotated[Annotated[float, _amount("Time to build it.", "second")] | None, _of(f"Time to build it; {_TOLD}")]
    solve_s: Annotated[Annotated[float, _amount("Time to solve it.", "second")] | None, _of(f"Time to solve it; {_TOLD}")]
    variables: Annotated[int, _count("Variables of the program.", "1")]
    rows: Annotated[int, _count("Constraints of the program.", "1")]


class ConstraintDocument(_Document):
    """One demand of a user: on GEMMs or on devices, by names or glob patterns."""

    name: Annotated[str, _text("Name of the constraint.")]
    gemms: Annotated[tuple[Name, ...], _of("Names or patterns of the GEMMs it speaks of; empty for one on devices.")]
    devices: Annotated[tuple[Name, ...], _of("Names or patterns of the devices it speaks of; empty for one on GEMMs.")]
    modes: Annotated[tuple[Mode, ...], _of("Modes in which the GEMMs may be cut; empty: any.")]
    servers: Annotated[tuple[Name, ...], _of("Servers that may hold the GEMMs' weights and compute of them; empty: any.")]
    exclude: Annotated[bool, _of("Whether the devices must not be used.")]
    memory_bytes: Annotated[Bytes | None, _of("Most memory that may be used of each device; null: all it has.")]
    headroom: Annotated[Share | None, _of("Share of each device's memory that stays free; null: none.")]
    work: Annotated[Share | None, _of("Largest share of any level's multiply-adds for each device; null: any.")]
    time_s: Annotated[
        Annotated[float, _amount("A time in each level.", "second")] | None,
        _of("Longest time that each device may be busy in any level, by executed cost; null: any."),
    ]


class RecomputedDocument(_Document):
    """What computing forward values again changes in a training step."""

    segments: Annotated[
        int, _count("Segments of the forward pass; all but the last run again, as far as gradients read them.", "1", least=1)
    ]
    kept_bytes: Annotated[
        int, _count("Most forward values there at once for the backward pass: at the cuts, and of the segment in hand.", "byte")
    ]
    all_kept_bytes: Annotated[int, _count("Forward values there for the backward pass where all are kept.", "byte")]
    extra_flop: Annotated[int, _count("Work of the GEMMs that run a second time.", "FLOP")]


class PlanDocument(_Document):
    """A plan of cleave-plan: which device computes which tile of which GEMM, and what that is predicted to take.

    Times are seconds, sizes bytes, indices count from 0 and ranges exclude their stop.
    """

    schema_version: Annotated[Literal[1], _of("Version of this format.")]
    model: Annotated[ReferenceDocument, _of("The model that the plan was made for.")]
    fleet: Annotated[ReferenceDocument, _of("The fleet that the plan was made for.")]
    dims: Annotated[dict[str, Size], _of("Symbolic dimensions of the model as they were bound, by name.")]
    shapes: Annotated[dict[str, tuple[Size, ...]], _of("Input shapes as they were bound, by input name.")]
    training: Annotated[
        bool, _of("Whether the plan is for a training step (backward GEMMs included), not for a forward pass alone.")
    ]
    settings: Annotated[dict[str, str], _of("The planner's options in words, by option name.")]
    constraints: Annotated[tuple[ConstraintDocument, ...], _of("What a user demanded of the plan, each by name.")]
    device_names: Annotated[
        tuple[Name, ...],
        Meta(
            description="Devices of the fleet in its order; 'device' columns index this list (its length: the server).",
            min_length=1,
        ),
    ]
    server_names: Annotated[
        tuple[Name, ...], Meta(description="Servers of the fleet in its order; the first runs the operators.", min_length=1)
    ]
    predicted: Annotated[PredictedDocument, _of("Predicted times, bound and memory.")]
    solver: Annotated[SolverDocument, _of("What the solver reported.")]
    assignments: Annotated[tuple[AssignmentDocument, ...], _of("The decisions; each GEMM of the model is in exactly one.")]
    notes: Annotated[tuple[str, ...], _of("Sentences that a reader of the plan must see.")]
    trips: Annotated[dict[str, Trips], _of("How often Loops of the model run, as bound, by name; absent: none was bound.")] = {}
    percentile: Annotated[
        Annotated[float, Meta(ge=50.0, lt=100.0, extra_json_schema={"x-unit": "percent"})] | None,
        _of("Percentile of their samples at which figures with quartiles were taken; null or absent: as the fleet gives them."),
    ] = None
    recompute: Annotated[
        RecomputedDocument | None,
        _of("What computing forward values again in a training step changes; null or absent: all values are kept."),
    ] = None
