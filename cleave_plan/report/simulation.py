"""A simulation on the terminal and as a JSON document: each level beside what the plan predicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cleave_plan.plan.plan import LevelReport, Plan
from cleave_plan.report.tables import Column, Fact, Screen, Sheet, as_time, percent
from cleave_plan.simulation.run import Simulation
from cleave_plan.units import count

MOST_LEVELS = 20
"""Kinds of levels in the table; the others are in the JSON document."""


def simulation_document(done: Simulation, plan: Plan, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON document of ``simulate``; seconds of virtual time."""
    return {
        "plan": {"model": plan.model.name, "fleet": plan.fleet.name, "batch_s": plan.predicted.batch_s},
        "settings": dict(settings),
        "batch_s": done.batch_s.tolist(),
        "mean_batch_s": float(done.batch_s.mean()),
        "planned_batch_s": done.planned_batch_s,
        "excess": _excess(done),
        "server_operators_s": done.operators_s,
        "redispatched": done.redispatched,
        "levels": [
            {"index": index, "planned_s": float(done.planned_s[index]), "mean_s": float(done.levels_s[:, index].mean()),
             "least_s": float(done.levels_s[:, index].min()), "most_s": float(done.levels_s[:, index].max()),
             "binds": done.binds[index]}
            for index in range(len(done.planned_s))
        ],
        "device_busy_s": dict(zip(plan.device_names, done.busy_s.tolist(), strict=True)),
    }  # fmt: skip


def simulation_text(done: Simulation, plan: Plan, settings: Mapping[str, Any], screen: Screen) -> str:
    """The terminal report of ``simulate``."""
    sheet = Sheet(screen)
    sheet.heading(f"Simulation of {plan.model.name} over {plan.fleet.name}")
    sheet.facts(_facts(done, settings))
    if len(done.planned_s):
        sheet.heading("Levels, by how much longer they took than planned")
        sheet.table(*_levels(done, plan))
    return sheet.text()


def _excess(done: Simulation) -> float:
    """Share by which the mean batch took longer than planned."""
    return float(done.batch_s.mean()) / done.planned_batch_s - 1 if done.planned_batch_s > 0 else 0.0


def _facts(done: Simulation, settings: Mapping[str, Any]) -> list[Fact]:
    times = done.batch_s
    spread = f"virtual; mean of {count(len(times))} batches, from {as_time(times.min())} to {as_time(times.max())}"
    varied = [f"jitter {percent(settings['jitter'])}"] if settings["jitter"] else []
    if settings["heat"] is not None:
        after, share, cool = settings["heat"]
        varied.append(f"{percent(share)} of the FLOP/s after {as_time(after)} of work until {as_time(cool)} of rest")
    drawn = ", ".join(varied) + f"; seed {settings['seed']}" if varied else "nothing: every device as its figures say"
    facts = [
        Fact("batch time", as_time(times.mean()), spread if len(times) > 1 else "virtual; one batch"),
        Fact("planned", as_time(done.planned_batch_s), "executed cost of the plan's levels, and operators"),
        Fact("excess", percent(_excess(done)), f"{settings['pacing']} pacing, {settings['dispatch']} dispatch"),
        Fact("varies", "", drawn),
    ]  # fmt: skip
    if done.redispatched:
        facts.append(Fact("given twice", count(done.redispatched), "late tiles that an idle device was given too"))
    idle = 1 - done.busy_s / max(float(times.sum()), 1e-300)
    used = done.busy_s > 0
    if used.any():
        facts.append(
            Fact("devices idle", percent(float(idle[used].mean())), f"of the time, mean of the {count(int(used.sum()))} used")
        )
    return facts


def _levels(done: Simulation, plan: Plan) -> tuple[list[Column], list[list[str]]]:
    columns = [
        Column("level"), Column("times"), Column("GEMMs", numeric=False), Column("planned"), Column("simulated"),
        Column("excess"), Column("waits for", numeric=False),
    ]  # fmt: skip
    mean = done.levels_s.mean(axis=0)
    rows = []
    for report in plan.predicted.levels:
        places = _places(report, done, plan)
        planned, taken = float(done.planned_s[places].mean()), float(mean[places].mean())
        if planned <= 0:
            continue
        rows.append((
            taken / planned,
            [str(report.index), count(report.count), _names(report), as_time(planned), as_time(taken),
             percent(taken / planned - 1), done.binds[report.index]],
        ))  # fmt: skip
    rows.sort(key=lambda row: -row[0])
    return columns, [row for _, row in rows[:MOST_LEVELS]]


def _places(report: LevelReport, done: Simulation, plan: Plan) -> list[int]:
    """The levels that a report stands for: its own, where nothing says which the others are."""
    same = np.flatnonzero(np.isclose(done.planned_s, done.planned_s[report.index], rtol=1e-12, atol=0))
    return same.tolist() if report.count == len(same) else [report.index]


def _names(report: LevelReport) -> str:
    first = ", ".join(report.gemms[:2])
    return first if len(report.gemms) <= 2 else f"{first}, ..."
