"""Decides how a model's gradients are exchanged: watches steps, measures the links, changes what would gain, goes back where
it did not, and decides again when the network has changed.

All ranks decide alike: rank 0 does, and tells the others, at the same backward of each.
"""

from __future__ import annotations

import time
import uuid
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from trainshed.base.errors import one_line
from trainshed.base.voice import tell

from ..ground.torch_private import communication_hooks, timeout_of
from .algorithms import Algorithms, store_of
from .bucket_plan import MIB, BucketPlan, Cost, Timeline, calibrated, what_next
from .ddp_buckets import own_sizes, parameters_of
from .drift import Steadiness
from .host_layout import HostLayout
from .links import link_costs
from .reducing import OWN, Reducing, own_way
from .timeline import StepWatch

WARM = 2  # steps after a change whose buckets are not yet those of later ones
WATCHED = 6  # steps that are then looked at
_LEAST_WAIT = 0.05  # part of a step that is spent waiting for gradients, below which nothing can be gained


class Decision:
    """The hook that is called before every forward of a model.

    Steps are looked at closely before and after a decision; between two decisions only their time is, and that now and then.

    Args:
        model: as it was just made; it is not kept alive.
        mode: `auto`, `exact` or `bf16`.
        layout: of its process group.
    """

    def __init__(self, model: DistributedDataParallel, mode: str, layout: HostLayout) -> None:
        self._mode, self._layout = mode, layout
        self._group: Any = model.process_group
        self._rank = dist.get_rank(self._group)
        self._parameters = parameters_of(model)
        self._sizes = own_sizes(model)
        self._watch = StepWatch(self._parameters, not (model.find_unused_parameters or model.static_graph))
        self._steady = Steadiness()
        self._reducing: Reducing | None = None
        self._plan: BucketPlan | None = None  # by which gradients go now
        self._earlier: tuple[BucketPlan | None, Timeline | None] | None = None  # what that is compared with
        self._over = self._resting = False
        self._at = WARM + WATCHED  # the step before which something is due
        self._model = weakref.ref(model)
        self._handle = model.register_forward_pre_hook(self)
        joins = weakref.WeakMethod(model.join_hook)

        def join_hook(**options: Any) -> Any:
            if self._reducing is None and not self._steady.reference:
                self._say("left to DDP: ranks have unequally many batches (join)")
            self._stop()  # those that are done take part in nothing of ours
            method = joins()
            assert method is not None
            return method(**options)

        model.join_hook = join_hook  # type: ignore[method-assign]

    def __call__(self, model: Any, _: Any) -> None:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        watch = self._watch
        if watch.steps >= self._at:
            if self._resting:
                self._glance()
            elif self._earlier is None:
                self._decide(model)
            else:
                self._compare(model)
            watch.forget()
        elif watch.steps <= self._at - WATCHED:
            watch.forget()
        if not self._over:
            watch.forward_begins(bool(model.require_backward_grad_sync))

    def __reduce__(self) -> Any:
        return _Idle, ()  # a copy of the model has an exchange of its own

    # --- what is due before a step ---

    def _decide(self, model: DistributedDataParallel) -> None:
        again = bool(self._steady.reference)
        timeline = self._watch.timeline() if self._rank == 0 else None
        reason, waits = self._agreed(self._reasons(model, timeline) if self._rank == 0 else None)
        if reason:
            self._leave(reason)
            return
        if waits:
            self._go_on(timeline, waits)
            return
        reducing = self._reducing or self._connected(model)
        if reducing is None:
            return
        costs = link_costs(self._ways(reducing.algorithms), self._group)
        plan = self._plan
        if self._rank == 0:
            assert timeline is not None
            costs = calibrated(timeline, costs, OWN, self._sizes, plan)
            plan = what_next(timeline, costs, OWN, self._sizes, plan, always=self._mode == "exact")
        told, same = self._agreed((plan, plan == self._plan))
        if same:
            if self._plan is None:
                reducing.algorithms.close()
            self._go_on(timeline, f"nothing is expected to be faster here ({self._links(costs)})")
            return
        self._reducing = reducing
        self._earlier = self._plan, timeline
        self._follow(model, told)
        if timeline is not None:
            head = f"{self._now_and_before(timeline)}, links were measured again: " if again else ""
            self._say(f"{head}{self._layout.text()}, {self._links(costs)}: {_promise(told, timeline)}")

    def _compare(self, model: DistributedDataParallel) -> None:
        now = self._watch.timeline() if self._rank == 0 else None
        assert self._earlier is not None
        earlier, before = self._earlier
        gained, back = 1.0, False
        if now is not None and before is not None:
            gained = before.step / now.step
            back = gained < 1 and self._mode != "exact" and not self._held(model)
        gained, back = self._agreed((gained, back))
        if back:
            self._follow(model, earlier)
        if now is not None and before is not None:
            end = "" if not back else ": given back to DDP" if earlier is None else ": as before again"
            self._say(f"{gained:.2f}x: steps took {before.step:.3g} s, now {now.step:.3g} s{end}")
        self._earlier = None
        self._rest(before if back else now)

    def _glance(self) -> None:
        """Whether steps still take as long as they did; if not, they are looked at closely."""
        changed = bool(self._rank == 0 and self._steady.changed(self._watch.periods(), time.monotonic()))
        told = torch.tensor([int(changed), self._steady.steps_to_look()])
        dist.broadcast(told, dist.get_global_rank(self._group, 0), group=self._group)
        if told[0]:
            self._resting = False
            self._watch.look()
            self._at = self._watch.steps + 1 + WATCHED
        else:
            self._at = self._watch.steps + int(told[1])

    # --- their parts ---

    def _reasons(self, model: DistributedDataParallel, timeline: Timeline | None) -> tuple[str, str]:
        """Why the model is left to DDP for good, and why there is nothing to change for now."""
        if held := self._held(model):
            return held, ""
        if timeline is None or not timeline.size:
            return "too few steps were seen", ""
        if self._mode != "exact" and timeline.waited < _LEAST_WAIT * timeline.step:
            return "", f"a step waits {100 * timeline.waited / timeline.step:.1f} % of its time for gradients"
        return "", ""

    def _held(self, model: DistributedDataParallel) -> str:
        """What would be lost if DDP was given other buckets now."""
        if communication_hooks(model) and (self._plan is None or self._plan.algorithm == OWN):
            return "the model has another communication hook"
        if not all(one.requires_grad for one in self._parameters):
            return "parameters were frozen"
        same = {id(one) for one in self._parameters} == {id(one) for one in parameters_of(model)}
        return "" if same else "parameters are trained now that were frozen when DDP was made"

    def _connected(self, model: DistributedDataParallel) -> Reducing | None:
        """All ways of the layout, on all ranks; None where one could not."""
        prefix = self._agreed(uuid.uuid4().hex if self._rank == 0 else None)
        store = store_of(f"trainshed/reduce/{prefix}")
        algorithms = Algorithms(self._layout, self._rank, store, timeout_of(self._group))
        failed = self._first_failure(lambda: algorithms.make(algorithms.names(bf16=self._mode == "bf16")))
        if failed:
            algorithms.close()
            self._leave(f"ranks could not be connected: {failed}")
            return None
        return Reducing(model, algorithms)

    def _ways(self, algorithms: Algorithms) -> dict[str, Any]:
        ways: dict[str, Any] = {OWN: own_way(self._group)}
        for name in algorithms.names(bf16=self._mode == "bf16"):
            ways[name] = lambda tensor, done, name=name: algorithms.average(name, tensor, done)
        return ways

    def _follow(self, model: DistributedDataParallel, plan: BucketPlan | None) -> None:
        """Gradients go by that plan, and steps are looked at from when their buckets are those of later ones."""
        assert self._reducing is not None
        if plan is None:
            self._reducing.end(model)
            self._reducing = None
        else:
            self._reducing.begin(model, plan)
        self._plan = plan
        self._at = self._watch.steps + WARM + WATCHED

    def _go_on(self, timeline: Timeline | None, why: str) -> None:
        """Nothing is changed, for now."""
        if timeline is not None and self._steady.reference:
            self._say(f"{self._now_and_before(timeline)}: going on as before: {why}")
        else:
            self._say(f"left to DDP: {why}")
        self._rest(timeline)

    def _rest(self, timeline: Timeline | None) -> None:
        """Nothing is due but a look, now and then, at how long steps take."""
        self._steady.begin(timeline.step if timeline is not None else self._steady.reference, time.monotonic())
        self._resting = True
        self._watch.rest()
        self._at = self._watch.steps + int(self._agreed(self._steady.steps_to_look()))

    def _now_and_before(self, timeline: Timeline) -> str:
        return f"steps take {timeline.step:.3g} s, {self._steady.reference:.3g} s before"

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
        """The model is watched no more."""
        self._say(f"{'left to DDP' if self._plan is None else 'going on as it is'}: {reason}")
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
        say(self._mode, self._rank, line)


class _Idle:
    """Stands for a decision in a copy of a model."""

    def __call__(self, *_: Any) -> None:
        return None


def _promise(plan: BucketPlan | None, timeline: Timeline) -> str:
    if plan is None:
        return "given back to DDP"
    return (
        f"{plan.algorithm} in buckets of {plan.bucket / MIB:g} MiB, "
        f"steps of {timeline.step:.3g} s should take {timeline.step / plan.predicted:.3g} s ({plan.predicted:.2f}x)"
    )


def say(mode: str, rank: int, line: str) -> None:
    """Rank 0 tells what was decided."""
    if rank == 0:
        tell(f"reduce={mode}: {line}")
