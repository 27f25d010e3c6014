"""From nodes (a job file, flags, or both) to a Job: every field, its meaning, and everything that is wrong at once."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from trainshed.base.errors import JobError, Problem
from trainshed.base.reader import ascii_safe
from trainshed.base.secrets import mask_text
from trainshed.container.launchers import LAUNCHERS
from trainshed.contract import hyperparameters
from trainshed.contract.hyperparameters import ARGV_STYLES
from trainshed.contract.paths import DEFAULT_BASE
from trainshed.contract.settings import ENGINES
from trainshed.contract.wire import compile_plan
from trainshed.contract.wire.pipeline import PipelineError, read_settings

from ..run.platform_files import encode
from .channels import read_channels
from .checker import Checker, entries, scalar_texts
from .client_names import is_read_by_client
from .job import ALL_GPUS, DEFAULT_GRACE, S3, Distribution, Job, Reference, Resources, Spot
from .nodes import Node
from .program import locate_program
from .references import read_reference

FIELDS = (
    "name", "image", "program", "source_dir", "hyperparameters", "channels", "instances", "distribution", "environment",
    "output", "max_runtime_seconds", "grace_seconds", "metric_definitions", "resources", "checkpoints", "argv", "spot",
    "retries", "entrypoint", "arguments", "network_isolation", "compiler", "slurm", "kubernetes", "sagemaker",
)  # fmt: skip
LONGEST_NAME = 39  # the platform takes 63, and 24 are for the time
# `pytorchxla` is the platform's own word: its flag, where `xla` is ours.
DISTRIBUTIONS = (*LAUNCHERS, "pytorchxla")
MOST_METRICS, LONGEST_REGEX = 40, 500  # the platform's limits
MOST_ARGUMENTS = 100
_NAME = re.compile(r"[A-Za-z0-9](-*[A-Za-z0-9])*")
_IMAGE = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]+)?(/[A-Za-z0-9._-]+)*(:[A-Za-z0-9_][A-Za-z0-9._-]*)?(@[A-Za-z0-9:+._-]+)?"
)
_BELOW = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^\s]+")
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
    if image and not _IMAGE.fullmatch(image):
        fields.problem("image", "is no name of an image")
    program, source_dir = locate_program(fields, image, environ)
    stem = os.path.splitext(os.path.basename(program.removeprefix("-m ").strip()))[0]
    environment, references = _environment(fields, image)
    output, upload = _output(fields)
    checkpoints, checkpoint_path, checkpoint_auto, copy_to = _checkpoints(fields)
    max_runtime = fields.number("max_runtime_seconds", 0.0, 0, 28 * _DAY)
    if not image:
        for name in ("entrypoint", "arguments", "network_isolation"):
            node = fields.node(name)
            if node is not None and node.value is not False:
                fields.problem(name, "needs an image", value="")
    return Job(
        name=_name(fields, default_name or stem or "job"),
        program=program,
        source_dir=source_dir,
        image=image,
        hyperparameters=_hyperparameters(fields),
        channels=read_channels(fields),
        instances=fields.whole("instances", 1, 1, 512),
        distribution=_distribution(fields),
        compiler=_compiler(fields),
        environment=environment,
        references=references,
        output=output,
        upload=upload,
        max_runtime_seconds=max_runtime,
        grace_seconds=fields.number("grace_seconds", DEFAULT_GRACE, 0, _DAY),
        metric_definitions=_metric_definitions(fields),
        resources=_resources(fields),
        checkpoints=checkpoints,
        checkpoint_path=checkpoint_path,
        checkpoint_auto=checkpoint_auto,
        checkpoint_copy_to=copy_to,
        argv=fields.choice("argv", ARGV_STYLES, ""),
        places={
            place: {name: node.plain() for name, node in fields.mapping(place).items()}
            for place in ("slurm", "kubernetes", "sagemaker")
            if fields.node(place) is not None
        },
        spot=_spot(fields, max_runtime),
        retries=fields.whole("retries", 0, 0, 30),
        entrypoint=_words(fields, "entrypoint"),
        arguments=_words(fields, "arguments"),
        network_isolation=fields.flag("network_isolation"),
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
        return {"trainshed_compiler": fields.choice("compiler", compile_plan.BACKENDS, "auto")}
    inner = Checker(node.value, fields.problems, "compiler.")
    inner.unknown(("backend", "mode", "regional", "dynamic", "cache"))
    settings = {"trainshed_compiler": inner.choice("backend", compile_plan.BACKENDS, "auto")}
    if inner.node("mode") is not None:
        settings["trainshed_compiler_mode"] = inner.choice("mode", compile_plan.MODES, "default")
    for name, words in (("regional", compile_plan.SWITCHES), ("dynamic", compile_plan.SWITCHES), ("cache", ("auto", "off"))):
        if inner.node(name) is not None:
            value = inner.choice(name, (*words, "true", "false"), "auto")
            settings[f"trainshed_compiler_{name}"] = {"true": "on", "false": "off"}.get(value, value)
    return settings


def _environment(fields: Checker, image: str) -> tuple[dict[str, str], dict[str, Reference]]:
    nodes = fields.mapping("environment")
    inner = Checker(nodes, fields.problems, "environment.")
    plain: dict[str, Node] = {}
    references: dict[str, Reference] = {}
    for name, node in nodes.items():
        if not _VARIABLE.fullmatch(name):
            inner.problem(name, "is no name of a variable", value="")
        elif isinstance(node.value, dict):
            reference = read_reference(name, node, inner)
            if reference is not None:
                references[name] = reference
            if image and is_read_by_client(name):
                inner.problem(
                    name, "the container client reads this name itself: its value would be in the process list", value=""
                )
        else:
            plain[name] = node
    return scalar_texts(plain, inner), references


def _output(fields: Checker) -> tuple[str, str]:
    """(folder of the run, S3 prefix for its archives)."""
    text = fields.text("output")
    if text.startswith(S3):
        return "", text.rstrip("/")
    return fields.path("output", "new"), ""


def _checkpoints(fields: Checker) -> tuple[str, str, bool, str]:
    """(folder, path below /opt/ml, whether Trainers are made to use it, URL for copies)."""
    node = fields.node("checkpoints")
    if node is None or not isinstance(node.value, dict):
        return fields.path("checkpoints", "new"), "checkpoints", False, ""
    inner = Checker(node.value, fields.problems, "checkpoints.")
    inner.unknown(("folder", "local_path", "auto", "copy_to"))
    path = os.path.normpath(inner.text("local_path", f"{DEFAULT_BASE}/checkpoints"))
    below = path.removeprefix(f"{DEFAULT_BASE}/")
    if below == path or below.split("/")[0] in ("input", "output", "model", "code") or not _BELOW.fullmatch(below):
        inner.problem("local_path", f"must be a folder of its own below {DEFAULT_BASE}, like {DEFAULT_BASE}/checkpoints")
        below = "checkpoints"
    copy_to = inner.text("copy_to")
    if copy_to and not _URL.fullmatch(copy_to):
        inner.problem("copy_to", "must be a URL like s3://bucket/run")
    elif mask_text(copy_to) != copy_to:
        inner.problem("copy_to", "holds a secret; give it as a variable that the storage's package reads", value="")
    return inner.path("folder", "new"), below, inner.flag("auto"), copy_to


def _spot(fields: Checker, max_runtime: float) -> Spot | None:
    node = fields.node("spot")
    if node is None:
        return None
    if not isinstance(node.value, dict):
        return Spot() if fields.flag("spot") else None
    inner = Checker(node.value, fields.problems, "spot.")
    inner.unknown(("interrupt_after", "max_wait_seconds", "price"))
    wait = inner.number("max_wait_seconds", 0.0, 0, 28 * _DAY)
    if wait and wait < max_runtime:
        inner.problem("max_wait_seconds", f"must not be less than max_runtime_seconds, {max_runtime:g}")
    return Spot(inner.durations("interrupt_after"), wait, inner.number("price", 1.0, 0.01, 1))


def _words(fields: Checker, name: str) -> tuple[str, ...]:
    """A list of texts, as commands are."""
    node = fields.node(name)
    if node is None:
        return ()
    items = entries(node)
    if not isinstance(node.value, list) or len(items) > MOST_ARGUMENTS:
        fields.problem(name, f"must be a list of at most {MOST_ARGUMENTS} words", value="")
        return ()
    texts = scalar_texts(
        {str(number): item for number, item in enumerate(items)},
        Checker({str(number): item for number, item in enumerate(items)}, fields.problems, f"{name}."),
    )
    return tuple(texts.values())


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
    if len(pairs) > MOST_METRICS:
        fields.problem("metric_definitions", f"there are {len(pairs)}; a job has at most {MOST_METRICS}", value="")
        return ()
    if not pairs and not isinstance(node.value, (dict, list)):
        fields.problem("metric_definitions", "must be names and regular expressions")
    for checker, field, name in pairs:
        regex = checker.text(field)
        if len(regex) > LONGEST_REGEX:
            checker.problem(field, f"has {len(regex)} characters; the platform takes {LONGEST_REGEX}", value="")
            continue
        try:
            groups = re.compile(regex).groups
        except (re.error, OverflowError, RecursionError) as error:
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
