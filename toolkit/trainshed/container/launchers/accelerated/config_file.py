"""The file that `trainshed_accelerate` names: Accelerate's configuration (YAML or JSON), or DeepSpeed's (JSON).

What it says about processes, hosts and addresses is the launcher's business, and trainshed is the launcher. The form is
that of `accelerate config`, whose documentation names the keys; whether a key exists is for the installed version to say.
"""

from __future__ import annotations

import json
import os

from trainshed.base.errors import LaunchError
from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainshed.contract.cluster import Cluster

SETTING = "trainshed_accelerate"
LARGEST = 1 << 20  # bytes; such files have some hundred
# What any of these says is decided by the job.
LAUNCHERS_KEYS = (
    "num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port", "rdzv_backend",
    "same_network", "mpirun_config",
)  # fmt: skip
_TPU = ("XLA", "TPU")
# YAML reads an unquoted `no` as false. These are words for Accelerate, which would fail with an AttributeError.
_WORDS = ("mixed_precision", "dynamo_backend")


class ConfigFile(Record):
    """One file.

    name: as the setting has it; path: where it is.
    values: what it holds.
    deepspeed: whether it is DeepSpeed's own rather than Accelerate's.
    """

    name: str
    path: str
    values: dict[str, Any]
    deepspeed: bool = False

    def held_against(self, cluster: Cluster) -> tuple[str, ...]:
        """Notes about what the job decides otherwise than the file.

        Raises:
            LaunchError: the file asks for devices that the job has not.
        """
        if self.deepspeed:
            return ()
        self._check_devices(cluster)
        hosts, ranks = len(cluster.hosts), cluster.processes_per_host
        has: dict[str, Any] = {"num_processes": cluster.world_size, "num_machines": hosts}
        decided = [name for name in has if self.values.get(name) not in (None, -1, has[name])]
        decided += [name for name in LAUNCHERS_KEYS if name.startswith("main_process") and self.values.get(name)]
        if self.values.get("mpirun_config"):
            decided.append("mpirun_config")
        if not decided:
            return ()
        said = ", ".join(
            f"{name}: {self.values[name]}" if not isinstance(self.values[name], dict) else name for name in decided
        )
        return (
            f"{self.name}: {said} has no effect: this job runs {ranks} rank(s) on each of {hosts} host(s), "
            f"which meet at {cluster.address}",
        )

    def _check_devices(self, cluster: Cluster) -> None:
        given = self.values.get("gpu_ids")
        if given in (None, "", "all"):
            return
        ids = [text.strip() for text in str(given).split(",")]
        gpus, ranks = cluster.hardware.gpus, cluster.processes_per_host
        beyond = [one for one in ids if one.isdecimal() and int(one) >= gpus]
        if beyond:
            raise LaunchError(
                f"{self.name}: gpu_ids: {given} names GPU {beyond[0]}, but this host has {gpus} GPU(s)",
                hint="write gpu_ids: all, or leave it out: each rank takes the GPU of its number",
            )
        if len(ids) < ranks:
            raise LaunchError(
                f"{self.name}: gpu_ids: {given} names {len(ids)} GPU(s), but this job runs {ranks} ranks on each host",
                hint=f"set processes_per_host to {len(ids)}, or write gpu_ids: all",
            )


def read(name: str, folder: str) -> ConfigFile:
    """The file that the setting names, checked as far as is possible without Accelerate.

    Args:
        name: absolute, or relative to `folder`, the folder of the code.

    Raises:
        LaunchError: it is absent, cannot be read, or is for something that is not this job.
    """
    path = os.path.normpath(os.path.join(folder, name))
    try:
        with open(path, "rb") as stream:
            text = stream.read(LARGEST + 1)
    except OSError as error:
        raise LaunchError(f"{SETTING} = {name}: cannot read {path}: {error.strerror}", hint=_what_there_is(folder)) from None
    if len(text) > LARGEST:
        raise LaunchError(f"{SETTING} = {name}: {path} has more than a megabyte, and is no configuration of Accelerate")
    values = _parsed(name, text)
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise LaunchError(
            f"{SETTING} = {name}: the file holds no `name: value` lines",
            hint="`accelerate config --config_file FILE` writes one",
        )
    file = ConfigFile(name=name, path=path, values=values, deepspeed=_is_deepspeeds(values))
    _check(file)
    return file


def _parsed(name: str, text: bytes) -> Any:
    if name.endswith(".json"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise LaunchError(f"{SETTING} = {name}: not JSON: {error}") from None
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise LaunchError(f"{SETTING} = {name}: not YAML: {where}{error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # bad characters, impossible dates, endless nesting
        raise LaunchError(f"{SETTING} = {name}: not YAML: {' '.join(str(error).split())}") from None


def _is_deepspeeds(values: dict[str, Any]) -> bool:
    """DeepSpeed's files have no `distributed_type`, without which Accelerate takes none."""
    marks = ("zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    return "distributed_type" not in values and any(mark in values for mark in marks)


def _check(file: ConfigFile) -> None:
    """What Accelerate would not say, or not in these words."""
    if file.deepspeed:
        return
    where = file.values.get("compute_environment")
    if where not in (None, "LOCAL_MACHINE"):
        raise LaunchError(
            f"{file.name}: compute_environment: {where} is for machines that send jobs to SageMaker",
            hint='inside a job it is LOCAL_MACHINE; `accelerate config` asks for it as "This machine"',
        )
    kind = file.values.get("distributed_type")
    if kind in _TPU or file.values.get("tpu_use_cluster") is True:
        raise LaunchError(
            f"{file.name}: distributed_type: {kind} is for TPUs, which no rank of this job has",
            hint="trainshed_distribution = xla starts ranks for torch_xla; it needs no file of Accelerate's",
        )
    for word in _WORDS:
        if isinstance(file.values.get(word), bool):
            raise LaunchError(
                f"{file.name}: {word} is read by YAML as {str(file.values[word]).lower()}",
                hint=f"write {word}: 'no', in quotes",
            )


def _what_there_is(folder: str) -> str:
    from ..accelerate_files import candidates

    found = candidates(folder)
    if found:
        return f"files there that look like one: {', '.join(found[:5])}"
    return f"the path is relative to the folder of the code, {folder}"
