"""The plan of a job: read from its file, or made and written there."""

from __future__ import annotations

import os

from torch import nn

from trainshed.contract.pipeline import Settings

from ..errors import PlanError
from ..frontend.subject import Subject
from ..plan.command import PLAN_ONLY, PlanWritten
from ..plan.file import Plan, load_plan, model_fingerprint
from ..plan.planner import Wish, make_plan
from ..plan.report import assignment_lines


def wish_of(settings: Settings, pins: dict[str, int], microbatches: int) -> Wish:
    """What the settings ask of a plan."""
    return Wish(
        ranks=settings.pipeline_parallel_degree,
        virtual=settings.virtual_stages,
        schedule=settings.schedule,
        microbatches=microbatches,
        memory_weight=settings.weight,
        memory_limit=settings.memory_limit * 2**20 or None,
        optimizer_states=settings.optimizer_states,
        pins=pins,
        atomic=settings.atomic,
    )


def read_or_make(subject: Subject, settings: Settings, pins: dict[str, int], microbatches: int) -> Plan:
    """The plan in `partition_file`, or a new one, which is then written there.

    Raises:
        PlanError: the file is no plan for this model and number of stages, or none can be made.
    """
    path = settings.partition_file
    if path and os.path.exists(path):
        plan = load_plan(path)
        check_fits(plan, subject.root, settings.pipeline_parallel_degree * settings.virtual_stages, path)
        return plan
    plan = make_plan(subject, wish_of(settings, pins, microbatches))
    if path:
        plan.save(path)
    return plan


def write_only(subject: Subject, settings: Settings, pins: dict[str, int], microbatches: int) -> None:
    """In a process that only plans: the plan goes to its file, and the script ends.

    Raises:
        PlanWritten: always.
    """
    plan = make_plan(subject, wish_of(settings, pins, microbatches))
    path = os.environ[PLAN_ONLY]
    plan.save(path)
    for line in assignment_lines(plan):
        print(line, flush=True)
    print(f"written to {path}", flush=True)
    raise PlanWritten(0)


def check_fits(plan: Plan, root: nn.Module, stages: int, where: str) -> None:
    """Raises:
    PlanError: the plan is for another model or another number of stages.
    """
    if plan.model != model_fingerprint(root):
        raise PlanError(f"{where}: made for another model (names, shapes or types of parameters differ)")
    if plan.stages != stages:
        raise PlanError(f"{where}: has {plan.stages} stages, this job has {stages}")
