"""Checks of the machine or container, independent of the job: interpreter, limits, memory, GPUs, process 1."""

from __future__ import annotations

import os
import sys

from trainshed.base.check import LEAST_PYTHON, Check, fail, ok, warn
from trainshed.machine import cgroup
from trainshed.machine.hardware import probe

from ..supervisor.spawn import find_executable
from .torch_check import check_torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

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
