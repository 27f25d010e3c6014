"""A job as a CreateTrainingJob request of Amazon SageMaker (API of 2017-07-24, as botocore's model of `sagemaker` has it).

The platform brings data, code and results by S3, so what lies on this machine must have an address there.
"""

from __future__ import annotations

import math
import re
from typing import Any

from trainshed.base.secrets import is_secret_name
from trainshed.contract.paths import DEFAULT_BASE
from trainshed.runner.files.platform_files import hyperparameters
from trainshed.runner.job.job import Job
from trainshed.runner.job.places import SAGEMAKER

from .disclosure import disclosed, disclosures, secret_variables
from .target import PlaceFields

DEFAULT_RUNTIME = 86_400
DEFAULT_VOLUME = 30  # GB
# The service's own limits.
LONGEST_KEEP_ALIVE = 21_600  # seconds
LONGEST_VALUE, LONGEST_VARIABLE, MOST_HYPERPARAMETERS, MOST_VARIABLES = 2500, 512, 100, 100
_ROLE = re.compile(r"arn:aws[a-z\-]*:iam::\d{12}:role/?[a-zA-Z_0-9+=,.@\-_/]+")


def request(job: Job) -> tuple[dict[str, Any], list[str]]:
    """(the request, what the user should know).

    Raises:
        JobError: the job lacks something that the platform needs; holds every problem.
    """
    place = PlaceFields(job, SAGEMAKER, SAGEMAKER.known)
    notes: list[str] = []
    uri = _uris(place)
    code, output = uri("code"), uri("output")
    role = place.get("role", str, "")
    if not _ROLE.fullmatch(role):
        place.problem("role", "must be the ARN of the role that runs the job")
    if not job.image:
        place.problem("job.image", "is missing: set the image's address in ECR")
    if not output:
        place.problem("output", "must be an s3:// address for the model")
    if job.source_dir and not code:
        hint = "`trainshed export sagemaker --code code.tar.gz` packs the code; copy the file to S3 and set its address here"
        place.problem("code", "must be the s3:// address of the packed code", hint)
    spot = place.get("spot", bool, False)
    runtime = math.ceil(job.max_runtime_seconds) or DEFAULT_RUNTIME
    made: dict[str, Any] = {
        "TrainingJobName": job.name,
        "AlgorithmSpecification": {"TrainingImage": job.image, "TrainingInputMode": "File"},
        "RoleArn": role,
        "HyperParameters": _hyperparameters(job, place, code),
        "OutputDataConfig": {"S3OutputPath": output},
        "ResourceConfig": {**_hosts(job, place), "VolumeSizeInGB": place.get("volume_gb", int, DEFAULT_VOLUME)},
        "StoppingCondition": {"MaxRuntimeInSeconds": runtime},
    }
    if job.metric_definitions:
        definitions = [{"Name": name, "Regex": regex} for name, regex in job.metric_definitions]
        made["AlgorithmSpecification"]["MetricDefinitions"] = definitions
    channels = _channels(job, place)
    if channels:
        made["InputDataConfig"] = channels
    variables = _environment(job, place, notes)
    if variables:
        made["Environment"] = variables
    checkpoints = uri("checkpoints")
    if checkpoints:
        made["CheckpointConfig"] = {"S3Uri": checkpoints, "LocalPath": f"{DEFAULT_BASE}/checkpoints"}
    if spot:
        made["EnableManagedSpotTraining"] = True
        wait = place.get("max_wait_seconds", int, 2 * runtime)
        made["StoppingCondition"]["MaxWaitTimeInSeconds"] = wait
        if wait < runtime:
            place.problem("max_wait_seconds", f"must be at least the job's own time, {runtime}")
        if not checkpoints:
            notes.append("sagemaker.checkpoints is not set: after an interruption the job starts from the beginning")
    keep_alive = place.get("keep_alive_seconds", int, 0 if job.instance_groups else int(job.keep_alive))
    if job.keep_alive and job.instance_groups:
        notes.append("keep_alive is left out: the platform keeps hosts of one kind alone, and the job has instance_groups")
    if keep_alive:
        if job.instance_groups:  # the API refuses it
            place.problem("keep_alive_seconds", "is for hosts of one kind; the job has instance_groups")
        if keep_alive > LONGEST_KEEP_ALIVE:
            place.problem("keep_alive_seconds", f"is {keep_alive}, and the platform allows {LONGEST_KEEP_ALIVE}")
        made["ResourceConfig"]["KeepAlivePeriodInSeconds"] = keep_alive
    subnets, groups = place.get("subnets", list, []), place.get("security_groups", list, [])
    if bool(subnets) != bool(groups):
        place.problem("subnets", "and security_groups must be set together")
    elif subnets:
        made["VpcConfig"] = {"Subnets": subnets, "SecurityGroupIds": groups}
    tags = {**job.tags, **place.get("tags", dict, {})}
    if tags:
        made["Tags"] = [{"Key": key, "Value": str(value)} for key, value in tags.items()]
    for field, name in (
        ("encrypt_traffic", "EnableInterContainerTrafficEncryption"),
        ("network_isolation", "EnableNetworkIsolation"),
    ):
        if place.get(field, bool, False):
            made[name] = True
    if job.grace_seconds > 110:
        notes.append("grace_seconds: the platform itself kills after 120 s")
    if not place.problems:
        for where in disclosures({name: value for name, value in made.items() if name != "HyperParameters"}, job):
            place.problem(where, "would hold a secret in the clear")
    place.done()
    return made, notes


def _missing(place: PlaceFields, field: str, what: str) -> str:
    place.problem(field, f"is missing: {what}")
    return ""


def _uris(place: PlaceFields) -> Any:
    def uri(field: str) -> str:
        value: str = place.get(field, str, "")
        if value and not value.startswith("s3://"):
            place.problem(field, "must be an s3:// address")
            return ""
        return value

    return uri


def _hyperparameters(job: Job, place: PlaceFields, code: str) -> dict[str, str]:
    values = hyperparameters(job, job.name, DEFAULT_BASE)
    values.pop("sagemaker_job_name", None)  # the platform's own
    if job.source_dir:
        values["sagemaker_submit_directory"] = f'"{code}"'
    secret = disclosed(values, job)
    for name, value in values.items():
        if name in secret:
            what = "looks like a secret" if is_secret_name(name) else "holds what looks like a secret"
            place.problem(
                f"job.hyperparameters.{name}",
                f"{what}, and hyperparameters are readable for everybody in the account",
            )
        if len(value) > LONGEST_VALUE:
            place.problem(f"job.hyperparameters.{name}", f"has {len(value)} characters; {LONGEST_VALUE} are allowed")
    if len(values) > MOST_HYPERPARAMETERS:
        place.problem("job.hyperparameters", f"are {len(values)} with ours; {MOST_HYPERPARAMETERS} are allowed")
    return values


def _environment(job: Job, place: PlaceFields, notes: list[str]) -> dict[str, str]:
    secrets = secret_variables(job)
    if secrets:
        notes.append(
            f"left out, because a request must not contain secrets: {', '.join(secrets)}; "
            "let the script read them from Secrets Manager"
        )
    kept = {name: value for name, value in job.environment.items() if name not in secrets}
    for name, value in kept.items():
        if len(value) > LONGEST_VARIABLE:
            place.problem(f"job.environment.{name}", f"has {len(value)} characters; {LONGEST_VARIABLE} are allowed")
    if len(kept) > MOST_VARIABLES:
        place.problem("job.environment", f"are {len(kept)} variables; {MOST_VARIABLES} are allowed")
    return kept


def _hosts(job: Job, place: PlaceFields) -> dict[str, Any]:
    """Hosts of one kind, or of several in groups, each with its type."""
    kind = place.get("instance_type", str, "")
    if not job.instance_groups:
        kind = kind or _missing(place, "instance_type", "e.g. ml.g5.2xlarge")
        return {"InstanceType": kind, "InstanceCount": job.instances}
    if kind:
        place.problem("instance_type", "is for hosts of one kind; each of the job's instance_groups has its own")
    groups = []
    for one in job.instance_groups:
        if not one.instance_type.startswith("ml."):
            place.problem(
                f"job.instance_groups.{one.name}.instance_type", "must be a type of the platform, like ml.g5.2xlarge"
            )
        groups.append({"InstanceType": one.instance_type, "InstanceCount": one.instances, "InstanceGroupName": one.name})
    return {"InstanceGroups": groups}


def _channels(job: Job, place: PlaceFields) -> list[dict[str, Any]]:
    given = place.get("channels", dict, {})
    for name in given:
        if name not in [channel.name for channel in job.channels]:
            place.problem(f"channels.{name}", "is not a channel of the job")
    made = []
    for channel in job.channels:
        address = given.get(channel.name) or (channel.path if channel.path.startswith("s3://") else "")
        if not isinstance(address, str) or not address.startswith("s3://"):
            place.problem(f"channels.{channel.name}", "must be the s3:// address of the channel's data")
            continue
        source: dict[str, Any] = {"S3DataType": "S3Prefix", "S3Uri": address, "S3DataDistributionType": "FullyReplicated"}
        if channel.instance_groups:
            source["InstanceGroupNames"] = list(channel.instance_groups)
        entry: dict[str, Any] = {
            "ChannelName": channel.name,
            "DataSource": {"S3DataSource": source},
            "InputMode": channel.input_mode,
        }
        if channel.content_type:
            entry["ContentType"] = channel.content_type
        made.append(entry)
    return made
