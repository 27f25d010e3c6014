"""The platform's config files as typed records; `reading.Reading` makes them.

Formats: `hyperparameters.json`, `inputdataconfig.json` and `resourceconfig.json` are documented by Amazon SageMaker's
developer guide ("How Amazon SageMaker Provides Training Information"); `checkpointconfig.json`, `debughookconfig.json`,
`profilerconfig.json` and `tensorboardoutputconfig.json` are what its debugger reads. Absent files and absent fields
mean defaults. Unknown fields are kept in `raw` and otherwise ignored: the platform adds fields from time to time.
"""

from __future__ import annotations

from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .framework_profile import TracedSteps

INPUT_MODES = ("File", "Pipe", "FastFile")
DEFAULT_HOST = "algo-1"
DEFAULT_GROUP = "homogeneousCluster"
DEFAULT_INTERFACE = "eth0"
CHANNEL_NAME = r"[A-Za-z0-9._-]{1,64}"  # patterns are compiled by `re` when first used: most starts need none
HOST_NAME = r"[A-Za-z0-9]([A-Za-z0-9._:-]{0,252})"
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
_IN_CHANNELS, _IN_HOSTS = _LETTERS.union("._-"), _LETTERS.union("._:-")


def is_channel_name(text: str) -> bool:
    """Whether a text is `CHANNEL_NAME`, without loading `re`."""
    return 0 < len(text) <= 64 and _IN_CHANNELS.issuperset(text)


def is_host_name(text: str) -> bool:
    """Whether a text is `HOST_NAME`, without loading `re`."""
    return 0 < len(text) <= 253 and text[0] in _LETTERS and _IN_HOSTS.issuperset(text)


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
    """`resourceconfig.json`: the hosts of the job according to the platform."""

    current_host: str = DEFAULT_HOST
    hosts: tuple[str, ...] = (DEFAULT_HOST,)
    current_instance_type: str = "local"
    current_group_name: str = DEFAULT_GROUP
    instance_groups: tuple[InstanceGroup, ...] = ()
    network_interface_name: str = DEFAULT_INTERFACE
    topology: Any = ()  # of any shape: handed on as it is, used by nobody here
    raw: dict[str, Any] = {}  # noqa: RUF012
    given: bool = False  # False: no file and no variable says so; these are defaults

    def group_hosts(self, group: str) -> tuple[str, ...]:
        """The hosts of a group, () for an unknown one."""
        return next((item.hosts for item in self.instance_groups if item.name == group), ())


class CheckpointConfig(Record):
    """`checkpointconfig.json`: the folder that the platform synchronises with an S3 prefix."""

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
    """`profilerconfig.json`; `parameters` keeps the platform's names.

    interval: seconds between two samples of the machine, 0 where the file does not say.
    traced: the steps that are to be recorded in detail; None for none.
    """

    local_path: str
    enabled: bool = True
    parameters: dict[str, Any] = {}  # noqa: RUF012
    interval: float = 0.0
    traced: TracedSteps | None = None


class TensorboardConfig(Record):
    """`tensorboardoutputconfig.json`: where event files are collected."""

    local_path: str
    s3_output_path: str = ""
