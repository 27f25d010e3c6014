"""Chooses how many stages, tensor ranks and replicas a number of ranks should be.

Every divisor of the number of ranks is a number of stages; the rest are tensor groups, which divide the modules of each
stage, and replicas, among which the microbatches of a step are shared out. A plan predicts the step of one pipeline and the
memory of its ranks; the gradients of its largest stage are then summed over the replicas, in a ring: 2 (n - 1) / n of their
bytes leave each rank (Patarasuk and Yuan 2009). What a tensor group does not divide, each of its ranks has whole, and its
gradients are summed over all of them. Where memory is limited, states of the optimizer are also shared out among the
replicas (`shard_optimizer_state`, ZeRO-1), which takes no more bytes on the wire: half of the ring sums, the other half
hands parameters round.

Without stages and tensor groups, parameters and gradients may be sharded as well (`sharded_data_parallel_degree`: FSDP2,
HSDP where the shards have replicas). A rank then holds its shard of all, and whole what runs: the parameters outside of
blocks, the block itself and the next one, which is fetched ahead. Each microbatch gathers parameters twice and sums
gradients once.

Nothing that the model does with its batch is known here: that replicas see other rows is the script's business, as ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import PlanError
from .costs import Link
from .plan_file import Plan
from .ways import Way

# Ways that are this little slower than the fastest count as fast, and the one that needs least memory is taken.
_AS_FAST = 1.02


@dataclass(frozen=True)
class Choice:
    """One way to use the ranks.

    sharded: whether the optimizer's states are shared out among the replicas.
    degree: replicas that parameters, gradients and states are sharded over; 1 for none.
    plan: None where there is none.
    step_ms, memory_mib: predicted, of a whole step and of the rank that needs most.
    busy_ms: for how much of a step a rank computes or exchanges, on the mean.
    problem: why it is not possible, or "".
    """

    way: Way
    sharded: bool = False
    degree: int = 1
    plan: Plan | None = None
    step_ms: float = 0.0
    busy_ms: float = 0.0
    memory_mib: float = 0.0
    problem: str = ""

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
            numbers = {"step_ms": self.step_ms, "busy_ms": self.busy_ms, "memory_mib": self.memory_mib}
        found = {**self.degrees(), **self.order(), **{name: round(number, 3) for name, number in numbers.items()}}
        return {**found, **({"problem": self.problem} if self.problem else {})}


def choices(ways: Sequence[Way], plans: Iterable[Plan | PlanError], limit_mib: int) -> list[Choice]:
    """What each way means for all ranks.

    Args:
        plans: of those ways that have no problem, in their order.
        limit_mib: memory of a rank, 0 for any.
    """
    found, made = [], iter(plans)
    for way in ways:
        plan = PlanError(way.problem) if way.problem else next(made)
        if isinstance(plan, PlanError):
            found.append(Choice(way, problem=plan.message))
            continue
        if way.tensor > 1 and not any(entry["divided_mib"] for entry in plan.predicted["stages"]):
            found.append(Choice(way, problem=_nothing_divided(plan)))
            continue
        whole = _predicted(Choice(way), plan)
        own = [whole]
        if way.replicas > 1 and way.wish.optimizer_states:
            own.append(_with_shared_states(whole))
        if way.stages == way.tensor == 1:
            ranks = way.replicas
            own += [_all_sharded(whole, plan, degree) for degree in range(2, ranks + 1) if ranks % degree == 0]
        found.extend(_within(one, limit_mib) for one in own)
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


def _predicted(choice: Choice, plan: Plan) -> Choice:
    """A way without sharding: the step of its pipelines, and the sums of gradients over the ranks that have the same."""
    way = choice.way
    one = 1 / (2 + way.wish.optimizer_states)  # of what a parameter takes with its gradient and states
    exchange = 0.0
    for entry in plan.predicted["stages"]:
        parts = entry["divided_mib"] * one
        whole = entry["parameters_mib"] * one - parts
        seconds = _ring(parts, way.replicas, way.replica_link)
        seconds += _ring(whole, way.replicas * way.tensor, way.group_link)
        exchange = max(exchange, seconds)
    predicted = plan.predicted
    return replace(
        choice,
        plan=plan,
        step_ms=predicted["step_ms"] + exchange * 1e3,
        busy_ms=predicted["step_ms"] * (1 - predicted["bubble"]) + exchange * 1e3,
        memory_mib=max(predicted.get("first_mib", 0.0), *(_of_rank(plan, rank, way) for rank in range(way.stages))),
    )


def _ring(mib: float, ranks: int, link: Link, *, halves: int = 2) -> float:
    """Seconds to sum something over ranks: each hands an n-th of it round, n - 1 times to sum and n - 1 times to spread.

    Args:
        halves: 1 for one of the two, as to gather what is in parts.
    """
    if ranks == 1 or not mib:
        return 0.0
    return halves * (ranks - 1) * link.seconds(round(mib / ranks * 2**20))


def _with_shared_states(choice: Choice) -> Choice:
    assert choice.plan is not None
    plan, way = choice.plan, choice.way
    saved, states = 1 - 1 / way.replicas, way.wish.optimizer_states
    share = states / (2 + states)
    ranks = range(way.stages)
    memory = [_of_rank(plan, rank, way) - saved * share * _of_rank(plan, rank, way, parameters_only=True) for rank in ranks]
    return replace(choice, sharded=True, memory_mib=max(plan.predicted.get("first_mib", 0.0), *memory))


def _all_sharded(choice: Choice, plan: Plan, degree: int) -> Choice:
    way = choice.way
    one = 1 / (2 + way.wish.optimizer_states)  # of what a parameter takes with its gradient and states, itself
    by_block: dict[str, float] = {}
    for unit in plan.units:
        block = _block(unit.unit)
        by_block[block] = by_block.get(block, 0.0) + unit.parameters_mib
    every, outside = sum(by_block.values()), by_block.pop("", 0.0)
    running = max(by_block.values(), default=0.0)
    # Whole at one time: what is outside of blocks and the block that runs, with gradients; the parameters of the next one.
    whole = one * (2 * outside + 3 * running)
    saved = _of_rank(plan, 0, way) - _of_rank(plan, 0, way, parameters_only=True)
    # Each microbatch gathers all of it twice, block by block, and sums what it adds to the gradients.
    sent = 3 * sum(_ring(block * one, degree, way.replica_link, halves=1) for block in [outside, *by_block.values()])
    copies = way.replicas // degree
    sent += _ring(every * one / degree, copies, way.replica_link)
    talk = way.microbatches * sent * 1e3
    step = plan.predicted["step_ms"] + talk
    memory = every / degree + min(whole, 2 * one * every) + saved
    return replace(choice, degree=degree, plan=plan, step_ms=step, busy_ms=step, memory_mib=memory)


def _block(unit: str) -> str:
    """The entry of the outermost list of modules that a unit belongs to; "" for none."""
    parts = unit.split(".")
    at = next((at for at, part in enumerate(parts) if part.isdigit()), None)
    return "" if at is None else ".".join(parts[: at + 1])


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


def _of_rank(plan: Plan, rank: int, way: Way, *, parameters_only: bool = False) -> float:
    """MiB of all stages of a rank."""
    own = [entry for entry in plan.predicted["stages"] if way.wish.seat(entry["stage"]) == rank]
    return float(sum(entry["parameters_mib" if parameters_only else "memory_mib"] for entry in own))


def _within(choice: Choice, limit_mib: int) -> Choice:
    if not limit_mib or choice.memory_mib <= limit_mib:
        return choice
    first = choice.plan is not None and choice.plan.predicted.get("first_mib", 0.0) > limit_mib
    return replace(choice, problem=f"more than {limit_mib} MiB" + (" in the first step, which runs the whole model" * first))
