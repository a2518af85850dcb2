"""What the profile database holds: machines with their figures and GEMM timings, and links with their figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cleave_plan.errors import InputFileError
from cleave_plan.fleet.catalogue import DEVICE_FIGURES, LINK_FIGURES, spec_of
from cleave_plan.fleet.figures import SUSTAINED, Figure, check_dtype
from cleave_plan.fleet.reading import expect_date, expect_name, expect_text


class ProfileKind(StrEnum):
    """What a profile describes."""

    MACHINE = "machine"
    LINK = "link"


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmMeasurement:
    """Seconds of one ``(m, k) @ (k, n)``: the median and the quartiles of ``repeats`` samples.

    ``threads`` is what BLAS was held to; ``numpy`` and ``blas`` say what multiplied; ``date`` is an ISO date.
    """

    dtype: str
    m: int
    k: int
    n: int
    threads: int
    median_s: float
    lower_quartile_s: float
    upper_quartile_s: float
    repeats: int
    numpy: str
    blas: str
    date: str

    @property
    def flop(self) -> int:
        """2 * m * k * n."""
        return 2 * self.m * self.k * self.n

    @property
    def flop_per_s(self) -> float:
        """FLOP/s at the median."""
        return self.flop / self.median_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One machine or link. Checked when built: raises InputFileError naming the profile and the field.

    ``title`` describes it in words (a processor, a kind of line). ``figures`` are in SI by the names of
    :mod:`cleave_plan.fleet.figures`, each with its provenance. ``gemms`` (machines only) are all of one thread count.
    """

    name: str
    kind: ProfileKind
    title: str
    figures: Mapping[str, Figure] = field(default_factory=dict)
    gemms: tuple[GemmMeasurement, ...] = ()

    def __post_init__(self) -> None:
        place = f"profile {self.name}"
        expect_name(self.name, f"{place}: name")
        expect_text(self.title, f"{place}: title", "a title")
        for name, figure in self.figures.items():
            _check_figure(name, figure, self.kind, f"{place}: {name}")
        if self.gemms and self.kind is ProfileKind.LINK:
            raise InputFileError("GEMM timings of a link", where=place, expected="timings in machine profiles only")
        for index, gemm in enumerate(self.gemms):
            _check_gemm(gemm, f"{place}: gemms[{index}]")
        if len({gemm.threads for gemm in self.gemms}) > 1:
            raise InputFileError(
                "timings with different numbers of threads", where=place, expected="one number of threads",
                remedy="keep each number of threads as a profile of its own",
            )  # fmt: skip
        if len({(gemm.dtype, gemm.m, gemm.k, gemm.n) for gemm in self.gemms}) < len(self.gemms):
            raise InputFileError("two timings of one shape and element type", where=place, expected="each shape once")


def _check_figure(name: str, figure: Figure, kind: ProfileKind, place: str) -> None:
    if kind is ProfileKind.MACHINE and name == SUSTAINED:
        fits, limit = 0 < figure.value <= 1, "a share above 0 and at most 1"
    else:
        spec = spec_of(name, DEVICE_FIGURES if kind is ProfileKind.MACHINE else LINK_FIGURES, place)
        fits = 0 < figure.value < math.inf or (spec.zero and figure.value == 0)
        limit = f"a finite number {'of 0 or more' if spec.zero else 'above 0'}"
    if not fits:
        raise InputFileError(f"found {figure.value!r}", where=place, expected=limit)
    if figure.provenance is None:
        raise InputFileError("no provenance", where=place, expected="quality, source and date of the figure")
    expect_text(figure.provenance.source, f"{place}.source", "the source in words")
    expect_date(figure.provenance.date, f"{place}.date")
    spread = figure.spread
    if spread is not None and not (0 <= spread.lower <= figure.value <= spread.upper < math.inf and 1 <= spread.samples < 2**31):
        raise InputFileError(
            f"quartiles {spread.lower!r} and {spread.upper!r} of {spread.samples} samples around {figure.value!r}", where=place,
            expected="a lower quartile, the figure and an upper quartile, rising, of 1 sample or more",
        )  # fmt: skip


def _check_gemm(gemm: GemmMeasurement, place: str) -> None:
    check_dtype(gemm.dtype, f"{place}.dtype")
    for name in ("m", "k", "n", "threads", "repeats"):
        if not 1 <= getattr(gemm, name) < 2**31:
            raise InputFileError(f"found {getattr(gemm, name)}", where=f"{place}.{name}", expected="a whole number above 0")
    if not 0 < gemm.lower_quartile_s <= gemm.median_s <= gemm.upper_quartile_s < math.inf:
        raise InputFileError(
            f"seconds {gemm.lower_quartile_s!r}, {gemm.median_s!r}, {gemm.upper_quartile_s!r}",
            where=place, expected="lower quartile, median and upper quartile, rising and above 0",
        )  # fmt: skip
    expect_date(gemm.date, f"{place}.date")
