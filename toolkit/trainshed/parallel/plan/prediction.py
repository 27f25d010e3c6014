"""A partition as a plan, with what it predicts."""

from __future__ import annotations

from ..tracing.subject import Subject
from ..tracing.trace import Trace
from .costs import LAST_MESSAGES, OVERHEAD, Costs, StageCosts
from .division import Divided
from .plan_file import Plan, PlanUnit, model_fingerprint
from .plan_request import Wish
from .simulate import ZERO_BUBBLE, order, step_seconds
from .traffic import bytes_sent, crossings, summed_by_stages

MIB = 2**20
# Why modules are not opened, where the job has said so itself.
ASKED_FOR, OF_SEQUENCES = "asked for", "its sequences are divided"
SAID = (ASKED_FOR, OF_SEQUENCES)


def describe(
    trace: Trace,
    subject: Subject,
    costs: Costs,
    starts: tuple[int, ...],
    wish: Wish,
    closed: dict[str, str],
    parts: Divided,
) -> Plan:
    """The plan for a partition, with its prediction.

    Args:
        parts: what the ranks of a tensor group divide.
    """
    count = len(costs.units)
    ends = (*starts[1:], count)
    stage_of = [stage for stage, (first, last) in enumerate(zip(starts, ends, strict=True)) for _ in range(first, last)]
    units = tuple(
        PlanUnit(
            unit.unit,
            unit.call,
            stage_of[position],
            round(unit.forward * 1e3, 4),
            round(unit.backward * 1e3, 4),
            round(unit.saved / MIB, 3),
            round(sum(costs.sizes.get(name, 0) for name in unit.parameters) / MIB, 3),
            round(sum(costs.sizes.get(name, 0) for name in unit.parameters if name in parts.share) / MIB, 3),
            round(unit.least / MIB, 3),
        )
        for position, unit in enumerate(costs.units)
    )
    boundaries = []
    for stage, cut in enumerate(starts[1:]):
        values = [trace.values[number].meta for number in trace.boundary(cut)]
        sent = [{"shape": list(meta.shape), "dtype": str(meta.dtype).removeprefix("torch.")} for meta in values]
        boundaries.append({"from": stage, "to": stage + 1, "bytes": sum(meta.bytes for meta in values), "values": sent})
    used: dict[str, set[int]] = {}
    for position, unit in enumerate(costs.units):
        for name in unit.parameters:
            used.setdefault(name, set()).add(stage_of[position])
    shared = tuple({"parameter": name, "stages": sorted(stages)} for name, stages in sorted(used.items()) if len(stages) > 1)
    predicted = predict(costs, starts, wish, parts)
    return Plan(
        model=model_fingerprint(subject.root),
        pipeline={
            "ranks": wish.ranks,
            "virtual": wish.virtual,
            "schedule": wish.schedule,
            "microbatches": wish.microbatches,
            **({"asked": wish.asked} if wish.asked else {}),
        },
        units=units,
        atomic=dict(sorted(closed.items())),
        overrides=dict(sorted(wish.pins.items())),
        boundaries=tuple(boundaries),
        shared=shared,
        predicted=predicted,
        notes=tuple(_notes(costs, predicted, wish, closed)),
        degrees={
            "stages": wish.ranks,
            "tensor": wish.tensor,
            **({"context": wish.context} if wish.context > 1 else {}),
        },
        divided=parts.table(),
    )


def predict(costs: Costs, starts: tuple[int, ...], wish: Wish, parts: Divided) -> dict[str, object]:
    """Milliseconds of a step and of each stage, the bubble, MiB of each stage: of what one rank has of it."""
    ends = (*starts[1:], len(costs.units))
    ranges = list(zip(starts, ends, strict=True))
    forward = [sum(u.forward for u in costs.units[a:b]) + costs.everywhere for a, b in ranges]
    backward = [sum(u.backward for u in costs.units[a:b]) for a, b in ranges]
    crossing = crossings(costs, starts, wish)
    talk = [wish.link.seconds(size) for size in crossing]
    orders = order(wish.schedule, wish.ranks, wish.virtual, wish.microbatches)
    several = len(ranges) > 1
    own = OVERHEAD[0] + costs.around, OVERHEAD[1]
    later = [0.0] * len(ranges)
    if wish.schedule in ZERO_BUBBLE:
        # A matrix product takes as long for its weight's gradient as for its input's. Nobody waits for the first stage's.
        later = [sum(u.backward / 2 for u in costs.units[a:b] if u.parameters) for a, b in ranges]
        later[0] = backward[0]
    now = [b - w + own[1] for b, w in zip(backward, later, strict=True)]
    worked, busy = step_seconds(orders, [f + own[0] for f in forward], now, talk, [w + own[1] for w in later])
    # Ranks that share cores: what one of them works delays the others, however they wait for each other.
    # Messages are work there, too.
    if wish.crowd > 1:
        spoken = sum(2 * wish.microbatches * wish.link.quicker(wish.crowd).seconds(size) for size in crossing)
        worked = max(worked, wish.crowd * (sum(busy) + spoken) / len(busy))
    read = [{name for unit in costs.units[a:b] for name in unit.parameters} for a, b in ranges]
    summed = summed_by_stages(costs, wish, read)
    seconds = worked + max(one.seconds for one in summed) + (LAST_MESSAGES * wish.link.latency if several else 0.0)
    sent = bytes_sent(costs, ends, wish, crossing, summed)
    tables = StageCosts(costs, wish.link)
    memory = [float(tables.memory(kept)[a, b]) for (a, b), kept in zip(ranges, wish.in_flight(), strict=True)]
    sizes, values, gradients = (
        [sum(table.get(name, 0) for name in names) for names in read]
        for table in (costs.sizes, costs.values, costs.gradients)
    )
    divided = [sum(costs.sizes.get(name, 0) for name in names if name in parts.share) for names in read]
    even = (costs.seconds + costs.everywhere * len(ranges)) / len(ranges)
    slowest = max(f + b for f, b in zip(forward, backward, strict=True))
    return {
        "step_ms": round(seconds * 1e3, 3),
        "bubble": round(1 - sum(busy) / (seconds * wish.ranks), 4) if seconds else 0.0,
        "slowest_over_ideal": round(slowest / even, 4) if even else 1.0,
        "stages": [
            {
                "stage": stage,
                "forward_ms": round(forward[stage] * 1e3, 3),
                "backward_ms": round(backward[stage] * 1e3, 3),
                "memory_mib": round(memory[stage] / MIB, 2),
                "parameters_mib": round(sizes[stage] / MIB, 2),
                "values_mib": round(values[stage] / MIB, 2),
                "gradients_mib": round(gradients[stage] / MIB, 2),
                "divided_mib": round(divided[stage] / MIB, 2),
                "parameters": len(read[stage]),
                "sent_mib": round(sent[stage] / MIB, 3),
            }
            for stage in range(len(ranges))
        ],
    }


def _notes(costs: Costs, predicted: dict[str, object], wish: Wish, closed: dict[str, str]) -> list[str]:
    notes = [f"{name} is kept whole: {reason}" for name, reason in sorted(closed.items()) if reason not in SAID]
    even = costs.seconds / wish.stages
    for unit in costs.units:
        seconds = unit.forward + unit.backward
        if wish.stages > 1 and seconds > 1.1 * even:
            share = 100 * seconds / costs.seconds
            notes.append(
                f"{unit.unit} alone is {share:.0f} % of the work, an even stage would be {100 / wish.stages:.0f} %: "
                "no partition can be even. Fewer stages, a smaller module (for a language model's head: a smaller "
                "vocabulary, or a head that works on parts of the sequence) or activation checkpoints elsewhere would help"
            )
    return notes
