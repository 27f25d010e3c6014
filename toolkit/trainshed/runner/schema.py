"""From nodes (a job file, flags, or both) to a Job: every field, its meaning, and everything that is wrong at once."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from trainshed.container.launchers import LAUNCHERS
from trainshed.contract import compiler, hyperparameters
from trainshed.contract.config import CHANNEL_NAME
from trainshed.contract.errors import JobError, Problem
from trainshed.contract.hyperparameters import ARGV_STYLES
from trainshed.contract.pipeline import PipelineError, read_settings
from trainshed.contract.reader import ascii_safe
from trainshed.contract.settings import ENGINES

from .checker import Checker, entries, scalar_texts
from .job import ALL_GPUS, DEFAULT_GRACE, Channel, Distribution, Job, Resources
from .nodes import Node
from .platform_files import encode
from .program import locate_program

FIELDS = (
    "name", "image", "program", "source_dir", "hyperparameters", "channels", "instances", "distribution", "environment",
    "output", "max_runtime_seconds", "grace_seconds", "metric_definitions", "resources", "checkpoints", "argv",
    "compiler", "slurm", "kubernetes", "sagemaker",
)  # fmt: skip
LONGEST_NAME = 39  # the platform takes 63, and 24 are for the time
# `pytorchxla` is the platform's own word: its flag, where `xla` is ours.
DISTRIBUTIONS = (*LAUNCHERS, "pytorchxla")
MOST_CHANNELS = 20  # the platform's limit
_NAME = re.compile(r"[A-Za-z0-9](-*[A-Za-z0-9])*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DAY = 86_400


def read(values: dict[str, Node], environ: Mapping[str, str], origin: str, default_name: str = "") -> Job:
    """The job that the values describe.

    Args:
        origin: the job file's name or the command's, for what is missing.
        default_name: name of a job that has none of its own; otherwise that of its program.

    Raises:
        JobError: something is wrong; holds every problem, in the order of the file.
    """
    problems: list[Problem] = []
    job = check(values, environ, origin, default_name, problems)
    if problems:
        raise JobError(in_order(problems))
    return job


def check(
    values: dict[str, Node], environ: Mapping[str, str], origin: str, default_name: str, problems: list[Problem]
) -> Job:
    """As `read`, but problems go to a list; the job is of use only if there are none."""
    fields = Checker(values, problems, origin=origin)
    fields.unknown(FIELDS)
    image = fields.text("image")
    program, source_dir = locate_program(fields, image, environ)
    stem = os.path.splitext(os.path.basename(program.removeprefix("-m ").strip()))[0]
    return Job(
        name=_name(fields, default_name or stem or "job"),
        program=program,
        source_dir=source_dir,
        image=image,
        hyperparameters=_hyperparameters(fields),
        channels=_channels(fields),
        instances=fields.whole("instances", 1, 1, 512),
        distribution=_distribution(fields),
        compiler=_compiler(fields),
        environment=_environment(fields),
        output=fields.path("output", "new"),
        max_runtime_seconds=fields.number("max_runtime_seconds", 0.0, 0, 28 * _DAY),
        grace_seconds=fields.number("grace_seconds", DEFAULT_GRACE, 0, _DAY),
        metric_definitions=_metric_definitions(fields),
        resources=_resources(fields),
        checkpoints=fields.path("checkpoints", "new"),
        argv=fields.choice("argv", ARGV_STYLES, ""),
        places={
            place: {name: node.plain() for name, node in fields.mapping(place).items()}
            for place in ("slurm", "kubernetes", "sagemaker")
            if fields.node(place) is not None
        },
    )


def in_order(problems: list[Problem]) -> list[Problem]:
    """Problems by the line they are in; those of flags come last."""

    def line(problem: Problem) -> tuple[bool, int]:
        number = problem.file.rpartition(":")[2]
        return problem.file.startswith("--"), int(number) if number.isdigit() else 0

    return sorted(problems, key=line)


def usable_name(text: str) -> str:
    """The nearest job name to any text: letters, digits and single hyphens, at most `LONGEST_NAME`."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text)[:LONGEST_NAME].strip("-") or "job"


def _name(fields: Checker, default: str) -> str:
    name = fields.text("name")
    if not name:
        return usable_name(default)
    if not _NAME.fullmatch(name):
        fields.problem("name", "must be letters, digits and hyphens between them", f"did you mean {usable_name(name)!r}?")
    elif len(name) > LONGEST_NAME:
        fields.problem("name", f"has {len(name)} characters; {LONGEST_NAME} are allowed, since the time is added")
    return name


def _hyperparameters(fields: Checker) -> dict[str, object]:
    nodes = fields.mapping("hyperparameters")
    inner = Checker(nodes, fields.problems, "hyperparameters.")
    values = {}
    for name, node in nodes.items():
        value = values[name] = node.plain()
        for problem in hyperparameters.check({name: encode(value)}, ""):
            inner.problem(name, problem.message, value="")
    return values


def _channels(fields: Checker) -> tuple[Channel, ...]:
    nodes = fields.mapping("channels")
    if len(nodes) > MOST_CHANNELS:
        fields.problem("channels", f"there are {len(nodes)} channels; a job has at most {MOST_CHANNELS}")
    channels = []
    for name in sorted(nodes):
        node = nodes[name]
        outer = Checker(nodes, fields.problems, "channels.")
        if not re.fullmatch(CHANNEL_NAME, name) or name in (".", ".."):
            outer.problem(name, "is no channel name: up to 64 letters, digits, '.', '_' and '-'")
            continue
        if isinstance(node.value, dict):
            inner = Checker(node.value, fields.problems, f"channels.{name}.")
            inner.unknown(("path", "input_mode", "content_type"))
            if inner.node("path") is None:
                outer.problem(name, "names no path")
            path = inner.path("path", "file or folder")
        else:
            inner, path = Checker({}, fields.problems), outer.path(name, "file or folder")
            if node.value is None:
                outer.problem(name, "names no path")
        mode = inner.choice("input_mode", ("File", "FastFile"), "File")
        channels.append(Channel(name, path, mode, inner.text("content_type")))
    return tuple(channels)


def _distribution(fields: Checker) -> Distribution:
    node = fields.node("distribution")
    if node is None or not isinstance(node.value, dict):
        return Distribution(kind=fields.choice("distribution", DISTRIBUTIONS, "script"))
    inner = Checker(node.value, fields.problems, "distribution.")
    if "smdistributed" in node.value:
        return _model_parallel(inner)
    inner.unknown(("kind", "processes_per_host", "engine", "max_restarts", "parameters"))
    kind = inner.choice("kind", DISTRIBUTIONS, "script")
    restarts = inner.whole("max_restarts", 0, 0, 1000)
    engine = inner.choice("engine", ENGINES, "")
    if restarts and not engine:
        engine = "torchrun"  # the only one that restarts ranks
    elif restarts and engine != "torchrun":
        inner.problem("max_restarts", "needs torch's elastic agent", "set engine to torchrun")
    processes = inner.whole("processes_per_host", 0, 1, 4096)
    for name, given in (("processes_per_host", processes), ("max_restarts", restarts), ("engine", engine)):
        if given and kind == "script" and name in node.value:
            inner.problem(name, "has no meaning for the distribution 'script', which is one process a host")
    parameters = _parameters(inner, "parameters")
    if parameters and kind != "pipeline":
        inner.problem("parameters", "is for the distribution 'pipeline'", value="")
    return Distribution(kind, processes, engine, restarts, parameters)


def _parameters(fields: Checker, name: str) -> dict[str, object]:
    """What a pipeline is told, checked as its ranks will read it."""
    if fields.node(name) is None:
        return {}
    values: dict[str, object] = {key: node.plain() for key, node in fields.mapping(name).items()}
    try:
        read_settings(values, name)
    except PipelineError as error:
        fields.problem(name, error.message.removeprefix(f"{name}: "), error.hint, value="")
    return values


def _model_parallel(fields: Checker) -> Distribution:
    """`distribution` as SageMaker's estimators take it for Amazon's model parallel library, with MPI's options beside."""
    fields.unknown(("smdistributed", "mpi"))
    library = Checker(fields.mapping("smdistributed"), fields.problems, "distribution.smdistributed.")
    library.unknown(("modelparallel",))
    inner = Checker(library.mapping("modelparallel"), fields.problems, "distribution.smdistributed.modelparallel.")
    inner.unknown(("enabled", "parameters"))
    options = Checker(fields.mapping("mpi"), fields.problems, "distribution.mpi.")
    options.unknown(("enabled", "processes_per_host", "custom_mpi_options"))
    if not _switch(inner, "enabled"):
        return Distribution()
    return Distribution(
        kind="pipeline",
        processes_per_host=options.whole("processes_per_host", 0, 1, 4096),
        parameters=_parameters(inner, "parameters"),
        for_amazons_library=True,
        mpi=_switch(options, "enabled"),
        mpi_options=options.text("custom_mpi_options"),
    )


def _switch(fields: Checker, name: str) -> bool:
    node = fields.node(name)
    if node is not None and not isinstance(node.value, bool):
        fields.problem(name, "must be true or false")
    return node is not None and node.value is True


def _compiler(fields: Checker) -> dict[str, str]:
    """A backend, or a mapping of settings; as settings of trainshed (`trainshed_compiler` ...)."""
    node = fields.node("compiler")
    if node is None:
        return {}
    if not isinstance(node.value, dict):
        return {"trainshed_compiler": fields.choice("compiler", compiler.BACKENDS, "auto")}
    inner = Checker(node.value, fields.problems, "compiler.")
    inner.unknown(("backend", "mode", "regional", "dynamic", "cache"))
    settings = {"trainshed_compiler": inner.choice("backend", compiler.BACKENDS, "auto")}
    if inner.node("mode") is not None:
        settings["trainshed_compiler_mode"] = inner.choice("mode", compiler.MODES, "default")
    for name, words in (("regional", compiler.SWITCHES), ("dynamic", compiler.SWITCHES), ("cache", ("auto", "off"))):
        if inner.node(name) is not None:
            value = inner.choice(name, (*words, "true", "false"), "auto")
            settings[f"trainshed_compiler_{name}"] = {"true": "on", "false": "off"}.get(value, value)
    return settings


def _environment(fields: Checker) -> dict[str, str]:
    nodes = fields.mapping("environment")
    inner = Checker(nodes, fields.problems, "environment.")
    for name in nodes:
        if not _VARIABLE.fullmatch(name):
            inner.problem(name, "is no name of a variable", value="")
    return scalar_texts(nodes, inner)


def _metric_definitions(fields: Checker) -> tuple[tuple[str, str], ...]:
    """A mapping name -> regex, or the platform's list of `{Name, Regex}`."""
    node = fields.node("metric_definitions")
    if node is None:
        return ()
    definitions = []
    pairs: list[tuple[Checker, str, str]] = []
    if isinstance(node.value, dict):
        inner = Checker(node.value, fields.problems, "metric_definitions.")
        pairs = [(inner, name, name) for name in node.value]
    for item in entries(node):
        values = {name.lower(): value for name, value in item.value.items()} if isinstance(item.value, dict) else {}
        inner = Checker(values, fields.problems, "metric_definitions.")
        if not {"name", "regex"} <= values.keys():
            fields.problems.append(Problem(item.where, "must have Name and Regex", "metric_definitions"))
            continue
        pairs.append((inner, "regex", inner.text("name")))
    if not pairs and not isinstance(node.value, (dict, list)):
        fields.problem("metric_definitions", "must be names and regular expressions")
    for checker, field, name in pairs:
        regex = checker.text(field)
        try:
            groups = re.compile(regex).groups
        except re.error as error:
            checker.problem(field, f"is no regular expression: {error}")
            continue
        if groups < 1:
            checker.problem(field, "has no group", "put the number into parentheses: loss=([0-9.]+)")
        definitions.append((ascii_safe(name), regex))
    return tuple(definitions)


def _resources(fields: Checker) -> Resources:
    inner = Checker(fields.mapping("resources"), fields.problems, "resources.")
    inner.unknown(("cpus", "memory", "gpus", "shm_size"))
    everything = inner.node("gpus") is not None and inner.text("gpus") == "all"
    gpus = ALL_GPUS if everything else inner.whole("gpus", -2, 0, 1024) if inner.node("gpus") else None
    return Resources(
        cpus=inner.number("cpus", 0.0, 0.01, 4096) or None,
        memory=inner.size("memory"),
        gpus=gpus if gpus != -2 else None,
        shm_size=inner.size("shm_size"),
    )
