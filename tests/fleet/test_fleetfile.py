"""Fleet files: what people write is read as they mean it or refused with place and remedy; what is written reads back."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleave_plan.dtypes import DType
from cleave_plan.errors import CleaveError, ExecutionError, InputFileError, MissingFigureError
from cleave_plan.fleet import textfile, yamlfile
from cleave_plan.fleet.device import Device, EfficiencyPoint, Fleet, Provenance, Quality, Server, Spread
from cleave_plan.fleet.fleetfile import dump_fleet, load_fleet, parse_fleet, save_fleet
from cleave_plan.fleet.identity import make_fleet
from cleave_plan.fleet.provenance import BY_THE_FLEET, provenance_of

SERVERS = """
servers:
  - {name: server-1, flops: 1 TFLOP/s, memory: 64 GB, memory_bandwidth: 50 GB/s, egress: 1 Gbit/s, ingress: unlimited}
"""
PHONE = "{name: phone, flops: 1 TFLOP/s, downlink: 80 Mbit/s, uplink: 1 MB/s, latency: 31 ms, memory: 1.5 GiB}"


def fleet_text(devices: str, *, servers: str = SERVERS, head: str = "schema: 1") -> str:
    """A fleet file around a ``devices:`` section."""
    return f"{head}\n{servers}\n{devices}\n"


def with_phone(change: tuple[str, str]) -> str:
    """The smallest fleet file, with one piece of its device replaced."""
    assert change[0] in PHONE
    return fleet_text(f"devices:\n  - {PHONE.replace(*change)}")


def test_the_smallest_file_means_what_it_says() -> None:
    """Every suffix is brought to SI; "unlimited" is infinite; one FLOP/s figure covers all element types."""
    fleet = parse_fleet(fleet_text(f"devices:\n  - {PHONE}"), "fleet.yaml", name="kitchen")
    assert fleet.name == "kitchen"
    assert fleet.devices == (
        Device(
            name="phone", flop_per_s={"any": 1e12}, downlink_bytes_per_s=1e7, uplink_bytes_per_s=1e6, latency_s=0.031,
            memory_bytes=1.5 * 2**30,
        ),
    )  # fmt: skip
    assert fleet.servers == (
        Server(
            name="server-1", flop_per_s={"any": 1e12}, memory_bytes=64e9, memory_bandwidth_bytes_per_s=50e9,
            egress_bytes_per_s=1.25e8, ingress_bytes_per_s=math.inf,
        ),
    )  # fmt: skip


def test_everything_a_device_can_say() -> None:
    """Element types, power, an efficiency curve, provenance inline and by name, and count."""
    text = fleet_text(
        """
sources: {ookla: {quality: measured, source: "Ookla: Q3", date: 2023-09}}
provenance: {links: {uplink: ookla}}
curves: {small: [[1 MFLOP, 0.25], [1 GFLOP, 1]]}
devices:
  - name: phone
    count: 2
    flops: {float32: 1 TFLOP/s, float16: 2 TFLOP/s}
    downlink: 80 Mbit/s
    uplink: 8 Mbit/s
    latency: 0
    memory: 1 GB
    power: 5 W
    price: 0.02 $/h
    efficiency: small
    provenance: {downlink: ookla, flops: {quality: assumed, source: a guess}, price: {quality: specified, source: a rental}}
  - {name: other, flops: 1 TFLOP/s, downlink: 1 MB/s, uplink: 1 MB/s, latency: 1 ms, memory: 1 GB,
     efficiency: [[2 GFLOP, 0.5]], provenance: links}
"""
    )
    first, second, other = parse_fleet(text, "f").devices
    ookla = Provenance(quality=Quality.MEASURED, source="Ookla: Q3", date="2023-09")
    assert (first.name, second.name) == ("phone-1", "phone-2")
    assert first.flop_per_s == {"float32": 1e12, "float16": 2e12}
    assert first.efficiency == (EfficiencyPoint(flop=1e6, fraction=0.25), EfficiencyPoint(flop=1e9, fraction=1.0))
    assert (first.power_watt, first.latency_s, first.dollars_per_hour, other.dollars_per_hour) == (5.0, 0.0, 0.02, None)
    assert provenance_of(first, "price") == Provenance(quality=Quality.SPECIFIED, source="a rental")
    assert provenance_of(first, "downlink") == ookla
    assert provenance_of(first, "flops.float16") == Provenance(quality=Quality.ASSUMED, source="a guess")
    assert provenance_of(first, "memory") == BY_THE_FLEET
    assert other.efficiency == (EfficiencyPoint(flop=2e9, fraction=0.5),)
    assert other.provenance == {"uplink": ookla}


def test_catalogue_and_link_fill_what_is_left_out() -> None:
    """Catalogue figures come with their provenance; figures written in the file win, and lose the catalogue's source."""
    text = fleet_text("devices:\n  - {name: laptop, catalogue: apple-m4, link: us-fixed-2023, memory: 4 GB, uplink: 50 Mbit/s}")
    (laptop,) = parse_fleet(text, "f").devices
    assert laptop.flop_per_s["float32"] == 2.9e12
    assert laptop.flop_per_s["float16"] == pytest.approx(0.68 * 8.52e12)
    assert laptop.downlink_bytes_per_s == 213.75e6 / 8
    assert laptop.uplink_bytes_per_s == 50e6 / 8
    assert laptop.latency_s == 0.013
    assert laptop.power_watt == 20.0
    assert provenance_of(laptop, "flops.float32").quality is Quality.MEASURED
    assert provenance_of(laptop, "flops.float16").quality is Quality.ASSUMED
    assert provenance_of(laptop, "uplink") == BY_THE_FLEET
    assert provenance_of(laptop, "downlink").date == "2023-09"


def test_own_flops_replace_the_catalogues() -> None:
    """A FLOP/s figure in the file replaces every element type of the catalogue entry, so no stale peak survives."""
    text = fleet_text("devices:\n  - {name: x, catalogue: apple-m4, link: us-fixed-2023, memory: 4 GB, flops: 1 TFLOP/s}")
    assert parse_fleet(text, "f").devices[0].flop_per_s == {"any": 1e12}


BAD = [
    ("", "the file is empty", "f"),
    ("# only a comment\n", "the file is empty", "f"),
    ("- a\n- b\n", "found a list", "f"),
    ("just words", "found text", "f"),
    ("schema: [1", "not YAML", "line"),
    ("a: b: c", "not YAML", "line 1"),
    ("\x00", "not YAML", "f"),
    ("schema: 1\nschema: 1\n", "a second 'schema'", "line 2"),
    (fleet_text(f"devices: [{PHONE}]", head="schema: 2"), "found schema '2'", "schema"),
    (fleet_text(f"devices: [{PHONE}]", head="name: x"), "no schema key", "schema"),
    (fleet_text(f"devices: [{PHONE}]", head="schema: 1\nnames: x"), "did you mean 'name'", "f"),
    (fleet_text(f"devices: [{PHONE}]", head="schema: 1\nname: ' x'"), "found ' x'", "name"),
    (fleet_text(f"devices: [{PHONE}]", servers=""), "servers: [{name: server-1, flops: 1 TFLOP/s", "servers"),
    (fleet_text(f"devices: [{PHONE}]", servers="servers: []"), "no servers are given", "servers"),
    (fleet_text(f"devices: [{PHONE}]", servers="servers: {name: x}"), "found a mapping", "servers"),
    (fleet_text(f"devices: [{PHONE}]", servers=SERVERS.replace("ingress: unlimited", "")), "'ingress' is missing", "servers[0]"),
    (fleet_text(f"devices: [{PHONE}]", servers=SERVERS.replace("50 GB/s", "unlimited")), "'unlimited'", "memory_bandwidth"),
    (fleet_text("devices: []"), "no devices", "devices"),
    (fleet_text(""), "no devices", "devices"),
    (fleet_text("devices: {a: b}"), "found a mapping", "devices"),
    (fleet_text("devices: [phone]"), "found text", "devices[0]"),
    (fleet_text(f"devices: [{PHONE}, {PHONE}]"), "two devices are named 'phone' (device 1 and device 2", "devices"),
    (with_phone(("uplink", "uplnk")), "did you mean 'uplink'", "devices[0]"),
    (with_phone(("uplink: 1 MB/s, ", "")), "no uplink figure", "devices[0].uplink"),
    (with_phone(("1 MB/s", "-1 MB/s")), "negative", "devices[0].uplink"),
    (with_phone(("1 MB/s", "0 MB/s")), "above 0", "devices[0].uplink"),
    (with_phone(("1 MB/s", "80 Mbps")), "bits or as bytes", "devices[0].uplink"),
    (with_phone(("1 MB/s", "1 MB")), "lacks /s", "devices[0].uplink"),
    (with_phone(("1 MB/s", "10000000")), "write the unit", "devices[0].uplink"),
    (with_phone(("1 MB/s", ".nan")), "'.nan'", "devices[0].uplink"),
    (with_phone(("1 MB/s", "unlimited")), "'unlimited'", "devices[0].uplink"),
    (with_phone(("1 MB/s", "")), "found nothing", "devices[0].uplink"),
    (with_phone(("1 MB/s", "[1 MB/s]")), "found a list", "devices[0].uplink"),
    (with_phone(("1.5 GiB", "12 Gbit")), "divide the bits by 8", "devices[0].memory"),
    (with_phone(("name: phone", "name: ''")), "empty text", "devices[0].name"),
    (with_phone(("name: phone, ", "")), "'name' is missing", "devices[0]"),
    (with_phone(("flops: 1 TFLOP/s", "flops: {}")), "empty mapping", "devices[0].flops"),
    (with_phone(("flops: 1 TFLOP/s", "flops: {fp32: 1 TFLOP/s}")), "unknown element type 'fp32'", "devices[0].flops"),
    (with_phone(("flops: 1 TFLOP/s", "flops: {float23: 1 TFLOP/s}")), "did you mean 'float32'", "devices[0].flops"),
    (with_phone(("name: phone", "name: phone, spread: {downlnk: [1 MB/s, 9 MB/s]}")), "mean 'downlink'", "devices[0].spread"),
    (with_phone(("name: phone", "name: phone, spread: {memory: [1 GB, 2 GB, 3]}")), "figure 'memory'", "devices[0].spread"),
    (with_phone(("name: phone", "name: phone, spread: {uplink: [1 MB/s, 2 MB/s]}")), "found 2 items", "devices[0].spread.uplink"),
    (with_phone(("name: phone", "name: phone, spread: {uplink: [2 MB/s, 3 MB/s, 5]}")), "rising", "devices[0].spread.uplink"),
    (with_phone(("name: phone", "name: phone, spread: {uplink: [0 MB/s, 3 MB/s, 5]}")), "above 0", "devices[0].spread.uplink[0]"),
    (with_phone(("name: phone", "name: phone, spread: {uplink: [1 MB/s, 3 MB/s, x]}")), "whole", "devices[0].spread.uplink[2]"),
    (with_phone(("name: phone", "name: phone, count: 0")), "whole number from 1", "devices[0].count"),
    (with_phone(("name: phone", "name: phone, count: 2.5")), "whole number from 1", "devices[0].count"),
    (with_phone(("name: phone", "name: phone, count: 99999999")), "whole number from 1", "devices[0].count"),
    (with_phone(("name: phone", "name: phone, catalogue: aple-m4")), "did you mean 'apple-m4'", "devices[0].catalogue"),
    (with_phone(("name: phone", "name: phone, link: us-fixed")), "did you mean 'us-fixed-2023'", "devices[0].link"),
    (with_phone(("name: phone", "name: phone, provenance: nowhere")), "add it under provenance:", "devices[0].provenance"),
    (with_phone(("name: phone", "name: phone, provenance: {speed: x}")), "unknown figure 'speed'", "devices[0].provenance"),
    (with_phone(("name: phone", "name: phone, provenance: {uplink: x}")), "add it under sources:", "provenance.uplink"),
    (
        with_phone(("name: phone", "name: phone, provenance: {uplink: {quality: guessed, source: x}}")),
        "unknown quality 'guessed'", "uplink.quality",
    ),
    (
        with_phone(("name: phone", "name: phone, provenance: {uplink: {quality: assumed, source: x, date: May}}")),
        "an ISO date", "uplink.date",
    ),
    (with_phone(("name: phone", "name: phone, efficiency: nowhere")), "add it under curves:", "devices[0].efficiency"),
    (with_phone(("name: phone", "name: phone, efficiency: [[1 MFLOP, 1.5]]")), "at most 1", "efficiency[0][1]"),
    (with_phone(("name: phone", "name: phone, efficiency: [[1 MFLOP]]")), "found 1 items", "efficiency[0]"),
    (with_phone(("name: phone", "name: phone, efficiency: [[2 GFLOP, 1], [1 GFLOP, 1]]")), "more FLOP", "efficiency[1][0]"),
    (fleet_text(f"devices: [{PHONE}]\ntable: {{}}"), "both devices and table", "f"),
    ("a: &a [x]\nb: *a\n", "an anchor", "line 1"),
    ("a: *b\n", "an alias", "line 1"),
    ("a: !!python/object/apply:os.system [ls]\n", "the tag", "line 1"),
    ("[" * 50 + "]" * 50, "nesting deeper", "line 1"),
    ("[" * 100_000, "", "line 1"),
    ("a: 1\n---\nb: 2\n", "a second document", "line"),
    ("{[a]: b}", "as a key", "line 1"),
    ("<<: {a: b}\n", "unknown key '<<'", "f"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "says", "place"), BAD, ids=range(len(BAD)))
def test_bad_files_are_refused_with_place_and_reason(text: str, says: str, place: str) -> None:
    """Exit code 4, the place in the file, what was found or what to do: never a traceback, never a guess."""
    with pytest.raises(CleaveError) as caught:
        parse_fleet(text, "f.yaml")
    error = caught.value
    assert error.exit_code == 4
    assert error.where.startswith("f.yaml")
    assert place in error.where
    assert says in str(error)


def test_billion_laughs_is_refused_at_its_first_anchor() -> None:
    """Nothing is expanded: the first anchor ends the reading."""
    bomb = "a: &a [x,x,x,x]\n" + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{f'*{chr(97 + i)},' * 9}]\n" for i in range(20))
    with pytest.raises(InputFileError, match="an anchor"):
        parse_fleet(bomb, "bomb.yaml")


def test_scalars_stay_text() -> None:
    """No YAML 1.1 surprise: a device called ``no`` or ``1e3`` keeps its name."""
    text = with_phone(("name: phone", "name: no"))
    assert parse_fleet(text, "f").devices[0].name == "no"
    text = with_phone(("name: phone", "name: 1e3"))
    assert parse_fleet(text, "f").devices[0].name == "1e3"


def test_the_parser_without_libyaml_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where PyYAML has no C parser, the same values come from the Python one."""
    text = fleet_text(f"devices:\n  - {PHONE}")
    with_c = parse_fleet(text, "f")
    monkeypatch.setattr(yamlfile, "_LOADER", yamlfile.yaml.SafeLoader)
    assert parse_fleet(text, "f") == with_c
    with pytest.raises(InputFileError, match="not YAML"):
        parse_fleet("schema: [1", "f")


def test_missing_files_and_wrong_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No such file, a folder, bytes that are no text, a file beyond the limit."""
    with pytest.raises(InputFileError, match="No such file"):
        load_fleet(tmp_path / "absent.yaml")
    with pytest.raises(InputFileError, match="cannot be read"):
        load_fleet(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"schema: 1\nname: \xff\n")
    with pytest.raises(InputFileError, match="byte 16 is not UTF-8"):
        load_fleet(tmp_path / "latin.yaml")
    monkeypatch.setattr(textfile, "LARGEST_FILE_BYTES", 10)
    with pytest.raises(InputFileError, match="too large"):
        load_fleet(tmp_path / "latin.yaml")


def test_save_replaces_whole_files_and_leaves_nothing_beside(tmp_path: Path) -> None:
    """Written beside and renamed; a byte-order mark is tolerated; a missing folder is a sentence."""
    fleet = parse_fleet(fleet_text(f"devices:\n  - {PHONE}"), "f")
    path = tmp_path / "fleet.yaml"
    path.write_text("old")
    save_fleet(fleet, path)
    assert load_fleet(path) == fleet
    path.write_text("﻿" + path.read_text())
    assert load_fleet(path) == fleet
    assert [entry.name for entry in tmp_path.iterdir()] == ["fleet.yaml"]
    with pytest.raises(ExecutionError, match="cannot be written"):
        save_fleet(fleet, tmp_path / "absent" / "fleet.yaml")


def test_an_absent_element_type_raises_with_a_remedy() -> None:
    """A figure that nobody gave is never guessed."""
    text = with_phone(("flops: 1 TFLOP/s", "flops: {float32: 1 TFLOP/s}"))
    device = parse_fleet(text, "f").devices[0]
    assert device.rate(DType.FLOAT32) == 1e12
    with pytest.raises(MissingFigureError, match="add it to the fleet file"):
        device.rate(DType.FLOAT64)


TABLE = """
table:
  columns: [name, flops.float32 in TFLOP/s, downlink in Mbit/s, uplink in MB/s, latency in ms, memory in GB, power in W]
  rows: |
    a, 1, 80, 1.5, 31, 2.3, 5
    "b, the second", 2, 8e1, 1, 0, 1,
"""


def test_table_with_units_in_its_heads() -> None:
    """Cells are plain numbers in the unit of their column, converted exactly; an empty optional cell is absent."""
    first, second = parse_fleet(fleet_text(TABLE), "f").devices
    assert first == Device(
        name="a", flop_per_s={"float32": 1e12}, downlink_bytes_per_s=1e7, uplink_bytes_per_s=1.5e6, latency_s=0.031,
        memory_bytes=2.3e9, power_watt=5.0,
    )  # fmt: skip
    assert (second.name, second.latency_s, second.power_watt) == ("b, the second", 0.0, None)


@pytest.mark.parametrize(
    ("change", "says", "place"),
    [
        (("a, 1,", "a, nan,"), "plain finite number above 0", "table.rows[0].flops.float32"),
        (("a, 1,", "a, inf,"), "plain finite", "table.rows[0].flops.float32"),
        (("a, 1,", "a, 1_0,"), "plain finite", "table.rows[0].flops.float32"),
        (("a, 1,", "a, 1e999,"), "plain finite", "table.rows[0].flops.float32"),
        (("a, 1, 80", "a, 1, -80"), "plain finite", "table.rows[0].downlink"),
        (("a, 1, 80", "a, 1, 80 Mbit/s"), "plain finite", "table.rows[0].downlink"),
        (("a, 1, 80", "a, 1, "), "found nothing", "table.rows[0].downlink"),
        (("a, 1, 80", "a, , 80"), "no FLOP/s figure", "table.rows[0].flops"),
        (("a, 1, 80", "a, 80"), "found 6 values", "table.rows[0]"),
        (("downlink in Mbit/s", "downlink in Mbps"), "bits or as bytes", "table.columns[2]"),
        (("downlink in Mbit/s", "downlink"), "write the unit", "table.columns[2]"),
        (("downlink in Mbit/s", "downlnk in Mbit/s"), "did you mean 'downlink'", "table.columns[2]"),
        (("downlink in Mbit/s", "uplink in Mbit/s"), "two columns are 'uplink'", "table.columns"),
        (("flops.float32", "flops.fp32"), "element type", "table.columns[1]"),
        (("memory in GB, power in W", "power in W, efficiency"), "no column for memory", "table.columns"),
        (('"b, the second"', "a"), "two devices are named 'a'", "table.rows"),
        (("    a, 1", "    , 1"), "empty text", "table.rows[0].name"),
    ],
)
def test_bad_tables(change: tuple[str, str], says: str, place: str) -> None:
    """Faults in a table name the row and the column."""
    assert change[0] in TABLE
    with pytest.raises(InputFileError) as caught:
        parse_fleet(fleet_text(TABLE.replace(*change)), "f.yaml")
    assert says in str(caught.value)
    assert place in caught.value.where


RATES = st.floats(min_value=1e-3, max_value=1e18)
NAMES = st.text(st.characters(exclude_categories=("C", "Z")) | st.just(" "), max_size=8).map(lambda text: text.strip() or "null")
SOURCES = st.builds(
    Provenance, quality=st.sampled_from(Quality), source=NAMES, date=st.sampled_from(["", "2023", "2023-09", "2023-09-30"])
)
FLOPS = st.dictionaries(st.sampled_from(["any", "float32", "float16", "int8"]), RATES, min_size=1)
CURVES = st.lists(
    st.tuples(st.floats(1.0, 1e15), st.floats(0, 1, exclude_min=True)), max_size=3, unique_by=lambda point: point[0]
).map(lambda points: tuple(EfficiencyPoint(flop=flop, fraction=share) for flop, share in sorted(points)))
MARKS = st.dictionaries(st.sampled_from(["flops", "flops.float32", "downlink", "memory", "efficiency"]), SOURCES, max_size=3)


def with_spread(device: Device, share: float | None, samples: int) -> Device:
    """``device`` with quartiles around every figure that may have them (``share`` None: without)."""
    if share is None:
        return device
    values = {f"flops.{dtype}": value for dtype, value in device.flop_per_s.items()}
    values |= {"downlink": device.downlink_bytes_per_s, "uplink": device.uplink_bytes_per_s, "latency": device.latency_s}
    quartiles = {name: Spread(lower=value * share, upper=value / share, samples=samples) for name, value in values.items()}
    return replace(device, spread=quartiles)


PRICES = st.none() | st.floats(0, 1e4)


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    """Any fleet that a file can hold."""
    device = st.builds(
        Device, name=NAMES, flop_per_s=FLOPS, downlink_bytes_per_s=RATES, uplink_bytes_per_s=RATES,
        latency_s=st.floats(0, 10), memory_bytes=RATES, power_watt=st.none() | st.floats(0, 1e3), efficiency=CURVES,
        dollars_per_hour=PRICES, provenance=MARKS,
    )  # fmt: skip
    server = st.builds(
        Server, name=NAMES, flop_per_s=FLOPS, memory_bytes=RATES | st.just(math.inf), memory_bandwidth_bytes_per_s=RATES,
        egress_bytes_per_s=RATES | st.just(math.inf), ingress_bytes_per_s=RATES | st.just(math.inf),
        dollars_per_hour=PRICES, provenance=st.dictionaries(st.sampled_from(["flops", "egress", "price"]), SOURCES),
    )  # fmt: skip
    spread = st.builds(with_spread, device, st.none() | st.floats(0.1, 1), st.integers(1, 99))
    devices = draw(st.lists(spread, min_size=1, max_size=4, unique_by=lambda member: member.name))
    servers = draw(st.lists(server, min_size=1, max_size=2, unique_by=lambda member: member.name))
    return make_fleet(draw(NAMES), servers, devices)


@settings(max_examples=150, deadline=None)
@given(fleet=fleets(), as_table=st.booleans())
def test_round_trip(fleet: Fleet, as_table: bool) -> None:
    """Whatever is dumped, as a list or as a table, loads as exactly the same fleet with the same fingerprint."""
    assert parse_fleet(dump_fleet(fleet, table_from=1 if as_table else 10), "f", name="other") == fleet


@settings(max_examples=60, deadline=None)
@given(fleet=fleets())
def test_other_yaml_readers_see_the_same_names(fleet: Fleet) -> None:
    """PyYAML's own safe loader agrees on every name, so nothing depends on our reader's leniency."""
    read = yamlfile.yaml.safe_load(dump_fleet(fleet, table_from=10))
    assert read["name"] == fleet.name
    assert [device["name"] for device in read["devices"]] == [device.name for device in fleet.devices]


def test_names_that_no_file_can_hold_are_refused_when_written() -> None:
    """A name with a line break would not read back."""
    device = parse_fleet(with_phone(("name: phone", 'name: "a b"')), "f").devices[0]
    fleet = parse_fleet(fleet_text(f"devices:\n  - {PHONE}"), "f")
    assert device.name == "a b"
    broken = Fleet(name="two\nlines", servers=fleet.servers, devices=fleet.devices)
    with pytest.raises(InputFileError, match="cannot be written"):
        dump_fleet(broken)


def test_fingerprint_is_of_figures_not_of_text() -> None:
    """Formatting, comments, units, provenance and the fleet's name do not change it; any figure or name does."""
    plain = parse_fleet(fleet_text(f"devices:\n  - {PHONE}"), "f", name="a")
    changed = PHONE.replace("80 Mbit/s", "10 MB/s").replace("31 ms", "0.031 s")
    same = fleet_text(f"# comment\ndevices:\n\n  -   {changed[:-1]}, provenance: {{memory: {{quality: assumed, source: x}}}}}}")
    assert parse_fleet(same, "f", name="b").sha256 == plain.sha256
    assert re.fullmatch("[0-9a-f]{64}", plain.sha256)
    for change in [("phone", "fone"), ("80 Mbit/s", "81 Mbit/s"), ("1.5 GiB", "1.5 GB"), ("31 ms", "31 us"),
                   ("1.5 GiB", "1.5 GiB, power: 1 W"), ("1.5 GiB", "1.5 GiB, efficiency: [[1 MFLOP, 0.5]]")]:  # fmt: skip
        assert parse_fleet(with_phone(change), "f").sha256 != plain.sha256, change
    moved = parse_fleet(fleet_text(f"devices:\n  - {PHONE}", servers=SERVERS.replace("64 GB", "65 GB")), "f")
    assert moved.sha256 != plain.sha256
