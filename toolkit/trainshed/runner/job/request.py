"""A CreateTrainingJob request of Amazon SageMaker as a job file: its fields under the names that `schema` reads.

Names and meanings are those of the API's model (botocore, `sagemaker`, 2017-07-24). What has no meaning on this machine
(roles, tags, networks of a cloud) is left aside and named in a note.
"""

from __future__ import annotations

import re
from typing import Any

from trainshed.base.errors import Problem, did_you_mean
from trainshed.base.reader import ascii_safe

from .checker import Checker, entries
from .nodes import Node, RawText
from .read import usable_name

JOB_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")

FIELDS = (
    "TrainingJobName", "HyperParameters", "AlgorithmSpecification", "RoleArn", "InputDataConfig", "OutputDataConfig",
    "ResourceConfig", "VpcConfig", "StoppingCondition", "Tags", "EnableNetworkIsolation",
    "EnableInterContainerTrafficEncryption", "EnableManagedSpotTraining", "CheckpointConfig", "DebugHookConfig",
    "DebugRuleConfigurations", "TensorBoardOutputConfig", "ExperimentConfig", "ProfilerConfig",
    "ProfilerRuleConfigurations", "Environment", "RetryStrategy", "RemoteDebugConfig", "InfraCheckConfig",
    "SessionChainingConfig", "ServerlessJobConfig", "MlflowConfig", "ModelPackageConfig",
)  # fmt: skip
_ASIDE = (
    "RoleArn", "VpcConfig", "Tags", "EnableInterContainerTrafficEncryption", "DebugRuleConfigurations",
    "ExperimentConfig", "ProfilerRuleConfigurations", "RemoteDebugConfig", "InfraCheckConfig",
    "SessionChainingConfig", "MlflowConfig", "ModelPackageConfig",
)  # fmt: skip
_CONFIG = {
    "DebugHookConfig": "debughookconfig.json",
    "ProfilerConfig": "profilerconfig.json",
    "TensorBoardOutputConfig": "tensorboardoutputconfig.json",
}
_LOCAL_PATHS = {"DebugHookConfig": "/opt/ml/output/tensors", "TensorBoardOutputConfig": "/opt/ml/output/tensorboard"}


def is_request(values: dict[str, Node]) -> bool:
    """Whether a file's mapping is a CreateTrainingJob request."""
    return "TrainingJobName" in values and "AlgorithmSpecification" in values


def translate(values: dict[str, Node], problems: list[Problem]) -> tuple[dict[str, Node], dict[str, Any]]:
    """(fields of a job file, further fields of `Job` by name). Problems are noted with the place they are at."""
    return _Translation(values, problems).run()


class _Translation:
    def __init__(self, values: dict[str, Node], problems: list[Problem]) -> None:
        self.values, self.problems = values, problems
        self.job: dict[str, Node] = {}
        self.extra: dict[str, Any] = {}
        self.notes: list[str] = []

    def run(self) -> tuple[dict[str, Node], dict[str, Any]]:
        top = Checker(self.values, self.problems)
        for name in self.values:
            if name not in FIELDS:
                near = did_you_mean(name, FIELDS) or "see the API's CreateTrainingJob"
                top.problem(name, "is no field of CreateTrainingJob", near, value="")
        if "ServerlessJobConfig" in self.values:
            top.problem("ServerlessJobConfig", "a serverless job has no image that could be run here", value="")
        aside = [name for name in _ASIDE if name in self.values]
        if aside:
            self.notes.append(f"{', '.join(aside)}: without meaning on this machine, left aside")
        name = top.text("TrainingJobName")
        if JOB_NAME.fullmatch(name):
            node = self.values["TrainingJobName"]
            self.extra["full_name"] = name
            self.job["name"] = Node(usable_name(name), node.where, node.folder, usable_name(name))
        else:
            top.problem("TrainingJobName", "must be 1 to 63 letters, digits and hyphens between them")
        self.algorithm(self.section("AlgorithmSpecification"))
        self.hyperparameters()
        self.channels()
        self.resources(self.section("ResourceConfig"))
        self.stopping(self.section("StoppingCondition"))
        self.places(self.section("OutputDataConfig"), self.section("CheckpointConfig"))
        self.take(self.values, "Environment", "environment")
        self.take(self.values, "EnableNetworkIsolation", "network_isolation")
        self.take(self.section("RetryStrategy", ("MaximumRetryAttempts",)), "MaximumRetryAttempts", "retries")
        self.configs()
        self.extra["notes"] = tuple(self.notes)
        return self.job, self.extra

    def section(self, name: str, known: tuple[str, ...] = ()) -> dict[str, Node]:
        """A field that holds fields."""
        checker = Checker(self.values, self.problems)
        found = checker.mapping(name)
        if known:
            Checker(found, self.problems, f"{name}.").unknown(known)
        return found

    def take(self, values: dict[str, Node], name: str, field: str) -> None:
        """A field of ours from one of theirs of the same meaning."""
        node = values.get(name)
        if node is None or node.value is None:
            return
        outer, dot, inner = field.partition(".")
        if not dot:
            self.job[outer] = node
            return
        held = self.job.get(outer)
        mapping = dict(held.value) if held is not None and isinstance(held.value, dict) else {}
        self.job[outer] = Node({**mapping, inner: node}, node.where, node.folder)

    def algorithm(self, section: dict[str, Node]) -> None:
        checker = Checker(section, self.problems, "AlgorithmSpecification.")
        checker.unknown(
            (
                "TrainingImage",
                "AlgorithmName",
                "TrainingInputMode",
                "MetricDefinitions",
                "EnableSageMakerMetricsTimeSeries",
                "ContainerEntrypoint",
                "ContainerArguments",
                "TrainingImageConfig",
            )
        )
        if checker.node("AlgorithmName") is not None:
            checker.problem("AlgorithmName", "algorithms of the service cannot be run here; name a TrainingImage")
        elif checker.node("TrainingImage") is None:
            self.problems.append(Problem(self.values["AlgorithmSpecification"].where, "names no TrainingImage"))
        self.take(section, "TrainingImage", "image")
        self.take(section, "MetricDefinitions", "metric_definitions")
        self.take(section, "ContainerEntrypoint", "entrypoint")
        self.take(section, "ContainerArguments", "arguments")
        self.mode = section.get("TrainingInputMode")

    def hyperparameters(self) -> None:
        """Strings, handed on letter by letter."""
        checker = Checker(self.values, self.problems)
        nodes = checker.mapping("HyperParameters")
        inner = Checker(nodes, self.problems, "HyperParameters.")
        raw = {}
        for name, node in nodes.items():
            if not isinstance(node.value, str):
                inner.problem(name, "must be a string, as all hyperparameters of a request are")
                continue
            raw[name] = Node(RawText(node.value), node.where, node.folder, node.text)
        if nodes:
            self.job["hyperparameters"] = Node(raw, self.values["HyperParameters"].where)

    def channels(self) -> None:
        node = self.values.get("InputDataConfig")
        if node is None or node.value is None:
            return
        if not isinstance(node.value, list):
            Checker(self.values, self.problems).problem("InputDataConfig", "must be a list of channels", value="")
            return
        channels: dict[str, Node] = {}
        for item in entries(node):
            if not isinstance(item.value, dict):
                self.problems.append(Problem(item.where, "must be a channel", "InputDataConfig"))
                continue
            checker = Checker(item.value, self.problems, "InputDataConfig.")
            checker.unknown(
                (
                    "ChannelName",
                    "DataSource",
                    "ContentType",
                    "CompressionType",
                    "RecordWrapperType",
                    "InputMode",
                    "ShuffleConfig",
                )
            )
            name = checker.text("ChannelName")
            if not name or name in channels:
                self.problems.append(
                    Problem(item.where, f"channel {name!r} is there twice" if name else "names no ChannelName")
                )
                continue
            channels[name] = Node(self.channel(item, checker), item.where, item.folder)
        self.job["channels"] = Node(channels, node.where, node.folder)

    def channel(self, item: Node, checker: Checker) -> dict[str, Node]:
        sources = checker.mapping("DataSource")
        given = Checker(sources, self.problems, "InputDataConfig.DataSource.")
        given.unknown(("S3DataSource", "FileSystemDataSource", "DatasetSource"))
        s3, files = given.mapping("S3DataSource"), given.mapping("FileSystemDataSource")
        inner = Checker(s3, self.problems, "InputDataConfig.DataSource.S3DataSource.")
        kind = inner.text("S3DataType", "S3Prefix")
        if kind not in ("S3Prefix", "ManifestFile"):
            inner.problem("S3DataType", "cannot be run here: only S3Prefix and ManifestFile can")
        path = s3.get("S3Uri") or files.get("DirectoryPath")
        if path is None:
            self.problems.append(Problem(item.where, "names neither an S3Uri nor a DirectoryPath", "InputDataConfig"))
        shuffle = checker.mapping("ShuffleConfig")
        fields = {
            "path": path,
            "s3_type": s3.get("S3DataType"),
            "distribution": s3.get("S3DataDistributionType"),
            "content_type": item.value.get("ContentType"),
            "input_mode": item.value.get("InputMode") or self.mode,
            "compression": item.value.get("CompressionType"),
            "record_wrapper": item.value.get("RecordWrapperType"),
            "shuffle_seed": shuffle.get("Seed"),
        }
        return {name: node for name, node in fields.items() if node is not None}

    def resources(self, section: dict[str, Node]) -> None:
        checker = Checker(section, self.problems, "ResourceConfig.")
        checker.unknown(
            (
                "InstanceType",
                "InstanceCount",
                "VolumeSizeInGB",
                "VolumeKmsKeyId",
                "KeepAlivePeriodInSeconds",
                "InstanceGroups",
                "TrainingPlanArn",
                "InstancePlacementConfig",
                "InstancePreferences",
                "SelectedInstanceType",
                "SelectedInstanceCount",
            )
        )
        if checker.node("InstanceGroups") is not None:
            checker.problem(
                "InstanceGroups", "hosts of one machine are all alike; give InstanceType and InstanceCount", value=""
            )
        self.take(section, "InstanceCount", "instances")
        self.extra["instance_type"] = checker.text("InstanceType", "local")

    def stopping(self, section: dict[str, Node]) -> None:
        checker = Checker(section, self.problems, "StoppingCondition.")
        checker.unknown(("MaxRuntimeInSeconds", "MaxWaitTimeInSeconds", "MaxPendingTimeInSeconds"))
        self.take(section, "MaxRuntimeInSeconds", "max_runtime_seconds")
        if Checker(self.values, self.problems).flag("EnableManagedSpotTraining"):
            self.job["spot"] = Node({}, self.values["EnableManagedSpotTraining"].where)
            self.take(section, "MaxWaitTimeInSeconds", "spot.max_wait_seconds")
        elif checker.node("MaxWaitTimeInSeconds") is not None:
            checker.problem("MaxWaitTimeInSeconds", "is for spot jobs", "set EnableManagedSpotTraining to true")

    def places(self, output: dict[str, Node], checkpoint: dict[str, Node]) -> None:
        Checker(output, self.problems, "OutputDataConfig.").unknown(("S3OutputPath", "KmsKeyId", "CompressionType"))
        self.take(output, "S3OutputPath", "output")
        checker = Checker(checkpoint, self.problems, "CheckpointConfig.")
        checker.unknown(("S3Uri", "LocalPath"))
        if checkpoint:
            self.job["checkpoints"] = Node({}, self.values["CheckpointConfig"].where)
        self.take(checkpoint, "LocalPath", "checkpoints.local_path")
        if checker.text("S3Uri").startswith("s3://"):
            self.notes.append("checkpoints stay in the run's folder; they are not copied to CheckpointConfig.S3Uri")
        else:
            self.take(checkpoint, "S3Uri", "checkpoints.folder")

    def configs(self) -> None:
        """Configuration that the platform hands on to the container as files."""
        files = {}
        for name, file in _CONFIG.items():
            section = self.section(name)
            if not section:
                continue
            plain = {ascii_safe(key): node.plain() for key, node in section.items()}
            if name in _LOCAL_PATHS:
                plain.setdefault("LocalPath", _LOCAL_PATHS[name])
            if name == "ProfilerConfig":
                plain = {"ProfilingParameters": plain.get("ProfilingParameters") or {}}
            files[file] = plain
        self.extra["config"] = files
