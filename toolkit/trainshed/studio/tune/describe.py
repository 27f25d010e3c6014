"""A tuning job in the shape of the platform's DescribeHyperParameterTuningJob, and what is ours beside it in `Trainshed`.

Source: the API's model (botocore, `sagemaker`, 2017-07-24).
"""

from __future__ import annotations

import math
from typing import Any

from trainshed.runner.files.platform_files import shown_hyperparameters
from trainshed.runner.state.status import iso
from trainshed.runner.state.stored import load
from trainshed.studio.batches.folder import COMPLETED, FAILED, STOPPED

from .space import CATEGORICAL, INTEGER, LOG, REVERSE_LOG
from .trial import Trial, best_of, elapsed, front_of, since_best
from .trial_runs import run_name
from .tuner import TuningStatus
from .tuning import ASHA, BAYESIAN, GRID, HYPERBAND, IDENTICAL, MEDIAN, MINIMIZE, OFF, POPULATION, RANDOM, TuningJob
from .tuning_folder import TuningFolder

_STRATEGY = {GRID: "Grid", RANDOM: "Random", BAYESIAN: "Bayesian", HYPERBAND: "Hyperband", POPULATION: "Random"}
_ARN = "arn:aws:sagemaker:local:000000000000:"
_ROLE = "arn:aws:iam::000000000000:role/local"  # the shape asks for one


def describe(view: TuningStatus, folder: TuningFolder, status: str, reason: str, asked: dict[str, Any]) -> dict[str, Any]:
    """How it stands.

    Args:
        status, reason: of `sessions.standing`. asked: `tune.json`.
    """
    tuning, trials = view.tuning, view.trials
    created = asked.get("created")
    began = created if isinstance(created, float) else 0.0
    outcome = folder.outcome()
    last = max([began, *(max(trial.created, trial.ended) for trial in trials), float(outcome.get("ended") or 0.0)])
    best = best_of(trials, tuning.objectives)
    objective = {
        "Type": "Minimize" if tuning.objective.goal == MINIMIZE else "Maximize",
        "MetricName": tuning.objective.metric,
    }

    def count(*states: str) -> int:
        return sum(trial.state in states for trial in trials)

    found: dict[str, Any] = {
        "HyperParameterTuningJobName": tuning.name,
        "HyperParameterTuningJobArn": f"{_ARN}hyper-parameter-tuning-job/{tuning.name}",
        "HyperParameterTuningJobConfig": _config(tuning, objective),
        "TrainingJobDefinition": _definition(tuning),
        "HyperParameterTuningJobStatus": status,
        "CreationTime": iso(began),
        "LastModifiedTime": iso(last),
        "TrainingJobStatusCounters": {
            "Completed": count(COMPLETED),
            "InProgress": sum(not trial.over for trial in trials),
            "RetryableError": 0,
            "NonRetryableError": count(FAILED),
            "Stopped": count(STOPPED),
        },
        "ObjectiveStatusCounters": {
            "Succeeded": sum(trial.over and trial.value is not None for trial in trials),
            "Pending": sum(not trial.over for trial in trials),
            "Failed": sum(trial.over and trial.value is None for trial in trials),
        },
        "TuningJobCompletionDetails": {"NumberOfTrainingJobsObjectiveNotImproving": since_best(trials, tuning.objectives)},
        "ConsumedResources": {"RuntimeInSeconds": round(elapsed(trials, last))},
    }
    if status != "InProgress" and outcome:
        found["HyperParameterTuningEndTime"] = iso(float(outcome["ended"]))
    if reason and status == "Failed":
        found["FailureReason"] = reason[:1024]
    if best is not None:
        found["BestTrainingJob"] = _summary(best, tuning, folder, objective)
        found["OverallBestTrainingJob"] = {**found["BestTrainingJob"], "TuningJobName": tuning.name}
    if tuning.warm.parents:
        kind = "IdenticalDataAndAlgorithm" if tuning.warm.kind == IDENTICAL else "TransferLearning"
        parents = [{"HyperParameterTuningJobName": path.rpartition("/")[2][:32]} for path in tuning.warm.parents]
        found["WarmStartConfig"] = {"ParentHyperParameterTuningJobs": parents, "WarmStartType": kind}
    found["Trainshed"] = {
        "Folder": folder.path,
        "Tuner": folder.worker,
        "Reason": reason,
        "Objectives": [{"MetricName": one.metric, "Goal": one.goal} for one in tuning.objectives],
        "Front": [trial.number for trial in front_of(trials, tuning.objectives)],
        "Trials": [
            {**trial.plain(), "name": run_name(tuning, trial.number), "folder": folder.run(trial.number)} for trial in trials
        ],
    }
    return found


def _config(tuning: TuningJob, objective: dict[str, str]) -> dict[str, Any]:
    limits, early = tuning.limits, tuning.early
    ranges: dict[str, list[dict[str, Any]]] = {
        "IntegerParameterRanges": [], "ContinuousParameterRanges": [], "CategoricalParameterRanges": [],
    }  # fmt: skip
    for one in tuning.space:
        if one.kind == CATEGORICAL:
            values = [text for text, _ in one.categories]
            ranges["CategoricalParameterRanges"].append({"Name": one.name, "Values": values})
            continue
        scale = {LOG: "Logarithmic", REVERSE_LOG: "ReverseLogarithmic"}.get(one.scale, "Linear")
        low, high = (str(int(end)) if one.kind == INTEGER else repr(float(end)) for end in (one.low, one.high))
        ends = {"MinValue": low, "MaxValue": high, "ScalingType": scale}
        name = "IntegerParameterRanges" if one.kind == INTEGER else "ContinuousParameterRanges"
        ranges[name].append({"Name": one.name, **ends})
    completion: dict[str, Any] = {}
    if limits.target is not None:
        completion["TargetObjectiveMetricValue"] = limits.target
    if limits.not_improving:
        completion["BestObjectiveNotImproving"] = {"MaxNumberOfTrainingJobsNotImproving": limits.not_improving}
    found: dict[str, Any] = {
        "Strategy": _STRATEGY[tuning.strategy.kind],
        "HyperParameterTuningJobObjective": objective,
        "ResourceLimits": {
            "MaxParallelTrainingJobs": limits.max_parallel,
            **({"MaxNumberOfTrainingJobs": limits.max_jobs} if limits.max_jobs else {}),
            **({"MaxRuntimeInSeconds": math.ceil(limits.max_runtime)} if limits.max_runtime else {}),
        },
        "ParameterRanges": ranges,
        "TrainingJobEarlyStoppingType": "Auto" if early.kind == MEDIAN else "Off",
        "RandomSeed": tuning.strategy.seed,
    }
    if early.kind == ASHA and tuning.strategy.kind == HYPERBAND:
        found["StrategyConfig"] = {"HyperbandStrategyConfig": {"MinResource": early.least, "MaxResource": early.most}}
    if completion:
        found["TuningJobCompletionCriteria"] = completion
    assert early.kind in (OFF, MEDIAN, ASHA)
    return found


def _definition(tuning: TuningJob) -> dict[str, Any]:
    job = tuning.job
    searched = {parameter.name for parameter in tuning.space}
    static = {name: text for name, text in shown_hyperparameters(job).items() if name not in searched}
    limit = {"MaxRuntimeInSeconds": math.ceil(job.max_runtime_seconds)} if job.max_runtime_seconds else {}
    return {
        "StaticHyperParameters": static,
        "AlgorithmSpecification": {
            **({"TrainingImage": job.image} if job.image else {}),
            "TrainingInputMode": "File",
            "MetricDefinitions": [{"Name": name, "Regex": regex} for name, regex in job.metric_definitions],
        },
        "RoleArn": _ROLE,
        "OutputDataConfig": {"S3OutputPath": job.upload or "file://trials"},
        "ResourceConfig": {"InstanceType": job.instance_type, "InstanceCount": job.instances, "VolumeSizeInGB": 1},
        "StoppingCondition": limit,
        "EnableManagedSpotTraining": job.spot is not None,
        "EnableNetworkIsolation": job.network_isolation,
    }


def _summary(trial: Trial, tuning: TuningJob, folder: TuningFolder, objective: dict[str, str]) -> dict[str, Any]:
    status = load(folder.run(trial.number)).status
    name = run_name(tuning, trial.number)
    times = {key: status[key] for key in ("TrainingStartTime", "TrainingEndTime") if isinstance(status.get(key), str)}
    return {
        "TrainingJobName": name,
        "TrainingJobArn": f"{_ARN}training-job/{name}",
        "CreationTime": iso(trial.created),
        **times,
        "TrainingJobStatus": trial.state,
        "TunedHyperParameters": trial.values,
        "FinalHyperParameterTuningJobObjectiveMetric": {**objective, "Value": trial.value},
        "ObjectiveStatus": "Succeeded",
    }
