"""The platform's config files as typed records.

Formats: `hyperparameters.json`, `inputdataconfig.json` and `resourceconfig.json` are documented by Amazon SageMaker's
developer guide ("How Amazon SageMaker Provides Training Information"); `checkpointconfig.json`, `debughookconfig.json`,
`profilerconfig.json` and `tensorboardoutputconfig.json` are what its debugger reads. Absent files and absent fields
mean defaults. Unknown fields are kept in `raw` and otherwise ignored: the platform adds some from time to time.
"""

from __future__ import annotations

import re

from trainshed.base.errors import did_you_mean
from trainshed.base.reader import Fields
from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainshed.base.errors import Problem

INPUT_MODES = ("File", "Pipe", "FastFile")
DEFAULT_HOST = "algo-1"
DEFAULT_GROUP = "homogeneousCluster"
DEFAULT_INTERFACE = "eth0"
CHANNEL_NAME = r"[A-Za-z0-9._-]{1,64}"  # patterns are compiled by `re` when first used: most starts need none
HOST_NAME = r"[A-Za-z0-9]([A-Za-z0-9._:-]{0,252})"


class Channel(Record):
    """One input channel: a folder below input/data (File, FastFile) or FIFOs `<name>_<epoch>` beside it (Pipe)."""

    name: str
    path: str
    input_mode: str = "File"
    content_type: str = ""
    distribution: str = "FullyReplicated"
    record_wrapper: str = "None"
    compression: str = "None"
    manifest: str = ""  # path of `<name>-manifest` where there is one


class InstanceGroup(Record):
    """One group of equal hosts in a heterogeneous cluster; `hosts` in the platform's order, which is not sorted."""

    name: str
    instance_type: str = ""
    hosts: tuple[str, ...] = ()


class ResourceConfig(Record):
    """`resourceconfig.json`: who is in the job, as the platform says it."""

    current_host: str = DEFAULT_HOST
    hosts: tuple[str, ...] = (DEFAULT_HOST,)
    current_instance_type: str = "local"
    current_group_name: str = DEFAULT_GROUP
    instance_groups: tuple[InstanceGroup, ...] = ()
    network_interface_name: str = DEFAULT_INTERFACE
    topology: tuple[Any, ...] = ()
    raw: dict[str, Any] = {}  # noqa: RUF012
    given: bool = False  # whether anybody said so, or these are defaults

    def group_hosts(self, group: str) -> tuple[str, ...]:
        """The hosts of a group, () for an unknown one."""
        return next((item.hosts for item in self.instance_groups if item.name == group), ())


class CheckpointConfig(Record):
    """`checkpointconfig.json`: the folder that the platform keeps in step with an S3 prefix."""

    local_path: str
    s3_uri: str = ""


class MetricDefinition(Record):
    """One metric that the platform reads from the log: `regex` has one group, the number."""

    name: str
    regex: str


class DebugHookConfig(Record):
    """`debughookconfig.json` of the debugger."""

    local_path: str
    s3_output_path: str = ""
    hook_parameters: dict[str, Any] = {}  # noqa: RUF012
    collections: tuple[dict[str, Any], ...] = ()


class ProfilerConfig(Record):
    """`profilerconfig.json`; `parameters` keeps the platform's names."""

    local_path: str
    enabled: bool = True
    parameters: dict[str, Any] = {}  # noqa: RUF012


class TensorboardConfig(Record):
    """`tensorboardoutputconfig.json`: where event files are collected."""

    local_path: str
    s3_output_path: str = ""


def parse_channels(value: Any, file: str, input_data: str, problems: list[Problem]) -> tuple[Channel, ...]:
    """The channels of an `inputdataconfig.json` value, sorted by name; manifests are looked up by the caller."""
    fields = Fields(value, file, problems)
    channels = []
    for name in sorted(fields.values):
        if not re.fullmatch(CHANNEL_NAME, name) or name in (".", ".."):
            fields.problem(name, None, "is no channel name: up to 64 letters, digits, '.', '_' and '-'")
            continue
        one = Fields(fields.values[name], file, problems, f"{name}.")
        channels.append(
            Channel(
                name=name,
                path=f"{input_data}/{name}",
                input_mode=one.choice("TrainingInputMode", INPUT_MODES, "File"),
                content_type=one.text("ContentType"),
                distribution=one.choice("S3DistributionType", ("FullyReplicated", "ShardedByS3Key"), "FullyReplicated"),
                record_wrapper=one.choice("RecordWrapperType", ("None", "RecordIO"), "None"),
                compression=one.choice("CompressionType", ("None", "Gzip"), "None"),
            )
        )
    return tuple(channels)


def parse_resource_config(value: Any, file: str, problems: list[Problem]) -> ResourceConfig:
    """A `resourceconfig.json` value; `current_group_name` and `current_instance_group` are the same field."""
    if value is None:
        return ResourceConfig()
    before = len(problems)
    fields = Fields(value, file, problems)
    current = fields.text("current_host")
    hosts = fields.texts("hosts") or ((current,) if current else (DEFAULT_HOST,))
    current = current or hosts[0]
    for host in (*hosts, current):
        if not re.fullmatch(HOST_NAME, host):
            fields.problem("hosts" if host in hosts else "current_host", host, "is no host name")
    if current not in hosts and len(problems) == before:
        fields.problem(
            "current_host", current, f"is not among the hosts ({', '.join(hosts[:5])})", did_you_mean(current, hosts)
        )
    groups = []
    for number, item in enumerate(fields.items("instance_groups")):
        one = Fields(item, file, problems, f"instance_groups[{number}].")
        name = one.text("instance_group_name")
        members = one.texts("hosts")
        strangers = [host for host in members if host not in hosts]
        if not name:
            one.problem("instance_group_name", None, "is missing")
        if strangers:
            one.problem("hosts", strangers[0], "is not among the hosts of the job", did_you_mean(strangers[0], hosts))
        groups.append(InstanceGroup(name=name, instance_type=one.text("instance_type"), hosts=members))
    group = fields.text("current_group_name") or fields.text("current_instance_group") or DEFAULT_GROUP
    names = [item.name for item in groups]
    if groups and group not in names and len(problems) == before:
        fields.problem(
            "current_group_name", group, f"is none of the groups ({', '.join(names)})", did_you_mean(group, names)
        )
    interface = fields.text("network_interface_name") or DEFAULT_INTERFACE
    return ResourceConfig(
        current_host=current,
        hosts=hosts,
        current_instance_type=fields.text("current_instance_type") or "local",
        current_group_name=group,
        instance_groups=tuple(groups),
        network_interface_name=interface,
        topology=tuple(fields.items("topology")),
        raw=fields.values,
        given=True,
    )


def parse_checkpoint_config(value: Any, file: str, default: str, problems: list[Problem]) -> CheckpointConfig | None:
    """A `checkpointconfig.json` value, None where there is none."""
    if value is None:
        return None
    fields = Fields(value, file, problems)
    path = fields.text("LocalPath") or default
    if not path.startswith("/"):
        fields.problem("LocalPath", path, "must be an absolute path")
    return CheckpointConfig(local_path=path, s3_uri=fields.text("S3Uri"))


def parse_metric_definitions(
    value: Any, file: str, problems: list[Problem], warnings: list[str]
) -> tuple[MetricDefinition, ...]:
    """Metric definitions: a list of `{"Name", "Regex"}` as in CreateTrainingJob, or an object name -> regex.

    The platform's regexes are Java's; one that Python cannot compile is left out with a warning, not an error.
    """
    if value is None:
        return ()
    if isinstance(value, dict):
        value = [{"Name": name, "Regex": regex} for name, regex in value.items()]
    if not isinstance(value, list):
        Fields(value, file, problems)
        return ()
    definitions = []
    for number, item in enumerate(value):
        fields = Fields(item, file, problems, f"[{number}].")
        name, regex = fields.text("Name"), fields.text("Regex")
        if not name or not regex:
            fields.problem("Name" if not name else "Regex", None, "is missing")
            continue
        try:
            re.compile(regex)
        except (re.error, RecursionError, OverflowError) as error:
            warnings.append(f"metric {name!r}: its regex does not compile here and is left out: {error}")
            continue
        definitions.append(MetricDefinition(name=name, regex=regex))
    return tuple(definitions)


def _lower_keys(value: Any) -> Any:
    return {str(key).lower(): item for key, item in value.items()} if isinstance(value, dict) else value


def parse_tensorboard_config(value: Any, file: str, default: str, problems: list[Problem]) -> TensorboardConfig | None:
    """A `tensorboardoutputconfig.json` value; the names' case does not matter."""
    if value is None:
        return None
    fields = Fields(_lower_keys(value), file, problems)
    return TensorboardConfig(local_path=fields.text("localpath") or default, s3_output_path=fields.text("s3outputpath"))


def parse_debug_hook_config(value: Any, file: str, default: str, problems: list[Problem]) -> DebugHookConfig | None:
    """A `debughookconfig.json` value; the names' case does not matter."""
    if value is None:
        return None
    fields = Fields(_lower_keys(value), file, problems)
    collections = fields.items("collectionconfigurations")
    for number, item in enumerate(collections):
        Fields(item, file, problems, f"CollectionConfigurations[{number}]")
    return DebugHookConfig(
        local_path=fields.text("localpath") or default,
        s3_output_path=fields.text("s3outputpath"),
        hook_parameters=fields.mapping("hookparameters"),
        collections=tuple(item for item in collections if isinstance(item, dict)),
    )


def parse_profiler_config(value: Any, file: str, default: str, problems: list[Problem]) -> ProfilerConfig | None:
    """A `profilerconfig.json` value; values may be strings, the names' case does not matter."""
    if value is None:
        return None
    fields = Fields(_lower_keys(value), file, problems)
    parameters = fields.mapping("profilingparameters")
    lower = _lower_keys(parameters)
    return ProfilerConfig(
        local_path=str(lower.get("localpath") or default),
        enabled=str(lower.get("profilerenabled", True)).lower() not in ("false", "0"),
        parameters=parameters,
    )
