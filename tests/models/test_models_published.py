"""Published architectures: sizes against published numbers, FLOP against closed formulas, and the form of the files."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import prod
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, numpy_helper, shape_inference

from models.registry import MODELS, build, parameter_count

PUBLISHED = [name for name, entry in MODELS.items() if not entry.seeded]

# Where a number stands in public text the source is named; the three OPT sizes above 6.7B are published rounded only
# ("13B", "30B", "66B", arXiv:2205.01068), and test_opt_by_hand adds them up from the public configurations.
PARAMETERS = {
    "opt-125m": 125_239_296,  # PyTorch's numel() over facebook/opt-125m, quoted in Intel Neural Compressor's pruning guide
    "opt-1.3b": 1_315_758_080,  # the same over facebook/opt-1.3b, quoted in public fine-tuning code
    "opt-6.7b": 6_658_473_984,
    "opt-13b": 12_853_473_280,
    "opt-30b": 29_974_540_288,
    "opt-66b": 65_719_701_504,
    "llama-2-7b": 6_738_415_616,  # KerasHub's preset of the Llama 7B architecture
    "llama-2-13b": 13_015_864_320,  # a Llama-2-13b checkpoint converted by DeepSpeed, in AMD's fine-tuning guide
    "llama-2-70b": 68_976_648_192,  # "#Orig. Params" of Llama-2 70B in the LoRAM paper's tables
    "bert-base": 109_482_240,  # BertModel of bert-base-uncased, pooler included, as Transformers prints it
    "gpt2": 124_439_808,  # GPT2LMHeadModel of gpt2, as Transformers prints it
    "vit-base": 86_567_656,  # num_params of vit_b_16 in torchvision
    # num_params of resnet50 in torchvision is 25,557,032; folding leaves one of the two per channel of its batch norms, which
    # have 26,560 channels (test_resnet_by_hand).
    "resnet-50": 25_557_032 - 26_560,
}


@cache
def published(name: str) -> onnx.ModelProto:
    """Built once per run."""
    return build(name)


def structure(name: str, batch: int, seq: int | None) -> onnx.ModelProto:
    """The model with its dimensions fixed and all shapes inferred by onnx, weights unread."""
    return shape_inference.infer_shapes(build(name, batch=batch, seq=seq), strict_mode=True, data_prop=True)


def products(model: onnx.ModelProto) -> Iterator[tuple[str, int]]:
    """Every MatMul, Gemm and Conv with its multiply-adds: elements of the result times the length of each sum."""
    shapes = {t.name: tuple(t.dims) for t in model.graph.initializer}
    for info in (*model.graph.value_info, *model.graph.input, *model.graph.output):
        shapes[info.name] = tuple(d.dim_value for d in info.type.tensor_type.shape.dim)
    for node in model.graph.node:
        if node.op_type in ("MatMul", "Gemm"):
            yield node.name, prod(shapes[node.output[0]]) * shapes[node.input[0]][-1]
        elif node.op_type == "Conv":
            yield node.name, prod(shapes[node.output[0]]) * prod(shapes[node.input[1]][1:])


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_equal_the_published_number(name: str) -> None:
    """Initialisers hold exactly the published parameters: tied weights once, biases, norms and positions included."""
    assert parameter_count(published(name)) == PARAMETERS[name]


@pytest.mark.parametrize(
    ("name", "layers", "width"),
    [
        ("opt-125m", 12, 768), ("opt-1.3b", 24, 2048), ("opt-6.7b", 32, 4096),
        ("opt-13b", 40, 5120), ("opt-30b", 48, 7168), ("opt-66b", 64, 9216),
    ],
)  # fmt: skip
def test_opt_by_hand(name: str, layers: int, width: int) -> None:
    """Words and 2050 positions; per layer four square matrices, two of four squares, their biases, two norms; a last norm."""
    tables = 50272 * width + 2050 * width
    matrices = 4 * (width * width + width) + (4 * width * width + 4 * width) + (4 * width * width + width)
    assert tables + layers * (matrices + 2 * 2 * width) + 2 * width == PARAMETERS[name]


@pytest.mark.parametrize(
    ("name", "layers", "width", "kv", "ffn"),
    [
        ("llama-2-7b", 32, 4096, 4096, 11008),
        ("llama-2-13b", 40, 5120, 5120, 13824),
        ("llama-2-70b", 80, 8192, 1024, 28672),
    ],
)
def test_llama_by_hand(name: str, layers: int, width: int, kv: int, ffn: int) -> None:
    """Two vocabulary tables; per layer q and out, narrower k and v, three feed-forward matrices, two norms; a last norm."""
    layer = 2 * width * width + 2 * width * kv + 3 * width * ffn + 2 * width
    assert 2 * 32000 * width + layers * layer + width == PARAMETERS[name]


def test_resnet_by_hand() -> None:
    """A 7 x 7 stem; per block 1 x 1, 3 x 3, 1 x 1 and at each stage's begin a projection; a bias per channel; the classifier."""
    weights, channels = 7 * 7 * 3 * 64, 64
    before = 64
    for inner, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        outer = 4 * inner
        weights += before * inner + outer * before + (blocks - 1) * outer * inner + blocks * (9 * inner * inner + inner * outer)
        channels += outer + blocks * (2 * inner + outer)
        before = outer
    assert channels == 26_560
    assert weights + channels + 2048 * 1000 + 1000 == PARAMETERS["resnet-50"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_file_is_small_and_weightless(name: str) -> None:
    """Every weight is declared with shape, type, place and length, without overlap, and no values are inside."""
    model = published(name)
    end = 0
    for tensor in model.graph.initializer:
        facts = {entry.key: entry.value for entry in tensor.external_data}
        assert tensor.data_location == TensorProto.EXTERNAL
        assert not tensor.raw_data
        assert facts["location"] == f"{name}.weights"
        assert int(facts["offset"]) >= end
        item = 2 if tensor.data_type == TensorProto.FLOAT16 else 4
        assert int(facts["length"]) == prod(tensor.dims) * item
        end = int(facts["offset"]) + int(facts["length"])
    assert model.ByteSize() < 700_000


@pytest.mark.parametrize("name", PUBLISHED)
def test_checker_accepts(name: str, tmp_path: Path) -> None:
    """onnx.checker finds a well-formed model (it wants the weights file to exist, and an empty one will do)."""
    path = tmp_path / f"{name}.onnx"
    path.write_bytes(published(name).SerializeToString())
    (tmp_path / f"{name}.weights").touch()
    onnx.checker.check_model(path)


@pytest.mark.parametrize("name", PUBLISHED)
def test_free_dimensions_are_called_batch_and_seq(name: str) -> None:
    """Inputs and outputs start with `batch`, text has `seq` next, and nothing else is symbolic."""
    model = published(name)
    for info in (*model.graph.input, *model.graph.output):
        dims = [d.dim_param or d.dim_value for d in info.type.tensor_type.shape.dim]
        assert dims[0] == "batch"
        text = MODELS[name].max_seq is not None and info.name != "pooler_output"
        assert [d for d in dims if isinstance(d, str)] == (["batch", "seq"] if text else ["batch"])


def test_dimensions_can_be_fixed() -> None:
    """`batch` and `seq` given as numbers leave nothing symbolic."""
    model = build("gpt2", batch=3, seq=17)
    assert [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == [3, 17]
    assert [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim] == [3, 17, 50257]


@pytest.mark.parametrize(
    ("name", "layers", "width", "ffn"), [("opt-125m", 12, 768, 3072), ("opt-13b", 40, 5120, 20480), ("opt-66b", 64, 9216, 36864)]
)
def test_opt_multiply_adds(name: str, layers: int, width: int, ffn: int) -> None:
    """batch · seq · (4·d² + 2·d·ffn + 2·seq·d) per layer, and the head."""
    batch, seq = 128, 1024
    expected = batch * seq * (layers * (4 * width**2 + 2 * width * ffn + 2 * seq * width) + width * 50272)
    assert sum(macs for _, macs in products(structure(name, batch, seq))) == expected


@pytest.mark.parametrize(
    ("name", "layers", "width", "kv", "ffn"), [("llama-2-7b", 32, 4096, 4096, 11008), ("llama-2-70b", 80, 8192, 1024, 28672)]
)
def test_llama_multiply_adds(name: str, layers: int, width: int, kv: int, ffn: int) -> None:
    """Sharing key-value heads makes k and v narrower and leaves scores and context as they are."""
    batch, seq = 4, 512
    expected = batch * seq * (layers * (2 * width**2 + 2 * width * kv + 3 * width * ffn + 2 * seq * width) + width * 32000)
    assert sum(macs for _, macs in products(structure(name, batch, seq))) == expected


def test_vit_multiply_adds() -> None:
    """196 patches of 768 values, 197 tokens in 12 layers, one head row: 17.56·10⁹ per image, as torchvision gives it."""
    tokens, width = 197, 768
    layers = 12 * tokens * (12 * width**2 + 2 * tokens * width)
    total = sum(macs for _, macs in products(structure("vit-base", 1, None)))
    assert total == 196 * 768 * width + layers + width * 1000
    assert round(total / 1e9, 2) == 17.56


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("opt-13b", "attention.q attention.k attention.v attention.scores attention.context attention.out mlp.fc1 mlp.fc2"),
        ("bert-base", "attention.q attention.k attention.v attention.scores attention.context attention.out mlp.fc1 mlp.fc2"),
        ("gpt2", "attention.c_attn attention.scores attention.context attention.c_proj mlp.c_fc mlp.c_proj"),
        (
            "llama-2-70b",
            "attention.q attention.k attention.v attention.scores attention.context attention.out mlp.gate mlp.up mlp.down",
        ),
    ],
)
def test_products_have_names_that_say_what_they_are(name: str, layer: str) -> None:
    """`layers.7.attention.q`: the GEMM table is read by people."""
    names = [node.name for node in published(name).graph.node if node.op_type in ("MatMul", "Gemm", "Conv")]
    assert [n.removeprefix("layers.7.") for n in names if n.startswith("layers.7.")] == layer.split()
    assert names[-1] == ("pooler" if name == "bert-base" else "head")


def test_grouped_queries_share_a_key_head() -> None:
    """Llama-2 70B keys are ``[batch, 8, 1, size, seq]`` beside queries ``[batch, 8, 8, seq, size]``: one head for eight."""
    model = structure("llama-2-70b", 2, 16)
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.value_info}
    scores = next(node for node in model.graph.node if node.name == "layers.0.attention.scores")
    assert [shapes[name] for name in scores.input] == [[2, 8, 8, 16, 128], [2, 8, 1, 128, 16]]


@pytest.mark.parametrize("name", ["opt-125m", "gpt2"])
def test_tied_head_reads_the_embedding_table(name: str) -> None:
    """The head is a Gemm with transB on the table that Gather reads: one initialiser, no copy."""
    model = published(name)
    head = next(node for node in model.graph.node if node.name == "head")
    gather = next(node for node in model.graph.node if node.op_type == "Gather")
    assert head.op_type == "Gemm"
    assert head.input[1] == gather.input[0]


def test_only_standard_operators_of_opset_17() -> None:
    """No other domain, and nothing that a runtime of 2022 lacks."""
    for name in PUBLISHED:
        model = published(name)
        assert [(o.domain, o.version) for o in model.opset_import] == [("", 17)]
        assert {node.domain for node in model.graph.node} == {""}


def test_constants_are_not_parameters() -> None:
    """Scalars and shapes are Constant nodes, each value once."""
    values = [numpy_helper.to_array(n.attribute[0].t) for n in published("opt-66b").graph.node if n.op_type == "Constant"]
    assert len({(v.dtype.str, v.shape, v.tobytes()) for v in values}) == len(values) < 20
