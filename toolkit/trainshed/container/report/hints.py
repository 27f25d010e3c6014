"""Hints about a failure: a table of patterns in what was printed, and the advice for each.

Every hint names things of this job: the hyperparameter, the channel, the host, the size. Each has a case in
`tests/unit/container/report/test_hints.py`.
"""

from __future__ import annotations

import os
import re

from trainshed.base.errors import did_you_mean
from trainshed.base.record import Record

from ..hangs.timed_out import COLLECTIVE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from trainshed.contract.cluster import Cluster
    from trainshed.contract.job import TrainingJob


class Context(Record):
    """The facts known when a hint is looked for.

    text: the exception with its traceback, or the last lines if there is no exception.
    around: the lines just before it and all after it. Neither has an error that the script handled long before.
    signal: the signal that killed it, 0 for none.
    returncode: its exit status, -n for signal n.
    oom_kills: processes of this control group that the kernel killed for memory during the run.
    stop_signal: the stop signal that we were sent before, 0 for none.
    waited: seconds from that signal to its end.
    """

    text: str
    job: TrainingJob
    cluster: Cluster
    code_folder: str = ""
    signal: int = 0
    returncode: int = 1
    oom_kills: int = 0
    stop_signal: int = 0
    waited: float = 0.0
    killed_by_us: bool = False
    around: str = ""


# argparse, click, transformers' HfArgumentParser.
_UNRECOGNIZED = (
    r"(?:error: unrecognized arguments: |Error: No such option:? |not used by the HfArgumentParser: )(?P<arguments>.+)"
)


class Hint(Record):
    """One row of the table: `advice` is called with the context and the match; "" means it does not apply after all."""

    name: str
    pattern: str
    advice: Callable[[Context, re.Match[str]], str]


def hint_for(context: Context) -> str:
    """The first hint that applies, "" for none."""
    return next((advice for _, advice in matching(context)), "")


def matching(context: Context) -> list[tuple[str, str]]:
    """All hints that apply, as (name, advice), best first."""
    found = []
    for name, special in SPECIAL:
        advice = special(context)
        if advice:
            found.append((name, advice))
    for text in (context.text, context.around):
        for hint in HINTS:
            match = re.search(hint.pattern, text, re.MULTILINE)
            advice = hint.advice(context, match) if match else ""
            if advice and (hint.name, advice) not in found:
                found.append((hint.name, advice))
    return found


def _megabytes(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB" if size < 1 << 34 else f"{size / (1 << 30):,.0f} GiB"


# What the way of dying tells, whatever was printed.


def _stopped(context: Context) -> str:
    if not context.stop_signal:
        return ""
    if context.killed_by_us:
        return (
            f"the script had not ended {context.waited:.1f} s after the stop signal; "
            "save less, or raise trainshed_grace_seconds if the platform gives more time"
        )
    if context.signal == context.stop_signal:
        return (
            "the job was stopped from outside and the script has no handler for the signal; "
            "handle SIGTERM to save a checkpoint before it ends"
        )
    return "the job was stopped from outside (a stop request, a spot interruption or the time limit)"


def _out_of_memory(context: Context) -> str:
    if context.oom_kills:
        limit = _megabytes(context.cluster.hardware.memory_bytes)
        return (
            f"the kernel killed it because memory ran out: the container may use {limit}; "
            "use a smaller batch, fewer data-loader workers, or more memory"
        )
    if context.signal == 9 and not context.killed_by_us:
        return (
            "the process got SIGKILL from outside: usually the host ran out of memory (see `dmesg`), "
            "otherwise somebody killed it"
        )
    return ""


def _illegal_instruction(context: Context) -> str:
    if context.signal != 4:
        return ""
    return "a library was built for a newer processor than this one; install another build of it"


ROOMY_SHM = 1 << 30  # bytes of /dev/shm from which on its size is not the likely reason


def _bus_error(context: Context) -> str:
    if context.signal != 7:
        return ""
    size = context.cluster.hardware.shm_bytes
    if size < ROOMY_SHM:
        return _shared_memory(context, None)
    return (
        "a file that was mapped into memory ended early or could not grow: "
        f"look for a full disk (/dev/shm has {_megabytes(size)})"
    )


SPECIAL: tuple[tuple[str, Callable[[Context], str]], ...] = (
    ("stopped", _stopped),
    ("out-of-memory", _out_of_memory),
    ("illegal-instruction", _illegal_instruction),
    ("bus-error", _bus_error),
)


# What was printed.


def _shared_memory(context: Context, _: re.Match[str] | None) -> str:
    size = context.cluster.hardware.shm_bytes
    return (
        f"shared memory is too small: /dev/shm has {_megabytes(size)}; start the container with --shm-size=2g or more "
        "(Kubernetes: an emptyDir with medium Memory), or set num_workers to 0"
    )


def _cuda_memory(context: Context, _: re.Match[str]) -> str:
    name = next(
        (n for n in ("batch_size", "batch-size", "per_device_train_batch_size") if n in context.job.hyperparameters.user),
        "",
    )
    value = f" (it is {context.job.hyperparameters.user[name]})" if name else ""
    return f"the GPU's memory is full: lower {name or 'the batch size'}{value}, use bf16 or activation checkpointing"


def _missing_hosts(context: Context, match: re.Match[str]) -> str:
    from ..cluster.hosts import resolves

    others = [host for host in context.cluster.hosts if host != context.cluster.current_host]
    gone = [host for host in others if not resolves(host)]
    counts = re.search(r"(?<!\d)(\d+)/(\d+) clients joined", context.text)
    joined = f"{counts[1]} of {counts[2]} ranks joined; " if counts else ""
    if gone:
        return f"{joined}{', '.join(gone)} no longer resolves: find out why that host ended"
    if not others:
        return f"{joined}a rank on this host did not reach init_process_group; see the other ranks' logs"
    return (
        f"{joined}see the logs of {', '.join(others[:6])}: a rank there did not start or ended early; "
        f"port {context.cluster.port} of {context.cluster.master} must be open between the hosts"
    )


def _peer_lost(context: Context, _: re.Match[str]) -> str:
    if context.cluster.world_size == 1:  # then it was no rank, but some server
        return ""
    others = [host for host in context.cluster.hosts if host != context.cluster.current_host]
    where = f" on {', '.join(others[:6])}" if others else ""
    return f"another rank ended first{where}; its log has the reason"


def _port(context: Context, match: re.Match[str]) -> str:
    return (
        f"a port is taken (the rendezvous uses {context.cluster.port}): another job runs on this machine; "
        "set trainshed_master_port, or MASTER_PORT, to a free one"
    )


_DISTRIBUTIONS = {
    "cv2": "opencv-python-headless",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "yaml": "pyyaml",
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "Crypto": "pycryptodome",
    "dateutil": "python-dateutil",
    "google.protobuf": "protobuf",
    "attr": "attrs",
}


def _module(context: Context, match: re.Match[str]) -> str:
    module = match["module"]
    top = module.split(".")[0]
    local = _names_of(context.code_folder)
    if top == "smdebug":
        return "smdebug is no longer maintained: remove it from the script, and set trainshed_rules to watch the training"
    distribution = _DISTRIBUTIONS.get(module, _DISTRIBUTIONS.get(top, top))
    add = f"add {distribution} to requirements.txt beside the script, or to the image"
    near = did_you_mean(top, local) if distribution == top else ""
    if near and any(top in name or name in top for name in local if repr(name) in near):  # named after the package, perhaps
        return f"{add}; if a module of the code folder is meant: {near}"
    return f"the code folder has no {top!r}; {near}" if near else add


_LARGEST_SCRIPT = 1 << 20  # characters of a script that are searched


def _names_of(folder: str) -> list[str]:
    try:
        names = os.listdir(folder) if folder else []
    except OSError:
        return []
    return [name[:-3] if name.endswith(".py") else name for name in names if not name.startswith((".", "_"))]


def _disk_full(context: Context, match: re.Match[str]) -> str:
    if "/dev/shm" in context.text or "shared memory" in context.text:
        return _shared_memory(context, match)
    paths = context.job.paths
    sizes = []
    for folder in (paths.model, paths.output, paths.checkpoints, "/tmp"):
        try:
            stat = os.statvfs(folder)
        except OSError:
            continue
        sizes.append(f"{folder} {_megabytes(stat.f_bavail * stat.f_frsize)}")
    return f"a disk is full; free: {', '.join(sizes)}. Keep fewer checkpoints, or give the job a larger volume"


def _read_only(context: Context, match: re.Match[str]) -> str:
    return (
        f"channels and the image are read-only; write to {context.job.paths.model} (SM_MODEL_DIR), "
        f"{context.job.paths.output_data} (SM_OUTPUT_DATA_DIR) or /tmp"
    )


def _unrecognized(context: Context, match: re.Match[str]) -> str:
    given = re.findall(r"(?:^|[\s'\"\[])--?([^\s='\",\]]+)", match["arguments"])
    names = [name for name in given if name in context.job.hyperparameters.user]
    flags = [name for name, value in context.job.hyperparameters.user.items() if value is True or value is False]
    if not names and flags and {"True", "False"} & set(match["arguments"].split()):
        return _flag(context, flags[0])
    if not names:
        return "the script's parser does not know these arguments"
    if letters := [name for name in names if len(name) == 1]:
        return _letter(letters[0])
    listed = ", ".join(repr(name) for name in names[:4])
    known = re.findall(r"--([A-Za-z][\w-]*)", context.around.split("error:")[0])
    near = did_you_mean(names[0], known)
    return f"hyperparameter{'s' if len(names) > 1 else ''} {listed} became arguments that the script does not take" + (
        f"; {near}" if near else "; remove them, add them to its parser, or use parse_known_args"
    )


def _letter(name: str) -> str:
    return (
        f"hyperparameter {name!r} is passed as `-{name} VALUE`, as on the platform, since its name is one letter: "
        f"write add_argument('-{name}', '--{name}', ...), or set trainshed_argv to json"
    )


def _required(context: Context, match: re.Match[str]) -> str:
    letters = re.findall(r"(?:^|[ /])--(\w)(?=,|$)", match["arguments"])
    if given := [name for name in letters if name in context.job.hyperparameters.user]:
        return _letter(given[0])
    names = ", ".join(repr(name.split("/")[-1].strip().lstrip("-")) for name in match["arguments"].split(","))
    sets = ", ".join(sorted(context.job.hyperparameters.user)) or "none"
    return f"the script requires the hyperparameter(s) {names}; the job sets: {sets}"


def _flag(context: Context, name: str) -> str:
    value = context.job.hyperparameters.user[name]
    return (
        f"hyperparameter {name!r} is {value}, passed as `--{name} {value}`; for flags without a value "
        "set trainshed_argv to flags"
    )


def _bad_argument(context: Context, match: re.Match[str]) -> str:
    name = match["name"].split("/")[-1].lstrip("-")
    value = context.job.hyperparameters.user.get(name)
    if value is True or value is False:
        return _flag(context, name)
    if isinstance(value, str) and value.startswith("-"):
        return f"the value of hyperparameter {name!r} begins with '-', which argparse takes for an option"
    return f"hyperparameter {name!r} has a value that the script's parser rejects"


def _missing_file(context: Context, match: re.Match[str]) -> str:
    path = match["path"]
    data = context.job.paths.input_data
    channels = [channel.name for channel in context.job.channels]
    if path.startswith(data + "/"):
        channel = path[len(data) + 1 :].split("/")[0]
        if channel not in channels:
            near = did_you_mean(channel, channels)
            return f"there is no channel {channel!r}; channels are {', '.join(channels) or 'none'}" + (
                f" ({near})" if near else ""
            )
        return f"channel {channel!r} does not contain it; {_listing(f'{data}/{channel}')}"
    if "/" not in path and "_execute_child" in context.text:  # the program that `subprocess` was to start
        return f"{path} is not installed in the image, or not on PATH"
    if not path.startswith("/"):
        return f"the path is relative to {context.code_folder}; data lies in {data}/<channel> (SM_CHANNEL_<NAME>)"
    folder = os.path.dirname(path)
    if os.path.isdir(folder):
        return f"{folder} does not contain it; {_listing(folder)}"
    return f"{folder} does not exist in this container"


def _listing(folder: str) -> str:
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        return f"{folder} cannot be listed: {error.strerror}"
    return f"it holds {', '.join(names[:6])}{' ...' if len(names) > 6 else ''}" if names else "it is empty"


def _permission(context: Context, match: re.Match[str]) -> str:
    if match["program"]:
        return f"{match['program']} may not be used or run by uid {os.getuid()}; check its owner and its execute bit"
    return (
        f"the job runs as uid {os.getuid()}, which has no permission for {match['path']}; "
        "make the mounted folder writable for it, or start the container with --user of the folder's owner"
    )


def _command_missing(context: Context, match: re.Match[str]) -> str:
    return f"{match['command']} is not installed in the image, or not on PATH"


def _syntax(context: Context, match: re.Match[str]) -> str:
    import platform

    return f"the script does not parse with this image's Python {platform.python_version()}"


def _no_channel(context: Context, wanted: str) -> str:
    channels = [channel.name for channel in context.job.channels]
    near = did_you_mean(wanted, channels)
    return f"the job has no channel {wanted!r}; channels are {', '.join(channels) or 'none'}" + (
        f" ({near})" if near else ""
    )


def _channel_variable(context: Context, match: re.Match[str]) -> str:
    if match["name"].startswith("SM_CHANNEL_"):
        return _no_channel(context, match["name"][len("SM_CHANNEL_") :].lower())
    return f"the job does not set {match['name']}; hyperparameters become SM_HP_<NAME>, channels SM_CHANNEL_<NAME>"


def _channel_is_none(context: Context, match: re.Match[str]) -> str:
    """`os.environ.get("SM_CHANNEL_TRAIN")` is None where the job has no such channel; the error comes later."""
    given = {re.sub(r"\W", "_", channel.name.upper()) for channel in context.job.channels}
    missing = [name for name in _channels_read_by(context) if name not in given]
    if not missing:
        return ""
    return f"the script reads SM_CHANNEL_{missing[0]}, which is not set: {_no_channel(context, missing[0].lower())}"


def _channels_read_by(context: Context) -> list[str]:
    """Names of the SM_CHANNEL_ variables in the user's files of the traceback, those of its innermost file first."""
    folder = context.code_folder.rstrip("/")
    files = [file for file in re.findall(r'File "([^"]+)", line \d+', context.text) if file.startswith(f"{folder}/")]
    names: list[str] = []
    for file in dict.fromkeys(reversed(files)) if folder else ():
        try:
            with open(file, encoding="utf-8", errors="replace") as source:
                names += re.findall(r"SM_CHANNEL_([A-Z0-9_]+)", source.read(_LARGEST_SCRIPT))
        except OSError:
            continue
    return list(dict.fromkeys(names))


def _always(text: str) -> Callable[[Context, re.Match[str]], str]:
    return lambda _context, _match: text


def _worker_memory(context: Context, match: re.Match[str]) -> str:
    if re.search(r"killed by signal: (?!Killed)", context.around):
        return ""
    memory = _megabytes(context.cluster.hardware.memory_bytes)
    return (
        f"a data-loader worker was killed, usually because memory ran out ({memory} available): "
        "use fewer workers or more memory"
    )


def _shadowed(context: Context, match: re.Match[str]) -> str:
    file = match["imported"] or match["partial"]
    if os.path.dirname(file) != context.code_folder.rstrip("/"):
        return ""
    return f"{os.path.basename(file)} in the code folder hides the module of that name that a library needs; rename it"


HINTS: tuple[Hint, ...] = (
    Hint(
        "too-many-files",
        r"Too many open files",
        _always("raise the limit (docker run --ulimit nofile=1048576), or use fewer data-loader workers"),
    ),
    Hint(
        "worker-memory",
        r"DataLoader worker .* killed by signal: Killed|DataLoader worker .* exited unexpectedly"
        r"|in rebuild_storage_\w+\n(?:.*\n)*?(?:ConnectionReset|ConnectionRefused|FileNotFound|EOF)Error",
        _worker_memory,
    ),
    Hint(
        "shared-memory",
        r"DataLoader worker .* killed by signal: Bus error"
        r"|unable to (?:open|mmap|write|allocate|resize) (?:shared memory|.*</torch_)"
        r"|(?:shm_open|/dev/shm)\S* .*No space|No space left on device.*(/dev/shm|torch_)",
        _shared_memory,
    ),
    Hint("cuda-out-of-memory", r"CUDA out of memory|OutOfMemoryError: CUDA|CUBLAS_STATUS_ALLOC_FAILED", _cuda_memory),
    Hint(
        "cuda-driver",
        r"CUDA driver version is insufficient|NVIDIA driver on your system is too old"
        r"|no kernel image is available|forward compatibility was attempted",
        _always(
            "the image's CUDA does not match this machine's driver or GPU; use an image built for an older CUDA, "
            "or update the driver (`nvidia-smi` shows what it supports)"
        ),
    ),
    Hint(
        "no-gpu",
        r"Found no NVIDIA driver|No CUDA GPUs are available|Torch not compiled with CUDA enabled"
        r"|libcuda\.so\.1: cannot open",
        _always(
            "no GPU is visible here: start the container with --gpus all, use the GPU image, "
            "or let the script fall back to the CPU"
        ),
    ),
    Hint(
        "device-assert",
        r"device-side assert triggered",
        _always("a label or index is out of range; run on the CPU, or with CUDA_LAUNCH_BLOCKING=1, to see the line"),
    ),
    Hint(
        "illegal-address",
        r"illegal memory access was encountered|CUDA_ERROR_ILLEGAL_ADDRESS",
        _always(
            "a kernel read or wrote memory that is not its own; CUDA_LAUNCH_BLOCKING=1 shows the line that started it, and "
            "`compute-sanitizer` the kernel"
        ),
    ),
    Hint(
        "faulty-gpu",
        r"uncorrectable ECC error|[Uu]ncorrectable NVLink error|fallen off the bus|hardware stack error"
        r"|Xid \([^)]*\): (?:48|62|63|64|74|79|92|94|95|119|120)\b",
        _always(
            "this GPU is faulty, and the script is not: take the machine out (`nvidia-smi -q -d ECC,ROW_REMAPPER`, `dmesg`) "
            "and start again elsewhere; a checkpoint resumes"
        ),
    ),
    Hint(
        "shared-gpu",
        r"Duplicate GPU detected",
        _always(
            "two ranks use one GPU, and NCCL wants that each has its own: set the device by LOCAL_RANK, or start as many "
            "ranks as there are GPUs (trainshed_processes_per_host)"
        ),
    ),
    Hint(
        "too-few-gpus",
        r"invalid device ordinal",
        _always(
            "this rank asked for a GPU that this host does not have: start at most as many ranks as there are GPUs "
            "(trainshed_processes_per_host), or see CUDA_VISIBLE_DEVICES"
        ),
    ),
    Hint(
        "mpi-slots",
        r"There are not enough slots available in the system",
        _always(
            "more ranks were asked for than the hosts have slots: trainshed_processes_per_host says how many each has, and "
            "`-np` or sagemaker_mpi_num_processes how many ranks there are; `--oversubscribe` among the options allows it"
        ),
    ),
    Hint(
        "mpi-binding",
        r"A request was made to bind.*(?:\n.*)*overload-allowed",
        _always(
            "there are more ranks than CPUs to bind them to: leave `--bind-to` out of sagemaker_mpi_custom_mpi_options, "
            "start fewer ranks, or add `:overload-allowed`"
        ),
    ),
    Hint(
        "mpi-option",
        r"mpirun: Error: unknown option|An unrecognized option was included on the mpirun command line"
        r"|The specified (?:mapping policy|mapby directive|binding policy) is not recognized",
        _always(
            "sagemaker_mpi_custom_mpi_options is passed to mpirun unchanged, and this version does not know the option "
            "(`mpirun --version` in the image; 4.1 and 5 differ)"
        ),
    ),
    Hint(
        "mpi-unreachable",
        r"Unable to find reachable pairing between local and remote interfaces"
        r"|unable to (?:reliably start one or more daemons|complete a TCP connection)"
        r"|At least one pair of MPI processes are unable to reach each other",
        _always(
            "the hosts cannot reach each other by MPI: its ports must be open between them, and the interface right "
            "(`--mca btl_tcp_if_include eth0` among the options names one)"
        ),
    ),
    Hint("port-in-use", r"[Aa]ddress already in use|EADDRINUSE", _port),
    Hint(
        "rendezvous-timeout",
        r"[Tt]imed out after \d+ seconds waiting for clients"
        r"|RendezvousTimeoutError|The client socket has (?:timed out|failed to connect)|DistNetworkError|DistStoreError",
        _missing_hosts,
    ),
    Hint(
        "collective-timeout",
        COLLECTIVE,
        _always(
            "a rank did not join a collective in time: look for ranks that skip a step, have fewer batches, "
            "or are stuck in data loading"
        ),
    ),
    Hint(
        "interface",
        r"Unable to (?:resolve hostname|find (?:address|interface))|[Nn]o (?:socket )?interface found"
        r"|network interface .* not found",
        _always(
            "the network library found no usable interface; set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME "
            "to the one that `ip route` shows"
        ),
    ),
    Hint(
        "peer-lost",
        r"Connection (?:closed|reset) by (?:remote )?peer|ncclRemoteError"
        r"|[Rr]emote process (?:exited|has terminated)|Broken pipe.*gloo",
        _peer_lost,
    ),
    Hint(
        "shadowed-module",
        r'File "[^"]*/(?:lib/python3|(?:site|dist)-packages/)[^"]*", line \d+.*\n\s+(?:from|import) (?P<module>\w+).*\n'
        r'(?:[ ~^]*\n)?\s+File "(?P<imported>/[^"]*/(?P=module)\.py)"'
        r"|cannot import name .* from (?:partially initialized module )?'\w+'.* \((?P<partial>/[^)]*)\)",
        _shadowed,
    ),
    Hint("module", r"ModuleNotFoundError: No module named '(?P<module>[^']+)'", _module),
    Hint(
        "glibc",
        r"version `(?:GLIBC|GLIBCXX|CXXABI)_[^']*' not found",
        _always(
            "a compiled package was built for a newer system; install a wheel for this image, or use a newer base image"
        ),
    ),
    Hint(
        "exec-format",
        r"Exec format error",
        _always("the program was built for another processor architecture, or is a script without a `#!` line"),
    ),
    Hint("unrecognized-arguments", _UNRECOGNIZED, _unrecognized),
    Hint("required-arguments", r"error: the following arguments are required: (?P<arguments>.+)", _required),
    Hint("bad-argument", r"error: argument (?P<name>[^\s:]+): (?:expected|invalid|ignored)", _bad_argument),
    Hint("channel-variable", r"KeyError: '(?P<name>SM_[A-Z0-9_.-]+)'", _channel_variable),
    Hint(
        "channel-is-none",
        r"expected str, bytes or os\.PathLike object, not NoneType|(?:path|argument) should be .*not '?NoneType"
        r"|unsupported operand type\(s\) for [+/]: '(?:NoneType' and 'str|str' and 'NoneType)'"
        r"|can only concatenate str \(not \"NoneType\"\)|file path or buffer object type: <class 'NoneType'>"
        r"|'NoneType' object has no attribute '(?:\w*(?:with|split|strip|replace|join)\w*)'"
        r"|(?:FileNotFoundError|NotADirectoryError): .*'None(?:/[^']*)?'",
        _channel_is_none,
    ),
    Hint(
        "noexec",
        r"failed to map segment from shared object",
        _always(
            "a compiled library lies on a file system that is mounted noexec: mount it with exec "
            "(docker run --tmpfs /tmp:exec), or install the package in the image"
        ),
    ),
    Hint("disk-full", r"No space left on device|Disk quota exceeded", _disk_full),
    Hint("read-only", r"Read-only file system", _read_only),
    Hint(
        "permission",
        r"PermissionError: .*?'(?P<path>[^']+)'|(?<!\S)(?P<program>\S+): Permission denied",
        _permission,
    ),
    Hint("missing-file", r"(?:FileNotFoundError|No such file or directory).*?'(?P<path>[^']+)'", _missing_file),
    Hint(
        "spawn",
        r"An attempt has been made to start a new process before the|freeze_support\(\)|context has already been set",
        _always(
            'put the script\'s main part under `if __name__ == "__main__":`; '
            "the libraries it uses start processes of their own"
        ),
    ),
    Hint(
        "hub-offline",
        r"couldn't connect to 'https://huggingface|OfflineModeIsEnabled|LocalEntryNotFoundError"
        r"|Temporary failure in name resolution|Name or service not known.*https?",
        _always("the container cannot reach that server: put models and data into a channel or the image"),
    ),
    Hint(
        "command-missing",
        r"^(?:\S+: (?:line )?\d+: |(?:/\S*/)?\w*sh: )(?P<command>[^\s:]+): (?:command )?not found",
        _command_missing,
    ),
    Hint("syntax", r"^(?:SyntaxError|IndentationError|TabError)", _syntax),
    Hint("recursion", r"RecursionError", _always("a function calls itself without an end condition; see the traceback")),
    Hint(
        "unpicklable",
        r"(?:PicklingError|AttributeError|TypeError): (?:Can't|cannot|Can.t get) (?:pickle|local object)",
        _always("worker processes need picklable objects: move lambdas and local classes to the top of a module"),
    ),
)
