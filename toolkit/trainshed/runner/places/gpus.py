"""Which GPUs of this machine each host of a job gets: hosts that share a machine must not share ranks' devices."""

from __future__ import annotations

from collections.abc import Mapping

from trainshed.machine.hardware import probe

from ..job.job import ALL_GPUS


def present(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The machine's GPUs as CUDA names them, as far as `CUDA_VISIBLE_DEVICES` shows them."""
    count = probe(environ).gpus
    named = [entry.strip() for entry in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry.strip()]
    return tuple(named[:count]) if named else tuple(str(number) for number in range(count))


def share(devices: tuple[str, ...], wanted: int | None, hosts: int, index: int) -> tuple[str, ...]:
    """The GPUs of the host with this index among `hosts`.

    Args:
        wanted: GPUs a host, None or `ALL_GPUS` for an equal part of all. Where there are too few for everyone, hosts
            get the same ones in turn.
    """
    if not devices or wanted == 0:
        return ()
    each = max(1, len(devices) // hosts) if wanted in (None, ALL_GPUS) else min(wanted or 0, len(devices))
    if each * hosts <= len(devices):
        return devices[index * each : (index + 1) * each]
    return tuple(devices[(index * each + number) % len(devices)] for number in range(each))
