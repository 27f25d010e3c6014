"""Chooses how many stages, tensor ranks and replicas a number of ranks should be.

Every divisor of the number of ranks is a number of stages; the rest are tensor groups, which divide the modules of each
stage, and replicas, among which the microbatches of a step are shared out. A plan predicts the step of one pipeline and the
memory of its ranks; the gradients of its largest stage are then summed over the replicas, in a ring: 2 (n - 1) / n of their
bytes leave each rank; then the optimizer steps over what a rank holds. What a tensor group does not divide, each of its
ranks has whole, and its gradients are summed over all of them. Where memory is limited, states of the optimizer are also
shared out among the replicas (`shard_optimizer_state`, ZeRO-1), which takes no more bytes on the wire: half of the ring
sums, the other half hands parameters round. Stages whose replicas shard all (`sharded_data_parallel_degree`) do the same,
and have parameters and gradients whole in a step.

Without stages and tensor groups sharding is that of FSDP2 (HSDP where the shards have replicas). A rank then holds its
shard of all, and whole what runs: the parameters outside of blocks, the block itself and the next one, which is fetched
ahead. Each microbatch gathers parameters twice and sums gradients once.

Nothing that the model does with its batch is known here: that replicas see other rows is the script's business, as ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import PlanError
from .held import Held, held_by_ranks
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
        if way.replicas > 1 and any(one.states for one in held_by_ranks(plan, way)):
            own.append(_with_shared_states(whole, plan))
        if way.tensor == 1:
            sharded = _all_sharded if way.stages == 1 else _stages_sharded
            degrees = [degree for degree in range(2, way.replicas + 1) if way.replicas % degree == 0]
            own += [sharded(whole, plan, degree) for degree in degrees]
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
    exchange = 0.0
    for entry in plan.predicted["stages"]:
        size = entry["gradients_mib"] * 2**20
        parts = size * entry["divided_mib"] / entry["parameters_mib"] if entry["parameters_mib"] else 0.0
        seconds = way.replica_link.ring(parts, way.replicas)
        seconds += way.group_link.ring(size - parts, way.replicas * way.tensor)
        exchange = max(exchange, seconds)
    predicted, held = plan.predicted, held_by_ranks(plan, way)
    more = exchange * 1e3 + _update_ms(way, held)
    return replace(
        choice,
        plan=plan,
        step_ms=predicted["step_ms"] + more,
        busy_ms=predicted["step_ms"] * (1 - predicted["bubble"]) + more,
        memory_mib=max(predicted.get("first_mib", 0.0), *(one.all for one in held)),
    )


def _update_ms(way: Way, held: Sequence[Held]) -> float:
    """Milliseconds in which the optimizer steps over all that the fullest rank holds, operation by operation: SGD reads or
    writes 3 bytes for each of a parameter's, with momentum 8, AdamW and its like 20."""
    states = way.wish.keeping.states
    passes = 10 * states if states > 1 else 3 + 5 * states
    return 1e3 * way.wish.crowd * way.wish.touch * passes * max(one.gradients for one in held) * 2**20


def _with_shared_states(whole: Choice, plan: Plan) -> Choice:
    way, held = whole.way, held_by_ranks(plan, whole.way)
    saved = 1 - 1 / way.replicas
    less = saved * _update_ms(way, held)
    memory = [one.all - saved * one.states for one in held]
    step, busy, first = whole.step_ms - less, whole.busy_ms - less, plan.predicted.get("first_mib", 0.0)
    return replace(whole, sharded=True, step_ms=step, busy_ms=busy, memory_mib=max(first, *memory))


def _stages_sharded(whole: Choice, plan: Plan, degree: int) -> Choice:
    """Each stage's parameters, gradients and states in parts: a step gathers the parameters once, and has them whole with
    their gradients beside the parts; it hands round as many bytes as a sum does."""
    way, held = whole.way, held_by_ranks(plan, whole.way)
    less = (1 - 1 / degree) * _update_ms(way, held)
    memory = [one.activations + one.values + one.gradients + one.in_parts / degree for one in held]
    step, busy = whole.step_ms - less, whole.busy_ms - less
    return replace(whole, degree=degree, step_ms=step, busy_ms=busy, memory_mib=max(memory))


def _all_sharded(whole: Choice, plan: Plan, degree: int) -> Choice:
    way, (held,) = whole.way, held_by_ranks(plan, whole.way)
    by_block: dict[str, float] = {}
    for unit in plan.units:
        block = _block(unit.unit)
        by_block[block] = by_block.get(block, 0.0) + unit.parameters_mib
    every = sum(by_block.values()) or 1.0
    value, gradient = held.values / every, held.gradients / every
    outside = by_block.pop("", 0.0)
    running = max(by_block.values(), default=0.0)
    # Whole at one time: what is outside of blocks and the block that runs, with gradients; the parameters of the next one.
    whole_mib = value * (outside + 2 * running) + gradient * (outside + running)
    # Each microbatch gathers all of it twice, block by block, and sums what it adds to the gradients.
    link, sizes = way.replica_link, [block * 2**20 for block in [outside, *by_block.values()]]
    sent = sum(link.ring((2 * value + gradient) * size, degree, halves=1) for size in sizes)
    sent += link.ring(gradient * sum(sizes) / degree, way.replicas // degree)
    step = plan.predicted["step_ms"] + way.microbatches * sent * 1e3 + _update_ms(way, [held]) / degree
    memory = held.in_parts / degree + min(whole_mib, held.values + held.gradients) + held.activations
    return replace(whole, degree=degree, step_ms=step, busy_ms=step, memory_mib=memory)


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


def _within(choice: Choice, limit_mib: int) -> Choice:
    if not limit_mib or choice.memory_mib <= limit_mib:
        return choice
    first = choice.plan is not None and choice.plan.predicted.get("first_mib", 0.0) > limit_mib
    return replace(choice, problem=f"more than {limit_mib} MiB" + (" in the first step, which runs the whole model" * first))
