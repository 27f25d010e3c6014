"""Predicts what a step takes where a pipeline, or one rank with all stages, has replicas: in time, memory and bytes sent.

Gradients are summed over the replicas, in a ring: 2 (n - 1) / n of their bytes leave each rank. Those of parameters that a
tensor group does not divide are summed over all of its ranks. Then the optimizer steps over what a rank holds. Three things
can be sharded:

* the optimizer's states (`shard_optimizer_state`, ZeRO-1): each replica steps over its share of the parameters, and sends
  them to the others one by one;
* stages (`sharded_data_parallel_degree`): a step gathers their parameters once, and sums gradients of which each replica
  gets its part. Parameters and gradients are whole in a step, beside the parts;
* models without stages (the same setting; FSDP2, or HSDP where the shards have replicas): a rank holds its shard of all, and
  whole what runs: the parameters outside of blocks, the block itself and the next one, which is fetched ahead. Each
  microbatch gathers the parameters of blocks twice and the others once, and sums gradients once.

Nothing that is sent is thought to overlap with computing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .candidates import RankLayout
from .costs import BUCKET_BYTES, Traffic
from .plan_file import Plan
from .rank_memory import RankMemory, Weight, held_by_ranks, of_tensor_rank

_MIB = 2**20
# Bytes that are read or written for each byte of gradients that are summed: they are put into a bucket, divided there, and
# put back.
_SUMMED = 6
# For each byte of gradients of which ranks get their parts: they are put in the order in which they are sent, twice.
_SCATTERED = 4
# For each byte that FSDP2 gathers, and that is gathered of stages, whose parameters are put in order once more.
_GATHERED, _GATHERED_OF_STAGES = 2, 4
# What a rank on CPUs has beside its tensors, MiB: code that has run, Python's objects, gloo's buffers and threads. As
# `benchmarks/three_d.py --at-once` finds it for eight ranks on 2 virtual cores of an AMD EPYC.
PROCESS_MIB = 12.5
# Bytes by which ranks see that all do the same.
_FEW = 48


@dataclass(frozen=True)
class PredictedStep:
    """Predicted.

    milliseconds: of a step; busy_ms: for how much of that a rank computes or exchanges, on the mean.
    memory_mib: of the rank that needs most.
    first_mib: of the first step, where that runs the whole model; else 0.
    sent_mib: by a rank in a step, on the mean.
    """

    milliseconds: float = 0.0
    busy_ms: float = 0.0
    memory_mib: float = 0.0
    first_mib: float = 0.0
    sent_mib: float = 0.0


@dataclass(frozen=True)
class _Rank:
    """Of one rank of a pipeline, in a step.

    memory: MiB.
    sent: after its last backward, or around the microbatches.
    worked: seconds on a core then, by the optimizer and to put together what is sent.
    """

    memory: float
    sent: Traffic
    worked: float


def replicated(way: RankLayout, plan: Plan, *, states_shared: bool = False) -> PredictedStep:
    """Each replica has all, but for the optimizer's states if these are shared out."""
    ranks = []
    for held in held_by_ranks(plan, way):
        sent, copied = _summed(way, held)
        states, update = held.states, _update(way, held)
        sent += _agreed(way)
        if states_shared:
            sent += way.replica_link.spread(held.values * _MIB, way.replicas, held.number)
            states, update = states / way.replicas, update / way.replicas
        stepping = _stepping(way, held, way.replicas if states_shared else 1)
        memory = held.values + held.gradients + states + max(held.activations, _buckets(way, held), stepping)
        ranks.append(_Rank(memory, sent, update + _touched(way, copied)))
    return _step(way, plan, ranks)


def stages_sharded(way: RankLayout, plan: Plan, degree: int) -> PredictedStep:
    """All that a rank has of its stages is shared out over so many replicas."""
    ranks, link = [], way.replica_link
    for held in held_by_ranks(plan, way):
        sent = link.gathered(held.values * _MIB, degree) + link.scattered(held.gradients * _MIB, degree)
        sent += link.summed(held.gradients / degree * _MIB, way.replicas // degree)
        sent += way.group_link.summed(held.wholes / degree * _MIB, way.tensor) + _agreed(way, 3)
        copied = held.values * _GATHERED_OF_STAGES + held.gradients * _SCATTERED
        # Put in the order in which they are sent, gradients are there once more; gloo sums all in a copy of its own.
        again = held.gradients * (2 if link.sums_all else 1)
        more = max(held.activations, again, _stepping(way, held, degree))
        memory = held.parameters / degree + held.values + held.gradients + more
        ranks.append(_Rank(memory, sent, _touched(way, copied) + _update(way, held, degree)))
    return _step(way, plan, ranks)


def all_sharded(way: RankLayout, plan: Plan, degree: int, weights: Sequence[Weight]) -> PredictedStep:
    """All is shared out over so many replicas, block by block: with tensor groups, what each of their ranks has.

    Args:
        weights: the parameters of the model.
    """
    (held,) = held_by_ranks(plan, way)
    weights = of_tensor_rank(weights, held) if way.tensor > 1 else weights
    link, copies = way.replica_link, way.replicas // degree
    blocks: dict[str, list[Weight]] = {}
    for one in weights:
        blocks.setdefault(one.block, []).append(one)
    sent, whole, running = Traffic(), 0.0, 0.0
    for block, own in blocks.items():
        value, gradient = sum(one.value for one in own), sum(one.gradient for one in own)
        padded = sum(one.value * one.padded(degree) for one in own) * _MIB
        summed = sum(one.gradient * one.padded(degree) for one in own) * _MIB
        sent += link.gathered(padded, degree) + link.scattered(summed, degree) + link.summed(summed / degree, copies)
        if block:  # its parameters go after the forward
            sent += link.gathered(padded, degree)
            running = max(running, 2 * value + gradient)
        else:
            whole += value + gradient
    shard = sum(one.shard * one.padded(degree) / degree for one in weights)
    copied = way.microbatches * (2 * _GATHERED * held.values + _SCATTERED * held.gradients)
    memory = shard + min(whole + running, held.values + held.gradients) + held.activations
    every = Traffic(way.microbatches * sent.seconds, way.microbatches * sent.bytes)
    every += way.group_link.summed(held.wholes / degree * _MIB, way.tensor) + _agreed(way, way.microbatches)
    worked = _touched(way, copied) + _update(way, held, degree)
    return _step(way, plan, [_Rank(memory, every, worked)])


def _step(way: RankLayout, plan: Plan, ranks: Sequence[_Rank]) -> PredictedStep:
    predicted, wish = plan.predicted, way.wish
    after = max(one.sent.seconds + wish.crowd * one.worked for one in ranks) * 1e3
    alone = predicted["step_ms"]
    sent = sum(entry["sent_mib"] for entry in predicted["stages"]) + sum(one.sent.bytes / _MIB for one in ranks)
    return PredictedStep(
        alone + after,
        alone * (1 - predicted["bubble"]) + after,
        max(one.memory for one in ranks),
        predicted.get("first_mib", 0.0),
        sent / way.stages,
    )


def _summed(way: RankLayout, held: RankMemory) -> tuple[Traffic, float]:
    """What a rank sends to sum its gradients, and MiB that it reads or writes for that."""
    everyone = way.replicas * way.tensor
    sent = way.replica_link.summed(held.parts * _MIB, way.replicas) + way.group_link.summed(held.wholes * _MIB, everyone)
    copied = (held.parts if way.replicas > 1 else 0.0) + (held.wholes if everyone > 1 else 0.0)
    return sent, _SUMMED * copied


def _buckets(way: RankLayout, held: RankMemory) -> float:
    """MiB of gradients in buckets, of which none goes before all are summed. Models without stages that are divided have one
    bucket after the other."""
    if way.replicas * way.tensor == 1:
        return 0.0
    one_by_one = way.stages == 1 and way.tensor > 1
    return min(held.gradients, BUCKET_BYTES / _MIB) if one_by_one else held.gradients


def _stepping(way: RankLayout, held: RankMemory, degree: int) -> float:
    """MiB that the optimizer's step makes. On a GPU torch's AdamW and its like go over all parameters at once (`foreach`),
    and make a tensor as large as each of them."""
    return 0.0 if way.wish.on_cpus or way.wish.optimizer_states < 2 else held.gradients / degree


def _agreed(way: RankLayout, more: int = 0) -> Traffic:
    """What ranks send to see that all do the same, a few numbers each time. Those of a pipeline and its tensor groups gather
    once where a step begins; those that hold the same sum before a step, and what has a gradient after it.

    Args:
        more: sums over all ranks.
    """
    link, several, alike = way.group_link, way.stages * way.tensor, way.replicas * way.tensor
    sums = [alike] * 2 + [way.stages * alike] * more
    found = sum((link.summed(_FEW, ranks) for ranks in sums), link.gathered(_FEW, several))
    return Traffic(found.seconds)  # the bytes are not worth counting


def _touched(way: RankLayout, size: float) -> float:
    """Seconds on a core to read or write so many MiB."""
    return way.wish.touch * size * _MIB


def _update(way: RankLayout, held: RankMemory, degree: int = 1) -> float:
    """Seconds on a core of an optimizer's step over a share of all that a rank holds. Where nothing was measured it goes by
    the bytes that are read or written, operation by operation: SGD 3 for each of a parameter's, with momentum 8, AdamW and
    its like 20."""
    states, size = way.wish.optimizer_states, held.gradients / degree
    if way.wish.update is not None:
        return way.wish.update.seconds(held.number, size * _MIB)
    return _touched(way, (10 * states if states > 1 else 3 + 5 * states) * size)
