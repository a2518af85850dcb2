"""A training run on the terminal and as a JSON document: what it did to the loss, how fast, and where its state lives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from cleave_plan.report.run import incident_text
from cleave_plan.report.tables import Column, Fact, Screen, Sheet, as_size, as_time
from cleave_plan.training.run import ServerReport, StepReport, TrainingResult
from cleave_plan.units import count, plural

_LISTED = 12
"""Most steps that the terminal report lists."""


def training_document(result: TrainingResult, *, out: str) -> dict[str, Any]:
    """The JSON document of ``train``."""
    return {
        "out": out,
        "first_step": result.first_step,
        "last_step": result.first_step + len(result.steps) - 1,
        "loss": result.steps[-1].loss if result.steps else None,
        "steps": [asdict(report) for report in result.steps],
        "samples": result.samples,
        "tokens": result.tokens,
        "seconds": result.seconds,
        "step_s": result.step_s,
        "predicted_step_s": result.predicted_step_s,
        "samples_per_s": result.samples_per_s,
        "tokens_per_s": result.tokens_per_s,
        "workers": result.workers,
        "runtime": result.runtime,
        "servers": [asdict(server) for server in result.servers],
        "checkpoint": None if result.checkpoint is None else str(result.checkpoint),
        "notes": list(result.notes),
    }


def training_text(result: TrainingResult, screen: Screen, *, model: str, out: str) -> str:
    """The terminal report of ``train``."""
    sheet = Sheet(screen)
    sheet.heading(f"Training of {model}")
    facts = _facts(result)
    facts += [_server_fact(server) for server in result.servers]
    if result.checkpoint is not None:
        facts.append(Fact("checkpoint", "", str(result.checkpoint)))
    facts.append(Fact("model", "", out))
    sheet.facts(facts)
    sheet.notes([*result.notes, *(sentence for report in result.steps for sentence in _events(report))])
    if result.steps:
        sheet.heading("Loss")
        sheet.table(_COLUMNS, [_row(report) for report in _spread(result.steps)])
    return sheet.text()


def _events(report: StepReport) -> Iterator[str]:
    """What befell devices in a step, and what became of the plan."""
    yield from (f"step {report.step}: {incident_text(each)}" for each in report.incidents)
    change = report.change
    if change is None:
        return
    if change.refused:
        yield f"step {report.step}: the changed fleet file was not used: {change.refused}"
    if change.lost or change.joined:
        who = [f"{word} {', '.join(names)}" for word, names in (("without", change.lost), ("with", change.joined)) if names]
        what = "the plan was made anew" if change.anew else "the plan stayed as it is"
        if change.tiles and not change.anew:
            moved = f"{plural(change.tiles, 'tile')} became {plural(change.pieces, 'piece')} on {plural(change.takers, 'device')}"
            what = f"in the plan {moved}"
        yield (
            f"after step {report.step}, {' and '.join(who)}: {what} in {as_time(change.seconds)}; a batch is predicted to take "
            f"{as_time(change.batch_s)}, it was {as_time(change.batch_before_s)}"
        )


def _server_fact(server: ServerReport) -> Fact:
    """What a server holds, beside what was planned, and what its process had."""
    told = f"{as_size(server.parameter_bytes)} of parameters, {as_size(server.optimizer_bytes)} of optimizer state; "
    if server.planned_bytes is not None:
        told += f"planned {as_size(server.planned_bytes)}{' with activations' if server.process is None else ''}; "
    told += "this process" if server.process is None else f"process {server.process}"
    held = server.parameter_bytes + server.optimizer_bytes
    return Fact(f"server {server.name}", as_size(held), f"{told} had at most {as_size(server.resident_bytes)}")


_COLUMNS = (Column("step"), Column("loss"), Column("learning rate"), Column("gradient norm"), Column("time"))


def _row(report: StepReport) -> list[str]:
    return [
        count(report.step), f"{report.loss:.4f}", f"{report.learning_rate:.3g}", f"{report.gradient_norm:.3g}",
        as_time(report.seconds),
    ]  # fmt: skip


def _facts(result: TrainingResult) -> list[Fact]:
    if result.step_s is None:
        return [Fact("steps", "0", f"the checkpoint stands at the last step, {result.first_step - 1}, already")]
    last = result.steps[-1].step
    optimizer_s = sum(report.optimizer_s for report in result.steps) / len(result.steps)
    facts = [
        Fact("steps", count(len(result.steps)), f"{result.first_step} to {last}, in {as_time(result.seconds)}"),
        Fact("loss", f"{result.steps[-1].loss:.4f}", f"it was {result.steps[0].loss:.4f} in step {result.first_step}"),
        Fact("step", as_time(result.step_s), f"median, of {_players(result)}; optimizer "
             f"{as_time(optimizer_s)} of it on average"),
        Fact("predicted", as_time(result.predicted_step_s), "by the plan, for the fleet itself"),
        Fact("samples", count(result.samples), f"in a step, {result.samples_per_s:,.0f} a second"),
    ]  # fmt: skip
    if result.tokens is not None:
        facts.append(Fact("tokens", count(result.tokens), f"in a step, {result.tokens_per_s:,.0f} a second"))
    return facts


def _players(result: TrainingResult) -> str:
    """Who took the time of a step."""
    if not any(report.bytes_down for report in result.steps):
        return "the server alone, which does all of the work"
    if result.workers == 0:
        return "the devices"
    if result.workers == 1:
        return "1 process of this machine that plays the devices"
    return f"{result.workers} processes here that play the devices"


def _spread(steps: tuple[StepReport, ...]) -> list[StepReport]:
    """At most some steps, evenly, the first and the last among them."""
    if len(steps) <= _LISTED:
        return list(steps)
    return [steps[place * (len(steps) - 1) // (_LISTED - 1)] for place in range(_LISTED)]
