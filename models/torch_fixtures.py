# mypy: ignore-errors
# (torch is not installed where the types are checked: several GB for one script)
"""Makes ``tests/fixtures/torch``: small PyTorch models as both of its exporters write them, with inputs and outputs.

    python -m models.torch_fixtures [-o FOLDER]

Needs torch, onnx and onnxscript at the versions of ``REQUIREMENTS`` (`make test-long` installs them apart from
everything else). Each model gives ``NAME-legacy.onnx`` (tracing, ``dynamo=False``), ``NAME-dynamo.onnx``
(``dynamo=True``) and ``NAME.npz``: ``input.X`` for each input and ``output`` as PyTorch computes it; ``target``, the ``loss``
(cross-entropy with labels over the last axis, or the mean squared error) and its ``gradient.P`` for each parameter P by autograd;
``tensors.EXPORTER``, which initialiser holds which parameter ("initialiser=P", or "initialiser=P^T" when it is transposed;
what the exporter folded into another tensor is left out).
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import nn

REQUIREMENTS = ("torch==2.13.0", "onnxscript==0.7.2")
FOLDER = Path(__file__).parent.parent / "tests" / "fixtures" / "torch"
EXPORTERS = ("legacy", "dynamo")
OPSET = {"legacy": 17, "dynamo": 18}  # the lowest that either writes without a conversion


class Cnn(nn.Module):
    """Convolutions with batch norm, stride, groups and dilation; not square, and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, (3, 5), stride=(2, 1), padding=(1, 2), bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, padding=2, dilation=2, groups=4),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, stride=2, padding=1, groups=16),
            nn.ReLU(),
        )
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[batch, 3, 20, 12]`` to ``[batch, 5]``."""
        return self.head(self.features(x).mean((2, 3)))


class Mlp(nn.Module):
    """Linear layers (Gemm with transB), and one product with the transposed activation on the left."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(24, 48)
        self.fc2 = nn.Linear(48, 16)
        self.bias = nn.Parameter(torch.randn(16) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[batch, 24]`` to ``[16, 16]``: a scaled Gram matrix of the hidden layer."""
        hidden = self.fc2(torch.relu(self.fc1(x)))
        return torch.addmm(self.bias, hidden.t(), hidden, beta=0.5, alpha=0.25)


class Encoder(nn.Module):
    """Two transformer encoder layers with their own attention, so that both exporters write plain operators."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, width)
        self.heads = heads
        self.layers = nn.ModuleList(EncoderLayer(width, heads) for _ in range(2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """``[batch, seq]`` to ``[batch, seq, 32]``."""
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return x


class EncoderLayer(nn.Module):
    """Norm, fused q, k, v, attention, residual; norm, GELU feed-forward, residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[batch, seq, width]`` to the same."""
        batch, seq, width = x.shape
        shape = (batch, seq, 3, self.heads, width // self.heads)
        q, k, v = self.qkv(self.norm1(x)).reshape(shape).permute(2, 0, 3, 1, 4).unbind(0)
        scores = torch.softmax(q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5, dim=-1)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(batch, seq, width))
        return x + self.fc2(nn.functional.gelu(self.fc1(self.norm2(x))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixture:
    """One model, the input it is run with, and the names of that input's free axes."""

    name: str
    module: Callable[[], nn.Module]
    input: str
    example: Callable[[], torch.Tensor]
    axes: dict[int, str]
    loss: str = "cross-entropy"


FIXTURES = (
    Fixture(name="cnn", module=Cnn, input="x", example=lambda: torch.randn(2, 3, 20, 12), axes={0: "batch"}),
    Fixture(name="mlp", module=Mlp, input="x", example=lambda: torch.randn(6, 24), axes={0: "batch"}, loss="mse"),
    Fixture(
        name="encoder",
        module=Encoder,
        input="ids",
        example=lambda: torch.randint(0, 50, (2, 7)),
        axes={0: "batch", 1: "seq"},
    ),
)


def make(folder: Path) -> list[Path]:
    """Write every fixture into ``folder``; returns the files. The same versions of torch write the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    return [path for fixture in FIXTURES for path in _make_one(fixture, folder)]


def _make_one(fixture: Fixture, folder: Path) -> list[Path]:
    torch.manual_seed(20)
    module = fixture.module()
    _settle(module, fixture)
    example = fixture.example()
    values = folder / f"{fixture.name}.npz"
    paths = [values]
    held = {}
    for exporter in EXPORTERS:
        path = folder / f"{fixture.name}-{exporter}.onnx"
        _export(module, fixture, example, exporter, path)
        _strip(path)
        paths.append(path)
        held[f"tensors.{exporter}"] = np.array(_tensors(module, path))
    np.savez(values, **{f"input.{fixture.input}": example.numpy()}, **_truth(module, fixture, example), **held)
    return paths


def _truth(module: nn.Module, fixture: Fixture, example: torch.Tensor) -> dict[str, np.ndarray]:
    """Output, target, loss and gradients."""
    output = module(example)
    if fixture.loss == "mse":
        target = torch.randn_like(output)
        loss = nn.functional.mse_loss(output, target)
    else:
        target = torch.randint(0, output.shape[-1], output.shape[:-1])
        loss = nn.functional.cross_entropy(output.reshape(-1, output.shape[-1]), target.reshape(-1))
    loss.backward()
    gradients = {f"gradient.{name}": parameter.grad.numpy() for name, parameter in module.named_parameters()}
    return {"output": output.detach().numpy(), "target": target.numpy(), "loss": loss.detach().numpy(), **gradients}


def _tensors(module: nn.Module, path: Path) -> list[str]:
    """Where each parameter lies in a file, found by its values (exporters rename, transpose and fold)."""
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}
    found = []
    for name, parameter in module.named_parameters():
        value = parameter.detach().numpy()
        same = [tensor for tensor, array in arrays.items() if np.array_equal(array, value)]
        turned = [tensor for tensor, array in arrays.items() if np.array_equal(array, value.T)]
        if same:
            found.append(f"{name if name in same else same[0]}={name}")
        elif turned:
            found.append(f"{turned[0]}={name}^T")
    return found


def _settle(module: nn.Module, fixture: Fixture) -> None:
    """Make all parameters differ (exporters merge equal ones, such as the scales of fresh norms), give batch norms running
    statistics that are not 0 and 1, and leave training mode."""
    module.train()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
        module(fixture.example())
    module.eval()


def _export(module: nn.Module, fixture: Fixture, example: torch.Tensor, exporter: str, path: Path) -> None:
    options: dict[str, object] = {
        "input_names": [fixture.input],
        "output_names": ["output"],
        "opset_version": OPSET[exporter],
        "dynamo": exporter == "dynamo",
    }
    if exporter == "dynamo":
        options |= {"dynamic_shapes": [dict(fixture.axes)], "external_data": False, "verbose": False}
    else:
        # PRESERVE keeps the batch norms, which EVAL would fold into the convolutions.
        options |= {"dynamic_axes": {fixture.input: fixture.axes}, "training": torch.onnx.TrainingMode.PRESERVE}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the legacy exporter announces its retirement
        torch.onnx.export(module, (example,), str(path), **options)


def _strip(path: Path) -> None:
    """Remove what tells of the machine: source positions, stack traces, free text."""
    model = onnx.load(path)
    holders = [model, model.graph, *model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output]
    for holder in (*holders, *model.graph.initializer, *model.functions):
        holder.doc_string = ""
        if "metadata_props" in holder.DESCRIPTOR.fields_by_name:
            del holder.metadata_props[:]
    path.write_bytes(model.SerializeToString(deterministic=True))


def main() -> None:
    """Write the fixtures and say how large they are."""
    parser = argparse.ArgumentParser(prog="python -m models.torch_fixtures", description="Write tests/fixtures/torch.")
    parser.add_argument("-o", "--output", type=Path, default=FOLDER, metavar="FOLDER")
    for path in make(parser.parse_args().output):
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
