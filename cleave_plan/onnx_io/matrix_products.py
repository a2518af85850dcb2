"""The matrix products of a graph: which nodes hold some, in which forms, and each as a Gemm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cleave_plan.dtypes import DType
from cleave_plan.errors import InputFileError
from cleave_plan.onnx_io.bindings import Bindings
from cleave_plan.onnx_io.elements import dtype_of
from cleave_plan.onnx_io.facts import UNKNOWN, ShapeContradictionError
from cleave_plan.onnx_io.naming import Origin
from cleave_plan.onnx_io.operators import RULES, rule_of
from cleave_plan.onnx_io.order import node_label
from cleave_plan.onnx_io.parameters import constant_tensors, learned_tensors
from cleave_plan.onnx_io.phases import phase_of
from cleave_plan.onnx_io.regions import Region
from cleave_plan.onnx_io.rules.forms import Form
from cleave_plan.onnx_io.views import NodeView
from cleave_plan.onnx_io.walked import Walked
from cleave_plan.workload.gemm import Gemm, Operand, Role
from cleave_plan.workload.graph import UnknownWork

if TYPE_CHECKING:
    from cleave_plan.onnx_io.bodies import InnerGemm, InnerWork

_FLOATS = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64)


class MatrixProducts:
    """The matrix work of the nodes of ``found``, whose names are ``names``; ``sizes`` are the bytes of its tensors.

    ``forms``: the canonical forms of every node that holds work by its rule, by its index; ``inner``: the work in the bodies of
    each node that has some; ``unknown``: work that only the data decides. ``constants`` and ``learned`` are tensors that no run
    changes, and those that depend on a weight. Raises InputFileError when operands do not fit their operator, or when a size
    of an input is open that decides a product.
    """

    def __init__(self, found: Walked, bindings: Bindings, names: Sequence[str], sizes: Mapping[str, int]) -> None:
        file, self._facts, self._walk, self._origins = found.file, found.facts, found.walk, found.origins
        self._bindings, self._names, self._sizes, self._where = bindings, names, sizes, str(file.path)
        self._nodes = file.nodes
        self.forms, unknown = self._forms()
        self.constants = constant_tensors(file.model.graph, self._nodes, bindings.inputs)
        self.learned = learned_tensors(file.model.graph, self._nodes, self._facts)
        self.inner = self._inner(found.regions)
        self.unknown = unknown + tuple(entry for work in self.inner.values() for entry in work.unknown)

    @property
    def working(self) -> set[int]:
        """Indices of the nodes that hold GEMMs. One whose bodies hold some runs in their level, what reads its results later."""
        return {*self.forms, *(index for index, work in self.inner.items() if work.gemms)}

    def numbered(self, depth: Sequence[int]) -> list[tuple[int, Gemm]]:
        """Every GEMM with the index of its node, in the order of the nodes, which have these ``depth``."""
        own = [(index, self._gemm(index, form, depth)) for index, forms in self.forms.items() for form in forms]
        inner = [(index, self._inner_gemm(index, found, depth)) for index, work in self.inner.items() for found in work.gemms]
        return sorted(own + inner, key=lambda item: item[0]) if inner else own

    def name_of(self, index: int, form: Form) -> str:
        """The name of one GEMM of a node."""
        return f"{self._names[index]}/{form.part}" if form.part else self._names[index]

    def _forms(self) -> tuple[dict[int, tuple[Form, ...]], tuple[UnknownWork, ...]]:
        """The canonical forms of every node that holds matrix work by its rule, and the nodes whose sizes the data decides."""
        forms: dict[int, tuple[Form, ...]] = {}
        failing: dict[int, list[str]] = {}
        for index, view in enumerate(self._nodes):
            if view.kind not in RULES or (operator := rule_of(view.kind)) is None:
                continue
            node = view.node
            sizes = [self._facts.get(name, UNKNOWN).sizes if name else None for name in view.inputs]
            places = [place for place in operator.operands if place < len(sizes) and view.inputs[place]]
            if any(sizes[place] is None for place in places):
                failing[index] = [view.inputs[place] for place in places]
                continue
            if not view.made:
                raise InputFileError(f"{node_label(node)} has no output", where=self._where, expected="a name for its result")
            try:
                found = operator.forms(node, sizes)
                if found:
                    forms[index] = found
            except ShapeContradictionError as error:
                raise InputFileError(
                    f"{node_label(node)}: {error}",
                    where=self._where,
                    expected="operands that fit the operator",
                    remedy="bind other sizes with --dim or --shape, or export the model for these sizes",
                ) from None
        if not failing:
            return forms, ()
        from cleave_plan.onnx_io.diagnosis import Diagnosis

        diagnosis = Diagnosis(self._nodes, self._facts, self._bindings, self._walk.faults, self._where)
        return forms, tuple(
            UnknownWork(name=self._names[index], op=self._nodes[index].op, domain=self._nodes[index].domain, reason=reason)
            for index, reason in diagnosis.reasons(failing).items()
        )

    def _inner(self, regions: Mapping[str, Region]) -> dict[int, InnerWork]:
        """The matrix work inside the bodies of each node that has some."""
        if not regions:
            return {}
        from cleave_plan.onnx_io.bodies import Enclosing, work_inside

        around = Enclosing(names={}, constants=frozenset(self.constants), learned=frozenset(self.learned))
        place = {view.first_output: index for index, view in enumerate(self._nodes)}
        return {
            place[output]: work_inside(region, around).with_unique_names()
            for output, region in regions.items()
            if output in place
        }

    def _gemm(self, index: int, form: Form, depth: Sequence[int]) -> Gemm:
        view = self._nodes[index]
        name = self.name_of(index, form)
        a = self._operand(view, form.a, form.a_dtype, name, "a")
        b = self._operand(view, form.b, form.b_dtype, name, "b")
        if form.b_scales:
            b = replace(b, scale_bits=self._scale_bits(view, form))
        output = view.first_output
        out_dtype = form.out_dtype or dtype_of(self._facts.get(output, UNKNOWN).elem) or a.dtype
        origin = self._origins.get(view.name) or Origin(self._names[index], view.op)
        return Gemm(
            name=name, node=origin.name, op=origin.op, phase=phase_of(view.node), shape=form.shape, window=form.window, a=a, b=b,
            output=output, out_dtype=out_dtype, level=depth[index], repeats=form.repeats, pinned=form.pinned,
        )  # fmt: skip

    def _inner_gemm(self, index: int, found: InnerGemm, depth: Sequence[int]) -> Gemm:
        return Gemm(
            name=found.name, node=found.node, op=found.op, phase=found.phase, shape=found.form.shape, window=found.form.window,
            a=found.a, b=found.b, output=found.output, out_dtype=found.out_dtype, level=depth[index],
            repeats=found.form.repeats, pinned=found.form.pinned,
        )  # fmt: skip

    def _operand(self, view: NodeView, place: int | None, dtype: DType | None, gemm: str, side: str) -> Operand:
        """The operand at ``place``, or one that the node makes itself (and of which it says the type), a ``side`` of ``gemm``."""
        name = view.inputs[place or 0]
        dtype = dtype or dtype_of(self._facts[name].elem)
        if dtype is None:
            raise InputFileError(
                f"the element type of tensor {name!r}, read by {node_label(view.node)}, is not known", where=self._where,
                expected="an element type in the file (value_info)",
            )  # fmt: skip
        if place is None:
            return Operand(tensor=f"{gemm}:{side}", role=Role.ACTIVATION, dtype=dtype)
        role = Role.PARAMETER if name in self.constants else Role.ACTIVATION
        return Operand(tensor=name, role=role, dtype=dtype, learned=name in self.learned)

    def _scale_bits(self, view: NodeView, form: Form) -> float:
        """Bits of the scales and zero points of B for each of its elements; 0 where their sizes are not known."""
        names = [view.inputs[place] for place in form.b_scales if place < len(view.inputs) and view.inputs[place]]
        elements = form.shape.batch * form.shape.k * form.shape.n
        return 8 * sum(self._sizes.get(name, 0) for name in names) / max(elements, 1)


def may_be_scores(gemm: Gemm) -> bool:
    """Whether a GEMM, as far as it can tell itself, can stand at either end of a chain."""
    if gemm.op != "MatMul" or gemm.pinned or gemm.repeats != 1 or gemm.macs == 0:
        return False
    return all(operand.role is Role.ACTIVATION and operand.dtype in _FLOATS for operand in (gemm.a, gemm.b))
