"""Who has announced which operation: what is ready to run, what does not match, who is waited for. No clock, no sockets.

Ranks announce operations by name, each in its own order. An operation is ready when all ranks of its process set that have
not joined have announced it; all ranks are then told the same order. What they announce is a request:

    name, set   which operation of which process set
    kind        allreduce, sparse, allgather, broadcast, alltoall, reducescatter, barrier, add_set, remove_set
    tensors     [dtype, shape] of each tensor; for `sparse` those of the indices (as rows) and of the values
    device      cpu or cuda
    shown       the name that people see, for a name of ours
    op, scales, average, root, splits, labels, full, ranks     where the kind has such
    void        an allreduce of zeros by a rank that has nothing to give, so it takes part in a sparse one, too

What ranks are told is a batch of runs, each with what a rank cannot know: `sizes`, the rows that each rank of the set has
(for each tensor; for alltoall those that each gives to each), and `like`, another rank's request, for ranks that have none.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

Request = dict[str, Any]
Message = dict[str, Any]
WORLD = 0  # the process set of all ranks
DEADLOCK_SECONDS = 10.0  # all ranks wait for operations that not all have announced
_SAME = {  # what must be equal on all ranks, and how it is called
    "kind": "operations",
    "labels": "names of the tensors",
    "op": "reductions",
    "average": "reductions (Average, Sum)",
    "scales": "scale factors",
    "root": "root ranks",
    "ranks": "ranks of the process set",
    "full": "shapes of the sparse tensor",
    "device": "devices",
}
_OWN_ROWS = ("allgather", "alltoall", "sparse")  # each rank has as many rows as it likes
_ZEROS = ("allreduce", "sparse", "allgather", "broadcast", "barrier")  # what ranks that joined can take part in
_BYTES = {"float64": 8, "int64": 8, "complex64": 8, "complex128": 16, "float16": 2, "bfloat16": 2, "bool": 1, "uint8": 1}


class _Entry:
    """One operation that not all ranks have announced yet."""

    def __init__(self, since: float) -> None:
        self.requests: dict[int, Request] = {}
        self.since = since
        self.warned = False


class Agreement:
    """The operations that all ranks have announced so far.

    Args:
        size: how many ranks there are.
        fusion_bytes: up to how many bytes ready allreduces are run as one.
        warn_seconds: after how long ranks that are waited for are named; 0 for never.
        fail_seconds: after how long an operation fails that some ranks do not announce; 0 for never.
    """

    def __init__(self, size: int, fusion_bytes: int, warn_seconds: float, fail_seconds: float) -> None:
        self._fusion_bytes, self._warn, self._fail = fusion_bytes, warn_seconds, fail_seconds
        self._sets: dict[int, tuple[int, ...]] = {WORLD: tuple(range(size))}
        self._next_set = 1
        self._entries: dict[tuple[int, str], _Entry] = {}
        self._joined: list[int] = []
        self._left: dict[int, str] = {}
        self._blocked: dict[int, tuple[int, str]] = {}
        self._stuck_since: float | None = None
        self._news: list[tuple[tuple[int, ...], Message]] = []  # for whom, and what: a run has the key "run"

    # --- what ranks say ---

    def announce(self, rank: int, request: Request, now: float) -> None:
        """A rank submits an operation."""
        key = (int(request["set"]), str(request["name"]))
        self._stuck_since = None
        members = self._sets.get(key[0], ())
        if rank not in members:
            self._news.append(((rank,), _failure(key, f"rank {rank} is not in the process set {key[0]}")))
            return
        entry = self._entries.setdefault(key, _Entry(now))
        entry.requests[rank] = request
        gone = [member for member in members if member in self._left]
        if gone:
            self._fail_entry(key, f"{title(request)}: {_ranks(gone)} {self._left[gone[0]]}")
        elif self._is_complete(key, entry):
            self._resolve(key, entry)

    def join(self, rank: int) -> None:
        """A rank has no more data: from here on it takes part with zeros, until all have joined."""
        self._stuck_since = None
        self._joined.append(rank)
        if self._left:
            self._fail_joins()
            return
        for key, entry in list(self._entries.items()):
            if self._is_complete(key, entry):
                self._resolve(key, entry)
        everybody = self._sets[WORLD]
        if len(self._joined) == len(everybody):
            self._news.append((everybody, {"joined": rank}))
            self._joined = []

    def leave(self, rank: int, why: str) -> None:
        """A rank will say nothing more; `why` goes on after "rank 3"."""
        self._left[rank] = why
        self._blocked.pop(rank, None)
        for key, entry in list(self._entries.items()):
            if rank in self._sets[key[0]]:
                request = next(iter(entry.requests.values()))
                self._fail_entry(key, f"{title(request)}: rank {rank} {why}")
        if self._joined:
            self._fail_joins()

    def block(self, rank: int, on: tuple[int, str] | None) -> None:
        """A rank waits for an operation, or no longer does."""
        self._stuck_since = None
        self._blocked.pop(rank, None)
        if on is not None:
            self._blocked[rank] = on

    # --- what follows from it ---

    def look(self, now: float) -> list[str]:
        """Fails what has waited too long; returns warnings about what waits for long. To be called every second or so."""
        self._look_for_deadlock(now)
        warnings = []
        for key, entry in list(self._entries.items()):
            waited = now - entry.since
            request = next(iter(entry.requests.values()))
            missing = _ranks(self._missing(key, entry))
            if self._fail and waited > self._fail:
                self._fail_entry(
                    key,
                    f"{title(request)}: {missing} did not announce it within {self._fail:.0f} s "
                    "(HOROVOD_STALL_SHUTDOWN_TIME_SECONDS)",
                )
            elif self._warn and waited > self._warn and not entry.warned:
                entry.warned = True
                there = _ranks(sorted(entry.requests))
                warnings.append(f"{title(request)}: {there} waited {waited:.0f} s for {missing}")
        return warnings

    def take(self) -> list[tuple[tuple[int, ...], Message]]:
        """News since the last call, in the order in which every rank must hear its own: messages, and for whom."""
        taken: list[tuple[tuple[int, ...], Message]] = []
        fused = 0  # bytes in the last batch
        for ranks, message in self._news:
            run = message.get("run")
            if run is None:
                taken.append((ranks, message))
                continue
            last = taken[-1][1].get("batch") if taken else None
            if last and run["kind"] == "allreduce" and _alike(last[0], run) and fused + run["bytes"] <= self._fusion_bytes:
                last.append(run)
                fused += run["bytes"]
            else:
                taken.append((ranks, {"batch": [run]}))
                fused = run["bytes"]
        self._news = []
        return taken

    @property
    def sets_without_first(self) -> bool:
        """Tells whether there are process sets that go on when rank 0 has left."""
        return any(0 not in ranks for ranks in self._sets.values())

    # --- inside ---

    def _missing(self, key: tuple[int, str], entry: _Entry) -> list[int]:
        return [rank for rank in self._sets[key[0]] if rank not in entry.requests and rank not in self._joined]

    def _is_complete(self, key: tuple[int, str], entry: _Entry) -> bool:
        return not self._missing(key, entry)

    def _resolve(self, key: tuple[int, str], entry: _Entry) -> None:
        """All have announced it: it runs, or fails where what they announced does not match."""
        members = self._sets[key[0]]
        requests = dict(sorted(entry.requests.items()))
        real = {rank: one for rank, one in requests.items() if not one.get("void")} or requests
        first = next(iter(real.values()))
        joined = [rank for rank in members if rank in self._joined and rank not in requests]
        sparse = first["kind"] == "sparse"  # those who have nothing to give need not know that it is
        wrong = _mismatch(real if sparse else requests) or _not_with_joined(first, joined)
        if wrong:
            self._fail_entry(key, f"{title(first)}: {wrong}")
            return
        del self._entries[key]
        kind = first["kind"]
        run: Message = {"set": key[0], "name": key[1], "kind": kind, "bytes": _bytes(first)}
        run.update(op=first.get("op"), device=first.get("device"))
        if kind in _OWN_ROWS:
            run["sizes"] = _sizes(first, [real.get(rank) for rank in members])
        if joined or (sparse and len(real) < len(requests)):
            run["like"] = first
        if kind == "add_set":
            run["id"], run["ranks"] = self._next_set, first["ranks"]
            self._sets[self._next_set] = tuple(first["ranks"])
            self._next_set += 1
        elif kind == "remove_set":
            self._sets.pop(int(first["root"]), None)
        self._news.append((members, {"run": run}))

    def _fail_entry(self, key: tuple[int, str], why: str) -> None:
        entry = self._entries.pop(key)
        self._news.append((tuple(sorted(entry.requests)), _failure(key, why)))

    def _fail_joins(self) -> None:
        rank, why = next(iter(self._left.items()))
        self._news.append((tuple(self._joined), {"join_failed": f"join: rank {rank} {why}, and has not joined"}))
        self._joined = []

    def _look_for_deadlock(self, now: float) -> None:
        there = [rank for rank in self._sets[WORLD] if rank not in self._left and rank not in self._joined]
        if not self._entries or not there or any(self._blocked.get(rank) not in self._entries for rank in there):
            self._stuck_since = None
            return
        if self._stuck_since is None:
            self._stuck_since = now
        if now - self._stuck_since < DEADLOCK_SECONDS:
            return
        waits = [f"rank {rank} waits for {self._shown(self._blocked[rank])}" for rank in there[:8]]
        for key, entry in list(self._entries.items()):
            request = next(iter(entry.requests.values()))
            self._fail_entry(key, f"{title(request)}: the ranks wait for different operations: {'; '.join(waits)}")

    def _shown(self, key: tuple[int, str]) -> str:
        return title(next(iter(self._entries[key].requests.values())))


def title(request: Request) -> str:
    """An operation for people: `allreduce of 'fc.weight'`."""
    name = request.get("shown") or request["name"]
    if request["kind"] in ("join", "add_set", "remove_set"):  # of which there is one
        return str(name)
    return f"{request['kind'].replace('sparse', 'sparse allreduce')} of {name!r}"


def _failure(key: tuple[int, str], why: str) -> Message:
    return {"fail": [*key, why]}


def _alike(one: Message, other: Message) -> bool:
    return all(one[name] == other[name] for name in ("set", "kind", "op", "device"))


def _bytes(request: Request) -> int:
    return sum(_BYTES.get(dtype, 4) * prod(shape) for dtype, shape in request.get("tensors", []))


def _ranks(ranks: Iterable[int]) -> str:
    """`rank 3`, or `ranks 0, 1, 2`."""
    listed = [str(rank) for rank in ranks]
    more = f" and {len(listed) - 8} more" if len(listed) > 8 else ""
    return f"rank{'' if len(listed) == 1 else 's'} {', '.join(listed[:8])}{more}"


def _mismatch(requests: dict[int, Request]) -> str:
    """In what the requests of ranks differ that must be equal, "" if they fit together."""
    first = next(iter(requests.values()))
    if all(request == first for request in requests.values()):
        return ""
    for name, what in _SAME.items():
        values = {rank: request.get(name) for rank, request in requests.items()}
        if differ := _differ(values, as_lists=name == "labels"):
            hint = "; sparse_as_dense=True makes all gradients dense" if "sparse" in values.values() else ""
            return f"{what} differ: {differ}{hint}"
    counts = {rank: len(request.get("tensors", [])) for rank, request in requests.items()}
    if differ := _differ(counts):
        return f"numbers of tensors differ: {differ}"
    for index in range(next(iter(counts.values()))):
        of = _label(first, index)
        if differ := _differ({rank: request["tensors"][index][0] for rank, request in requests.items()}):
            return f"{of}dtypes differ: {differ}"
        shapes = {rank: request["tensors"][index][1] for rank, request in requests.items()}
        if first["kind"] in _OWN_ROWS:
            shapes = {rank: ["*", *shape[1:]] for rank, shape in shapes.items()}
        if differ := _differ(shapes):
            return f"{of}shapes differ: {differ}"
    return ""


def _label(request: Request, index: int) -> str:
    labels = request.get("labels")
    return f"{labels[index]!r}: " if labels else f"tensor {index}: " if len(request["tensors"]) > 1 else ""


def _differ(values: dict[int, Any], as_lists: bool = False) -> str:
    """`[2, 3] on rank 0, [2, 4] on ranks 1, 2`; "" where all are equal. `as_lists`: what is in one of them alone."""
    if all(value == next(iter(values.values())) for value in values.values()):
        return ""
    told: list[tuple[Any, list[int]]] = []
    for rank, value in values.items():
        same = next((ranks for other, ranks in told if other == value), None)
        if same is None:
            told.append((value, [rank]))
        else:
            same.append(rank)
    if as_lists:
        return _list_difference(told)
    return ", ".join(f"{_plain(value)} on {_ranks(ranks)}" for value, ranks in told)


def _list_difference(told: list[tuple[Any, list[int]]]) -> str:
    """What is in one of the first two lists alone."""
    (one, its_ranks), (other, others_ranks) = told[:2]
    one, other = one or [], other or []
    alone = [f"{item!r} only on {_ranks(its_ranks)}" for item in one if item not in other]
    alone += [f"{item!r} only on {_ranks(others_ranks)}" for item in other if item not in one]
    return ", ".join(alone[:6]) or f"another order on {_ranks(others_ranks)}"


def _plain(value: Any) -> str:
    return "nothing" if value is None else str(value).replace("'*'", "*")


def _not_with_joined(request: Request, joined: list[int]) -> str:
    """Why ranks that joined cannot take part, "" if they can."""
    if not joined:
        return ""
    if request["kind"] not in _ZEROS:
        return f"{_ranks(joined)} joined, and cannot take part in this operation"
    if request["kind"] == "allreduce" and request.get("op") != "sum":
        return f"{_ranks(joined)} joined, and zeros would change the result of {request.get('op')}"
    if request["kind"] == "broadcast" and request.get("root") in joined:
        return f"its root, rank {request['root']}, joined, and has nothing to send"
    return ""


def _sizes(first: Request, requests: list[Request | None]) -> list[list[int]]:
    """Rows of each tensor on each rank; for alltoall the rows that each rank gives to each. Joined ranks have none."""
    if first["kind"] == "alltoall":
        return [list(request["splits"]) if request else [] for request in requests]
    count = len(first["tensors"])
    return [[request["tensors"][index][1][0] if request else 0 for request in requests] for index in range(count)]
