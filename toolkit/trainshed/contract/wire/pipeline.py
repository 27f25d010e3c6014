"""Settings of a pipeline, by our names and by those of Amazon's `mp_parameters`.

Both sides read them: `train` and the runner check a job's parameters before anything starts, and hand them to
the ranks as the variable `TRAINSHED_PIPELINE`, where `trainshed.parallel` takes them.
"""

from __future__ import annotations

import json
import os

from trainshed.base.errors import TrainshedError, did_you_mean, shorten
from trainshed.base.record import Record

from .combinations import FEATURES, refusal
from .variables import of_setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# JSON object: the settings of a job's pipeline, for its ranks.
VARIABLE = of_setting("pipeline")
SCHEDULES = {
    "simple": "gpipe",
    "gpipe": "gpipe",
    "interleaved": "1f1b",
    "1f1b": "1f1b",
    "interleaved1f1b": "interleaved1f1b",
    "interleavedzerobubble": "interleavedzerobubble",
    "zbvzerobubble": "zbvzerobubble",
    "dualpipev": "dualpipev",
}
VERIFY = ("changes", "first", "off")
DEGREES = ("given", "auto")
# What `degrees = auto` chooses, where it is not given.
CHOSEN = (
    *("pipeline_parallel_degree", "tensor_parallel_degree", "sharded_data_parallel_degree", "shard_optimizer_state"),
    *("microbatches", "pipeline", "virtual_stages"),
)
CHECKPOINTING = OFFLOADING = ("off", "auto", "all")
_SEVERAL_STAGES = ("interleaved1f1b", "interleavedzerobubble")
# Two stages on each rank, on the way there and on the way back: the first rank has the first and the last one.
V_SHAPED = ("zbvzerobubble", "dualpipev")


class PipelineError(TrainshedError):
    """A pipeline cannot be built or cannot go on. It is raised in the user's process: its traceback has to hold the hint."""

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class NotServed(PipelineError):
    """A part of Amazon's API that this library does not serve."""


class PipelineSettings(Record):
    """A pipeline's settings.

    degrees: "given", or "auto": how the ranks are used is chosen when the job starts, for its model, memory and links.
    open: the settings that are to be chosen then; those that were given stay.
    pipeline_parallel_degree: ranks of one pipeline; the other ranks are replicas (data parallel).
    microbatches: parts that a step's batch is split into.
    pipeline: "simple" (GPipe), "interleaved" (1F1B, Amazon's name), "interleaved1f1b" (several stages a rank),
        "interleavedzerobubble" (that with a backward in two parts), "zbvzerobubble" or "dualpipev" (such ones whose stages
        go through the ranks and back).
    virtual_stages: stages a rank, for the two with several; the last two have 2.
    optimize: "speed" or "memory"; sets memory_weight's default to 0 or 0.8.
    memory_weight: weight of memory against time in the partition, 0 to 1.
    memory_limit: MiB that a stage may use; 0 means unlimited.
    auto_partition: whether a plan says which module is on which stage; else all are on `default_partition`, but those that
        the script puts elsewhere.
    default_partition: stage of modules that nothing else says a stage for.
    placement_strategy: "cluster" (neighbouring ranks form a pipeline), "spread", or a permutation of "DPT".
    partition_file: a plan to use; if it does not exist, the plan that is made is written there.
    atomic: modules that are not opened.
    optimizer_states: tensors of a parameter's size that the optimizer keeps (Adam: 2), for the plan's memory.
    ddp: whether gradients are averaged over the replicas; several replicas need it.
    fp16, bf16: forwards run under autocast of that type; with fp16 the optimizer scales the loss.
    master_weights: besides, parameters are kept in that type, and the optimizer keeps float32 values of them; what Amazon's
        library does for `fp16` and `bf16`. `fp16_params` together with one of them is this, too.
    fp8: whether products of Linears whose sizes 16 divides run in float8, by torchao; on GPUs that can.
    shard_optimizer_state: each replica keeps its share of the optimizer's state (ZeRO-1).
    tensor_parallel_degree: ranks that the model, or each of its stages, divides the parameters of modules among.
    context_parallel_degree: ranks that the sequences of one batch are divided among, inside of a model's blocks.
    prescaled_batch: whether the ranks of a tensor group are given the same batch, as they must be with stages and with
        context groups; else each has its own.
    sharded_data_parallel_degree: replicas that parameters, gradients and optimizer state are sharded over: FSDP2 without
        stages, with stages by each stage's own ranks; replicated where there are more (HSDP).
    sdp_gradient_clipping: the norm that gradients of sharded parameters are clipped to in `PipelineOptimizer.step`; 0 for
        none. Amazon's library has 1.0 where it is not given, and so has `smp.DistributedOptimizer`.
    activation_checkpointing: which modules of a stage run again in their backward instead of keeping what it needs: "auto"
        (as few as the rank's memory, or `memory_limit`, asks for), "all" or "off": none but what the script checkpoints.
    offload_activations: what a stage's operations save for their backward is kept in the CPU's memory; on GPUs. "all" (or
        true), or "auto": that of as few modules as memory asks for. "off" (or false) by default.
    offload_optimizer_state: whether optimizers keep their states in the CPU's memory and step there; on GPUs.
    delayed_parameter_initialization: whether Amazon's `model_creation` builds models whose parameters get their values in
        the first step, each on its own rank; `delayed_initialization()` does so without it.
    timeout_seconds: how long a rank waits for another one.
    verify: which steps are compared with the undivided model before they end: "changes" (the first one, and the first ones
        of another recorded forward), "first" or "off".
    verify_steps: every how many training steps one is verified besides; 0 for none.
    """

    degrees: str = "given"
    open: tuple[str, ...] = ()
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
    master_weights: bool = False
    fp8: bool = False
    shard_optimizer_state: bool = False
    prescaled_batch: bool = False
    sharded_data_parallel_degree: int = 1
    sdp_gradient_clipping: float | None = None
    activation_checkpointing: str = "off"
    offload_activations: str = "off"
    offload_optimizer_state: bool = False
    delayed_parameter_initialization: bool = False
    tensor_parallel_degree: int = 1
    context_parallel_degree: int = 1
    timeout_seconds: int = 1800
    verify: str = "first"
    verify_steps: int = 0

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

    def given(self) -> dict[str, Any]:
        """As `read_settings` takes them, without what is to be chosen."""
        kept = CHOSEN if self.degrees == "auto" else ()
        names = [name for name in self._fields if name not in ("open", *self.open)]
        plain = self.plain()
        return {
            name: plain[name] for name in names if name in kept or getattr(self, name) != getattr(PipelineSettings, name)
        }

    @property
    def features(self) -> tuple[str, ...]:
        """The settings that turn a feature on; see `combinations`."""
        return tuple(name for name in FEATURES if getattr(self, name) != getattr(PipelineSettings, name))

    @property
    def recomputes(self) -> bool:
        """Tells whether modules may run again in their backward."""
        return self.activation_checkpointing != "off"

    @property
    def fits_activations(self) -> bool:
        """Tells whether some modules may keep less on the device than others, by what room there is."""
        return self.recomputes or self.offload_activations == "auto"

    @property
    def verifies(self) -> bool:
        """Tells whether there are steps that are verified."""
        return self.verify != "off" or self.verify_steps > 0

    @property
    def has_sharded_halves(self) -> bool:
        """Tells whether parameters in half precision, whose masters are float32, are sharded."""
        return self.sharded_data_parallel_degree > 1 and self.master_weights


# Keys of Amazon's library that change nothing here, with the reason.
_WITHOUT_EFFECT = {
    "active_microbatches": "the schedule bounds the microbatches in flight",
    "deterministic_server": "every schedule here is deterministic",
    "horovod": "TensorFlow only",
    "contiguous": "TensorFlow only",
    "static_mode": "every schedule here is static",
    "fast_mode": "values that stages do not need are never sent",
    "ddp_dist_backend": "NCCL on GPUs, gloo on CPUs",
    "checkpoint_attentions": "set_activation_checkpointing does that",
    "_match_weights": "for tests of Amazon's library",
    "_fp32_grad_accumulation": "gradients have the type of their parameters, float32",
    "skip_tracing": "a plan file does that: set partition_file",
    "sdp_reduce_bucket_size": "sums of gradients go in buckets of 25 MiB",
    "sdp_param_persistence_threshold": "every parameter is sharded",
    "sdp_max_live_parameters": "parameters are gathered block by block, or once a step where there are stages",
    "sdp_hierarchical_allgather": "the collectives of the job's backend gather parameters",
    "activation_loading_horizon": "what was offloaded comes back when a backward asks for it",
    "fp16_params": "without fp16 or bf16 the script makes its own parameters",
}
# Names of Amazon's library for settings.
_ALSO = {"partitions": "pipeline_parallel_degree", "sm_activation_offloading": "offload_activations"}
_SWITCHES = {"true": "all", "1": "all", "false": "off", "0": "off"}
_KINDS: dict[str, type] = {
    **{"memory_weight": float, "sdp_gradient_clipping": float},
    **{"default_partition": int, "atomic": tuple},
}


def read_settings(given: Mapping[str, Any], where: str = "mp_parameters") -> PipelineSettings:
    """Settings from a mapping.

    Raises:
        PipelineError: an unknown key or a wrong value, with its name.
        NotServed: a feature of Amazon's library that is not supported, with the alternative.
    """
    values: dict[str, Any] = {}
    for key, value in given.items():
        name = _ALSO.get(key, key)
        if name in _WITHOUT_EFFECT:
            continue
        if name not in PipelineSettings._fields or name == "open":
            raise PipelineError(
                f"{where}: {key}: not a pipeline setting", hint=did_you_mean(key, [*PipelineSettings._fields, *_ALSO])
            )
        values[name] = _convert(name, value, where)
    if str(values.get("pipeline", "")).lower() in V_SHAPED:
        values.setdefault("virtual_stages", 2)
    if _convert("master_weights", given.get("fp16_params"), where) and (values.get("fp16") or values.get("bf16")):
        values.setdefault("master_weights", True)
    if values.get("degrees") == "auto":
        both = {"pipeline", "virtual_stages"}  # one without the other would not be what was asked for
        values["open"] = tuple(one for one in CHOSEN if one not in values and not (one in both and both & values.keys()))
    settings = PipelineSettings(**values)
    _check(settings, where)
    return settings


def without_effect(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Those of the given settings that change nothing, each with the reason."""
    halves = ("fp16", "bf16", "master_weights")
    served = {"fp16_params"} if any(_convert(name, given.get(name), "") for name in halves) else set()
    return tuple(f"{name} ({why})" for name, why in _WITHOUT_EFFECT.items() if name in given and name not in served)


def _convert(name: str, value: Any, where: str) -> Any:
    default = getattr(PipelineSettings, name)
    kind: Any = _KINDS.get(name, type(default))
    if name == "offload_activations" and str(value).lower() in _SWITCHES:  # as Amazon's library knows it
        return _SWITCHES[str(value).lower()]
    try:
        if kind is bool:
            if isinstance(value, str):
                return {"true": True, "false": False, "1": True, "0": False}[value.lower()]
            return bool(value)
        if value is None:
            return default
        if kind is tuple:
            return (value,) if isinstance(value, str) else tuple(value)
        if kind is int and (isinstance(value, bool) or (isinstance(value, float) and value != int(value))):
            raise ValueError
        return kind(value)
    except (KeyError, ValueError, TypeError, OverflowError):
        raise PipelineError(f"{where}: {name} = {shorten(repr(value))}: not {kind.__name__}") from None


def _check(settings: PipelineSettings, where: str) -> None:
    def wrong(name: str, why: str) -> PipelineError:
        return PipelineError(f"{where}: {name} = {getattr(settings, name)!r}: {why}")

    for name in (
        *("pipeline_parallel_degree", "microbatches", "virtual_stages"),
        *("sharded_data_parallel_degree", "tensor_parallel_degree", "context_parallel_degree"),
    ):
        if getattr(settings, name) < 1:
            raise wrong(name, "must be 1 or more")
    if settings.degrees not in DEGREES:
        raise wrong("degrees", f"not one of {', '.join(DEGREES)}")
    if settings.pipeline.lower() not in SCHEDULES:
        raise wrong("pipeline", f"not one of {', '.join(SCHEDULES)}")
    if settings.optimize not in ("speed", "memory"):
        raise wrong("optimize", "not speed or memory")
    if settings.verify not in VERIFY:
        raise wrong("verify", f"not one of {', '.join(VERIFY)}")
    if settings.activation_checkpointing not in CHECKPOINTING:
        raise wrong("activation_checkpointing", f"not one of {', '.join(CHECKPOINTING)}")
    if settings.offload_activations not in OFFLOADING:
        raise wrong("offload_activations", f"not one of {', '.join(OFFLOADING)}, true or false")
    if settings.verify_steps < 0:
        raise wrong("verify_steps", "must be 0 or more")
    if not 0 <= settings.weight <= 1:
        raise wrong("memory_weight", "must be from 0 to 1")
    if settings.schedule in V_SHAPED and settings.virtual_stages != 2:
        raise wrong("virtual_stages", f"pipeline = {settings.pipeline!r} gives each rank 2: leave it out")
    if settings.virtual_stages > 1 and settings.schedule not in (*_SEVERAL_STAGES, *V_SHAPED):
        raise wrong("virtual_stages", f"needs pipeline = {' or '.join(_SEVERAL_STAGES)}")
    if settings.sdp_gradient_clipping is not None and not settings.sdp_gradient_clipping >= 0:
        raise wrong("sdp_gradient_clipping", "must be 0 or more")
    if not settings.auto_partition and settings.default_partition is None:
        raise wrong("auto_partition", "needs default_partition")
    if settings.master_weights and not (settings.fp16 or settings.bf16):
        raise wrong("master_weights", "needs bf16 or fp16, the type that parameters are kept in")
    check_combination(settings, where)


def check_combination(settings: PipelineSettings, where: str) -> None:
    """Raises:
    NotServed: features that the settings turn on do not go together.
    """
    # What is open may still be chosen, and ranks of a chosen tensor group are given one batch.
    may_come = [*settings.open, "prescaled_batch"] if settings.degrees == "auto" else []
    if row := refusal(settings.features, may_come):
        raise NotServed(f"{where}: {row.message}", hint=row.hint)


def settings_from_environment(environ: Mapping[str, str] | None = None) -> PipelineSettings:
    """Settings of a job, of `given_in_environment`; else the defaults.

    Raises:
        PipelineError: a variable is not a JSON object, or see `read_settings`.
    """
    given, name = given_in_environment(environ)
    return read_settings(given, name) if name else PipelineSettings()


def given_in_environment(environ: Mapping[str, str] | None = None) -> tuple[dict[str, Any], str]:
    """Returns what a job gives as settings: `TRAINSHED_PIPELINE`, else `SM_HP_MP_PARAMETERS` (both JSON).

    Returns:
        The settings as they are given, and the variable; ({}, "") where there is none.

    Raises:
        PipelineError: a variable is not a JSON object.
    """
    environ = os.environ if environ is None else environ
    for name in (VARIABLE, "SM_HP_MP_PARAMETERS"):
        if text := environ.get(name):
            try:
                given = json.loads(text)
            except json.JSONDecodeError as error:
                raise PipelineError(f"{name} is not JSON: {error.msg}") from None
            if not isinstance(given, dict):
                raise PipelineError(f"{name} is not a JSON object")
            return given, name
    return {}, ""


def parameters_of(mp_parameters: Any, own: str) -> tuple[dict[str, Any], tuple[tuple[str, str, str], ...]]:
    """The parameters of a job's pipeline, and what is wrong with them.

    Args:
        mp_parameters: Amazon's hyperparameter, decoded; None where the job has none.
        own: the setting `trainshed_pipeline`, a JSON object; its entries win.

    Returns:
        The parameters by name; and for each problem the hyperparameter, what is wrong, and what to do.
    """
    given: dict[str, dict[str, Any]] = {}
    for name, value in (("mp_parameters", mp_parameters), ("trainshed_pipeline", own or None)):
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                pass
        if value is None:
            continue
        if not isinstance(value, dict):
            return {}, ((name, "must be a JSON object of pipeline settings", '{"partitions": 2, "microbatches": 4}'),)
        given[name] = value
    found = {key: value for one in given.values() for key, value in one.items()}
    # Each alone may lack what the other one says: to blame is who is wrong in the same way as both together.
    if problem := _problem(found, "trainshed_pipeline"):
        alone = [one for name, value in given.items() if (one := _problem(value, name))]
        return {}, (next((one for one in alone if one[1:] == problem[1:]), problem),)
    return found, ()


def _problem(given: Mapping[str, Any], where: str) -> tuple[str, str, str] | None:
    """What is wrong with settings of a hyperparameter, as `parameters_of` gives it."""
    try:
        read_settings(given, where)
    except PipelineError as error:
        return where, error.message.removeprefix(f"{where}: "), error.hint
    return None
