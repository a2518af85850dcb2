"""The profile database: one SQLite file of machines and links with where every figure comes from.

Writers lock the whole file for one short transaction each and wait for one another, so several processes may share it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from types import TracebackType

from cleave_plan.errors import CleaveError, ExecutionError, InputFileError, UsageError
from cleave_plan.fleet.catalogue import CatalogueEntry, catalogue
from cleave_plan.fleet.device import Device, Provenance, Quality, Spread
from cleave_plan.fleet.figures import Figure
from cleave_plan.fleet.reading import unknown
from cleave_plan.ordering import natural
from cleave_plan.profiles.assemble import assemble_device
from cleave_plan.profiles.exchange import read_profiles, write_profiles
from cleave_plan.profiles.records import GemmMeasurement, Profile, ProfileKind
from cleave_plan.profiles.schema import migrate

WAIT_FOR_OTHERS_S = 30.0
_GEMM_COLUMNS = tuple(field.name for field in fields(GemmMeasurement))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSummary:
    """One line of a listing: how many figures and timings, of which element types, the newest date among them."""

    name: str
    kind: ProfileKind
    title: str
    figures: int
    gemms: int
    dtypes: tuple[str, ...]
    date: str


def default_database_path() -> Path:
    """``$XDG_DATA_HOME/cleave-plan/profiles.sqlite``, by default under ``~/.local/share``."""
    given = os.environ.get("XDG_DATA_HOME", "")
    # The XDG rules: a path that is not absolute is to be ignored.
    folder = Path(given) if given and Path(given).is_absolute() else Path("~/.local/share").expanduser()
    return folder / "cleave-plan" / "profiles.sqlite"


class ProfileDatabase:
    """An open database; a context manager that closes it.

    Every method raises InputFileError (exit 4) when the file is corrupt or cannot be read or written.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection

    @classmethod
    def open(cls, path: str | Path | None = None, *, create: bool = True) -> ProfileDatabase:
        """Open ``path`` (default: :func:`default_database_path`) and migrate it to this version.

        A missing file is created with its folders, or with ``create=False`` raises InputFileError.
        """
        path = default_database_path() if path is None else Path(path)
        if not create and not path.exists():
            raise InputFileError(
                "no profile database", where=str(path), expected="an existing file",
                remedy="make one with `cleave-plan profile measure` or `profile import`",
            )  # fmt: skip
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ExecutionError(f"the folder cannot be made ({error.strerror})", where=str(path.parent)) from error
        with _guarded(path):
            connection = sqlite3.connect(path, timeout=WAIT_FOR_OTHERS_S, isolation_level=None)
            try:
                connection.execute("PRAGMA foreign_keys = ON")
                migrate(connection, str(path))
            except BaseException:
                connection.close()
                raise
        return cls(path, connection)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> ProfileDatabase:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def add(self, *profiles: Profile, replace: bool = False) -> None:
        """Store profiles, all of them or none. A name that is taken raises UsageError unless ``replace``."""
        with _guarded(self.path), self._transaction() as connection:
            for profile in profiles:
                self._insert(connection, profile, replace)

    def remove(self, name: str) -> None:
        """Delete a profile with its figures and timings; raises UsageError when there is none of that name."""
        with _guarded(self.path), self._transaction() as connection:
            if connection.execute("DELETE FROM profiles WHERE name = ?", (name,)).rowcount == 0:
                raise self._absent(name)

    def list(self) -> tuple[ProfileSummary, ...]:
        """Every profile in one line each, sorted by kind and name."""
        return tuple(_summary(profile) for profile in sorted(self._all(), key=lambda each: (each.kind, natural(each.name))))

    def show(self, name: str) -> Profile:
        """The whole profile ``name``; raises UsageError with the nearest name when there is none."""
        with _guarded(self.path):
            row = self._connection.execute("SELECT name, kind, title FROM profiles WHERE name = ?", (name,)).fetchone()
            if row is None:
                raise self._absent(name)
            return self._read(row)

    def export(self, path: str | Path, names: Iterable[str] | None = None) -> None:
        """Write the profiles ``names`` (default: all) as JSON to ``path``, beside and renamed."""
        write_profiles(self._all() if names is None else [self.show(name) for name in names], path)

    def import_(self, path: str | Path, *, replace: bool = False) -> tuple[str, ...]:
        """Store the profiles of a JSON file that :meth:`export` wrote or a person did; returns their names.

        All of them or none: raises InputFileError naming the place of a fault, UsageError for a name that is taken.
        """
        profiles = read_profiles(path)
        self.add(*profiles, replace=replace)
        return tuple(profile.name for profile in profiles)

    def device(
        self,
        name: str,
        link: str | Profile | CatalogueEntry | None = None,
        *,
        device_name: str | None = None,
        given: Mapping[str, Figure] | None = None,
        curve_dtype: str | None = None,
    ) -> Device:
        """A device from machine ``name`` on ``link``; both may name a profile of this database or a catalogue entry.

        ``given`` figures replace what profile and link say. The efficiency curve is that of ``curve_dtype`` (default:
        float32 where it was timed, otherwise the first type that was). Raises MissingFigureError, with what to do, for
        a figure that neither machine, link nor ``given`` has, and UsageError for unknown names.
        """
        machine = self.machine(name)
        line = self.link(link) if isinstance(link, str) else link
        return assemble_device(machine, line, name=device_name or name, given=given or {}, curve_dtype=curve_dtype)

    def machine(self, name: str) -> Profile | CatalogueEntry:
        """The machine ``name`` of this database, else of the catalogue; raises UsageError with the nearest name."""
        return self._named(name, ProfileKind.MACHINE)

    def link(self, name: str) -> Profile | CatalogueEntry:
        """The link ``name`` of this database, else of the catalogue; raises UsageError with the nearest name."""
        return self._named(name, ProfileKind.LINK)

    def _named(self, name: str, kind: ProfileKind) -> Profile | CatalogueEntry:
        entries = catalogue().devices if kind is ProfileKind.MACHINE else catalogue().links
        own = {summary.name: summary.kind for summary in self.list()}
        if own.get(name) is kind:
            return self.show(name)
        if name in entries:
            return entries[name]
        fault = unknown(f"{kind} {name!r}", name, [*(each for each, what in own.items() if what is kind), *entries], "")
        raise UsageError(fault.what, where=str(self.path), expected=fault.expected, remedy=fault.remedy)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """One write transaction that takes the lock at once, so that two writers queue instead of failing half-way."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def _insert(self, connection: sqlite3.Connection, profile: Profile, replace: bool) -> None:
        taken = connection.execute("SELECT 1 FROM profiles WHERE name = ?", (profile.name,)).fetchone()
        if taken and not replace:
            raise UsageError(
                f"there is already a profile {profile.name!r}", where=str(self.path), remedy="choose another name, or replace it"
            )
        connection.execute("DELETE FROM profiles WHERE name = ?", (profile.name,))
        connection.execute("INSERT INTO profiles VALUES (?, ?, ?)", (profile.name, profile.kind.value, profile.title))
        for name, figure in profile.figures.items():
            mark = figure.provenance
            if mark is not None:  # Profile refuses figures without
                spread = (None, None, None) if figure.spread is None else astuple(figure.spread)
                row = (profile.name, name, float(figure.value), mark.quality.value, mark.source, mark.date, *spread)
                connection.execute("INSERT INTO figures VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        columns = ", ".join(_GEMM_COLUMNS)
        marks = ", ".join("?" * (1 + len(_GEMM_COLUMNS)))
        connection.executemany(
            f"INSERT INTO gemms (profile, {columns}) VALUES ({marks})", [(profile.name, *astuple(gemm)) for gemm in profile.gemms]
        )

    def _all(self) -> tuple[Profile, ...]:
        with _guarded(self.path):
            rows = self._connection.execute("SELECT name, kind, title FROM profiles ORDER BY name").fetchall()
            return tuple(self._read(row) for row in rows)

    def _read(self, row: tuple[str, str, str]) -> Profile:
        name, kind, title = row
        figures = self._connection.execute(
            "SELECT figure, value, quality, source, date, lower, upper, samples FROM figures WHERE profile = ? ORDER BY figure",
            (name,),
        )
        gemms = self._connection.execute(
            f"SELECT {', '.join(_GEMM_COLUMNS)} FROM gemms WHERE profile = ? ORDER BY dtype, m, k, n", (name,)
        )
        try:
            return Profile(
                name=name,
                kind=ProfileKind(kind),
                title=title,
                figures={row[0]: _figure(*row[1:]) for row in figures},
                gemms=tuple(GemmMeasurement(**dict(zip(_GEMM_COLUMNS, values, strict=True))) for values in gemms),
            )
        except (CleaveError, ValueError, TypeError) as error:  # SQLite keeps whatever type another program wrote
            raise _damaged(self.path, error) from error

    def _absent(self, name: str) -> UsageError:
        fault = unknown(f"profile {name!r}", name, [summary.name for summary in self.list()], "")
        return UsageError(fault.what, where=str(self.path), expected=fault.expected, remedy=fault.remedy)


def _figure(value: float, quality: str, source: str, date: str, lower: float, upper: float, samples: int | None) -> Figure:
    return Figure(
        value=value,
        provenance=Provenance(quality=Quality(quality), source=source, date=date),
        spread=None if samples is None else Spread(lower=lower, upper=upper, samples=samples),
    )


def _summary(profile: Profile) -> ProfileSummary:
    dates = [figure.provenance.date for figure in profile.figures.values() if figure.provenance]
    dates += [gemm.date for gemm in profile.gemms]
    return ProfileSummary(
        name=profile.name, kind=profile.kind, title=profile.title, figures=len(profile.figures), gemms=len(profile.gemms),
        dtypes=tuple(sorted({gemm.dtype for gemm in profile.gemms})), date=max(dates, default=""),
    )  # fmt: skip


@contextmanager
def _guarded(path: Path) -> Iterator[None]:
    """Turn SQLite's exceptions into sentences about ``path``."""
    try:
        yield
    except CleaveError:
        raise
    except (sqlite3.OperationalError, PermissionError) as error:
        locked = "locked" in str(error)
        raise InputFileError(
            f"the profile database cannot be used ({error})", where=str(path), expected="a readable and writable SQLite file",
            remedy="another process is writing: try again" if locked else "check the path and its permissions",
        ) from error  # fmt: skip
    except sqlite3.DatabaseError as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> InputFileError:
    return InputFileError(
        f"the profile database is damaged ({error})", where=str(path), expected="a SQLite file of cleave-plan",
        remedy="restore it from an export, or move it away and measure again",
    )  # fmt: skip
