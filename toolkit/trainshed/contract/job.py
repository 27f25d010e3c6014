"""One training job as the platform, the user and the environment describe it."""

from __future__ import annotations

import os
import re

from trainshed.base.errors import JobError, NoJobError, Problem, did_you_mean, near_name, shorten
from trainshed.base.reader import parse_json, read_json
from trainshed.base.record import Record

from . import config, hyperparameters
from .config import Channel, ResourceConfig
from .hyperparameters import Hyperparameters
from .paths import FOLDER_VARIABLES, Paths
from .settings import Settings, read_settings
from .wire import compile_plan as compiler
from .wire.compile_plan import CompilerRequest
from .wire.variables import of_setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# What Amazon's images have in SAGEMAKER_TRAINING_MODULE: their launchers of the distributions that trainshed launches.
PEERS_LAUNCHERS = ("sagemaker_pytorch_container.training:main", "sagemaker_tensorflow_container.training:main")
OPAQUE_FILES = ("init-config.json", "trainingjobconfig.json", "upstreamoutputdataconfig.json")
# Flags of the platform that choose a distribution, in the order in which the first one set wins. SDK v2 sends
# `pytorchddp` of its PyTorch class as the smddp flag, so that flag is plain DDP here.
DISTRIBUTION_FLAGS = (
    ("sagemaker_mpi_enabled", "mpi"),
    ("sagemaker_pytorch_ddp_enabled", "torchrun"),
    ("sagemaker_torch_distributed_enabled", "torchrun"),
    ("sagemaker_distributed_dataparallel_enabled", "torchrun"),
    ("sagemaker_pytorch_xla_multi_worker_enabled", "xla"),
)
PROCESSES_PER_HOST = "sagemaker_mpi_num_of_processes_per_host"
FOREIGN_FLAGS = ("sagemaker_parameter_server_enabled", "sagemaker_multi_worker_mirrored_strategy_enabled")
KNOWN_RESERVED = frozenset(
    {name for name, _ in DISTRIBUTION_FLAGS}
    | {
        "sagemaker_program",
        "sagemaker_submit_directory",
        "sagemaker_job_name",
        "sagemaker_region",
        "sagemaker_container_log_level",
        "sagemaker_s3_output",
        PROCESSES_PER_HOST,
        "sagemaker_mpi_custom_mpi_options",
        "sagemaker_mpi_num_processes",
        "sagemaker_instance_type",
        "sagemaker_distribution_instance_groups",
        "sagemaker_distributed_dataparallel_custom_mpi_options",
        *FOREIGN_FLAGS,
        compiler.ENABLED,
        compiler.DEBUG,
        "sagemaker_toolkit_native_launcher_enabled",
        "sagemaker_estimator_class_name",
        "sagemaker_estimator_module",
        "sagemaker_enable_cloudwatch_metrics",
        "sagemaker_requirements",
    }
)


class Distribution(Record):
    """How the job's ranks are started, and who asked for it.

    kind: one of `settings.DISTRIBUTIONS`.
    asked_by: the hyperparameter or variable that says so, "" for the default.
    processes_per_host: 0 where the hardware decides.
    groups: instance groups that take part; () means all.
    pipeline: what the ranks of a `pipeline` are told, by name (contract/wire/pipeline.py).
    """

    kind: str = "script"
    asked_by: str = ""
    processes_per_host: int = 0
    groups: tuple[str, ...] = ()
    pipeline: dict[str, Any] = {}  # noqa: RUF012


class Job(Record):
    """Everything `train` knows before it looks at the machine. Made by `read_job`."""

    name: str
    paths: Paths
    hyperparameters: Hyperparameters
    channels: tuple[Channel, ...]
    resources: ResourceConfig
    settings: Settings
    distribution: Distribution
    program: str  # the script or module to run, "" where nobody named one
    source: str  # where its code is: folder, archive or URI, "" for the usual places
    training_module: str = ""  # SAGEMAKER_TRAINING_MODULE: `package.module:function` that launches the script itself
    region: str = ""
    log_level: int = 20
    compiler: CompilerRequest = CompilerRequest()
    checkpoint: config.CheckpointConfig | None = None
    metric_definitions: tuple[config.MetricDefinition, ...] = ()
    tensorboard: config.TensorboardConfig | None = None
    debug_hook: config.DebugHookConfig | None = None
    profiler: config.ProfilerConfig | None = None
    opaque: dict[str, Any] = {}  # noqa: RUF012
    input_data_config: dict[str, Any] = {}  # noqa: RUF012
    warnings: tuple[str, ...] = ()

    def channel(self, name: str) -> Channel | None:
        """A channel by name."""
        return next((channel for channel in self.channels if channel.name == name), None)


def read_job(environ: Mapping[str, str]) -> Job:
    """The job that the files below /opt/ml and the environment describe.

    Files win over variables (SM_HPS, SM_RESOURCE_CONFIG, ...), which stand in for files that are absent.

    Raises:
        NoJobError: nothing describes a job.
        JobError: something is wrong; holds every problem found.
    """
    paths = Paths.from_environment(environ)
    problems: list[Problem] = []
    warnings: list[str] = []
    _require_job(paths, environ)

    for name in FOLDER_VARIABLES:
        if environ.get(name) and not environ[name].startswith("/"):
            problems.append(Problem(f"variable {name}", "must be an absolute path", value=environ[name]))
    hps_file = f"{paths.config}/hyperparameters.json"
    exists = os.path.exists(hps_file)
    raw, hps_file = _file_or_variable(hps_file, "SM_HPS", environ, problems, parse_float=hyperparameters.SpelledFloat)
    if raw is None:
        raw = {} if exists else _hyperparameters_of_variables(environ)
        hps_file = "variables SM_HP_*" if raw else hps_file
    if not isinstance(raw, dict):
        problems.append(Problem(hps_file, "must be an object of names and values"))
        raw = {}
    problems += hyperparameters.check(raw, hps_file)
    hps = hyperparameters.decode(raw)
    settings = _overridden_variables(read_settings(hps.reserved, hps_file, environ, problems), hps, warnings)

    input_file = f"{paths.config}/inputdataconfig.json"
    input_config, input_file = _file_or_variable(input_file, "SM_INPUT_DATA_CONFIG", environ, problems)
    channels = config.parse_channels(input_config, input_file, paths.input_data, problems)
    channels = _locate_channels(channels, input_config is not None, paths, environ, warnings)

    resource_file = f"{paths.config}/resourceconfig.json"
    resource_value, resource_file = _file_or_variable(resource_file, "SM_RESOURCE_CONFIG", environ, problems)
    if resource_value is None and (resource_value := _resources_of_variables(environ, problems)) is not None:
        resource_file = "variables SM_HOSTS, SM_CURRENT_HOST"
    resources = config.parse_resource_config(resource_value, resource_file, problems)

    checkpoint_file = environ.get("CHECKPOINT_CONFIG_FILE_PATH") or f"{paths.config}/checkpointconfig.json"
    checkpoint = config.parse_checkpoint_config(
        read_json(checkpoint_file, problems), checkpoint_file, paths.checkpoints, problems
    )
    if checkpoint is not None:
        paths = paths.replace(checkpoints=checkpoint.local_path)
    metric_file = f"{paths.config}/metric-definition-regex.json"
    tensorboard_file = environ.get("TENSORBOARD_CONFIG_FILE_PATH") or f"{paths.config}/tensorboardoutputconfig.json"
    debug_file = environ.get("SMDEBUG_CONFIG_FILE_PATH") or f"{paths.config}/debughookconfig.json"
    profiler_file = f"{paths.config}/profilerconfig.json"

    for name in hps.reserved:
        near = near_name(name, KNOWN_RESERVED) if name.startswith("sagemaker_") and name not in KNOWN_RESERVED else ""
        if near:
            warnings.append(f"hyperparameter {name!r} is not known to any toolkit: {near}")
        elif name in FOREIGN_FLAGS and truthy(hps.reserved[name]):
            warnings.append(f"{name} asks for a distribution of TensorFlow's, which trainshed has not")

    distribution = _distribution(hps, settings, resources, hps_file, problems)
    job = Job(
        name=environ.get("TRAINING_JOB_NAME") or str(hps.get("sagemaker_job_name") or ""),
        paths=paths,
        hyperparameters=hps,
        channels=channels,
        resources=resources,
        settings=settings,
        distribution=distribution,
        compiler=compiler.request_of(hps, settings, (distribution.kind, distribution.asked_by)),
        program=_program(hps, settings, environ, hps_file, problems, warnings),
        source=_text(hps, "sagemaker_submit_directory", hps_file, problems) or settings.source or _source_folder(environ),
        training_module=_training_module(environ, problems, warnings),
        region=environ.get("AWS_REGION")
        or environ.get("SAGEMAKER_REGION")
        or _text(hps, "sagemaker_region", hps_file, problems)
        or environ.get("AWS_DEFAULT_REGION")
        or "",
        log_level=_log_level(hps, environ, warnings),
        checkpoint=checkpoint,
        metric_definitions=config.parse_metric_definitions(
            read_json(metric_file, problems), metric_file, problems, warnings
        ),
        tensorboard=config.parse_tensorboard_config(
            read_json(tensorboard_file, problems), tensorboard_file, f"{paths.output}/tensorboard", problems
        ),
        debug_hook=config.parse_debug_hook_config(
            read_json(debug_file, problems), debug_file, f"{paths.output}/tensors", problems
        ),
        profiler=config.parse_profiler_config(
            read_json(profiler_file, problems), profiler_file, f"{paths.output}/profiler", problems
        ),
        opaque={name: read_json(f"{paths.config}/{name}", problems) for name in OPAQUE_FILES},
        input_data_config=input_config if isinstance(input_config, dict) else {},
        warnings=tuple(warnings),
    )
    if problems:
        raise JobError(problems)
    return job


def _require_job(paths: Paths, environ: Mapping[str, str]) -> None:
    names = ("SAGEMAKER_PROGRAM", "SM_ENTRY_SCRIPT", "SM_USER_ENTRY_POINT", of_setting("program"), "SM_HPS")
    named = any(environ.get(name) for name in names)
    if named or os.path.isdir(paths.config) or _has_entries(paths.code) or _has_entries(f"{paths.input_data}/code"):
        return
    raise NoJobError(f"there is no job: {paths.config} does not exist and {paths.code} holds no program")


def _has_entries(folder: str) -> bool:
    try:
        return any(True for _ in os.scandir(folder))
    except OSError:
        return False


def _file_or_variable(
    path: str, variable: str, environ: Mapping[str, str], problems: list[Problem], **options: Any
) -> tuple[Any, str]:
    """A config file's JSON, or where there is no such file, that of the variable which says the same; and which it was."""
    if not os.path.exists(path) and environ.get(variable):
        place = f"variable {variable}"
        return parse_json(environ[variable].encode("utf-8", "replace"), place, problems, **options), place
    return read_json(path, problems, **options), path


def _hyperparameters_of_variables(environ: Mapping[str, str]) -> dict[str, Any]:
    """Hyperparameters from SM_HP_<NAME> alone: the names come back in lower case."""
    prefix = "SM_HP_"
    return {name[len(prefix) :].lower(): value for name, value in environ.items() if name.startswith(prefix)}


def _resources_of_variables(environ: Mapping[str, str], problems: list[Problem]) -> dict[str, Any] | None:
    """The fields of resourceconfig.json from SM_HOSTS, SM_CURRENT_HOST and their like; None where none is set."""
    names = {
        "current_host": "SM_CURRENT_HOST",
        "current_instance_type": "SM_CURRENT_INSTANCE_TYPE",
        "current_group_name": "SM_CURRENT_INSTANCE_GROUP",
        "network_interface_name": "SM_NETWORK_INTERFACE_NAME",
    }
    found: dict[str, Any] = {field: environ[name] for field, name in names.items() if environ.get(name)}
    if environ.get("SM_HOSTS"):
        text = environ["SM_HOSTS"]
        if text.lstrip().startswith("["):
            found["hosts"] = parse_json(text.encode("utf-8", "replace"), "variable SM_HOSTS", problems)
        else:
            found["hosts"] = [host.strip() for host in text.split(",") if host.strip()]
    return found if "hosts" in found or "current_host" in found else None


def _locate_channels(
    channels: tuple[Channel, ...], configured: bool, paths: Paths, environ: Mapping[str, str], warnings: list[str]
) -> tuple[Channel, ...]:
    """Adds what the file does not say: folders, manifests, and SM_CHANNEL_<NAME> where there is no file at all."""
    try:
        folders = sorted(entry.name for entry in os.scandir(paths.input_data) if entry.is_dir())
    except OSError:
        folders = []
    if not configured:
        prefix = "SM_CHANNEL_"
        given = {name: path for name, path in environ.items() if name.startswith(prefix) and name != prefix and path}
        named = {name[len(prefix) :].lower(): path for name, path in given.items()}
        named.update({name: f"{paths.input_data}/{name}" for name in folders if re.fullmatch(config.CHANNEL_NAME, name)})
        channels = tuple(Channel(name=name, path=path) for name, path in sorted(named.items()))
    located = []
    for channel in channels:
        manifest = f"{paths.input_data}/{channel.name}-manifest"
        if os.path.exists(manifest):
            channel = channel.replace(manifest=manifest)
        if channel.input_mode != "Pipe" and not os.path.exists(channel.path):
            near = did_you_mean(channel.name, folders)
            warnings.append(f"channel {channel.name!r}: {channel.path} does not exist" + (f" ({near})" if near else ""))
        located.append(channel)
    return tuple(located)


def _text(hps: Hyperparameters, name: str, file: str, problems: list[Problem]) -> str:
    value = hps.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        problems.append(Problem(file, "must be a string", name, str(value)))
        return ""
    return value


def _program(
    hps: Hyperparameters,
    settings: Settings,
    environ: Mapping[str, str],
    file: str,
    problems: list[Problem],
    warnings: list[str],
) -> str:
    """The variable wins over the hyperparameter, as with the peers; then our own name, then what v3 and the peer export."""
    named = _text(hps, "sagemaker_program", file, problems)
    variable = environ.get("SAGEMAKER_PROGRAM") or ""
    if variable and named and os.path.normpath(variable) != os.path.normpath(named):
        warnings.append(
            f"running {shorten(variable)!r}: variable SAGEMAKER_PROGRAM overrides the hyperparameter "
            f"sagemaker_program = {shorten(named)!r}; unset the variable to run that"
        )
    exported = environ.get("SM_ENTRY_SCRIPT") or environ.get("SM_USER_ENTRY_POINT") or ""
    return variable or named or settings.program or exported


def _training_module(environ: Mapping[str, str], problems: list[Problem], warnings: list[str]) -> str:
    """A launcher of the image's own; those of Amazon's framework containers do what trainshed does, and stand back."""
    name = environ.get("SAGEMAKER_TRAINING_MODULE") or ""
    if name and not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", name):
        problems.append(Problem("variable SAGEMAKER_TRAINING_MODULE", "must look like package.module:function", value=name))
    if name in PEERS_LAUNCHERS:
        warnings.append(f"SAGEMAKER_TRAINING_MODULE = {name} is not called: trainshed itself starts the script")
        return ""
    return name


def _source_folder(environ: Mapping[str, str]) -> str:
    return environ.get("SAGEMAKER_SUBMIT_DIRECTORY") or environ.get("SM_SOURCE_DIR") or ""


def _log_level(hps: Hyperparameters, environ: Mapping[str, str], warnings: list[str]) -> int:
    """A level as number (20) or as word ("INFO"); anything else means 20, with a warning."""
    value = hps.get("sagemaker_container_log_level", environ.get("SAGEMAKER_CONTAINER_LOG_LEVEL") or 20)
    words = {"CRITICAL": 50, "FATAL": 50, "ERROR": 40, "WARNING": 30, "WARN": 30, "INFO": 20, "DEBUG": 10, "NOTSET": 0}
    level = words.get(str(value).strip().upper())
    if level is None:
        try:
            level = int(float(str(value)))
        except (ValueError, OverflowError):
            warnings.append(f"sagemaker_container_log_level = {str(value)[:40]!r} is no log level; using INFO")
            level = 20
    return level


def truthy(value: Any) -> bool:
    """Whether a flag is on: true, "true", "True", 1, "1", "yes"."""
    return value is True or str(value).strip().lower() in ("true", "1", "yes", "on")


def _overridden_variables(settings: Settings, hps: Hyperparameters, warnings: list[str]) -> Settings:
    """The settings without those from variables (the image's, perhaps) that a platform hyperparameter of the job decides."""
    flag, kind = next(((flag, kind) for flag, kind in DISTRIBUTION_FLAGS if truthy(hps.get(flag))), ("", ""))
    count = hps.get(PROCESSES_PER_HOST)
    for name, winner, decided in (
        ("distribution", flag, kind),
        ("processes_per_host", PROCESSES_PER_HOST, count),
        ("compiler", compiler.ENABLED, None),
    ):
        value = getattr(settings, name)
        if not value or hps.get(winner) in (None, "") or hps.get(f"trainshed_{name}") not in (None, ""):
            continue
        settings = settings.replace(**{name: getattr(Settings, name)})
        if value != decided:
            warnings.append(
                f"ignoring variable {of_setting(name)} = {value}: "
                f"the job's hyperparameter {winner} = {hps.get(winner)} overrides it"
            )
    return settings


def _distribution(
    hps: Hyperparameters, settings: Settings, resources: ResourceConfig, file: str, problems: list[Problem]
) -> Distribution:
    kind, asked_by = "script", ""
    for flag, flagged in DISTRIBUTION_FLAGS:
        if truthy(hps.get(flag)):
            kind, asked_by = flagged, flag
            break
    if _wants_pipeline(asked_by, hps, settings):
        kind, asked_by = "pipeline", asked_by or "trainshed_pipeline"
    if settings.distribution:
        kind, asked_by = settings.distribution, "trainshed_distribution"
    pipeline = _pipeline(hps, settings, file, problems) if kind == "pipeline" else {}
    processes = settings.processes_per_host
    number = hps.get(PROCESSES_PER_HOST)
    if not processes and number not in (None, ""):
        if isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= 4096:
            processes = number
        else:
            problems.append(Problem(file, "must be a whole number of at least 1", PROCESSES_PER_HOST, str(number)))
    groups = hps.get("sagemaker_distribution_instance_groups") or []
    names = [group.name for group in resources.instance_groups]
    if not isinstance(groups, list) or not all(isinstance(group, str) for group in groups):
        problems.append(
            Problem(file, "must be a list of group names", "sagemaker_distribution_instance_groups", str(groups))
        )
        groups = []
    for group in groups:
        if names and group not in names:
            problems.append(
                Problem(
                    file,
                    f"is none of the job's groups ({', '.join(names)})",
                    "sagemaker_distribution_instance_groups",
                    group,
                    did_you_mean(group, names),
                )
            )
    if not groups and asked_by:
        groups = [resources.current_group_name]
    return Distribution(kind=kind, asked_by=asked_by, processes_per_host=processes, groups=tuple(groups), pipeline=pipeline)


def _wants_pipeline(flag: str, hps: Hyperparameters, settings: Settings) -> bool:
    """Whether the job is for Amazon's model parallel library, or names a pipeline of ours.

    The SDK sends `mp_parameters` with MPI's flag for the library's first version, which has pipelines, and with torchrun's
    for the second, which has none (its `mp_parameters` then name no partitions).
    """
    asked = hps.user.get("mp_parameters")
    if flag == "sagemaker_mpi_enabled" and asked not in (None, ""):
        return True
    partitions = isinstance(asked, dict) and ("partitions" in asked or "pipeline_parallel_degree" in asked)
    return bool(settings.pipeline) or (partitions and bool(flag))


def _pipeline(hps: Hyperparameters, settings: Settings, file: str, problems: list[Problem]) -> dict[str, Any]:
    from .wire.pipeline import parameters_of  # only such jobs need it

    found, wrong = parameters_of(hps.user.get("mp_parameters"), settings.pipeline)
    problems += [Problem(file, message, name, suggestion=hint) for name, message, hint in wrong]
    return found
