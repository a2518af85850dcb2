"""Input shapes: what the file declares, with the sizes that the caller binds.

``dims`` binds symbolic dimensions by name; ``shapes`` binds whole inputs, and through them the names that those inputs
declare. A size that stays open keeps its name (or "INPUT[AXIS]" when it has none), so that an error can say which.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx

from cleave_plan.errors import UsageError
from cleave_plan.onnx_io.facts import LARGEST, Dim, Fact, declared_dim, fact_of_type
from cleave_plan.onnx_io.naming import loop_names

# From this version of the format on, an initialiser that is listed as an input is a default that a caller may replace.
FIRST_IR_WITH_DEFAULTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Bindings:
    """Facts of the graph's inputs under the bindings.

    ``inputs`` are those that a caller has to feed, in the file's order; ``names`` the bound symbolic dimensions;
    ``origins`` says for each open dimension which input and axis it stands at (first place); ``defaults`` are the inputs
    for which the file has a value that is used, although a caller could replace it.
    """

    inputs: Mapping[str, Fact]
    names: Mapping[str, int]
    origins: Mapping[str, tuple[str, int]]
    defaults: tuple[str, ...]


def bind_inputs(
    graph: onnx.GraphProto, ir_version: int, dims: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]
) -> Bindings:
    """Bind the inputs of ``graph``.

    An initialiser that is also listed as an input is no input, unless ``shapes`` names it and the file's version lets a
    caller replace it. Raises UsageError: names that do not exist, sizes that cannot be, shapes that contradict the file
    or each other.
    """
    left_out = {tensor.name for tensor in graph.initializer[:]} | {tensor.values.name for tensor in graph.sparse_initializer[:]}
    if ir_version >= FIRST_IR_WITH_DEFAULTS:
        left_out.difference_update(shapes)
    declared = {value.name: fact_of_type(value.type) for value in graph.input[:] if value.name not in left_out}
    _check_dims(dims, graph)
    _check_shapes(shapes, declared)
    names = _names_from_shapes(declared, dims, shapes)
    inputs: dict[str, Fact] = {}
    origins: dict[str, tuple[str, int]] = {}
    for name, fact in declared.items():
        if name in shapes:
            fact = Fact(elem=fact.elem, shape=tuple(map(int, shapes[name])))
        elif fact.shape is not None and fact.sizes is None:
            bound = [names.get(size, size) if isinstance(size, str) else size for size in fact.shape]
            open_dims = tuple(f"{name}[{axis}]" if size is None else size for axis, size in enumerate(bound))
            fact = Fact(elem=fact.elem, shape=open_dims)
            for axis, size in enumerate(open_dims):
                if isinstance(size, str):
                    origins.setdefault(size, (name, axis))
        inputs[name] = fact
    has_defaults = ir_version >= FIRST_IR_WITH_DEFAULTS
    defaults = [value.name for value in graph.input[:] if value.name not in declared] if has_defaults else []
    return Bindings(inputs=inputs, names=names, origins=origins, defaults=tuple(defaults))


def check_trips(graph: onnx.GraphProto, trips: Mapping[str, int]) -> None:
    """Raise UsageError when ``trips`` names no Loop of the model, or a number of iterations that cannot be."""
    existing = dict.fromkeys(loop_names(graph)) if trips else {}
    for name, times in trips.items():
        where = f"--trip {name}={times}"
        if name not in existing:
            expected = f"one of {', '.join(existing)}" if existing else "none: this model has no Loop"
            raise UsageError(f"the model has no Loop {name!r}", where=where, expected=expected)
        if not 0 <= times <= LARGEST:
            raise UsageError(f"Loop {name!r} is bound to {times} iterations", where=where, expected="a number of 0 or more")


def _check_dims(dims: Mapping[str, int], graph: onnx.GraphProto) -> None:
    if not dims:
        return
    existing = list(dict.fromkeys(_symbols(graph.input)))
    # Sizes that depend on the data have names in the inner tensors only.
    hidden = set(_symbols(graph.value_info)) | set(_symbols(graph.output))
    made = {output for node in graph.node[:] for output in node.output[:]} if any("[" in name for name in dims) else set()
    for name, size in dims.items():
        where = f"--dim {name}={size}"
        if name not in existing and name not in hidden and not _is_inner(name, made):
            expected = f"one of {', '.join(existing)}" if existing else "none: every dimension of this model's inputs has a size"
            raise UsageError(f"the model has no dimension {name!r}", where=where, expected=expected)
        if not 0 < size <= LARGEST:
            raise UsageError(f"dimension {name!r} is bound to {size}", where=where, expected="a size of 1 or more")


def _is_inner(name: str, made: set[str]) -> bool:
    """Whether ``name`` is TENSOR[AXIS] of a tensor that a node makes."""
    tensor, bracket, axis = name.removesuffix("]").rpartition("[")
    return bool(bracket) and name.endswith("]") and axis.isdigit() and tensor in made


def _symbols(values: Iterable[onnx.ValueInfoProto]) -> Iterable[str]:
    for value in values:
        for dim in value.type.tensor_type.shape.dim[:]:
            size = declared_dim(dim)
            if isinstance(size, str):
                yield size


def _check_shapes(shapes: Mapping[str, tuple[int, ...]], declared: Mapping[str, Fact]) -> None:
    for name, sizes in shapes.items():
        if name not in declared:
            expected = f"one of {', '.join(declared)}" if declared else "none: this model has no inputs"
            raise UsageError(f"the model has no input {name!r}", where=_option(name, sizes), expected=expected)
        if sizes and (min(sizes) < 0 or max(sizes) > LARGEST):
            where = _option(name, sizes)
            raise UsageError("a size is below 0 or beyond all bounds", where=where, expected="sizes of 0 or more")
        fact = declared[name]
        if fact.other is not None:
            raise UsageError(f"input {name!r} is not a tensor", where=_option(name, sizes))
        if fact.shape is not None and fact.shape != sizes and not _agrees(fact.shape, sizes):
            text = "x".join("?" if size is None else str(size) for size in fact.shape)
            where, expected = _option(name, sizes), f"a shape of the form {text or '(a scalar)'}"
            raise UsageError("the shape contradicts the file", where=where, expected=expected)


def _option(name: str, sizes: tuple[int, ...]) -> str:
    return f"--shape {name}={'x'.join(map(str, sizes))}"


def _agrees(declared: tuple[Dim, ...], sizes: tuple[int, ...]) -> bool:
    return len(declared) == len(sizes) and all(
        not isinstance(size, int) or size == bound for size, bound in zip(declared, sizes, strict=True)
    )


def _names_from_shapes(
    declared: Mapping[str, Fact], dims: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, int]:
    """``dims`` and the sizes that ``shapes`` gives to symbolic dimensions of the inputs it names."""
    names = {name: int(size) for name, size in dims.items()}
    source = dict.fromkeys(names, "--dim")
    for input_name, sizes in shapes.items():
        for dim, size in zip(declared[input_name].shape or (), sizes, strict=False):
            if not isinstance(dim, str):
                continue
            if names.setdefault(dim, int(size)) != size:
                raise UsageError(
                    f"dimension {dim!r} is bound to {size} by --shape {input_name}, and to {names[dim]} by {source[dim]}",
                    expected="one size for each name",
                )  # fmt: skip
            source.setdefault(dim, f"--shape {input_name}")
    return names
