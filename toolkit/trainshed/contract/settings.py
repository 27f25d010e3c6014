"""Settings of trainshed itself in a job: hyperparameters `trainshed_<name>` or variables `TRAINSHED_<NAME>`.

The hyperparameter wins: it belongs to the job, while the variable may come with the image. So do the platform's own
hyperparameters where they decide the same (`sagemaker_mpi_num_of_processes_per_host` over TRAINSHED_PROCESSES_PER_HOST).
"""

from __future__ import annotations

from trainshed.base import quick_json
from trainshed.base.errors import Problem, did_you_mean, near_name
from trainshed.base.record import Record

from .distributions import DISTRIBUTIONS, OTHERS, WORDS, named
from .hyperparameters import ARGV_STYLES, decode_value
from .wire.compile_plan import BACKENDS, MODES, SWITCHES
from .wire.metric_lines import SOURCES
from .wire.variables import PREFIX, TABLE, of_setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

FINGERPRINTS = ("sampled", "whole", "off")
ENGINES = ("trainshed", "torchrun", "mpi")
SERVERS = ("script", "tensorflow")
REDUCTIONS = ("auto", "exact", "bf16", "powersgd", "off")
# How the setting `checkpoint_copy_to` reaches the ranks, whether it came as a hyperparameter or as this variable.
COPY_TO_VARIABLE = of_setting("checkpoint_copy_to")
EVERY_VARIABLE = of_setting("checkpoint_every")
MEMORY_VARIABLE = of_setting("checkpoint_memory")
OPTIONS_VARIABLE = of_setting("checkpoint_options")
REDUCE_VARIABLE = of_setting("reduce")


class Settings(Record):
    """The settings of one job, each with its default. docs/contract.md's table is made from this text.

    distribution: how ranks are started; by default as the platform's flags say (`sagemaker_mpi_enabled` and its like),
        else `script`.
    processes_per_host: ranks on each host; 0 means one for each GPU, else one for each Neuron core, else one for each CPU
        (on CPUs a single one where a platform's flag chooses the distribution).
    engine: what starts the ranks: trainshed itself, torch's elastic agent (`torchrun`; for torchrun, horovod and pipeline
        jobs), or mpirun (`mpi`; for pipeline jobs).
    pipeline: settings of the pipeline, a JSON object (docs/pipeline.md); they win over `mp_parameters`.
    roles: processes of a parameter_server job beside the chief, a JSON object such as {"worker": 4, "ps": 2, "evaluator": 1}
        (docs/parameter-servers.md).
    servers: what processes of the role ps run: the job's `script`, or TensorFlow's own server (`tensorflow`). Default: the
        script, but TensorFlow's server for `sagemaker_parameter_server_enabled`.
    reduce: how DistributedDataParallel exchanges gradients between hosts (docs/data-parallel.md): `auto` changes that
        where it gains, with the same sums in another order, `exact` changes it in any case, `bf16` may also round between
        hosts, `powersgd` sends gradients of low rank. Default: `auto` for scripts that import Amazon's data parallel
        library, else `off`.
    accelerate: the configuration file of Accelerate or DeepSpeed, relative to the code, whose variables ranks get as from
        `accelerate launch` (docs/distributions.md); makes a job without another distribution a torchrun job.
    max_restarts: how often failed ranks are started again, on all hosts together, to resume from their newest checkpoint
        (docs/restarts.md).
    min_nodes: with the elastic agent: how many hosts are enough to start and to go on when others are lost; 0 means all.
    argv: style of the script's command line (see below).
    grace_seconds: seconds from a stop signal to SIGKILL. SageMaker gives 120 s; the last ten are for the report.
    host_timeout_seconds: how long to wait for the other hosts at the start.
    master_port: where rank 0 listens; 0 means 7777 on several hosts, and any free port on a single one, where two jobs may
        start at once.
    roster_port: where the first host listens for the other hosts' `train`; 0 means the port after `master_port`.
    install_timeout_seconds: how long installing requirements may take, with the wait for another job that installs.
    checkpoint: `auto` puts resumable checkpoints into the trainers of transformers and Lightning (docs/checkpoints.md).
    checkpoint_copy_to: URL of a storage that gets a copy of every checkpoint, such as `s3://bucket/run`
        (docs/checkpoints.md).
    checkpoint_every: `auto` finds the interval between checkpoints by measurement, whatever the script says; with bounds and
        a given time between interruptions `auto,least=30s,most=20m,between=8h` (docs/goodput.md).
    checkpoint_memory: keeps copies of the state in the hosts' memory, a JSON object such as {"every_steps": 1, "copies": 1}
        (docs/checkpoints.md).
    checkpoint_options: whose learning rate, momentum and other options hold when a Checkpointer restores: `saved`, or those
        that the script has `given` its optimizers (docs/checkpoints.md).
    notices: `auto` asks the platform for notices of interruption; `off` leaves only stop signals (docs/checkpoints.md).
    interrupted_exit_code: exit status of an interrupted job, for schedulers that requeue by exit status.
    hang_seconds: how long all ranks may stand still before the job counts as hung (docs/hangs.md); 0 switches this off.
    warm_start: `auto` forks ranks from an interpreter that has imported what the script imports first, where that changes
        nothing for them (docs/warm-starts.md).
    on_hang: what happens to a hung job. Default: `stop` for jobs with ranks, `continue` for a single program, which may
        wait for something outside.
    stacks: `off` starts the script's Python without the hook that reports its stacks (docs/hangs.md).
    bind: CPUs of each rank: all of them, an equal share of the cores, or those near its GPU.
    metrics: which program's metrics are searched for in the log besides the job's own definitions and `metric ...` lines
        (docs/metrics.md); `auto` knows them by their looks, `loggers` hooks into the trainers of
        transformers and Lightning instead.
    system_metrics: how often this machine is sampled (docs/profiler.md): seconds from 0.1 to 60; `off`; `auto` for
        every half second, less often where that would cost more than 0.5 % of a core.
    rules: what watches the training (docs/rules.md): `metrics`, `all`, `off`, names of rules, or a JSON list with
        parameters and actions.
    tensor_steps: optimizer steps between two looks of rules at tensors; 0 means as debughookconfig.json says, else 100.
    profile: `auto` measures where the time of each step goes, without a change to the script (docs/profiler.md).
    fingerprint: what of each channel's data goes into the run record (docs/data.md): `sampled` names, sizes and places of
        files, `whole` all bytes, which takes as long as reading them does.
    from_run: name of the run whose model the channel `model` has, for the run record; `trainshed run --from-run` sets it.
    compiler: which compiler the training steps go through (docs/compiler.md); by default as the platform's flags say.
    compiler_mode: torch.compile's mode.
    compiler_regional: `on` compiles the repeated block of a model once, `off` the model as a whole, `auto` looks for such
        blocks.
    compiler_dynamic: whether shapes may change; `auto` leaves it to torch.
    compiler_cache: `auto` keeps compiled code beside the checkpoints.
    program: the script, for jobs without SageMaker's names for it.
    source: where the code is, for jobs without SageMaker's names for it.
    """

    distribution: str = ""
    processes_per_host: int = 0
    engine: str = "trainshed"
    pipeline: str = ""
    roles: str = ""
    servers: str = ""
    reduce: str = ""
    accelerate: str = ""
    max_restarts: int = 0
    min_nodes: int = 0
    argv: str = "sagemaker"
    grace_seconds: float = 110.0
    host_timeout_seconds: float = 300.0
    master_port: int = 0
    roster_port: int = 0
    install_timeout_seconds: float = 1800.0
    checkpoint: str = ""
    checkpoint_copy_to: str = ""
    checkpoint_every: str = ""
    checkpoint_memory: str = ""
    checkpoint_options: str = "saved"
    notices: str = "auto"
    interrupted_exit_code: int = 0
    hang_seconds: float = 1800.0
    warm_start: str = "off"
    on_hang: str = ""
    stacks: str = "on"
    bind: str = "none"
    metrics: str = "auto"
    system_metrics: str = "auto"
    rules: str = ""
    tensor_steps: int = 0
    profile: str = "off"
    fingerprint: str = "sampled"
    from_run: str = ""
    compiler: str = ""
    compiler_mode: str = "default"
    compiler_regional: str = "auto"
    compiler_dynamic: str = "auto"
    compiler_cache: str = "auto"
    program: str = ""
    source: str = ""


CHOICES = {
    "distribution": DISTRIBUTIONS,
    "engine": ENGINES,
    "servers": SERVERS,
    "reduce": ("", *REDUCTIONS),
    "argv": ARGV_STYLES,
    "checkpoint": ("", "auto"),
    "notices": ("auto", "off"),
    "warm_start": ("auto", "off"),
    "on_hang": ("stop", "continue"),
    "stacks": ("on", "off"),
    "profile": ("auto", "off"),
    "checkpoint_options": ("saved", "given"),
    "fingerprint": FINGERPRINTS,
    "bind": ("none", "cores", "numa"),
    "metrics": SOURCES,
    "compiler": BACKENDS,
    "compiler_mode": MODES,
    "compiler_regional": SWITCHES,
    "compiler_dynamic": SWITCHES,
    "compiler_cache": ("auto", "off"),
}
RANGES = {
    "processes_per_host": (0, 4096),
    "max_restarts": (0, 1000),
    "tensor_steps": (0, 1_000_000),
    "min_nodes": (0, 4096),
    "grace_seconds": (0, 86_400),
    "interrupted_exit_code": (0, 255),
    "host_timeout_seconds": (1, 86_400),
    "master_port": (0, 65_535),
    "roster_port": (0, 65_535),
    "install_timeout_seconds": (1, 86_400),
    "hang_seconds": (0, 864_000),
}
_SHORTEST_INTERVAL, _LONGEST_INTERVAL = 0.1, 60  # seconds between two samples, as the platform has it
_OTHER_VARIABLES = frozenset(row[0] for row in TABLE)  # not settings


def read_settings(
    reserved: Mapping[str, Any], hyperparameter_file: str, environ: Mapping[str, str], problems: list[Problem]
) -> Settings:
    """The settings that `trainshed_*` hyperparameters and `TRAINSHED_*` variables ask for; unknown ones are problems."""
    given: dict[str, Any] = {}
    for source, names in (
        ("environment", {k: v for k, v in environ.items() if k.startswith(PREFIX) and k not in _OTHER_VARIABLES}),
        (hyperparameter_file, {k: v for k, v in reserved.items() if k.startswith("trainshed_")}),
    ):
        for name, value in names.items():
            key = name[len("trainshed_") :].lower()
            if key not in Settings._fields:
                known = [f"{name[: len('trainshed_')]}{x if name.islower() else x.upper()}" for x in Settings._fields]
                problems.append(Problem(source, "is not a setting of trainshed", name, suggestion=near_name(name, known)))
                continue
            if value in ("", None):
                continue
            checked = _check(key, decode_value(value), value)
            if isinstance(checked, Problem):
                problems.append(checked.replace(file=source, field=name))
            else:
                given[key] = checked
    return Settings(**given)


def _check(key: str, value: Any, written: Any) -> Any:
    if key in CHOICES:
        if isinstance(value, bool) and {"on", "off"} <= set(CHOICES[key]):
            return "on" if value else "off"
        if value in CHOICES[key]:
            return value
        others = f", {OTHERS}" if key == "distribution" else ""
        if others and value in tuple(WORDS):
            return named(value)
        more = _added() if others else ()
        if value in more:
            return value
        near = did_you_mean(str(value), [*CHOICES[key], *more])
        return Problem("", f"must be one of {', '.join(CHOICES[key])}{others}", value=str(written), suggestion=near)
    if key in RANGES:
        low, high = RANGES[key]
        whole = isinstance(getattr(Settings, key), int)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not low <= value <= high or (whole and value != int(value)):
            kind = "a whole number" if whole else "a number"
            return Problem("", f"must be {kind} from {low} to {high}", value=str(written))
        return int(value) if whole else float(value)
    if key == "system_metrics":
        return _check_interval(value, written)
    if key == "checkpoint_copy_to" and "://" not in str(value):
        return Problem("", "must be a URL like s3://bucket/run", value=str(written))
    if key == "checkpoint_every":
        from .wire.checkpoint_every import read_every

        try:
            read_every(str(value))
        except ValueError as error:
            return Problem("", str(error), value=str(written))
    if key == "rules":
        from .wire.rules import wanted_rules

        try:
            wanted_rules(value)
        except ValueError as error:
            return Problem("", str(error), value=str(written))
        return value if isinstance(value, str) else quick_json.dumps(value)
    if key == "pipeline":
        if not isinstance(value, dict):
            return Problem("", "must be a JSON object of pipeline settings", value=str(written))
        return quick_json.dumps(value)
    if key in ("roles", "checkpoint_memory"):
        try:
            return quick_json.dumps(_object(key, value))
        except ValueError as error:
            return Problem("", str(error), value=str(written))
    return str(written if not isinstance(value, str) else value)


def _object(key: str, value: Any) -> dict[str, int]:
    """A setting that is an object of whole numbers, checked. Raises ValueError."""
    if key == "roles":
        from .wire.roles import read_roles

        return read_roles(value)
    from .wire.checkpoint_memory import read_memory

    return read_memory(value).plain()


def _added() -> tuple[str, ...]:
    from .distributions import added

    return added()


def _check_interval(value: Any, written: Any) -> Any:
    """`auto`, `off`, or a number of seconds, as text."""
    if isinstance(value, bool):
        return "auto" if value else "off"
    if value in ("auto", "off"):
        return value
    if isinstance(value, (int, float)) and _SHORTEST_INTERVAL <= value <= _LONGEST_INTERVAL:
        return str(value)
    return Problem("", "must be auto, off, or a number of seconds from 0.1 to 60", value=str(written))
