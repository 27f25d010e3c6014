"""Decides how a model's gradients are exchanged: watches DDP's own steps, measures the links, changes what would gain, and
goes back where it did not.

All ranks decide alike: rank 0 does, and tells the others, at the same backward of each.
"""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from trainshed.base.errors import one_line
from trainshed.base.voice import tell
from trainshed.contract.settings import REDUCTIONS

from .algorithms import Algorithms, store_of, timeout_of
from .bucket_plan import LEAST_GAIN, MIB, Cost, Plan, Timeline, best_plan, calibrated
from .ddp_buckets import own_sizes, parameters_of, refusal
from .host_layout import HostLayout, found_layout
from .links import link_costs
from .power_sgd import PowerSGD
from .reducing import OWN, Reducing, own_way
from .timeline import StepWatch

WARM = 2  # steps after a change whose buckets are not yet those of later ones
WATCHED = 6  # steps that are then looked at
_LEAST_WAIT = 0.05  # part of a step that is spent waiting for gradients, below which nothing can be gained


def accelerate(
    model: DistributedDataParallel, reduce: str = "auto", *, hosts: Sequence[int] | None = None
) -> DistributedDataParallel:
    """Exchanges a model's gradients in less time where hosts are joined by slow links. Collective; returns the same model.

    DDP goes on as it is for some steps, which are watched; then the links are measured and the exchange is changed, or not;
    a line says which, and one more says after some steps what was gained. Where that is nothing, DDP gets its gradients
    back.

    Args:
        model: as it was just made, on all ranks of its process group.
        reduce: `auto` (the same sums in another order, where that gains), `exact` (the same sums, in the way that should be
            best, whatever it gains), `bf16` (as `auto`, and gradients may be rounded to bfloat16 between hosts, summed in
            float32), `powersgd` (gradients of low rank, `PowerSGD` with its defaults, on several hosts), or `off`.
        hosts: for each rank of the process group the number of its host; by default ranks find that out (`GROUP_RANK`, as
            torchrun sets it, or the host's name).

    Raises:
        TypeError: the model is not a DistributedDataParallel.
        ValueError: `reduce` is none of these, or `hosts` has not one number for each rank.
    """
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(f"accelerate() takes a DistributedDataParallel, not a {type(model).__name__}")
    if reduce not in REDUCTIONS:
        raise ValueError(f"reduce = {reduce!r}: not one of {', '.join(REDUCTIONS)}")
    idle = reduce == "off" or dist.get_world_size(model.process_group) == 1
    if idle and hosts is None:
        return model
    layout = found_layout(hosts, model.process_group)
    if idle:
        return model
    reason = "all ranks are on one host" if len(layout.hosts) == 1 else "" if reduce == "powersgd" else refusal(model)
    if not reason and reduce == "powersgd":
        reason = _compress(model)
    elif not reason:
        _Decision(model, reduce, layout)
    if reason:
        _say(reduce, dist.get_rank(model.process_group), f"left to DDP: {reason}")
    return model


def _compress(model: DistributedDataParallel) -> str:
    """Why it cannot be done, "" where it is."""
    try:
        PowerSGD(model)
    except ValueError as error:
        return str(error)
    _say(
        "powersgd",
        dist.get_rank(model.process_group),
        "what it keeps is in no checkpoint: data.PowerSGD by hand has it there",
    )
    return ""


class _Decision:
    """What is called before every forward of a model, until all is decided."""

    def __init__(self, model: DistributedDataParallel, mode: str, layout: HostLayout) -> None:
        self._mode, self._layout = mode, layout
        self._group: Any = model.process_group
        self._rank = dist.get_rank(self._group)
        self._parameters = parameters_of(model)
        self._watch = StepWatch(self._parameters)
        self._reducing: Reducing | None = None
        self._before: Timeline | None = None
        self._over = False
        self._ends_at = WARM + WATCHED
        self._model = weakref.ref(model)
        self._handle = model.register_forward_pre_hook(self)
        joins = weakref.WeakMethod(model.join_hook)

        def join_hook(**options: Any) -> Any:
            self._leave("ranks have unequally many batches (join)")  # those that are done take part in nothing of ours
            method = joins()
            assert method is not None
            return method(**options)

        model.join_hook = join_hook  # type: ignore[method-assign]

    def __call__(self, model: Any, _: Any) -> None:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        watch = self._watch
        if watch.steps >= self._ends_at:
            if self._reducing is None:
                self._begin(model)
            else:
                self._compare(model)
            watch.forget()
        elif watch.steps <= self._ends_at - WATCHED:
            watch.forget()
        if not self._over:
            watch.forward_begins(bool(model.require_backward_grad_sync))

    def __reduce__(self) -> Any:
        return _Idle, ()  # a copy of the model has an exchange of its own

    # --- the two decisions ---

    def _begin(self, model: DistributedDataParallel) -> None:
        timeline = self._watch.timeline() if self._rank == 0 else None
        reason = self._agreed(self._reason_to_leave(model, timeline) if self._rank == 0 else None)
        if reason:
            self._leave(reason)
            return
        prefix = self._agreed(uuid.uuid4().hex if self._rank == 0 else None)
        store = store_of(f"trainshed/reduce/{prefix}")
        algorithms = Algorithms(self._layout, self._rank, store, timeout_of(self._group))
        ways: dict[str, Any] = {OWN: own_way(self._group)}
        names = algorithms.names(bf16=self._mode == "bf16")
        failed = self._first_failure(lambda: algorithms.make(names))
        if failed:
            algorithms.close()
            self._leave(f"ranks could not be connected: {failed}")
            return
        for name in names:
            ways[name] = lambda tensor, done, name=name: algorithms.average(name, tensor, done)
        costs = link_costs(ways, self._group)
        plan: Plan | None = None
        if self._rank == 0:
            assert timeline is not None
            costs = calibrated(timeline, costs, OWN, own_sizes(model))
            plan = best_plan(timeline, costs, OWN, own_sizes(model))
            if self._mode != "exact" and plan.predicted < LEAST_GAIN:
                plan = None
        plan = self._agreed(plan)
        if plan is None:
            algorithms.close()
            self._leave(f"nothing is expected to be faster here ({self._links(costs)})")
            return
        self._before = timeline
        self._reducing = Reducing(model, algorithms)
        self._reducing.begin(model, plan)
        self._ends_at = self._watch.steps + WARM + WATCHED
        if timeline is not None:
            self._say(
                f"{self._layout.text()}, {self._links(costs)}: {plan.algorithm} in buckets of {plan.bucket / MIB:g} MiB, "
                f"steps of {timeline.step:.3g} s should take {timeline.step / plan.predicted:.3g} s ({plan.predicted:.2f}x)"
            )

    def _reason_to_leave(self, model: DistributedDataParallel, timeline: Timeline | None) -> str:
        if model._comm_hooks:
            return "the model has another communication hook"
        if not all(one.requires_grad for one in self._parameters):
            return "parameters were frozen"
        if timeline is None or not timeline.size:
            return "too few steps were seen"
        if self._mode != "exact" and timeline.waited < _LEAST_WAIT * timeline.step:
            return f"a step waits {100 * timeline.waited / timeline.step:.1f} % of its time for gradients"
        return ""

    def _compare(self, model: DistributedDataParallel) -> None:
        now = self._watch.timeline() if self._rank == 0 else None
        verdict: tuple[float, bool] | None = None
        if now is not None and self._before is not None:
            gained = self._before.step / now.step
            frozen = not all(one.requires_grad for one in self._parameters)  # DDP would forget them for good
            verdict = gained, gained < 1 and self._mode != "exact" and not frozen
        verdict = self._agreed(verdict)
        back = verdict is not None and verdict[1]
        if back and self._reducing is not None:
            self._reducing.end(model)
        if verdict is not None and now is not None and self._before is not None:
            end = ": given back to DDP" if back else ""
            self._say(f"{verdict[0]:.2f}x: steps took {self._before.step:.3g} s, now {now.step:.3g} s{end}")
        self._stop()

    # --- helpers ---

    def _first_failure(self, work: Callable[[], object]) -> str:
        """Does something that may fail on some ranks; what one that failed says, the same on all, "" where none did."""
        said = ""
        try:
            work()
        except Exception as error:  # DDP trains without us
            said = one_line(f"{type(error).__name__}: {error}")
        every: list[Any] = [""] * self._layout.world
        dist.all_gather_object(every, said, group=self._group)
        return next(filter(None, every), "")

    def _agreed(self, value: Any) -> Any:
        """Rank 0's."""
        box = [value]
        dist.broadcast_object_list(box, dist.get_global_rank(self._group, 0), group=self._group)
        return box[0]

    def _links(self, costs: dict[str, Cost]) -> str:
        world = self._layout.world
        sent = 2 * (world - 1) / world
        return f"{sent / costs[OWN].per_byte / 1e6:.0f} MB/s between them"

    def _leave(self, reason: str) -> None:
        if self._reducing is None:
            self._say(f"left to DDP: {reason}")
        self._stop()

    def _stop(self) -> None:
        """Takes off all that watches the model."""
        self._over = True
        self._watch.close()
        self._handle.remove()
        model = self._model()
        if model is not None:
            model.__dict__.pop("join_hook", None)

    def _say(self, line: str) -> None:
        _say(self._mode, self._rank, line)


class _Idle:
    """Stands for a decision in a copy of a model."""

    def __call__(self, *_: Any) -> None:
        return None


def _say(mode: str, rank: int, line: str) -> None:
    if rank == 0:
        tell(f"reduce={mode}: {line}")
