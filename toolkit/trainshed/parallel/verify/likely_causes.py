"""Why N ranks do not train as one process: each cause is told from facts that the ranks have left.

The rows of `CAUSES` are asked in order; what is found first is what the rest follows from, mostly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .agreement import Compared, Mismatch, close
from .evidence import ACCELERATE, Evidence, Pass, Sketches

_BARELY = 0.02
_TIED = "is shared with a parameter already managed"
_CONNECTIONS = ("gloo", "NCCL", "Connection", "DistNetworkError")
_UNUSED = ("finished reduction in the prior iteration", "were not used in producing loss")


_TOGETHER = "divide both modules in one call: fully_shard([embedding, head]), or tie them again afterwards"


@dataclass(frozen=True)
class Cause:
    """key: a word for it. text: what is wrong, and where. hint: what to do. mild: N ranks still agree with one process."""

    key: str
    text: str
    hint: str
    mild: bool = False


def causes(found: Compared) -> list[Cause]:
    """All that the facts say is wrong, first what the rest follows from; at most one of them explains the gradients."""
    if failed := list(_script(found)):
        return failed
    if found.divided_by_hand or found.in_stages:
        return []  # what its ranks have in common, the script knows alone
    return [cause for look in CAUSES for cause in look(found)]


def _script(found: Compared) -> Iterator[Cause]:
    failed = [one for one in found.ranks if one.error]
    # A rank that others have left fails later, by its connections.
    for one in sorted(failed, key=lambda one: any(word in one.error for word in _CONNECTIONS)):
        if any(words in one.error for words in _UNUSED):
            yield Cause(
                "unused",
                f"DDP waits for gradients of parameters that rank {one.rank} did not use",
                "DistributedDataParallel(..., find_unused_parameters=True), or leave the parameters out of the model",
            )
        elif _TIED in one.error:
            yield Cause("tie", f"a parameter of two modules was divided with one of them: {one.error}", _TOGETHER)
        else:
            yield Cause("error", f"rank {one.rank} ended with {one.error}", "the script's own error, above")
        return


def _start(found: Compared) -> Iterator[Cause]:
    name = _first_apart(found.ranks, lambda one: one.start)
    name = name or _first_apart(found.ranks, lambda one: {f"{at}: {name}": s for at, (name, s) in enumerate(one.before)})
    if name:
        yield Cause(
            "start",
            f"the ranks begin with other parameters: {name.rpartition(': ')[2]!r} is the first that differs",
            "seed all ranks alike before the model is made (torch.manual_seed), or broadcast rank 0's parameters",
        )


def _first_apart(ranks: Sequence[Evidence], of: Callable[[Evidence], Sketches]) -> str:
    first = of(ranks[0])
    for one in ranks[1:]:
        own = of(one)
        for name in first:
            if name in own and not close(own[name], first[name], 1e-6):
                return name
    return ""


def _ties(found: Compared) -> Iterator[Cause]:
    loose = next((one.loose for one in found.ranks if one.loose), [])
    if loose:
        yield Cause(
            "tie",
            f"{loose[0]!r} was the same parameter as another one, which was divided without it: they are trained apart",
            _TOGETHER,
        )


def _strangers(found: Compared) -> Iterator[Cause]:
    strange = next((update.strange for one in found.ranks for update in one.updates if update.strange), 0)
    moves = any(sketch.length for one in found.ranks for update in one.updates for sketch in update.taken.values())
    if strange and (found.apart or not moves or any("FSDP" in one.ways or "TP" in one.ways for one in found.ranks)):
        yield Cause(
            "optimizer",
            f"the optimizer has {strange} parameters that the model does not have any more",
            "make the optimizer after fully_shard, parallelize_module, or whatever else makes new parameters",
        )


def _batches(found: Compared) -> Iterator[Cause]:
    for together in found.passes():
        rows = [one.rows for one in together]
        if len(rows) > 1 and rows[0] and all(own == rows[0] for own in rows[1:]):
            yield Cause(
                "same data",
                f"all {len(rows)} ranks get the same {len(rows[0])} rows",
                "DataLoader(sampler=DistributedSampler(dataset)), or take each rank's own part of the data",
            )
            break
    by_rank = {one.rank: one for one in found.ranks}
    for one in found.ranks:
        first = by_rank.get(min([one.rank, *one.twins]), one)
        if _rows(one) != _rows(first):
            yield Cause(
                "twins",
                f"ranks {first.rank} and {one.rank} divide the same modules, and get other rows",
                "give all ranks of a tensor group the same batch: sample by the data-parallel rank",
            )
            return


def _rows(one: Evidence) -> list[list[str]]:
    return [passing.rows for update in one.updates for passing in update.passes]


def _epochs(found: Compared) -> Iterator[Cause]:
    if any(one.repeated for one in found.ranks):
        yield Cause(
            "epoch",
            "DistributedSampler gives the rows in the same order in each epoch",
            "call sampler.set_epoch(epoch) before each epoch",
        )


def _dropout(found: Compared) -> Iterator[Cause]:
    first = [passing for update in found.ranks[0].updates for passing in update.passes]
    if not any(one.dropout for one in first):
        return
    for together in found.passes()[:1]:
        if len(together) > 1 and len({one.random for one in together}) == 1:
            yield Cause(
                "dropout",
                "dropout is the same on all ranks: their random generators are in the same state",
                "torch.manual_seed(seed + rank) when the model has been made",
                mild=True,
            )
    for one in found.ranks:
        twin = next((other for other in found.ranks if other.rank == min([one.rank, *one.twins])), one)
        if twin is not one and [p.random for p in _passes(one)] != [p.random for p in _passes(twin)]:
            yield Cause(
                "dropout of twins",
                f"ranks {twin.rank} and {one.rank} divide the same modules, and drop other values",
                "seed by the data-parallel rank, or leave dropout to modules whose results are in parts",
            )
            return


def _passes(one: Evidence) -> list[Pass]:
    return [passing for update in one.updates for passing in update.passes]


def _modes(found: Compared) -> Iterator[Cause]:
    for together in found.passes():
        if len({one.training for one in together}) > 1:
            yield Cause(
                "mode",
                "modules train on one rank, and are in eval() on another",
                "call model.train() on all ranks before the step",
            )
            return


def _scaler(found: Compared) -> Iterator[Cause]:
    if any(update.scaled for one in found.ranks for update in one.updates):
        yield Cause(
            "scaler",
            "gradients are clipped while the loss scale is in them",
            "call scaler.unscale_(optimizer) before clip_grad_norm_",
        )


def _padding(found: Compared) -> Iterator[Cause]:
    if any(passing.padding for one in found.ranks for passing in _passes(one)):
        yield Cause(
            "padding",
            "the loss counts positions that are padding",
            "set the targets there to -100 (ignore_index), or give cross_entropy the padding's token as ignore_index",
        )


# Gradients: one of these, at most -----------------------------------------------------------------------------------


def _gradients(found: Compared) -> Iterator[Cause]:
    for look in (_among, _missing, _factor, _statistics, _clipped, _uneven, _between, _module, _unknown):
        cause = look(found)
        if cause is not None:
            yield cause
            return


def _among(found: Compared) -> Cause | None:
    apart, made = found.among.get("taken"), found.among.get("made")
    if apart is None:
        return None
    what = f"the ranks step with other gradients: {_where(apart)}"
    if any(one.twins for one in found.ranks) and _are_twins(found, apart):
        return Cause(
            "twin gradients", f"{what}, within a tensor group", "sum the gradients of whole parameters over the group"
        )
    passes = [one for rank in found.ranks for one in rank.updates[apart.step].passes]
    if any(one.past for one in passes):
        return Cause("past DDP", f"{what}; the forward goes past DDP", "call the DDP object itself, and not its .module")
    if not all(passes[at].synced for at in _last(found, apart.step)):
        hint = "leave the last backward before a step out of no_sync()"
        return Cause("no sync", f"{what}; the last backward was within no_sync()", hint)
    if made is None or made.step > apart.step:
        hint = "clip by the norm of the whole gradient: torch.nn.utils.clip_grad_norm_ after the reduction"
        return Cause("changed by rank", f"{what}, and were alike after the backward: each rank has changed its own", hint)
    if apart.count < apart.every:
        return Cause(
            "some not reduced",
            f"{what}; the other parameters' gradients are alike",
            "reduce the gradients of all parameters, also of those that are frozen or made later",
        )
    return Cause(
        "not reduced",
        f"{what}: they are not summed over ranks",
        "wrap the model in DistributedDataParallel, or all_reduce each gradient before the step",
    )


def _last(found: Compared, step: int) -> list[int]:
    """Places of the last forward of each rank in a list of all of a step."""
    counts = [len(rank.updates[step].passes) for rank in found.ranks]
    return [sum(counts[: at + 1]) - 1 for at, count in enumerate(counts) if count]


def _are_twins(found: Compared, apart: Mismatch) -> bool:
    own = next(one for one in found.ranks if one.rank == apart.rank)
    return found.ranks[0].rank in own.twins


def _missing(found: Compared) -> Cause | None:
    sizes = [len(update.taken) for one in found.ranks for update in one.updates]
    if not sizes or all(sizes):
        return None
    return Cause(
        "no gradient",
        "there is no gradient when the optimizer steps, though there was a backward",
        "FSDP keeps it while set_requires_gradient_sync(False) holds: set it to True for the last backward before a step",
    )


def _factor(found: Compared) -> Cause | None:
    apart, ranks = found.apart.get("taken"), len(found.replicas)
    factor = apart.factor if apart is not None else _own_factor(found)
    where = f": {_where(apart)}" if apart is not None else ""
    if _near(factor, ranks):
        return Cause(
            "sum",
            f"gradients are {ranks} times those of one process{where}: summed over ranks, and not averaged",
            "divide by the number of ranks after all_reduce, or use ReduceOp.AVG",
        )
    if _near(factor, 1 / ranks):
        return Cause(
            "averaged twice",
            f"gradients are 1/{ranks} of those of one process{where}: divided by the number of ranks once too often",
            "DDP and FSDP divide by the number of ranks themselves: divide neither the loss nor the gradients again; and "
            "dist.all_gather carries no gradient, torch.distributed.nn.functional.all_gather does",
        )
    return None


def _own_factor(found: Compared) -> float:
    """Without the one process: what ranks stepped with, as a part of the mean of what their backwards made."""
    from ..engine.verify.comparing import factor_of
    from ..engine.verify.tensor_digest import total

    if not found.why_not or not found.ranks or not found.ranks[0].updates or found.ranks[0].updates[0].norms:
        return math.nan
    ranks = [one.updates[0] for one in found.replicas]
    for name, taken in ranks[0].taken.items():
        made = total(one.made[name] for one in ranks if name in one.made).times(1 / len(ranks))
        return factor_of(taken, made)
    return math.nan


def _near(factor: float, wanted: float) -> bool:
    return wanted != 1 and abs(factor - wanted) < _BARELY * wanted


def _statistics(found: Compared) -> Cause | None:
    names = found.ranks[0].norms_by_rank
    if not names or len(found.replicas) < 2 or not (found.apart.keys() & {"outputs", "made", "taken", "buffers"}):
        return None
    return Cause(
        "batch norm",
        f"{names[0]!r} takes the mean and variance of one rank's rows alone",
        "torch.nn.SyncBatchNorm.convert_sync_batchnorm(model) before DDP, or a norm that does not look at other rows",
    )


def _clipped(found: Compared) -> Cause | None:
    apart = found.apart.get("taken") or found.apart.get("norms")
    if apart is None:
        return None
    norms = [one.updates[apart.step].norms for one in found.ranks]
    if len({f"{norm:.4g}" for each in norms for _, norm in each[:1]}) < 2:
        return None
    told = " and ".join(f"{each[0][1]:.4g}" for each in norms[:2] if each)
    return Cause(
        "clipped by rank",
        f"each rank clips by a norm of its own ({told})",
        "reduce the gradients first, and clip by the norm of the whole gradient",
    )


def _uneven(found: Compared) -> Cause | None:
    apart = found.apart.get("taken")
    if apart is None:
        return None
    for together in found.passes():
        rows = [len(one.rows) for one in together]
        if len(set(rows)) > 1:
            return Cause(
                "uneven rows",
                f"ranks have {_and(rows)} rows, and each takes the mean of its own: {_where(apart)}",
                "weigh each rank's loss by its rows: loss * rows * ranks / rows of all ranks",
            )
        counts = [sum(count for count, _, reduction in one.tokens if reduction == "mean") for one in together]
        if len(set(counts)) > 1:
            return Cause(
                "uneven tokens",
                f"ranks have {_and(counts)} tokens that count, and each takes the mean of its own: {_where(apart)}",
                "sum the loss over tokens, and divide by those of all ranks (times the number of ranks)",
            )
    totals = [sum(n for one in update.passes for n, _, _ in one.tokens) for update in found.replicas[0].updates[:1]]
    each = [n for one in found.replicas[0].updates[0].passes for n, _, _ in one.tokens]
    if totals and len(set(each)) > 1:
        return Cause(
            "uneven tokens",
            f"microbatches have {_and(each)} tokens that count, and each is a mean: {_where(apart)}",
            "divide the sum of each by the tokens of all microbatches of the step",
        )
    return None


def _and(numbers: Sequence[int]) -> str:
    return " and ".join(str(one) for one in numbers[:4])


def _between(found: Compared) -> Cause | None:
    """What backward made is right, and what the optimizer took is not."""
    apart = found.apart.get("taken")
    if apart is None or ("made" in found.apart and found.apart["made"].step <= apart.step):
        return None
    return Cause(
        "changed by rank",
        f"gradients are right after the backward, and are not when the optimizer steps: {_where(apart)}",
        "clip by the norm of the whole gradient: torch.nn.utils.clip_grad_norm_, or full_tensor() of a DTensor first",
    )


def _module(found: Compared) -> Cause | None:
    apart, output = found.apart.get("taken") or found.apart.get("losses"), found.apart.get("outputs")
    if output is None:
        return None
    where = f"{output.name or 'the model'!r} on rank {output.rank} is the first module whose output is another one"
    hint = "look at what this module does with other ranks: its style in parallelize_module, sums over ranks, its own seed"
    return Cause("module", f"{where} ({output.distance:.0%} off){f'; {_where(apart)}' if apart else ''}", hint)


def _unknown(found: Compared) -> Cause | None:
    apart = found.apart.get("taken")
    if apart is None or (found.alone is not None and found.alone.given):
        return None
    told = f", {apart.factor:.3g} times" if not math.isnan(apart.factor) else ""
    return Cause(
        "gradient",
        f"gradients are not those of one process: {_where(apart)}{told}; all modules gave the same",
        "look at what the script does between the loss and the step, and at how the loss counts rows",
    )


def _where(apart: Mismatch) -> str:
    off = f"{apart.distance:.0%} off" if apart.distance < 10 else "far off"
    return f"{apart.name!r} is the first in step {apart.step + 1} ({off}), {apart.count} of {apart.every}"


# Updates -------------------------------------------------------------------------------------------------------------


def _rates(found: Compared) -> Iterator[Cause]:
    ranks = len(found.replicas)
    first = [update.rates for update in found.ranks[0].updates]
    if any([update.rates for update in one.updates] != first[: len(one.updates)] for one in found.ranks[1:]):
        yield Cause("rates by rank", "ranks have other learning rates", "compute the learning rate from what all ranks know")
        return
    apart = found.apart.get("rates")
    if apart is None or _near(apart.factor, ranks) or _near(apart.factor, math.sqrt(ranks)) or _by_accelerate(found):
        return
    twice = _near(apart.factor, ranks**2)
    also = ": scaled by the number of ranks twice" if twice else ""
    yield Cause(
        "rate",
        f"the learning rate in step {apart.step + 1} is {apart.factor:.3g} times that of one process{also}",
        "scale it once, by the global batch; a scheduler steps once a step of the optimizer",
    )


def _weights(found: Compared) -> Iterator[Cause]:
    if {"taken", "made", "rates"} & found.apart.keys() or "taken" in found.among or list(_rates(found)):
        return
    apart = found.among.get("moved") or found.apart.get("moved")
    if apart is not None:
        yield Cause(
            "weights",
            f"gradients agree, and weights do not move alike: {_where(apart)}",
            "look at the optimizer's settings and state on each rank, and at what else changes weights",
        )


def _buffers(found: Compared) -> Iterator[Cause]:
    apart = found.among.get("buffers") or found.apart.get("buffers")
    if apart is None or found.ranks[0].norms_by_rank:
        return
    sent = all(one.buffers_sent for one in found.ranks)
    why = "" if sent else ", and DDP does not send them (broadcast_buffers=False)"
    yield Cause(
        "buffers",
        f"buffer {apart.name!r} is another one on each rank{why}",
        "reduce what it is made of over ranks, or broadcast it before it is used or saved",
    )


def notes(found: Compared) -> list[str]:
    """What is no defect, and still is another training than that of one process."""
    apart = found.apart.get("rates")
    if apart is None or list(_rates(found)):
        return []
    if _by_accelerate(found):
        return ["Accelerate moves its scheduler once for each rank: the learning rate is another one from step 2 on"]
    return [f"the learning rate goes by the number of ranks: {apart.factor:.3g} times that of one process"]


def _by_accelerate(found: Compared) -> bool:
    """Its documented way: schedules are written for the batches of one rank."""
    return ACCELERATE in found.ranks[0].ways


CAUSES: tuple[Callable[[Compared], Iterator[Cause]], ...] = (
    *(_start, _ties, _strangers, _batches, _epochs, _modes, _dropout, _scaler, _padding),
    *(_gradients, _rates, _weights, _buffers),
)
