"""Reads pipeline.yaml: everything that is wrong is said at once, with its line, before anything starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainshed.base.errors import JobError, Problem, did_you_mean
from trainshed.contract.model_reference import RULE, is_name, is_stage
from trainshed.runner.job import read as job_reader
from trainshed.runner.job.checker import Checker, resolve
from trainshed.runner.job.field_parsers import usable_name
from trainshed.runner.job.fields import Field
from trainshed.runner.job.nodes import Node, scalar
from trainshed.runner.job.request import is_request, read_file, translate
from trainshed.runner.job.yamlfile import read_nodes
from trainshed.studio.tune.tuning_file import parts_of, tuning_of_parts

from .expression import expression_of
from .links import HYPERPARAMETERS, METRICS, PARAMS, VERSION, Link, links_in, resolved
from .steps_plan import CONDITION, KINDS, REGISTER, RUN, TUNE, WORK, PipelineDefinition, Registration, Step
from .tuning_step import JOB, parts_with

MOST_STEPS = 200
LONGEST_NAME = 28  # of a pipeline and of a step: together they name a run, in 63 characters
_PARALLEL = Field("max_parallel", "whole", "runs beside each other (default: 1)", default=1, low=1, high=100)
REGISTRATION = (
    Field("model", "text", "name of the model in the store", required=True),
    Field("from", "text", "step whose model it is", required=True),
    Field("stage", "words", "stages that then point to this version, such as champion"),
    Field("licence", "text", "licence of the model, like apache-2.0"),
    Field("note", "text", "a note"),
    Field("metrics", "words", "steps whose metrics are kept with it"),
)
STEP = (
    Field(RUN, "path", "a job file, or the fields of a job"),
    Field(TUNE, "path", "a tuning file, or the fields of a tuning job"),
    Field(CONDITION, "text", "a comparison of numbers and texts, such as `${steps.evaluate.metrics.accuracy} >= 0.9`"),
    Field(REGISTER, "record", "makes a version in the model store", rows=REGISTRATION),
    Field("after", "words", "steps that must be over before it, though it uses nothing of theirs"),
    Field("when", "text", "name of a condition, or `not NAME`; where it does not hold, the step is skipped"),
)
FIELDS = (
    Field("name", "text", "name of the pipeline and its folder (default: the file's)", most=LONGEST_NAME),
    Field("params", "mapping", "parameters with their values; `--param NAME=VALUE` changes them"),
    _PARALLEL,
    Field("steps", "mapping", "steps by name: each has one of run, tune, condition, register", of="record", rows=STEP),
)


def read_pipeline(path: str, environ: Mapping[str, str], given: Mapping[str, str]) -> PipelineDefinition:
    """The pipeline that a file describes.

    Args:
        given: texts of parameters by name, from the command line.

    Raises:
        JobError: something is wrong; holds every problem, in the order of the file.
    """
    problems: list[Problem] = []
    root = read_nodes(path, problems)
    if root is None:
        raise JobError(problems)
    return pipeline_of(dict(root.value), path, environ, given, problems)


def pipeline_of(
    values: dict[str, Node], path: str, environ: Mapping[str, str], given: Mapping[str, str], problems: list[Problem]
) -> PipelineDefinition:
    """The pipeline of the fields of a file.

    Args:
        path: of the file; relative links of steps start at its folder.
        given: as of `read_pipeline`. problems: what is wrong so far.

    Raises:
        JobError: something is wrong; holds every problem.
    """
    fields = Checker(values, problems, origin=path)
    _unknown(fields, FIELDS, "a pipeline")
    stem = usable_name(os.path.splitext(os.path.basename(path))[0])[:LONGEST_NAME].strip("-")
    name = fields.text("name") or stem
    if name != usable_name(name) or len(name) > LONGEST_NAME:
        fields.problem("name", f"must be at most {LONGEST_NAME} letters, digits and hyphens between them")
    params = _params(fields, given)
    steps = _steps(fields)
    if problems:  # what follows would only say the same once more
        raise JobError(job_reader.in_order(problems))
    parallel = fields.whole(_PARALLEL)
    made = PipelineDefinition(name, os.path.abspath(path), tuple(steps), params, int(parallel or 1))
    _check_links(made, problems)
    if not problems:
        made = replace(made, steps=_in_order(made, problems))
    if not problems:
        _check_jobs(made, environ, problems)
    if problems:
        raise JobError(job_reader.in_order(problems))
    return made


def _unknown(fields: Checker, rows: tuple[Field, ...], what: str) -> None:
    known = [row.name for row in rows]
    for name in fields.values:
        if name not in known:
            near = did_you_mean(name.lower().replace("-", "_"), known) or f"known: {', '.join(known)}"
            fields.problem(name, f"is not a field of {what}", near, value="")


def _params(fields: Checker, given: Mapping[str, str]) -> dict[str, Node]:
    nodes = fields.mapping("params")
    inner = Checker(nodes, fields.problems, "params.")
    made = {}
    for name, node in nodes.items():
        if isinstance(node.value, (dict, list)):
            inner.problem(name, "must be a text, a number, true or false", value="")
        elif name in given:
            made[name] = Node(scalar(given[name]), "--param", os.getcwd(), given[name])
        elif node.value is None:
            inner.problem(name, "has no value", f"give it: --param {name}=VALUE")
        else:
            made[name] = node
    for name in given:
        if name not in nodes:
            near = did_you_mean(name, nodes)
            known = f"known: {', '.join(nodes)}" if nodes else "the pipeline has no params"
            fields.problems.append(Problem("--param", "is not a parameter of the pipeline", "", name, near or known))
    return made


def _steps(fields: Checker) -> list[Step]:
    nodes = fields.mapping("steps")
    if not nodes:
        if fields.node("steps") is None:
            fields.missing("steps", "is missing: a pipeline has steps")
        elif isinstance(fields.values["steps"].value, dict):
            fields.problem("steps", "has no steps", value="")
        return []
    if len(nodes) > MOST_STEPS:
        fields.problem("steps", f"has {len(nodes)} steps; {MOST_STEPS} are allowed", value="")
        return []
    outer = Checker(nodes, fields.problems, "steps.")
    made = []
    for name, node in nodes.items():
        if name != usable_name(name) or len(name) > LONGEST_NAME:
            near = usable_name(name)[:LONGEST_NAME].strip("-")
            message = f"is not a valid step name: at most {LONGEST_NAME} letters, digits and hyphens between them"
            outer.problem(name, message, f"did you mean {near!r}?", value="")
        elif not isinstance(node.value, dict):
            outer.problem(name, f"must be a mapping with one of {', '.join(KINDS)}", value="")
        elif (step := _step(name, node, fields.problems)) is not None:
            made.append(step)
    return made


def _step(name: str, node: Node, problems: list[Problem]) -> Step | None:
    fields = Checker(node.value, problems, f"steps.{name}.")
    _unknown(fields, STEP, "a step")
    kinds = [kind for kind in KINDS if fields.node(kind) is not None]
    if len(kinds) != 1:
        what = f"has {' and '.join(kinds)}" if kinds else "does nothing"
        Checker({name: node}, problems, "steps.").problem(name, f"{what}: a step has one of {', '.join(KINDS)}", value="")
        return None
    when = fields.text("when")
    unless = when.startswith("not ")
    step = Step(name, kinds[0], node.where, _after(fields), when.removeprefix("not ").strip(), unless)
    return {RUN: _run, TUNE: _tune, CONDITION: _condition, REGISTER: _register}[kinds[0]](step, fields)


def _after(fields: Checker) -> tuple[str, ...]:
    return _words(fields, "after")


def _words(fields: Checker, name: str) -> tuple[str, ...]:
    node = fields.node(name)
    if node is None:
        return ()
    items = node.value if isinstance(node.value, list) else [node]
    if not all(isinstance(one.value, str) for one in items):
        fields.problem(name, "must be a name or a list of names", value="")
        return ()
    return tuple(one.value for one in items)


def _run(step: Step, fields: Checker) -> Step | None:
    node = fields.values[RUN]
    values: dict[str, Node] = {}
    extra: dict[str, Any] = {}
    if isinstance(node.value, dict):
        values, extra = translate(node.value, fields.problems) if is_request(node.value) else (dict(node.value), {})
    elif isinstance(node.value, str):
        try:
            values, extra = read_file(os.path.relpath(resolve(node.text, node.folder)), fields.problems)
        except JobError:  # its problems are noted
            return None
    else:
        fields.problem(RUN, "must be a job file, or the fields of one", value="")
        return None
    return replace(step, values=values, extra={name: one for name, one in extra.items() if name != "full_name"})


def _tune(step: Step, fields: Checker) -> Step | None:
    node = fields.values[TUNE]
    if isinstance(node.value, str):
        path = os.path.relpath(resolve(node.text, node.folder))
        root = read_nodes(path, fields.problems)
        if root is None:
            return None
        given = dict(root.value)
    elif isinstance(node.value, dict):
        path, given = fields.origin, dict(node.value)
    else:
        fields.problem(TUNE, "must be a tuning file, or the fields of one", value="")
        return None
    parts = parts_of(given, path, fields.problems)
    return replace(step, tuning=parts, values={**parts.values, JOB: Node(parts.job, node.where, node.folder)})


def _condition(step: Step, fields: Checker) -> Step | None:
    try:
        return replace(step, expression=expression_of(fields.text(CONDITION)))
    except ValueError as error:
        fields.problem(CONDITION, str(error))
        return None


def _register(step: Step, fields: Checker) -> Step | None:
    inner = Checker(fields.mapping(REGISTER), fields.problems, f"{fields.prefix}{REGISTER}.")
    _unknown(inner, REGISTRATION, "a registration")
    model, source, stages = inner.text("model"), inner.text("from"), _words(inner, "stage")
    for name, text in (("model", model), ("from", source)):
        if not text:
            fields.problem(REGISTER, f"has no `{name}`", "write {model: NAME, from: STEP}", value="")
    if model and not is_name(model):
        inner.problem("model", f"is not a valid model name: {RULE}")
    if wrong := [stage for stage in stages if not is_stage(stage)]:
        inner.problem(
            "stage", "is not a valid stage name: a small letter, then letters, digits, '_' and '-'", value=wrong[0]
        )
    metrics = _words(inner, "metrics")
    made = Registration(model, source, stages, inner.text("licence"), inner.text("note"), metrics)
    return replace(step, registration=made, needs=(*step.needs, source, *metrics))


# --- what steps mean together ------------------------------------------------------------------------------------------


def _check_links(pipeline: PipelineDefinition, problems: list[Problem]) -> None:
    kinds = {step.name: step.kind for step in pipeline.steps}

    def known(step: Step, name: str, wanted: tuple[str, ...], field: str) -> None:
        where = f"steps.{step.name}{field}"
        if name not in kinds:
            problems.append(Problem(step.where, "is not a step", where, name, did_you_mean(name, kinds)))
        elif name == step.name:
            problems.append(Problem(step.where, "needs itself", where, name))
        elif wanted and kinds[name] not in wanted:
            what = " or ".join(f"`{kind}`" for kind in wanted)
            problems.append(Problem(step.where, f"is not a step with {what}", where, name))

    for step in pipeline.steps:
        for name in step.needs:
            known(step, name, (), "")
        if step.registration is not None and step.registration.source in kinds:
            for name in (step.registration.source, *step.registration.metrics):
                known(step, name, WORK, f".{REGISTER}")
        if step.when:
            known(step, step.when, (CONDITION,), ".when")
        for link, where in _links(step, problems):
            problem = _wrong_with(link, pipeline, kinds)
            if problem:
                problems.append(Problem(where, problem[0], f"steps.{step.name}", str(link), problem[1]))
            elif link.step == step.name:
                problems.append(Problem(where, "is a link of a step to itself", f"steps.{step.name}", str(link)))


def _wrong_with(link: Link, pipeline: PipelineDefinition, kinds: Mapping[str, str]) -> tuple[str, str] | None:
    if link.what == PARAMS:
        if link.name in pipeline.params:
            return None
        return "is not a parameter of the pipeline", did_you_mean(link.name, pipeline.params)
    if link.step not in kinds:
        return "is a link to a step that does not exist", did_you_mean(link.step, kinds)
    kind = kinds[link.step]
    if (link.what == VERSION) != (kind == REGISTER) or kind == CONDITION:
        has = "a version" if kind == REGISTER else "no values: use `when`" if kind == CONDITION else "no version"
        return f"does not exist: {link.step} has `{kind}`, so it has {has}", ""
    return None


def _links(step: Step, problems: list[Problem]) -> list[tuple[Link, str]]:
    """(link, where it stands) of all links of a step."""
    found = []
    for name, node in step.values.items():
        found += [(link, text.where) for link, text in links_in(node, problems, f"steps.{step.name}.{step.kind}.{name}")]
    if step.expression is not None:
        found += [(link, step.where) for link in step.expression.links()]
    return found


def _in_order(pipeline: PipelineDefinition, problems: list[Problem]) -> tuple[Step, ...]:
    """The steps with all that they need, each after that."""
    left = []
    for step in pipeline.steps:
        linked = [link.step for link, _ in _links(step, []) if link.step]
        needs = dict.fromkeys((*step.needs, *linked, *([step.when] if step.when else [])))
        left.append(replace(step, needs=tuple(needs)))
    done: list[Step] = []
    while left:
        names = {step.name for step in done}
        ready = [step for step in left if set(step.needs) <= names]
        if not ready:
            circle = _circle({step.name: [name for name in step.needs if name not in names] for step in left})
            first = next(step for step in left if step.name == circle[0])
            problems.append(Problem(first.where, f"depend on each other in a circle: {' -> '.join(circle)}", "steps"))
            return ()
        done += ready
        left = [step for step in left if step not in ready]
    return tuple(done)


def _circle(needs: Mapping[str, list[str]]) -> list[str]:
    """Names of steps that need each other, the first one again at the end."""
    trail = [next(iter(needs))]
    while True:
        following = next(name for name in needs[trail[-1]] if name in needs)
        if following in trail:
            return [*trail[trail.index(following) :], following]
        trail.append(following)


def _check_jobs(pipeline: PipelineDefinition, environ: Mapping[str, str], problems: list[Problem]) -> None:
    """Reads every job as far as that can be done before the steps that it needs."""
    folder = os.path.dirname(pipeline.path)

    def stand_in(link: Link) -> Node:
        if link.what == PARAMS:
            return pipeline.params[link.name]
        if link.what in (METRICS, HYPERPARAMETERS):
            return Node(1, "", "", "1")
        return Node(folder, "", "", folder) if link.what != VERSION else Node("model:1", "", "", "model:1")

    for step in pipeline.steps:
        if step.kind not in WORK:
            continue
        values = {name: resolved(node, stand_in) for name, node in step.values.items()}
        found: list[Problem] = []
        prefix = f"steps.{step.name}.{step.kind}."
        if step.tuning is not None:
            tuning_of_parts(parts_with(step.tuning, values), environ, pipeline.path, step.name, found)
            problems += [one.replace(field=f"{prefix}{one.field}") for one in found if one not in problems]
            continue
        job_reader.check(values, environ, pipeline.path, step.name, found)
        if "output" in values:
            Checker(values, found).problem("output", "is for single runs: steps have folders in that of the pipeline")
        problems += [one.replace(field=f"{prefix}{one.field}") for one in found if one not in problems]
