"""The job as a script sees it: `Environment`, read from SM_TRAINING_ENV, which `train` sets, and the folders."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from trainshed.contract.cluster import Cluster
from trainshed.contract.environment import script_environment
from trainshed.contract.paths import Paths
from trainshed.contract.reading import read_job

from . import mapping, params

SAGEMAKER_BASE_PATH = "/opt/ml"
BASE_PATH_ENV = "SAGEMAKER_BASE_DIR"
HYPERPARAMETERS_FILE = "hyperparameters.json"
RESOURCE_CONFIG_FILE = "resourceconfig.json"
INPUT_DATA_CONFIG_FILE = "inputdataconfig.json"

_paths = Paths.from_environment(os.environ)
base_dir = _paths.base
code_dir = os.environ.get("SM_SOURCE_DIR") or _paths.code  # where `train` found the code, which it need not have moved
model_dir = _paths.model
input_dir = _paths.input
input_config_dir = _paths.config
output_dir = _paths.output
output_data_dir = _paths.output_data
output_intermediate_dir = _paths.intermediate
hyperparameters_file_dir = f"{input_config_dir}/{HYPERPARAMETERS_FILE}"
input_data_config_file_dir = f"{input_config_dir}/{INPUT_DATA_CONFIG_FILE}"
resource_config_file_dir = f"{input_config_dir}/{RESOURCE_CONFIG_FILE}"


def read_hyperparameters() -> dict[str, Any]:
    """All hyperparameters, the platform's included, decoded."""
    hyperparameters = read_job(os.environ).hyperparameters
    return _plain({**hyperparameters.user, **hyperparameters.reserved})


def read_resource_config() -> dict[str, Any]:
    """resourceconfig.json, or its equivalent if the file is missing."""
    resources = read_job(os.environ).resources
    return dict(resources.raw) or {"current_host": resources.current_host, "hosts": list(resources.hosts)}


def read_input_data_config() -> dict[str, Any]:
    """inputdataconfig.json."""
    return dict(read_job(os.environ).input_data_config)


def channel_path(channel: str) -> str:
    """The folder of a channel."""
    return f"{_paths.input_data}/{channel}"


def num_cpus() -> int:
    """CPUs that this container may use."""
    return int(_training_env()["num_cpus"])


def num_gpus() -> int:
    """GPUs of this container."""
    return int(_training_env()["num_gpus"])


def num_neurons(instance_type: str = "") -> int:
    """Neuron cores of this container."""
    return int(_training_env()["num_neurons"])


def _plain(value: Any) -> Any:
    """The value as plain JSON types, without numbers that keep their spelling."""
    return json.loads(json.dumps(value))


def _training_env() -> dict[str, Any]:
    """The job from SM_TRAINING_ENV; if `train` could not set it (the value was too long), from the files."""
    if text := os.environ.get("SM_TRAINING_ENV"):
        return dict(json.loads(text))
    job = read_job(os.environ)
    cluster = Cluster(hosts=job.resources.hosts, current_host=job.resources.current_host)
    variables, _ = script_environment(job, cluster, code_dir=code_dir, entry_point=job.program, arguments=[])
    known = json.loads(variables["SM_TRAINING_ENV"]) if "SM_TRAINING_ENV" in variables else {}
    known["hyperparameters"] = _plain(job.hyperparameters.user)
    for name in ("num_cpus", "num_gpus", "num_neurons"):
        known[name] = int(os.environ.get(f"SM_{name.upper()}") or 0)
    return dict(known)


class Environment(mapping.MappingMixin):
    """A read-only view of the job: properties by name, also as a dictionary.

    Args:
        resource_config, input_data_config, hyperparameters: stand in for the files' contents.
    """

    def __init__(
        self,
        resource_config: dict[str, Any] | None = None,
        input_data_config: dict[str, Any] | None = None,
        hyperparameters: dict[str, Any] | None = None,
    ) -> None:
        self._known = _training_env()
        if resource_config:
            self._known.update(resource_config=resource_config, hosts=resource_config["hosts"])
            self._known.update(current_host=resource_config["current_host"])
        if input_data_config:
            channels = {name: channel_path(name) for name in input_data_config}
            self._known.update(input_data_config=input_data_config, channel_input_dirs=channels)
        if hyperparameters:
            reserved = mapping.split_by_criteria(hyperparameters, params.SAGEMAKER_HYPERPARAMETERS, params.SAGEMAKER_PREFIX)
            self._known["hyperparameters"] = reserved.excluded
            self._known["additional_framework_parameters"] = {
                name: value for name, value in reserved.included.items() if name not in params.SAGEMAKER_HYPERPARAMETERS
            }

    def sagemaker_s3_output(self) -> str | None:
        """Destination of intermediate output; None if the job does not set one."""
        found = read_hyperparameters().get(params.S3_OUTPUT_LOCATION_PARAM)
        return None if found is None else str(found)

    def to_cmd_args(self) -> list[str]:
        """The hyperparameters as the script's arguments: as `train` gives them, numbers spelled as they were written."""
        given = os.environ.get("SM_USER_ARGS")
        return list(json.loads(given)) if given else mapping.to_cmd_args(self._known["hyperparameters"])

    def to_env_vars(self) -> dict[str, str]:
        """The SM_* variables for the script."""
        return {name: value for name, value in os.environ.items() if name.startswith("SM_")}


def _property(name: str) -> property:
    return property(lambda self: self._known[name], doc=f"`{name}` of the job (docs/contract.md: SM_TRAINING_ENV).")


for _name in (
    "additional_framework_parameters",
    "channel_input_dirs",
    "current_host",
    "current_instance_group",
    "current_instance_group_hosts",
    "current_instance_type",
    "distribution_hosts",
    "distribution_instance_groups",
    "framework_module",
    "hosts",
    "hyperparameters",
    "input_config_dir",
    "input_data_config",
    "input_dir",
    "instance_groups",
    "instance_groups_dict",
    "is_hetero",
    "is_master",
    "is_modelparallel_enabled",
    "is_smddpmprun_installed",
    "is_smddprun_installed",
    "job_name",
    "log_level",
    "master_hostname",
    "model_dir",
    "module_dir",
    "module_name",
    "network_interface_name",
    "num_cpus",
    "num_gpus",
    "num_neurons",
    "output_data_dir",
    "output_dir",
    "output_intermediate_dir",
    "resource_config",
    "topology",
    "user_entry_point",
):
    setattr(Environment, _name, _property(_name))


def write_env_vars(env_vars: dict[str, str] | None = None) -> None:
    """Puts variables into this process's environment, and its module path into PYTHONPATH."""
    os.environ.update(env_vars or {})
    os.environ["PYTHONPATH"] = ":".join(sys.path)
