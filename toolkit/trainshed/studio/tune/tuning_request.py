"""A CreateHyperParameterTuningJob request of Amazon SageMaker as a tuning file: its fields under the names that we read.

Names and meanings are those of the API's model (botocore, `sagemaker`, 2017-07-24). What has no meaning on this
machine is left aside and named in a note; what would need the service is refused.
"""

from __future__ import annotations

from typing import Any

from trainshed.base.errors import Problem, did_you_mean
from trainshed.runner.job.checker import Checker, entries
from trainshed.runner.job.nodes import Node, scalar
from trainshed.runner.job.request import translate

from .tuning import EPOCH

_TOP = (
    "HyperParameterTuningJobName", "HyperParameterTuningJobConfig", "TrainingJobDefinition", "TrainingJobDefinitions",
    "WarmStartConfig", "Tags", "Autotune",
)  # fmt: skip
_CONFIG = (
    "Strategy", "StrategyConfig", "HyperParameterTuningJobObjective", "ResourceLimits", "ParameterRanges",
    "TrainingJobEarlyStoppingType", "TuningJobCompletionCriteria", "RandomSeed",
)  # fmt: skip
_DEFINITION = (
    "DefinitionName", "TuningObjective", "HyperParameterRanges", "StaticHyperParameters", "AlgorithmSpecification",
    "RoleArn", "InputDataConfig", "VpcConfig", "OutputDataConfig", "ResourceConfig", "HyperParameterTuningResourceConfig",
    "StoppingCondition", "EnableNetworkIsolation", "EnableInterContainerTrafficEncryption", "EnableManagedSpotTraining",
    "CheckpointConfig", "RetryStrategy", "Environment",
)  # fmt: skip
_RANGES = ("IntegerParameterRanges", "ContinuousParameterRanges", "CategoricalParameterRanges", "AutoParameters")
_SCALES = {"Auto": "auto", "Linear": "linear", "Logarithmic": "log", "ReverseLogarithmic": "reverse_log"}
_LIMITS = {
    "MaxNumberOfTrainingJobs": "max_jobs", "MaxParallelTrainingJobs": "max_parallel_jobs",
    "MaxRuntimeInSeconds": "max_runtime_seconds",
}  # fmt: skip
_TYPES = {"IdenticalDataAndAlgorithm": "identical", "TransferLearning": "transfer"}
Nodes = dict[str, Node]


def is_tuning_request(values: Nodes) -> bool:
    """Whether a file's mapping is a CreateHyperParameterTuningJob request."""
    return "HyperParameterTuningJobConfig" in values


def translated(values: Nodes, problems: list[Problem]) -> tuple[Nodes, Nodes, dict[str, Any], tuple[str, ...]]:
    """(fields of a tuning file, fields of its job, further fields of `Job`, notes). Problems are noted with their place."""
    return _Request(values, problems).run()


class _Request:
    """One request on its way. found: fields of the tuning file so far."""

    def __init__(self, values: Nodes, problems: list[Problem]) -> None:
        self.values, self.problems = values, problems
        self.found: Nodes = {}
        self.notes: list[str] = []

    def run(self) -> tuple[Nodes, Nodes, dict[str, Any], tuple[str, ...]]:
        """See `translated`."""
        top = self.checker(self.values, "", _TOP, "CreateHyperParameterTuningJob")
        config = self.section(top, "HyperParameterTuningJobConfig", _CONFIG)
        definition = self.definition(top)
        self.put("name", top.node("HyperParameterTuningJobName"))
        if "Autotune" in self.values:
            top.problem("Autotune", "lets the service choose the ranges: give ParameterRanges", value="")
        self.search(config, definition)
        self.objective(config, definition)
        self.strategy(config)
        self.limits(config)
        self.completion(config)
        self.warm(top)
        job, extra = self.job(top, definition)
        if definition.node("AlgorithmSpecification") is None and definition.values:
            self.problems.append(Problem(top.values["HyperParameterTuningJobConfig"].where, "has no AlgorithmSpecification"))
        return self.found, job, extra, tuple(self.notes)

    def checker(self, values: Nodes, prefix: str, known: tuple[str, ...], what: str) -> Checker:
        """The fields of a structure of the API; one that it does not have is a problem."""
        made = Checker(values, self.problems, prefix)
        for name in values:
            if name not in known:
                near = did_you_mean(name, known) or f"known: {', '.join(known)}"
                made.problem(name, f"is not a field of {what}", near, value="")
        return made

    def section(self, outer: Checker, name: str, known: tuple[str, ...]) -> Checker:
        """A field that holds fields."""
        return self.checker(outer.mapping(name), f"{outer.prefix}{name}.", known, name)

    def put(self, name: str, node: Node | None) -> None:
        """Sets a field of the tuning file, where the request has it."""
        if node is not None:
            self.found[name] = node

    def definition(self, top: Checker) -> Checker:
        """The only training job definition."""
        several = top.node("TrainingJobDefinitions")
        one = top.node("TrainingJobDefinition")
        if several is not None and len(entries(several)) == 1 and one is None:
            one = entries(several)[0]
        elif several is not None:
            hint = "make a tuning job of each definition"
            top.problem("TrainingJobDefinitions", "several definitions cannot be tuned together here", hint, value="")
        if one is None or not isinstance(one.value, dict):
            if several is None:
                where = self.values["HyperParameterTuningJobConfig"].where
                self.problems.append(Problem(where, "there is no TrainingJobDefinition beside it"))
            return Checker({}, self.problems, "TrainingJobDefinition.")
        return self.checker(one.value, "TrainingJobDefinition.", _DEFINITION, "a training job definition")

    def search(self, config: Checker, definition: Checker) -> None:
        """The ranges, which are in one of two places."""
        outer, name = (config, "ParameterRanges") if config.node("ParameterRanges") else (definition, "HyperParameterRanges")
        node = outer.node(name)
        if node is None:
            where = self.values["HyperParameterTuningJobConfig"].where
            self.problems.append(Problem(where, "has no ParameterRanges: there is nothing to search"))
            return
        ranges = self.section(outer, name, _RANGES)
        search: Nodes = {}
        for kind, type_ in (("Integer", "integer"), ("Continuous", "continuous")):
            for item, fields in self.items(
                ranges, f"{kind}ParameterRanges", ("Name", "MinValue", "MaxValue", "ScalingType")
            ):
                scale = fields.choice("ScalingType", _SCALES, "Auto")
                made = {
                    "type": _text(type_, item),
                    **{end: _number(given) for end, field in (("low", "MinValue"), ("high", "MaxValue"))
                       if (given := fields.node(field)) is not None},
                    "scale": _text(_SCALES.get(scale, "auto"), fields.node("ScalingType") or item),
                }  # fmt: skip
                self.add(search, fields, Node(made, item.where, item.folder))
        for item, fields in self.items(ranges, "CategoricalParameterRanges", ("Name", "Values")):
            values = fields.node("Values")
            texts = [_text(one.text, one) for one in entries(values)] if values is not None else []
            self.add(search, fields, Node({"values": Node(texts, item.where)}, item.where))
        if entries(ranges.node("AutoParameters") or Node(None, "")):
            ranges.problem("AutoParameters", "lets the service choose the ranges: give them", value="")
        static = definition.mapping("StaticHyperParameters")
        for name in search.keys() & static.keys():
            definition.problem("StaticHyperParameters", f"{name} is searched and static at once", value="")
        self.found["search"] = Node(search, node.where, node.folder)

    def items(self, ranges: Checker, name: str, known: tuple[str, ...]) -> list[tuple[Node, Checker]]:
        """The entries of a list of ranges."""
        node = ranges.node(name)
        found = []
        for item in entries(node) if node is not None else ():
            if isinstance(item.value, dict):
                found.append((item, self.checker(item.value, f"{ranges.prefix}{name}.", known, name)))
            else:
                self.problems.append(Problem(item.where, "must be a range", f"{ranges.prefix}{name}"))
        return found

    def add(self, search: Nodes, fields: Checker, node: Node) -> None:
        """Adds a range under its name."""
        name = fields.text("Name")
        if not name or name in search:
            message = f"{name} has two ranges" if name else "has no Name"
            self.problems.append(Problem(node.where, message, fields.prefix.rstrip(".")))
        else:
            search[name] = node

    def objective(self, config: Checker, definition: Checker) -> None:
        """What is tuned for."""
        outer, name = config, "HyperParameterTuningJobObjective"
        if config.node(name) is None:
            outer, name = definition, "TuningObjective"
        node = outer.node(name)
        if node is None:
            where = self.values["HyperParameterTuningJobConfig"].where
            self.problems.append(Problem(where, "has no HyperParameterTuningJobObjective"))
            return
        fields = self.section(outer, name, ("Type", "MetricName"))
        goal = fields.choice("Type", ("Maximize", "Minimize"), "")
        made = {"metric": _text(fields.text("MetricName"), node)}
        made["goal"] = _text(goal.lower() or "minimize", node)
        if not goal and fields.node("Type") is None:
            self.problems.append(Problem(node.where, "has no Type: Maximize or Minimize", name))
        self.found["objective"] = Node(made, node.where)

    def strategy(self, config: Checker) -> None:
        """Strategy, seed, early stopping."""
        kind = config.choice("Strategy", ("Bayesian", "Random", "Grid", "Hyperband"), "")
        node = config.node("Strategy")
        where = node or self.values["HyperParameterTuningJobConfig"]
        if node is None:
            self.problems.append(Problem(where.where, "has no Strategy"))
        made = {"kind": _text(kind.lower() or "random", where)}
        if (seed := config.node("RandomSeed")) is not None:
            made["seed"] = seed
        self.found["strategy"] = Node(made, where.where)
        early: Nodes = {}
        stop = config.choice("TrainingJobEarlyStoppingType", ("Off", "Auto"), "Off")
        if stop == "Auto":
            early["kind"] = _text("median", config.values["TrainingJobEarlyStoppingType"])
        if kind == "Hyperband":
            if stop == "Auto":
                config.problem("TrainingJobEarlyStoppingType", "must be Off: Hyperband stops trials itself")
            outer = self.section(config, "StrategyConfig", ("HyperbandStrategyConfig",))
            fields = self.section(outer, "HyperbandStrategyConfig", ("MinResource", "MaxResource"))
            early = {name: given for name, field in (("min_resource", "MinResource"), ("max_resource", "MaxResource"))
                     if (given := fields.node(field)) is not None}  # fmt: skip
            early["resource"] = _text(EPOCH, where)
        if early:
            self.found["early_stopping"] = Node(early, where.where)

    def limits(self, config: Checker) -> None:
        """How much of everything."""
        fields = self.section(config, "ResourceLimits", tuple(_LIMITS))
        for field, name in _LIMITS.items():
            self.put(name, fields.node(field))

    def completion(self, config: Checker) -> None:
        """When it is good enough."""
        known = ("TargetObjectiveMetricValue", "BestObjectiveNotImproving", "ConvergenceDetected")
        fields = self.section(config, "TuningJobCompletionCriteria", known)
        made: Nodes = {}
        if (target := fields.node("TargetObjectiveMetricValue")) is not None:
            made["target"] = target
        count = self.section(fields, "BestObjectiveNotImproving", ("MaxNumberOfTrainingJobsNotImproving",))
        if (given := count.node("MaxNumberOfTrainingJobsNotImproving")) is not None:
            made["not_improving"] = given
        if fields.node("ConvergenceDetected") is not None:
            self.notes.append("ConvergenceDetected: ignored, the platform's rule is not public; not_improving is a rule")
        if made:
            self.found["completion"] = Node(made, config.values["TuningJobCompletionCriteria"].where)

    def warm(self, top: Checker) -> None:
        """Earlier tuning jobs."""
        node = top.node("WarmStartConfig")
        if node is None:
            return
        fields = self.section(top, "WarmStartConfig", ("ParentHyperParameterTuningJobs", "WarmStartType"))
        kind = fields.choice("WarmStartType", _TYPES, "IdenticalDataAndAlgorithm")
        parents = [
            _text(one.text("HyperParameterTuningJobName"), item)
            for item, one in self.items(fields, "ParentHyperParameterTuningJobs", ("HyperParameterTuningJobName",))
        ]
        made = {"parents": Node(parents, node.where, node.folder), "type": _text(_TYPES[kind], node)}
        self.found["warm_start"] = Node(made, node.where, node.folder)

    def job(self, top: Checker, definition: Checker) -> tuple[Nodes, dict[str, Any]]:
        """The definition as a CreateTrainingJob request, and that as a job file."""
        apart = {"DefinitionName", "TuningObjective", "HyperParameterRanges", "StaticHyperParameters"}
        request = {name: node for name, node in definition.values.items() if name in _DEFINITION and name not in apart}
        if not request:
            return {}, {}
        own = request.pop("HyperParameterTuningResourceConfig", None)
        if own is not None and isinstance(own.value, dict):
            if "AllocationStrategy" in own.value:
                self.notes.append("AllocationStrategy: ignored, without meaning on this machine")
            first = next(iter(entries(own.value.get("InstanceConfigs") or Node(None, ""))), None)
            chosen = first.value if first is not None and isinstance(first.value, dict) else {}
            known = ("InstanceType", "InstanceCount", "VolumeSizeInGB", "VolumeKmsKeyId")
            request["ResourceConfig"] = Node(
                {name: node for name, node in {**own.value, **chosen}.items() if name in known}, own.where
            )
        if (static := definition.node("StaticHyperParameters")) is not None:
            request["HyperParameters"] = static
        name = top.node("HyperParameterTuningJobName") or _text("tuning", self.values["HyperParameterTuningJobConfig"])
        request["TrainingJobName"] = name
        if (tags := top.node("Tags")) is not None:
            request["Tags"] = tags
        if "AlgorithmSpecification" not in request:
            return {}, {}
        return translate(request, self.problems)


def _text(text: str, beside: Node) -> Node:
    return Node(text, beside.where, beside.folder, text)


def _number(node: Node) -> Node:
    """A number that the API holds as a text."""
    return Node(scalar(node.text.strip()), node.where, node.folder, node.text)
