"""The compile cache: its folder and name; unpacked before the ranks start, packed after they end.

Compiled code is for one torch, one Python, one device, and, on a CPU, for one set of instructions: inductor compiles for
the machine it runs on (`-march=native`), and such code ends in SIGILL on other CPUs. The key includes all of these.
"""

from __future__ import annotations

import os
import platform
import sys
import zlib

from trainshed.contract.wire.compile_cache import pack, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trainshed.contract.wire.compile_plan import CompilePlan

FOLDER = ".compile-cache"
CPUS = "/proc/cpuinfo"
GPUS = "/proc/driver/nvidia/gpus"


def key(torch: str, device: str, *, cpus: str = CPUS, gpus: str = GPUS) -> str:
    """The cache's name for this host.

    Args:
        torch: its version.
        device: `cuda`, `cpu`, or another device's whole name.
    """
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    what = _gpu_models(gpus) if device == "cuda" else _cpu_capability(cpus) if device == "cpu" else device
    return "-".join(_plain(part) for part in (f"torch-{torch}", python, platform.machine(), what))


def _plain(text: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "._" else "-" for letter in text)


def _gpu_models(folder: str) -> str:
    models = set()
    try:
        for name in os.listdir(folder):
            with open(f"{folder}/{name}/information", encoding="utf-8", errors="replace") as file:
                models |= {line.partition(":")[2].strip() for line in file if line.startswith("Model:")}
    except OSError:
        pass
    if not models:
        import subprocess

        try:
            command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
            done = subprocess.run(command, capture_output=True, timeout=20, check=False)
            models = {line.strip() for line in done.stdout.decode("utf-8", "replace").splitlines() if line.strip()}
        except (OSError, subprocess.TimeoutExpired):
            pass
    return "+".join(sorted(models)) or "cuda"


def _cpu_capability(path: str) -> str:
    """The largest vector instructions by name, and a checksum of all that the CPU can do."""
    flags: list[str] = []
    model = ""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() in ("flags", "Features"):
                    flags = sorted(value.split())
                    break
                if name.strip() == "model name":
                    model = value.strip()
    except OSError:
        pass
    best = next((flag for flag in ("avx512f", "avx2", "sve", "asimd") if flag in flags), "cpu")
    return f"{best}-{zlib.crc32(f'{model} {flags}'.encode()):08x}"


def live_folder(environ: Mapping[str, str], name: str) -> str:
    """A folder for this user on local disk; "" if another user owns that name."""
    place = environ.get("TMPDIR") or "/tmp"
    root = f"{place}/trainshed-compile-{os.getuid()}"
    try:
        stat = os.lstat(root)
        if stat.st_uid != os.getuid() or stat.st_mode & 0o022 or not os.path.isdir(root) or os.path.islink(root):
            return ""  # its contents are executed
    except FileNotFoundError:
        pass
    except OSError:
        return ""
    return f"{root}/{name}"


def restore(plan: CompilePlan, say: Callable[[str], None]) -> None:
    """Before the ranks: makes the live folder and fills it from the store. A lost cache only costs time."""
    if not plan.live:
        return
    try:
        os.makedirs(os.path.dirname(plan.live), mode=0o700, exist_ok=True)
        os.makedirs(plan.live, mode=0o700, exist_ok=True)
        if plan.store and os.path.exists(plan.store):
            added = unpack(plan.store, plan.live)
            say(f"compile cache: {added} files restored from {plan.store}")
    except (OSError, ValueError) as error:
        say(f"compile cache: not restored: {error}")


def keep(plan: CompilePlan, say: Callable[[str], None]) -> None:
    """After the ranks: packs what they have added."""
    if not plan.live or not plan.store or not (plan.keeper or not os.path.exists(plan.store)):
        return
    try:
        count = pack(plan.live, plan.store)
    except OSError as error:
        say(f"compile cache: not kept: {error}")
        return
    if count:
        say(f"compile cache: {count} files kept in {plan.store}")
