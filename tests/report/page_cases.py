"""Pages of a plan, a simulation, a comparison and a run, made as a user makes them."""

from __future__ import annotations

import json
from pathlib import Path

from cleave_plan.api import (
    compare_strategies,
    draw_inputs,
    emulate_run,
    generate_fleet,
    load_onnx,
    make_plan,
    save_fleet,
    save_plan,
    simulate_churn,
    simulate_plan,
    write_page,
)
from cleave_plan.report.churn import churn_document
from cleave_plan.report.comparison import Subject, comparison_document
from cleave_plan.report.run import run_document
from cleave_plan.report.simulation import simulation_document
from models.registry import build


def write_pages(folder: Path, *, devices: int = 5) -> dict[str, Path]:
    """``{"plan": ..., "simulation": ..., "churn": ..., "comparison": ..., "run": ...}``: pages of a small perceptron."""
    model, plan_file, fleet_file = folder / "mlp.onnx", folder / "plan.json", folder / "fleet.yaml"
    model.write_bytes(build("mlp").SerializeToString())
    workload = load_onnx(model, dims={"batch": 64})
    fleet = generate_fleet(devices)
    save_fleet(fleet, fleet_file)
    plan = make_plan(workload, fleet, without={"server", "inner"})
    save_plan(plan, plan_file)
    settings = {"batches": 4, "pacing": "shared", "dispatch": "barrier", "jitter": 0.2, "heat": None, "seed": 0}
    done = simulate_plan(plan, workload, fleet, batches=4, pacing="shared", jitter=0.2)
    (folder / "simulation.json").write_text(json.dumps(simulation_document(done, plan, settings)))
    churned = simulate_churn(plan, workload, fleet, "failures=1 min", batches=5)
    told = churn_document(churned, plan, {"churn": "failures=1 min", "seed": 0})
    (folder / "churn.json").write_text(json.dumps(told))
    found, samples = compare_strategies(workload, fleet, devices=[2, devices], without={"inner"})
    subject = Subject(model=workload.name, fleet=fleet, batch=samples, training=False)
    (folder / "comparison.json").write_text(json.dumps(comparison_document(found, subject)))
    played = emulate_run(plan, model, fleet, draw_inputs(plan, model), workers=2)
    run = run_document(played.result, None, inputs="drawn with seed 0", outputs=None, comparison=played.comparison)
    (folder / "run.json").write_text(json.dumps(run))
    pages = {kind: folder / f"{kind}.html" for kind in ("plan", "simulation", "churn", "comparison", "run")}
    write_page(plan_file, pages["plan"], model=model, fleet=fleet_file)
    write_page(folder / "simulation.json", pages["simulation"])
    write_page(folder / "churn.json", pages["churn"])
    write_page(folder / "comparison.json", pages["comparison"])
    write_page(folder / "run.json", pages["run"])
    return pages
