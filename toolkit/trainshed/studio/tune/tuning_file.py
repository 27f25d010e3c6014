"""Reads tune.yaml: which fields there are, what they mean, and everything that is wrong, at once.

    job: job.yaml                          # or its fields, or a CreateTrainingJob request
    search:
      lr: {low: 1e-5, high: 0.1, scale: log}
      layers: {low: 2, high: 8}
      optimizer: [sgd, adam]
      beta2: {low: 0.9, high: 0.999, scale: reverse_log, when: {optimizer: adam}}
    objective: minimize val_loss
    max_jobs: 30

A HyperParameterTuningJob request, as JSON, is read by `tuning_request`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trainshed.base.errors import JobError, Problem, did_you_mean
from trainshed.runner.acting import acting
from trainshed.runner.job import read as job_reader
from trainshed.runner.job.checker import Checker, entries, resolve
from trainshed.runner.job.declared import declared_by
from trainshed.runner.job.encode import encode
from trainshed.runner.job.field_parsers import usable_name
from trainshed.runner.job.fields import BY_NAME as JOB_FIELDS
from trainshed.runner.job.fields import DAY, Field
from trainshed.runner.job.job import Job
from trainshed.runner.job.nodes import Node
from trainshed.runner.job.notify import read_notify
from trainshed.runner.job.places import HERE, find
from trainshed.runner.job.request import is_request, read_file, translate
from trainshed.runner.job.yamlfile import read_nodes
from trainshed.studio.batches.folder import NoBatchError

from .declared_search import searched, with_declared
from .space import (
    CATEGORICAL,
    CONTINUOUS,
    INTEGER,
    KINDS,
    LARGEST_GRID,
    LINEAR,
    LOG,
    REVERSE_LOG,
    SCALES,
    Parameter,
    combinations,
    decided,
    in_order,
)
from .tuning import (
    ASHA,
    AUTO,
    BAYESIAN,
    BEST,
    EPOCH,
    GRID,
    HYPERBAND,
    IDENTICAL,
    LAST,
    MAXIMIZE,
    MEDIAN,
    MINIMIZE,
    MOST_FAILED,
    OFF,
    PLACES,
    POPULATION,
    REPORT,
    SAMPLERS,
    STEP,
    STRATEGIES,
    TRANSFER,
    EarlyStopping,
    Limits,
    Objective,
    Strategy,
    TuningJob,
    WarmStart,
    runs_trials,
)
from .tuning_folder import TuningFolder
from .tuning_request import is_tuning_request, translated

MOST_PARAMETERS = 100
MOST_OBJECTIVES = 4  # of more, nearly every trial is on the front
MOST_PARENTS = 5  # the platform's limit
MOST_JOBS = 100_000
LONGEST_NAME = 32  # the platform's
Overlay = Callable[[dict[str, Node], list[Problem]], dict[str, Node]]

OBJECTIVE = (
    Field("metric", "text", "name of the metric", default=""),
    Field("goal", "choice", "what is good", default="", choices=(MINIMIZE, MAXIMIZE)),
    Field("value", "choice", "which of a run's values counts", default=LAST, choices=(LAST, BEST)),
)
STRATEGY = (
    Field("kind", "choice", "how values are chosen", default=BAYESIAN, choices=STRATEGIES),
    Field("sampler", "choice", "model of bayesian; gp needs torch and scipy", default=AUTO, choices=SAMPLERS),
    Field("size", "whole", "of population: members", default=0, low=2, high=1000),
    Field("generations", "whole", "of population: how often members are compared", default=0, low=1, high=10_000),
    Field("length", "text", "of population: the hyperparameter that says how long a job trains", default=""),
    Field("interval", "whole", "of population: what each generation adds to it", default=1, low=1, high=10**9),
    Field("quantile", "number", "of population: the part that is replaced by the best", default=0.25, low=0.01, high=0.5),
    Field("seed", "whole", "other seeds choose other values", default=0, low=0, high=2**31 - 1),
)
EARLY = (
    Field("kind", "choice", "which trials end before they are over", default=OFF, choices=(OFF, MEDIAN, ASHA)),
    Field("min_resource", "whole", "of asha: where trials are compared first", default=1, low=1, high=10**9),
    Field("max_resource", "whole", "of asha: beyond which they are not compared", default=0, low=1, high=10**9),
    Field("reduction_factor", "whole", "of asha: one in so many goes on", default=3, low=2, high=100),
    Field("brackets", "whole", "of asha: how many first resources there are", default=1, low=1, high=10),
    Field("resource", "choice", "what counts", default=STEP, choices=(STEP, EPOCH, REPORT)),
)
COMPLETION = (
    Field("target", "number", "an objective that is good enough", low=-1e300, high=1e300),
    Field("not_improving", "whole", "trials in a row without a new best one", default=0, low=1, high=MOST_JOBS),
)
WARM = (
    Field("parents", "words", "earlier tuning jobs: names or folders", default=(), most=MOST_PARENTS),
    Field("type", "choice", "data and algorithm are the same, or not", default=IDENTICAL, choices=(IDENTICAL, TRANSFER)),
)
RANGE = (
    Field("type", "choice", "of its values (default: whole where low, high and step are)", choices=KINDS),
    Field("low", "number", "the lowest value", low=-1e300, high=1e300),
    Field("high", "number", "the highest value", low=-1e300, high=1e300),
    Field("scale", "choice", "how values lie between them (default: auto)", choices=SCALES),
    Field("step", "number", "the distance of values", high=1e300),
    Field("values", "list", "values to choose from, instead of low and high"),
    Field("when", "mapping", "values of other hyperparameters that it goes with"),
)
FIELDS = (
    Field("name", "text", "name of the tuning job and its folder (default: the file's)", default="", most=LONGEST_NAME),
    Field("job", "path", "a job file, or its fields"),
    Field("on", "choice", "where trials run", default=HERE.name, choices=PLACES),
    Field("search", "mapping", "ranges of hyperparameters by name, or lists of values", default={}, of="record", rows=RANGE,
          short="values"),
    Field("objective", "record", "`minimize METRIC` or `maximize METRIC`, a mapping, or a list of them", rows=OBJECTIVE),
    Field("strategy", "record", "how values are chosen", rows=STRATEGY, short="kind"),
    Field("max_jobs", "whole", "trials", default=0, low=1, high=MOST_JOBS),
    Field("max_parallel_jobs", "whole", "trials beside each other", default=1, low=1, high=1000),
    Field("max_runtime_seconds", "number", "time in which trials run", default=0.0, low=1, high=10_000 * DAY),
    Field("max_billable_seconds", "number", "time of all trials together, times hosts", default=0.0, low=1, high=1e12),
    Field("max_failed_jobs", "whole", "failures after which it is given up, if nothing succeeds", default=MOST_FAILED,
          low=1, high=MOST_JOBS),
    Field("early_stopping", "record", "which trials end before they are over", rows=EARLY, short="kind"),
    Field("completion", "record", "when it is good enough", rows=COMPLETION),
    Field("warm_start", "record", "earlier tuning jobs whose trials are known", rows=WARM, short="parents"),
    JOB_FIELDS["notify"],
)  # fmt: skip
_BY_NAME = {row.name: row for row in FIELDS}


@dataclass(frozen=True)
class Parts:
    """A tuning job's file, taken apart and not checked yet.

    values: its fields; job: those of its job; extra: further fields of `Job` that a request has.
    raw, notes: see `TuningJob`.
    """

    values: dict[str, Node]
    job: dict[str, Node] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    raw: bool = False
    notes: tuple[str, ...] = ()


def read_tuning(
    path: str, environ: Mapping[str, str], overlay: Overlay = lambda values, _: values, changes: Mapping[str, Node] = {}
) -> TuningJob:
    """The tuning job that a file describes.

    Args:
        overlay: changes the job's fields, as flags do.
        changes: fields of tune.yaml that flags set.

    Raises:
        JobError: something is wrong; holds every problem, in the order of the file.
    """
    problems: list[Problem] = []
    root = read_nodes(path, problems)
    if root is None:
        raise JobError(problems)
    parts = parts_of(dict(root.value), path, problems)
    parts = replace(parts, values={**parts.values, **changes}, job=overlay(parts.job, problems))
    stem = usable_name(os.path.splitext(os.path.basename(path))[0])[:LONGEST_NAME].strip("-")
    tuning = tuning_of_parts(parts, environ, path, stem, problems)
    if problems:
        raise JobError(job_reader.in_order(problems))
    return tuning


def parts_of(values: dict[str, Node], path: str, problems: list[Problem]) -> Parts:
    """A tuning job taken apart; a job file that it names is read. problems: gets what is wrong so far."""
    if is_tuning_request(values):
        values, job, extra, notes = translated(values, problems)
        raw = True
    else:
        _unknown(values, path, problems)
        job, extra, raw = _job_values(values, path, problems)
        notes = ()
    return Parts(values, job, {name: one for name, one in extra.items() if name != "full_name"}, raw, notes)


def tuning_of_parts(parts: Parts, environ: Mapping[str, str], path: str, stem: str, problems: list[Problem]) -> TuningJob:
    """The tuning job that parts describe.

    Args:
        path: of the file that holds them. stem: its name where it has none of its own.
        problems: gets what is wrong; with any, the tuning job is not to be used.
    """
    fields = Checker(_expanded(parts.values), problems, origin=path)
    name = _name(fields) or stem
    search = fields.node("search")
    job = replace(_job(parts.job, environ, path, name, problems, searched(search)), **parts.extra)
    if search is not None and not parts.raw:
        search = with_declared(search, declared_by(job, environ), job.hyperparameters, problems)
        if search is not None:
            fields.values["search"] = search
    space = _search(fields, problems) if search is not None else ()
    objectives = _objectives(fields)
    tuning = TuningJob(
        name=name,
        job=replace(job, notes=()),
        space=space,
        objective=objectives[0],
        further=objectives[1:],
        strategy=_strategy(fields),
        early=_early(fields),
        limits=_limits(fields),
        warm=_warm(fields, environ),
        place=_place(fields, job, environ, problems),
        raw=parts.raw,
        notify=read_notify(fields, JOB_FIELDS["notify"]),
        notes=(*job.notes, *parts.notes),
    )
    return _checked(tuning, fields)


def _unknown(values: dict[str, Node], path: str, problems: list[Problem]) -> None:
    fields = Checker(values, problems)
    for name in values:
        if name in _BY_NAME:
            continue
        near = did_you_mean(name.lower().replace("-", "_"), _BY_NAME)
        if not near and name in JOB_FIELDS:
            near = "it is a field of the job: put it below `job:`"
        fields.problem(name, "is not a field of a tuning job", near or f"known: {', '.join(_BY_NAME)}")
    for name in ("job", "search", "objective"):
        if fields.node(name) is None:
            fields.origin = path
            fields.missing(name, "is missing")


def _expanded(values: dict[str, Node]) -> dict[str, Node]:
    """Short forms written out: `strategy: grid`, `warm_start: [one]`."""
    made = dict(values)
    for row in FIELDS:
        node = values.get(row.name)
        if row.kind != "record" or node is None or node.value is None or isinstance(node.value, dict):
            continue
        if row.name == "warm_start":
            parents = node if isinstance(node.value, list) else Node([node], node.where, node.folder)
            made[row.name] = Node({"parents": parents}, node.where, node.folder)
        elif row.short and not isinstance(node.value, list):
            kind = replace(node, value="off", text="off") if node.value is False else node
            made[row.name] = Node({row.short: kind}, node.where, node.folder)
    return made


def _job_values(values: dict[str, Node], path: str, problems: list[Problem]) -> tuple[dict[str, Node], dict[str, Any], bool]:
    """(fields of the job file, further fields of `Job`, whether hyperparameters are a request's texts)."""
    node = values.get("job")
    if node is None or node.value is None:
        return {}, {}, False
    if isinstance(node.value, dict):
        if is_request(node.value):
            return *translate(node.value, problems), True
        return dict(node.value), {}, False
    if not isinstance(node.value, str):
        problems.append(Problem(node.where, "must be a job file, or the fields of one", "job"))
        return {}, {}, False
    try:
        found, extra = read_file(os.path.relpath(resolve(node.text, node.folder)), problems)
    except JobError:  # its problems are noted
        return {}, {}, False
    return found, extra, "full_name" in extra


def _job(
    values: dict[str, Node],
    environ: Mapping[str, str],
    path: str,
    name: str,
    problems: list[Problem],
    to_come: Container[str] | None,
) -> Job:
    if not values:
        return Job(name)
    job = job_reader.check(values, environ, path, name, problems, to_come)
    fields = Checker(values, problems)
    if job.output:
        fields.problem("output", "is for single runs: each trial has its own folder in that of the tuning job")
    return job


def _name(fields: Checker) -> str:
    name = fields.text("name")
    if name and (name != usable_name(name) or len(name) > LONGEST_NAME):
        near = usable_name(name)[:LONGEST_NAME].strip("-")
        fields.problem(
            "name", f"must be at most {LONGEST_NAME} letters, digits and hyphens between them", f"did you mean {near!r}?"
        )
        return near
    return name


def _objectives(fields: Checker) -> tuple[Objective, ...]:
    """All objectives; one without a name where there are none."""
    node = fields.node("objective")
    if node is None:
        return (Objective(""),)
    nodes = node.value if isinstance(node.value, list) else [node]
    if not 1 <= len(nodes) <= MOST_OBJECTIVES:
        fields.problem("objective", f"must be one objective, or a list of at most {MOST_OBJECTIVES}", value="")
        return (Objective(""),)
    found = tuple(_objective(one, fields.problems) for one in nodes)
    names = [one.metric for one in found if one.metric]
    if len(set(names)) < len(names):
        fields.problem("objective", "names a metric twice", value="")
    return found


def _objective(node: Node, problems: list[Problem]) -> Objective:
    said = Checker({"objective": node}, problems)
    if isinstance(node.value, str):
        first, _, rest = node.text.strip().partition(" ")
        told = {"goal": first, "metric": rest.strip()} if rest or first in (MINIMIZE, MAXIMIZE) else {"metric": first}
        parts = {name: replace(node, value=text, text=text) for name, text in told.items() if text}
        node = Node(parts, node.where, node.folder)
    inner = Checker({"objective": node}, problems).inner(_BY_NAME["objective"])
    metric, goal = inner.text("metric"), inner.choice("goal", (MINIMIZE, MAXIMIZE), "")
    if not metric:
        said.problem("objective", "names no metric", "write `minimize METRIC` or `maximize METRIC`", value="")
    if not goal and inner.node("goal") is None:
        said.problem("objective", "does not say what is good", f"goal: {MINIMIZE}, or goal: {MAXIMIZE}", value="")
    return Objective(metric, goal or MINIMIZE, inner.choice("value", (LAST, BEST), LAST))


def _strategy(fields: Checker) -> Strategy:
    inner = fields.inner(_BY_NAME["strategy"])
    found = {row.name: inner.read(row) for row in STRATEGY}
    if found["kind"] != BAYESIAN and inner.node("sampler") is not None:
        inner.problem("sampler", f"is for the strategy {BAYESIAN}")
    for name in ("size", "generations", "length", "interval", "quantile"):
        if found["kind"] != POPULATION and inner.node(name) is not None:
            inner.problem(name, f"is for the strategy {POPULATION}")
    if found["kind"] == POPULATION and not all(found[name] for name in ("size", "generations", "length")):
        fields.problem("strategy", f"{POPULATION} needs size, generations and length", value="")
    return Strategy(**found)


def _early(fields: Checker) -> EarlyStopping:
    inner = fields.inner(_BY_NAME["early_stopping"])
    found = {row.name: inner.read(row) for row in EARLY}
    strategy = fields.inner(_BY_NAME["strategy"]).text("kind") if fields.node("strategy") is not None else ""
    if strategy == HYPERBAND:
        if inner.node("kind") is not None and found["kind"] != ASHA:
            inner.problem("kind", f"cannot be used with {HYPERBAND}, which stops trials itself", value=found["kind"])
        found["kind"] = ASHA
        if inner.node("max_resource") is None:
            inner.values.setdefault("max_resource", Node(None, ""))
            fields.missing(
                "early_stopping.max_resource", f"is missing: {HYPERBAND} needs the steps or epochs of a whole trial"
            )
        elif inner.node("brackets") is None:
            found["brackets"] = brackets(found["min_resource"], found["max_resource"], found["reduction_factor"])
    if found["max_resource"] and found["max_resource"] <= found["min_resource"]:
        inner.problem("max_resource", f"must be more than min_resource, {found['min_resource']}")
    of_asha = [row.name for row in EARLY if row.name not in ("kind", "resource")]
    for name in of_asha if found["kind"] != ASHA else ():
        if inner.node(name) is not None:
            inner.problem(name, f"is for early_stopping: {{kind: {ASHA}}}")
    names = {"min_resource": "least", "max_resource": "most", "reduction_factor": "factor"}
    return EarlyStopping(**{names.get(name, name): value for name, value in found.items()})


def brackets(least: int, most: int, factor: int) -> int:
    """How many first resources Hyperband has: one, and one more for each time the factor fits between the ends."""
    count = 1
    while least * factor**count <= most:
        count += 1
    return min(count, 10)


def _limits(fields: Checker) -> Limits:
    completion = fields.inner(_BY_NAME["completion"])

    def read(name: str) -> Any:
        return fields.read(_BY_NAME[name])

    return Limits(
        max_jobs=read("max_jobs"),
        max_parallel=read("max_parallel_jobs"),
        max_runtime=read("max_runtime_seconds"),
        max_billable=read("max_billable_seconds"),
        max_failed=read("max_failed_jobs"),
        target=completion.read(COMPLETION[0]),
        not_improving=completion.read(COMPLETION[1]),
    )


def checked_limits(changes: Mapping[str, Node]) -> dict[str, Any]:
    """Attributes of `Limits` from fields of a tuning file that flags set. Raises JobError."""
    problems: list[Problem] = []
    attributes = {"max_jobs": "max_jobs", "max_parallel_jobs": "max_parallel", "max_runtime_seconds": "max_runtime"}
    fields = Checker(dict(changes), problems)
    found = {attribute: fields.read(_BY_NAME[name]) for name, attribute in attributes.items() if name in changes}
    if problems:
        raise JobError(problems)
    return found


def _place(fields: Checker, job: Job, environ: Mapping[str, str], problems: list[Problem]) -> str:
    given = fields.text("on", HERE.name)
    place: str = given if runs_trials(given) else fields.read(_BY_NAME["on"])  # which refuses it
    try:
        acting(find(place)).check(job, environ)
    except JobError as error:
        problems += error.problems
    return place


def _warm(fields: Checker, environ: Mapping[str, str]) -> WarmStart:
    if fields.node("warm_start") is None:
        return WarmStart()
    inner = fields.inner(_BY_NAME["warm_start"])
    kind = inner.read(WARM[1])
    parents = []
    node = inner.node("parents")
    if node is None:
        fields.problem("warm_start", "names no parents", value="")
        return WarmStart()
    for text in inner.words(WARM[0]):
        try:
            path = resolve(text, node.folder) if "/" in text else text
            parents.append(TuningFolder.find(path).path)
        except NoBatchError as error:
            inner.problem("parents", error.message, value="")
    if len(set(parents)) < len(parents):
        inner.problem("parents", "names a tuning job twice", value="")
    return WarmStart(tuple(parents), kind)


def _search(fields: Checker, problems: list[Problem]) -> tuple[Parameter, ...]:
    given = fields.mapping("search")
    if fields.node("search") is not None and isinstance(fields.values["search"].value, dict) and not given:
        fields.problem("search", "is empty: there is nothing to search", value="")
    if len(given) > MOST_PARAMETERS:
        fields.problem("search", f"has {len(given)} hyperparameters; {MOST_PARAMETERS} are allowed", value="")
        return ()
    found = []
    for name, node in given.items():
        one = _parameter(name, node, problems)
        if one is not None:
            found.append(one)
    return _conditions(found, given, problems)


def _parameter(name: str, node: Node, problems: list[Problem]) -> Parameter | None:
    outer = Checker({name: node}, problems, "search.")
    if isinstance(node.value, list):
        node = Node({"values": node}, node.where, node.folder)
    if not isinstance(node.value, dict):
        outer.problem(name, "must be a list of values, or a range like {low: 1, high: 8}")
        return None
    inner = Checker(node.value, problems, f"search.{name}.")
    inner.unknown([row.name for row in RANGE])
    whole = all(type(one.value) is int for end in ("low", "high", "step") if (one := inner.node(end)) is not None)
    values = inner.node("values")
    kind = inner.choice("type", KINDS, CATEGORICAL if values is not None else INTEGER if whole else CONTINUOUS)
    if inner.node("type") is None and kind == INTEGER and _ends(inner) == (0, 1):
        inner.problem("low", "could be meant either way: write `type: continuous` or `type: integer`", value="")
    if kind == CATEGORICAL:
        return _categorical(name, node, inner)
    if values is not None:
        inner.problem("values", f"is for the type {CATEGORICAL}", value="")
        return None
    ends = [_end(inner, end, kind, node) for end in ("low", "high")]
    low, high = ends
    if low is None or high is None:
        return None
    if low > high:
        inner.problem("low", f"must not be more than high, {high:.12g}")
        return None
    scale = decided(inner.choice("scale", SCALES, "auto"), low, high)
    if scale == LOG and low <= 0:
        inner.problem(
            "scale", f"needs numbers above 0; low is {low:.12g}", "did you mean 'reverse_log'?" if high < 1 else ""
        )
        return None
    if scale == REVERSE_LOG and (low < 0 or high >= 1 or kind == INTEGER):
        inner.problem("scale", "needs continuous numbers from 0 to below 1")
        return None
    return Parameter(name, kind, low, high, scale, _step(inner, kind, scale, high - low))


def _ends(inner: Checker) -> tuple[object, ...]:
    return tuple(node.value for end in ("low", "high") if (node := inner.node(end)) is not None)


def _end(inner: Checker, end: str, kind: str, node: Node) -> float | None:
    """One end of a range; None, with the problem noted, where it is none."""
    given = inner.node(end)
    if given is None:
        inner.problems.append(Problem(node.where, f"has no {end}", inner.prefix.rstrip(".")))
        return None
    good = isinstance(given.value, (int, float)) and not isinstance(given.value, bool) and abs(given.value) <= 1e300
    if not good or (kind == INTEGER and given.value != int(given.value)):
        inner.problem(end, "must be a whole number" if kind == INTEGER else "must be a number")
        return None
    if kind == INTEGER and abs(given.value) > 2**53:
        inner.problem(end, "must be at most 2^53")
        return None
    return float(given.value)


def _step(inner: Checker, kind: str, scale: str, span: float) -> str:
    """The distance of the values as a decimal number; "" where any value is one."""
    node = inner.node("step")
    if node is None:
        return "1" if kind == INTEGER and scale == LINEAR else ""
    value = node.value
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= max(span, 1e-300):
        inner.problem("step", "must be a number above 0 and not more than the range")
    elif kind == INTEGER and value != int(value):
        inner.problem("step", "must be a whole number")
    elif scale != LINEAR:
        inner.problem("step", f"is for the scale {LINEAR}; use values: [...]")
    else:
        return str(int(value)) if kind == INTEGER else repr(float(value))
    return ""


def _categorical(name: str, node: Node, inner: Checker) -> Parameter | None:
    for other in ("low", "high", "scale", "step"):
        if inner.node(other) is not None:
            inner.problem(other, f"cannot be used with the type {CATEGORICAL}")
    values = inner.node("values")
    items = entries(values) if values is not None else []
    if not items:
        inner.problems.append(Problem(node.where, "has no values: write a list", inner.prefix.rstrip(".")))
        return None
    categories = []
    for item in items:
        plain = item.plain()
        categories.append((plain, True) if isinstance(plain, str) else (encode(plain), False))
    texts = [text for text, _ in categories]
    if len(set(texts)) < len(texts):
        twice = next(text for text in texts if texts.count(text) > 1)
        inner.problem("values", f"contains {twice!r} twice", value="")
        return None
    return Parameter(name, CATEGORICAL, categories=tuple(categories))


def _conditions(found: list[Parameter], given: dict[str, Node], problems: list[Problem]) -> tuple[Parameter, ...]:
    """The parameters with what they depend on; those that others depend on come first."""
    by_name = {one.name: one for one in found}
    made = []
    for one in found:
        node = given[one.name]
        inner = Checker(node.value if isinstance(node.value, dict) else {}, problems, f"search.{one.name}.")
        conditions = []
        for name, item in inner.mapping("when").items():
            condition = Checker({name: item}, problems, f"search.{one.name}.when.")
            parent = by_name.get(name)
            if parent is None or name == one.name:
                if name not in given or name == one.name:
                    condition.problem(
                        name, "is not another hyperparameter of the search", did_you_mean(name, by_name), value=""
                    )
                continue
            items = entries(item) if isinstance(item.value, list) else [item]
            texts = [plain if isinstance(plain := each.plain(), str) else encode(plain) for each in items]
            wrong = [text for text in texts if parent.place(text) is None]
            if parent.kind == CONTINUOUS:
                condition.problem(
                    name, "is continuous: only a hyperparameter with countable values can be a condition", value=""
                )
            elif wrong or not texts:
                known = [text for text, _ in parent.categories]
                near = did_you_mean(wrong[0], known) if wrong else ""
                condition.problem(name, f"is not a value of {name}", near, value=wrong[0] if wrong else "")
            conditions.append((name, tuple(texts)))
        made.append(replace(one, when=tuple(conditions)))
    try:
        return in_order(tuple(made)) if all(name in by_name for one in made for name, _ in one.when) else tuple(made)
    except ValueError as error:
        where = given[str(error).split(", ")[0]].where
        problems.append(Problem(where, f"depend on each other in a circle: {error}", "search"))
        return tuple(made)


def _checked(tuning: TuningJob, fields: Checker) -> TuningJob:
    """What fields mean together."""
    if tuning.strategy.kind == GRID and tuning.space:
        count = combinations(tuning.space)
        if count is None:
            endless = [one.name for one in tuning.space if one.count is None]
            what = (
                f"{endless[0]} has no countable values" if endless else f"there are more than {LARGEST_GRID:,} combinations"
            )
            hint = "give it a step or a list of values" if endless else "use another strategy, or fewer values"
            fields.problem("search", f"is not a grid: {what}", hint, value="")
        elif not tuning.limits.max_jobs or tuning.limits.max_jobs >= count:
            tuning = replace(tuning, limits=replace(tuning.limits, max_jobs=count))
        else:
            note = f"max_jobs: the first {tuning.limits.max_jobs} of {count} combinations are tried"
            tuning = replace(tuning, notes=(*tuning.notes, note))
        if tuning.warm.parents:
            fields.problem("warm_start", "cannot be used with the strategy grid, which tries every combination", value="")
    if tuning.further:
        for name, held in (
            ("early_stopping", tuning.early.kind != OFF and tuning.strategy.kind != HYPERBAND),
            ("completion.target", tuning.limits.target is not None),
            ("warm_start", bool(tuning.warm.parents)),
        ):
            if held:
                fields.problem(
                    name.partition(".")[0], f"{name} is for one objective; there are {len(tuning.objectives)}", value=""
                )
        if tuning.strategy.kind == HYPERBAND:
            fields.problem("strategy", f"hyperband compares one objective; there are {len(tuning.objectives)}", value="")
    if tuning.strategy.kind == POPULATION:
        tuning = _checked_population(tuning, fields)
    limits = tuning.limits
    if (
        tuning.strategy.kind not in (GRID, POPULATION)
        and not (limits.max_jobs or limits.max_runtime or limits.max_billable)
        and fields.node("max_jobs") is None
    ):
        fields.missing("max_jobs", "is missing: how many trials are there to be", "max_jobs: 30")
    return tuning


def _checked_population(tuning: TuningJob, fields: Checker) -> TuningJob:
    """A population trains in generations, each trial from another one's checkpoints: with what that cannot go together."""
    strategy, job = tuning.strategy, tuning.job
    if any(one.name == strategy.length for one in tuning.space):
        fields.problem("strategy", f"sets {strategy.length} itself: take it out of the search", value="")
    for name, held, why in (
        ("early_stopping", tuning.early.kind != OFF, "each generation ends at the same length"),
        ("warm_start", bool(tuning.warm.parents), "its trials begin with checkpoints of their own"),
        ("objective", bool(tuning.further), "its members are compared by one objective"),
        ("max_jobs", fields.node("max_jobs") is not None, "size and generations say how many trials there are"),
        ("job", bool(job.checkpoints or job.checkpoint_copy_to), "its trials have checkpoint folders of their own"),
    ):
        if held and fields.node(name) is not None:
            fields.problem(name, f"cannot be used with the strategy {POPULATION}: {why}", value="")
    return replace(tuning, limits=replace(tuning.limits, max_jobs=strategy.size * strategy.generations))
