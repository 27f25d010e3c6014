"""Which GPUs of this machine each host of a job gets: hosts that share a machine must not share ranks' devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainshed.machine.hardware import probe
from trainshed.runner.files.run import Run
from trainshed.runner.job.job import ALL_GPUS


def present(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The machine's GPUs as CUDA names them, as far as `CUDA_VISIBLE_DEVICES` shows them."""
    count = probe(environ).gpus
    named = [entry.strip() for entry in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry.strip()]
    return tuple(named[:count]) if named else tuple(str(number) for number in range(count))


def wanted(run: Run) -> list[int | None]:
    """GPUs of each host, as the job says; None or `ALL_GPUS` for an equal part of what the others leave."""
    return [run.job.resources_of(run.job.group_of(host.name)).gpus for host in run.hosts]


def shares(devices: tuple[str, ...], wanted: Sequence[int | None]) -> list[tuple[str, ...]]:
    """The GPUs of each host. Where there are too few for everyone, hosts get the same ones in turn.

    Args:
        wanted: GPUs of each host, None or `ALL_GPUS` for an equal part of what the others leave.
    """
    open_ones = sum(one in (None, ALL_GPUS) for one in wanted)
    fixed = sum(min(one, len(devices)) for one in wanted if one is not None and one != ALL_GPUS)
    part = max(1, (len(devices) - fixed) // open_ones) if open_ones else 0
    counts = [part if one in (None, ALL_GPUS) else min(one or 0, len(devices)) for one in wanted]
    given, start = [], 0
    for count in counts if devices else [0] * len(wanted):
        given.append(tuple(devices[(start + number) % len(devices)] for number in range(count)))
        start += count
    return given
