"""``python -m models NAME -o FILE.onnx``: write a model by name; ``--list`` shows the names."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from difflib import get_close_matches
from pathlib import Path

from models.registry import DTYPES, MODELS, ModelRequestError, build, parameter_count


def main(arguments: list[str] | None = None) -> int:
    """Parse ``arguments``, build or list; exit code 0, or 2 with a sentence on stderr."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.list:
        print(_listing(as_json=options.json))
        return 0
    if options.name is None or options.output is None:
        parser.error("give a model's NAME and -o FILE.onnx, or --list")
    if options.name not in MODELS:
        near = get_close_matches(options.name, MODELS, n=3)
        parser.error(f"no model is called {options.name!r}" + (f"; near it: {', '.join(near)}" if near else "; see --list"))
    try:
        _write(options)
    except ModelRequestError as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"{options.output} cannot be written: {error.strerror or error}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m models",
        description="Write a model as ONNX: published architectures without their weights, small ones with seeded weights.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="a name that --list shows")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.onnx", help="where to write it")
    parser.add_argument("--list", action="store_true", help="show every name with its parameters and source")
    parser.add_argument("--dtype", choices=DTYPES, help="element type of weights and activations (default: as published)")
    parser.add_argument("--batch", type=int, metavar="N", help="fix the dimension `batch` (default: symbolic)")
    parser.add_argument("--seq", type=int, metavar="N", help="fix the dimension `seq` (default: symbolic)")
    parser.add_argument("--decode", action="store_true", help="the step that adds one token to a key-value cache (OPT, Llama)")
    parser.add_argument("--past", type=int, metavar="N", help="with --decode: fix the dimension `past` (default: symbolic)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of drawn weights (default: 0)")
    parser.add_argument(
        "--weights", choices=("none", "seeded"), help="leave weights out or draw them (default: none if published, else seeded)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    return parser


def _listing(*, as_json: bool) -> str:
    rows = [
        {
            "name": entry.name,
            "kind": entry.kind,
            "dtype": entry.dtype,
            "weights": "seeded" if entry.seeded else "none",
            "parameters": parameter_count(build(entry.name, weights="none")),
            "source": entry.source,
        }
        for entry in MODELS.values()
    ]
    if as_json:
        return json.dumps(rows, indent=2)
    lines = [f"{'name':<12} {'parameters':>14}  {'kind':<10} {'dtype':<7} {'weights':<7} source"]
    lines += ["{name:<12} {parameters:>14,}  {kind:<10} {dtype:<7} {weights:<7} {source}".format(**row) for row in rows]
    return "\n".join(lines)


def _write(options: argparse.Namespace) -> None:
    """Build, write beside the target, rename, and say what was written."""
    model = build(
        options.name,
        dtype=options.dtype,
        batch=options.batch,
        seq=options.seq,
        seed=options.seed,
        weights=options.weights,
        decode=options.decode,
        past=options.past,
    )
    data = model.SerializeToString(deterministic=True)
    _replace(options.output, data)
    parameters = parameter_count(model)
    if options.json:
        print(json.dumps({"file": str(options.output), "bytes": len(data), "parameters": parameters}))
    else:
        print(f"{options.output}: {options.name}, {parameters:,} parameters, {len(model.graph.node)} nodes, {len(data):,} bytes")


def _replace(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` so that a reader sees the old file or the new one, never a part."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        part.chmod(0o644)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


if __name__ == "__main__":
    sys.exit(main())
