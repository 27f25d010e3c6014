"""The request that registers a declared program with SageMaker (`CreateAlgorithm`).

Source of the form: the service's model in botocore (`sagemaker/2017-07-24/service-2.json`).
"""

from __future__ import annotations

import math

from trainshed.base.errors import LaunchError

from .about import shown_default

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .declaration import Algorithm, ChannelDeclaration
    from .values import Hyperparameter

_TYPES = {"integer": "Integer", "number": "Continuous", "boolean": "Categorical", "categorical": "Categorical"}
_MODES = {"File": "File", "FastFile": "FastFile", "Pipe": "Pipe"}
_DIRECTIONS = {"minimize": "Minimize", "maximize": "Maximize"}
_MOST_DESCRIBED = 256  # characters
_LARGEST = 2**31 - 1  # where a program has no bound, and the service wants one


def create_algorithm(algorithm: Algorithm, image: str, instance_types: Sequence[str]) -> dict[str, Any]:
    """The request.

    Args:
        image: registry path of the image that has the program.
        instance_types: on which it trains.

    Raises:
        LaunchError: it declares no channel, and SageMaker wants one.
    """
    if not algorithm.channels:
        raise LaunchError(f"{algorithm.name} declares no channel, and SageMaker wants at least one")
    listed = [one for one in algorithm.hyperparameters.values() if _counts(one)]
    objectives = [metric for metric in algorithm.metrics.values() if metric.direction]
    specification: dict[str, Any] = {
        "TrainingImage": image,
        "SupportedHyperParameters": [_hyperparameter(one) for one in listed],
        "SupportedTrainingInstanceTypes": list(instance_types),
        "SupportsDistributedTraining": algorithm.hosts == "many",
        "MetricDefinitions": [{"Name": one.name, "Regex": one.regex} for one in algorithm.metrics.values()],
        "TrainingChannels": [_channel(one) for one in algorithm.channels.values()],
    }
    if objectives:
        specification["SupportedTuningJobObjectiveMetrics"] = [
            {"Type": _DIRECTIONS[one.direction], "MetricName": one.name} for one in objectives
        ]
    return {
        "AlgorithmName": algorithm.name.replace("_", "-").replace(".", "-")[:63],
        "AlgorithmDescription": algorithm.description[:1024],
        "TrainingSpecification": specification,
    }


def _counts(one: Hyperparameter) -> bool:
    return one.type != "folder" and not one.changes_nothing and (len(one.choices) > 1 or not one.refused)


def _hyperparameter(one: Hyperparameter) -> dict[str, Any]:
    made: dict[str, Any] = {
        "Name": one.name,
        "Description": one.help[:_MOST_DESCRIBED],
        # A number that may be a word is a text there, unless it is tuned, for which it must be a number.
        "Type": "FreeText" if one.words and not one.tunable else _TYPES.get(one.type, "FreeText"),
        "IsTunable": one.tunable is not None,
        "IsRequired": one.required,
    }
    if not one.required and one.default is not None and not (one.tunable and one.default in one.words):
        made["DefaultValue"] = shown_default(one)
    kind = made["Type"]
    if kind == "Categorical":
        made["Range"] = {"CategoricalParameterRangeSpecification": {"Values": list(one.choices or ("true", "false"))}}
    elif kind in ("Integer", "Continuous") and any(map(math.isfinite, one.range)):
        least, most = one.range
        bounds = (least if math.isfinite(least) else -_LARGEST), (most if math.isfinite(most) else _LARGEST)
        texts = [f"{bound:.0f}" if kind == "Integer" else f"{bound:g}" for bound in bounds]
        made["Range"] = {f"{kind}ParameterRangeSpecification": {"MinValue": texts[0], "MaxValue": texts[1]}}
    return made


def _channel(one: ChannelDeclaration) -> dict[str, Any]:
    return {
        "Name": one.name,
        "Description": one.help[:_MOST_DESCRIBED],
        "IsRequired": one.required,
        "SupportedContentTypes": list(one.content_types) or ["application/octet-stream"],
        "SupportedCompressionTypes": ["None"],
        "SupportedInputModes": [_MODES[mode] for mode in one.input_modes],
    }
