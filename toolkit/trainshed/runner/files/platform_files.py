"""The files of `input/config` as the platform writes them: pure functions from a job to JSON values."""

from __future__ import annotations

import json
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

from trainshed.base.secrets import MASK, longest_first, mask_mapping, mask_value, secret_values
from trainshed.contract.config import DEFAULT_GROUP
from trainshed.contract.distributions import DEFAULT

from ..job.encode import encode
from ..job.fields import every
from ..job.job import S3, ChannelSpec, DistributionSpec, InstanceGroupSpec, Job


def shown_hyperparameters(job: Job, secrets: tuple[str, ...] = ()) -> dict[str, str]:
    """The job's own hyperparameters as the platform holds them; their secrets and the given ones are masked."""
    hidden = longest_first({*secrets, *secret_values(job.hyperparameters)})
    masked = mask_mapping(job.hyperparameters, hidden)
    return {
        name: MASK if masked[name] == MASK else str(mask_value(encode(value), hidden))
        for name, value in job.hyperparameters.items()
    }


def config_files(job: Job, run_name: str, host: str, base: str, interface: str) -> dict[str, Any]:
    """File name -> JSON value for one host.

    Args:
        base: what /opt/ml is for this host.
        interface: network interface that leads to the other hosts.
    """
    files: dict[str, Any] = {
        "hyperparameters.json": hyperparameters(job, run_name, base),
        "inputdataconfig.json": input_data_config(job.channels_of(host)),
        "resourceconfig.json": resource_config(job, host, interface),
    }
    if job.checkpoints or job.checkpoint_path != "checkpoints":
        files["checkpointconfig.json"] = {"LocalPath": f"{base}/{job.checkpoint_path}"}
    if job.metric_definitions:
        files["metric-definition-regex.json"] = [{"Name": name, "Regex": regex} for name, regex in job.metric_definitions]
    return {**files, **job.config}


def hyperparameters(job: Job, run_name: str, base: str) -> dict[str, str]:
    """Returns what the platform and `train` need to know, then the user's, who may say otherwise."""
    reserved: dict[str, Any] = {
        "sagemaker_program": job.program,
        "sagemaker_submit_directory": code_for(job, base),
        "sagemaker_container_log_level": 20,
        "sagemaker_job_name": run_name,
        **_distribution(job.distribution),
        **job.compiler,
        **_settings(job),
        "trainshed_checkpoint": "auto" if job.checkpoint_auto else "",
    }
    given = {name: value for name, value in reserved.items() if value != ""}
    return {name: encode(value) for name, value in {**given, **job.hyperparameters}.items()}


def _distribution(distribution: DistributionSpec) -> dict[str, Any]:
    """Which distribution, with its parameters; Amazon's library is asked for as the SDK does it."""
    if distribution.mpi:
        return {
            "sagemaker_mpi_enabled": True,
            "sagemaker_mpi_custom_mpi_options": distribution.mpi_options,
            "mp_parameters": distribution.parameters,
        }
    if distribution.traits.flag:
        groups = list(distribution.instance_groups) or ""
        return {distribution.traits.flag: True, "sagemaker_distribution_instance_groups": groups}
    if distribution.for_amazons_library and "parameters" not in distribution.traits.takes:
        return {"sagemaker_distributed_dataparallel_enabled": True}
    name = "mp_parameters" if distribution.for_amazons_library else "trainshed_pipeline"
    return {
        "sagemaker_distribution_instance_groups": list(distribution.instance_groups) or "",
        "trainshed_distribution": distribution.kind if distribution.kind != DEFAULT else "",
        name: distribution.parameters or "",
    }


def code_for(job: Job, base: str) -> str:
    """Says where `train` finds the code: copied to /opt/ml/code, or on S3, which it fetches itself."""
    return job.source_dir if job.source_dir.startswith(S3) else f"{base}/code" if job.source_dir else ""


def _settings(job: Job) -> dict[str, Any]:
    """Settings of `train`, by name, from the job's fields that have one and are not at their default."""
    given = {}
    for _, row in every():
        if not row.setting or not row.attribute:
            continue
        value = attrgetter(row.attribute)(job)
        if value != row.default:
            given[row.setting] = int(value) if isinstance(value, float) and value.is_integer() else value
    return given


def input_data_config(channels: Iterable[ChannelSpec]) -> dict[str, dict[str, Any]]:
    """One object a channel."""
    return {
        channel.name: {
            **({"ContentType": channel.content_type} if channel.content_type else {}),
            "TrainingInputMode": channel.input_mode,
            "S3DistributionType": channel.distribution,
            "RecordWrapperType": channel.record_wrapper,
            **({"CompressionType": channel.compression} if channel.compression != "None" else {}),
            # The platform does not say them; trainshed.data groups records by them.
            **({"AttributeNames": list(channel.attributes)} if channel.attributes else {}),
        }
        for channel in channels
    }


def resource_config(job: Job, host: str, interface: str) -> dict[str, Any]:
    """resourceconfig.json of one host."""
    hosts = list(job.hosts)
    groups = job.instance_groups or (InstanceGroupSpec(DEFAULT_GROUP, job.instances, job.instance_type),)
    own = job.group_of(host) or groups[0]
    return {
        "current_host": host,
        "current_instance_type": own.instance_type,
        "current_group_name": own.name,
        "hosts": hosts,
        "instance_groups": [
            {
                "instance_group_name": one.name,
                "instance_type": one.instance_type,
                "hosts": list(job.group_hosts(one.name)) or hosts,
            }
            for one in groups
        ],
        "network_interface_name": interface,
    }


def to_json(value: Any) -> str:
    """The text of a config file."""
    return json.dumps(value, indent=2) + "\n"
