"""Chooses how many stages and how many replicas a number of ranks should be.

Every divisor of the number of ranks is a number of stages; the rest are replicas, among which the microbatches of a step are
shared out. A plan predicts the step of one pipeline and the memory of its ranks; the gradients of its largest stage are then
summed over the replicas, in a ring: 2 (n - 1) / n of their bytes leave each rank (Patarasuk and Yuan 2009). Where memory is
limited, states of the optimizer are also shared out among the replicas (`shard_optimizer_state`, ZeRO-1), which takes no
more bytes on the wire: half of the ring sums, the other half hands parameters round.

Nothing that the model does with its batch is known here: that replicas see other rows is the script's business, as ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..errors import PlanError
from .costs import Link
from .plan_file import Plan
from .planner import Wish


@dataclass(frozen=True)
class Choice:
    """One way to use the ranks.

    stages: pipeline ranks.
    microbatches: of each replica.
    sharded: whether the optimizer's states are shared out among the replicas.
    plan: None where there is none.
    step_ms, memory_mib: predicted, of a whole step and of the rank that needs most.
    problem: why it is not possible, or "".
    """

    stages: int
    replicas: int
    microbatches: int
    sharded: bool = False
    plan: Plan | None = None
    step_ms: float = 0.0
    memory_mib: float = 0.0
    problem: str = ""


def wishes_for(ranks: int, wish: Wish) -> list[Wish]:
    """A wish for each number of stages, most stages first; `wish.microbatches` are those of all replicas together."""
    found = []
    for stages in range(ranks, 0, -1):
        replicas, left = divmod(ranks, stages)
        if not left and wish.microbatches % replicas == 0:
            virtual = wish.virtual if stages > 1 else 1  # a rank by itself has nobody to interleave with
            found.append(
                replace(wish, ranks=stages, virtual=virtual, microbatches=wish.microbatches // replicas, memory_limit=None)
            )
    return found


def choices(ranks: int, wishes: Sequence[Wish], plans: Iterable[Plan | PlanError], limit_mib: int) -> list[Choice]:
    """What each plan means for all ranks.

    Args:
        limit_mib: memory of a rank, 0 for any.
    """
    found = []
    for wish, plan in zip(wishes, plans, strict=True):
        choice = Choice(wish.ranks, ranks // wish.ranks, wish.microbatches)
        if isinstance(plan, PlanError):
            found.append(replace(choice, problem=plan.message))
            continue
        whole = _predicted(choice, plan, wish)
        found.append(_within(whole, limit_mib))
        if choice.replicas > 1 and wish.optimizer_states:
            found.append(_within(_with_shared_states(whole, wish), limit_mib))
    return found


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
            raise PlanError(f"no number of stages is possible: {found[0].problem}" if found else "there are no ranks")
        several = "s" if least.replicas > 1 else ""
        raise PlanError(
            f"no way to use these ranks needs less than {limit_mib} MiB on each: {least.stages} stages with "
            f"{least.replicas} replica{several} would need {least.memory_mib:.0f}",
            hint="more ranks, smaller microbatches, or activation checkpoints",
        )
    fastest = min(one.step_ms for one in possible)
    return min((one for one in possible if one.step_ms <= 1.02 * fastest), key=lambda one: one.memory_mib)


def choice_lines(found: Sequence[Choice]) -> list[str]:
    """All of them as a table."""
    lines = ["stages  replicas  optimizer  step ms  memory MiB"]
    for one in found:
        shared = "sharded" if one.sharded else "whole"
        numbers = f"{one.step_ms:7.0f}  {one.memory_mib:10.0f}" if one.plan is not None else f"{'-':>7}  {'-':>10}"
        note = f"  {one.problem}" if one.problem else ""
        lines.append(f"{one.stages:6d}  {one.replicas:8d}  {shared:>9}  {numbers}{note}")
    return lines


def chosen_line(best: Choice) -> str:
    """The settings of a job that uses the ranks so."""
    sharded = ", shard_optimizer_state: true" if best.sharded else ""
    settings = f"{{pipeline_parallel_degree: {best.stages}, microbatches: {best.microbatches}{sharded}}}"
    rows = f"; each of {best.replicas} replicas has its part of the batch" if best.replicas > 1 else ""
    return f"chosen: {settings}{rows}"


def _predicted(choice: Choice, plan: Plan, wish: Wish) -> Choice:
    stages = plan.predicted["stages"]
    gradients = max(_parameters(plan, entry["stage"]) for entry in stages) * 2**20 / (2 + wish.optimizer_states)
    share = 2 * (choice.replicas - 1) / choice.replicas
    exchange = wish.link.seconds(round(share * gradients)) if choice.replicas > 1 else 0.0
    return replace(
        choice,
        plan=plan,
        step_ms=plan.predicted["step_ms"] + exchange * 1e3,
        memory_mib=max(_of_rank(plan, rank, wish) for rank in range(wish.ranks)),
    )


def _with_shared_states(choice: Choice, wish: Wish) -> Choice:
    assert choice.plan is not None
    saved = 1 - 1 / choice.replicas
    share = wish.optimizer_states / (2 + wish.optimizer_states)
    memory = max(
        _of_rank(choice.plan, rank, wish) - saved * share * _of_rank(choice.plan, rank, wish, parameters_only=True)
        for rank in range(wish.ranks)
    )
    return replace(choice, sharded=True, memory_mib=memory)


def _of_rank(plan: Plan, rank: int, wish: Wish, *, parameters_only: bool = False) -> float:
    """MiB of all stages of a rank."""
    own = [entry for entry in plan.predicted["stages"] if wish.seat(entry["stage"]) == rank]
    if parameters_only:
        return sum(_parameters(plan, entry["stage"]) for entry in own)
    return sum(entry["memory_mib"] for entry in own)


def _parameters(plan: Plan, stage: int) -> float:
    """MiB of a stage's parameters with gradients and states."""
    return sum(unit.parameters_mib for unit in plan.units if unit.stage == stage)


def _within(choice: Choice, limit_mib: int) -> Choice:
    if not limit_mib or choice.memory_mib <= limit_mib:
        return choice
    return replace(choice, problem=f"more than {limit_mib} MiB")


def link_of(gbits: float) -> Link:
    """A link of so many Gbit/s, with the latency of a host's own."""
    return Link(bandwidth=gbits * 1e9 / 8)
