"""Opens the catalogue: reads its file, brings it up to date with the folders, and keeps what was learned."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from trainshed.base.errors import some

from . import index_file
from .refresh import look

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3

NAMED = 3  # runs that a message names


def opened(
    environ: Mapping[str, str], below: Iterable[str], say: Callable[[str], None], *, rebuild: bool = False
) -> sqlite3.Connection:
    """The catalogue as the folders are now, in memory: the tables of `tables.py`.

    Where it knows runs of other folders, too, the table `temp.here` has the numbers of those that are asked for.

    Args:
        below: folders in which runs are looked for besides this user's index and `./runs`.
        say: told what is unusual: a damaged file, runs that are gone, a long look.
        rebuild: leave what is kept aside, and read every run again.

    Raises:
        NoSqliteError: this Python has no SQLite.
    """
    path = index_file.place(environ)
    connection = index_file.empty() if rebuild else index_file.load(path, say)
    found = look(connection, environ, below, say, lambda: index_file.save(path, connection))
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.create_function("regexp", 2, _found, deterministic=True)
    total = connection.execute("SELECT count(*) FROM runs").fetchone()[0]
    if len(found.shown) < total:
        connection.execute("CREATE TEMP TABLE here (run INTEGER PRIMARY KEY)")
        connection.executemany("INSERT INTO temp.here VALUES (?)", [(run,) for run in found.shown])
    if (found.changed or rebuild) and (problem := index_file.save(path, connection)):
        say(f"the catalogue cannot be kept in {path}: {problem}; {found.changed:,} runs will be read again next time")
    if found.gone:
        what = "1 run is not where it was" if len(found.gone) == 1 else f"{len(found.gone):,} runs are not where they were"
        say(f"{what}: {some(found.gone, NAMED)}; where they were moved, --runs FOLDER finds them")
    for name, folder in found.moved[:NAMED]:
        say(f"{name} has moved to {folder}")
    return connection


def _found(pattern: str, text: object) -> bool | None:
    """SQL's `text REGEXP pattern`."""
    return None if text is None else bool(re.search(pattern, text if isinstance(text, str) else str(text)))
