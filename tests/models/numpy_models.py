"""The small models once more, in plain NumPy: one example, one head at a time, float64. The oracle of the ONNX graphs.

Each function takes the weights by initialiser name and one example (ids ``[seq]`` or pixels), and follows the
architecture's public description, not the builder: explicit loops over heads and positions instead of reshapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import erf, sqrt

import numpy as np

Array = np.ndarray
Weights = Mapping[str, Array]


def softmax(row: Array) -> Array:
    """Of one row."""
    powers = np.exp(row - row.max())
    return powers / powers.sum()


def layer_norm(w: Weights, name: str, x: Array, epsilon: float) -> Array:
    """Over the last axis."""
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * w[f"{name}.weight"] + w[f"{name}.bias"]


def rms_norm(w: Weights, name: str, x: Array) -> Array:
    """Over the last axis."""
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w[f"{name}.weight"]


def dense(w: Weights, name: str, x: Array) -> Array:
    """``x @ weight [in, out] + bias``, the bias where there is one."""
    return x @ w[f"{name}.weight"] + w.get(f"{name}.bias", 0.0)


def one_head(q: Array, k: Array, v: Array, visible: Array) -> Array:
    """Attention of one head: row i of the answer from the positions j with ``visible[i, j]``."""
    out = np.zeros_like(q)
    for i in range(len(q)):
        seen = np.flatnonzero(visible[i])
        out[i] = softmax(np.array([q[i] @ k[j] for j in seen]) / sqrt(q.shape[1])) @ v[seen]
    return out


def many_heads(q: Array, k: Array, v: Array, heads: int, visible: Array) -> Array:
    """Heads side by side along the width."""
    parts = [np.split(matrix, heads, axis=1) for matrix in (q, k, v)]
    return np.concatenate([one_head(*head, visible) for head in zip(*parts, strict=True)], axis=1)


def separate_attention(w: Weights, name: str, x: Array, heads: int, visible: Array) -> Array:
    """With matrices q, k, v and out."""
    q, k, v = (dense(w, f"{name}.{part}", x) for part in "qkv")
    return dense(w, f"{name}.out", many_heads(q, k, v, heads, visible))


def causal(length: int) -> Array:
    """Each position sees itself and what came before."""
    return np.tril(np.ones((length, length), bool))


def gelu(x: Array) -> Array:
    """With the exact error function."""
    return x * 0.5 * (1 + np.vectorize(erf)(x / sqrt(2)))


def opt(w: Weights, ids: Array, *, layers: int, heads: int) -> Array:
    """Logits ``[seq, vocabulary]``."""
    x = w["embed_tokens.weight"][ids] + w["embed_positions.weight"][2 : 2 + len(ids)]
    for layer in range(layers):
        at = f"layers.{layer}"
        normed = layer_norm(w, f"{at}.attention_norm", x, 1e-5)
        x = x + separate_attention(w, f"{at}.attention", normed, heads, causal(len(ids)))
        hidden = np.maximum(dense(w, f"{at}.mlp.fc1", layer_norm(w, f"{at}.mlp_norm", x, 1e-5)), 0)
        x = x + dense(w, f"{at}.mlp.fc2", hidden)
    return layer_norm(w, "final_norm", x, 1e-5) @ w["embed_tokens.weight"].T


def gpt2(w: Weights, ids: Array, *, layers: int, heads: int) -> Array:
    """Logits ``[seq, vocabulary]``."""
    x = w["wte.weight"][ids] + w["wpe.weight"][: len(ids)]
    for layer in range(layers):
        at = f"layers.{layer}"
        q, k, v = np.split(dense(w, f"{at}.attention.c_attn", layer_norm(w, f"{at}.ln_1", x, 1e-5)), 3, axis=1)
        x = x + dense(w, f"{at}.attention.c_proj", many_heads(q, k, v, heads, causal(len(ids))))
        wide = dense(w, f"{at}.mlp.c_fc", layer_norm(w, f"{at}.ln_2", x, 1e-5))
        bent = wide * 0.5 * (1 + np.tanh(sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))
        x = x + dense(w, f"{at}.mlp.c_proj", bent)
    return layer_norm(w, "ln_f", x, 1e-5) @ w["wte.weight"].T


def rotary(x: Array) -> Array:
    """Positions turn the pairs (j, j + size/2) of one head ``[seq, size]`` as complex numbers."""
    half = x.shape[1] // 2
    angle = np.outer(np.arange(len(x)), 10000.0 ** (-np.arange(half) / half))
    turned = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * angle)
    return np.concatenate([turned.real, turned.imag], axis=1)


def llama(w: Weights, ids: Array, *, layers: int, heads: int, kv_heads: int) -> Array:
    """Logits ``[seq, vocabulary]``; query head h reads key-value head h // (heads / kv_heads)."""
    x = w["embed_tokens.weight"][ids]
    for layer in range(layers):
        at = f"layers.{layer}"
        normed = rms_norm(w, f"{at}.attention_norm", x)
        queries = np.split(dense(w, f"{at}.attention.q", normed), heads, axis=1)
        keys = np.split(dense(w, f"{at}.attention.k", normed), kv_heads, axis=1)
        values = np.split(dense(w, f"{at}.attention.v", normed), kv_heads, axis=1)
        context = []
        for head, query in enumerate(queries):
            kv = head * kv_heads // heads
            context.append(one_head(rotary(query), rotary(keys[kv]), values[kv], causal(len(ids))))
        x = x + dense(w, f"{at}.attention.out", np.concatenate(context, axis=1))
        normed = rms_norm(w, f"{at}.mlp_norm", x)
        gate = dense(w, f"{at}.mlp.gate", normed)
        x = x + dense(w, f"{at}.mlp.down", gate / (1 + np.exp(-gate)) * dense(w, f"{at}.mlp.up", normed))
    return dense(w, "head", rms_norm(w, "final_norm", x))


def bert(w: Weights, ids: Array, types: Array, present: Array, *, layers: int, heads: int) -> tuple[Array, Array]:
    """``last_hidden_state [seq, width]`` and ``pooler_output [width]``."""
    x = w["embeddings.word.weight"][ids] + w["embeddings.token_type.weight"][types]
    x = layer_norm(w, "embeddings.norm", x + w["embeddings.position.weight"][: len(ids)], 1e-12)
    visible = np.tile(present.astype(bool), (len(ids), 1))
    for layer in range(layers):
        at = f"layers.{layer}"
        attended = separate_attention(w, f"{at}.attention", x, heads, visible)
        x = layer_norm(w, f"{at}.attention_norm", x + attended, 1e-12)
        hidden = gelu(dense(w, f"{at}.mlp.fc1", x))
        x = layer_norm(w, f"{at}.mlp_norm", x + dense(w, f"{at}.mlp.fc2", hidden), 1e-12)
    return x, np.tanh(w["pooler.weight"] @ x[0] + w["pooler.bias"])


def vit(w: Weights, pixels: Array, *, layers: int, heads: int, patch: int) -> Array:
    """Logits ``[classes]`` of ``pixels [3, side, side]``; patches row by row."""
    kernel = w["embeddings.patch.weight"]
    tokens = [w["embeddings.class_token"][0, 0]]
    for top in range(0, pixels.shape[1], patch):
        for left in range(0, pixels.shape[2], patch):
            window = pixels[:, top : top + patch, left : left + patch]
            tokens.append((kernel * window).sum((1, 2, 3)) + w["embeddings.patch.bias"])
    x = np.stack(tokens) + w["embeddings.positions"][0]
    everything = np.ones((len(x), len(x)), bool)
    for layer in range(layers):
        at = f"layers.{layer}"
        normed = layer_norm(w, f"{at}.attention_norm", x, 1e-12)
        x = x + separate_attention(w, f"{at}.attention", normed, heads, everything)
        hidden = gelu(dense(w, f"{at}.mlp.fc1", layer_norm(w, f"{at}.mlp_norm", x, 1e-12)))
        x = x + dense(w, f"{at}.mlp.fc2", hidden)
    return w["head.weight"] @ layer_norm(w, "final_norm", x, 1e-12)[0] + w["head.bias"]


def mlp(w: Weights, x: Array, *, hidden: int) -> Array:
    """Logits of one vector, through ``hidden`` ReLU layers."""
    for layer in range(1, hidden + 1):
        x = np.maximum(w[f"fc{layer}.weight"] @ x + w[f"fc{layer}.bias"], 0)
    return w["head.weight"] @ x + w["head.bias"]


def conv(x: Array, kernel: Array, bias: Array | float, *, stride: int, dilation: int, groups: int) -> Array:
    """Correlation of ``x [channels, *size]`` with ``kernel [out, channels/groups, *taps]``, output position by position."""
    taps = kernel.shape[2:]
    pad = [dilation * (tap // 2) for tap in taps]
    padded = np.pad(x, [(0, 0), *[(p, p) for p in pad]])
    size = [(n + 2 * p - dilation * (t - 1) - 1) // stride + 1 for n, p, t in zip(x.shape[1:], pad, taps, strict=True)]
    out = np.zeros((len(kernel), *size))
    inputs, outputs = len(x) // groups, len(kernel) // groups
    for where in np.ndindex(*size):
        window = tuple(
            slice(i * stride, i * stride + dilation * (tap - 1) + 1, dilation) for i, tap in zip(where, taps, strict=True)
        )
        for group in range(groups):
            piece = padded[(slice(group * inputs, (group + 1) * inputs), *window)]
            rows = slice(group * outputs, (group + 1) * outputs)
            out[(rows, *where)] = kernel[rows].reshape(outputs, -1) @ piece.ravel()
    return out + np.reshape(bias, (-1, *[1] * len(size)))


def cnn(w: Weights, image: Array, *, blocks: int, groups: int) -> Array:
    """Logits of one image ``[channels, *size]``."""

    def layer(x: Array, name: str, stride: int = 1, dilation: int = 1, groups: int = 1) -> Array:
        bias = w.get(f"{name}.bias", 0.0)
        return conv(x, w[f"{name}.weight"], bias, stride=stride, dilation=dilation, groups=groups)

    x = np.maximum(layer(image, "stem"), 0)
    for block in range(blocks):
        at = f"blocks.{block}"
        y = layer(np.maximum(layer(x, f"{at}.conv1", stride=2), 0), f"{at}.conv2", dilation=2, groups=groups)
        mean, variance, scale, shift = (
            w[f"{at}.norm.{part}"].reshape(-1, *[1] * (y.ndim - 1)) for part in ("mean", "variance", "weight", "bias")
        )
        y = (y - mean) / np.sqrt(variance + 1e-5) * scale + shift
        x = np.maximum(y + layer(x, f"{at}.shortcut", stride=2), 0)
    return w["head.weight"] @ x.reshape(len(x), -1).mean(1) + w["head.bias"]
