"""A deep look at a running job: what is asked of its ranks, and what they answer. Both lie in the job's profiler folder.

    profiler/request.json                         {"Id": 1790000000123, "Steps": 5, "Rank": 0, "Until": 1790000300}
    profiler/traces/1790000000123.rank-0.trace.json.gz    Chrome's trace events, as torch.profiler exports them
    profiler/traces/1790000000123.rank-0.json             {"Seconds": 0.5, "Operators": [...], ...}; written last

A rank whose steps are measured looks for a new request every half second, between two steps. Steps that profilerconfig.json
names are recorded without a request; their first step, from 0, stands for its number.
"""

from __future__ import annotations

import json

from trainshed.base.files import read_object, write_atomic
from trainshed.base.record import Record

REQUEST = "request.json"
FOLDER = "traces"
MOST_STEPS = 1000
_MOST_BYTES = 4 << 20  # of an answer


class TraceRequest(Record):
    """
    id: milliseconds since 1970, when it was made.
    steps: how many to record. rank: whose.
    until: seconds since 1970, when nobody waits for the answer any more.
    """

    id: int
    steps: int
    rank: int
    until: float


class Operator(Record):
    """One operator or kernel. cpu, device: seconds in it alone, without what it calls."""

    name: str
    calls: int
    cpu: float
    device: float


class TraceResult(Record):
    """
    seconds: that the recorded steps took.
    operators: those that took most, the largest first.
    busy: in which part of these seconds operators ran, 0 to 1: on the device where one is used, else on the CPU; None if
        unknown.
    error: why there is no trace, "" where there is one.
    """

    seconds: float = 0.0
    operators: tuple[Operator, ...] = ()
    busy: float | None = None
    error: str = ""


def trace_path(folder: str, request: TraceRequest) -> str:
    """The trace that answers a request."""
    return f"{folder}/{FOLDER}/{request.id}.rank-{request.rank}.trace.json.gz"


def ask(folder: str, request: TraceRequest) -> None:
    """Asks the ranks whose profiler folder this is.

    Raises:
        OSError: the folder cannot be written.
    """
    fields = {"Id": request.id, "Steps": request.steps, "Rank": request.rank, "Until": request.until}
    write_atomic(f"{folder}/{REQUEST}", json.dumps(fields) + "\n")


def asked(folder: str) -> TraceRequest | None:
    """Reads what is asked; None where nothing is, or nothing that can be read."""
    fields = read_object(f"{folder}/{REQUEST}", _MOST_BYTES)
    try:
        request = TraceRequest(int(fields["Id"]), int(fields["Steps"]), int(fields["Rank"]), float(fields["Until"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return request if request.id > 0 and 0 < request.steps <= MOST_STEPS else None


def answer(folder: str, request: TraceRequest, found: TraceResult) -> None:
    """Answers; the trace must be there.

    Raises:
        OSError: the folder cannot be written.
    """
    fields = {
        "Seconds": found.seconds,
        "Operators": [[one.name, one.calls, one.cpu, one.device] for one in found.operators],
        "Busy": found.busy,
        "Error": found.error,
    }
    write_atomic(_answer_path(folder, request), json.dumps(fields) + "\n")


def answered(folder: str, request: TraceRequest) -> TraceResult | None:
    """The answer; None while there is none."""
    fields = read_object(_answer_path(folder, request), _MOST_BYTES)
    try:
        operators = tuple(
            Operator(str(name), int(calls), float(cpu), float(device)) for name, calls, cpu, device in fields["Operators"]
        )
        busy = fields.get("Busy")
        return TraceResult(float(fields["Seconds"]), operators, None if busy is None else float(busy), str(fields["Error"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _answer_path(folder: str, request: TraceRequest) -> str:
    return f"{folder}/{FOLDER}/{request.id}.rank-{request.rank}.json"
