"""Adds the chosen compiler to a launch: variables for the ranks, hooks, folders of the cache, and messages."""

from __future__ import annotations

import os
import sys

from trainshed.base.errors import LaunchError
from trainshed.base.record import Record
from trainshed.contract.distributions import traits_of
from trainshed.contract.wire.compile_plan import CompilePlan
from trainshed.contract.wire.variables import AUTOPATCH, COMPILE_PLAN

from . import cache
from .choice import choose, device_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..launchers.launch import Launch
    from .choice import Choice, Device

NEURON_PORT = 62182  # torch_xla's own for NEURON_RT_ROOT_COMM_ID (torch_xla/_internal/neuron.py)


class Prepared(Record):
    """A launch to which the compiler's settings have been added.

    launcher: the distribution that starts it.
    plan: the ranks' compile plan; None if nothing is compiled.
    shown: the choice and its reason, for `--dry-run`.
    says: lines for the start of the job.
    prefix: a command that runs the launcher's command.
    """

    launch: Launch
    launcher: str
    plan: CompilePlan | None = None
    shown: str = ""
    says: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()


def prepare(launch: Launch, distribution: str) -> Prepared:
    """Chooses the compiler and adds its settings to the launch.

    Raises:
        LaunchError: the compiler that the job asks for cannot work here.
    """
    job, cluster, request = launch.job, launch.cluster, launch.job.compiler
    folders = _path(launch)
    torch_xla = version_of("torch_xla", folders)
    device = device_of(cluster.hardware, job.resources.current_instance_type, launch.environment)
    choice = choose(request, device, distribution, cluster.world_size, torch_xla)
    launch = _with_mp_fn(launch, choice) if traits_of(distribution).compiles else launch
    says = ["Found configuration for Training Compiler", "Configuring SM Training Compiler..."]
    if request.on and request.debug:
        says.append("Training Compiler set to debug mode")
    prepared = Prepared(launch, choice.launcher, shown=f"{choice.backend or 'off'}: {choice.why}")
    if not choice.backend:
        says = []
    elif choice.backend == "inductor":
        prepared = _inductor(prepared, device, version_of("torch", folders))
    elif choice.backend == "neuron":
        prepared = _neuron(prepared)
    else:
        prepared = _xla(prepared, choice, device, version_of("torch", folders), torch_xla)
    if torch_xla and (prepared.plan is None or prepared.plan.backend != "xla"):
        environment = {"USE_TORCH_XLA": "0", **prepared.launch.environment}  # as for jobs without a compiler
        prepared = prepared.replace(launch=prepared.launch.replace(environment=environment))
    return prepared.replace(says=(*says, f"compiler: {prepared.shown}", *prepared.says))


def _path(launch: Launch) -> list[str]:
    return [folder for folder in launch.environment.get("PYTHONPATH", "").split(os.pathsep) if folder]


def _with_mp_fn(launch: Launch, choice: Choice) -> Launch:
    """Starts a small program of ours in each process, which calls the script's `_mp_fn(index)`."""
    program = launch.program
    if program.kind != "python":
        if not traits_of(choice.launcher).compiles:
            return launch
        raise LaunchError(
            f"torch_xla starts Python scripts only, and {program.name} is a {program.kind}",
            hint="name a script that ends in .py",
        )
    python, script = program.command
    return launch.replace(program=program.replace(command=(python, "-m", "trainshed.compiler.mp_fn", script)))


def _plan(launch: Launch, backend: str, cache_key: str = "", live: str = "") -> CompilePlan:
    """The ranks' compile plan; without a folder for checkpoints the cache stays on this host's disk."""
    job, request = launch.job, launch.job.compiler
    live = live or (cache.live_folder(launch.environment, cache_key) if cache_key else "")
    keeps = live and cache_key and job.settings.compiler_cache != "off" and os.path.isdir(job.paths.checkpoints)
    return CompilePlan(
        backend=backend,
        mode=request.mode,
        regional=request.regional,
        dynamic=request.dynamic,
        debug=request.debug,
        host=launch.cluster.current_host,
        report=f"{job.paths.output_data}/compiler",
        live=live,
        store=f"{job.paths.checkpoints}/{cache.FOLDER}/{cache_key}.tar" if keeps else "",
        keeper=launch.cluster.rank == 0,
    )


def _with_plan(prepared: Prepared, plan: CompilePlan, hook: str, defaults: dict[str, str]) -> Prepared:
    """Adds the plan, its hook and default variables to the ranks' environment; the user's values win."""
    environment = {**defaults, **prepared.launch.environment, COMPILE_PLAN: plan.to_text()}
    present = environment.get(AUTOPATCH, "")
    environment[AUTOPATCH] = f"{present},{hook}" if present else hook
    return prepared.replace(launch=prepared.launch.replace(environment=environment), plan=plan)


# --- inductor --------------------------------------------------------------------------------------------------------


def _inductor(prepared: Prepared, device: Device, torch: str) -> Prepared:
    launch = prepared.launch
    environ, request = launch.environment, launch.job.compiler
    missing = _missing_compiler(environ, device.kind)
    if missing:
        return prepared.replace(shown=f"stepping back to eager: {missing}")
    own = environ.get("TORCHINDUCTOR_CACHE_DIR", "")
    plan = _plan(launch, "inductor", cache.key(torch, device.kind) if torch else "", live=own)
    plan = plan.replace(headers=device.kind == "cpu")  # on a GPU few kernels are in C++
    defaults = {
        # Accelerate's own variables: it compiles in its `prepare`, and the Trainer through it.
        "ACCELERATE_DYNAMO_BACKEND": "inductor",
        "ACCELERATE_DYNAMO_MODE": request.mode,
        "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": "false" if request.regional == "off" else "true",
    }
    if request.dynamic != "auto":
        defaults["ACCELERATE_DYNAMO_USE_DYNAMIC"] = "true" if request.dynamic == "on" else "false"
    if plan.live:
        defaults["TORCHINDUCTOR_CACHE_DIR"] = plan.live
    if request.debug:
        defaults.update(TORCH_COMPILE_DEBUG="1", TORCH_COMPILE_DEBUG_DIR=plan.report)
    kept = f"compile cache: kept in {plan.store}" if plan.store else "compile cache: for this host only"
    why = "" if plan.store else f" ({_why_not_kept(launch)})"
    return _with_plan(prepared, plan, "compile", defaults).replace(says=(kept + why,))


def _why_not_kept(launch: Launch) -> str:
    if launch.job.settings.compiler_cache == "off":
        return "trainshed_compiler_cache = off"
    if not os.path.isdir(launch.job.paths.checkpoints):
        return f"{launch.job.paths.checkpoints} does not exist"
    return "torch's version is not known"


def _missing_compiler(environ: dict[str, str], device: str) -> str:
    """Why inductor cannot compile here, "" if it can.

    On a CPU it needs a C++ compiler; on a GPU Triton needs a C compiler.
    """
    path = environ.get("PATH", os.defpath)
    if device == "cuda":
        names, what = [environ["CC"]] if environ.get("CC") else ["gcc", "clang"], "Triton needs a C compiler"
    else:
        names, what = [environ.get("CXX") or "g++"], "inductor needs a C++ compiler"
    if any(_which(name, path) for name in names):
        return ""
    return f"{what}, and there is no {' or '.join(names)} here (install one, or build the image with WITH_COMPILER=1)"


def _which(name: str, path: str) -> bool:
    places = [""] if "/" in name else [f"{folder or '.'}/" for folder in path.split(os.pathsep)]
    return any(os.access(f"{place}{name}", os.X_OK) and os.path.isfile(f"{place}{name}") for place in places)


# --- torch_xla and Neuron --------------------------------------------------------------------------------------------


def _xla(prepared: Prepared, choice: Choice, device: Device, torch: str, torch_xla: str) -> Prepared:
    launch = prepared.launch
    if torch_xla and torch.split(".")[:2] != torch_xla.split(".")[:2]:
        pair = ".".join(torch_xla.split(".")[:2])
        raise LaunchError(
            f"torch_xla {torch_xla} was built for torch {pair}, but the installed torch is {torch or 'none'}",
            hint="use the xla image (images/README.md), or install the pair of the same version",
        )
    if choice.backend == "neuron-xla":
        return _neuron_xla(prepared, torch)
    defaults = {"PJRT_DEVICE": device.kind.upper()}
    name = ""
    if device.kind == "tpu":  # a CPU's executables cannot be read back: "Deserializing ... not supported"
        name = cache.key(torch, f"tpu-{launch.environment.get('TPU_ACCELERATOR_TYPE', '')}")
    plan = _plan(launch, "xla", name)
    if plan.live:
        defaults["XLA_PERSISTENT_CACHE_PATH"] = plan.live
    if launch.job.compiler.debug:
        defaults.update(PT_XLA_DEBUG="1", PT_XLA_DEBUG_FILE=f"{plan.report}/xla.txt")
    return _with_plan(prepared, plan, "xla", defaults)


def _neuron_xla(prepared: Prepared, torch: str) -> Prepared:
    """trn1: torch_xla reads the ranks from torchrun's variables (torch_xla/_internal/neuron.py)."""
    launch = prepared.launch
    if launch.cluster.port == NEURON_PORT:
        raise LaunchError(
            f"rank 0 cannot listen on port {NEURON_PORT}: the Neuron runtime uses it",
            hint="set trainshed_master_port to another port",
        )
    environ = launch.environment
    plan = _plan(launch, "xla", cache.key(torch, "neuron") if torch else "")
    defaults = {"PJRT_DEVICE": "NEURON"}
    prepared = _with_plan(prepared, plan, "xla", defaults)
    flags = environ.get("NEURON_CC_FLAGS", "")
    if plan.live and "--cache_dir" not in flags and not environ.get("NEURON_COMPILE_CACHE_URL"):
        environment = {**prepared.launch.environment, "NEURON_CC_FLAGS": f"{flags} --cache_dir={plan.live}".strip()}
        prepared = prepared.replace(launch=prepared.launch.replace(environment=environment))
    if environ.get("RUN_NEURON_PARALLEL_COMPILE") == "1":  # as sagemaker-training reads it
        job = launch.job.replace(settings=launch.job.settings.replace(engine="torchrun"))
        prepared = prepared.replace(
            launch=prepared.launch.replace(job=job),
            prefix=("neuron_parallel_compile",),
            says=("neuron_parallel_compile collects the graphs of torch's launcher and compiles them in parallel",),
        )
    return prepared


def _neuron(prepared: Prepared) -> Prepared:
    """trn2 and newer: a native torch device whose compiler takes neither a mode nor dynamic shapes."""
    request = prepared.launch.job.compiler
    plan = _plan(prepared.launch, "neuron").replace(mode="default", dynamic="off")
    refused = [f"mode {request.mode}"] if request.mode != "default" else []
    refused += ["dynamic shapes"] if request.dynamic == "on" else []
    says = (f"compiler: the neuron backend does not support {' and '.join(refused)}: ignored",) if refused else ()
    return _with_plan(prepared, plan, "compile", {}).replace(says=says)


def version_of(package: str, folders: Iterable[str] = ()) -> str:
    """The version that `import package` would find, "" where it is not installed.

    Args:
        package: its import name, which has to be its distribution's name too.
        folders: searched before this interpreter's own path.
    """
    for folder in (*folders, *sys.path):
        if not folder or not os.path.isdir(f"{folder}/{package}"):
            continue
        prefix = f"{package}-".lower()
        names = [name for name in os.listdir(folder) if name.lower().startswith(prefix) and name.endswith(".dist-info")]
        return names[0][len(prefix) :].removesuffix(".dist-info") if names else "unknown"
    return ""
