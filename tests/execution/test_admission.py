"""Plans that do not fit their model are refused before anything runs, with the place and the reason."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest
import small_models
from hand_plans import hand_plan, random_tiling, rows

from cleave_plan.cost.tile import BOX, Tiles
from cleave_plan.errors import InputFileError
from cleave_plan.execution.admission import admit
from cleave_plan.kernels.tile import Box
from cleave_plan.onnx_io.importer import load_model
from cleave_plan.plan.plan import Mode, Plan
from cleave_plan.workload.graph import Workload


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    """The GEMMs of the transformer block; "q" is 1 x 10 x 8 x 8."""
    return load_model(small_models.transformer_block(tmp_path_factory.mktemp("model") / "block.onnx")).workload


def plan_of(workload: Workload, tiles: list[tuple[int, Box]]) -> Plan:
    """A plan in which GEMM "q" has ``tiles`` and the server computes the rest."""
    return hand_plan(workload, {"q": tiles}, devices=3)


def test_a_good_plan_is_admitted(workload: Workload) -> None:
    """Devices by name, boxes as planned, nothing for the server's GEMMs."""
    gemm = next(gemm for gemm in workload.gemms if gemm.name == "q")
    placed = admit(plan_of(workload, rows(gemm, 4, 6)), workload)
    assert placed["q"].tiles == (("device-0", Box(0, 4, 0, 8, 0, 8, 0, 1)), ("device-1", Box(4, 10, 0, 8, 0, 8, 0, 1)))
    assert admit(plan_of(workload, [(0, HALF), (3, REST)]), workload)["q"].home == {1: REST}
    assert not any(place.tiles for name, place in placed.items() if name != "q")


HALF = Box(0, 5, 0, 8, 0, 8, 0, 1)
REST = Box(5, 10, 0, 8, 0, 8, 0, 1)


@pytest.mark.parametrize(
    ("tiles", "message"),
    [
        ([(0, HALF)], r"\(0, 5, 0, 0\) is computed by no tile"),
        ([(0, HALF), (1, HALF), (2, REST)], r"\(0, 0, 0, 0\) is computed twice \(tiles 0, 1\)"),
        ([(0, HALF), (1, Box(5, 11, 0, 8, 0, 8, 0, 1))], r"\(0, 10, 0, 0\) lies outside the GEMM"),
        ([(0, HALF), (1, Box(5, 2**40, 0, 8, 0, 8, 0, 1))], "lies outside the GEMM"),
        ([(0, Box(-1, 5, 0, 8, 0, 8, 0, 1)), (1, REST)], "lies outside the GEMM"),
        ([(0, HALF), (1, Box(10, 5, 0, 8, 0, 8, 0, 1))], "tile 1 is empty or turned round"),
        ([(0, HALF), (1, REST), (1, Box(5, 5, 0, 8, 0, 8, 0, 1))], "tile 2 is empty"),
        ([(0, HALF), (4, REST)], "tile 1 is on device number 4; expected 0 to 2, or 3 for the server"),
        ([(-1, HALF), (1, REST)], "tile 0 is on device number -1"),
        ([(0, Box(0, 10, 0, 8, 0, 4, 0, 1))], r"\(0, 0, 0, 4\) is computed by no tile"),
    ],
)
def test_tiles_that_do_not_cover_exactly(workload: Workload, tiles: list[tuple[int, Box]], message: str) -> None:
    """Gaps, doubles, tiles outside or empty, devices that do not exist."""
    with pytest.raises(InputFileError, match=message):
        admit(plan_of(workload, tiles), workload)


def test_another_model(workload: Workload) -> None:
    """The hash of the file decides, not its name."""
    plan = plan_of(workload, [(0, HALF), (1, REST)])
    with pytest.raises(InputFileError, match="made for another model file"):
        admit(plan, dataclasses.replace(workload, sha256="0" * 64))


def test_gemms_that_are_missing_unknown_or_doubled(workload: Workload) -> None:
    """Each GEMM has exactly one assignment, and no other name has one."""
    plan = plan_of(workload, [(0, HALF), (1, REST)])
    first, *others = plan.assignments
    with pytest.raises(InputFileError, match=r"1 GEMMs have no assignment, the first is 'q'"):
        admit(dataclasses.replace(plan, assignments=tuple(others)), workload)
    with pytest.raises(InputFileError, match=r"'q' has a second assignment"):
        admit(dataclasses.replace(plan, assignments=(first, *plan.assignments)), workload)
    stranger = dataclasses.replace(first, gemms=("nobody",))
    with pytest.raises(InputFileError, match=r"\$\.assignments\[6\]\.gemms: GEMM 'nobody' is not in the model"):
        admit(dataclasses.replace(plan, assignments=(*plan.assignments, stranger)), workload)


def test_server_mode_with_tiles(workload: Workload) -> None:
    """The two contradict each other."""
    plan = plan_of(workload, [(0, HALF), (1, REST)])
    confused = dataclasses.replace(plan.assignments[0], mode=Mode.SERVER)
    with pytest.raises(InputFileError, match="it has 2 tiles though the server computes it"):
        admit(dataclasses.replace(plan, assignments=(confused, *plan.assignments[1:])), workload)


def test_a_convolution_with_a_cut_inner_axis(tmp_path: Path) -> None:
    """Refused by name: no input region is defined for it."""
    workload = load_model(small_models.convolutional(tmp_path / "conv.onnx")).workload
    gemm = next(gemm for gemm in workload.gemms if gemm.name == "c1")
    m, k, n = gemm.shape.m, gemm.shape.k, gemm.shape.n
    tiles = [(0, Box(0, m, 0, n, 0, 1, 0, 1)), (1, Box(0, m, 0, n, 1, k, 0, 1))]
    with pytest.raises(InputFileError, match="'c1': tile 0 cuts K of a convolution"):
        admit(hand_plan(workload, {"c1": tiles}), workload)


def test_one_wrong_column_anywhere_is_found(workload: Workload) -> None:
    """Whatever single entry of an exact tiling is moved by one, the plan is refused."""
    gemm = next(gemm for gemm in workload.gemms if gemm.name == "q")
    tiles = random_tiling(gemm.shape, random.Random(4), cuts=8, devices=3, inner=True)
    plan = plan_of(workload, tiles)
    admit(plan, workload)
    for column in BOX:
        for place in range(len(tiles)):
            for step in (-1, 1):
                good = plan.assignments[0].tiles
                values = good.column(column).copy()
                values[place] += step
                bad = Tiles(device=good.device, **{name: values if name == column else good.column(name) for name in BOX})
                edited = dataclasses.replace(plan.assignments[0], tiles=bad)
                with pytest.raises(InputFileError):
                    admit(dataclasses.replace(plan, assignments=(edited, *plan.assignments[1:])), workload)


def test_a_pinned_gemm_cannot_have_tiles(workload: Workload) -> None:
    """It is a part of a node that the server runs whole."""
    gemms = tuple(dataclasses.replace(g, pinned="a recurrent step") if g.name == "q" else g for g in workload.gemms)
    pinned = dataclasses.replace(workload, gemms=gemms)
    with pytest.raises(InputFileError, match="only the server can compute it: a recurrent step"):
        admit(plan_of(workload, [(0, HALF), (1, REST)]), pinned)
    assert admit(hand_plan(workload, {}), pinned)["q"].tiles == ()
