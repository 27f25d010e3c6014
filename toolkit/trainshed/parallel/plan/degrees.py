"""Chooses how many stages, tensor ranks and replicas a number of ranks should be.

Every divisor of the number of ranks is a number of stages; the rest are tensor groups, which divide the modules of each
stage, and replicas, among which the microbatches of a step are shared out. A plan predicts the step of one pipeline and the
memory of its ranks; what replicas make of that is in `over_replicas`.

Nothing that the model does with its batch is known here: that replicas see other rows is the script's business, as ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..ground.errors import PlanError
from .candidates import RankLayout
from .over_replicas import PROCESS_MIB, PredictedStep, all_sharded, replicated, stages_sharded
from .plan_file import Plan
from .rank_memory import Weight, held_by_ranks

# Ways that are this little slower than the fastest count as fast, and the one that needs least memory is taken.
_AS_FAST = 1.02


@dataclass(frozen=True)
class Choice:
    """One way to use the ranks.

    sharded: whether the optimizer's states are shared out among the replicas.
    degree: replicas that parameters, gradients and states are sharded over; 1 for none.
    plan: None where there is none.
    step: what is predicted of a step.
    problem: why it is not possible, or "".
    """

    way: RankLayout
    sharded: bool = False
    degree: int = 1
    plan: Plan | None = None
    step: PredictedStep = field(default_factory=PredictedStep)
    problem: str = ""

    @property
    def step_ms(self) -> float:
        """Of a whole step."""
        return self.step.milliseconds

    @property
    def memory_mib(self) -> float:
        """Of the rank that needs most, in the step that needs most."""
        return max(self.step.memory_mib, self.step.first_mib)

    def settings(self) -> dict[str, Any]:
        """As `pipe.init` takes them."""
        if self.degree > 1:
            return self.way.settings(sharded_data_parallel_degree=self.degree)
        return self.way.settings(**({"shard_optimizer_state": True} if self.sharded else {}))

    def order(self) -> dict[str, Any]:
        """How a step runs, for the plan file."""
        way = self.way
        return {"microbatches": way.microbatches, **({"schedule": way.wish.schedule} if way.stages > 1 else {})}

    def degrees(self) -> dict[str, Any]:
        """Who holds what, for the plan file."""
        way = self.way
        found = {"stages": way.stages, "tensor": way.tensor, "replicas": way.replicas, "sharded": self.degree}
        return {**found, "shard_optimizer_state": self.sharded}

    def facts(self) -> dict[str, Any]:
        """With what is predicted, for the plan file."""
        numbers = {}
        if self.plan is not None:
            one = self.step
            numbers = {"step_ms": one.milliseconds, "busy_ms": one.busy_ms, "memory_mib": self.memory_mib}
            numbers.update({"later_mib": one.memory_mib, "sent_mib": one.sent_mib})
            numbers.update({"process_mib": PROCESS_MIB} if self.way.wish.on_cpus else {})
        found = {**self.degrees(), **self.order(), **{name: round(number, 3) for name, number in numbers.items()}}
        return {**found, **({"problem": self.problem} if self.problem else {})}


def choices(
    ways: Sequence[RankLayout], plans: Iterable[Plan | PlanError], weights: Sequence[Weight], limit_mib: int
) -> list[Choice]:
    """Lists what each way means for all ranks.

    Args:
        plans: of those ways that have no problem, in their order.
        weights: the parameters of the model.
        limit_mib: memory of a rank, 0 for any.
    """
    found: list[Choice] = []
    made = iter(plans)
    for way in ways:
        plan = PlanError(way.problem) if way.problem else next(made)
        if isinstance(plan, PlanError):
            problem = plan.message
        elif way.tensor > 1 and not any(entry["divided_mib"] for entry in plan.predicted["stages"]):
            problem = _nothing_divided(plan)
        else:
            found.extend(_within(one, limit_mib) for one in _over_replicas(way, plan, weights))
            continue
        found.append(Choice(way, problem=problem))
    return found


def _over_replicas(way: RankLayout, plan: Plan, weights: Sequence[Weight]) -> Iterator[Choice]:
    """What can be done with the replicas of a way."""
    yield Choice(way, plan=plan, step=replicated(way, plan))
    if way.replicas > 1 and any(one.states for one in held_by_ranks(plan, way)):
        yield Choice(way, True, plan=plan, step=replicated(way, plan, states_shared=True))
    for degree in (one for one in range(2, way.replicas + 1) if way.replicas % one == 0):
        if way.stages > 1:
            yield Choice(way, degree=degree, plan=plan, step=stages_sharded(way, plan, degree))
        else:
            yield Choice(way, degree=degree, plan=plan, step=all_sharded(way, plan, degree, weights))


def chosen(found: Sequence[Choice], limit_mib: int) -> Choice:
    """The fastest that is possible; of those that are as fast (2 %), the one that needs least memory.

    Raises:
        PlanError: there is none.
    """
    possible = [one for one in found if not one.problem]
    if not possible:
        planned = [one for one in found if one.plan is not None]
        least = min(planned, key=lambda one: one.memory_mib, default=None)
        if least is None:
            raise PlanError(f"no way to use these ranks is possible: {found[0].problem}" if found else "there are no ranks")
        raise PlanError(
            f"no way to use these ranks needs less than {limit_mib} MiB on each: {in_words(least)} would need "
            f"{least.memory_mib:.0f}",
            hint="more ranks, smaller microbatches, or activation checkpoints",
        )
    fastest = min(one.step_ms for one in possible)
    return min((one for one in possible if one.step_ms <= _AS_FAST * fastest), key=lambda one: one.memory_mib)


def choice_lines(found: Sequence[Choice]) -> list[str]:
    """All of them as a table."""
    lines = ["stages  tensor  replicas    sharded  step ms  memory MiB"]
    for one in found:
        way = one.way
        shared = f"all by {one.degree}" if one.degree > 1 else "optimizer" if one.sharded else "-"
        numbers = f"{one.step_ms:7.0f}  {one.memory_mib:10.0f}" if one.plan is not None else f"{'-':>7}  {'-':>10}"
        note = f"  {one.problem}" if one.problem else ""
        lines.append(f"{way.stages:6d}  {way.tensor:6d}  {way.replicas:8d}  {shared:>9}  {numbers}{note}")
    return lines


def beside_lines(best: Choice) -> list[str]:
    """Says what a rank has that no way changes; nothing where its memory is a GPU's."""
    return [f"a rank's process has {PROCESS_MIB:.0f} MiB beside its tensors"] if best.way.wish.on_cpus else []


def chosen_lines(best: Choice, found: Sequence[Choice]) -> list[str]:
    """The settings of a job that uses the ranks so, and why."""
    way = best.way
    settings = ", ".join(f"{name}: {_spoken(value)}" for name, value in best.settings().items())
    rows = ""
    if way.replicas > 1 and way.tensor > 1:
        rows = f"; each of {way.replicas} tensor groups has its part of the batch: split data by rdp_rank() of rdp_size()"
    elif way.tensor > 1:
        rows = "; all ranks have the same batch"
    elif way.replicas > 1:
        rows = f"; each of {way.replicas} replicas has its part of the batch: split data by dp_rank() of dp_size()"
    possible = [one for one in found if not one.problem]
    fastest = min(possible, key=lambda one: one.step_ms)
    why = f"the fastest of {_several(len(possible), 'possible way')}"
    if len(possible) == 1:
        why = "no other way is possible"
    elif fastest.step_ms < best.step_ms or fastest.memory_mib > best.memory_mib:
        memory = f"{best.memory_mib:.0f} of {fastest.memory_mib:.0f} MiB"
        why = f"as fast as {in_words(fastest).rstrip(',')}, but for 2 %, with {memory}"
    return [f"chosen: {{{settings}}}{rows}", f"why: {why}"]


def _nothing_divided(plan: Plan) -> str:
    reasons = list(plan.divided.items())
    if not reasons:
        return "no module of a kind that can be divided"
    return f"no module can be divided: {reasons[0][0]!r} stays {reasons[0][1]}"


def in_words(one: Choice) -> str:
    """Such as "2 stages of 4 tensor ranks with 1 replica"."""
    way = one.way
    tensor = f" of {way.tensor} tensor ranks" if way.tensor > 1 else ""
    sharded = f", all sharded by {one.degree}," if one.degree > 1 else ", optimizer states sharded," if one.sharded else ""
    return f"{_several(way.stages, 'stage')}{tensor} with {_several(way.replicas, 'replica')}{sharded}"


def _spoken(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _several(count: int, word: str) -> str:
    return f"{count} {word}" + ("s" if count > 1 else "")


def _within(choice: Choice, limit_mib: int) -> Choice:
    if not limit_mib or choice.memory_mib <= limit_mib:
        return choice
    first = choice.step.first_mib > limit_mib
    return replace(choice, problem=f"more than {limit_mib} MiB" + (" in the first step, which runs the whole model" * first))
