"""A pipeline as the person at the keyboard describes it: checked, frozen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trainshed.runner.job.nodes import Node
from trainshed.studio.tune.tuning_file import Parts

from .expression import Expression

RUN, TUNE, CONDITION, REGISTER = "run", "tune", "condition", "register"
KINDS = (RUN, TUNE, CONDITION, REGISTER)
WORK = (RUN, TUNE)  # that run something, and leave a model


@dataclass(frozen=True)
class Registration:
    """What goes into the model store: the model of a step, under a name.

    metrics: further steps whose metrics are kept with it.
    """

    model: str
    source: str
    stages: tuple[str, ...] = ()
    licence: str = ""
    note: str = ""
    metrics: tuple[str, ...] = ()


@dataclass(frozen=True)
class Step:
    """One step.

    values: of a job or tuning job, its fields as nodes, with links; extra: further fields of `Job` that a request has.
    tuning: what else belongs to a tuning job.
    needs: steps that must be over before it. when: a condition without which it is skipped, "" for none; unless: whether
        that must be false instead.
    """

    name: str
    kind: str
    where: str
    needs: tuple[str, ...] = ()
    when: str = ""
    unless: bool = False
    values: dict[str, Node] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    tuning: Parts | None = None
    expression: Expression | None = None
    registration: Registration | None = None


@dataclass(frozen=True)
class PipelineDefinition:
    """A pipeline. steps: each after those that it needs. params: values by name. path: of its file, absolute."""

    name: str
    path: str
    steps: tuple[Step, ...]
    params: dict[str, Node]
    max_parallel: int = 1

    def step(self, name: str) -> Step:
        """A step by its name."""
        return next(step for step in self.steps if step.name == name)

    def below(self, name: str) -> set[str]:
        """A step and all that need it, directly or not."""
        found = {name}
        for step in self.steps:
            if found & set(step.needs):
                found.add(step.name)
        return found
