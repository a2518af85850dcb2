"""From a forward model to its gradient file: the forward graph, a loss, and the gradient of every parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx
from onnx import helper

from cleave_plan.atomic import replace_file
from cleave_plan.errors import InputFileError, UsageError
from cleave_plan.onnx_io.bindings import Bindings, bind_inputs
from cleave_plan.onnx_io.constants import initialiser_facts
from cleave_plan.onnx_io.external import is_external
from cleave_plan.onnx_io.facts import Fact, type_of_fact
from cleave_plan.onnx_io.gradient.choice import choose
from cleave_plan.onnx_io.gradient.cuts import Values, choose_cuts
from cleave_plan.onnx_io.gradient.forward import prepare_batch_norms, write_forward
from cleave_plan.onnx_io.gradient.losses import LossSpec, cross_entropy, mean_squared_error, scalar_output, target_fact
from cleave_plan.onnx_io.gradient.modern import modernise
from cleave_plan.onnx_io.gradient.notes import notes_of
from cleave_plan.onnx_io.gradient.recompute import Copies, Stretch, figures_of, stretches, values_of
from cleave_plan.onnx_io.gradient.tape import Tape, paths, pruned, refuse_unknown, without_rule
from cleave_plan.onnx_io.gradient.tensor import Tensor
from cleave_plan.onnx_io.gradient.ties import retie
from cleave_plan.onnx_io.gradient.work import ORDER_MATTERS, Recomputation, work_of
from cleave_plan.onnx_io.gradient.writer import Writer
from cleave_plan.onnx_io.gradient.writtenout import can_be_written_out, written_out
from cleave_plan.onnx_io.gradient_names import GRADIENT_PREFIX, GradientNames
from cleave_plan.onnx_io.parameters import constant_tensors
from cleave_plan.onnx_io.reader import ModelFile, read_model
from cleave_plan.onnx_io.shapes import ShapeWalk
from cleave_plan.onnx_io.views import NodeView, graph_sources, views_of

IR_VERSION = 10
"""The first version of the format in which nodes carry metadata (the phase of their matrix work)."""

PRODUCER = "cleave-plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientOptions:
    """What is asked for beside the loss.

    ``only`` and ``freeze``: patterns of parameters' names (:func:`cleave_plan.onnx_io.gradient.choice.choose`). ``keep_outputs``:
    whether the forward model's outputs stay outputs. ``batch_norm``: "as-written", or "batch" to normalise by the
    batch whatever the file says. ``recompute``: compute forward values again where that lowers what is alive at once
    (:mod:`cleave_plan.onnx_io.gradient.recompute`). ``dims`` and ``shapes`` bind sizes, which are then fixed in the file.
    """

    only: Sequence[str] = ()
    freeze: Sequence[str] = ()
    keep_outputs: bool = False
    batch_norm: str = "as-written"
    recompute: bool = False
    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GradientModel:
    """A gradient file before it is written.

    ``names``: what its tensors are called; ``inputs`` those that a caller feeds; ``shapes``: of the parameters, -1 where not
    known. ``folder``: that of the forward model. ``ties``: initialisers of it that are a parameter's transpose here.
    ``constants``: floating-point initialisers without a gradient, with the reason. ``notes``: sentences that a user must see.
    ``forward_nodes`` and ``added_nodes``: how large it is. ``recomputation``: what computing forward values again changes, and
    ``segments``, the pieces of the forward pass that it works in (one where all values are kept); None and none where it was
    not asked for.
    """

    model: onnx.ModelProto
    names: GradientNames
    inputs: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]]
    folder: Path
    ties: Mapping[str, str]
    constants: Mapping[str, str]
    notes: tuple[str, ...]
    forward_nodes: int
    added_nodes: int
    recomputation: Recomputation | None = None
    segments: tuple[Stretch, ...] = ()

    def save(self, path: Path) -> GradientModel:
        """Write the file beside its place and rename it; weights beside the forward model are referred to, not copied.

        The result has a note when they do not lie beside the new file.
        """
        replace_file(path, self.model.SerializeToString())
        apart = [name for name in self._data_files() if not (path.parent / name).exists()]
        if not apart:
            return self
        note = f"the weights are not copied: {path.name} needs {', '.join(apart)} of {self.folder} beside it to be run"
        return replace(self, notes=(*self.notes, note))

    def _data_files(self) -> list[str]:
        tensors = [tensor for tensor in self.model.graph.initializer if is_external(tensor)]
        entries = [entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"]
        return list(dict.fromkeys(entries))


def gradient_model(path: Path, loss: LossSpec, options: GradientOptions) -> GradientModel:
    """Differentiate the model at ``path``; weights beside it are not read.

    Raises UsageError for names that do not exist and losses that do not fit, InputFileError for a file that is no model, an
    operator without a rule (with what depends on it), or no parameter that the loss depends on.
    """
    file = read_model(path)
    opset = modernise(file.model, str(path))
    statistics = prepare_batch_norms(file.model.graph, options.batch_norm)
    ties = retie(file.model.graph)
    file = replace(file, nodes=views_of(file.model.graph.node))
    while True:
        builder = _Builder(file, loss, options, statistics, ties)
        op_types = can_be_written_out(without_rule(builder.nodes, builder.paths), opset)
        if not op_types:
            return _with_recomputation(builder) if options.recompute else builder.build()
        file = written_out(file, op_types, builder.writer.walk, builder.writer.facts)


def _with_recomputation(builder: _Builder) -> GradientModel:
    """The gradient file that computes forward values again, or the plain one (and a note) where that spares no memory."""
    plain = builder.build()
    views, values = views_of(builder.nodes), builder.values()
    cuts = choose_cuts(views, values)
    before = work_of(plain.model, builder.file.path)
    if cuts:
        made = builder.anew(cuts, views, values).build()
        found = Recomputation(segments=len(cuts) + 1, before=before, after=work_of(made.model, builder.file.path))
        if found.worthwhile:
            return replace(made, recomputation=found, notes=(*made.notes, ORDER_MATTERS))
    kept = Recomputation(segments=1, before=before, after=before)
    whole = stretches(views, (), values, ())
    return replace(plain, recomputation=kept, segments=whole, notes=(*plain.notes, kept.sentence))


class _Builder:
    """Puts one gradient file together: ``nodes`` are the forward ones that it needs, ``paths`` what a gradient passes.

    ``recomputed``: indices of the nodes behind which segments end, chosen by what is ``weighed``: the nodes and :meth:`values` of
    a builder before it, with the outputs that rules have added; none where all values are kept.
    """

    def __init__(
        self, file: ModelFile, loss: LossSpec, options: GradientOptions, statistics: Mapping[str, str], ties: Mapping[str, str],
        recomputed: Sequence[int] = (), weighed: tuple[Sequence[NodeView], Values] | None = None,
    ) -> None:  # fmt: skip
        self.file, self.loss, self.options, self.ties = file, loss, options, ties
        self.all_statistics, self.recomputed, self.weighed = statistics, recomputed, weighed
        self.graph = file.model.graph
        self.where = str(file.path)
        self.bindings: Bindings = bind_inputs(self.graph, int(file.model.ir_version), options.dims, options.shapes)
        facts: dict[str, Fact] = initialiser_facts(self.graph, file.path) | dict(self.bindings.inputs)
        walk = ShapeWalk(opsets=file.opsets, names=self.bindings.names, path=file.path, name_all=True)
        walk.run(self.graph, facts)
        taken = set(facts) | {name for node in self.graph.node for name in (node.name, *node.output)}
        self.writer = Writer(walk, facts, taken | {value.name for value in self.graph.value_info})
        outputs = [value.name for value in self.graph.output]
        self.source = self._loss_source(outputs)
        self.kept = outputs if options.keep_outputs else []
        self.wanted, self.constants = choose(self.graph, self.bindings.inputs, options.only, options.freeze)
        self.views = views_of(self.graph.node)
        needed = pruned(self.views, {self.source, *self.kept})
        self.nodes = [self.graph.node[index] for index in needed]
        if options.recompute:  # rules add outputs to nodes, and a second builder begins with the file's
            self.nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in self.nodes]
        self.constant = constant_tensors(self.graph, self.views, self.bindings.inputs)
        self.forward_nodes = 0
        self.paths = paths(self.nodes, self.writer, self.wanted, [self.source])
        made = {name for node in self.nodes for name in node.output}
        self.statistics = {name: output for name, output in statistics.items() if output in made}

    def build(self) -> GradientModel:
        """The gradient file."""
        refuse_unknown(self.nodes, self.paths, self.wanted, self.where)
        detached = [name for name in self.wanted if name not in self.paths.tensors]
        wanted = [name for name in self.wanted if name in self.paths.tensors]
        if not wanted:
            raise InputFileError(
                f"no parameter has a gradient: the loss, taken from {self.source!r}, depends on none of them", where=self.where,
                expected="floating-point initialisers on the way to the loss", remedy="see --parameters and --output",
            )  # fmt: skip
        write_forward(self.nodes, self.writer)
        forward_nodes = self.forward_nodes = len(self.writer.nodes)
        loss, seed, target = self._loss(self.source)
        constant = self.constant.__contains__
        copies = Copies(self.nodes, self.recomputed, self.writer, constant)
        tape = Tape(nodes=self.nodes, writer=self.writer, constant=constant, where=self.where, read_from=copies.read_from)
        gradients = tape.run({self.source: seed}, wanted, self.paths)
        segments = self._segments(copies, [loss.name, *(gradients[name].name for name in wanted)])
        names = GradientNames(
            loss=self._named(loss, "loss"),
            target=target,
            gradients={name: self._named(gradients[name], f"{GRADIENT_PREFIX}{name}") for name in wanted},
            statistics=self.statistics,
            kept=tuple(self.kept),
            forward_sha256=self.file.sha256, recomputed=figures_of(segments),
        )  # fmt: skip
        model = self._model(names, wanted)
        notes = notes_of(wanted, detached, self.ties, self.nodes)
        if any(node.op_type == "BatchNormalization" for node in self.writer.nodes) and not self.statistics:
            notes.append("batch norms use their running statistics, as the file is written; --batch-norm batch trains them")
        given = {tensor.name for tensor in model.graph.initializer}
        return GradientModel(
            model=model, names=names, notes=tuple(notes), folder=self.file.path.parent, ties=self.ties,
            constants=self.constants | dict.fromkeys(detached, "the loss does not depend on it"),
            inputs=tuple(value.name for value in model.graph.input if value.name not in given),
            shapes={name: self._sizes(name) for name in wanted},
            forward_nodes=forward_nodes, added_nodes=len(model.graph.node) - forward_nodes, segments=segments,
        )  # fmt: skip

    def _segments(self, copies: Copies, ends: Sequence[str]) -> tuple[Stretch, ...]:
        """The segments with what of them is read a second time on the way to the ``ends``; none where all values are kept."""
        if self.weighed is None:
            return ()
        weighed, values = self.weighed
        views = views_of(self.writer.nodes)
        read = [copies.originals.get(views[index].first_output) for index in pruned(views, ends)]
        return stretches(weighed, self.recomputed, values, [name for name in read if name is not None])

    def values(self) -> Values:
        """What the choice of cuts sees, as the file that was built reads it."""
        read = frozenset(name for view in views_of(self.writer.nodes[self.forward_nodes :]) for name in view.reads)
        views, ends = views_of(self.nodes), frozenset((self.source, *self.kept))
        return values_of(views, self.writer, self.constant.__contains__, read, ends)

    def anew(self, recomputed: Sequence[int], views: Sequence[NodeView], values: Values) -> _Builder:
        """A builder of the same file with other segments."""
        return _Builder(self.file, self.loss, self.options, self.all_statistics, self.ties, recomputed, (views, values))

    def _loss_source(self, outputs: Sequence[str]) -> str:
        """The forward output that the loss looks at."""
        kind, _, named = self.loss.kind.partition(":")
        if kind not in ("cross-entropy", "mse", "output") or (kind == "output") != bool(named):
            raise UsageError(f"there is no loss {self.loss.kind!r}", expected="cross-entropy, mse or output:NAME")
        chosen = named or self.loss.output or outputs[0]
        if chosen not in outputs:
            raise UsageError(f"the model has no output {chosen!r}", expected=f"one of {', '.join(outputs)}")
        return chosen

    def _loss(self, source: str) -> tuple[Tensor, Tensor, str]:
        """The loss, its gradient at ``source``, and the name of the target input ("" when there is none)."""
        prediction = Tensor(self.writer, source, "loss")
        if self.loss.kind not in ("cross-entropy", "mse"):
            return *scalar_output(prediction), ""
        name = self.loss.target
        if name not in self.bindings.inputs:
            if name in self.writer.facts:
                raise UsageError(
                    f"{name!r} is a tensor of the model already", where="--target", expected="an input, or a new name"
                )
            self.writer.facts[name] = target_fact(self.loss, prediction)
            self.writer.fresh(name)
        make = cross_entropy if self.loss.kind == "cross-entropy" else lambda _, x, t: mean_squared_error(x, t)
        return *make(self.loss, prediction, Tensor(self.writer, name, "loss")), name

    def _named(self, tensor: Tensor, name: str) -> str:
        """``tensor`` under a name of its own, as an output of the graph."""
        name = self.writer.fresh(name)
        node = helper.make_node("Identity", [tensor.name], [name], name=name)
        self.writer.keep(node)
        self.writer.facts[name] = Fact(elem=tensor.elem, shape=tensor.shape)
        return name

    def _model(self, names: GradientNames, wanted: Sequence[str]) -> onnx.ModelProto:
        model, graph = onnx.ModelProto(), self.graph
        model.CopyFrom(onnx.ModelProto(opset_import=self.file.model.opset_import))
        model.ir_version = max(int(self.file.model.ir_version), IR_VERSION)
        model.producer_name = PRODUCER
        nodes = [node for node in self.writer.nodes if node.op_type == "Constant"]
        nodes += [node for node in self.writer.nodes if node.op_type != "Constant"]
        outputs = [names.loss, *names.gradients.values(), *names.statistics.values(), *names.kept]
        if self.recomputed:  # of a copy, only what a rule reads
            nodes = [nodes[index] for index in pruned(views_of(nodes), outputs)]
        model.graph.name = f"{graph.name or 'model'}.gradient"
        model.graph.node.extend(nodes)
        used = {name for view in views_of(nodes) for name in view.reads}
        model.graph.initializer.extend(tensor for tensor in graph.initializer if tensor.name in used)
        model.graph.sparse_initializer.extend(tensor for tensor in graph.sparse_initializer if tensor.values.name in used)
        inputs = [name for name in self.bindings.inputs if name in used]
        if names.target and names.target not in inputs:
            inputs.append(names.target)
        sources = graph_sources(model.graph)
        fed = [name for name in (*wanted, *names.statistics) if name in sources]
        model.graph.input.extend(self._info(name) for name in dict.fromkeys([*inputs, *fed]))
        model.graph.output.extend(self._info(name) for name in dict.fromkeys(outputs))
        names.write(model)
        return model

    def _sizes(self, name: str) -> tuple[int, ...]:
        return tuple(size if isinstance(size, int) else -1 for size in self.writer.fact(name).shape or ())

    def _info(self, name: str) -> onnx.ValueInfoProto:
        return onnx.ValueInfoProto(name=name, type=type_of_fact(self.writer.fact(name)))
