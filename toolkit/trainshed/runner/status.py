"""`status.json`: how a run stands, in the shape of the platform's DescribeTrainingJob, renewed at every transition.

Beside the platform's fields there is `Trainshed`: run id, runner's PID, exit status, hosts.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from trainshed.contract.files import write_atomic
from trainshed.contract.secrets import mask_mapping, mask_text

from .layout import Run
from .metrics import Metrics
from .platform_files import INSTANCE_TYPE, input_data_config
from .verdict import Verdict
from .watch import Ending

MESSAGES = {
    "Starting": "Preparing folders, code and hosts",
    "Training": "The hosts are running",
    "Stopping": "Stopping the hosts",
    "Uploading": "Collecting what the hosts made",
    "Completed": "The job completed",
    "Failed": "The job failed",
    "Stopped": "The job was stopped",
    "MaxRuntimeExceeded": "The job was stopped: its time was over",
}


class StatusFile:
    """Writes `status.json`; a disk that takes no more costs the file, never the job."""

    def __init__(self, run: Run, now: float | None = None) -> None:
        self.run = run
        self.path = f"{run.folder}/status.json"
        self.transitions: list[dict[str, Any]] = []
        self.data: dict[str, Any] = {**described(run), "CreationTime": iso(run.started)}
        self.data["Trainshed"] = {"RunId": run.id, "Pid": os.getpid(), "Folder": run.folder}
        self.to("Starting", now=now)

    def to(self, secondary: str, message: str = "", now: float | None = None, **fields: Any) -> None:
        """One transition: closes the one before, opens this one, writes the file."""
        now = time.time() if now is None else now
        if self.transitions:
            self.transitions[-1]["EndTime"] = iso(now)
        entry = {"Status": secondary, "StartTime": iso(now), "StatusMessage": message or MESSAGES.get(secondary, "")}
        self.transitions.append(entry)
        status = "Stopping" if secondary == "Stopping" else "InProgress"
        self.data |= {"TrainingJobStatus": status, "SecondaryStatus": secondary, **fields}
        self._write(now)

    def ended(self, verdict: Verdict, ending: Ending | None, metrics: Metrics, model: str, now: float | None = None) -> None:
        """The last transition. model: path of the model's archive, "" for none."""
        now = time.time() if now is None else now
        self.data["Trainshed"] |= {
            "ExitCode": verdict.exit_code,
            "FailedHost": verdict.failed_host,
            "Hosts": [
                {"Host": end.name, "ExitCode": end.code, **({"Note": end.note} if end.note else {})}
                for end in (ending.hosts if ending else ())
            ],
        }
        seconds = round(ending.seconds) if ending else 0
        fields: dict[str, Any] = {"TrainingEndTime": iso(now), "TrainingTimeInSeconds": seconds}
        fields["BillableTimeInSeconds"] = 0
        fields["FinalMetricDataList"] = [
            {"MetricName": name, "Value": _number(series.last), "Timestamp": iso(now)}
            for name, series in metrics.series.items()
        ]
        if model:
            fields["ModelArtifacts"] = {"S3ModelArtifacts": f"file://{model}"}
        if verdict.status == "Failed":
            fields["FailureReason"] = mask_text(verdict.reason)
        message = verdict.reason.splitlines()[0] if verdict.reason else ""
        self.to(verdict.secondary, mask_text(message), now, **fields)
        self.transitions[-1]["EndTime"] = iso(now)
        self.data["TrainingJobStatus"] = verdict.status
        self._write(now)

    def _write(self, now: float) -> None:
        self.data |= {"SecondaryStatusTransitions": self.transitions, "LastModifiedTime": iso(now)}
        try:
            write_atomic(self.path, json.dumps(self.data, indent=2) + "\n")
        except OSError:
            pass


def described(run: Run) -> dict[str, Any]:
    """The fields that do not change, secrets masked."""
    job = run.job
    channels = input_data_config(job)
    return {
        "TrainingJobName": run.name,
        "TrainingJobStatus": "InProgress",
        "SecondaryStatus": "Starting",
        "HyperParameters": {name: str(value) for name, value in mask_mapping(job.hyperparameters).items()},
        "AlgorithmSpecification": {
            **({"TrainingImage": job.image} if job.image else {}),
            "TrainingInputMode": "File",
            "MetricDefinitions": [{"Name": name, "Regex": regex} for name, regex in job.metric_definitions],
        },
        "InputDataConfig": [
            {
                "ChannelName": channel.name,
                "DataSource": {"FileSystemDataSource": {"DirectoryPath": channel.path}},
                "InputMode": channel.input_mode,
                **{k: v for k, v in channels[channel.name].items() if k in ("ContentType", "RecordWrapperType")},
            }
            for channel in job.channels
        ],
        "OutputDataConfig": {"S3OutputPath": f"file://{run.artifacts}"},
        "ResourceConfig": {"InstanceType": INSTANCE_TYPE, "InstanceCount": job.instances},
        "StoppingCondition": ({"MaxRuntimeInSeconds": int(job.max_runtime_seconds)} if job.max_runtime_seconds else {}),
        "CheckpointConfig": {"S3Uri": f"file://{run.checkpoints}", "LocalPath": "/opt/ml/checkpoints"},
        "Environment": mask_mapping(job.environment),
    }


def _number(value: float) -> float | str:
    return value if value == value and abs(value) != float("inf") else str(value)


def iso(seconds: float) -> str:
    """A time in seconds since the epoch as ISO 8601, UTC, milliseconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds * 1000) % 1000:03d}+00:00"
