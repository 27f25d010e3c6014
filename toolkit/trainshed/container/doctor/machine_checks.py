"""Checks of the machine or container, independent of the job: interpreter, limits, memory, GPUs, process 1."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from trainshed.base.check import LEAST_PYTHON, Check, fail, ok, warn
from trainshed.machine import cgroup
from trainshed.machine.hardware import probe

from ..supervisor.spawn import find_executable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from trainshed.contract.cluster import Hardware

GIB = 1 << 30
LEAST_SHM = 1 << 30  # bytes; data loaders and NCCL put their buffers there
LEAST_FILES = 1024
_SHELLS = ("sh", "bash", "dash", "ash", "zsh")


def checks(environ: Mapping[str, str]) -> list[Check]:
    """All checks of the machine."""
    hardware = probe(environ)
    return [
        python(),
        installer(environ),
        user(environ),
        processor(),
        memory(hardware),
        shared_memory(hardware),
        open_files(),
        clock(),
        process_one(),
        buffering(environ),
        *check_torch(hardware),
    ]


def python() -> Check:
    """The interpreter's version."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < LEAST_PYTHON:
        return fail("python", f"{version} at {sys.executable}", "use Python 3.10 or newer")
    return ok("python", f"{version} at {sys.executable}")


def installer(environ: Mapping[str, str]) -> Check:
    """Something to install a job's requirements with."""
    from importlib.util import find_spec

    found = [name for name in ("pip",) if find_spec(name)]
    found += ["uv"] if find_executable("uv", environ.get("PATH", os.defpath), "/") else []
    if not found:
        return warn("pip", "neither pip nor uv is installed", "install pip: a job's requirements.txt needs it")
    return ok("pip", f"{' and '.join(found)} for requirements.txt")


def user(environ: Mapping[str, str]) -> Check:
    """The user, and whether the home folder is writable, which caches need."""
    home = environ.get("HOME") or "/"
    who = f"uid {os.getuid()}, gid {os.getgid()}"
    if os.access(home, os.W_OK | os.X_OK):
        return ok("user", f"{who}, home {home}")
    return warn(
        "user", f"{who}, but its home {home} is not writable", "set HOME to a writable folder: docker run -e HOME=/tmp"
    )


def processor() -> Check:
    """CPUs that may be used."""
    limit = cgroup.cpu_limit()
    held = f", limited to {limit:g} by the control group" if limit is not None else ""
    return ok("cpus", f"{cgroup.cpus()} of {os.cpu_count()}{held}")


def memory(hardware: Hardware) -> Check:
    """Usable memory."""
    limited = " by the control group's limit" if cgroup.memory_limit() else ""
    text = f"{hardware.memory_bytes / GIB:.1f} GiB{limited}"
    if hardware.memory_bytes < GIB:
        return warn("memory", text, "raise it: docker run --memory 4g; importing torch alone takes 0.3 GiB a process")
    return ok("memory", text)


def shared_memory(hardware: Hardware) -> Check:
    """Size of /dev/shm, which is 64 MB in a container by default."""
    text = f"/dev/shm has {hardware.shm_bytes / (1 << 20):,.0f} MiB"
    if hardware.shm_bytes < LEAST_SHM:
        return warn("shm", f"{text}: data loaders with workers may end with a bus error", "docker run --shm-size 2g")
    return ok("shm", text)


def open_files() -> Check:
    """How many files a process may have open."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < LEAST_FILES:
        return warn("open files", f"at most {soft}", "ulimit -n 65536, or docker run --ulimit nofile=65536")
    return ok("open files", "no limit" if soft == resource.RLIM_INFINITY else f"at most {soft} (up to {hard} on request)")


def clock() -> Check:
    """Checks whether the clock is later than the installation of these files; a wrong clock breaks TLS and checkpoints."""
    import time

    now, installed = time.time(), os.stat(__file__).st_mtime
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < installed - 86_400:
        return fail("clock", f"it is {shown}, before trainshed was installed", "set the machine's clock")
    return ok("clock", shown)


def process_one() -> Check:
    """Process 1, which in a container receives stop signals and adopts orphans."""
    if os.getpid() == 1:
        return ok("process 1", "this command; `train` will be too, and then forwards signals and reaps children")
    try:
        with open("/proc/1/cmdline", "rb") as file:
            command = file.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        command = ""
    name = os.path.basename(command.split(" ")[0]) if command else "not to be seen"
    if os.path.exists("/.dockerenv") and name in _SHELLS:
        fix = 'start `train` itself: CMD ["train"], or `exec train` in the script'
        return warn("process 1", f"a shell ({command[:60]}), which does not forward stop signals to the job", fix)
    return ok("process 1", name)


def buffering(environ: Mapping[str, str]) -> Check:
    """Checks whether the script's lines appear when they are printed."""
    if environ.get("PYTHONUNBUFFERED", "1"):
        return ok("output", "lines appear as they are printed (PYTHONUNBUFFERED)")
    return warn(
        "output", "PYTHONUNBUFFERED is set but empty, so lines appear late", "unset PYTHONUNBUFFERED: train sets it to 1"
    )


_SECONDS = 180
_ASK = """\
import json, torch
cuda = torch.cuda.is_available()
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda or torch.version.hip, "available": cuda,
                  "count": torch.cuda.device_count() if cuda else 0,
                  "names": [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())] if cuda else []}))
"""


def check_torch(hardware: Hardware) -> list[Check]:
    """GPUs of the machine, and torch's view of them."""
    from importlib.util import find_spec

    gpus = f"{hardware.gpus} GPU(s)" if hardware.gpus else "none"
    if find_spec("torch") is None:
        return [ok("gpus", gpus), ok("torch", "not installed")]
    answer = _ask()
    if isinstance(answer, str):
        return [
            ok("gpus", gpus),
            fail("torch", f"installed, but cannot be imported: {answer}", "python -c 'import torch'"),
        ]
    return judge(hardware.gpus, answer)


def judge(gpus: int, torch: dict[str, Any]) -> list[Check]:
    """The two checks, from the number of GPUs and torch's answer (version, cuda, available, count, names)."""
    build = f"CUDA {torch['cuda']}" if torch["cuda"] else "CPU only"
    text = f"{torch['version']} ({build})"
    if not gpus:
        return [ok("gpus", "none"), ok("torch", text)]
    if not torch["cuda"]:
        fix = "install torch's CUDA build, or use the gpu image"
        return [ok("gpus", f"{gpus} GPU(s)"), fail("torch", f"{text}, but there are {gpus} GPU(s)", fix)]
    if not torch["available"]:
        fix = "the driver may be too old for this CUDA: compare nvidia-smi; in a container: docker run --gpus all"
        return [ok("gpus", f"{gpus} GPU(s)"), fail("torch", f"{text} finds no usable GPU of {gpus}", fix)]
    names = ", ".join(sorted(set(torch["names"])))
    if torch["count"] != gpus:
        fix = "check CUDA_VISIBLE_DEVICES and nvidia-smi"
        return [ok("gpus", f"{gpus} GPU(s)"), warn("torch", f"{text} sees {torch['count']} of {gpus} GPU(s): {names}", fix)]
    return [ok("gpus", f"{gpus} GPU(s): {names}"), ok("torch", text)]


def _ask() -> dict[str, Any] | str:
    """torch's answer, or the last line of its error."""
    try:
        # From /, so that no file of the user's (`random.py`) stands before a module that torch needs.
        done = subprocess.run(
            [sys.executable, "-c", _ASK], cwd="/", env={**os.environ}, capture_output=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {_SECONDS} s"
    except OSError as error:
        return str(error.strerror)
    try:
        answer = json.loads(done.stdout.decode("utf-8", "replace").splitlines()[-1])
    except (ValueError, IndexError):
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else f"exit status {done.returncode}"
    return answer if isinstance(answer, dict) else "no answer"
