"""The catalogue: its file is read, brought up to date with the folders, and replaced by what was learned."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from trainshed.base.errors import some

from . import index_file
from .refresh import Look, look

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.metrics.reading import MetricsReader

NAMED = 3  # runs that a message names


class Catalogue:
    """All runs, as the folders are: looked at once by a command, again and again by a page. For one thread at a time.

    Args:
        below: folders in which runs are looked for besides this user's index and `./runs`.
        say: told what is unusual: a damaged file, runs that are gone, a long look.
        rebuild: leave what is kept aside, and read every run again.

    Attributes:
        connection: the tables of `tables.py`, in memory. Where they know runs of other folders, too, the table `temp.here`
            has the numbers of those that are asked for.

    Raises:
        NoSqliteError: this Python has no SQLite.
    """

    def __init__(
        self, environ: Mapping[str, str], below: Iterable[str], say: Callable[[str], None], *, rebuild: bool = False
    ) -> None:
        self._environ, self._below, self._say, self._rebuild = environ, [*below], say, rebuild
        self._path = index_file.place(environ)
        self.connection = index_file.empty() if rebuild else index_file.load(self._path, say)
        self.connection.execute("PRAGMA temp_store = MEMORY")
        self.connection.create_function("regexp", 2, _found, deterministic=True)

    def look(self, readers: dict[str, MetricsReader] | None = None) -> Look:
        """Brings it up to date with the folders, and keeps what was learned. readers: as of `indexed.row_of`."""
        found = look(self.connection, self._environ, self._below, self._say, self._save, readers)
        self.connection.execute("DROP TABLE IF EXISTS temp.here")
        total = self.connection.execute("SELECT count(*) FROM runs").fetchone()[0]
        if len(found.shown) < total:
            self.connection.execute("CREATE TEMP TABLE here (run INTEGER PRIMARY KEY)")
            self.connection.executemany("INSERT INTO temp.here VALUES (?)", [(run,) for run in found.shown])
        if (found.changed or self._rebuild) and (problem := self._save()):
            again = f"{found.changed:,} runs will be read again next time"
            self._say(f"the catalogue cannot be kept in {self._path}: {problem}; {again}")
        self._rebuild = False
        self._tell(found)
        return found

    def _save(self) -> str:
        return index_file.save(self._path, self.connection)

    def _tell(self, found: Look) -> None:
        if found.gone:
            count = len(found.gone)
            what = "1 run is not where it was" if count == 1 else f"{count:,} runs are not where they were"
            self._say(f"{what}: {some(found.gone, NAMED)}; where they were moved, --runs FOLDER finds them")
        for name, folder in found.moved[:NAMED]:
            self._say(f"{name} has moved to {folder}")


def folders(environ: Mapping[str, str], where: str, say: Callable[[str], None]) -> list[str]:
    """The folders of the runs that an expression is true of, oldest first. Raises TrainshedError."""
    from .listing import Wanted, ask

    catalogue = Catalogue(environ, (), say)
    catalogue.look()
    answer = ask(catalogue.connection, Wanted(where, sort="started", columns="folder"))
    return [folder for (folder,) in answer.rows]


def _found(pattern: str, text: object) -> bool | None:
    """SQL's `text REGEXP pattern`."""
    return None if text is None else bool(re.search(pattern, text if isinstance(text, str) else str(text)))
