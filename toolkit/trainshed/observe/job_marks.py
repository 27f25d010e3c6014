"""Reads what a job's hosts and its runner have noted, and makes the ledger of it. What has another form is left out.

The runner's transitions and `train`'s run record say what the whole host did; the profiler's windows, or without them the
steps of metrics, say where steps lay in that.
"""

from __future__ import annotations

import itertools
import math
import re
from datetime import datetime

from trainshed.base.files import listed
from trainshed.base.record import Record

from .ledger import PAUSED, Cut, Ledger, Span, ledger_of
from .lives import Life, slow_waits, spans_of, with_tail
from .place import profiler_folder
from .steps import FOLDER, Window, read_rank

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from .steps import RankSteps

ENDED = ("Completed", "Failed", "Stopped", "MaxRuntimeExceeded", "MaxWaitTimeExceeded")
_OF_STATUS = {
    **dict.fromkeys(("Starting", "Downloading", "Restarting"), "placing"),
    **dict.fromkeys(("Interrupted", "Stopping", "Uploading"), "stopping"),
    "Pending": "capacity",
}
_BAD = ("Failed", "Interrupted", "Stopped")
MOST_RANKS = 256  # that are read: a few seconds; of larger jobs some hosts, and some ranks of each, stand for all
_READING, _LEAST_READING = 3.0, 0.1  # seconds that reading metrics may take, of all hosts and of each
_RANK = re.compile(r"\.rank-([0-9]{1,7})\.")
_LATEST = 1e11  # seconds since 1970 that a year of four digits has


class HostFiles(Record):
    """One host of one attempt. output: its folder; record: its run record, {} for none."""

    name: str
    output: str
    record: dict[str, Any]


class _Trained(Record):
    """A time in which a host's ranks ran. failed: whether they were started again, or stopped."""

    begin: float
    end: float
    failed: bool


def job_ledger(status: Mapping[str, Any], attempts: Sequence[Sequence[HostFiles]], now: float) -> Ledger | None:
    """The ledger of a job; None where nothing tells when it began.

    Args:
        status: of the runner (`status.json`); {} without one.
        attempts: of the runner, oldest first.
        now: seconds since 1970, for a job that goes on; 0 for one that does not, which ends with its last sign.
    """
    begin = _instant(status.get("CreationTime")) or min(_started(attempts), default=0.0)
    end = _instant(status.get("TrainingEndTime")) or now
    end = end or max([_instant(status.get("LastModifiedTime")), *_over(attempts)])
    if not 0 < begin < end:
        return None
    runner = _of_runner(status, attempts, end)
    names = _some(list(dict.fromkeys(host.name for hosts in attempts for host in hosts)))
    ranks = {name: _ranks(attempts, name, end, len(names)) for name in names}
    lives = {(name, rank): found for name, by_rank in ranks.items() for rank, found in by_rank.items()}
    slow = slow_waits(lives)
    spans = {}
    for name, by_rank in ranks.items():
        common = [*runner, *_of_records(attempts, name, by_rank, end)]
        own = [spans_of(found, slow.get((name, rank), ())) for rank, found in by_rank.items()]
        spans[name] = [[*common, *one] for one in own or [[]]]
    return ledger_of(begin, end, spans, _cuts(status, attempts), measured=any(lives.values()))


# --- what the runner notes ---


def _of_runner(status: Mapping[str, Any], attempts: Sequence[Sequence[HostFiles]], end: float) -> list[Span]:
    spans = []
    noted = _transitions(status)
    for number, (name, begin, over) in enumerate(noted):
        after = noted[number + 1][1] if number + 1 < len(noted) else 0.0
        over = over or after or end
        if after > over:  # nobody watched
            spans.append(Span(PAUSED, over, after))
        if name == "Training":
            spans += _around_records(attempts, begin, over)
        elif name in _OF_STATUS:
            spans.append(Span(_OF_STATUS[name], begin, over))
    return spans


def _around_records(attempts: Sequence[Sequence[HostFiles]], begin: float, end: float) -> list[Span]:
    """While the runner says that the hosts run: before `train` begins on them, and after it has ended."""
    inside = [hosts for hosts in attempts if any(begin - 1 <= one < end for one in _started([hosts]))]
    if not inside:
        return []
    first = min(_started(inside))
    over = [] if _live(inside[-1:]) else list(_over(inside[-1:]))
    last = max(over, default=end)
    return [Span("starting", begin, first), Span("stopping", last, end)]


def _transitions(status: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """(name, begin, end) of each; an end of 0 is not known."""
    noted = status.get("SecondaryStatusTransitions")
    entries = [one for one in noted if isinstance(one, dict)] if isinstance(noted, list) else []
    found = [(str(one.get("Status")), _instant(one.get("StartTime")), _instant(one.get("EndTime"))) for one in entries]
    return sorted((one for one in found if one[1]), key=lambda one: one[1])


def _cuts(status: Mapping[str, Any], attempts: Sequence[Sequence[HostFiles]]) -> list[Cut]:
    """Restarts in place, further attempts of the runner, and runs that were taken up again."""
    noted = _transitions(status)
    again = [begin for (name, *_), (_, begin, _) in itertools.pairwise(noted) if name in ENDED]
    cuts = [Cut("resume", at) for at in again]
    before = 0.0
    for number, hosts in enumerate(attempts):
        at = min(_started([hosts]), default=0.0)
        if number and at and not any(before < one <= at for one in again):
            cuts.append(Cut("attempt", at))
        before = at or before
        record = next((host.record for host in hosts if host.record), {})
        cuts += [Cut("restart", moment) for one in _entries(record, "restarts") if (moment := _moment(one.get("at")))]
    return cuts


# --- what `train` notes ---


def _of_records(
    attempts: Sequence[Sequence[HostFiles]], name: str, ranks: Mapping[int, Sequence[Life]], end: float
) -> list[Span]:
    spans = []
    lives = [life for found in ranks.values() for life in found]
    for record in _records(attempts, name):
        spans += [Span("starting", begin, over) for kind, begin, over in _phases(record, end) if kind == "preparing"]
        for trained in _trained(record, end):
            inside = [life for life in lives if trained.begin <= life.end <= trained.end + 1.0]
            if inside:
                spans.append(Span("starting", trained.begin, min(life.begin for life in inside)))
                spans += _after_steps(trained, max(life.end for life in inside))
            elif lives:  # it came to no step
                spans.append(Span("starting", trained.begin, trained.end))
    return spans


def _after_steps(trained: _Trained, last: float) -> list[Span]:
    return [Span("stopping", last, trained.end)] if trained.failed else []


def _records(attempts: Sequence[Sequence[HostFiles]], name: str) -> list[dict[str, Any]]:
    return [host.record for hosts in attempts for host in hosts if host.name == name and host.record]


def _phases(record: Mapping[str, Any], end: float) -> list[tuple[str, float, float]]:
    """(name, begin, end); of a host that runs the present one, too."""
    found = []
    for one in _entries(record, "phases"):
        begin, seconds = _moment(one.get("started")), _moment(one.get("seconds"))
        if begin:
            found.append((str(one.get("name")), begin, begin + seconds))
    if not _moment(record.get("ended")):
        since = found[-1][2] if found else _moment(record.get("started"))
        found += [("training" if record.get("state") == "Training" else "preparing", since, end)] if since else []
    return found


def _trained(record: Mapping[str, Any], end: float) -> list[_Trained]:
    """The times in which ranks ran; torch's agent starts them again inside of one phase."""
    found = []
    again = [(_moment(one.get("at")), one) for one in _entries(record, "restarts")]
    for kind, begin, over in _phases(record, end):
        if kind == "training":
            inside = sorted(at for at, _ in again if begin < at < over)
            found += [_Trained(*one, True) for one in zip([begin, *inside], [*inside, over], strict=True)]
    if found:
        found[-1] = found[-1].replace(failed=record.get("state") in _BAD)
    return found


def _saved(record: Mapping[str, Any], moment: float) -> float | None:
    """When the newest checkpoint was made that ranks found who ran at a moment, 0 for none; None where nobody knows."""
    marks = [one for one in _entries(record, "restarts") if _moment(one.get("at")) <= moment]
    first = record.get("resuming")
    last = marks[-1] if marks else first if isinstance(first, dict) else {}
    saved = last.get("saved")
    return _moment(saved) if isinstance(saved, (int, float)) else None


# --- what the ranks note ---


def _some(names: list[str]) -> list[str]:
    """All names, or some that lie evenly among them."""
    most = min(len(names), MOST_RANKS)
    return [names[number * len(names) // most] for number in range(most)]


def _measured(hosts: Sequence[HostFiles], name: str, most: int) -> Iterator[RankSteps]:
    """What the first ranks of a host have written, all their lives."""
    found: dict[int, list[str]] = {}
    for folder in dict.fromkeys(f"{profiler_folder(host.output)}/{FOLDER}" for host in hosts):
        for file in listed(folder):
            match = _RANK.search(file, len(name.replace("/", "_")))
            if file.startswith(f"{name.replace('/', '_')}.rank-") and file.endswith(".json") and match:
                found.setdefault(int(match[1]), []).append(f"{folder}/{file}")
    for rank in sorted(found)[:most]:
        yield from filter(None, map(read_rank, found[rank]))


def _ranks(attempts: Sequence[Sequence[HostFiles]], name: str, end: float, hosts: int) -> dict[int, list[Life]]:
    """The lives of a host's ranks, by rank; from its metrics, as those of one rank, where no steps were measured.

    Args:
        hosts: how many are read.
    """
    found: dict[int, list[Life]] = {}
    own = [host for hosts in attempts for host in hosts if host.name == name]
    for measured in _measured(own, name, max(1, MOST_RANKS // hosts)):
        found.setdefault(measured.rank, []).append(_life(measured, own, end))
    if found:
        return found
    lives = [life for host in own for life in _from_metrics(host, _trained(host.record, end), hosts)]
    return {0: lives} if lives else {}


def _life(measured: RankSteps, hosts: Sequence[HostFiles], end: float) -> Life:
    facts = measured.facts
    moment = measured.windows[0].time
    record = next((one.record for one in reversed(hosts) if 0 < _moment(one.record.get("started")) <= moment), {})
    resumed = facts.get("Resumed")
    cut = [one.end for one in _trained(record, end) if one.failed and one.begin <= moment <= one.end]
    life = Life(
        measured.windows,
        began=_moment(facts.get("Began")),
        imported=_moment(facts.get("Imported")),
        ready=_moment(facts.get("Ready")),
        first=_moment(facts.get("First")),
        resumed=resumed if type(resumed) is int and 0 <= resumed < 1 << 53 else None,
        saved=_saved(record, moment),
        apart=bool(facts.get("Pipeline")),
    )
    return with_tail(life, cut[0]) if cut else life


def _from_metrics(host: HostFiles, trained: Sequence[_Trained], hosts: int) -> list[Life]:
    if not trained:
        return []
    from trainshed.metrics.reading import MetricsReader

    reader = MetricsReader()
    if not reader.read_on([host.output], max(_LEAST_READING, _READING / hosts)):
        return []
    points = reader.moments()
    lives = []
    for one in trained:
        windows = _between([point for point in points if one.begin <= point[0] <= one.end], one.begin)
        lives += [Life(windows, saved=_saved(host.record, one.begin))] if windows else []
    return lives


def _between(points: Iterable[tuple[float, int]], earliest: float) -> tuple[Window, ...]:
    """What lies between points of growing steps; before the first one as many steps, at the same pace.

    Without numbers where a script counts anew, as in each epoch.
    """
    ordered = sorted(points)
    grows = [point for number, point in enumerate(ordered) if not number or point[1] > ordered[number - 1][1]]
    if len(grows) < 2 or grows[-1][0] <= grows[0][0]:
        return ()
    numbered = all(before[1] < after[1] for before, after in itertools.pairwise(grows))
    (time, step), (second, following) = grows[0], grows[1]
    pace = (second - time) / max(1, following - step)
    before = max(1, min(following - step, step) if numbered else 1)
    windows = [_window(max(earliest, time - before * pace), time, before, step if numbered else None)]
    for (since, low), (until, high) in itertools.pairwise(grows):
        windows.append(_window(since, until, max(1, high - low), high if numbered else None))
    return tuple(windows)


def _window(begin: float, end: float, steps: int, at: int | None) -> Window:
    return Window(time=end, step=0, steps=steps, seconds=end - begin, longest=0.0, phases={}, at=at)


# --- what files hold ---


def _started(attempts: Iterable[Sequence[HostFiles]]) -> list[float]:
    return [at for hosts in attempts for host in hosts if (at := _moment(host.record.get("started")))]


def _over(attempts: Iterable[Sequence[HostFiles]]) -> list[float]:
    return [at for hosts in attempts for host in hosts if (at := _moment(host.record.get("ended")))]


def _live(attempts: Sequence[Sequence[HostFiles]]) -> bool:
    return any(host.record and not host.record.get("ended") for hosts in attempts[-1:] for host in hosts)


def _entries(record: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    value = record.get(name)
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _moment(value: object) -> float:
    """A count of seconds, 0 for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return 0.0
    return float(value) if 0 < value < _LATEST else 0.0


def _instant(stamp: object) -> float:
    """Seconds since 1970 of an ISO time, 0 for anything else."""
    try:
        return _moment(datetime.fromisoformat(str(stamp)).timestamp())
    except (ValueError, OverflowError, OSError):
        return 0.0
