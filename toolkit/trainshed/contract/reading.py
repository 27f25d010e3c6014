"""Reads a job: every config file below /opt/ml, or the variables that stand in for it, as one `TrainingJob`."""

from __future__ import annotations

import os

from trainshed.base.errors import JobError, NoJobError, Problem, did_you_mean, one_line
from trainshed.base.reader import Fields, parse_json, printable, read_json

from . import hyperparameters
from .choices import Choices
from .config import (
    DEFAULT_GROUP,
    DEFAULT_HOST,
    DEFAULT_INTERFACE,
    INPUT_MODES,
    Channel,
    CheckpointConfig,
    DebugHookConfig,
    InstanceGroup,
    MetricDefinition,
    ProfilerConfig,
    ResourceConfig,
    TensorboardConfig,
    is_channel_name,
    is_host_name,
)
from .job import TrainingJob
from .paths import FOLDER_VARIABLES, Paths
from .wire.variables import of_setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .hyperparameters import Hyperparameters

OPAQUE_FILES = ("init-config.json", "trainingjobconfig.json", "upstreamoutputdataconfig.json")
_SIGNS_OF_A_JOB = (
    "SAGEMAKER_PROGRAM",
    "SM_ENTRY_SCRIPT",
    "SM_USER_ENTRY_POINT",
    of_setting("program"),
    "SM_HPS",
)
# The fields of resourceconfig.json, and the variables that stand in for them.
_RESOURCE_VARIABLES = {
    "current_host": "SM_CURRENT_HOST",
    "current_instance_type": "SM_CURRENT_INSTANCE_TYPE",
    "current_group_name": "SM_CURRENT_INSTANCE_GROUP",
    "network_interface_name": "SM_NETWORK_INTERFACE_NAME",
}


def read_job(environ: Mapping[str, str]) -> TrainingJob:
    """The job that the files below /opt/ml and the environment describe.

    Files win over variables (SM_HPS, SM_RESOURCE_CONFIG, ...), which stand in for files that are absent.

    Raises:
        NoJobError: nothing describes a job.
        JobError: the job has problems; the error lists all of them.
    """
    reading = Reading(environ)
    hps, file = reading.hyperparameters()
    choices = Choices(hps, file, environ, reading.problems, reading.warnings)
    input_config, channels = reading.channels()
    resources = reading.resources()
    checkpoint = reading.checkpoint()
    choices.warn_of_unknown_names()
    distribution = choices.distribution(resources)
    job = TrainingJob(
        name=environ.get("TRAINING_JOB_NAME") or str(hps.get("sagemaker_job_name") or ""),
        paths=reading.paths.replace(checkpoints=checkpoint.local_path) if checkpoint else reading.paths,
        hyperparameters=hps,
        channels=channels,
        resources=resources,
        settings=choices.settings,
        distribution=distribution,
        compiler=choices.compiler(distribution),
        program=choices.program(),
        source=choices.source(),
        training_module=choices.training_module(),
        region=choices.region(),
        log_level=choices.log_level(),
        checkpoint=checkpoint,
        metric_definitions=reading.metric_definitions(),
        tensorboard=reading.tensorboard(),
        debug_hook=reading.debug_hook(),
        profiler=reading.profiler(),
        opaque={name: reading.json(name)[0] for name in OPAQUE_FILES},
        input_data_config=input_config,
        warnings=tuple(reading.warnings),
    )
    if reading.problems:
        raise JobError(reading.problems)
    return job


class Reading:
    """One reading of a job's files: where they are, and what is wrong with them so far.

    environ: the environment of `train`. paths: where the job's files lie.
    problems, warnings: grow with each method called.

    Raises:
        NoJobError: nothing describes a job.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.paths = Paths.from_environment(environ)
        self.problems: list[Problem] = []
        self.warnings: list[str] = []
        self._require_a_job()
        for name in FOLDER_VARIABLES:
            if environ.get(name) and not environ[name].startswith("/"):
                self.problems.append(Problem(f"variable {name}", "must be an absolute path", value=environ[name]))

    def json(self, name: str, variable: str = "", location: str = "", **options: Any) -> tuple[Any, str]:
        """A config file's value, and where it comes from, for problems.

        Args:
            name: the file's name in input/config.
            variable: stands in for an absent file.
            location: variable that may hold another path for the file.
            options: for `json.loads`.
        """
        path = self.environ.get(location) or f"{self.paths.config}/{name}"
        if variable and self.environ.get(variable) and not os.path.exists(path):
            return self._json_of_variable(variable, **options), f"variable {variable}"
        return read_json(path, self.problems, **options), path

    def hyperparameters(self) -> tuple[Hyperparameters, str]:
        """The hyperparameters, and where they come from: hyperparameters.json, SM_HPS or SM_HP_<NAME>."""
        raw, place = self.json("hyperparameters.json", "SM_HPS", parse_float=hyperparameters.SpelledFloat)
        if raw is None and not os.path.exists(place):
            prefix = "SM_HP_"
            raw = {name[len(prefix) :].lower(): value for name, value in self.environ.items() if name.startswith(prefix)}
            place = f"variables {prefix}*" if raw else place
        if raw is not None and not isinstance(raw, dict):
            self.problems.append(Problem(place, "must be an object of names and values"))
            raw = None
        self.problems += hyperparameters.check(raw or {}, place)
        return hyperparameters.decode(raw or {}), place

    def channels(self) -> tuple[dict[str, Any], tuple[Channel, ...]]:
        """inputdataconfig.json as it is, and its channels, sorted by name, with path and manifest.

        Without the file: a channel for each folder below input/data, and for each SM_CHANNEL_<NAME>.
        """
        value, place = self.json("inputdataconfig.json", "SM_INPUT_DATA_CONFIG")
        try:
            folders = sorted(entry.name for entry in os.scandir(self.paths.input_data) if entry.is_dir())
        except OSError:
            folders = []
        channels = self._unnamed_channels(folders) if value is None else self._named_channels(value, place)
        config = value if isinstance(value, dict) else {}
        return config, tuple(self._located(channel, folders) for channel in channels)

    def resources(self) -> ResourceConfig:
        """resourceconfig.json; `current_group_name` and `current_instance_group` are the same field."""
        value, place = self.json("resourceconfig.json", "SM_RESOURCE_CONFIG")
        if value is None:
            value, place = self._resource_variables(), "variables SM_HOSTS, SM_CURRENT_HOST"
        if value is None:
            return ResourceConfig()
        before = len(self.problems)
        fields = Fields(value, place, self.problems)
        current = fields.text("current_host")
        hosts = fields.texts("hosts") or ((current,) if current else (DEFAULT_HOST,))
        current = current or hosts[0]
        for host in (*hosts, current):
            if not is_host_name(host):
                fields.problem("hosts" if host in hosts else "current_host", host, "is not a valid host name")
        if current not in hosts and len(self.problems) == before:
            message = f"is not among the hosts ({', '.join(hosts[:5])})"
            fields.problem("current_host", current, message, did_you_mean(current, hosts))
        groups = self._instance_groups(fields, hosts)
        group = fields.text("current_group_name") or fields.text("current_instance_group") or DEFAULT_GROUP
        names = [item.name for item in groups]
        if groups and group not in names and len(self.problems) == before:
            message = f"is not one of the groups ({', '.join(names)})"
            fields.problem("current_group_name", group, message, did_you_mean(group, names))
        return ResourceConfig(
            current_host=current,
            hosts=hosts,
            current_instance_type=fields.text("current_instance_type") or "local",
            current_group_name=group,
            instance_groups=groups,
            network_interface_name=fields.text("network_interface_name") or DEFAULT_INTERFACE,
            topology=_as_it_is(fields.values.get("topology")),
            raw=fields.values,
            given=True,
        )

    def checkpoint(self) -> CheckpointConfig | None:
        """checkpointconfig.json, None where it is absent."""
        value, place = self.json("checkpointconfig.json", location="CHECKPOINT_CONFIG_FILE_PATH")
        if value is None:
            return None
        fields = Fields(value, place, self.problems)
        path = fields.text("LocalPath") or self.paths.checkpoints
        if not path.startswith("/"):
            fields.problem("LocalPath", path, "must be an absolute path")
        return CheckpointConfig(local_path=path, s3_uri=fields.text("S3Uri"))

    def metric_definitions(self) -> tuple[MetricDefinition, ...]:
        """metric-definition-regex.json: a list of `{"Name", "Regex"}` as in CreateTrainingJob, or an object name -> regex.

        The platform's regexes are Java's; one that Python cannot compile is left out with a warning, not an error.
        """
        value, place = self.json("metric-definition-regex.json")
        if value is None:
            return ()
        if isinstance(value, dict):
            value = [{"Name": name, "Regex": regex} for name, regex in value.items()]
        if not isinstance(value, list):
            Fields(value, place, self.problems)  # notes the problem
            return ()
        definitions = (self._metric_definition(item, place, number) for number, item in enumerate(value))
        return tuple(definition for definition in definitions if definition is not None)

    def tensorboard(self) -> TensorboardConfig | None:
        """tensorboardoutputconfig.json, None where it is absent; the names' case does not matter."""
        value, place = self.json("tensorboardoutputconfig.json", location="TENSORBOARD_CONFIG_FILE_PATH")
        if value is None:
            return None
        fields = Fields(_lower_keys(value), place, self.problems)
        return TensorboardConfig(
            local_path=fields.text("localpath") or f"{self.paths.output}/tensorboard",
            s3_output_path=fields.text("s3outputpath"),
        )

    def debug_hook(self) -> DebugHookConfig | None:
        """debughookconfig.json, None where it is absent; the names' case does not matter."""
        value, place = self.json("debughookconfig.json", location="SMDEBUG_CONFIG_FILE_PATH")
        if value is None:
            return None
        fields = Fields(_lower_keys(value), place, self.problems)
        collections = fields.items("collectionconfigurations")
        for number, item in enumerate(collections):
            Fields(item, place, self.problems, f"CollectionConfigurations[{number}]")  # notes what is not an object
        return DebugHookConfig(
            local_path=fields.text("localpath") or f"{self.paths.output}/tensors",
            s3_output_path=fields.text("s3outputpath"),
            hook_parameters=fields.mapping("hookparameters"),
            collections=tuple(item for item in collections if isinstance(item, dict)),
        )

    def profiler(self) -> ProfilerConfig | None:
        """profilerconfig.json, None where it is absent; values may be strings, the names' case does not matter."""
        value, place = self.json("profilerconfig.json")
        if value is None:
            return None
        fields = Fields(_lower_keys(value), place, self.problems)
        parameters = fields.mapping("profilingparameters")
        lower = _lower_keys(parameters)
        enabled = str(lower.get("profilerenabled", True)).lower() not in ("false", "0")
        path = str(lower.get("localpath") or self.paths.profiler)
        if not path.startswith("/"):
            fields.problem("LocalPath", path, "must be an absolute path")
        enabled = enabled and str(fields.values.get("disableprofiler", False)).lower() not in ("true", "1")
        from .framework_profile import framework_profile

        traced, vain = framework_profile(parameters) if enabled else (None, "")
        if vain:
            self.warnings.append(f"{place}: {one_line(vain)}")
        return ProfilerConfig(
            local_path=path,
            enabled=enabled,
            interval=self._profiling_interval(fields.values.get("profilingintervalinmilliseconds"), place),
            parameters=parameters,
            traced=traced,
        )

    def _profiling_interval(self, value: Any, place: str) -> float:
        """In seconds; 0 with a warning for a value that cannot be meant."""
        if value in (None, ""):
            return 0.0
        text = str(value)
        if text.isdecimal() and 100 <= int(text[:9]) <= 60_000:
            return int(text) / 1000
        self.warnings.append(
            f"{place}: ProfilingIntervalInMilliseconds = {one_line(text[:40])} is ignored: it must be from 100 to 60000"
        )
        return 0.0

    def _require_a_job(self) -> None:
        paths = self.paths
        named = any(self.environ.get(name) for name in _SIGNS_OF_A_JOB)
        if named or os.path.isdir(paths.config) or _has_entries(paths.code) or _has_entries(f"{paths.input_data}/code"):
            return
        if _is_forbidden(paths.base):  # what is in it only seems not to be there
            user = f"is closed to this user (uid {os.geteuid()})"
            raise JobError([Problem(paths.base, user, suggestion="chown it to this user, or run as its owner: --user UID")])
        raise NoJobError(f"there is no job: {paths.config} does not exist and {paths.code} holds no program")

    def _json_of_variable(self, name: str, **options: Any) -> Any:
        return parse_json(self.environ[name].encode("utf-8", "replace"), f"variable {name}", self.problems, **options)

    def _resource_variables(self) -> dict[str, Any] | None:
        """The fields of resourceconfig.json from SM_HOSTS, SM_CURRENT_HOST and their like; None where none is set."""
        values: dict[str, Any] = {
            field: self.environ[name] for field, name in _RESOURCE_VARIABLES.items() if self.environ.get(name)
        }
        hosts = self.environ.get("SM_HOSTS", "")
        if hosts.lstrip().startswith("["):
            values["hosts"] = self._json_of_variable("SM_HOSTS")
        elif hosts:
            values["hosts"] = [host.strip() for host in hosts.split(",") if host.strip()]
        return values if "hosts" in values or "current_host" in values else None

    def _instance_groups(self, resources: Fields, hosts: tuple[str, ...]) -> tuple[InstanceGroup, ...]:
        groups = []
        for number, item in enumerate(resources.items("instance_groups")):
            fields = Fields(item, resources.file, self.problems, f"instance_groups[{number}].")
            name, members = fields.text("instance_group_name"), fields.texts("hosts")
            strangers = [host for host in members if host not in hosts]
            if not name:
                fields.problem("instance_group_name", None, "is missing")
            if strangers:
                near = did_you_mean(strangers[0], hosts)
                fields.problem("hosts", strangers[0], "is not among the hosts of the job", near)
            groups.append(InstanceGroup(name=name, instance_type=fields.text("instance_type"), hosts=members))
        return tuple(groups)

    def _named_channels(self, value: Any, place: str) -> list[Channel]:
        """The channels of inputdataconfig.json."""
        config = Fields(value, place, self.problems)
        channels = []
        for name in sorted(config.values):
            if not is_channel_name(name) or name in (".", ".."):
                config.problem(name, None, "is not a valid channel name: up to 64 letters, digits, '.', '_' and '-'")
                continue
            fields = Fields(config.values[name], place, self.problems, f"{name}.")
            channels.append(
                Channel(
                    name=name,
                    path=f"{self.paths.input_data}/{name}",
                    input_mode=fields.choice("TrainingInputMode", INPUT_MODES, "File"),
                    content_type=fields.text("ContentType"),
                    distribution=fields.choice(
                        "S3DistributionType", ("FullyReplicated", "ShardedByS3Key"), "FullyReplicated"
                    ),
                    record_wrapper=fields.choice("RecordWrapperType", ("None", "RecordIO"), "None"),
                    compression=fields.choice("CompressionType", ("None", "Gzip"), "None"),
                )
            )
        return channels

    def _unnamed_channels(self, folders: list[str]) -> list[Channel]:
        """The channels of a job without inputdataconfig.json: those of variables, and the folders that are there."""
        prefix = "SM_CHANNEL_"
        paths = {
            name[len(prefix) :].lower(): path
            for name, path in self.environ.items()
            if name.startswith(prefix) and name != prefix and path
        }
        paths.update({name: f"{self.paths.input_data}/{name}" for name in folders if is_channel_name(name)})
        return [Channel(name=name, path=path) for name, path in sorted(paths.items())]

    def _located(self, channel: Channel, folders: list[str]) -> Channel:
        """The channel with its manifest, if it has one; warns where its folder is absent."""
        manifest = f"{self.paths.input_data}/{channel.name}-manifest"
        if os.path.exists(manifest):
            channel = channel.replace(manifest=manifest)
        if channel.input_mode != "Pipe" and not os.path.exists(channel.path):
            near = did_you_mean(channel.name, folders)
            suggestion = f" ({near})" if near else ""
            self.warnings.append(f"channel {channel.name!r}: {channel.path} does not exist{suggestion}")
        return channel

    def _metric_definition(self, item: Any, place: str, number: int) -> MetricDefinition | None:
        fields = Fields(item, place, self.problems, f"[{number}].")
        name, regex = fields.text("Name"), fields.text("Regex")
        if not name or not regex:
            fields.problem("Name" if not name else "Regex", None, "is missing")
            return None
        import re

        from trainshed.base.patterns import compiled

        try:
            compiled(regex)
        except (re.error, RecursionError, OverflowError) as error:
            self.warnings.append(f"metric {name!r}: ignored, because Python cannot compile its regex: {error}")
            return None
        return MetricDefinition(name=name, regex=regex)


def _as_it_is(value: Any) -> Any:
    """A field that is only handed on, whatever its shape; () for none, and for text that a process cannot be given."""
    return () if not value or (isinstance(value, str) and not printable(value)) else value


def _has_entries(folder: str) -> bool:
    try:
        return any(True for _ in os.scandir(folder))
    except OSError:
        return False


def _is_forbidden(folder: str) -> bool:
    """Whether a folder is there, and this user may not look into it."""
    try:
        os.listdir(folder)
    except PermissionError:
        return True
    except OSError:
        pass
    return False


def _lower_keys(value: Any) -> Any:
    return {str(key).lower(): item for key, item in value.items()} if isinstance(value, dict) else value
