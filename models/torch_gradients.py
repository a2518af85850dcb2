# mypy: ignore-errors
# (torch is not installed where the types are checked: several GB for one script)
"""PyTorch models whose gradients ours are compared with, exported by both of its exporters in any element type.

``CASES`` are small members of the families that people train: an MLP, a CNN with batch norm, the shapes of ResNet-18 and
MobileNetV2, GPT-2, OPT, BERT, Llama, ViT and a T5 encoder (from the package ``transformers``), LSTM and GRU classifiers.
Each is a module from one input to logits; the loss is the cross-entropy with labels.

A float64 model is so throughout only in :func:`float64_throughout`: norms and rotations of ``transformers`` models
compute in float32 whatever the type of their input. Exporters also write factors in float32 that Python holds in float64, so the
models have factors that are exact in float32: heads of 16 elements, and a GELU of its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import nn

EXPORTERS = ("legacy", "dynamo")


@contextmanager
def float64_throughout() -> Iterator[None]:
    """While this lasts, whoever asks for float32 gets float64.

    For both what PyTorch computes and what it exports, so that they are the same function of float64 numbers.
    """
    to, single = torch.Tensor.to, torch.Tensor.float

    def doubled(asked: object) -> object:
        return torch.float64 if asked is torch.float32 else asked

    def to_double(tensor: torch.Tensor, *arguments: object, **options: object) -> torch.Tensor:
        return to(tensor, *map(doubled, arguments), **{name: doubled(value) for name, value in options.items()})

    torch.Tensor.to, torch.Tensor.float = to_double, torch.Tensor.double
    try:
        yield
    finally:
        torch.Tensor.to, torch.Tensor.float = to, single


class TanhGelu(nn.Module):
    """GPT-2's GELU, x/2 (1 + tanh(√(2/π) (x + 0.044715 x³))), with the two factors rounded to float32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Element by element."""
        outer, inner = float(np.float32(np.sqrt(2 / np.pi))), float(np.float32(0.044715))
        return 0.5 * x * (1 + torch.tanh(outer * (x + inner * x * x * x)))


def _with_exact_factors(model: nn.Module) -> nn.Module:
    """``model`` with :class:`TanhGelu` in the place of the GELU whose factors exporters round."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child).__name__ == "NewGELUActivation":
                setattr(module, name, TanhGelu())
    return model


class Last(nn.Module):
    """A ``transformers`` model as a function from its first input to its first output (of one position, if ``pooled``)."""

    def __init__(self, model: nn.Module, argument: str, *, pooled: bool = False, head: nn.Module | None = None) -> None:
        super().__init__()
        self.model, self.argument, self.pooled = model, argument, pooled
        self.head = head or nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits ``[batch, (positions,) classes]``."""
        arguments = {self.argument: x}
        if self.argument == "input_ids":  # without a mask, text models look for packed sequences, which one exporter cannot
            arguments["attention_mask"] = torch.ones_like(x)
        output = self.model(**arguments, return_dict=False)[0]
        return self.head(output.mean(1) if self.pooled else output)


class Cnn(nn.Module):
    """Convolutions with batch norm, groups, dilation and stride; pooling of three kinds; a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, (3, 5), stride=(2, 1), padding=(1, 2), bias=False), nn.BatchNorm2d(8), nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
            nn.Conv2d(8, 16, 3, padding=2, dilation=2, groups=4), nn.BatchNorm2d(16), nn.SiLU(),
            nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1),
        )  # fmt: skip
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[batch, 3, 24, 20]`` to ``[batch, 5]``."""
        return self.head(self.features(x).flatten(1))


class ResidualBlock(nn.Module):
    """ResNet's basic block: two 3 x 3 convolutions and a shortcut, by a 1 x 1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.down = None
        if stride != 1 or inputs != outputs:
            self.down = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[batch, inputs, h, w]`` to ``[batch, outputs, h / stride, w / stride]``."""
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + (x if self.down is None else self.down(x)))


class ResNet(nn.Module):
    """ResNet-18's layers at a fraction of its width."""

    def __init__(self, width: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        blocks, inputs = [], width
        for stage in range(4):
            outputs = width * 2**stage
            blocks += [ResidualBlock(inputs, outputs, 1 if stage == 0 else 2), ResidualBlock(outputs, outputs, 1)]
            inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[batch, 3, h, w]`` to ``[batch, classes]``."""
        return self.fc(torch.flatten(self.pool(self.blocks(self.stem(x))), 1))


class InvertedResidual(nn.Module):
    """MobileNetV2's block: widen, a depthwise convolution, narrow."""

    def __init__(self, inputs: int, outputs: int, stride: int, widen: int) -> None:
        super().__init__()
        hidden = inputs * widen
        layers = [nn.Conv2d(inputs, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6()] if widen != 1 else []
        layers += [nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6()]
        self.layers = nn.Sequential(*layers, nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[batch, inputs, h, w]`` to ``[batch, outputs, h / stride, w / stride]``."""
        return x + self.layers(x) if self.residual else self.layers(x)


class MobileNet(nn.Module):
    """MobileNetV2's layout at a fraction of its width and depth."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        layers = [nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6()]
        inputs = 8
        for widen, outputs, repeats, stride in ((1, 4, 1, 1), (6, 6, 2, 2), (6, 8, 2, 2), (6, 12, 1, 1)):
            for index in range(repeats):
                layers.append(InvertedResidual(inputs, outputs, stride if index == 0 else 1, widen))
                inputs = outputs
        layers += [nn.Conv2d(inputs, 32, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6()]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(32, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[batch, 3, h, w]`` to ``[batch, classes]``."""
        return self.classifier(self.features(x).mean((2, 3)))


class Recurrent(nn.Module):
    """Embedding, two recurrent layers (the first in both directions), the last step into a linear head."""

    def __init__(self, kind: type[nn.Module], classes: int = 5) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 6)
        self.first = kind(6, 7, batch_first=True, bidirectional=True)
        self.second = kind(14, 8, batch_first=True)
        self.head = nn.Linear(8, classes)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """``[batch, steps]`` to ``[batch, classes]``."""
        hidden, _ = self.second(self.first(self.embed(ids))[0])
        return self.head(hidden[:, -1])


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4))


def _gpt2() -> nn.Module:
    import transformers

    config = transformers.GPT2Config(
        vocab_size=40, n_positions=16, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False
    )
    return Last(_with_exact_factors(transformers.GPT2LMHeadModel(config)), "input_ids")


def _opt() -> nn.Module:
    import transformers

    config = transformers.OPTConfig(
        vocab_size=40, hidden_size=32, num_hidden_layers=2, ffn_dim=32, num_attention_heads=2, dropout=0,
        max_position_embeddings=16, word_embed_proj_dim=32, use_cache=False,
    )  # fmt: skip
    return Last(transformers.OPTForCausalLM(config), "input_ids")


def _bert() -> nn.Module:
    import transformers

    config = transformers.BertConfig(
        vocab_size=40, hidden_size=32, num_hidden_layers=2, intermediate_size=32, num_attention_heads=2,
        max_position_embeddings=16, hidden_dropout_prob=0, attention_probs_dropout_prob=0, num_labels=4,
    )  # fmt: skip
    return Last(transformers.BertForSequenceClassification(config), "input_ids")


def _llama() -> nn.Module:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=64, num_hidden_layers=2, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=16, use_cache=False,
    )  # fmt: skip
    return Last(transformers.LlamaForCausalLM(config), "input_ids")


def _vit() -> nn.Module:
    import transformers

    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=16,
        patch_size=4,
        num_labels=5,
    )
    return Last(transformers.ViTForImageClassification(config), "pixel_values")


def _t5() -> nn.Module:
    import transformers

    config = transformers.T5Config(
        vocab_size=40, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, dropout_rate=0, feed_forward_proj="gated-gelu",
        attn_implementation="eager",  # one exporter knows no position bias in float64
    )  # fmt: skip
    model = _with_exact_factors(transformers.T5EncoderModel(config))
    return Last(model, "input_ids", pooled=True, head=nn.Linear(16, 4))


def _ids(batch: int, length: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randint(2, 30, (batch, length))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model, how an input is drawn, and the names of that input's free axes."""

    module: Callable[[], nn.Module]
    example: Callable[[], torch.Tensor]
    axes: dict[int, str] = field(default_factory=lambda: {0: "batch"})


_TEXT = {0: "batch", 1: "seq"}

CASES: dict[str, Case] = {
    "mlp": Case(module=_mlp, example=lambda: torch.randn(6, 12)),
    "cnn": Case(module=Cnn, example=lambda: torch.randn(3, 3, 24, 20)),
    "resnet": Case(module=ResNet, example=lambda: torch.randn(2, 3, 64, 64)),
    "mobilenet": Case(module=MobileNet, example=lambda: torch.randn(2, 3, 32, 32)),
    "gpt2": Case(module=_gpt2, example=_ids(2, 7), axes=_TEXT),
    "opt": Case(module=_opt, example=_ids(2, 7), axes=_TEXT),
    "bert": Case(module=_bert, example=_ids(2, 7), axes=_TEXT),
    "llama": Case(module=_llama, example=_ids(2, 7), axes=_TEXT),
    "vit": Case(module=_vit, example=lambda: torch.randn(2, 3, 16, 16)),
    "t5": Case(module=_t5, example=_ids(2, 7), axes=_TEXT),
    "lstm": Case(module=lambda: Recurrent(nn.LSTM), example=_ids(3, 6)),
    "gru": Case(module=lambda: Recurrent(nn.GRU), example=_ids(3, 6)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What PyTorch computes: input, labels, loss, and value and gradient of every parameter by name."""

    x: np.ndarray
    labels: np.ndarray
    loss: float
    values: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]
    buffers: dict[str, np.ndarray]


def make(name: str, dtype: torch.dtype, *, training: bool = False) -> tuple[nn.Module, torch.Tensor]:
    """The module of a case with parameters and running statistics that are all different from one another, and an input."""
    torch.manual_seed(7)
    module = CASES[name].module().to(dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
        module.train()
        x = CASES[name].example()
        x = x.to(dtype) if x.is_floating_point() else x
        module(x)
    module.train(training)
    return module, x


def truth(module: nn.Module, x: torch.Tensor) -> Truth:
    """Loss (cross-entropy over the last axis) and gradients by autograd."""
    values = {name: parameter.detach().numpy().copy() for name, parameter in module.named_parameters()}
    logits = module(x)
    labels = torch.randint(0, logits.shape[-1], logits.shape[:-1])
    if labels.numel() > 4:
        labels.view(-1)[1] = -100
    loss = nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
    module.zero_grad()
    loss.backward()
    return Truth(
        x=x.numpy(), labels=labels.numpy(), loss=float(loss), values=values,
        gradients={name: p.grad.numpy() for name, p in module.named_parameters() if p.grad is not None},
        buffers={name: buffer.numpy() for name, buffer in module.named_buffers()},
    )  # fmt: skip


def export(module: nn.Module, x: torch.Tensor, case: Case, exporter: str, opset: int, path: Path) -> None:
    """Write ``module`` as ONNX; input ``x``, output ``logits``. Names of parameters stay where the exporter lets them.

    The optimizer of the dynamo exporter folds batch norms into the convolutions before them: modules that have some go without.
    """
    options: dict[str, object] = {
        "input_names": ["x"], "output_names": ["logits"], "opset_version": opset, "dynamo": exporter == "dynamo"
    }  # fmt: skip
    if exporter == "dynamo":
        normed = any(isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d) for part in module.modules())
        options |= {"dynamic_shapes": (dict(case.axes),), "external_data": False, "verbose": False, "optimize": not normed}
    else:
        mode = torch.onnx.TrainingMode.TRAINING if module.training else torch.onnx.TrainingMode.PRESERVE
        options |= {"dynamic_axes": {"x": case.axes}, "training": mode, "do_constant_folding": not module.training}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), str(path), **options)
    onnx.checker.check_model(str(path))


Take = Callable[[np.ndarray], np.ndarray]


def places(parameters: dict[str, np.ndarray], path: Path) -> dict[str, tuple[str, Take]]:
    """Where each parameter lies in a file, found by its values: (initialiser, how to take the parameter out of it).

    Exporters transpose weights, and put those of recurrent layers together in another order of gates. What they fold into
    other tensors (batch norms into convolutions) is not found.
    """
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}
    found = {}
    for name, value in parameters.items():
        for tensor, array in sorted(arrays.items(), key=lambda item: item[0] != name):
            take = next((take for take in _takes(value, array) if np.array_equal(take(array), value)), None)
            if take is not None:
                found[name] = tensor, take
                break
    return found


GATE_ORDERS = {4: (0, 2, 3, 1), 3: (1, 0, 2)}
"""PyTorch's gates in ONNX's order: (i, f, g, o) of an LSTM in (i, o, f, g), (r, z, n) of a GRU in (z, r, n)."""


def _takes(value: np.ndarray, array: np.ndarray) -> list[Take]:
    """Ways in which ``value`` might lie in ``array``."""
    takes: list[Take] = []
    if array.shape == value.shape:
        takes.append(lambda held: held)
    elif array.size == value.size and array.ndim != 2:
        takes.append(lambda held: held.reshape(value.shape))
    if array.ndim == 2 and value.ndim == 2 and array.shape == value.shape[::-1]:
        takes.append(lambda held: held.T)
    for gates, order in GATE_ORDERS.items():
        if len(value) % gates == 0 and array.ndim == value.ndim + 1 and array.shape[1] in (len(value), 2 * len(value)):
            for direction in range(array.shape[0]):
                for start in range(0, array.shape[1], len(value)):
                    takes.append(partial(_gates_of, direction=direction, start=start, length=len(value), order=order))
    return takes


def _gates_of(held: np.ndarray, *, direction: int, start: int, length: int, order: tuple[int, ...]) -> np.ndarray:
    blocks = np.split(held[direction, start : start + length], len(order))
    return np.concatenate([blocks[place] for place in order])


def largest_error(truth: Truth, gradients: dict[str, np.ndarray], where: dict[str, tuple[str, Take]]) -> float:
    """The largest error of a parameter's gradient, relative to the larger of its norm and 0.001 of the whole gradient's.

    ``gradients``: by initialiser. Parameters that were not found in the file are left out.
    """
    whole = np.sqrt(sum(float((gradient.astype(np.float64) ** 2).sum()) for gradient in truth.gradients.values()))
    errors = []
    for name, (tensor, take) in where.items():
        expected = truth.gradients[name]
        apart = np.linalg.norm(take(gradients[tensor]).astype(np.float64) - expected)
        errors.append(float(apart / max(np.linalg.norm(expected), 1e-3 * whole)))
    return max(errors)
