"""`status.json`: how a run stands, in the shape of the platform's DescribeTrainingJob, renewed at every transition.

Beside the platform's fields there is `Trainshed`: run id, runner, exit status, hosts, attempts.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from trainshed.base.disk_reserve import Room
from trainshed.base.files import write_atomic
from trainshed.base.secrets import MASK, mask_arguments, mask_leaves, mask_mapping, mask_text

from ..files.collect import Archive
from ..files.ending import Ending, RunEnd
from ..files.metrics import Metrics
from ..files.platform_files import input_data_config, shown_hyperparameters
from ..files.run import Run
from ..job.job import Job
from ..notify.telling import Telling, some_metrics
from . import identity
from .outputs import as_final_metrics, metrics_in, metrics_of

MESSAGES = {
    "Starting": "Preparing folders, code and hosts",
    "Downloading": "Fetching channels",
    "Training": "The hosts are running",
    "Interrupted": "Spot capacity was taken away",
    "Restarting": "Starting the job again",
    "Stopping": "Stopping the hosts",
    "Uploading": "Collecting what the hosts made",
    "Completed": "The job completed",
    "Failed": "The job failed",
    "Stopped": "The job was stopped",
    "MaxRuntimeExceeded": "The job was stopped: it reached its time limit",
    "MaxWaitTimeExceeded": "The job was stopped: it reached its time limit, interruptions included",
}
ENDED = ("Completed", "Failed", "Stopped")
_EVENTS = {
    "Training": "start", "Interrupted": "interruption", "Failed": "failure",
    **dict.fromkeys(("Completed", "Stopped", "MaxRuntimeExceeded", "MaxWaitTimeExceeded"), "end"),
}  # fmt: skip
LONGEST_REASON = 1024  # characters, as the platform cuts it


class StatusFile:
    """Writes `status.json`; a disk that takes no more costs the file, never the job.

    Args:
        before: the file of a run that is taken up again; its transitions and times stay. first: what it does then.
        until: how long it went on with what it did before, in seconds since 1970; None: until now.
        secrets: values that are masked in what it says.

    Attributes:
        problem: why the file is not as it should be, "" while it is.
    """

    def __init__(
        self,
        run: Run,
        now: float | None = None,
        before: dict[str, Any] | None = None,
        first: str = "Restarting",
        secrets: tuple[str, ...] = (),
        until: float | None = None,
    ) -> None:
        self.run = run
        self.secrets = secrets
        self.problem = self._planted = ""
        self.room = Room(run.folder)
        self.path = f"{run.folder}/status.json"
        before = before or {}
        self.transitions: list[dict[str, Any]] = list(before.get("SecondaryStatusTransitions") or [])
        if until is not None and self.transitions:
            self.transitions[-1].setdefault("EndTime", iso(until))
        self.telling = Telling(run.job.notify, run.name, run.folder, run.words, secrets)
        self.data: dict[str, Any] = {**described(run, secrets), "CreationTime": iso(run.started)}
        if "TrainingStartTime" in before:
            self.data["TrainingStartTime"] = before["TrainingStartTime"]
        self.data["Trainshed"] = {"RunId": run.id, "Runner": identity.mine(), **identity.of_folder(run.folder)}
        if run.job.parent is not None:
            self.data["Trainshed"]["FromRun"] = {
                "Run": run.job.parent.run, "RunId": run.job.parent.id, "ModelSha256": run.job.parent.sha256,
            }  # fmt: skip
        if run.job.tags:
            self.data["Trainshed"]["Tags"] = mask_mapping(run.job.tags, secrets)
        self.attempts: list[dict[str, Any]] = list((before.get("Trainshed") or {}).get("Attempts") or [])
        self.to(first if before else "Starting", now=now)

    def to(self, secondary: str, message: str = "", now: float | None = None, **fields: Any) -> None:
        """One transition: closes the one before, opens this one, writes the file."""
        now = time.time() if now is None else now
        if self.transitions:
            self.transitions[-1].setdefault("EndTime", iso(now))
        said = mask_text(message, self.secrets) or MESSAGES.get(secondary, "")
        entry = {"Status": secondary, "StartTime": iso(now), "StatusMessage": said}
        self.transitions.append(entry)
        status = "Stopping" if secondary == "Stopping" else "InProgress"
        event = _EVENTS.get(secondary, "")
        if event and (event != "start" or "TrainingStartTime" not in self.data):
            told = some_metrics({name: one.last for name, one in metrics_in(fields).items()})
            self.telling.tell(event, secondary, said, 0.0 if event == "start" else self.run.started, told)
        if secondary == "Training":
            self.data.setdefault("TrainingStartTime", iso(now))
        self.data |= {"TrainingJobStatus": status, "SecondaryStatus": secondary, **fields}
        self._write(now)

    def attempt(self, ending: Ending, outcome: str, now: float | None = None) -> None:
        """Notes an attempt that is over: how long the hosts ran, and what became of it."""
        now = time.time() if now is None else now
        self.attempts.append({"Seconds": round(ending.seconds, 3), "Outcome": outcome})
        self.data["Trainshed"]["Attempts"] = self.attempts
        self._write(now)

    def ended(
        self,
        verdict: RunEnd,
        ending: Ending | None,
        metrics: Metrics,
        model: str,
        archives: Iterable[Archive] = (),
        now: float | None = None,
    ) -> None:
        """The last transition.

        Args:
            metrics: what the log has told; its `final` is what all of the run has measured.
            model: path or URI of the model's archive, "" for none.
            archives: what was packed.
        """
        now = time.time() if now is None else now
        self.data["Trainshed"] |= {
            "ExitCode": verdict.exit_code,
            "FailedHost": verdict.failed_host,
            "Hosts": [
                {"Host": end.name, "ExitCode": end.code, **({"Note": mask_text(end.note, self.secrets)} if end.note else {})}
                for end in (ending.hosts if ending else ())
            ],
        }
        fields: dict[str, Any] = {"TrainingEndTime": iso(now)}
        metrics.final = metrics_of(self.run.folder, metrics.known())
        fields["FinalMetricDataList"] = as_final_metrics(metrics.final, iso(now))
        self.data["Trainshed"]["Archives"] = [
            {
                "Path": one.path,
                "Files": one.files,
                "Bytes": one.size,
                **({"Sha256": one.sha256} if one.sha256 else {}),
                **({"Problem": mask_text(one.problem, self.secrets)} if one.problem else {}),
                **({"Notes": mask_leaves(one.notes, self.secrets)} if one.notes else {}),
            }
            for one in archives
        ]
        self.data.pop("ModelArtifacts", None)  # where it was to be
        if model:
            fields["ModelArtifacts"] = {"S3ModelArtifacts": model if "://" in model else f"file://{model}"}
        if verdict.status == "Failed":
            fields["FailureReason"] = mask_text(verdict.reason, self.secrets)[:LONGEST_REASON]
        message = verdict.reason.splitlines()[0] if verdict.reason else ""
        self.look_at_rules(now=True)
        self.to(verdict.secondary, message, now, **fields)
        self.transitions[-1]["EndTime"] = iso(now)
        self.data |= {"TrainingJobStatus": verdict.status, **self._seconds()}
        self._write(now)
        self.room.free()

    def look_at_rules(self, *, now: bool = False) -> None:
        """Tells who is to be told what rules have found; now and then, or `now`."""
        self.telling.look((host.output for host in self.run.hosts), str(self.data.get("SecondaryStatus")), now=now)

    def _seconds(self) -> dict[str, int]:
        """What the platform counts of a run that is over: all from its first training on; of spot it bills what was used."""
        if not (training := trained(self.transitions)):
            return {}
        spot = self.run.job.spot
        billed = sum(one["Seconds"] for one in self.attempts) * spot.price if spot else training
        return {"TrainingTimeInSeconds": max(1, round(training)), "BillableTimeInSeconds": max(1, round(billed))}

    def _write(self, now: float) -> None:
        self.data |= {"SecondaryStatusTransitions": self.transitions, "LastModifiedTime": iso(now)}
        text = json.dumps(self.data, indent=2) + "\n"
        if os.path.islink(self.path):
            self._planted = f"{self.path} had become a link, which was not followed: it is a file again"
        try:
            try:
                write_atomic(self.path, text)
            except OSError:  # full: with the room that was kept for this it may do
                self.room.free()
                write_atomic(self.path, text)
            self.problem = self._planted
        except OSError as error:
            standing = "" if not os.path.exists(self.path) else ", and says how the run stood before"
            self.problem = f"{self.path} cannot be written: {error.strerror}{standing}"


def trained(transitions: Iterable[dict[str, Any]]) -> float:
    """Seconds from each first start of training to the end after it; what nobody watched does not count."""
    total, training = 0.0, False
    for one in transitions:
        over = _EVENTS.get(str(one.get("Status"))) in ("end", "failure")
        training = not over and (training or one.get("Status") == "Training")
        begin, end = seconds_of(one.get("StartTime")), seconds_of(one.get("EndTime"))
        if training and begin is not None and end is not None:
            total += max(0.0, end - begin)
    return total


def savings(data: dict[str, Any]) -> float | None:
    """Percent that spot saved, by the platform's formula: (1 - billable / training) * 100; None for other jobs."""
    training, billable = data.get("TrainingTimeInSeconds"), data.get("BillableTimeInSeconds")
    if not data.get("EnableManagedSpotTraining") or not training or billable is None:
        return None
    return (1 - billable / training) * 100


def described(run: Run, secrets: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields that do not change, secrets masked."""
    job = run.job
    channels = input_data_config(job.channels)
    return {
        "TrainingJobName": run.name,
        "TrainingJobArn": f"arn:aws:sagemaker:local:000000000000:training-job/{run.name}",
        "TrainingJobStatus": "InProgress",
        "SecondaryStatus": "Starting",
        "HyperParameters": shown_hyperparameters(job, secrets),
        "AlgorithmSpecification": {
            **({"TrainingImage": job.image} if job.image else {}),
            "TrainingInputMode": "File",
            "MetricDefinitions": [{"Name": name, "Regex": regex} for name, regex in job.metric_definitions],
            **({"ContainerEntrypoint": mask_leaves(job.entrypoint, secrets)} if job.entrypoint else {}),
            **({"ContainerArguments": mask_arguments(list(job.arguments), secrets)} if job.arguments else {}),
        },
        "InputDataConfig": [
            {
                "ChannelName": channel.name,
                "DataSource": {
                    "S3DataSource": {
                        "S3DataType": channel.s3_type,
                        "S3Uri": channel.path if channel.remote else f"file://{channel.path}",
                        "S3DataDistributionType": channel.distribution,
                        **({"AttributeNames": list(channel.attributes)} if channel.attributes else {}),
                        **({"InstanceGroupNames": list(channel.instance_groups)} if channel.instance_groups else {}),
                    }
                },
                "InputMode": channel.input_mode,
                "CompressionType": channel.compression,
                "RecordWrapperType": channel.record_wrapper,
                **{k: v for k, v in channels[channel.name].items() if k == "ContentType"},
            }
            for channel in job.channels
        ],
        "ModelArtifacts": {"S3ModelArtifacts": f"file://{run.artifacts}/model.tar.gz"},
        "OutputDataConfig": {"S3OutputPath": job.upload or f"file://{run.artifacts}"},
        "ResourceConfig": _resources(job),
        "StoppingCondition": {
            **({"MaxRuntimeInSeconds": math.ceil(job.max_runtime_seconds)} if job.max_runtime_seconds else {}),
            **(
                {"MaxWaitTimeInSeconds": math.ceil(job.spot.max_wait_seconds)}
                if job.spot and job.spot.max_wait_seconds
                else {}
            ),
        },
        "CheckpointConfig": {"S3Uri": f"file://{run.checkpoints}", "LocalPath": f"/opt/ml/{job.checkpoint_path}"},
        "EnableManagedSpotTraining": job.spot is not None,
        "EnableNetworkIsolation": job.network_isolation,
        **({"RetryStrategy": {"MaximumRetryAttempts": job.retries}} if job.retries else {}),
        "Environment": {**mask_mapping(job.environment, secrets), **dict.fromkeys(job.references, MASK)},
    }


def _resources(job: Job) -> dict[str, Any]:
    """Of hosts in groups their number altogether, too, for what shows it."""
    if not job.instance_groups:
        return {"InstanceType": job.instance_type, "InstanceCount": job.instances}
    groups = [
        {"InstanceType": one.instance_type, "InstanceCount": one.instances, "InstanceGroupName": one.name}
        for one in job.instance_groups
    ]
    return {"InstanceGroups": groups, "InstanceCount": job.instances}


def iso(seconds: float) -> str:
    """A time in seconds since the epoch as ISO 8601, UTC, milliseconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds * 1000) % 1000:03d}+00:00"


def seconds_of(text: object) -> float | None:
    """Seconds since the epoch of a time in a status file; None for anything else."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
