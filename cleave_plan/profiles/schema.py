"""The tables of the profile database and how an old file becomes a new one.

``PRAGMA user_version`` is the number of migrations a file has been through; migration i brings version i to i + 1, and
an empty file is version 0. A migration is never edited once released: a change of the tables is a new one at the end.
"""

from __future__ import annotations

import sqlite3

from cleave_plan.errors import InputFileError

APPLICATION_ID = 0x434C5650  # "CLVP", written into the file's header so that no other program's database is touched

_CREATE = (
    """CREATE TABLE profiles (
        name TEXT PRIMARY KEY NOT NULL,
        kind TEXT NOT NULL CHECK (kind IN ('machine', 'link')),
        title TEXT NOT NULL
    )""",
    """CREATE TABLE figures (
        profile TEXT NOT NULL REFERENCES profiles (name) ON DELETE CASCADE,
        figure TEXT NOT NULL,
        value REAL NOT NULL CHECK (value >= 0),
        quality TEXT NOT NULL CHECK (quality IN ('measured', 'specified', 'assumed')),
        source TEXT NOT NULL,
        date TEXT NOT NULL,
        PRIMARY KEY (profile, figure)
    )""",
    """CREATE TABLE gemms (
        profile TEXT NOT NULL REFERENCES profiles (name) ON DELETE CASCADE,
        dtype TEXT NOT NULL,
        m INTEGER NOT NULL, k INTEGER NOT NULL, n INTEGER NOT NULL,
        threads INTEGER NOT NULL,
        median_s REAL NOT NULL CHECK (median_s > 0),
        lower_quartile_s REAL NOT NULL, upper_quartile_s REAL NOT NULL,
        repeats INTEGER NOT NULL,
        numpy TEXT NOT NULL, blas TEXT NOT NULL,
        date TEXT NOT NULL,
        PRIMARY KEY (profile, dtype, m, k, n)
    )""",
    f"PRAGMA application_id = {APPLICATION_ID}",
)

_SPREAD = (
    "ALTER TABLE figures ADD COLUMN lower REAL CHECK (lower >= 0)",
    "ALTER TABLE figures ADD COLUMN upper REAL CHECK (upper >= lower)",
    "ALTER TABLE figures ADD COLUMN samples INTEGER CHECK (samples > 0)",
)

Migration = tuple[str, ...]
MIGRATIONS: tuple[Migration, ...] = (_CREATE, _SPREAD)


def migrate(connection: sqlite3.Connection, where: str, migrations: tuple[Migration, ...] | None = None) -> None:
    """Bring the database to the newest version, all or nothing; ``where`` names it in errors.

    Raises InputFileError for a file of a newer version and for another program's database, which stay untouched.
    """
    steps = MIGRATIONS if migrations is None else migrations
    if _version(connection, where, len(steps)) == len(steps):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Read again under the lock: another process may have migrated meanwhile.
        for step in steps[_version(connection, where, len(steps)) :]:
            for statement in step:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(steps)}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection, where: str, newest: int) -> int:
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    application = int(connection.execute("PRAGMA application_id").fetchone()[0])
    tables = int(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    if application != APPLICATION_ID and (version or application or tables):
        raise InputFileError(
            "a database of another program", where=where, expected="a profile database", remedy="name another file with --db"
        )
    if version > newest:
        raise InputFileError(
            f"profile database of version {version}", where=where, expected=f"version {newest} or older",
            remedy="use a newer cleave-plan, or name another file with --db",
        )  # fmt: skip
    return version
