"""A plan on the terminal: how long a batch takes, how near the best that is, what binds, and whether the fleet pays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cleave_plan.plan.constraints import in_words
from cleave_plan.plan.plan import Assignment, LevelReport, Mode, Plan, Predicted
from cleave_plan.report.tables import Column, Fact, Screen, Sheet, as_size, as_time, percent
from cleave_plan.report.workload import recompute_fact
from cleave_plan.units import count, plural

LEVELS_SHOWN = 10
DEVICES_SHOWN = 16


def plan_text(plan: Plan, screen: Screen) -> str:
    """The terminal summary of ``plan``; every number has its unit and says which cost it comes from."""
    sheet = Sheet(screen)
    sheet.heading(f"Plan of {'a training step of ' if plan.training else ''}{plan.model.name} over {plan.fleet.name}")
    sheet.facts(_headline(plan))
    good, sentence = worth(plan.predicted)
    sheet.verdict(sentence, good=good)
    sheet.notes(plan.notes)
    sheet.heading(f"What binds: the longest levels of {plural(_level_count(plan.predicted), 'level')}")
    sheet.table(*_level_table(plan.predicted))
    sheet.heading("What each device does")
    sheet.table(*_device_table(plan))
    idle = plan.predicted.devices_total - plan.predicted.devices_used
    if idle:
        sheet.notes([f"{plural(idle, 'device')} left out: {_why_idle(plan, idle)}"])
    if any(assignment.finds for assignment in plan.assignments):
        sheet.heading("What stays on the devices")
        sheet.table(*_held_table(plan))
    sheet.heading("How it was made")
    sheet.facts(_making(plan))
    return sheet.text()


def _why_idle(plan: Plan, idle: int) -> str:
    them = "it" if idle == 1 else "them"
    if any(constraint.exclude for constraint in plan.constraints):
        return f"a constraint says so, or the plan is faster without {them}"
    return f"the plan is faster without {them}"


def worth(predicted: Predicted) -> tuple[bool, str]:
    """Whether the fleet is worth using, and the sentence that says so with the times it compares."""
    rivals: list[tuple[float, str]] = []
    if predicted.server_only_s is not None:
        rivals.append((predicted.server_only_s, "the server alone"))
    if predicted.one_device_s is not None:
        rivals.append((predicted.one_device_s, f"one device ({predicted.one_device_name})"))
    mine = f"the fleet takes {as_time(predicted.batch_s)}"
    if not rivals:
        return True, f"Only the fleet can run it: {mine}, and it fits neither one device nor the server alone."
    best, who = min(rivals)
    ratio = best / predicted.batch_s if predicted.batch_s > 0 else 1.0
    if predicted.devices_used == 0 or ratio < 1.005:
        return False, f"The fleet is not worth it: {who} takes {as_time(best)}, {mine}."
    return True, f"The fleet is worth it: {ratio:.3g} × faster than {who} ({as_time(best)}), {mine}."


def _headline(plan: Plan) -> list[Fact]:
    p = plan.predicted
    parts = f"levels {as_time(p.levels_s)} + server operators {as_time(p.server_operators_s)}, by executed cost"
    certificate = f"no plan's levels can be faster; this plan's take {as_time(p.ideal_levels_s)}, by ideal cost"
    alone = p.one_device_name or "no device can do it alone"
    home = "does not fit" if p.server_only_s is None else ""
    directions = f"{as_size(p.downlink_bytes)} down, {as_size(p.uplink_bytes)} up, per batch"
    return [
        Fact("batch time", as_time(p.batch_s), parts),
        *_first_batch(p),
        *_tokens(p),
        Fact("bound", as_time(p.bound_s), certificate),
        Fact("gap", percent(p.gap), "1 - bound / levels, both by ideal cost, for schedules with a barrier after each level"),
        Fact("devices", f"uses {p.devices_used} of {p.devices_total}"),
        Fact("one device", _optional(p.one_device_s), _against(p.one_device_s, p, alone)),
        Fact("server only", _optional(p.server_only_s), _against(p.server_only_s, p, home)),
        Fact("traffic", as_size(p.downlink_bytes + p.uplink_bytes), directions),
    ]  # fmt: skip


def _first_batch(p: Predicted) -> list[Fact]:
    """What stays on devices, and what the batch costs in which it gets there."""
    if not p.device_kept_bytes:
        return []
    total = as_size(sum(p.device_kept_bytes.values()))
    if p.first_batch_s == p.batch_s:
        return [
            Fact(
                "kept", total, f"on {plural(len(p.device_kept_bytes), 'device')} within a step; spares {as_size(p.spared_bytes)}"
            )
        ]
    held = (
        f"sends {total} of weights that {plural(len(p.device_kept_bytes), 'device')} then keep; all else here is of later batches"
    )
    return [Fact("first batch", as_time(p.first_batch_s), held)]


def _tokens(p: Predicted) -> list[Fact]:
    """A decoding step's time for each token, steady and cold."""
    if p.tokens is None or p.batch_s <= 0:
        return []
    each = f"one for each of {plural(p.tokens, 'sequence')}; {p.tokens / p.batch_s:.4g} tokens/s in all"
    cold = f"; the first takes {as_time(p.first_batch_s)}" if p.device_kept_bytes else ""
    return [Fact("per token", as_time(p.batch_s), each + cold)]


def _optional(value: float | None) -> str:
    return "impossible" if value is None else as_time(value)


def _against(value: float | None, predicted: Predicted, remark: str) -> str:
    if value is None or predicted.batch_s <= 0:
        return remark
    ratio = f"{value / predicted.batch_s:.3g} × the plan's batch time, by executed cost"
    return f"{remark}, {ratio}" if remark else ratio


def _level_count(predicted: Predicted) -> int:
    return sum(level.count for level in predicted.levels)


def _level_table(predicted: Predicted) -> tuple[list[Column], list[list[str]]]:
    """The levels that take most of the batch; identical ones are one row."""
    columns = [
        Column("level"), Column("×"), Column("GEMMs", numeric=False), Column("each, executed"), Column("each, ideal"),
        Column("bound"), Column("gap"), Column("of the batch"), Column("binds", numeric=False),
    ]  # fmt: skip

    def share(levels: Sequence[LevelReport]) -> str:
        return percent(_share(sum(level.executed_s * level.count for level in levels), predicted.batch_s))

    # A level whose GEMMs are all part of a product of the level before it (a chain) takes no time and is not shown.
    longest = sorted(
        (level for level in predicted.levels if level.gemms), key=lambda level: (-level.executed_s * level.count, level.index)
    )
    rows = [
        [
            count(level.index), count(level.count), _names(level.gemms), as_time(level.executed_s), as_time(level.ideal_s),
            as_time(level.bound_s), percent(_gap(level)), share([level]), level.binds,
        ]
        for level in longest[:LEVELS_SHOWN]
    ]  # fmt: skip
    rest = longest[LEVELS_SHOWN:]
    if rest:
        rows.append(["others", count(sum(level.count for level in rest)), "", "", "", "", "", share(rest), ""])
    return columns, rows


def _gap(level: LevelReport) -> float:
    return 1 - level.bound_s / level.ideal_s if level.ideal_s > 0 else 0.0


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def _names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _volume(assignment: Assignment) -> list[int]:
    """Multiply-adds of each tile."""
    t = assignment.tiles
    sizes = zip(t.m_stop - t.m_start, t.n_stop - t.n_start, t.k_stop - t.k_start, t.batch_stop - t.batch_start, strict=True)
    return [int(m) * int(n) * int(k) * int(b) for m, n, k, b in sizes]


def _device_table(plan: Plan) -> tuple[list[Column], list[list[str]]]:
    """Who computes the GEMMs that are cut, by share of the multiply-adds; a server may take tiles beside the devices."""
    macs: Counter[str] = Counter()
    tiles: Counter[str] = Counter()
    for assignment in plan.assignments:
        copies = len(assignment.gemms)
        owners = (*plan.device_names, f"{assignment.server} (server)")
        for device, volume in zip(assignment.tiles.device.tolist(), _volume(assignment), strict=True):
            macs[owners[device]] += volume * copies
            tiles[owners[device]] += copies
    everything = sum(macs.values())
    columns = [
        Column("device", numeric=False), Column("tiles"), Column("of the work that is cut"), Column("memory"),
        Column("of it kept"),
    ]  # fmt: skip
    rows = []
    for name, work in macs.most_common(DEVICES_SHOWN):
        memory = plan.predicted.device_memory_bytes.get(name)
        kept = plan.predicted.device_kept_bytes.get(name)
        sizes = ["" if size is None else as_size(size) for size in (memory, kept)]
        rows.append([name, count(tiles[name]), percent(_share(work, everything)), *sizes])
    others = macs.most_common()[DEVICES_SHOWN:]
    if others:
        share = _share(sum(work for _, work in others), everything)
        rows.append([f"{len(others)} others", count(sum(tiles[name] for name, _ in others)), percent(share), "", ""])
    if not plan.predicted.device_kept_bytes:
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return columns, rows or [["none", "0", percent(0.0), ""]]


def _held_table(plan: Plan) -> tuple[list[Column], list[list[str]]]:
    """Decisions whose tiles find something on their devices; ``explain --device NAME`` tells the pieces."""
    columns = [
        Column("GEMMs", numeric=False), Column("×"), Column("operand", numeric=False), Column("devices"),
        Column("tiles that find some"),
    ]  # fmt: skip
    rows = []
    for assignment in plan.assignments:
        for operand, held in (("A", assignment.held_a), ("B", assignment.held_b)):
            tiles = [device for device, some in zip(assignment.tiles.device.tolist(), held.tolist(), strict=False) if some]
            if tiles:
                products = assignment.products()
                rows.append([" + ".join(products[0]), count(len(products)), operand, count(len(set(tiles))), count(len(tiles))])
    return columns, rows


def _making(plan: Plan) -> list[Fact]:
    s = plan.solver
    modes = Counter[Mode]()
    for assignment in plan.assignments:
        modes[assignment.mode] += len(assignment.gemms)
    split = ", ".join(f"{mode.value} {count(times)}" for mode, times in sorted(modes.items()))
    size = f"{count(s.variables)} variables, {count(s.rows)} rows"
    if s.build_s is not None and s.solve_s is not None:  # a plan file does not tell
        size += f", built in {as_time(s.build_s)}, solved in {as_time(s.solve_s)}"
    facts = [
        Fact("GEMMs", count(sum(modes.values())), split),
        Fact("program", s.status.value, f"{s.name}, gap {percent(s.gap)} among the options offered; {size}"),
    ]
    for server, used in plan.predicted.server_memory_bytes.items():
        facts.append(Fact(f"server {server}", as_size(used), "weights and live activations that it holds"))
    if plan.recompute is not None:
        facts.append(Fact(*recompute_fact(plan.recompute)))
    facts += [Fact(name, value or "nothing") for name, value in plan.settings.items()]
    if plan.percentile is not None:
        facts.append(Fact("percentile", f"{plan.percentile:g}", "of the samples of figures that have a spread (see the notes)"))
    facts += [Fact("constraint", one.name, in_words(one)) for one in plan.constraints]
    return facts
