"""Chooses how many stages and how many replicas a number of ranks should be.

Every divisor of the number of ranks is a number of stages; the rest are replicas, among which the microbatches of a step are
shared out. A plan predicts the step of one pipeline and the memory of its ranks; the gradients of its largest stage are then
summed over the replicas, in a ring: 2 (n - 1) / n of their bytes leave each rank (Patarasuk and Yuan 2009). Where memory is
limited, states of the optimizer are also shared out among the replicas (`shard_optimizer_state`, ZeRO-1), which takes no
more bytes on the wire: half of the ring sums, the other half hands parameters round.

Without stages, parameters and gradients may be sharded as well (`sharded_data_parallel_degree`: FSDP2, HSDP where the shards
have replicas). A rank then holds its shard of all, and whole what runs: the parameters outside of blocks, the block itself
and the next one, which is fetched ahead. Each microbatch gathers parameters twice and sums gradients once.

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
    degree: replicas that parameters, gradients and states are sharded over; 1 for none.
    plan: None where there is none.
    step_ms, memory_mib: predicted, of a whole step and of the rank that needs most.
    problem: why it is not possible, or "".
    """

    stages: int
    replicas: int
    microbatches: int
    sharded: bool = False
    degree: int = 1
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
        if choice.stages == 1:
            degrees = [degree for degree in range(2, ranks + 1) if ranks % degree == 0]
            found.extend(_within(_all_sharded(choice, plan, wish, degree), limit_mib) for degree in degrees)
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
        sharded = f", all sharded by {least.degree}," if least.degree > 1 else ""
        raise PlanError(
            f"no way to use these ranks needs less than {limit_mib} MiB on each: {_several(least.stages, 'stage')} with "
            f"{_several(least.replicas, 'replica')}{sharded} would need {least.memory_mib:.0f}",
            hint="more ranks, smaller microbatches, or activation checkpoints",
        )
    fastest = min(one.step_ms for one in possible)
    return min((one for one in possible if one.step_ms <= 1.02 * fastest), key=lambda one: one.memory_mib)


def choice_lines(found: Sequence[Choice]) -> list[str]:
    """All of them as a table."""
    lines = ["stages  replicas    sharded  step ms  memory MiB"]
    for one in found:
        shared = f"all by {one.degree}" if one.degree > 1 else "optimizer" if one.sharded else "-"
        numbers = f"{one.step_ms:7.0f}  {one.memory_mib:10.0f}" if one.plan is not None else f"{'-':>7}  {'-':>10}"
        note = f"  {one.problem}" if one.problem else ""
        lines.append(f"{one.stages:6d}  {one.replicas:8d}  {shared:>9}  {numbers}{note}")
    return lines


def chosen_line(best: Choice) -> str:
    """The settings of a job that uses the ranks so."""
    sharded = ", shard_optimizer_state: true" if best.sharded else ""
    if best.degree > 1:
        sharded = f", sharded_data_parallel_degree: {best.degree}"
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


def _all_sharded(choice: Choice, plan: Plan, wish: Wish, degree: int) -> Choice:
    one = 1 / (2 + wish.optimizer_states)  # of what a parameter takes with its gradient and states, itself
    by_block: dict[str, float] = {}
    for unit in plan.units:
        block = _block(unit.unit)
        by_block[block] = by_block.get(block, 0.0) + unit.parameters_mib
    every, outside = sum(by_block.values()), by_block.pop("", 0.0)
    running = max(by_block.values(), default=0.0)
    # Whole at one time: what is outside of blocks and the block that runs, with gradients; the parameters of the next one.
    whole = one * (2 * outside + 3 * running)
    saved = _of_rank(plan, 0, wish) - _of_rank(plan, 0, wish, parameters_only=True)
    size = every * one * 2**20
    sent = wish.link.seconds(round(3 * (degree - 1) / degree * size))
    replicas = choice.replicas // degree
    if replicas > 1:
        sent += wish.link.seconds(round(2 * (replicas - 1) / replicas * size / degree))
    return replace(
        choice,
        degree=degree,
        plan=plan,
        step_ms=plan.predicted["step_ms"] + choice.microbatches * sent * 1e3,
        memory_mib=every / degree + min(whole, 2 * one * every) + saved,
    )


def _block(unit: str) -> str:
    """The entry of the outermost list of modules that a unit belongs to; "" for none."""
    parts = unit.split(".")
    at = next((at for at, part in enumerate(parts) if part.isdigit()), None)
    return "" if at is None else ".".join(parts[: at + 1])


def _several(count: int, word: str) -> str:
    return f"{count} {word}" + ("s" if count > 1 else "")


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
