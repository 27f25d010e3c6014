"""Plans of counted costs: ranks of tests make the same plan each time, and in less time than a job takes for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest.mock import patch

from torch.utils.flop_counter import FlopCounterMode

from trainshed.parallel.engine.tensor import foresight
from trainshed.parallel.plan import planner
from trainshed.parallel.plan import profile as profiles
from trainshed.parallel.plan.calltree import CallTree
from trainshed.parallel.plan.costs import Link
from trainshed.parallel.plan.profile import Profiler, profile
from trainshed.parallel.plan.runtime import seconds_around
from trainshed.parallel.stages import planning
from trainshed.parallel.tracing.subject import Subject
from trainshed.parallel.tracing.trace import Trace

Work = TypeVar("Work", bound=Callable[..., Any])
measure_link, keep_busy, measure = planning.measure_link, planning.keep_busy, Profiler._measure


def measures(work: Work) -> Work:
    """Marks a work that is about measuring: its plans are made as those of jobs are. In all others measuring raises."""
    work.measures = True  # type: ignore[attr-defined]
    return work


@contextmanager
def counted(*, runs: bool = False) -> Iterator[None]:
    """Plans are made of counted costs; the model has its values, unlike with `plan --count`.

    Args:
        runs: whether all that measures runs as in a job, and what it finds is not used.
    """

    def costs(subject: Subject, units: Any) -> Trace:
        if runs:
            profile(subject, units)
        subject.counts = True
        try:
            return profile(subject, units)
        finally:
            subject.counts = False

    def tree(root: Any, counts: bool) -> CallTree:
        return CallTree(root, counts=True)

    def around(subject: Subject, trace: Trace) -> float:
        if runs:
            seconds_around(subject, trace)
        return 0.0

    def link(grid: Any) -> Link:
        if runs:
            measure_link(grid)
        return Link()

    # As fast as a core of a CPU, beside which the time of messages is what it is in a job.
    speeds = {"SECONDS_PER_OPERATION": 1e-10, "SECONDS_PER_BYTE": 1e-10, "FlopCounterMode": _Operations}
    replaced = {
        profiles: speeds,
        planner: {"profile": costs, "CallTree": tree, "seconds_around": around},
        planning: {"measure_link": link, "keep_busy": keep_busy if runs else lambda *_: None},
        foresight: {"PASSES": 1, "FlopCounterMode": _Operations, "time": SimpleNamespace(perf_counter=lambda: 0.0)},
        foresight._Seat: {"counts": property(lambda _: True, lambda *_: None)},
        Profiler: {"_measure": measure if runs else _refuse},
    }
    with ExitStack() as stack:
        for holder, names in replaced.items():
            for name, value in names.items():
                stack.enter_context(patch.object(holder, name, value, create=True))
        yield


class _Operations(FlopCounterMode):
    """Counts all, and not by module: what torch attaches to modules for that fails where a forward computes gradients."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.mod_tracker = _Nowhere()  # type: ignore[assignment]


class _Nowhere(nullcontext[None]):
    parents = frozenset(["Global"])


def _refuse(*_: Any) -> Any:
    raise AssertionError("times of this machine would decide: mark a work that is about them with `measures`")
