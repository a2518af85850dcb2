"""Forms of convolutions, pooling, resizing and Einsum against finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from gradient_cases import Array, Case, run_case, values


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_padding_by_rule(mode: str) -> None:
    """auto_pad of convolutions and pools."""
    rng = np.random.default_rng(3)
    x, w = values(rng, 1, 2, 7, 6), values(rng, 3, 2, 3, 2)
    run_case(Case(op="Conv", inputs=[x, w], attributes={"auto_pad": mode, "strides": [2, 3]}))
    attributes = {"auto_pad": mode, "kernel_shape": [3, 2], "strides": [2, 1]}
    run_case(Case(op="MaxPool", inputs=[x], attributes=attributes))
    run_case(Case(op="AveragePool", inputs=[x], attributes=attributes))


MODES = [
    ("nearest", "asymmetric", {"nearest_mode": "floor"}), ("nearest", "half_pixel", {}), ("linear", "half_pixel", {}),
    ("linear", "align_corners", {}), ("linear", "pytorch_half_pixel", {}), ("cubic", "half_pixel", {"cubic_coeff_a": -0.5}),
]  # fmt: skip


@pytest.mark.parametrize(("mode", "coordinates", "more"), MODES)
def test_resizes(mode: str, coordinates: str, more: dict[str, object]) -> None:
    """By scales and to sizes, larger and smaller, on some axes."""
    rng = np.random.default_rng(4)
    x: Array = values(rng, 2, 2, 3, 4)
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates, **more}
    empty = np.zeros(0, np.float32)
    run_case(
        Case(op="Resize", inputs=[x, None, np.array([1, 1, 2, 1.5], np.float32)], attributes=attributes, wanted=[0], fixed=[2])
    )
    run_case(Case(op="Resize", inputs=[x, None, empty, np.array([2, 2, 5, 2])], attributes=attributes, wanted=[0], fixed=[2, 3]))
    run_case(
        Case(
            op="Resize", inputs=[x, None, None, np.array([7])], attributes={**attributes, "axes": [2]}, wanted=[0], fixed=[3]
        )
    )  # fmt: skip


EQUATIONS = [
    ("ij,jk->ik", [(3, 4), (4, 2)]), ("bhid,bhjd->bhij", [(2, 3, 4, 2), (2, 3, 5, 2)]), 
    ("...ij,...jk->...ik", [(2, 3, 4), (1, 4, 2)]), ("i,j->ij", [(3,), (4,)]), ("ij->i", [(3, 4)]),
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 2)]), ("ij,ij", [(2, 3), (2, 3)]),
    ("bij,k->bik", [(2, 3, 4), (2,)]),
]  # fmt: skip


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    """Products, sums over what one operand alone has, ellipses that broadcast, three operands."""
    rng = np.random.default_rng(5)
    run_case(Case(op="Einsum", inputs=[values(rng, *shape) for shape in shapes], attributes={"equation": equation}))
