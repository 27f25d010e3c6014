"""The environment that the user's script sees: the superset of what `sagemaker-training` and SDK v3's drivers set.

Names, types and JSON forms are theirs (recorded examples: `tests/unit/contract/golden`). Strings are set unchanged,
None as "", everything else as compact JSON with sorted keys. Names that a shell cannot parse are set twice, as Amazon's
toolkits spell them and with `_` (`SM_HP_LEARNING-RATE` and `SM_HP_LEARNING_RATE`).
"""

from __future__ import annotations

import os

from .hyperparameters import to_environment_text, variable_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .cluster import Cluster
    from .job import TrainingJob

# Linux refuses to start a program with a longer string (MAX_ARG_STRLEN, 32 pages, with the terminating NUL).
LONGEST = 131_072 - 1
# With one of these set, transformers imports Amazon's closed libraries, which are absent here.
_FOREIGN_FLAGS = ("sagemaker_distributed_dataparallel_enabled", "sagemaker_mpi_enabled")
# Reserved hyperparameters with their own field; all others are "framework parameters".
_FIELDS = frozenset(
    {
        "sagemaker_program",
        "sagemaker_submit_directory",
        "sagemaker_job_name",
        "sagemaker_region",
        "sagemaker_container_log_level",
        "sagemaker_s3_output",
        "sagemaker_enable_cloudwatch_metrics",
        "default_user_module_name",
        "_tuning_objective_metric",
    }
)


def script_environment(
    job: TrainingJob, cluster: Cluster, *, code_dir: str, entry_point: str, arguments: list[str]
) -> tuple[dict[str, str], list[str]]:
    """The SM_* variables (and the few others of the contract) for the script, and warnings about those left out.

    Args:
        code_dir: folder with the user's code; the script's working directory.
        entry_point: the program's name as the job gives it.
        arguments: the script's command line, as made from the hyperparameters.
    """
    paths, resources = job.paths, job.resources
    groups = {
        group.name: {
            "hosts": list(group.hosts),
            "instance_group_name": group.name,
            "instance_type": group.instance_type,
        }
        for group in resources.instance_groups
    }
    framework = {
        name: False if name in _FOREIGN_FLAGS else value
        for name, value in job.hyperparameters.reserved.items()
        if name not in _FIELDS and not name.startswith("trainshed_")
    }
    module_name = entry_point[:-3] if entry_point.endswith(".py") else entry_point
    hardware = cluster.hardware
    # Where the platform lists no hosts, the scheduler's are the job's.
    hosts, current_host = (
        (list(resources.hosts), resources.current_host) if resources.given else (list(cluster.hosts), cluster.current_host)
    )
    values: dict[str, Any] = {
        "SM_MODEL_DIR": paths.model,
        "SM_INPUT_DIR": paths.input,
        "SM_INPUT_CONFIG_DIR": paths.config,
        "SM_INPUT_DATA_DIR": paths.input_data,
        "SM_OUTPUT_DIR": paths.output,
        "SM_OUTPUT_DATA_DIR": paths.output_data,
        "SM_OUTPUT_INTERMEDIATE_DIR": paths.intermediate,
        "SM_OUTPUT_FAILURE": paths.failure,
        "SM_CHECKPOINT_DIR": paths.checkpoints,
        "SM_CHANNELS": sorted(channel.name for channel in job.channels),
        "SM_HPS": job.hyperparameters.user,
        "SM_USER_ARGS": arguments,
        "SM_HOSTS": hosts,
        "SM_CURRENT_HOST": current_host,
        "SM_CURRENT_HOST_RANK": cluster.rank,
        "SM_HOST_COUNT": len(hosts),
        "SM_MASTER_ADDR": cluster.address,
        "SM_MASTER_PORT": cluster.port,
        "SM_CURRENT_INSTANCE_TYPE": resources.current_instance_type,
        "SM_CURRENT_INSTANCE_GROUP": resources.current_group_name,
        "SM_CURRENT_INSTANCE_GROUP_HOSTS": list(resources.group_hosts(resources.current_group_name)),
        "SM_INSTANCE_GROUPS": [group.name for group in resources.instance_groups],
        "SM_INSTANCE_GROUPS_DICT": groups,
        "SM_DISTRIBUTION_INSTANCE_GROUPS": list(job.distribution.groups),
        "SM_IS_HETERO": len(groups) > 1,
        "SM_NETWORK_INTERFACE_NAME": cluster.interface or resources.network_interface_name,
        "SM_NUM_CPUS": hardware.cpus,
        "SM_NUM_GPUS": hardware.gpus,
        "SM_NUM_NEURONS": hardware.neurons,
        "SM_LOG_LEVEL": job.log_level,
        "SM_FRAMEWORK_MODULE": job.training_module,
        "SM_FRAMEWORK_PARAMS": framework,
        "SM_MODULE_NAME": module_name,
        "SM_MODULE_DIR": job.source or code_dir,
        "SM_SOURCE_DIR": code_dir,
        "SM_USER_ENTRY_POINT": entry_point,
        "SM_ENTRY_SCRIPT": entry_point,
        "SM_DISTRIBUTED_CONFIG": {"process_count_per_node": cluster.processes_per_host},
        "SM_RESOURCE_CONFIG": resources.raw,
        "SM_INPUT_DATA_CONFIG": job.input_data_config,
        "SAGEMAKER_JOB_NAME": str(job.hyperparameters.get("sagemaker_job_name") or job.name),
        "SAGEMAKER_REGION": job.region,
        "CURRENT_HOST": current_host,
        "SAGEMAKER_METRICS_DIRECTORY": paths.metrics,
    }
    if resources.topology:
        values["SM_TOPOLOGY"] = resources.topology
    values["SM_TRAINING_ENV"] = _training_env(job, cluster, values, code_dir)
    environment = {name: to_environment_text(value) for name, value in values.items()}
    environment.update(_named("SM_CHANNEL_", {channel.name: channel.path for channel in job.channels}))
    environment.update(_named("SM_HP_", job.hyperparameters.user))
    warnings = []
    for name in [name for name, value in environment.items() if len(os.fsencode(name + value)) >= LONGEST]:
        del environment[name]
        warnings.append(
            f"{name} is not set: it is longer than the 128 KiB that Linux allows for a variable; read the file instead"
        )
    return environment, warnings


def _distribution_hosts(job: TrainingJob, cluster: Cluster) -> list[str]:
    """Returns the hosts of the distribution; none where the job has groups but names none and asks for no distribution."""
    groups = job.distribution.groups
    if not cluster.participates:
        return [host for group in groups for host in job.resources.group_hosts(group)]
    return list(cluster.hosts) if groups or not job.resources.instance_groups else []


def _named(prefix: str, values: dict[str, Any]) -> dict[str, str]:
    """One variable a name, two where a shell could not read it. Where names collide (`lr`, `LR`) the last one counts, and
    a name as the peers spell it counts more than another's second form."""
    exact, readable = {}, {}
    for key, value in values.items():
        names = variable_names(prefix, key)
        exact[names[0]] = to_environment_text(value)
        readable[names[-1]] = exact[names[0]]
    return {**readable, **exact}


def _training_env(job: TrainingJob, cluster: Cluster, values: dict[str, Any], code_dir: str) -> dict[str, Any]:
    """The properties of the peer's `Environment` object, by name."""
    return {
        "additional_framework_parameters": values["SM_FRAMEWORK_PARAMS"],
        "channel_input_dirs": {channel.name: channel.path for channel in job.channels},
        "current_host": values["SM_CURRENT_HOST"],
        "current_instance_group": values["SM_CURRENT_INSTANCE_GROUP"],
        "current_instance_group_hosts": values["SM_CURRENT_INSTANCE_GROUP_HOSTS"],
        "current_instance_type": values["SM_CURRENT_INSTANCE_TYPE"],
        "distribution_hosts": _distribution_hosts(job, cluster),
        "distribution_instance_groups": values["SM_DISTRIBUTION_INSTANCE_GROUPS"],
        "framework_module": job.training_module or None,
        "hosts": values["SM_HOSTS"],
        "hyperparameters": values["SM_HPS"],
        "input_config_dir": values["SM_INPUT_CONFIG_DIR"],
        "input_data_config": values["SM_INPUT_DATA_CONFIG"],
        "input_dir": values["SM_INPUT_DIR"],
        "instance_groups": values["SM_INSTANCE_GROUPS"],
        "instance_groups_dict": values["SM_INSTANCE_GROUPS_DICT"],
        "is_hetero": values["SM_IS_HETERO"],
        "is_master": cluster.participates and cluster.rank == 0,
        "is_modelparallel_enabled": None,
        "is_smddpmprun_installed": False,
        "is_smddprun_installed": False,
        "job_name": job.name or None,
        "log_level": job.log_level,
        "master_hostname": cluster.master,
        "model_dir": values["SM_MODEL_DIR"],
        "module_dir": values["SM_MODULE_DIR"],
        "module_name": values["SM_MODULE_NAME"],
        "network_interface_name": values["SM_NETWORK_INTERFACE_NAME"],
        "num_cpus": values["SM_NUM_CPUS"],
        "num_gpus": values["SM_NUM_GPUS"],
        "num_neurons": values["SM_NUM_NEURONS"],
        "output_data_dir": values["SM_OUTPUT_DATA_DIR"],
        "output_dir": values["SM_OUTPUT_DIR"],
        "output_intermediate_dir": values["SM_OUTPUT_INTERMEDIATE_DIR"],
        "resource_config": values["SM_RESOURCE_CONFIG"],
        "topology": job.resources.topology or [],
        "user_entry_point": values["SM_USER_ENTRY_POINT"],
    }
