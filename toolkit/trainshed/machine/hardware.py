"""CPUs, GPUs, Neuron cores and memory of this host; starts a program only where /dev does not tell."""

from __future__ import annotations

import os

from trainshed.contract.cluster import Hardware

from . import cgroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


# Neuron cores of machines whose `neuron-ls` counts other cores than programs see: a program on a trn2.48xlarge sees
# 64 cores of two physical ones each. Amazon's toolkit knows this machine by its name, too.
_KNOWN_NEURONS = {"trn2.48xlarge": 64}


def probe(environ: Mapping[str, str], instance_type: str = "") -> Hardware:
    """Counts CPUs, GPUs and Neuron cores, and reads the memory limits.

    Args:
        instance_type: the platform's name of this machine, such as `ml.trn2.48xlarge`; "" where it has none.
    """
    devices = _devices()
    gpus = _visible_gpus(sum(_numbered(name, "nvidia") for name in devices), environ)
    if not gpus and "dxg" in devices:  # Windows' Linux subsystem shows GPUs only through the driver's own tool
        gpus = _visible_gpus(sum(line.startswith("GPU ") for line in _output("nvidia-smi", "--list-gpus")), environ)
    known = next((cores for name, cores in _KNOWN_NEURONS.items() if name in instance_type), 0)
    neurons = _neuron_cores(environ, known) if known or any(_numbered(name, "neuron") for name in devices) else 0
    return Hardware(
        cpus=cgroup.cpus(),
        gpus=gpus,
        neurons=neurons,
        memory_bytes=cgroup.memory_limit() or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        shm_bytes=_shm_bytes(),
    )


def _devices() -> list[str]:
    try:
        return os.listdir("/dev")
    except OSError:
        return []


def _numbered(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and name[len(prefix) :].isdigit()


def _visible_gpus(present: int, environ: Mapping[str, str]) -> int:
    """GPUs that `CUDA_VISIBLE_DEVICES` leaves; the list ends at the first entry that is not a device (CUDA's own rule)."""
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None or not present:
        return present
    count = 0
    for entry in chosen.split(","):
        entry = entry.strip()
        if not entry or entry.startswith("-") or (entry.isdecimal() and int(entry[:9]) >= present):
            break
        count += 1
    return count


def _neuron_cores(environ: Mapping[str, str], known: int) -> int:
    visible = environ.get("NEURON_RT_NUM_CORES", "")
    if visible.isdecimal() and len(visible) < 9:
        return int(visible)
    if known:
        return known
    import json

    try:
        return sum(int(device["nc_count"]) for device in json.loads("\n".join(_output("neuron-ls", "-j")) or "[]"))
    except (ValueError, KeyError, TypeError):
        return 0


def _output(*command: str) -> list[str]:
    import subprocess

    try:
        done = subprocess.run(command, capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.decode("utf-8", "replace").splitlines()


def _shm_bytes() -> int:
    try:
        stat = os.statvfs("/dev/shm")
    except OSError:
        return 0
    return stat.f_blocks * stat.f_frsize
