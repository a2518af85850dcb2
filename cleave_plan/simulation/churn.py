r"""Batches of a plan in virtual time while devices come and go.

Levels follow one another, each a barrier (:mod:`~cleave_plan.simulation.disturbed`). Between levels (never inside one) the
server settles what has changed since: empty seats are given to devices that have none (:mod:`~cleave_plan.simulation.seats`); the
tiles of seats that stay empty are cut over the others for each kind of level, once, until one of the takers is gone. Where nobody
is there who could take what is to be done, everything waits for the next device that joins, as long as one does.

    efficiency = batches * seconds of a batch that the plan predicts / seconds that they took

What the plan predicts, with everyone there all the time, is the bound without churn. Devices keep nothing from level to level
here, even where the plan lets them (:mod:`~cleave_plan.plan.keeping`): who sits on a seat now was not sent it before. No
history is kept: memory does not grow with the time that is simulated.
"""

from __future__ import annotations

from collections.abc import Iterable

from cleave_plan.chronicle import Chronicle
from cleave_plan.cost.lateness import GRACE_S
from cleave_plan.fleet.churn import Event
from cleave_plan.fleet.device import Fleet
from cleave_plan.plan.plan import Plan
from cleave_plan.progress import Progress, silent
from cleave_plan.simulation.churnrun import ChurnRun
from cleave_plan.simulation.player import Player
from cleave_plan.workload.graph import Workload

DETECT_S = 1.0
"""Seconds without a heartbeat after which a device counts as lost (assumed)."""

GAIN = 0.05


def churn(
    plan: Plan,
    workload: Workload,
    fleet: Fleet,
    events: Iterable[Event],
    *,
    batches: int | None = None,
    duration_s: float | None = None,
    detect_s: float = DETECT_S,
    gain: float = GAIN,
    grace_s: float = GRACE_S,
    chronicle: Chronicle | None = None,
    progress: Progress = silent,
) -> ChurnRun:
    """Play ``batches`` whole batches, or as many as begin before ``duration_s``, while ``events`` happen.

    ``fleet`` has the plan's servers only; ``chronicle``: where to write down what happens. Raises InfeasibleError
    when nobody is left or joins who can take a tile, or a level does not end (:mod:`~cleave_plan.simulation.effort`), and as
    :func:`~cleave_plan.simulation.work.plan_work` does.
    """
    player = Player(plan, workload, fleet, events, detect_s, gain, grace_s, chronicle)
    took: list[float] = []
    while (batches is None or len(took) < batches) and (duration_s is None or player.now_s < duration_s):

        def level_done(share: float) -> None:
            whole = (len(took) + share) / batches if batches else min(player.now_s / (duration_s or 1.0), 1.0)
            progress(round(1000 * whole), 1000, f"batch {len(took) + 1}")

        took.append(player.batch(level_done, len(took)))
    return player.told(tuple(took))
