"""Every model that can be built by name: its configuration as data, with its public source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np
import onnx

from models import bert, gpt2, llama, opt, resnet, small, vit
from models.builder import Dims, GraphBuilder, Seeded, Weightless, WeightSource

DTYPES = ("float16", "float32")
PROTOBUF_LIMIT_BYTES = 2**31 - 1


class ModelRequestError(Exception):
    """A model that cannot be built as asked; the message says what to ask instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One model: ``record`` writes its graph, ``dtype`` is what its public weights have.

    ``seeded``: weights are drawn (small models); otherwise only declared. ``max_seq``: None when there is no ``seq``.
    ``decodes``: it can be built as one decoding step over a key-value cache.
    """

    name: str
    record: Callable[[GraphBuilder], None]
    kind: str
    dtype: str
    seeded: bool
    max_seq: int | None
    source: str
    decodes: bool = False


_OPT_PAPER = "Zhang et al. 2022, arXiv:2205.01068, table 1; config.json of facebook/{} on the Hugging Face hub"
_LLAMA_PAPER = "Touvron et al. 2023, arXiv:2307.09288; config.json of meta-llama/{} on the Hugging Face hub"


def _opt(name: str, layers: int, width: int, heads: int) -> Entry:
    config = opt.OptConfig(layers=layers, width=width, heads=heads, ffn=4 * width)
    return Entry(
        name=name,
        record=partial(opt.build, config=config),
        kind="decoder",
        dtype="float16",
        seeded=False,
        max_seq=config.max_positions,
        source=_OPT_PAPER.format(name),
        decodes=True,
    )


def _llama(name: str, hub: str, layers: int, width: int, heads: int, kv_heads: int, ffn: int) -> Entry:
    config = llama.LlamaConfig(layers=layers, width=width, heads=heads, kv_heads=kv_heads, ffn=ffn)
    return Entry(
        name=name,
        record=partial(llama.build, config=config),
        kind="decoder",
        dtype="float16",
        seeded=False,
        max_seq=config.max_positions,
        source=_LLAMA_PAPER.format(hub),
        decodes=True,
    )


def _small(name: str, kind: str, record: Callable[[GraphBuilder], None], max_seq: int | None, *, decodes: bool = False) -> Entry:
    return Entry(
        name=name, record=record, kind=kind, dtype="float32", seeded=True, max_seq=max_seq, source="made here, seeded",
        decodes=decodes,
    )  # fmt: skip


_PUBLISHED = (
    _opt("opt-125m", 12, 768, 12),
    _opt("opt-1.3b", 24, 2048, 32),
    _opt("opt-6.7b", 32, 4096, 32),
    _opt("opt-13b", 40, 5120, 40),
    _opt("opt-30b", 48, 7168, 56),
    _opt("opt-66b", 64, 9216, 72),
    _llama("llama-2-7b", "Llama-2-7b-hf", 32, 4096, 32, 32, 11008),
    _llama("llama-2-13b", "Llama-2-13b-hf", 40, 5120, 40, 40, 13824),
    _llama("llama-2-70b", "Llama-2-70b-hf", 80, 8192, 64, 8, 28672),
    Entry(
        name="bert-base",
        record=partial(bert.build, config=bert.BertConfig(layers=12, width=768, heads=12, ffn=3072)),
        kind="encoder",
        dtype="float32",
        seeded=False,
        max_seq=512,
        source="Devlin et al. 2019, arXiv:1810.04805; config.json of bert-base-uncased on the Hugging Face hub",
    ),
    Entry(
        name="gpt2",
        record=partial(gpt2.build, config=gpt2.Gpt2Config(layers=12, width=768, heads=12)),
        kind="decoder",
        dtype="float32",
        seeded=False,
        max_seq=1024,
        source="Radford et al. 2019, smallest model; config.json of openai-community/gpt2 on the Hugging Face hub",
    ),
    Entry(
        name="vit-base",
        record=partial(vit.build, config=vit.VitConfig(layers=12, width=768, heads=12, ffn=3072)),
        kind="vision",
        dtype="float32",
        seeded=False,
        max_seq=None,
        source="Dosovitskiy et al. 2021, arXiv:2010.11929; config.json of google/vit-base-patch16-224 on the Hugging Face hub",
    ),
    Entry(
        name="resnet-50",
        record=partial(resnet.build, config=resnet.ResNetConfig(blocks=(3, 4, 6, 3))),
        kind="vision",
        dtype="float32",
        seeded=False,
        max_seq=None,
        source="He et al. 2015, arXiv:1512.03385, table 1, with the strides of torchvision's resnet50; batch norms folded",
    ),
)

_TINY_OPT = opt.OptConfig(layers=2, width=64, heads=4, ffn=256, vocabulary=160, max_positions=64)
_TINY_GPT = gpt2.Gpt2Config(layers=2, width=64, heads=4, vocabulary=160, max_positions=64)
_SMALL_GPT = gpt2.Gpt2Config(layers=6, width=512, heads=8, vocabulary=4096, max_positions=512)
_TINY_BERT = bert.BertConfig(layers=2, width=64, heads=4, ffn=256, vocabulary=160, max_positions=64)
_TINY_LLAMA = llama.LlamaConfig(layers=2, width=64, heads=8, kv_heads=2, ffn=176, vocabulary=160, max_positions=64)
_TINY_VIT = vit.VitConfig(layers=2, width=64, heads=4, ffn=256, image=32, patch=8, classes=10)
_CNN = small.CnnConfig(size=(32, 32), channels=3, stem=16, stages=(32, 64), groups=4)
_CNN_1D = small.CnnConfig(size=(256,), channels=2, stem=16, stages=(32, 48), groups=4)

_SEEDED = (
    _small("mlp", "perceptron", partial(small.build_mlp, config=small.MlpConfig()), None),
    _small("cnn", "vision", partial(small.build_cnn, config=_CNN), None),
    _small("cnn-1d", "signal", partial(small.build_cnn, config=_CNN_1D), None),
    _small("gpt-small", "decoder", partial(gpt2.build, config=_SMALL_GPT), _SMALL_GPT.max_positions),
    _small("gpt-tiny", "decoder", partial(gpt2.build, config=_TINY_GPT), _TINY_GPT.max_positions),
    _small("opt-tiny", "decoder", partial(opt.build, config=_TINY_OPT), _TINY_OPT.max_positions, decodes=True),
    _small("llama-tiny", "decoder", partial(llama.build, config=_TINY_LLAMA), _TINY_LLAMA.max_positions, decodes=True),
    _small("bert-tiny", "encoder", partial(bert.build, config=_TINY_BERT), _TINY_BERT.max_positions),
    _small("vit-tiny", "vision", partial(vit.build, config=_TINY_VIT), None),
)

MODELS: dict[str, Entry] = {entry.name: entry for entry in (*_PUBLISHED, *_SEEDED)}


def build(
    name: str,
    *,
    dtype: str | None = None,
    batch: int | None = None,
    seq: int | None = None,
    seed: int = 0,
    weights: str | None = None,
    decode: bool = False,
    past: int | None = None,
) -> onnx.ModelProto:
    """The ONNX model called ``name``.

    ``batch`` and ``seq`` fix the symbolic dimensions of those names; ``decode`` builds the step that adds one token for each
    sequence to a key-value cache of ``past`` tokens (graph inputs ``past_key_values.*``, outputs ``present.*``); ``dtype``
    ("float16" or "float32") and ``weights`` ("none": external data that is not written, in ``NAME.weights``; "seeded": drawn
    from ``seed``, inside the model) default to the entry's own. Raises :class:`ModelRequestError`.
    """
    if name not in MODELS:
        raise ModelRequestError(f"no model is called {name!r}; --list shows the {len(MODELS)} names")
    entry = MODELS[name]
    _check_sizes(entry, batch, seq)
    _check_decode(entry, decode, seq, past)
    drawn = entry.seeded if weights is None else weights == "seeded"
    element = np.dtype(dtype or entry.dtype)
    if drawn and not entry.seeded:
        _check_fits(entry, element)
    source: WeightSource = Seeded(seed) if drawn else Weightless(f"{name}.weights")
    if decode:
        return _record(entry, element, source, Dims(batch=batch or "batch", seq=1, past=past or "past"))
    return _record(entry, element, source, Dims(batch=batch or "batch", seq=seq or "seq"))


def parameter_count(model: onnx.ModelProto) -> int:
    """Elements of all initialisers; a tied weight is one initialiser."""
    return sum(prod(tensor.dims) for tensor in model.graph.initializer)


def _record(entry: Entry, dtype: np.dtype[np.generic], source: WeightSource, dims: Dims) -> onnx.ModelProto:
    builder = GraphBuilder(entry.name, dtype, source, dims)
    entry.record(builder)
    return builder.model()


def _check_sizes(entry: Entry, batch: int | None, seq: int | None) -> None:
    if batch is not None and batch < 1:
        raise ModelRequestError(f"batch is {batch}; it must be at least 1")
    if seq is None:
        return
    if entry.max_seq is None:
        raise ModelRequestError(f"{entry.name} has no sequence axis; leave seq out")
    if not 1 <= seq <= entry.max_seq:
        raise ModelRequestError(f"seq is {seq}; {entry.name} takes 1 to {entry.max_seq} positions")


def _check_decode(entry: Entry, decode: bool, seq: int | None, past: int | None) -> None:
    if not decode:
        if past is not None:
            raise ModelRequestError("past is the length of a decoding step's cache; ask for decode too")
        return
    if not entry.decodes:
        able = ", ".join(name for name, other in MODELS.items() if other.decodes)
        raise ModelRequestError(f"{entry.name} is not built as a decoding step; these are: {able}")
    if seq is not None:
        raise ModelRequestError("a decoding step adds one token; leave seq out")
    if past is not None and not 1 <= past < (entry.max_seq or 1):
        raise ModelRequestError(f"past is {past}; {entry.name} takes 1 to {(entry.max_seq or 1) - 1} cached positions")


def _check_fits(entry: Entry, dtype: np.dtype[np.generic]) -> None:
    """Refuse to draw more than one protobuf message can hold, before drawing any of it."""
    size = parameter_count(_record(entry, dtype, Weightless(""), Dims())) * dtype.itemsize
    if size > PROTOBUF_LIMIT_BYTES:
        raise ModelRequestError(
            f"{entry.name} in {dtype.name} has {size:,} bytes of weights and an ONNX file holds {PROTOBUF_LIMIT_BYTES:,}; "
            "leave them out (weights none)"
        )
