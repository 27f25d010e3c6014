"""A CreateTrainingJob request of Amazon SageMaker as a job file: its fields under the names that `schema` reads.

Names and meanings are those of the API's model (botocore, `sagemaker`, 2017-07-24). What has no meaning on this machine
(roles, networks of a cloud) is left aside and named in a note.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from trainshed.base.errors import JobError, Problem, did_you_mean
from trainshed.base.reader import ascii_safe

from .checker import Checker, entries
from .field_parsers import usable_name
from .fields import CHANNEL, FIELDS, every
from .foreign import refuse_foreign, refuse_manifests
from .job import S3
from .nodes import Node, RawText

JOB_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")

REQUEST_FIELDS = (
    "TrainingJobName", "HyperParameters", "AlgorithmSpecification", "RoleArn", "InputDataConfig", "OutputDataConfig",
    "ResourceConfig", "VpcConfig", "StoppingCondition", "Tags", "EnableNetworkIsolation",
    "EnableInterContainerTrafficEncryption", "EnableManagedSpotTraining", "CheckpointConfig", "DebugHookConfig",
    "DebugRuleConfigurations", "TensorBoardOutputConfig", "ExperimentConfig", "ProfilerConfig",
    "ProfilerRuleConfigurations", "Environment", "RetryStrategy", "RemoteDebugConfig", "InfraCheckConfig",
    "SessionChainingConfig", "ServerlessJobConfig", "MlflowConfig", "ModelPackageConfig",
)  # fmt: skip
_ASIDE = (
    "RoleArn", "VpcConfig", "EnableInterContainerTrafficEncryption", "DebugRuleConfigurations",
    "ExperimentConfig", "ProfilerRuleConfigurations", "RemoteDebugConfig", "InfraCheckConfig",
    "SessionChainingConfig", "ModelPackageConfig",
)  # fmt: skip
_CONFIG = {
    "DebugHookConfig": "debughookconfig.json",
    "ProfilerConfig": "profilerconfig.json",
    "TensorBoardOutputConfig": "tensorboardoutputconfig.json",
}
_LOCAL_PATHS = {"DebugHookConfig": "/opt/ml/output/tensors", "TensorBoardOutputConfig": "/opt/ml/output/tensorboard"}
# Where a section may hold fields; those of `_CONFIG` are handed on whatever they hold.
_SECTIONS = {
    "AlgorithmSpecification": (
        "TrainingImage", "AlgorithmName", "TrainingInputMode", "MetricDefinitions",
        "EnableSageMakerMetricsTimeSeries", "ContainerEntrypoint", "ContainerArguments", "TrainingImageConfig",
    ),
    "ResourceConfig": (
        "InstanceType", "InstanceCount", "VolumeSizeInGB", "VolumeKmsKeyId", "KeepAlivePeriodInSeconds",
        "InstanceGroups", "TrainingPlanArn", "InstancePlacementConfig", "InstancePreferences",
        "SelectedInstanceType", "SelectedInstanceCount",
    ),
    "StoppingCondition": ("MaxRuntimeInSeconds", "MaxWaitTimeInSeconds", "MaxPendingTimeInSeconds"),
    "OutputDataConfig": ("S3OutputPath", "KmsKeyId", "CompressionType"),
    "CheckpointConfig": ("S3Uri", "LocalPath"),
    "RetryStrategy": ("MaximumRetryAttempts",),
    "MlflowConfig": ("MlflowResourceArn", "MlflowExperimentName", "MlflowRunName"),
}  # fmt: skip
# Fields of `MlflowConfig`, and the variables by which MLflow knows them. An address in `Environment` stands for the ARN,
# which only Amazon's plugin (sagemaker-mlflow) can reach.
_MLFLOW = {
    "MlflowResourceArn": "MLFLOW_TRACKING_URI",
    "MlflowExperimentName": "MLFLOW_EXPERIMENT_NAME",
    "MlflowRunName": "MLFLOW_RUN_NAME",
}
_S3_TYPES = {row.name: row for row in CHANNEL}["s3_type"].choices
_CHANNEL = (
    "ChannelName", "DataSource", "ContentType", "CompressionType", "RecordWrapperType", "InputMode", "ShuffleConfig",
)  # fmt: skip
_GROUP = {"InstanceGroupName": "", "InstanceType": "instance_type", "InstanceCount": "instances"}
# Fields that a request writes in another form: their methods translate them.
_OTHER_MEANING = ("hyperparameters", "channels", "instance_groups", "spot", "spot.max_wait_seconds", "checkpoints.folder")


def is_job_file(word: str) -> bool:
    """Whether a word that names what runs is a job file; another one is a program."""
    return word.endswith((".yaml", ".yml", ".json"))


def read_file(path: str, problems: list[Problem]) -> tuple[dict[str, Node], dict[str, Any]]:
    """(fields, further fields of `Job` by name) of a job file, or of a request as a job file.

    Raises:
        JobError: the file holds no fields at all.
    """
    from .yamlfile import read_nodes

    root = read_nodes(path, problems)
    if root is None:
        refuse_manifests(path)
        raise JobError(problems)
    values = dict(root.value)
    if is_request(values):
        return translate(values, problems)
    refuse_foreign(values, path)
    return values, {}


def is_request(values: dict[str, Node]) -> bool:
    """Returns whether a file's mapping is a CreateTrainingJob request."""
    return "TrainingJobName" in values and "AlgorithmSpecification" in values


def translate(values: dict[str, Node], problems: list[Problem]) -> tuple[dict[str, Node], dict[str, Any]]:
    """(fields of a job file, further fields of `Job` by name). Problems are noted with their place."""
    return _Translation(values, problems).run()


def _same_meaning() -> Iterator[tuple[str, str]]:
    """(path in a request, field of a job file) of each field that means the same in both."""
    for field, row in every(FIELDS):
        if row.request and field not in _OTHER_MEANING:
            yield row.request, field


class _Translation:
    """One request on its way to a job file.

    values: the request's fields. job: fields of the job file found so far. extra: further fields of
    `Job`. notes: what the user should know. A field whose row in the table names its path in a
    request is taken as it is; the methods translate the others.
    """

    def __init__(self, values: dict[str, Node], problems: list[Problem]) -> None:
        self.values = values
        self.problems = problems
        self.job: dict[str, Node] = {}
        self.extra: dict[str, Any] = {}
        self.notes: list[str] = []

    def run(self) -> tuple[dict[str, Node], dict[str, Any]]:
        """See `translate`."""
        self.check_names()
        self.name()
        self.image()
        for path, field in _same_meaning():
            self.take(path, field)
        self.built_in()
        self.hyperparameters()
        self.channels()
        self.resources()
        self.spot()
        self.checkpoints()
        self.configs()
        self.mlflow()
        self.extra["notes"] = tuple(self.notes)
        return self.job, self.extra

    def check_names(self) -> None:
        """Fields that the API does not have, and those that have no meaning here."""
        top = Checker(self.values, self.problems)
        for name in self.values:
            if name not in REQUEST_FIELDS:
                near = did_you_mean(name, REQUEST_FIELDS) or "see the API's CreateTrainingJob"
                top.problem(name, "is not a field of CreateTrainingJob", near, value="")
        for name in (*_SECTIONS, *_CONFIG, "HyperParameters"):
            inner = Checker(top.mapping(name), self.problems, f"{name}.")
            inner.unknown(_SECTIONS.get(name, inner.values))
        if "ServerlessJobConfig" in self.values:
            message = "a serverless job has no image that could be run here"
            top.problem("ServerlessJobConfig", message, value="")
        aside = [name for name in _ASIDE if name in self.values]
        if aside:
            self.notes.append(f"{', '.join(aside)}: ignored, without meaning on this machine")

    def section(self, name: str) -> Checker:
        """A field that holds fields; `check_names` has noted what is wrong about it."""
        held = Checker(self.values, []).mapping(name)
        return Checker(held, self.problems, f"{name}.")

    def take(self, path: str, field: str) -> None:
        """Sets a field of the job file to the node at a path of the request, if there is one."""
        node = _at(self.values, path)
        if node is None or node.value is None:
            return
        outer, dot, inner = field.partition(".")
        if not dot:
            self.job[outer] = node
            return
        held = self.job.get(outer)
        mapping = held.value if held is not None and isinstance(held.value, dict) else {}
        self.job[outer] = Node({**mapping, inner: node}, node.where, node.folder)

    def name(self) -> None:
        """The run has the request's name; its base is the nearest name that a job file may have."""
        top = Checker(self.values, self.problems)
        name = top.text("TrainingJobName")
        if not JOB_NAME.fullmatch(name):
            message = "must be 1 to 63 letters, digits and hyphens between them"
            top.problem("TrainingJobName", message)
            return
        node = self.values["TrainingJobName"]
        self.extra["full_name"] = name
        base = usable_name(name)
        self.job["name"] = Node(base, node.where, node.folder, base)

    def image(self) -> None:
        """A job needs an image: algorithms of the service are not for us to run."""
        algorithm = self.section("AlgorithmSpecification")
        if algorithm.node("AlgorithmName") is not None:
            message = "algorithms of the service cannot be run here; name a TrainingImage"
            algorithm.problem("AlgorithmName", message)
        elif algorithm.node("TrainingImage") is None:
            where = self.values["AlgorithmSpecification"].where
            self.problems.append(Problem(where, "has no TrainingImage"))

    def built_in(self) -> None:
        """Images of the platform's own algorithms run there alone: a ready program stands in for one, or there is none."""
        from trainshed.algorithms.built_in import of_image

        node = self.job.get("image")
        one = of_image(node.value) if node is not None and isinstance(node.value, str) else None
        if node is None or one is None or self.section("HyperParameters").node("sagemaker_program") is not None:
            return
        algorithm = self.section("AlgorithmSpecification")
        if not one.same:
            instead = f"{one.program}: {one.instead}" if one.program else one.instead
            algorithm.problem("TrainingImage", f"is the platform's {one.name}, which runs there alone", f"use {instead}")
            return
        del self.job["image"]
        self.job["program"] = Node(one.program, node.where, node.folder, one.program)
        self.notes.append(
            f"TrainingImage: the platform's {one.name} runs there alone; {one.program} of trainshed does its work"
        )

    def hyperparameters(self) -> None:
        """Strings, handed on letter by letter."""
        section = self.section("HyperParameters")
        raw = {}
        for name, node in section.values.items():
            if not isinstance(node.value, str):
                message = "must be a string, as all hyperparameters of a request are"
                section.problem(name, message)
                continue
            raw[name] = Node(RawText(node.value), node.where, node.folder, node.text)
        if section.values:
            self.job["hyperparameters"] = Node(raw, self.values["HyperParameters"].where)

    def channels(self) -> None:
        """A list of channels with their names inside becomes a mapping."""
        node = self.values.get("InputDataConfig")
        if node is None or node.value is None:
            return
        if not isinstance(node.value, list):
            top = Checker(self.values, self.problems)
            top.problem("InputDataConfig", "must be a list of channels", value="")
            return
        channels: dict[str, Node] = {}
        for item in entries(node):
            if not isinstance(item.value, dict):
                self.problems.append(Problem(item.where, "must be a channel", "InputDataConfig"))
                continue
            checker = Checker(item.value, self.problems, "InputDataConfig.")
            checker.unknown(_CHANNEL)
            name = checker.text("ChannelName")
            if not name or name in channels:
                message = f"channel {name!r} is given twice" if name else "has no ChannelName"
                self.problems.append(Problem(item.where, message))
                continue
            channels[name] = Node(self.channel(item, checker), item.where, item.folder)
        self.job["channels"] = Node(channels, node.where, node.folder)

    def channel(self, item: Node, checker: Checker) -> dict[str, Node]:
        """The fields of one channel."""
        given = Checker(checker.mapping("DataSource"), self.problems, "InputDataConfig.DataSource.")
        given.unknown(("S3DataSource", "FileSystemDataSource", "DatasetSource"))
        s3, files = given.mapping("S3DataSource"), given.mapping("FileSystemDataSource")
        inner = Checker(s3, self.problems, "InputDataConfig.DataSource.S3DataSource.")
        if inner.text("S3DataType", "S3Prefix") not in _S3_TYPES:
            inner.problem("S3DataType", f"cannot be run here: only {', '.join(_S3_TYPES)} can")
        path = s3.get("S3Uri") or files.get("DirectoryPath")
        if path is None:
            message = "has neither an S3Uri nor a DirectoryPath"
            self.problems.append(Problem(item.where, message, "InputDataConfig"))
        fields = {row.name: _at(item.value, row.request) for row in CHANNEL if row.request}
        mode = self.section("AlgorithmSpecification").values.get("TrainingInputMode")
        fields["input_mode"] = fields["input_mode"] or mode
        return {name: node for name, node in {"path": path, **fields}.items() if node is not None}

    def resources(self) -> None:
        """Hosts of one kind or, in groups, of several; their types are for the record."""
        section = self.section("ResourceConfig")
        self.extra["instance_type"] = section.text("InstanceType", "local")
        node = section.node("InstanceGroups")
        if node is None:
            return
        for name in ("InstanceType", "InstanceCount"):
            if section.node(name) is not None:
                section.problem(name, "is for hosts of one kind", "leave it out: InstanceGroups has one for each group")
        groups: dict[str, Node] = {}
        if not isinstance(node.value, list) or not node.value:
            section.problem("InstanceGroups", "must be a list of groups", value="")
        for item in entries(node):
            inner = Checker(item.value if isinstance(item.value, dict) else {}, self.problems, "InstanceGroups.")
            inner.unknown(_GROUP)
            name = inner.text("InstanceGroupName")
            if not name or name in groups:
                message = f"group {name!r} is given twice" if name else "has no InstanceGroupName"
                self.problems.append(Problem(item.where, message, "ResourceConfig.InstanceGroups"))
                continue
            fields = {field: inner.node(given) for given, field in _GROUP.items() if field}
            groups[name] = Node({field: one for field, one in fields.items() if one is not None}, item.where, item.folder)
        if groups:
            self.job["instance_groups"] = Node(groups, node.where, node.folder)

    def spot(self) -> None:
        """Spot capacity, with the bound on the whole job."""
        section = self.section("StoppingCondition")
        if Checker(self.values, self.problems).flag("EnableManagedSpotTraining"):
            self.job["spot"] = Node({}, self.values["EnableManagedSpotTraining"].where)
            self.take("StoppingCondition.MaxWaitTimeInSeconds", "spot.max_wait_seconds")
        elif section.node("MaxWaitTimeInSeconds") is not None:
            hint = "set EnableManagedSpotTraining to true"
            section.problem("MaxWaitTimeInSeconds", "is for spot jobs", hint)

    def checkpoints(self) -> None:
        """The folder for checkpoints; they are not copied to S3."""
        section = self.section("CheckpointConfig")
        if not section.values:
            return
        where = self.values["CheckpointConfig"].where
        self.job.setdefault("checkpoints", Node({}, where))
        if section.text("S3Uri").startswith(S3):
            self.notes.append("checkpoints stay in the run's folder; they are not copied to CheckpointConfig.S3Uri")
        else:
            self.take("CheckpointConfig.S3Uri", "checkpoints.folder")

    def configs(self) -> None:
        """Configuration that the platform hands on to the container as files."""
        files = {}
        for name, file in _CONFIG.items():
            section = self.section(name).values
            if not section:
                continue
            plain = {ascii_safe(key): node.plain() for key, node in section.items()}
            if name in _LOCAL_PATHS:
                plain.setdefault("LocalPath", _LOCAL_PATHS[name])
            if name == "ProfilerConfig":
                plain = {"ProfilingParameters": plain.get("ProfilingParameters") or {}}
            files[file] = plain
        self.extra["config"] = files

    def mlflow(self) -> None:
        """Where the run is to be sent, as variables; those that the request has itself win."""
        section = self.section("MlflowConfig")
        if not section.values:
            return
        if not section.text("MlflowResourceArn"):
            section.problem("MlflowResourceArn", "is missing", value="")
            return
        given = self.job.get("environment")
        held = given.value if given is not None and isinstance(given.value, dict) else {}
        found = {variable: section.values[name] for name, variable in _MLFLOW.items() if name in section.values}
        self.job["environment"] = Node({**found, **held}, self.values["MlflowConfig"].where)


def _at(values: dict[str, Node], path: str) -> Node | None:
    """The node at a dotted path, None where there is none."""
    *parents, last = path.split(".")
    for name in parents:
        node = values.get(name)
        values = node.value if node is not None and isinstance(node.value, dict) else {}
    return values.get(last)
