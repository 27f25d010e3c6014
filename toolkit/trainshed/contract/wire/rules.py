"""The content of the setting `rules`: which rules watch a training, with which parameters, and what they do.

    metrics                      every rule that looks at metrics and at the machine
    all                          those on tensors as well
    LossSpike, Overfit           these
    [{"rule": "Overfit", "patience": 3, "action": "stop"}, {"rule": "checks.py:loss_above", "limit": 5}]

Names and defaults are those of the platform's debugger (Amazon SageMaker Developer Guide, "List of Debugger built-in
rules"), where it has the rule; docs/rules.md says where ours judge otherwise.
"""

from __future__ import annotations

import json

from trainshed.base.errors import TrainshedError, did_you_mean
from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# Rule -> its parameters with their defaults.
ON_METRICS: dict[str, dict[str, float]] = {
    "LossNotDecreasing": {"num_steps": 10, "diff_percent": 0.1, "increase_threshold_percent": 5},
    "LossSpike": {"num_steps": 50, "threshold": 10},
    "Overfit": {"ratio_threshold": 0.1, "patience": 1},
    "Overtraining": {"patience_train": 5, "patience_validation": 10, "delta": 0.01},
    "NotFinite": {},
    "StalledTraining": {"threshold": 1800},
}
ON_MACHINE: dict[str, dict[str, float]] = {
    "CPUBottleneck": {"cpu_threshold": 90, "gpu_threshold": 10, "threshold": 50, "window": 500},
    "IOBottleneck": {"io_threshold": 50, "gpu_threshold": 70, "threshold": 50, "window": 500},
    "LowGPUUtilization": {"threshold_p95": 70, "threshold_p5": 10, "window": 500},
    "GPUMemoryIncrease": {"increase": 10, "window": 500},
    "BatchSize": {"cpu_threshold_p95": 70, "gpu_threshold_p95": 70, "gpu_memory_threshold_p95": 70, "window": 500},
    "LoadBalancing": {"threshold": 0.5, "window": 500},
    "StepOutlier": {"stddev": 5, "n_outliers": 10},
    "MaxInitializationTime": {"threshold": 20},
}
ON_TENSORS: dict[str, dict[str, float]] = {
    "VanishingGradient": {"threshold": 1e-7, "patience": 3},
    "ExplodingTensor": {},
    "WeightUpdateRatio": {"large_threshold": 10, "small_threshold": 1e-8, "patience": 3},
    "UnchangedTensor": {"patience": 3},
    "AllZero": {"patience": 3},
    "PoorWeightInitialization": {"threshold": 10, "distribution_range": 0.001},
    "DeadRelu": {"threshold_layer": 50, "patience": 2},
    "SaturatedActivation": {"threshold_layer": 50, "patience": 2},
    "ClassImbalance": {"threshold_imbalance": 10, "samples": 500},
    "RankDivergence": {},
}
GROUP = "trainshed.rules"  # packages' rules: classes like ours, whose `parameters` are those with their defaults
CATALOGUE = {**ON_METRICS, **ON_MACHINE, **ON_TENSORS}
# What a rule does when it fires. note: only keeps it. checkpoint: asks the ranks to save. stop: stops the job.
TENSOR_STEPS = 100  # optimizer steps between two looks at tensors, where nobody says
ACTIONS = ("note", "warn", "checkpoint", "stop")
_OWN = ("rule", "action", "command")


class WantedRule(Record):
    """A rule that a job asks for.

    name: one of `CATALOGUE`, one that a package adds, or `FILE.py:FUNCTION` of the user's.
    parameters: all that it has.
    action: one of `ACTIONS`.
    command: a shell command to run as well, "" for none.
    """

    name: str
    parameters: Mapping[str, Any]
    action: str = "warn"
    command: str = ""


def wanted_rules(value: object) -> list[WantedRule]:
    """The rules of a setting.

    Args:
        value: its text, or what the text holds as JSON.

    Raises:
        ValueError: it asks for what is not there; the text says for what.
    """
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"is not valid JSON: {error}") from None
    if isinstance(value, str):
        word = value.strip()
        if word in ("", "off"):
            return []
        if word in ("metrics", "all"):
            chosen = CATALOGUE if word == "all" else {**ON_METRICS, **ON_MACHINE}
            return [WantedRule(name, parameters) for name, parameters in chosen.items()]
        value = [name.strip() for name in word.split(",") if name.strip()]
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        raise ValueError("must be `metrics`, `all`, `off`, or a list of rules")
    return [_wanted(entry) for entry in value]


def looks_at_tensors(rules: list[WantedRule]) -> bool:
    """Returns whether a rule needs what only the ranks can see; so may each of a user's own."""
    return any(rule.name in ON_TENSORS or rule.name not in CATALOGUE for rule in rules)


def _wanted(entry: object) -> WantedRule:
    fields = {"rule": entry} if isinstance(entry, str) else entry
    if not isinstance(fields, dict) or not isinstance(fields.get("rule"), str):
        raise ValueError(f"{entry!r} is not a rule: it needs a name, as in {{'rule': 'Overfit'}}")
    action = fields.get("action", "warn")
    if action not in ACTIONS:
        raise ValueError(f"{action!r} is not an action; the actions are {', '.join(ACTIONS)}")
    command = fields.get("command", "")
    if not isinstance(command, str):
        raise ValueError(f"{command!r} is not a command")
    given = {name: value for name, value in fields.items() if name not in _OWN}
    name = fields["rule"]
    path, colon, function = name.rpartition(":")
    if colon and path.endswith(".py") and function.isidentifier():
        return WantedRule(name, given, action, command)
    known = {one.lower(): one for one in CATALOGUE}.get(name.replace("_", "").lower())
    parameters = dict(CATALOGUE[known] if known else _added_parameters(name))
    known = known or name
    for parameter, number in given.items():
        if parameter not in parameters:
            names = ", ".join(parameters) or "none"
            raise ValueError(f"{known} has no parameter {parameter!r}; its parameters are: {names}")
        try:
            parameters[parameter] = float(number)
        except (TypeError, ValueError):
            raise ValueError(f"{parameter} of {known} must be a number, not {number!r}") from None
    return WantedRule(known, parameters, action, command)


def added_rule(name: str) -> Any:
    """The rule that an installed package adds under a name; None where none does. Raises TrainshedError."""
    from trainshed.base.entry_points import load  # few jobs need it

    return load(GROUP, name, _is_rule, "rule")


def _added_parameters(name: str) -> Mapping[str, Any]:
    from trainshed.base.entry_points import names

    try:
        rule = added_rule(name)
    except TrainshedError as error:
        raise ValueError(error.message) from error
    if rule is None:
        near = did_you_mean(name, [*CATALOGUE, *names(GROUP)])
        raise ValueError(f"{name!r} is not a rule{near and f'; {near}'}")
    return rule.parameters  # type: ignore[no-any-return]


def _is_rule(found: object, name: str) -> bool:
    return callable(found) and isinstance(getattr(found, "parameters", None), dict)
