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
from cleave_plan.onnx_io.bindings import Bindings, bind_inputs, check_trips
from cleave_plan.onnx_io.collector import paused
from cleave_plan.onnx_io.elements import dtype_of
from cleave_plan.onnx_io.facts import UNKNOWN, Fact
from cleave_plan.onnx_io.gradient_names import gradient_names
from cleave_plan.onnx_io.levels import live_bytes, schedule
from cleave_plan.onnx_io.matrix_products import MatrixProducts, may_be_scores
from cleave_plan.onnx_io.naming import unique_names
from cleave_plan.onnx_io.notes import make_notes
from cleave_plan.onnx_io.operators import has_uncounted_matrix_work
from cleave_plan.onnx_io.parameters import find_parameters
from cleave_plan.onnx_io.reader import ModelFile, read_model
from cleave_plan.onnx_io.traffic import bytes_moved
from cleave_plan.onnx_io.walked import Walked, walked
from cleave_plan.workload.gemm import Gemm, Phase
from cleave_plan.workload.graph import Level, ServerOperator, TensorInfo, Workload
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
        self.file, self.facts, self.walk, self.bindings, self.nodes = file, facts, found.walk, bindings, file.nodes
        self.outputs = [value.name for value in self.graph.output[:]]
        self.names = unique_names(self.nodes)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.sizes: dict[str, int] = {}
        self.dtypes: dict[str, DType] = {}
        for name, fact in facts.items():
            if (dtype := dtype_of(fact.elem)) is not None:
                self.dtypes[name] = dtype
            if (sizes := fact.sizes) is not None:
                self.shapes[name] = sizes
                if (size := _bytes(fact.elem, sizes)) is not None:
                    self.sizes[name] = size
        self.products = MatrixProducts(found, bindings, self.names, self.sizes)
        self.schedule = schedule(self.nodes, self.products.working)

    def build(self, given: _Given) -> ImportedModel:
        """The imported model."""
        products = self.products
        numbered = products.numbered(self.schedule.depth)
        gemms = tuple([gemm for _, gemm in numbered])
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
            unknown=products.unknown,
            notes=make_notes(
                operators, products.unknown, [choice for work in products.inner.values() for choice in work.choices],
                self.bindings, self.walk, self._shapeless_outputs(),
            ),
            chains=tuple(found.chain for found in chains), recompute=self._recomputed(gemms),
        )  # fmt: skip
        return ImportedModel(
            path=self.file.path,
            workload=workload,
            model=self.file.model,
            nodes={gemm.name: self.nodes[index].node for index, gemm in numbered},
            depth=dict(enumerate(self.schedule.depth)),
            tensor_shapes=self.shapes,
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

    def _levels(self, gemms: tuple[Gemm, ...]) -> tuple[Level, ...]:
        members: list[list[int]] = [[] for _ in range(self.schedule.levels)]
        for place, gemm in enumerate(gemms):
            members[gemm.level].append(place)
        live = live_bytes(self.graph, self.nodes, self.schedule, self.products.forms.keys(), self.sizes, self.products.constants)
        return tuple(Level(index=index, gemms=tuple(places), live_bytes=live[index]) for index, places in enumerate(members))

    def _chains(self, gemms: tuple[Gemm, ...], operators: tuple[ServerOperator, ...]) -> tuple[ChainOfNodes, ...]:
        if sum(map(may_be_scores, gemms)) < 2:  # a chain has one at either end
            return ()
        from cleave_plan.onnx_io.chains import find_chains  # with the kernels of attention, which few models need
        from cleave_plan.onnx_io.surroundings import Surroundings, fixed_tensors

        products, by_name = self.products, {gemm.name: gemm for gemm in gemms}
        single = {index: by_name[products.name_of(index, forms[0])] for index, forms in products.forms.items() if len(forms) == 1}
        moved = {operator.name: operator.bytes for operator in operators}
        return find_chains(
            Surroundings(
                nodes=self.nodes, outputs=frozenset(self.outputs), schedule=self.schedule,
                shapes=self.shapes, dtypes=self.dtypes, products=products.forms.keys(), gemms=single, names=self.names,
                opset=self.file.opsets.get("", 1), learned=products.learned,
                moved={index: moved[name] for index, name in enumerate(self.names) if name in moved},
                fixed=fixed_tensors(self.nodes, products.constants, self.shapes),
            )
        )  # fmt: skip

    def _shapeless_outputs(self) -> list[str]:
        facts = {name: self.facts.get(name, UNKNOWN) for name in self.outputs}
        return [name for name, fact in facts.items() if fact.shape is None and fact.other is None]

    def _server_operators(self) -> tuple[ServerOperator, ...]:
        """Every node without a form, but for Constants, which do nothing."""
        names, depth, sizes, forms, inner = self.names, self.schedule.depth, self.sizes, self.products.forms, self.products.inner
        return tuple(
            [
                ServerOperator(
                    names[index], view.op, depth[index], bytes_moved(view, sizes), view.domain,
                    (view.domain != "" or index not in inner) and has_uncounted_matrix_work(view),
                )
                for index, view in enumerate(self.nodes)
                if index not in forms and view.op != "Constant"
            ]
        )  # fmt: skip


@cache
def _bytes(elem: int, sizes: tuple[int, ...]) -> int | None:
    dtype = dtype_of(elem)
    return None if dtype is None else dtype.bytes_of(prod(sizes))


def _info(name: str, fact: Fact) -> TensorInfo:
    dtype = dtype_of(fact.elem)
    shape = tuple(size if isinstance(size, int) else OPEN for size in fact.shape or ())
    return TensorInfo(name=name, dtype=dtype.value if dtype else "", shape=shape)
