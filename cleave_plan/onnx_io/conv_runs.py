"""Runs of onnxruntime over the images of a range of a tile: what they are given, what they give, and where that goes."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np

from cleave_plan.kernels.arrays import Array, dense_on_lines, on_lines
from cleave_plan.kernels.conv import FEW_POSITIONS, ImageRange, skipped_positions
from cleave_plan.onnx_io.conv_target import Target
from cleave_plan.workload.gemm import ConvWindow


class Reach(NamedTuple):
    """What a run gives of a range ``place`` of a tile: ``sizes`` positions along each axis, together ``span``, of which the first
    ``skipped`` are not of the tile."""

    place: ImageRange
    sizes: tuple[int, ...]
    span: ImageRange
    skipped: int

    @classmethod
    def of(cls, place: ImageRange, sizes: tuple[int, ...]) -> Reach:
        """The smallest span of so many positions that holds ``place``."""
        skipped = skipped_positions(place, sizes)
        first = place.first - skipped
        return cls(place, sizes, place._replace(first=first, last=first + prod(sizes) - 1), skipped)


def has_whole_images(window: ConvWindow, place: ImageRange) -> bool:
    """Whether a range has every position of its images."""
    return place.positions == window.rows_per_image


def pads_around(window: ConvWindow, place: ImageRange) -> tuple[int, ...]:
    """Padding around what is read of the input for a range, begins and then ends; what lies beyond the last window counts as
    none."""
    span = window.span(place.first, place.last)
    begins = window.pads if has_whole_images(window, place) else tuple(max(0, -begin) for begin, _ in span)
    return (*begins, *(max(0, end - size) for (_, end), size in zip(span, window.input, strict=True)))


def run(session: Any, beside: Mapping[str, Array], reach: Reach, images: Array, target: Target) -> None:
    """Run ``session`` on ``images``, from which it gives ``reach``, and on what it reads ``beside`` them; results go where they
    belong, by way of a copy where that is no run of memory."""
    place, span, axes, addend = reach.place, reach.span, len(reach.sizes), target.addend
    dense = images.flags.c_contiguous and (addend is None or addend(span, place.start, place.stop).flags.c_contiguous)
    step = target.images_at_once(span) if dense else max(1, FEW_POSITIONS // span.positions)
    for first in range(place.start, place.stop, step):
        end = min(first + step, place.stop)
        own = target.room(span, first, end)
        in_place = span == place and target.exact and own.flags.c_contiguous
        result = own if in_place else on_lines(own.shape, own.dtype)
        given = dense_on_lines(images[first - place.start : end - place.start])
        if given.ndim > 2 + axes:  # what lies in blocks has the shape of the images that it holds
            given = given.reshape(end - first, -1, *given.shape[2 : 2 + axes])
        shape = (end - first, result.size // (end - first) // prod(reach.sizes), *reach.sizes)
        binding = session.io_binding()
        for name, array in beside.items():
            binding.bind_cpu_input(name, array)
        binding.bind_cpu_input("x", given)
        if addend is not None:
            binding.bind_cpu_input("r", dense_on_lines(addend(span, first, end)).reshape(shape))
        binding.bind_output("y", "cpu", 0, np.float32, shape, result.__array_interface__["data"][0])
        session.run_with_iobinding(binding)
        if not in_place:
            target.put(place, first, end, result, reach.skipped)
