"""What a pipeline can be told: our own names, and those of Amazon's `mp_parameters`."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from .errors import NotServed, PipelineError

SCHEDULES = {
    "simple": "gpipe",
    "gpipe": "gpipe",
    "interleaved": "1f1b",
    "1f1b": "1f1b",
    "interleaved1f1b": "interleaved1f1b",
}
_ZERO_BUBBLE = ("interleavedzerobubble", "zbvzerobubble", "dualpipev")


@dataclass(frozen=True)
class Settings:
    """A pipeline's settings.

    pipeline_parallel_degree: ranks of one pipeline; the other ranks are replicas (data parallel).
    microbatches: parts that a step's batch is split into.
    pipeline: "simple" (GPipe), "interleaved" (1F1B, Amazon's name) or "interleaved1f1b" (several stages a rank).
    virtual_stages: stages a rank, for "interleaved1f1b".
    optimize: "speed" or "memory"; sets memory_weight's default to 0 or 0.8.
    memory_limit: MiB a stage may take; 0 is no limit.
    placement_strategy: "cluster" (neighbouring ranks form a pipeline), "spread", or a permutation of "DPT".
    partition_file: a plan to use; if it does not exist, the plan that is made is written there.
    atomic: modules that are not opened.
    """

    pipeline_parallel_degree: int = 1
    microbatches: int = 1
    pipeline: str = "interleaved"
    virtual_stages: int = 1
    optimize: str = "speed"
    memory_weight: float | None = None
    memory_limit: int = 0
    auto_partition: bool = True
    default_partition: int | None = None
    placement_strategy: str = "cluster"
    partition_file: str = ""
    atomic: tuple[str, ...] = ()
    optimizer_states: int = 2
    ddp: bool = True
    fp16: bool = False
    bf16: bool = False
    shard_optimizer_state: bool = False
    prescaled_batch: bool = False
    sharded_data_parallel_degree: int = 1
    tensor_parallel_degree: int = 1
    timeout_seconds: int = 1800

    @property
    def schedule(self) -> str:
        """The schedule's name as the planner knows it."""
        return SCHEDULES[self.pipeline.lower()]

    @property
    def weight(self) -> float:
        """Weight of memory against time in the partition, 0 to 1."""
        if self.memory_weight is not None:
            return self.memory_weight
        return 0.0 if self.optimize == "speed" else 0.8


# Keys of Amazon's library that change nothing here, with the reason.
_WITHOUT_EFFECT = {
    "active_microbatches": "the schedule bounds the microbatches in flight",
    "deterministic_server": "every schedule here is deterministic",
    "horovod": "TensorFlow only",
    "contiguous": "TensorFlow only",
    "skip_tracing": "a plan file does that: set partition_file",
    "sdp_reduce_bucket_size": "",
    "sdp_param_persistence_threshold": "",
    "sdp_max_live_parameters": "",
    "sdp_hierarchical_allgather": "",
    "sdp_gradient_clipping": "",
    "activation_loading_horizon": "",
    "fp16_params": "",
}
_REFUSED = {
    "tensor_parallel_degree": "use torch.distributed.tensor.parallel on the modules, or more pipeline stages",
    "offload_activations": "use torch.autograd.graph.save_on_cpu, or activation checkpoints",
    "delayed_parameter_initialization": "build the model on the CPU of every rank; each keeps only its own stage",
}


def read_settings(given: Mapping[str, Any], where: str = "mp_parameters") -> Settings:
    """Settings from a mapping.

    Raises:
        PipelineError: an unknown key or a wrong value, with its name.
        NotServed: a feature of Amazon's library that is not served, with the alternative.
    """
    known = {field.name: field for field in fields(Settings)}
    values: dict[str, Any] = {}
    for key, value in given.items():
        name = "pipeline_parallel_degree" if key == "partitions" else key
        if key in _REFUSED and value not in (1, False, None):
            raise NotServed(f"{where}: {key} = {value!r} is not served", hint=_REFUSED[key])
        if name in _WITHOUT_EFFECT or (key in _REFUSED and name not in known):
            continue
        if name not in known:
            near = difflib.get_close_matches(key, [*known, "partitions"], 1)
            raise PipelineError(f"{where}: {key}: no such setting", hint=f"did you mean {near[0]}?" if near else "")
        values[name] = _convert(name, value, where)
    settings = Settings(**values)
    _check(settings, where)
    return settings


def _convert(name: str, value: Any, where: str) -> Any:
    default = getattr(Settings(), name)
    kind: Any = {"memory_weight": float, "default_partition": int, "atomic": tuple}.get(name, type(default))
    try:
        if kind is bool:
            if isinstance(value, str):
                return {"true": True, "false": False, "1": True, "0": False}[value.lower()]
            return bool(value)
        if kind is tuple:
            return (value,) if isinstance(value, str) else tuple(value)
        if value is None:
            return default
        if kind is int and isinstance(value, float) and value != int(value):
            raise ValueError
        return kind(value)
    except (KeyError, ValueError, TypeError):
        raise PipelineError(f"{where}: {name} = {value!r}: not {kind.__name__}") from None


def _check(settings: Settings, where: str) -> None:
    def wrong(name: str, why: str) -> PipelineError:
        return PipelineError(f"{where}: {name} = {getattr(settings, name)!r}: {why}")

    for name in ("pipeline_parallel_degree", "microbatches", "virtual_stages"):
        if getattr(settings, name) < 1:
            raise wrong(name, "must be 1 or more")
    if settings.pipeline.lower() in _ZERO_BUBBLE:
        raise NotServed(
            f"{where}: pipeline = {settings.pipeline!r}: torch drops gradients in its zero-bubble schedules where a "
            "parameter has no path from a stage's input",
            hint="use interleaved or interleaved1f1b",
        )
    if settings.pipeline.lower() not in SCHEDULES:
        raise wrong("pipeline", f"not one of {', '.join(SCHEDULES)}")
    if settings.optimize not in ("speed", "memory"):
        raise wrong("optimize", "not speed or memory")
    if not 0 <= settings.weight <= 1:
        raise wrong("memory_weight", "must be from 0 to 1")
    if settings.virtual_stages > 1 and settings.schedule != "interleaved1f1b":
        raise wrong("virtual_stages", "needs pipeline = interleaved1f1b")
    if not settings.auto_partition and settings.default_partition is None:
        raise wrong("auto_partition", "needs default_partition")
    if settings.sharded_data_parallel_degree > 1 and settings.pipeline_parallel_degree > 1:
        raise NotServed(
            f"{where}: sharded_data_parallel_degree together with a pipeline is not served",
            hint="use partitions = 1 with it, or shard_optimizer_state",
        )


def settings_from_environment(environ: Mapping[str, str] | None = None) -> Settings:
    """Settings of a job: `TRAINSHED_PIPELINE`, else `SM_HP_MP_PARAMETERS` (both JSON); else the defaults.

    Raises:
        PipelineError: a variable is not a JSON object.
    """
    environ = os.environ if environ is None else environ
    for name in ("TRAINSHED_PIPELINE", "SM_HP_MP_PARAMETERS"):
        if text := environ.get(name):
            try:
                given = json.loads(text)
            except json.JSONDecodeError as error:
                raise PipelineError(f"{name} is not JSON: {error.msg}") from None
            if not isinstance(given, dict):
                raise PipelineError(f"{name} is not a JSON object")
            return read_settings(given, name)
    return Settings()
