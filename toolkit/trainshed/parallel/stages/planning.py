"""The plan of a job: read from its file, or made and written there; all ranks get the one of global rank 0."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from trainshed.contract.wire.pipeline import CHOSEN, PipelineSettings
from trainshed.contract.wire.variables import PLAN_ONLY

from ..emit.cuts import whole_blocks
from ..emit.writing import emit
from ..engine.context.find_blocks import blocks_in
from ..engine.link import measure_link
from ..engine.tensor.experts import experts_of
from ..engine.tensor.foresight import foresee
from ..ground.errors import PlanError
from ..ground.grid import Grid
from ..plan.calltree import covering_pin
from ..plan.candidates import Terms, ways_for
from ..plan.command import PlanWritten
from ..plan.costs import Link
from ..plan.degrees import beside_lines, choice_lines, choices, chosen, chosen_lines, in_words
from ..plan.lines import assignment_lines, divided_lines, predicted_lines
from ..plan.open_ways import goes_with, keeps_sharding, open_ways
from ..plan.placement_table import holder_lines
from ..plan.plan_file import Plan, load_plan, model_fingerprint
from ..plan.plan_options import How, how_asked
from ..plan.plan_request import Wish
from ..plan.planner import Foresee, make_plan, make_plans
from ..plan.profile import SECONDS_PER_BYTE, seconds_to_touch
from ..plan.rank_memory import weights_of
from ..plan.runtime import seconds_to_update
from ..tracing.subject import Subject


@dataclass(frozen=True)
class Planned:
    """The facts that a process needs that only makes a plan.

    settings: that the plan is for.
    wanted: tells whether the script wants a module divided among the ranks of a tensor group.
    marks: tells whether the script says that a module is a block whose sequences are divided, or is none.
    """

    settings: PipelineSettings
    wanted: Callable[[nn.Module], bool]
    marks: Callable[[nn.Module], bool | None]


@dataclass(frozen=True)
class Asked:
    """The script's requests for a plan.

    pins: module -> stage.
    microbatches: of a step.
    sequences: names of blocks inside of which ranks divide sequences: they are not opened.
    """

    pins: Mapping[str, int]
    microbatches: int
    sequences: tuple[str, ...] = ()


# One stage some of whose modules may keep less for their backward: with the whole model as one of them, all would.
_FITS = 1 / 4
# One stage whose modules are divided is verified unit by unit, for which one rank has a unit's parameters whole.
_OPENS = 1 / 32


def agree_on_plan(
    subject: Subject,
    grid: Grid,
    asked: Asked,
    given: Plan | None,
    foresee: Foresee | None,
    *,
    busy: bool = True,
) -> Plan:
    """The plan for a job: the given one, the one in its file, or a new one; rank 0 prints it. Collective.

    Args:
        given: global rank 0's counts.
        foresee: what a tensor group would divide.
        busy: whether the ranks may have room for the gradients of the whole model, which they compute meanwhile.

    Raises:
        PlanError: on all ranks, if global rank 0 finds that no plan can be read or made.
    """
    settings, pins = grid.settings, asked.pins
    plan = from_leader(grid.rank, grid.control_group, lambda: _fitting(given, pins) or read(subject.root, settings, pins))
    if plan is None:
        link = measure_link(grid)
        meanwhile = partial(keep_busy, subject, grid) if busy else lambda: None
        plan = from_leader(grid.rank, grid.control_group, lambda: make(subject, grid, asked, link, foresee), meanwhile)
    if grid.rank == 0:
        for line in assignment_lines(plan):
            print(line, flush=True)
    return plan


def from_leader(
    rank: int, group: dist.ProcessGroup, action: Callable[[], Any], meanwhile: Callable[[], None] = lambda: None
) -> Any:
    """Returns what `action` gives on global rank 0, on all ranks; or the error that it raises. Collective.

    Args:
        rank: of this process, among all.
        group: of all ranks.
        meanwhile: what the other ranks do.
    """
    payload: list[Any] = [None]
    if rank == 0:
        try:
            payload[0] = action()
        except Exception as error:  # raised on all ranks below
            payload[0] = error
    meanwhile()
    dist.broadcast_object_list(payload, src=0, group=group)
    if isinstance(payload[0], Exception):
        raise payload[0]
    return payload[0]


def wish_of(root: nn.Module, settings: PipelineSettings, asked: Asked, link: Link | None = None) -> Wish:
    """Reads what the settings ask of a plan. Experts are not opened where they are to be divided."""
    experts = [name for name, module in root.named_modules() if experts_of(module)]
    divides = settings.tensor_parallel_degree > 1 or how_asked().ranks > 0
    kept = [name for name in experts if divides and name not in settings.atomic]
    return Wish(
        ranks=settings.pipeline_parallel_degree,
        virtual=settings.virtual_stages,
        schedule=settings.schedule,
        microbatches=asked.microbatches,
        memory_weight=settings.weight,
        memory_limit=settings.memory_limit * 2**20 or None,
        optimizer_states=settings.optimizer_states,
        pins=asked.pins,
        atomic=(*settings.atomic, *kept),
        link=link or Link(),
        opens=_OPENS if settings.tensor_parallel_degree > 1 else _FITS if settings.fits_activations else 1.0,
        recomputes=settings.recomputes or (settings.offload_activations == "auto" and _on_gpu(root)),
        tensor=settings.tensor_parallel_degree,
        tensor_link=link or Link(),
        context=settings.context_parallel_degree,
        sequences=asked.sequences,
    )


def _on_gpu(root: nn.Module) -> bool:
    return any(parameter.device.type == "cuda" for parameter in root.parameters())


def _fitting(plan: Plan | None, pins: Mapping[str, int]) -> Plan | None:
    """A plan that was given, unless the script asks for another one now: after a checkpoint was written, say."""
    if plan is None or not (moved := _contradiction(plan, pins)):
        return plan
    print(f"the plan that was given {moved}: a new one is made", flush=True)
    return None


def _contradiction(plan: Plan, pins: Mapping[str, int]) -> str:
    """A unit that `set_partition` puts on another stage than the plan, in words; empty if there is none."""
    for unit in plan.units:
        wanted = covering_pin(unit.unit, pins)
        if unit.call == 0 and wanted not in (None, unit.stage):
            return f"puts {unit.unit!r} on stage {unit.stage}, and set_partition on stage {wanted}"
    return ""


def read(root: nn.Module, settings: PipelineSettings, pins: Mapping[str, int]) -> Plan | None:
    """The plan in `partition_file`; None where there is no such file.

    Args:
        pins: module -> stage, as the script asked.

    Raises:
        PlanError: the file is no plan for this model and number of stages, or the script asks for another one.
    """
    path = settings.partition_file
    if not path or not os.path.exists(path):
        return None
    plan = load_plan(path)
    check_fits(plan, root, settings, path)
    if moved := _contradiction(plan, pins):
        raise PlanError(f"{path} {moved}", hint="move the unit in one of them, or delete the file to have it made again")
    return plan


def make(subject: Subject, grid: Grid, asked: Asked, link: Link, foresee: Foresee | None) -> Plan:
    """A new plan, which is written to `partition_file` if the job names one.

    Raises:
        PlanError: none can be made.
    """
    settings = grid.settings
    degrees = degrees_of(grid)
    shared = degrees["replicas"] if settings.shard_optimizer_state else degrees["sharded"]
    wish = replace(wish_of(subject.root, settings, asked, link), shared=shared)
    plan = replace(make_plan(subject, wish, foresee), degrees=degrees)
    if settings.partition_file:
        plan.save(settings.partition_file)
    return plan


def keep_busy(subject: Subject, grid: Grid) -> None:
    """Between the start and the end of rank 0's measurements the other ranks of its host compute as well. Collective.

    The cores of a host share caches and memory bandwidth: what one rank does alone it does a fifth faster than in training.
    Devices of their own share nothing of weight, and ranks without a core of their own would only take turns with rank 0.
    """
    if grid.device.type != "cpu":
        return
    over = dist.broadcast(torch.zeros(1), src=0, group=grid.control_group, async_op=True)
    if 0 < grid.rank == grid.local_rank < len(os.sched_getaffinity(0)):
        try:
            while not over.is_completed():
                subject.exercise()
        except Exception:  # rank 0 meets it too, and tells
            pass
    over.wait()


def degrees_of(grid: Grid) -> dict[str, Any]:
    """Who holds what, for the plan file."""
    settings = grid.settings
    stages, tensor = settings.pipeline_parallel_degree, settings.tensor_parallel_degree
    context = settings.context_parallel_degree
    degrees = {"stages": stages, "tensor": tensor, "replicas": grid.world // (stages * tensor * context)}
    if context > 1:
        degrees["context"] = context
    sharded = {"sharded": settings.sharded_data_parallel_degree, "shard_optimizer_state": settings.shard_optimizer_state}
    return {**degrees, **sharded}


def write_only(subject: Subject, planned: Planned, pins: dict[str, int], microbatches: int) -> None:
    """In a process that only plans: the plan goes to its file, and the script ends.

    Raises:
        PlanWritten: always.
    """
    how, settings = how_asked(), planned.settings
    subject = replace(subject, counts=how.count)
    how = replace(how, device=how.device or subject.device.type)
    if settings.degrees == "auto":
        settings = settings.replace(pipeline_parallel_degree=how.ranks)  # the parts of the model as fine as that asks
    touch = SECONDS_PER_BYTE if how.count else seconds_to_touch(subject.device)
    sequences = blocks_in(subject, planned.marks) if settings.context_parallel_degree > 1 else ()
    wish = wish_of(subject.root, settings, Asked(pins, microbatches, sequences))
    update = seconds_to_update(settings.optimizer_states) if subject.device.type == "cpu" and not how.count else None
    wish = replace(
        wish, slower=how.slower, crowd=how.crowd, touch=touch * how.slower, update=update, on_cpus=how.device == "cpu"
    )
    if settings.offload_activations == "auto" and how.device == "cuda":
        wish = replace(wish, recomputes=True)
    if how.emit:
        wish = replace(wish, atomic=(*wish.atomic, *whole_blocks(subject.root)))
    divide = partial(foresee, wanted=planned.wanted, kept=settings.atomic)
    plan = _chosen(subject, wish, how, planned, divide) if how.ranks else make_plan(subject, wish, divide)
    path = os.environ[PLAN_ONLY]
    plan.save(path)
    holders = holder_lines(plan, how.ranks_per_host, settings.placement_strategy)
    for line in [*assignment_lines(plan), *predicted_lines(plan), *divided_lines(plan), *holders]:
        print(line, flush=True)
    print(f"written to {path}", flush=True)
    if how.emit:
        pieces = divide(subject, [plan.degrees["tensor"]]).pieces if plan.degrees["tensor"] > 1 else ()
        emit(how.emit, subject, plan, planned.settings, pieces)
        print(f"written to {how.emit}", flush=True)
    raise PlanWritten(0)


def _chosen(subject: Subject, wish: Wish, how: How, planned: Planned, divide: Foresee) -> Plan:
    """The plan of the best way to use the ranks; prints all of them.

    Raises:
        PlanError: none is possible.
    """
    settings = planned.settings
    if settings.context_parallel_degree > 1:
        raise PlanError(
            "--ranks chooses no degrees beside context_parallel_degree",
            hint="give --stages with it, and --tensor if need be",
        )
    limit = how.limit_mib or settings.memory_limit
    auto = settings.degrees == "auto"
    given = {name: value for name, value in settings.given().items() if name not in (*CHOSEN, "degrees")}
    terms = Terms(hosts=how.hosts(), placement=settings.placement_strategy, given=given)
    ways = open_ways(how.ranks, wish, terms, settings) if auto else ways_for(how.ranks, wish, terms)
    plans = make_plans(subject, [way.wish for way in ways if not way.problem], divide)
    found = choices(ways, plans, weights_of(subject.root, settings.optimizer_states), limit)
    found = [one for one in found if one.plan is None or goes_with(one, given)]
    if auto:
        found = [one for one in found if one.plan is None or keeps_sharding(one, settings)]
    print("\n".join(choice_lines(found)), flush=True)
    best = chosen(found, limit)
    lines = chosen_lines(best, found)
    print("\n".join([*beside_lines(best), *lines]), flush=True)
    assert best.plan is not None
    told = {"step_ms": round(best.step_ms, 3), "memory_mib": round(best.memory_mib, 2)}
    predicted = {
        **best.plan.predicted,
        "chosen": {**told, "words": in_words(best).rstrip(","), "why": lines[-1].removeprefix("why: ")},
    }
    considered = tuple(one.facts() for one in found)
    return replace(best.plan, degrees=best.degrees(), considered=considered, settings=best.settings(), predicted=predicted)


def check_fits(plan: Plan, root: nn.Module, settings: PipelineSettings, where: str) -> None:
    """Raises:
    PlanError: the plan is for another model or another number of stages.
    """
    if plan.model != model_fingerprint(root):
        raise PlanError(f"{where}: made for another model (names, shapes or types of parameters differ)")
    ranks, virtual = settings.pipeline_parallel_degree, settings.virtual_stages
    if not plan.serves(ranks, virtual):
        raise PlanError(f"{where}: has {plan.stages} stages, this job has {ranks * virtual}")
