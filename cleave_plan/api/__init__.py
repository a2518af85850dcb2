"""What ``import cleave_plan`` offers: plain functions over values, each loading what it needs when it is called.

Every function raises subclasses of :class:`cleave_plan.errors.CleaveError` for faults that a user can cause, and
whatever a command prints is reachable through these values.
"""

from cleave_plan.api.fleets import (
    calibrate_profiles,
    fleet_of,
    generate_fleet,
    given_figure,
    link_agent,
    load_fleet,
    measure_link,
    measure_machine,
    open_profiles,
    save_fleet,
    with_servers,
)
from cleave_plan.api.models import draw_inputs, gradient, load_inputs, load_model_of, load_onnx, save_outputs
from cleave_plan.api.pages import write_page
from cleave_plan.api.plans import (
    diff_plans,
    explain_plan,
    load_constraints,
    load_plan,
    make_plan,
    replan,
    save_plan,
    sweep_plans,
    verify,
)
from cleave_plan.api.runs import (
    compare_run,
    compare_strategies,
    emulate_run,
    execute,
    open_session,
    run,
    simulate_churn,
    simulate_plan,
    verify_run,
    write_churn_trace,
    write_run_trace,
    write_simulation_trace,
)
from cleave_plan.api.training import train, training_settings, write_training_trace

__all__ = [
    "calibrate_profiles",
    "compare_run",
    "compare_strategies",
    "diff_plans",
    "draw_inputs",
    "emulate_run",
    "execute",
    "explain_plan",
    "fleet_of",
    "generate_fleet",
    "given_figure",
    "gradient",
    "link_agent",
    "load_constraints",
    "load_fleet",
    "load_inputs",
    "load_model_of",
    "load_onnx",
    "load_plan",
    "make_plan",
    "measure_link",
    "measure_machine",
    "open_profiles",
    "open_session",
    "replan",
    "run",
    "save_fleet",
    "save_outputs",
    "save_plan",
    "simulate_churn",
    "simulate_plan",
    "sweep_plans",
    "train",
    "training_settings",
    "verify",
    "verify_run",
    "with_servers",
    "write_churn_trace",
    "write_page",
    "write_run_trace",
    "write_simulation_trace",
    "write_training_trace",
]
