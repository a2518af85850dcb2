"""From an ONNX file to a Workload: GEMMs in levels, server operators between them, weights by their headers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from cleave_plan.dtypes import DType
from cleave_plan.errors import InputFileError
from cleave_plan.onnx_io.bindings import Bindings, bind_inputs, check_trips
from cleave_plan.onnx_io.bodies import Enclosing, InnerGemm, InnerWork, work_inside
from cleave_plan.onnx_io.collector import paused
from cleave_plan.onnx_io.diagnosis import Diagnosis
from cleave_plan.onnx_io.elements import dtype_of
from cleave_plan.onnx_io.expansion import Origin
from cleave_plan.onnx_io.facts import UNKNOWN, Fact, ShapeContradictionError
from cleave_plan.onnx_io.gradient_names import gradient_names
from cleave_plan.onnx_io.levels import Schedule, live_bytes, schedule
from cleave_plan.onnx_io.naming import unique_names
from cleave_plan.onnx_io.notes import make_notes
from cleave_plan.onnx_io.operators import OPERATORS, has_uncounted_matrix_work
from cleave_plan.onnx_io.order import node_label
from cleave_plan.onnx_io.parameters import constant_tensors, find_parameters, learned_tensors
from cleave_plan.onnx_io.phases import phase_of
from cleave_plan.onnx_io.reader import ModelFile, read_model
from cleave_plan.onnx_io.regions import Region
from cleave_plan.onnx_io.rules.forms import Form
from cleave_plan.onnx_io.surroundings import Surroundings, fixed_tensors, may_be_scores
from cleave_plan.onnx_io.traffic import bytes_moved
from cleave_plan.onnx_io.views import NodeView
from cleave_plan.onnx_io.walked import Walked, walked
from cleave_plan.workload.gemm import Gemm, Operand, Phase, Role
from cleave_plan.workload.graph import Level, ServerOperator, TensorInfo, UnknownWork, Workload
from cleave_plan.workload.recompute import Recomputed

if TYPE_CHECKING:
    from cleave_plan.onnx_io.chains import ChainOfNodes

OPEN = -1
"""What stands in a TensorInfo for a size that nobody bound (no GEMM depends on it)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImportedModel:
    """A model as the planner sees it (``workload``) and as the executor walks it.

    ``model``: functions inlined, nodes sorted, no external data loaded. ``nodes``: GEMM name -> its node. ``depth``: index
    in ``model.graph.node`` -> number of GEMM levels before the node: a server node of depth d runs just before the GEMMs
    of level d, the last ones have depth ``len(workload.levels)``. ``tensor_shapes`` and ``tensor_dtypes`` hold the
    tensors of the outermost graph whose shape or type is known. ``chains``: how each chain of the workload is run, by the name
    of its first GEMM.
    """

    path: Path
    workload: Workload
    model: onnx.ModelProto
    nodes: Mapping[str, onnx.NodeProto]
    depth: Mapping[int, int]
    tensor_shapes: Mapping[str, tuple[int, ...]]
    tensor_dtypes: Mapping[str, DType]
    chains: Mapping[str, ChainOfNodes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """What the caller bound."""

    dims: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]
    trips: Mapping[str, int]


def load_model(
    path: str | Path,
    *,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    trips: Mapping[str, int] | None = None,
) -> ImportedModel:
    """Read an ONNX file; weights may be external or absent and are not loaded.

    ``dims`` binds symbolic dimensions by name, ``shapes`` whole inputs by name, ``trips`` the trip counts of Loops by the name
    of their node (inside another body: its path). Raises UsageError when they name what does not exist or numbers that cannot
    be, and InputFileError when the file is no model, contradicts itself, or leaves the shape of a GEMM open for want of a
    size of an input (the error says which). Work that only the data decides is listed in ``workload.unknown``.
    """
    with paused():
        return import_model(read_model(Path(path)), dims=dims, shapes=shapes, trips=trips)


def import_model(
    file: ModelFile,
    *,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    trips: Mapping[str, int] | None = None,
) -> ImportedModel:
    """A model that is read already; arguments and errors are those of :func:`load_model`."""
    given = _Given(
        dims={name: int(size) for name, size in (dims or {}).items()},
        shapes={name: tuple(int(size) for size in sizes) for name, sizes in (shapes or {}).items()},
        trips={name: int(times) for name, times in (trips or {}).items()},
    )
    graph = file.model.graph
    bindings = bind_inputs(graph, int(file.model.ir_version), given.dims, given.shapes)
    check_trips(graph, given.trips)
    names = gradient_names(file.model)
    if names is not None:  # its parameters and statistics are inputs too, which needs no note
        fed = names.gradients.keys() | names.statistics.keys()
        bindings = replace(bindings, defaults=tuple(name for name in bindings.defaults if name not in fed))
    return _Importer(walked(file, bindings, given.trips), bindings).build(given)


class _Importer:
    """Puts the parts of one model together."""

    def __init__(self, found: Walked, bindings: Bindings) -> None:
        file, facts, self.graph = found.file, found.facts, found.file.model.graph
        self.file, self.facts, self.walk, self.origins, self.bindings = file, facts, found.walk, found.origins, bindings
        self.where = str(file.path)
        self.outputs = [value.name for value in self.graph.output[:]]
        self.shapes = {name: fact.sizes for name, fact in facts.items()}
        self.nodes = file.nodes
        self.names = unique_names(self.nodes)
        self.forms, unknown = self._forms()
        self.constants = constant_tensors(self.graph, self.nodes, bindings.inputs)
        self.learned = learned_tensors(self.graph, self.nodes, facts)
        self.inner = self._inner(found.regions)
        self.unknown = unknown + tuple(entry for work in self.inner.values() for entry in work.unknown)
        # A node whose bodies hold GEMMs runs in their level, and what reads its results in a later one.
        working = self.forms.keys() | {index for index, work in self.inner.items() if work.gemms}
        self.schedule: Schedule = schedule(self.nodes, working)
        self.sizes = {name: _bytes(fact.elem, fact.sizes) for name, fact in facts.items()}
        self.dtypes = {name: dtype for name, fact in facts.items() if (dtype := dtype_of(fact.elem)) is not None}

    def build(self, given: _Given) -> ImportedModel:
        """The imported model."""
        own = [(index, self._gemm(index, form)) for index, forms in self.forms.items() for form in forms]
        inner = [(index, self._inner_gemm(index, found)) for index, work in self.inner.items() for found in work.gemms]
        numbered = sorted(own + inner, key=lambda item: item[0])
        gemms = tuple(gemm for _, gemm in numbered)
        operators = self._server_operators()
        operands = {gemm.a.tensor for gemm in gemms} | {gemm.b.tensor for gemm in gemms}
        chains = self._chains(gemms, operators)
        parameters = find_parameters(self.graph, self.nodes, operands, self.bindings.inputs, self.file.path.parent)
        workload = Workload(
            name=self.file.path.stem,
            sha256=self.file.sha256,
            gemms=gemms,
            levels=self._levels(gemms),
            server_operators=operators,
            inputs=tuple(_info(name, fact) for name, fact in self.bindings.inputs.items()),
            outputs=tuple([_info(name, self.facts.get(name, UNKNOWN)) for name in self.outputs]),
            parameters=parameters.sizes,
            parameter_elements=parameters.elements,
            dims=given.dims,
            shapes=given.shapes,
            trips=given.trips,
            weights_present=parameters.present,
            unknown=self.unknown,
            notes=make_notes(
                operators, self.unknown, [choice for work in self.inner.values() for choice in work.choices], self.bindings,
                self.walk, self._shapeless_outputs(),
            ),
            chains=tuple(found.chain for found in chains), recompute=self._recomputed(gemms),
        )  # fmt: skip
        return ImportedModel(
            path=self.file.path,
            workload=workload,
            model=self.file.model,
            nodes={gemm.name: self.nodes[index].node for index, gemm in numbered},
            depth=dict(enumerate(self.schedule.depth)),
            tensor_shapes={name: sizes for name, sizes in self.shapes.items() if sizes is not None},
            tensor_dtypes=self.dtypes,
            chains={found.chain.gemms[0]: found for found in chains},
        )

    def _recomputed(self, gemms: tuple[Gemm, ...]) -> Recomputed | None:
        """What a gradient file says that it computes again."""
        names = gradient_names(self.file.model)
        if names is None or not names.recomputed:
            return None
        extra = sum(gemm.flop for gemm in gemms if gemm.phase is Phase.RECOMPUTE)
        return Recomputed(**names.recomputed, extra_flop=extra)

    def _forms(self) -> tuple[dict[int, tuple[Form, ...]], tuple[UnknownWork, ...]]:
        """The canonical forms of every node that holds matrix work by its rule, and the nodes whose sizes the data decides."""
        forms: dict[int, tuple[Form, ...]] = {}
        failing: dict[int, list[str]] = {}
        for index, view in enumerate(self.nodes):
            operator = OPERATORS.get((view.domain, view.op))
            if operator is None:
                continue
            node = view.node
            sizes = [self.shapes.get(name) if name else None for name in view.inputs]
            places = [place for place in operator.operands if place < len(sizes) and view.inputs[place]]
            if any(sizes[place] is None for place in places):
                failing[index] = [view.inputs[place] for place in places]
                continue
            if not view.made:
                raise InputFileError(f"{node_label(node)} has no output", where=self.where, expected="a name for its result")
            try:
                found = operator.forms(node, sizes)
                if found:
                    forms[index] = found
            except ShapeContradictionError as error:
                raise InputFileError(
                    f"{node_label(node)}: {error}",
                    where=self.where,
                    expected="operands that fit the operator",
                    remedy="bind other sizes with --dim or --shape, or export the model for these sizes",
                ) from None
        if not failing:
            return forms, ()
        diagnosis = Diagnosis(self.nodes, self.facts, self.bindings, self.walk.faults, self.where)
        return forms, tuple(
            UnknownWork(name=self.names[index], op=self.nodes[index].op, domain=self.nodes[index].domain, reason=reason)
            for index, reason in diagnosis.reasons(failing).items()
        )

    def _inner(self, regions: Mapping[str, Region]) -> dict[int, InnerWork]:
        """The matrix work inside the bodies of each node that has some."""
        if not regions:
            return {}
        around = Enclosing(names={}, constants=frozenset(self.constants), learned=frozenset(self.learned))
        place = {view.first_output: index for index, view in enumerate(self.nodes)}
        return {
            place[output]: work_inside(region, around).with_unique_names()
            for output, region in regions.items()
            if output in place
        }

    def _gemm(self, index: int, form: Form) -> Gemm:
        view = self.nodes[index]
        name = self._name(index, form)
        a = self._operand(view, form.a, form.a_dtype, f"{name}:a")
        b = self._operand(view, form.b, form.b_dtype, f"{name}:b")
        if form.b_scales:
            b = replace(b, scale_bits=self._scale_bits(view, form))
        output = view.first_output
        out_dtype = form.out_dtype or dtype_of(self.facts.get(output, UNKNOWN).elem) or a.dtype
        origin = self.origins.get(view.name) or Origin(self.names[index], view.op)
        return Gemm(
            name=name, node=origin.name, op=origin.op, phase=phase_of(view.node), shape=form.shape, window=form.window, a=a, b=b,
            output=output, out_dtype=out_dtype, level=self.schedule.depth[index], repeats=form.repeats, pinned=form.pinned,
        )  # fmt: skip

    def _scale_bits(self, view: NodeView, form: Form) -> float:
        """Bits of the scales and zero points of B for each of its elements; 0 where their sizes are not known."""
        names = [view.inputs[place] for place in form.b_scales if place < len(view.inputs) and view.inputs[place]]
        elements = form.shape.batch * form.shape.k * form.shape.n
        return 8 * sum(self.sizes.get(name) or 0 for name in names) / max(elements, 1)

    def _inner_gemm(self, index: int, found: InnerGemm) -> Gemm:
        return Gemm(
            name=found.name, node=found.node, op=found.op, phase=found.phase, shape=found.form.shape, window=found.form.window,
            a=found.a, b=found.b, output=found.output, out_dtype=found.out_dtype, level=self.schedule.depth[index],
            repeats=found.form.repeats, pinned=found.form.pinned,
        )  # fmt: skip

    def _name(self, index: int, form: Form) -> str:
        return f"{self.names[index]}/{form.part}" if form.part else self.names[index]

    def _operand(self, view: NodeView, place: int | None, dtype: DType | None, own_name: str) -> Operand:
        """The operand at ``place``, or one that the node makes itself (and of which it says the type)."""
        name = view.inputs[place or 0]
        dtype = dtype or dtype_of(self.facts[name].elem)
        if dtype is None:
            raise InputFileError(
                f"the element type of tensor {name!r}, read by {node_label(view.node)}, is not known", where=self.where,
                expected="an element type in the file (value_info)",
            )  # fmt: skip
        if place is None:
            return Operand(tensor=own_name, role=Role.ACTIVATION, dtype=dtype)
        role = Role.PARAMETER if name in self.constants else Role.ACTIVATION
        return Operand(tensor=name, role=role, dtype=dtype, learned=name in self.learned)

    def _levels(self, gemms: tuple[Gemm, ...]) -> tuple[Level, ...]:
        members: list[list[int]] = [[] for _ in range(self.schedule.levels)]
        for place, gemm in enumerate(gemms):
            members[gemm.level].append(place)
        live = live_bytes(self.graph, self.nodes, self.schedule, self.forms.keys(), self.sizes, self.constants)
        return tuple(Level(index=index, gemms=tuple(places), live_bytes=live[index]) for index, places in enumerate(members))

    def _chains(self, gemms: tuple[Gemm, ...], operators: tuple[ServerOperator, ...]) -> tuple[ChainOfNodes, ...]:
        if sum(map(may_be_scores, gemms)) < 2:  # a chain has one at either end
            return ()
        from cleave_plan.onnx_io.chains import find_chains  # with the kernels of attention, which few models need

        by_name = {gemm.name: gemm for gemm in gemms}
        single = {index: by_name[self._name(index, forms[0])] for index, forms in self.forms.items() if len(forms) == 1}
        moved = {operator.name: operator.bytes for operator in operators}
        return find_chains(
            Surroundings(
                nodes=self.nodes, outputs=frozenset(self.outputs), schedule=self.schedule,
                shapes=self.shapes, dtypes=self.dtypes, products=self.forms.keys(), gemms=single, names=self.names,
                opset=self.file.opsets.get("", 1), learned=self.learned,
                moved={index: moved[name] for index, name in enumerate(self.names) if name in moved},
                fixed=fixed_tensors(self.nodes, self.constants, self.shapes),
            )
        )  # fmt: skip

    def _shapeless_outputs(self) -> list[str]:
        facts = {name: self.facts.get(name, UNKNOWN) for name in self.outputs}
        return [name for name, fact in facts.items() if fact.shape is None and fact.other is None]

    def _server_operators(self) -> tuple[ServerOperator, ...]:
        """Every node without a form, but for Constants, which do nothing."""
        return tuple(
            [
                ServerOperator(
                    self.names[index], view.op, self.schedule.depth[index], bytes_moved(view, self.sizes), view.domain,
                    (view.domain != "" or index not in self.inner) and has_uncounted_matrix_work(view),
                )
                for index, view in enumerate(self.nodes)
                if index not in self.forms and view.op != "Constant"
            ]
        )  # fmt: skip


@cache
def _bytes(elem: int, sizes: tuple[int, ...] | None) -> int | None:
    dtype = dtype_of(elem)
    return None if dtype is None or sizes is None else dtype.bytes_of(prod(sizes))


def _info(name: str, fact: Fact) -> TensorInfo:
    dtype = dtype_of(fact.elem)
    shape = tuple(size if isinstance(size, int) else OPEN for size in fact.shape or ())
    return TensorInfo(name=name, dtype=dtype.value if dtype else "", shape=shape)
