"""The page of a plan: what it promises, where the time goes, who does what, and every product's tiles to scale.

With the model and the fleet the page also shows one level of each kind on its devices (in virtual time), and memory beside its
limits; without them it says what is missing.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from cleave_plan.fleet.device import Fleet
from cleave_plan.plan.plan import Assignment, LevelReport, Mode, Plan
from cleave_plan.report.page.charts import bars, boxes, colour, gantt, lanes_height, points, with_ticks
from cleave_plan.report.page.document import Chart, Data, Page, Section
from cleave_plan.report.plan import worth
from cleave_plan.report.tables import Fact, as_time, percent
from cleave_plan.report.workload import recompute_fact
from cleave_plan.simulation.run import Moment, Simulation
from cleave_plan.units import Unit, count, format_value, plural

MOST_TILES = 30_000
"""Tiles on one page; products after that are named and not drawn."""

MOST_SLICES = 8_000
"""Slices of one level's timeline; of larger levels only the busiest devices are drawn."""

RESOURCES = ("device", "egress", "ingress", "server")


def plan_page(plan: Plan, fleet: Fleet | None = None, played: Simulation | None = None) -> Page:
    """The page of ``plan``; ``played`` is one batch of it with its timeline."""
    step = "a training step of " if plan.training else ""
    sections = [_promise(plan), _levels(plan)]
    if played is not None and played.moments:
        sections.append(_timelines(plan, played))
    sections += [_devices(plan, fleet, played), _tiles(plan), _making(plan)]
    return Page(
        title=f"Plan of {step}{plan.model.name}", subtitle=f"over {plan.fleet.name}: {plural(len(plan.device_names), 'device')}, "
        f"{plural(len(plan.server_names), 'server')}", sections=tuple(sections),
    )  # fmt: skip


def _promise(plan: Plan) -> Section:
    p = plan.predicted
    idle = "the others would not make it faster" if p.devices_used < p.devices_total else "all of the fleet"
    alone, server = ("impossible" if seconds is None else as_time(seconds) for seconds in (p.one_device_s, p.server_only_s))
    facts = (
        Fact("batch time", as_time(p.batch_s), "predicted, by executed cost: levels and server operators"),
        Fact("proven bound", as_time(p.bound_s), f"no levels can take less; these take {as_time(p.ideal_levels_s)} (ideal cost)"),
        Fact("gap", percent(p.gap), "1 − bound / levels"),
        Fact("devices used", f"{count(p.devices_used)} of {count(p.devices_total)}", idle),
        Fact("one device alone", alone, p.one_device_name or "fits no device"),
        Fact("server alone", server, "every product on the first server"),
        Fact("to devices", format_value(p.downlink_bytes, Unit.BYTES), "a batch"),
        Fact("from devices", format_value(p.uplink_bytes, Unit.BYTES), "a batch"),
        *((Fact(*recompute_fact(plan.recompute)),) if plan.recompute is not None else ()),
    )  # fmt: skip
    return Section(heading="What it promises", sentences=(worth(p)[1], *plan.notes), facts=facts)


def _name(level: LevelReport) -> str:
    first = level.gemms[0] if level.gemms else "none"
    more = f" and {len(level.gemms) - 1} more" if len(level.gemms) > 1 else ""
    return f"{level.index}: {first}{more} × {level.count}"


def _levels(plan: Plan) -> Section:
    shown = sorted(
        (level for level in plan.predicted.levels if level.executed_s > 0), key=lambda one: -one.executed_s * one.count
    )
    data = Data(columns={
        "level": [_name(level) for level in shown],
        "seconds": [level.executed_s * level.count for level in shown],
        "bound": [level.bound_s * level.count for level in shown],
        "each": [level.executed_s for level in shown],
        "ideal each": [level.ideal_s for level in shown],
        "waits for": [level.binds.split(" ")[0] for level in shown],
        "binds": [level.binds for level in shown],
    })  # fmt: skip
    tooltip = ("level", "seconds", "bound", "each", "ideal each", "binds")
    spec = with_ticks(
        bars("level", "seconds", by=colour("waits for", RESOURCES, "waits for"), rows=len(shown), tooltip=tooltip), "bound"
    )
    caption = "Seconds of a batch in each kind of level (times its number), by executed cost; the tick is the proven lower bound."
    return Section(
        heading="Where the time goes",
        charts=(Chart(title="Time by kind of level, and what each waits for", caption=caption, spec=spec, data=(data,)),),
    )


def _timelines(plan: Plan, played: Simulation) -> Section:
    """One moment for each kind of level, on the devices that take part."""
    sets = []
    first: dict[int, Moment] = {}
    for moment in played.moments:
        first.setdefault(id(moment.work), moment)
    for moment in sorted(first.values(), key=lambda one: -one.run.seconds):
        work, run = moment.work, moment.run
        if not len(work.device):
            continue
        busiest = work.active[np.argsort(-run.done_s, kind="stable")]
        kept = busiest[: max(MOST_SLICES * len(busiest) // len(work.device), 1)] if len(work.device) > MOST_SLICES else busiest
        mine = np.flatnonzero(np.isin(work.device, kept))
        lanes = len(np.unique(work.device[mine]))
        names = [plan.device_names[device] for device in work.device[mine].tolist()]
        what = np.select(
            [(work.down_bytes > 0) & (work.flop == 0), work.flop > 0], ["download", "download, compute, upload"], "upload or wait"
        )[mine]
        sets.append(Data(
            label=f"level {moment.level}: {', '.join(work.gemms[:3])} ({as_time(run.seconds)})",
            columns={
                "device": names, "from": run.start_s[mine].tolist(), "to": run.stop_s[mine].tolist(), "phase": what.tolist(),
                "product": [work.gemms[place] for place in work.gemm[mine].tolist()],
            },
            sizes={"height": lanes_height(lanes)},
        ))  # fmt: skip
    phases = ("download", "download, compute, upload", "upload or wait")
    spec = gantt(
        "device", "from", "to", colour("phase", phases), lanes=max((len(set(one.columns["device"])) for one in sets), default=1),
        tooltip=("device", "product", "phase", "from", "to"), axis="seconds from the start of the level",
    )  # fmt: skip
    caption = "Each device's work in one level, every transfer at its planned rate; the level ends with the last device."
    return Section(
        heading="A level on its devices",
        charts=(Chart(title="Who works when", caption=caption, spec=spec, data=tuple(sets), choice="Kind of level"),),
    )


def _devices(plan: Plan, fleet: Fleet | None, played: Simulation | None) -> Section:
    work = _shares(plan)
    memory = plan.predicted.device_memory_bytes
    names = [name for name in plan.device_names if name in work]
    columns: dict[str, list[object]] = {
        "device": list(names), "share of the work (%)": [100 * work[name] for name in names],
        "memory (GB)": [memory.get(name, 0.0) / 1e9 for name in names],
    }  # fmt: skip
    sentences, tooltip = [], ["device", "share of the work (%)", "memory (GB)"]
    if fleet is not None:
        limits = {device.name: device.memory_bytes for device in fleet.devices}
        columns["limit (GB)"] = [limits[name] / 1e9 for name in names]
        columns["memory used (%)"] = [100 * memory.get(name, 0.0) / limits[name] for name in names]
        tooltip += ["limit (GB)", "memory used (%)"]
    else:
        sentences.append("Without the fleet (--fleet) and the model (--model), limits of memory and busy times are not known.")
    if played is not None:
        total = float(played.batch_s.sum())
        busy = dict(zip(plan.device_names, played.busy_s.tolist(), strict=True))
        columns["busy (%)"] = [100 * busy[name] / total for name in names]
        tooltip.append("busy (%)")
    spec = points(
        "share of the work (%)", "memory used (%)" if fleet is not None else "memory (GB)", tooltip=tooltip,
        axes=("share of the work that is cut (%)", "memory used, of its limit (%)" if fleet is not None else "memory (GB)"),
    )  # fmt: skip
    charts = (
        Chart(
            title="Load and memory of each device", spec=spec, data=(Data(columns=columns),),
            caption="Each device's share of the multiply-adds that are cut, and the most memory that any of its tiles needs.",
        ),
    )  # fmt: skip
    servers = [[name, format_value(used, Unit.BYTES)] for name, used in plan.predicted.server_memory_bytes.items()]
    return Section(heading="Devices and servers", sentences=tuple(sentences), charts=charts, table=(["server", "holds"], servers))


def _shares(plan: Plan) -> dict[str, float]:
    """Each device's share of the multiply-adds of products that are cut."""
    macs: dict[str, float] = defaultdict(float)
    for assignment in plan.assignments:
        t = assignment.tiles
        volume = 1.0 * (t.m_stop - t.m_start) * (t.n_stop - t.n_start) * (t.k_stop - t.k_start) * (t.batch_stop - t.batch_start)
        total = np.bincount(t.device, volume * len(assignment.gemms), minlength=len(plan.device_names) + 1)
        for place in np.flatnonzero(total[: len(plan.device_names)]).tolist():
            macs[plan.device_names[place]] += float(total[place])
    everything = sum(macs.values())
    return {name: share / everything for name, share in macs.items()}


def _tiles(plan: Plan) -> Section:
    cut = [assignment for assignment in plan.assignments if assignment.mode is not Mode.SERVER]
    cut.sort(key=lambda one: -float(np.sum(one.tiles.m_stop - one.tiles.m_start)))
    drawn, left_out, room = [], [], MOST_TILES
    for assignment in cut:
        if len(assignment.tiles) > room:
            left_out.append(assignment.class_name)
            continue
        room -= len(assignment.tiles)
        drawn.append(_boxes(assignment, plan))
    sentences = [f"Not drawn for their number of tiles: {', '.join(left_out)}."] if left_out else []
    if not drawn:
        return Section(heading="Tiles", sentences=("Every product stays on a server: there is nothing to draw.",))
    by = {"field": "device", "type": "nominal", "legend": None, "scale": {"scheme": "tableau20"}}
    caption = "Rows and columns of the result that each device computes, to scale; where K or the batch is cut, tiles overlap."
    chart = Chart(title="Tiles of a product", caption=caption, spec=boxes(by=by), data=tuple(drawn), choice="Product")
    return Section(heading="Tiles", sentences=tuple(sentences), charts=(chart,))


def _boxes(assignment: Assignment, plan: Plan) -> Data:
    t = assignment.tiles
    owners = (*plan.device_names, f"{assignment.server} (server)")
    more = f" and {len(assignment.gemms) - 1} more" if len(assignment.gemms) > 1 else ""
    return Data(
        label=f"{assignment.gemms[0]}{more}: {assignment.mode.value}, {plural(len(t), 'tile')}",
        columns={
            "device": [owners[place] for place in t.device.tolist()], "row from": t.m_start.tolist(), "row to": t.m_stop.tolist(),
            "column from": t.n_start.tolist(), "column to": t.n_stop.tolist(), "inner from": t.k_start.tolist(),
            "inner to": t.k_stop.tolist(), "batch items": (t.batch_stop - t.batch_start).tolist(),
        },
    )  # fmt: skip


def _making(plan: Plan) -> Section:
    s = plan.solver
    rows = [
        ["program", f"{s.name}: {s.status.value}, gap {percent(s.gap)} among the options offered"],
        *([name, value or "nothing"] for name, value in plan.settings.items()),
        ["model", f"{plan.model.name}, SHA-256 {plan.model.sha256}"],
        ["fleet", f"{plan.fleet.name}, SHA-256 {plan.fleet.sha256}"],
        *(["dimension", f"{name} = {size}"] for name, size in plan.dims.items()),
    ]
    return Section(heading="How it was made", table=(["what", "how"], rows))
