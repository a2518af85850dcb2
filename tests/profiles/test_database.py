"""The profile database: what goes in comes out, several writers share it, and what is not a database is a sentence."""

from __future__ import annotations

import json
import multiprocessing
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cleave_plan.errors import ExecutionError, InputFileError, MissingFigureError, UsageError
from cleave_plan.fleet.device import Provenance, Quality, Spread
from cleave_plan.fleet.figures import Figure
from cleave_plan.fleet.fleetfile import dump_fleet, parse_fleet
from cleave_plan.fleet.provenance import provenance_of
from cleave_plan.fleet.synthetic import reference_server
from cleave_plan.profiles import schema
from cleave_plan.profiles.assemble import Member, fleet_from_profiles
from cleave_plan.profiles.database import ProfileDatabase, default_database_path
from cleave_plan.profiles.records import GemmMeasurement, Profile, ProfileKind

MEASURED = Provenance(quality=Quality.MEASURED, source="stopwatch", date="2025-11-02")


def figure(value: float) -> Figure:
    """A measured figure."""
    return Figure(value=value, provenance=MEASURED)


def gemm(size: int = 64, *, dtype: str = "float32", rate: float = 1e9, threads: int = 1) -> GemmMeasurement:
    """A timing of a cube that ran at ``rate`` FLOP/s."""
    seconds = 2 * size**3 / rate
    return GemmMeasurement(
        dtype=dtype, m=size, k=size, n=size, threads=threads, median_s=seconds, lower_quartile_s=seconds * 0.9,
        upper_quartile_s=seconds * 1.2, repeats=7, numpy="2.0", blas="openblas 0.3", date="2025-11-01",
    )  # fmt: skip


BOARD = Profile(
    name="board", kind=ProfileKind.MACHINE, title="A single-board computer",
    figures={"memory": figure(2e9), "power": figure(7.0)},
    gemms=(gemm(32, rate=5e8), gemm(64, rate=1e9), gemm(64, dtype="float64", rate=4e8)),
)  # fmt: skip
LINK_WITH_SPREAD = Profile(
    name="measured", kind=ProfileKind.LINK, title="DSL, measured",
    figures={"uplink": replace(figure(1e6), spread=Spread(lower=0.9e6, upper=1e6, samples=7))},
)  # fmt: skip
HOME = Profile(
    name="home", kind=ProfileKind.LINK, title="DSL",
    figures={"downlink": figure(1e7), "uplink": figure(1e6), "latency": figure(0.02), "overhead": figure(0.003)},
)  # fmt: skip


@pytest.fixture
def database(tmp_path: Path) -> ProfileDatabase:
    """An empty database in a folder that does not exist yet."""
    return ProfileDatabase.open(tmp_path / "new" / "profiles.sqlite")


def test_profiles_come_back_as_they_went_in(database: ProfileDatabase) -> None:
    """Also after the file is closed and opened again."""
    database.add(BOARD, HOME)
    database.close()
    with ProfileDatabase.open(database.path, create=False) as again:
        assert again.show("board") == BOARD
        assert again.show("home") == HOME
        link, machine = again.list()
        assert (link.name, link.kind, link.figures, link.gemms, link.dtypes) == ("home", "link", 4, 0, ())
        assert (machine.name, machine.figures, machine.gemms, machine.dtypes) == ("board", 2, 3, ("float32", "float64"))
        assert machine.date == "2025-11-02"


def test_taken_names_are_replaced_only_on_request(database: ProfileDatabase) -> None:
    """A refused addition changes nothing, not even the profiles before it in the same call."""
    database.add(BOARD)
    with pytest.raises(UsageError, match="already a profile 'board'"):
        database.add(HOME, replace(BOARD, title="other"))
    assert [each.name for each in database.list()] == ["board"]
    smaller = replace(BOARD, figures={"memory": figure(1e9)}, gemms=BOARD.gemms[:1])
    database.add(smaller, replace=True)
    assert database.show("board") == smaller, "no figure or timing of the old profile is left"


def test_remove_and_unknown_names(database: ProfileDatabase) -> None:
    """Removing takes figures and timings along; unknown names suggest the nearest."""
    database.add(BOARD)
    with pytest.raises(UsageError, match="did you mean 'board'"):
        database.show("bord")
    with pytest.raises(UsageError, match="unknown profile"):
        database.remove("bord")
    database.remove("board")
    assert database.list() == ()
    with sqlite3.connect(database.path) as connection:
        assert connection.execute("SELECT (SELECT count(*) FROM figures) + (SELECT count(*) FROM gemms)").fetchone() == (0,)


def test_device_from_timings_and_a_link(database: ProfileDatabase) -> None:
    """FLOP/s from the best timing, the curve of float32 below it, overhead in the latency, sources kept."""
    database.add(BOARD, HOME)
    device = database.device("board", "home", device_name="kitchen")
    assert device.name == "kitchen"
    assert device.flop_per_s == pytest.approx({"float32": 1e9, "float64": 4e8})
    assert [(point.flop, pytest.approx(point.fraction)) for point in device.efficiency] == [(65536, 0.5), (524288, 1.0)]
    assert (device.memory_bytes, device.power_watt, device.latency_s) == (2e9, 7.0, pytest.approx(0.023))
    assert "2 float32 GEMM timings of A single-board computer, 1 thread" in provenance_of(device, "flops.float32").source
    assert provenance_of(device, "downlink") == MEASURED
    assert len(database.device("board", "home", curve_dtype="float64").efficiency) == 1
    with pytest.raises(UsageError, match="no float16 timings"):
        database.device("board", "home", curve_dtype="float16")


def test_device_with_catalogue_entries_and_given_figures(database: ProfileDatabase) -> None:
    """Machines and links may name the catalogue; a profile of the same name wins; given figures win over both."""
    database.add(BOARD)
    assert database.device("board", "us-mobile-2023").latency_s == 0.031
    device = database.device("apple-m4", "us-fixed-2023", given={"memory": figure(4e9), "flops.any": figure(3e12)})
    assert (device.memory_bytes, device.flop_per_s) == (4e9, {"any": 3e12})
    database.add(replace(HOME, name="us-fixed-2023"))
    assert database.device("board", "us-fixed-2023").downlink_bytes_per_s == 1e7
    with pytest.raises(UsageError, match="did you mean 'us-mobile-2023'"):
        database.device("board", "us-mobil-2023")
    with pytest.raises(UsageError, match="unknown machine 'home'"):
        database.device("home", "us-mobile-2023")


def test_timed_figures_win_over_a_data_sheets_peak(database: ProfileDatabase) -> None:
    """A peak times an assumed share never hides a measurement; a figure stated as sustained does."""
    sheet = {"peak.float32": figure(8e9), "sustained": figure(0.5), "peak.float16": figure(16e9), "memory": figure(1e9)}
    database.add(replace(BOARD, figures=sheet), HOME)
    assert database.device("board", "home").flop_per_s == pytest.approx({"float32": 1e9, "float64": 4e8, "float16": 8e9})
    database.add(replace(BOARD, figures=sheet | {"flops.float32": figure(2e9)}), replace=True)
    assert database.device("board", "home").flop_per_s["float32"] == 2e9


def test_missing_figures_say_what_to_do(database: ProfileDatabase) -> None:
    """No link, half a link, no memory, no arithmetic: nothing is guessed."""
    partial = Profile(name="half", kind=ProfileKind.LINK, title="half a link", figures={"downlink": figure(1e7)})
    bare = Profile(name="bare", kind=ProfileKind.MACHINE, title="bare", figures={"memory": figure(1e9)})
    database.add(BOARD, partial, bare, replace(BOARD, name="small", figures={}), HOME)
    for machine, link, missing in [("board", None, "downlink"), ("board", "half", "uplink"), ("small", "home", "memory"),
                                   ("bare", "home", "flops")]:  # fmt: skip
        with pytest.raises(MissingFigureError, match=f"no {missing} figure.*give the figure") as caught:
            database.device(machine, link)
        assert caught.value.exit_code == 4


def test_fleet_from_profiles(database: ProfileDatabase) -> None:
    """Members are numbered, and the fleet goes through a file unchanged."""
    database.add(BOARD, HOME)
    board, home = database.machine("board"), database.link("home")
    members = [
        Member(machine=board, link=home, count=2),
        Member(machine=database.machine("apple-m1"), link=home, name="laptop", given={"memory": figure(4e9)}),
    ]
    fleet = fleet_from_profiles("flat", members, [reference_server()])
    assert [device.name for device in fleet.devices] == ["board-1", "board-2", "laptop"]
    assert parse_fleet(dump_fleet(fleet), "f") == fleet
    with pytest.raises(InputFileError, match="two devices are named 'board'"):
        fleet_from_profiles("flat", [Member(machine=board, link=home)] * 2, [reference_server()])
    with pytest.raises(InputFileError, match="no devices"):
        fleet_from_profiles("flat", [], [reference_server()])
    with pytest.raises(UsageError, match="0 devices"):
        fleet_from_profiles("flat", [Member(machine=board, link=home, count=0)], [reference_server()])
    with pytest.raises(UsageError, match="is a link"):
        fleet_from_profiles("flat", [Member(machine=home, link=home)], [reference_server()])
    with pytest.raises(UsageError, match="is a machine"):
        fleet_from_profiles("flat", [Member(machine=board, link=board)], [reference_server()])


def test_default_path_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """XDG_DATA_HOME where it is absolute, otherwise ~/.local/share."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_database_path() == tmp_path / "cleave-plan" / "profiles.sqlite"
    with ProfileDatabase.open() as database:
        assert database.path == default_database_path()
    monkeypatch.setenv("HOME", "/home/x")
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_DATA_HOME", ignored)
        assert default_database_path() == Path("/home/x/.local/share/cleave-plan/profiles.sqlite")


def test_files_that_are_no_database(tmp_path: Path) -> None:
    """Corrupt, truncated, another program's, missing, a folder: exit 4 with a remedy, and the file stays as it was."""
    (tmp_path / "noise.sqlite").write_bytes(b"no database at all" * 100)
    with ProfileDatabase.open(tmp_path / "cut.sqlite") as database:
        database.add(*(replace(BOARD, name=f"board-{index}") for index in range(50)))
    whole = (tmp_path / "cut.sqlite").read_bytes()
    (tmp_path / "cut.sqlite").write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    with sqlite3.connect(tmp_path / "other.sqlite") as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.close()
    (tmp_path / "folder").mkdir()
    for name, says in [("noise.sqlite", "damaged"), ("cut.sqlite", "damaged"), ("other.sqlite", "another program"),
                       ("folder", "cannot be used"), ("absent.sqlite", "no profile database")]:  # fmt: skip
        path = tmp_path / name
        before = path.read_bytes() if path.is_file() else None
        with pytest.raises(InputFileError, match=says) as caught, ProfileDatabase.open(path, create=False) as database:
            database.list()
        assert caught.value.remedy
        assert str(path) in caught.value.where
        assert (path.read_bytes() if path.is_file() else None) == before
    (tmp_path / "file").write_text("")
    with pytest.raises(ExecutionError, match="folder cannot be made"):
        ProfileDatabase.open(tmp_path / "file" / "profiles.sqlite")


def test_values_that_another_program_wrote(database: ProfileDatabase) -> None:
    """SQLite stores text where a number belongs; reading it is a sentence, not a traceback."""
    database.add(BOARD)
    for spoiled in ("UPDATE gemms SET m = 'many'", "UPDATE figures SET figure = 'nonsense' WHERE figure = 'power'"):
        with sqlite3.connect(database.path) as connection:
            connection.execute(spoiled)
        connection.close()
        with pytest.raises(InputFileError, match="damaged"):
            database.show("board")
        database.add(BOARD, replace=True)


def test_newer_versions_are_refused(database: ProfileDatabase) -> None:
    """A file from a newer program is not touched."""
    database.close()
    with sqlite3.connect(database.path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(InputFileError, match="version 99; expected version 2 or older; use a newer cleave-plan"):
        ProfileDatabase.open(database.path)


def test_old_databases_are_migrated_with_their_contents(database: ProfileDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file goes through the next migration once, keeps its profiles, and a failing migration changes nothing."""
    database.add(BOARD)
    database.close()
    broken = (*schema.MIGRATIONS, ("ALTER TABLE profiles ADD COLUMN note TEXT NOT NULL DEFAULT ''", "nonsense"))
    monkeypatch.setattr(schema, "MIGRATIONS", broken)
    with pytest.raises(InputFileError, match="nonsense"):
        ProfileDatabase.open(database.path)
    monkeypatch.setattr(schema, "MIGRATIONS", (*broken[:-1], broken[-1][:1]))
    for _ in range(2):
        with ProfileDatabase.open(database.path) as migrated:
            assert migrated.show("board") == BOARD
    with sqlite3.connect(database.path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (3,)
        assert connection.execute("SELECT note FROM profiles").fetchall() == [("",)]
    connection.close()


def test_databases_of_before_spreads(tmp_path: Path) -> None:
    """A version 1 file, written by hand as the first release laid it out, reads as before; its figures have no spread."""
    with sqlite3.connect(tmp_path / "old.sqlite") as connection:
        for statement in schema.MIGRATIONS[0]:
            connection.execute(statement)
        connection.execute("INSERT INTO profiles VALUES ('dsl', 'link', 'DSL at home')")
        connection.execute("INSERT INTO figures VALUES ('dsl', 'downlink', 12.5e6, 'measured', 'speed test', '2025-11-02')")
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    with ProfileDatabase.open(tmp_path / "old.sqlite") as database:
        figure = database.show("dsl").figures["downlink"]
        assert (figure.value, figure.spread) == (12.5e6, None)
        database.add(LINK_WITH_SPREAD)
        assert database.show("measured") == LINK_WITH_SPREAD
        database.export(tmp_path / "all.json")
    with ProfileDatabase.open(tmp_path / "new.sqlite") as other:
        assert set(other.import_(tmp_path / "all.json")) == {"dsl", "measured"}
        assert other.show("measured") == LINK_WITH_SPREAD


def add_many(path: Path, prefix: str) -> None:
    """A writer process: ten profiles, one transaction each."""
    with ProfileDatabase.open(path) as database:
        for index in range(10):
            database.add(replace(BOARD, name=f"{prefix}-{index}"))


def test_concurrent_writers_lose_nothing(tmp_path: Path) -> None:
    """Four processes create, migrate and fill the same new file at once."""
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=add_many, args=(tmp_path / "p.sqlite", name)) for name in "abcd"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(30)
        assert writer.exitcode == 0
    with ProfileDatabase.open(tmp_path / "p.sqlite") as database:
        assert len(database.list()) == 40


def test_a_file_that_stays_locked_is_said_so(database: ProfileDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the wait, a sentence that another process is writing."""
    monkeypatch.setattr("cleave_plan.profiles.database.WAIT_FOR_OTHERS_S", 0.01)
    other = sqlite3.connect(database.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with ProfileDatabase.open(database.path) as second, pytest.raises(InputFileError, match="another process is writing"):
        second.add(BOARD)
    other.execute("ROLLBACK")
    other.close()


TEXT = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=10)
POSITIVE = st.floats(1e-9, 1e18)
MARKS = st.builds(Provenance, quality=st.sampled_from(Quality), source=TEXT, date=st.sampled_from(["", "2024", "2025-01-31"]))
FIGURES = st.builds(Figure, value=POSITIVE, provenance=MARKS)
SECONDS = st.lists(POSITIVE, min_size=3, max_size=3).map(sorted)


@st.composite
def timings(draw: st.DrawFn) -> GemmMeasurement:
    """Any timing with one thread."""
    low, median, high = draw(SECONDS)
    side = st.integers(1, 10_000)
    return GemmMeasurement(
        dtype=draw(st.sampled_from(["float32", "float16"])), m=draw(side), k=draw(side), n=draw(side), threads=1,
        median_s=median, lower_quartile_s=low, upper_quartile_s=high, repeats=draw(side), numpy=draw(TEXT), blas=draw(TEXT),
        date="2025-01-31",
    )  # fmt: skip


PROFILES = st.one_of(
    st.builds(
        Profile, name=TEXT, kind=st.just(ProfileKind.LINK), title=TEXT,
        figures=st.dictionaries(st.sampled_from(["downlink", "uplink", "latency", "overhead"]), FIGURES),
    ),
    st.builds(
        Profile, name=TEXT, kind=st.just(ProfileKind.MACHINE), title=TEXT,
        figures=st.dictionaries(st.sampled_from(["memory", "power", "flops.int8", "peak.float32"]), FIGURES),
        gemms=st.lists(timings(), max_size=3, unique_by=lambda g: (g.dtype, g.m, g.k, g.n)).map(
            lambda found: tuple(sorted(found, key=lambda g: (g.dtype, g.m, g.k, g.n)))
        ),
    ),
)  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(profiles=st.lists(PROFILES, min_size=1, max_size=3, unique_by=lambda profile: profile.name))
def test_export_and_import_round_trip(profiles: list[Profile], tmp_path: Path) -> None:
    """What one database exports, another imports as exactly the same profiles."""
    for name in ("a.sqlite", "b.sqlite"):
        (tmp_path / name).unlink(missing_ok=True)
    with ProfileDatabase.open(tmp_path / "a.sqlite") as first, ProfileDatabase.open(tmp_path / "b.sqlite") as second:
        first.add(*profiles)
        first.export(tmp_path / "all.json")
        assert sorted(second.import_(tmp_path / "all.json")) == sorted(profile.name for profile in profiles)
        for profile in profiles:
            assert first.show(profile.name) == second.show(profile.name) == profile
        with pytest.raises(UsageError, match="already a profile"):
            second.import_(tmp_path / "all.json")
        second.import_(tmp_path / "all.json", replace=True)


def test_export_of_chosen_profiles(database: ProfileDatabase, tmp_path: Path) -> None:
    """Only what was named is written, and a figure's value stands in SI."""
    database.add(BOARD, HOME)
    database.export(tmp_path / "one.json", ["home"])
    document = json.loads((tmp_path / "one.json").read_text())
    assert document["schema_version"] == 1
    assert [profile["name"] for profile in document["profiles"]] == ["home"]
    assert document["profiles"][0]["figures"]["downlink"] == {
        "value": 1e7, "quality": "measured", "source": "stopwatch", "date": "2025-11-02",
    }  # fmt: skip


GOOD = (
    '{"schema_version": 1, "profiles": [{"name": "h", "kind": "link", "title": "t", '
    '"figures": {"uplink": {"value": 1.5, "quality": "measured", "source": "s"}}}]}'
)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ((GOOD, ""), "truncated"),
        ((GOOD, "[]"), "Expected `object`"),
        ((GOOD, "[" * 100_000), ""),
        (("}]}", "}"), "truncated"),
        (('"schema_version": 1', '"schema_version": 2'), "$.schema_version: schema_version 2"),
        (('"schema_version": 1, ', ""), "schema_version"),
        (('"kind": "link"', '"kind": "lnk"'), "$.profiles[0].kind"),
        (('"kind": "link"', '"knd": "link"'), "knd"),
        (('"uplink"', '"uplnk"'), "profile h: uplnk: unknown figure 'uplnk'"),
        (('"uplink"', '"memory"'), "unknown figure 'memory'"),
        (("1.5", "-1.5"), "profile h: uplink: found -1.5"),
        (("1.5", "0"), "above 0"),
        (("1.5", "NaN"), "malformed"),
        (("1.5", "1e999"), "out of range"),
        (("1.5", '"1.5 MB/s"'), "Expected `float`"),
        (('"s"', '""'), "source"),
        (('"s"', '"s", "date": "May"'), "ISO date"),
        (('"measured"', '"guessed"'), "guessed"),
        (('"title": "t"', '"title": "t", "gemms": [{"m": 1}]'), "$.profiles[0].gemms[0]"),
        (('[{"name"', f'[{GOOD[GOOD.index("[") + 1 : -2]}, {{"name"'), "two profiles are named 'h'"),
    ],
)
def test_bad_imports(change: tuple[str, str], says: str, database: ProfileDatabase, tmp_path: Path) -> None:
    """Each fault with file and place, and nothing is stored."""
    assert change[0] in GOOD
    path = tmp_path / "bad.json"
    path.write_text(GOOD.replace(change[0], change[1], 1))
    with pytest.raises(InputFileError) as caught:
        database.import_(path)
    assert says in str(caught.value)
    assert str(path) in caught.value.where
    assert database.list() == ()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"name": ""}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"title": " "}, "title"),
        ({"figures": {"memory": Figure(value=1.0)}}, "no provenance"),
        ({"figures": {"sustained": figure(1.5)}}, "a share"),
        ({"figures": {"memory": figure(float("nan"))}}, "found nan"),
        ({"figures": {"downlink": figure(1.0)}}, "unknown figure"),
        ({"gemms": (gemm(), gemm())}, "two timings"),
        ({"gemms": (gemm(8), gemm(9, threads=2))}, "different numbers of threads"),
        ({"gemms": (replace(gemm(), dtype="fp32"),)}, "element type"),
        ({"gemms": (replace(gemm(), repeats=0),)}, "repeats"),
        ({"gemms": (replace(gemm(), median_s=float("nan")),)}, "rising and above 0"),
        ({"gemms": (replace(gemm(), lower_quartile_s=9.0),)}, "rising and above 0"),
        ({"kind": ProfileKind.LINK, "figures": {}}, "GEMM timings of a link"),
    ],
)
def test_profiles_are_checked_when_built(changes: dict[str, object], says: str) -> None:
    """A profile that makes no sense cannot exist."""
    with pytest.raises(InputFileError, match=says):
        replace(BOARD, **changes)  # type: ignore[arg-type]
