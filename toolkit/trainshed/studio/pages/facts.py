"""What a page tells of a run, read from its files. Anybody may have written those: what has another form is left out."""

from __future__ import annotations

import re
import time
from datetime import datetime

from trainshed.base.files import listed, read_bytes, read_object
from trainshed.base.record import Record
from trainshed.base.secrets import mask_leaves, mask_mapping
from trainshed.contract.wire.findings import Finding, findings_in
from trainshed.metrics.media_reading import Medium, media_of
from trainshed.metrics.reading import Curve, MetricsReader
from trainshed.observe.goodput import told
from trainshed.observe.job_marks import HostFiles, job_ledger
from trainshed.observe.place import profiler_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

LARGEST = 16 << 20  # bytes of a file of ours
LONGEST_FAILURE = 24_000  # bytes of a failure file that are shown
LATEST = 1e11  # seconds since 1970 that a year of four digits has
_MOST_TABLES = 12
_LARGEST_TABLE = 2 << 20  # bytes
LARGEST_PICTURE = 300_000  # bytes
_PICTURE = re.compile(r"[A-Za-z0-9_-]{1,100}\.(svg|png)")
_KINDS = {"svg": "image/svg+xml", "png": "image/png"}
_HOST = re.compile(r"[A-Za-z0-9._-]{1,200}\.json")


class Table(Record):
    """A table that a program made: JSON with `title`, `columns` and `rows`, which are lists of texts."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Picture(Record):
    """A picture that a program made, as the page shows it: its title, a note, what kind of file, its bytes."""

    title: str
    note: str
    kind: str
    content: bytes


class HostFacts(Record):
    """One host of one attempt.

    record: `train`'s run record; {} where it has left none.
    failure: the host's failure file, "" without one.
    findings: what rules have found on it. tables: what its program has laid into `output/data/tables`, and pictures
        into `output/data/pictures`.
    """

    name: str
    output: str
    record: dict[str, Any]
    failure: str = ""
    findings: tuple[Finding, ...] = ()
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()


class Attempt(Record):
    """One start of the job, by its hosts in the order of their ranks."""

    hosts: tuple[HostFacts, ...]

    @property
    def started(self) -> float:
        """When the first of them started, seconds since 1970; 0 where nobody knows."""
        return min((number(host.record.get("started")) for host in self.hosts if host.record), default=0.0)


class RunFacts(Record):
    """One run.

    name: of the run, "" where nobody says it.
    attempts: the runner's, the present one last; each with its hosts.
    curves: its metrics.
    status: `status.json` of the runner, {} where there is none.
    whole: whether all metrics have been read.
    goodput: as `trainshed.observe.goodput` tells it, {} where nothing is known; goodput_of: what it is of, "" for the run.
    checkpoints: the folder of its checkpoints, "" where nobody says it.
    media: pictures, tables and the like that its script has logged, by name.
    """

    name: str
    attempts: tuple[Attempt, ...]
    curves: dict[str, Curve]
    status: dict[str, Any] = {}  # noqa: RUF012
    whole: bool = True
    goodput: dict[str, Any] = {}  # noqa: RUF012
    goodput_of: str = ""
    checkpoints: str = ""
    media: dict[str, tuple[Medium, ...]] = {}  # noqa: RUF012

    @property
    def hosts(self) -> tuple[HostFacts, ...]:
        """Those of the present attempt."""
        return self.attempts[-1].hosts if self.attempts else ()

    @property
    def record(self) -> dict[str, Any]:
        """The run record of the first host; {} where there is none."""
        return next((host.record for host in self.hosts if host.record), {})

    @property
    def state(self) -> str:
        """How the run ended or stands, in the words of the runner, else of the run record."""
        said = [host.record.get("state") for host in self.hosts]
        worst = next((state for state in ("Failed", "Interrupted", "Stopped") if state in said), "")
        status = str(self.status.get("TrainingJobStatus") or "")
        if status in ("", "InProgress") and (worst or said):
            return worst or str(said[0] or status or "unknown")
        return status or "unknown"

    @property
    def failure(self) -> dict[str, Any]:
        """The failure that the hosts agree on, {} for none."""
        return next((found for host in self.hosts if (found := mapping(host.record.get("failure")))), {})

    @property
    def start(self) -> float:
        """When all began, seconds since 1970; 0 where nobody knows."""
        begins = [attempt.started for attempt in self.attempts if attempt.started > 0]
        begins += [curve.track.times[0] for curve in self.curves.values() if curve.track.times[0] > 0]
        return min(begins, default=0.0)

    @property
    def profilers(self) -> list[str]:
        """The hosts' profiler folders, of all attempts."""
        return [profiler_folder(host.output) for attempt in self.attempts for host in attempt.hosts]


def gather(
    name: str,
    attempts: Sequence[Sequence[tuple[str, str]]],
    status: dict[str, Any],
    secrets: tuple[str, ...] = (),
    seconds: float | None = None,
    goodput: dict[str, Any] | None = None,
) -> RunFacts:
    """Reads a run.

    Args:
        attempts: for each attempt its hosts' output folders, and the folders of their data (`output/data`).
        secrets: values that are masked wherever they stand.
        seconds: how long reading metrics may take; None for as long as it does.
        goodput: the run's; None for that of these hosts alone.
    """
    read = read_attempts(attempts, secrets)
    metrics = MetricsReader()
    outputs = [output for hosts in attempts for output, _ in hosts]
    whole = metrics.read_on(outputs, seconds)
    known = [host for attempt in read for host in attempt.hosts]
    job = next((text for host in reversed(known) if (text := mapping(host.record.get("job")).get("name"))), "")
    curves = {str(mask_leaves(curve.name, secrets)): curve for curve in metrics.curves().values()}
    of = "of this host alone, from the start of `train`" if goodput is None else ""
    spent = _goodput(read) if goodput is None else goodput
    told = (name or str(mask_leaves(job, secrets)), read, curves, mask_leaves(status, secrets))
    return RunFacts(*told, whole, spent, of, media=media_of(outputs))


def _goodput(attempts: Sequence[Attempt]) -> dict[str, Any]:
    hosts = [[HostFiles(host.name, host.output, host.record) for host in attempt.hosts] for attempt in attempts]
    live = any(host.record and not host.record.get("ended") for attempt in hosts for host in attempt)
    ledger = job_ledger({}, hosts, time.time() if live else 0.0)
    return told(ledger) if ledger is not None else {}


def read_attempts(attempts: Sequence[Sequence[tuple[str, str]]], secrets: tuple[str, ...] = ()) -> tuple[Attempt, ...]:
    """A run's attempts without its metrics; arguments as for `gather`."""
    return tuple(Attempt(tuple(_host(output, data, secrets) for output, data in hosts)) for hosts in attempts)


def _host(output: str, data: str, secrets: tuple[str, ...]) -> HostFacts:
    """The host whose folder this is: a host has one run record; with several (a shared folder), the first host's."""
    names = [name for name in listed(f"{data}/run") if _HOST.fullmatch(name)]
    records = [(name, read_object(f"{data}/run/{name}", LARGEST, links=False)) for name in names]
    records = sorted((one for one in records if one[1]), key=lambda one: number(mapping(one[1].get("cluster")).get("rank")))
    name, record = records[0] if records else ("", {})
    masked = mask_mapping(record, secrets)
    failure = mask_leaves(_failure(f"{output}/failure"), secrets)
    findings = tuple(one.replace(text=mask_leaves(one.text, secrets)) for one in findings_in(output))
    tables = tuple(mask_leaves(one, secrets) for one in tables_in(f"{data}/tables"))
    drawn = tuple(_pictures_in(f"{data}/pictures", secrets))
    found = tuple(filter(None, map(_table, tables)))
    return HostFacts(name.removesuffix(".json"), output, masked, failure, findings, found, drawn)


def tables_in(folder: str) -> list[dict[str, Any]]:
    """What a folder's files hold, the first few of them."""
    names = [name for name in listed(folder) if _HOST.fullmatch(name)][:_MOST_TABLES]
    return [read_object(f"{folder}/{name}", _LARGEST_TABLE, links=False) for name in names]


def _table(content: dict[str, Any]) -> Table | None:
    title, columns, rows = (content.get(name) for name in ("title", "columns", "rows"))
    if not (isinstance(title, str) and isinstance(columns, list) and isinstance(rows, list)):
        return None
    cells = [tuple(map(words, row)) for row in rows if isinstance(row, list)]
    return Table(title, tuple(map(words, columns)), tuple(cells))


def _pictures_in(folder: str, secrets: tuple[str, ...]) -> Iterator[Picture]:
    """The pictures that a folder's files describe, the first few of them; one too large or of another kind is left out."""
    for one in tables_in(folder):
        title, file, note = (one.get(name) for name in ("title", "file", "note"))
        if not (isinstance(title, str) and isinstance(file, str) and isinstance(note, str)):
            continue
        kind = _KINDS.get(file.rpartition(".")[2]) if _PICTURE.fullmatch(file) else None
        try:
            content = read_bytes(f"{folder}/{file}", LARGEST_PICTURE, links=False) if kind else None
        except (OSError, ValueError):
            content = None
        if kind and content:
            yield Picture(mask_leaves(title, secrets), mask_leaves(note, secrets), kind, content)


def _failure(path: str) -> str:
    try:
        data = read_bytes(path, LONGEST_FAILURE, cut=True, links=False) or b""
    except OSError:
        return ""
    return data.decode("utf-8", "replace").strip("\0 \r\n\t")


def mapping(value: object) -> dict[str, Any]:
    """The value if it is an object of JSON, else {}."""
    return value if isinstance(value, dict) else {}


def entries(value: object) -> list[dict[str, Any]]:
    """The objects in a value that should be a list of objects."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def number(value: object) -> float:
    """The value if it is a number that a file of ours may have, else 0."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < LATEST
    return float(value) if good else 0.0  # type: ignore[arg-type]


def words(value: object) -> str:
    """The value if it is a text or a number, else ""."""
    return str(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else ""


def instant(stamp: object) -> float:
    """Seconds since 1970 of an ISO time, 0 for anything else."""
    try:
        return datetime.fromisoformat(str(stamp)).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0
