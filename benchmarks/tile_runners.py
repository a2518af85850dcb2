"""The same tiles of one product through different tools: our local engine, concurrent.futures, Dask and Ray.

Each tool is used as its users would: operands are handed over once a run where it has a place for them (shared memory, an
object store, scattered data), tiles are submitted all at once, results are placed as they come.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Protocol

import numpy as np

from cleave_plan.dtypes import DType
from cleave_plan.execution.engines.base import Finished, Task
from cleave_plan.execution.engines.local import LocalEngine
from cleave_plan.kernels.arrays import Array
from cleave_plan.kernels.tile import Box, Product
from cleave_plan.workload.gemm import GemmShape


def boxes_of(m: int, n: int, k: int, rows: int, columns: int) -> list[Box]:
    """The product cut into ``rows`` times ``columns`` equal tiles."""
    high, wide = m // rows, n // columns
    return [
        Box(row * high, (row + 1) * high, column * wide, (column + 1) * wide, 0, k, 0, 1)
        for row in range(rows)
        for column in range(columns)
    ]


class Runner(Protocol):
    """A tool with its workers running between ``__enter__`` and ``__exit__``."""

    name: str

    def __enter__(self) -> Runner: ...

    def __exit__(self, *error: object) -> None: ...

    def run(self, a: Array, b: Array, boxes: Sequence[Box]) -> Array:
        """``a @ b`` [M, N], tile by tile."""


class Ours:
    """The local engine, one device identity a worker."""

    def __init__(self, workers: int) -> None:
        self.name = "cleave-plan"
        self.engine = LocalEngine(workers)
        self._devices = [f"device-{place}" for place in range(workers)]
        self._job = 0

    def __enter__(self) -> Ours:
        self.engine.start(dict.fromkeys(self._devices, 1.0))
        return self

    def __exit__(self, *error: object) -> None:
        self.engine.stop()

    def run(self, a: Array, b: Array, boxes: Sequence[Box]) -> Array:
        """Operands that lie in ordinary memory are copied into shared memory, each run again."""
        (m, k), n, kind = a.shape, b.shape[1], DType(a.dtype.name)
        product = Product(shape=GemmShape(1, m, k, n), a_dtype=kind, b_dtype=kind, out_dtype=kind, window=None)
        self._job += 1
        whole = self.engine.open(self._job, product, (a[None], b[None]))
        for tile, box in enumerate(boxes):
            self.engine.send(Task(self._job, tile, self._devices[tile % len(self._devices)], box))
        for _ in boxes:
            event = self.engine.collect()
            assert isinstance(event, Finished) and event.in_place, event  # noqa: PT018
        self.engine.close(self._job)
        return whole[0]


def _product(a: Array, b: Array) -> Array:
    result: Array = np.matmul(a, b)
    return result


class Futures:
    """A process pool of the standard library: pieces and results travel as pickles."""

    def __init__(self, workers: int) -> None:
        self.name = "concurrent.futures"
        self._pool = ProcessPoolExecutor(workers)

    def __enter__(self) -> Futures:
        self._pool.submit(int).result()
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown()

    def run(self, a: Array, b: Array, boxes: Sequence[Box]) -> Array:
        """One future a tile."""
        whole = np.empty((a.shape[0], b.shape[1]), a.dtype)
        futures = [self._pool.submit(_product, a[box.rows], b[:, box.columns]) for box in boxes]
        for box, future in zip(boxes, futures, strict=True):
            whole[box.rows, box.columns] = future.result()
        return whole


def _tile_of(a: Array, b: Array, box: Box) -> Array:
    result: Array = np.matmul(a[box.rows], b[:, box.columns])
    return result


class Dask:
    """A local cluster of Dask with one thread a process; operands are scattered to every worker."""

    def __init__(self, workers: int) -> None:
        import distributed

        self.name = f"Dask {distributed.__version__}"
        self._workers = workers
        self._distributed = distributed

    def __enter__(self) -> Dask:
        self._cluster: Any = self._distributed.LocalCluster(
            n_workers=self._workers, threads_per_worker=1, host="127.0.0.1", dashboard_address=None
        )
        self._client: Any = self._distributed.Client(self._cluster)
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()
        self._cluster.close()

    def run(self, a: Array, b: Array, boxes: Sequence[Box]) -> Array:
        """One future a tile."""
        whole = np.empty((a.shape[0], b.shape[1]), a.dtype)
        left, right = self._client.scatter([a, b], broadcast=True, hash=False)
        futures = [self._client.submit(_tile_of, left, right, box, pure=False) for box in boxes]
        for box, result in zip(boxes, self._client.gather(futures), strict=True):
            whole[box.rows, box.columns] = result
        return whole


class Ray:
    """A local Ray with one actor a worker; operands lie in its object store."""

    def __init__(self, workers: int) -> None:
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray

        self.name = f"Ray {ray.__version__}"
        self._ray, self._workers = ray, workers

    def __enter__(self) -> Ray:
        self._ray.init(
            num_cpus=self._workers,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            _node_ip_address="127.0.0.1",
        )

        class Worker:
            def tile(self, a: Array, b: Array, box: Box) -> Array:
                return _tile_of(a, b, box)

        remote = self._ray.remote(num_cpus=1)(Worker)
        self._actors = [remote.remote() for _ in range(self._workers)]
        return self

    def __exit__(self, *error: object) -> None:
        self._ray.shutdown()

    def run(self, a: Array, b: Array, boxes: Sequence[Box]) -> Array:
        """One call of an actor a tile."""
        whole = np.empty((a.shape[0], b.shape[1]), a.dtype)
        left, right = self._ray.put(a), self._ray.put(b)
        calls = [self._actors[place % self._workers].tile.remote(left, right, box) for place, box in enumerate(boxes)]
        for box, call in zip(boxes, calls, strict=True):
            whole[box.rows, box.columns] = self._ray.get(call)
        return whole


RIVALS = {"futures": Futures, "dask": Dask, "ray": Ray}
"""Other tools by name; making one raises ImportError where it is not installed (extra ``bench``)."""
