"""Lower bounds against dumber maximisation: scans over tile shapes, shares on a grid, tilings made at random."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from brute_force import tile_seconds, tilings
from planning_cases import conv_of, device, fleet_of, gemm_of, spread, window_of

from cleave_plan.cost.efficiency import DeviceColumns, device_columns
from cleave_plan.dtypes import DType
from cleave_plan.fleet.device import Device
from cleave_plan.fleet.synthetic import generate_fleet
from cleave_plan.planning.bounds import Links, bisect_infeasible, capacity, gemm_bound
from cleave_plan.planning.level import level_bound
from cleave_plan.planning.terms import terms_of
from cleave_plan.workload.gemm import ConvWindow, Gemm

FREE = Links(egress=math.inf, ingress=math.inf, flop_per_s=0.0)
HALF = DType.FLOAT16


def columns_of(devices: list[Device], dtype: DType = DType.FLOAT32) -> DeviceColumns:
    return device_columns(devices, dtype)


# ------------------------------------------------------------------------------------------------ one device, one GEMM


def scanned_areas(gemm: Gemm, own: Device, seconds: np.ndarray) -> np.ndarray:
    """Largest r*c of one tile in each of ``seconds`` (latency taken off), by a scan over r: the best c follows from it."""
    k, a, b, out = gemm.shape.k, gemm.a.dtype.bits / 8, gemm.b.dtype.bits / 8, gemm.out_dtype.bits / 8
    room, accumulator = 0.9 * own.memory_bytes, gemm.a.dtype.accumulator_bits / 8
    r, t = np.geomspace(gemm.shape.m * 1e-6, gemm.shape.m, 1500), seconds[:, None]
    c = np.minimum((t * own.downlink_bytes_per_s - r * k * a) / (k * b), gemm.shape.n)
    c = np.minimum(c, t * min(own.uplink_bytes_per_s / out, own.rate(gemm.dtype) / (2 * k)) / r)
    c = np.where(r * k * a > room, np.minimum(c, np.maximum(room / (k * b), room / (r * accumulator))), c)
    return np.asarray((r * np.maximum(c, 0)).max(axis=1))


def random_pair(rng: np.random.Generator) -> tuple[Gemm, Device]:
    """A GEMM and a device whose memory often binds, by each of the three rules."""
    shape = (1, int(spread(rng, 1, 2000)), int(spread(rng, 1, 300)), int(spread(rng, 1, 2000)))
    gemm = gemm_of("g", shape, dtype=HALF if rng.random() < 0.5 else DType.FLOAT32)
    own = device(
        "d", flop_per_s={"any": spread(rng, 1e3, 1e7)}, downlink_bytes_per_s=spread(rng, 1e3, 1e6),
        uplink_bytes_per_s=spread(rng, 1e2, 1e5), memory_bytes=spread(rng, 1e3, 1e6), latency_s=rng.choice([0.0, 0.5]),
    )  # fmt: skip
    return gemm, own


@pytest.mark.parametrize("seed", range(12))
def test_the_area_by_t_is_what_a_scan_over_tile_shapes_finds(seed: int) -> None:
    """One tile, or tiles one after the other each at the best area per second: a(T) is that, and no less."""
    gemm, own = random_pair(np.random.default_rng(seed))
    able = capacity(terms_of(gemm), columns_of([own], gemm.dtype))
    whole_s = tile_seconds(gemm, replace(own, memory_bytes=1e12, latency_s=0.0), gemm.shape.m, gemm.shape.n)
    moments = np.geomspace(whole_s * 1e-2, whole_s * 4, 600)
    paces = scanned_areas(gemm, own, moments) / moments
    scanned = moments * np.maximum.accumulate(paces)  # one tile, or any number of tiles of any smaller time
    found = np.array([float(able.area(own.latency_s + t)[0]) for t in moments])
    assert (found >= scanned * (1 - 1e-9)).all()
    assert (found <= scanned * 1.025).all()  # the scan's steps


def test_a_device_does_nothing_before_its_latency() -> None:
    """a(T) = 0 up to l; then it grows and never falls, nor does a(T)/T."""
    own = device("d", latency_s=2.0, memory_bytes=1e3)
    able = capacity(terms_of(gemm_of("g", (1, 50, 4, 60))), columns_of([own]))
    assert able.area(1.0)[0] == 0
    assert able.area(2.0)[0] == 0
    times = np.linspace(2.01, 500, 400)
    areas = [float(able.area(t)[0]) for t in times]
    assert all(later >= sooner for sooner, later in itertools.pairwise(areas))
    paces = [area / t for area, t in zip(areas, times, strict=True)]
    assert all(later >= sooner * (1 - 1e-12) for sooner, later in itertools.pairwise(paces))


def test_the_area_at_once_by_hand() -> None:
    """K = 10 float32: a row or a column is 40 bytes. 100 B/s down, 50 B/s up (12.5 elements/s), 1,000 FLOP/s (50 elements/s)."""
    gemm = gemm_of("g", (1, 1000, 10, 1000))
    able = capacity(terms_of(gemm), columns_of([device("d", memory_bytes=1e9)]))
    # T = 8 s: 800 bytes are 20 rows and columns: the square is 10 x 10, well under 8 * 12.5 elements up
    assert able.area(8.0)[0] == pytest.approx(100)
    # T = 100 s: 10,000 bytes would be 125 x 125, but 1,250 elements go up
    assert able.area(100.0)[0] == pytest.approx(1250)
    # one row only: 800 bytes are that row and 19 columns
    flat = capacity(terms_of(gemm_of("g", (1, 1, 10, 1000))), columns_of([device("d", memory_bytes=1e9)]))
    assert flat.area(8.0)[0] == pytest.approx(19)


# ------------------------------------------------------------------------------------------------ one GEMM, many devices

TOKENS = 128 * 1024
OPT_13B = {
    "fc1": (TOKENS, 5120, 20480),
    "fc2": (TOKENS, 20480, 5120),
    "dW fc1": (5120, TOKENS, 20480),
    "dW q": (5120, TOKENS, 5120),
}
PUBLISHED = {
    "fc1": (11.08, 3.00, 0.88), "fc2": (5.06, 2.19, 1.08), "dW fc1": (11.99, 5.52, 2.74), "dW q": (5.99, 2.76, 1.37)
}  # fmt: skip
"""Seconds at 64, 256 and 1024 devices of preset cleave, links unlimited, no work on servers, no inner splits."""


@pytest.mark.parametrize("name", OPT_13B)
def test_bounds_of_opt_13b_are_the_known_ones(name: str) -> None:
    """A second implementation of the mathematics gave these figures, to two digits behind the point."""
    m, k, n = OPT_13B[name]
    for devices, seconds in zip((64, 256, 1024), PUBLISHED[name], strict=True):
        fleet = generate_fleet(devices, preset="cleave", seed=42)
        bound = gemm_bound(terms_of(gemm_of("g", (1, m, k, n), dtype=HALF)), columns_of(list(fleet.devices), HALF), FREE)
        assert bound == pytest.approx(seconds, abs=0.0055)


def test_egress_and_ingress_by_hand() -> None:
    """Two equal devices make 10 x 10 of C each in 8 s, with 800 bytes each."""
    terms, two = terms_of(gemm_of("g", (1, 10, 10, 20))), columns_of([device("d0"), device("d1")])
    assert gemm_bound(terms, two, FREE) == pytest.approx(8.0)
    # 100 B/s out: a device's largest tile is 12.5 T elements, 10 rows and 1.25 T columns for 400 + 50 T bytes; all 200
    # elements at that rate take 100 T bytes when T^2 - 8 T - 64 = 0
    narrow = gemm_bound(terms, two, Links(egress=100.0, ingress=math.inf, flop_per_s=0.0))
    assert narrow == pytest.approx(4 + math.sqrt(80))
    # 200 elements of 4 bytes at 40 B/s
    assert gemm_bound(terms, two, Links(egress=math.inf, ingress=40.0, flop_per_s=0.0)) == pytest.approx(20.0)
    # the server alone: 4,000 FLOP at 1e9 FLOP/s
    assert gemm_bound(terms, two, Links(egress=math.inf, ingress=math.inf, flop_per_s=1e9)) == pytest.approx(4e-6, rel=1e-3)


@pytest.mark.parametrize("seed", range(8))
def test_links_never_bound_a_tiling_that_exists(seed: int) -> None:
    """The bound with links is below every tiling's time with those links."""
    rng = np.random.default_rng(seed)
    gemm = gemm_of("g", (1, int(rng.integers(2, 6)), int(rng.integers(1, 20)), int(rng.integers(2, 6))))
    members = [
        device(f"d{place}", downlink_bytes_per_s=spread(rng, 20, 500), uplink_bytes_per_s=spread(rng, 5, 100))
        for place in range(3)
    ]
    egress, ingress = spread(rng, 20, 500), spread(rng, 5, 100)
    up_s = 4 * gemm.shape.m * gemm.shape.n / ingress
    best = min(max(seconds, down / egress, up_s) for seconds, down in tilings(gemm, fleet_of(members)))
    bound = gemm_bound(terms_of(gemm), columns_of(members), Links(egress=egress, ingress=ingress, flop_per_s=0.0))
    assert 0.3 * best <= bound <= best * (1 + 1e-9)


def test_bisection_returns_the_infeasible_end() -> None:
    """From any guess, just below the least feasible number."""
    for limit, start in product([1e-20, 0.3, 7.0, 1e12], [1e-6, 1.0, 1e6]):
        found = bisect_infeasible(lambda T, limit=limit: limit <= T, start)
        assert found < limit
        assert found == pytest.approx(limit, rel=1e-9)


# ------------------------------------------------------------------------------------------------ several GEMMs of one level


@pytest.mark.parametrize("seed", range(6))
def test_joint_bound_of_two_gemms_is_that_of_shares_on_a_grid(seed: int) -> None:
    """Every way to give each device's time to two GEMMs in steps of 1/40 (two devices) or 1/20 (three)."""
    rng = np.random.default_rng(seed)
    count, steps = (2, 40) if seed % 2 else (3, 20)
    members = [
        device(
            f"d{place}", flop_per_s={"any": spread(rng, 1e3, 1e5)}, downlink_bytes_per_s=spread(rng, 100, 2000),
            uplink_bytes_per_s=spread(rng, 50, 500), latency_s=rng.choice([0.0, 0.1]),
        )
        for place in range(count)
    ]  # fmt: skip
    parts = [terms_of(gemm_of("g", (1, *(int(side) for side in rng.integers(5, 100, 3))))) for _ in range(2)]
    columns = columns_of(members)
    able = [capacity(part, columns) for part in parts]
    shares = np.array(list(product(np.linspace(0, 1, steps + 1), repeat=count)))

    def feasible(T: float) -> bool:
        first, second = shares @ able[0].area(T), (1 - shares) @ able[1].area(T)
        return bool(((first >= parts[0].area) & (second >= parts[1].area)).any())

    on_grid = bisect_infeasible(feasible, 1.0)
    bound = level_bound(parts, [columns, columns], FREE, [0.0, 0.0])
    assert on_grid * (1 - 2 / steps) <= bound <= on_grid * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_joint_bound_is_below_every_pair_of_tilings(seed: int) -> None:
    """Two tiny GEMMs over two devices: all pairs of tilings, each device's times added."""
    rng = np.random.default_rng(seed)
    members = [
        device(f"d{place}", downlink_bytes_per_s=spread(rng, 20, 300), latency_s=rng.choice([0.0, 0.2]),
               uplink_bytes_per_s=spread(rng, 5, 100)) for place in range(2)
    ]  # fmt: skip
    gemms = [gemm_of(name, (1, *(int(side) for side in rng.integers(1, 5, 3)))) for name in "ab"]
    cuts = [_device_seconds(gemm, members) for gemm in gemms]
    best = min(max(np.add(one, other)) for one, other in product(*cuts))
    columns = columns_of(members)
    bound = level_bound([terms_of(gemm) for gemm in gemms], [columns, columns], FREE, [0.0, 0.0])
    alone = [gemm_bound(terms_of(gemm), columns, FREE) for gemm in gemms]
    assert max(alone) <= bound * (1 + 1e-9)
    assert bound <= best * (1 + 1e-9)


def _device_seconds(gemm: Gemm, members: list[Device]) -> list[tuple[float, ...]]:
    """Seconds on each of two devices, of every tiling: whole on one, or cut once along either side."""
    m, n = gemm.shape.m, gemm.shape.n
    one, other = members
    found = [(tile_seconds(gemm, one, m, n), 0.0), (0.0, tile_seconds(gemm, other, m, n))]
    found += [(tile_seconds(gemm, one, r, n), tile_seconds(gemm, other, m - r, n)) for r in range(1, m)]
    found += [(tile_seconds(gemm, one, m, c), tile_seconds(gemm, other, m, n - c)) for c in range(1, n)]
    return found


def test_two_equal_gemms_share_the_fleet_by_groups() -> None:
    """Downlink-bound squares: twice the work takes sqrt(2) times as long, not twice; the sum of bounds is no bound."""
    columns = columns_of([device(f"d{place}", uplink_bytes_per_s=1e9, flop_per_s={"any": 1e12}) for place in range(16)])
    one = terms_of(gemm_of("a", (1, 400, 10, 400)))
    other = terms_of(gemm_of("b", (1, 401, 10, 401)))
    alone = gemm_bound(one, columns, FREE)
    together = level_bound([one, other], [columns, columns], FREE, [0.0, 0.0])
    assert together == pytest.approx(math.sqrt(2) * alone, rel=5e-3)


# ------------------------------------------------------------------------------------------------ convolutions

WINDOWS = [
    window_of([(12, 3, 1, 1, 1)], images=2, channels=2),
    window_of([(12, 3, 3, 1, 0)], channels=3),
    window_of([(9, 2, 3, 1, 1)], images=3, channels=1),  # stride over kernel: inputs that nobody reads
    window_of([(7, 3, 1, 2, 2), (6, 2, 2, 1, 1)], channels=2),
    window_of([(2, 1, 1, 1, 2), (3, 1, 1, 1, 0)], images=2),  # rows that read only padding
    window_of([(1, 1, 3, 1, 1)], channels=2),  # nothing but padding
    window_of([(4, 2, 2, 1, 0), (3, 3, 1, 1, 1), (3, 2, 1, 1, 0)], channels=2),
]


def inputs_read(window: ConvWindow, rows: range) -> int:
    """Distinct input positions that output rows read, by listing every tap."""
    read = set()
    for row in rows:
        image, rest = divmod(row, math.prod(window.output))
        place = np.unravel_index(rest, window.output)
        for tap in np.ndindex(*window.kernel):
            at = tuple(
                int(o) * s - p + t * d
                for o, s, p, t, d in zip(place, window.strides, window.pads, tap, window.dilations, strict=True)
            )
            if all(0 <= x < size for x, size in zip(at, window.input, strict=True)):
                read.add((image, *at))
    return len(read)


@pytest.mark.parametrize("place", range(len(WINDOWS)))
def test_the_bound_of_a_convolution_is_below_tilings_that_send_only_what_is_read(place: int) -> None:
    """Random guillotine tilings over three devices, each sent exactly the inputs its taps read (no slab is smaller)."""
    window, rng = WINDOWS[place], np.random.default_rng(place)
    gemm = conv_of("c", window, filters=5)
    members = [
        device(f"d{i}", flop_per_s={"any": spread(rng, 500, 5e4)}, downlink_bytes_per_s=spread(rng, 20, 300),
               uplink_bytes_per_s=spread(rng, 20, 300)) for i in range(3)
    ]  # fmt: skip
    bound = gemm_bound(terms_of(gemm), columns_of(members), FREE)
    assert bound > 0
    best = math.inf
    for _ in range(200):
        seconds = np.zeros(3)
        for r0, r1, c0, c1 in _random_cuts(rng, gemm.shape.m, gemm.shape.n):
            i = int(rng.integers(3))
            down = 4 * window.channels * inputs_read(window, range(r0, r1)) + 4 * gemm.shape.k * (c1 - c0)
            area = (r1 - r0) * (c1 - c0)
            seconds[i] += members[i].latency_s + max(
                down / members[i].downlink_bytes_per_s, 2 * gemm.shape.k * area / members[i].rate(gemm.dtype),
                4 * area / members[i].uplink_bytes_per_s,
            )  # fmt: skip
        best = min(best, float(seconds.max()))
    assert bound <= best * (1 + 1e-9)


def _random_cuts(rng: np.random.Generator, m: int, n: int) -> list[tuple[int, int, int, int]]:
    """The plane cut from edge to edge up to three times at random."""
    boxes = [(0, m, 0, n)]
    for _ in range(int(rng.integers(0, 4))):
        r0, r1, c0, c1 = boxes.pop(int(rng.integers(len(boxes))))
        if rng.random() < 0.5 and r1 - r0 > 1:
            at = int(rng.integers(r0 + 1, r1))
            boxes += [(r0, at, c0, c1), (at, r1, c0, c1)]
        elif c1 - c0 > 1:
            at = int(rng.integers(c0 + 1, c1))
            boxes += [(r0, r1, c0, at), (r0, r1, at, c1)]
        else:
            boxes.append((r0, r1, c0, c1))
    return boxes


def test_patches_that_do_not_overlap_are_bounded_as_the_product_that_they_are() -> None:
    """Stride = kernel, no padding: every input is read once, so the convolution is its im2col product, bound and all."""
    window = window_of([(16, 4, 4, 1, 0), (24, 4, 4, 1, 0)], images=8, channels=3)
    conv = conv_of("patches", window, filters=30)
    product_of = gemm_of("product", tuple(conv.shape))
    members = [device(f"d{i}", flop_per_s={"any": 1e6}, uplink_bytes_per_s=1e4, downlink_bytes_per_s=50.0 + i) for i in range(5)]
    columns = columns_of(members)
    assert gemm_bound(terms_of(conv), columns, FREE) == pytest.approx(gemm_bound(terms_of(product_of), columns, FREE))


@pytest.mark.parametrize(
    ("axis", "row_bytes", "rows"),
    [
        ((12, 3, 1, 1, 1), 1, 12),  # stride 1: the middle tap reads one input for each of 12 outputs
        ((12, 3, 3, 1, 0), 3, 4),  # patches
        ((12, 5, 2, 1, 2), 2, 6),  # taps 0, 2, 4 and 1, 3: one of each parity, never padding: taps 2 and 3 of 6 outputs
        ((9, 3, 2, 2, 0), 1, 3),  # dilation 2, stride 2: all taps are even
        ((12, 3, 4, 1, 0), 3, 3),  # stride over kernel: three taps of four places
        ((2, 1, 1, 1, 2), 1, 2),  # four of six outputs are padding
    ],
)
def test_inputs_of_a_row_of_a_convolution_by_hand(axis: tuple[int, int, int, int, int], row_bytes: int, rows: int) -> None:
    """Distinct inputs that each counted output reads, and how many outputs count."""
    terms = terms_of(conv_of("c", window_of([axis]), filters=1))
    assert (terms.bound_row_bytes, terms.bound_rows) == (4 * row_bytes, rows)
