"""What the catalogue keeps of a run, and the tables that hold it."""

from __future__ import annotations

from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3

    from trainshed.metrics.reading import Summary

VERSION = 4  # of the tables and of what is read into them: a file of another version is made again
STATES = ("InProgress", "Stopping", "Completed", "Failed", "Stopped", "Lost")


class Fact(Record):
    """What every run may be asked for. kind: `text`, `number`, `duration` (seconds), `time` (since the epoch) or `tags`."""

    kind: str
    meaning: str


FACTS: dict[str, Fact] = {
    "name": Fact("text", "the run's name"),
    "state": Fact("text", "InProgress, Stopping, Completed, Failed, Stopped, or Lost (its runner was killed)"),
    "phase": Fact("text", "what it does beside that, or how it came to its end"),
    "cause": Fact("text", "why it failed or was stopped, one line"),
    "started": Fact("time", "when it was started"),
    "ended": Fact("time", "when it was over"),
    "duration": Fact("duration", "from start to end, or up to now"),
    "billable": Fact("duration", "what a platform that bills by the second takes, of all its hosts; of spot its part"),
    "hosts": Fact("number", "how many hosts it asked for"),
    "place": Fact("text", "where its hosts are: here, slurm, kubernetes and so on"),
    "program": Fact("text", "the program that it ran"),
    "image": Fact("text", "the container image; missing where it ran as processes"),
    "instance": Fact("text", "the instance type that the job names"),
    "machine": Fact("text", "the machine that it was started on"),
    "group": Fact(
        "text", "its tag `group`, else the tuning job that it is a trial of, else the pipeline that it is a step of"
    ),
    "tags": Fact("tags", "names of its tags; tag.NAME is the value of one"),
    "note": Fact("text", "its notes, one a line"),
    "exit": Fact("number", "its exit status"),
    "attempts": Fact("number", "how often its hosts were started"),
    "goodput": Fact("number", "which part of its time went to steps that counted, 0 to 1; missing before its end"),
    "parent": Fact("text", "the run whose model it went on from"),
    "id": Fact("text", "its id; missing for a copy"),
    "copy_of": Fact("text", "the folder that this one is a copy of"),
    "folder": Fact("text", "its folder"),
}
COLUMNS = tuple(name for name, fact in FACTS.items() if fact.kind != "tags")

SCHEMA = f"""
CREATE TABLE runs (run INTEGER PRIMARY KEY, signature TEXT NOT NULL, live INTEGER NOT NULL,
                   {", ".join(f'"{name}"' + (" TEXT UNIQUE NOT NULL" if name == "folder" else "") for name in COLUMNS)});
CREATE TABLE names (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, UNIQUE (kind, name));
CREATE TABLE metrics (name INTEGER, run INTEGER, count INTEGER, first, last, least, most,
                      PRIMARY KEY (name, run)) WITHOUT ROWID;
CREATE TABLE hps (name INTEGER, run INTEGER, number, text TEXT, PRIMARY KEY (name, run)) WITHOUT ROWID;
CREATE TABLE tags (name INTEGER, run INTEGER, text TEXT, PRIMARY KEY (run, name)) WITHOUT ROWID;
CREATE TABLE entries (id TEXT PRIMARY KEY, folder TEXT NOT NULL) WITHOUT ROWID;
PRAGMA user_version = {VERSION};
"""


class Row(Record):
    """One run.

    signature: of the files that it was read from, at that moment.
    live: whether it may change without them: its processes run.
    facts: by name (`COLUMNS`); None for what it does not have.
    hps: name -> (number or None, text).
    """

    signature: str
    live: bool
    facts: dict[str, str | bytes | float | None]
    metrics: dict[str, Summary]
    hps: dict[str, tuple[float | None, str]]
    tags: dict[str, str]


def put(connection: sqlite3.Connection, row: Row, numbers: dict[tuple[str, str], int]) -> int:
    """Adds a run that is not there (`take_out`); returns its number.

    Args:
        numbers: of names that are known; new ones are added.
    """

    def number(kind: str, name: str) -> int:
        found = numbers.get((kind, name))
        if found is None:
            made = connection.execute("INSERT INTO names (kind, name) VALUES (?, ?)", (kind, name)).lastrowid
            found = numbers[kind, name] = int(made or 0)
        return found

    marks = ", ".join("?" * (2 + len(COLUMNS)))
    named = ", ".join(f'"{name}"' for name in COLUMNS)
    values = (row.signature, int(row.live), *(row.facts.get(name) for name in COLUMNS))
    run = connection.execute(f"INSERT INTO runs (signature, live, {named}) VALUES ({marks})", values).lastrowid or 0
    connection.executemany(
        "INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (number("metric", name), run, one.count, *map(_null, (one.first, one.last, one.least, one.most)))
            for name, one in row.metrics.items()
        ],
    )
    connection.executemany(
        "INSERT INTO hps VALUES (?, ?, ?, ?)",
        [(number("hp", name), run, value, text) for name, (value, text) in row.hps.items()],
    )
    connection.executemany(
        "INSERT INTO tags VALUES (?, ?, ?)", [(number("tag", name), run, text) for name, text in row.tags.items()]
    )
    return run


def _null(value: float) -> float | None:
    """SQLite has no NaN."""
    return value if value == value else None


def take_out(connection: sqlite3.Connection, runs: list[int]) -> None:
    """Removes runs by their numbers."""
    connection.execute("CREATE TEMP TABLE out (run INTEGER PRIMARY KEY)")
    connection.executemany("INSERT INTO temp.out VALUES (?)", [(run,) for run in runs])
    for table in ("metrics", "hps", "tags", "runs"):
        connection.execute(f"DELETE FROM {table} WHERE run IN (SELECT run FROM temp.out)")
    connection.execute("DROP TABLE temp.out")


def forget_names(connection: sqlite3.Connection) -> None:
    """Removes names that no run has."""
    connection.execute(
        "DELETE FROM names WHERE number NOT IN"
        " (SELECT name FROM metrics UNION SELECT name FROM hps UNION SELECT name FROM tags)"
    )
