"""The ledger of a job: each second of its wall clock belongs to one account. Pure: no clock, no files.

What happened is given as spans, which may overlap. A moment belongs to the strongest account whose span covers it, in the
order of `ACCOUNTS`: what is nearer to a step is known better. What no span covers is `other`. Sums are whole microseconds,
so they equal the wall clock exactly. A host is the mean of its ranks, and the job the mean of its hosts.
"""

from __future__ import annotations

from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Sums = dict[str, int]  # microseconds by account


class Account(Record):
    """What seconds went to, in words, and what would lower it."""

    words: str
    remedy: str


STEPS, OTHER = "steps", "other"
PAUSED = "paused"  # the job was over, or its runner dead, and somebody took it up again later: no part of its wall clock
ACCOUNTS: dict[str, Account] = {  # the strongest first
    "checkpoint": Account("checkpoint stalls", "save less often, or by trainshed.checkpoint, which writes beside steps"),
    "again": Account("steps done again", "save more often: Checkpointer without every_steps finds the interval itself"),
    "slow_rank": Account("waiting for a slow rank", "`trainshed report` names rank and phase: mend or replace its host"),
    "data": Account("waiting for data", "more num_workers in the DataLoader, or samples that are prepared once"),
    STEPS: Account("steps that counted", ""),
    "compiling": Account("compiling and warming up", "keep the compile cache, and compile repeated layers once (regional)"),
    "loading": Account("loading", "keep data and weights near, read them in parallel, save in shards"),
    "importing": Account("importing", "trainshed_warm_start: auto imports once a host; keep packages on a local disk"),
    "capacity": Account("waiting for capacity", "ask for fewer hosts at least, or for another queue, zone or instance type"),
    "starting": Account("starting", "put requirements into the image; profile: auto divides it further"),
    "stopping": Account("stopping", "write the model sooner after the last step, and end soon after SIGTERM"),
    "placing": Account("placing", "keep_alive keeps packages and data for the next run; cache channels"),
    OTHER: Account("other", "work after the last step is here, and what no mark tells; see its timeline"),
}
_ORDER = (PAUSED, *ACCOUNTS)
_PLACE = {name: place for place, name in enumerate(_ORDER)}


class Span(Record):
    """Something that lasted, for one account or `PAUSED`. begin, end: seconds since 1970."""

    account: str
    begin: float
    end: float


class Cut(Record):
    """Where a part of the job begins. kind: `attempt`, `restart` or `resume`. at: seconds since 1970."""

    kind: str
    at: float


class Part(Record):
    """The job from one of its starts to the next one. kind: `start`, or a cut's. begin: seconds since 1970."""

    kind: str
    begin: float
    accounts: dict[str, int]


class Ledger(Record):
    """Where the time of a job went, in microseconds by account; accounts without any are left out.

    measured: whether anything tells its steps apart from the rest.
    """

    parts: tuple[Part, ...]
    hosts: dict[str, dict[str, int]]
    measured: bool

    @property
    def accounts(self) -> Sums:
        """Of the whole job, the strongest account first."""
        return _total(part.accounts for part in self.parts)

    @property
    def wall(self) -> int:
        """The job's wall clock, in microseconds."""
        return sum(self.accounts.values())

    @property
    def goodput(self) -> float | None:
        """Which part of the wall clock went to steps that counted, 0 to 1; None where nobody knows."""
        return self.accounts.get(STEPS, 0) / self.wall if self.measured and self.wall else None

    def losses(self, most: int = 3) -> list[tuple[str, int]]:
        """The largest accounts that are not steps that counted."""
        lost = [(name, spent) for name, spent in self.accounts.items() if name != STEPS]
        return sorted(lost, key=lambda one: -one[1])[:most]


def ledger_of(
    begin: float,
    end: float,
    hosts: Mapping[str, Sequence[Sequence[Span]]],
    cuts: Iterable[Cut] = (),
    *,
    measured: bool = True,
) -> Ledger:
    """The ledger of a job.

    Args:
        begin, end: of its wall clock, seconds since 1970.
        hosts: by name the spans of each of its ranks; a host without any has none that count.
        cuts: where its parts begin, besides the first.
    """
    first, last = _micros(begin), max(_micros(begin), _micros(end))
    inner = {_micros(cut.at): cut.kind for cut in cuts if first < _micros(cut.at) < last}
    bounds = [first, *sorted(inner), last]
    by_host = {
        name: _mean_parts([divide(bounds, spans) for spans in ranks or [()]])
        for name, ranks in (hosts or {"": [()]}).items()
    }
    kinds = ["start", *(inner[at] for at in sorted(inner))]
    parts = [
        Part(kind, at / 1e6, sums)
        for kind, at, sums in zip(kinds, bounds[:-1], _mean_parts(list(by_host.values())), strict=True)
    ]
    return Ledger(tuple(parts), {name: _total(sums) for name, sums in by_host.items() if name}, measured)


def divide(bounds: Sequence[int], spans: Iterable[Span]) -> list[Sums]:
    """The accounts of each part of a time.

    Args:
        bounds: where the parts begin, ascending, and where the last one ends; microseconds.
    """
    first, last = bounds[0], bounds[-1]
    marks = [(at, 0, 0) for at in bounds[1:]]
    for span in spans:
        begin, end = max(first, _micros(span.begin)), min(last, _micros(span.end))
        if begin < end:
            marks += [(begin, 1, _PLACE[span.account]), (end, -1, _PLACE[span.account])]
    covering, parts, at = [0] * len(_ORDER), [dict.fromkeys(_ORDER, 0)], first
    for time, change, place in sorted(marks):
        if time > at:
            strongest = next((number for number, count in enumerate(covering) if count), _PLACE[OTHER])
            parts[-1][_ORDER[strongest]] += time - at
            at = time
        covering[place] += change
        if not change:
            parts.append(dict.fromkeys(_ORDER, 0))
    return [_kept(part) for part in parts[: len(bounds) - 1]]


def _kept(sums: Sums) -> Sums:
    return {name: spent for name, spent in sums.items() if spent and name != PAUSED}


def _mean_parts(all_of: Sequence[Sequence[Sums]]) -> list[Sums]:
    return [_mean(sums) for sums in zip(*all_of, strict=True)]


def _mean(sums: Sequence[Sums]) -> Sums:
    """The mean of several that have the same wall clock; what does not divide goes to the largest account."""
    walls = [sum(one.values()) for one in sums]
    total = _total(sums)
    mean = {name: spent // len(sums) for name, spent in total.items()}
    if mean:
        mean[max(mean, key=lambda name: mean[name])] += max(walls) - sum(mean.values())
    return _kept(mean)


def _total(sums: Iterable[Sums]) -> Sums:
    total = dict.fromkeys(ACCOUNTS, 0)
    for one in sums:
        for name, spent in one.items():
            total[name] += spent
    return _kept(total)


def _micros(seconds: float) -> int:
    return round(seconds * 1e6)
