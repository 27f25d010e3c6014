"""Which compiler a job gets, and how its ranks are then started: a pure function of the request and the device.

    CUDA, CPU     inductor (torch.compile), ranks as torchrun's
    TPU           torch_xla, its own launcher
    trn1, inf     torch_xla's Neuron variant, ranks as torchrun's
    trn2, trn3    Neuron's native backend, ranks as torchrun's

torch_xla has no CUDA support since 2.9. On a CPU its processes do not find each other: two ranks would train two models
and report success. So on a CPU it runs in one process or not at all.
"""

from __future__ import annotations

import os
import re

from trainshed.base.errors import LaunchError
from trainshed.base.record import Record
from trainshed.contract.distributions import traits_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainshed.contract.cluster import Hardware
    from trainshed.contract.distributions import DistributionTraits
    from trainshed.contract.wire.compile_plan import CompilerRequest

_OF_DEVICE = {"cuda": "inductor", "cpu": "inductor", "tpu": "xla", "trn1": "neuron-xla", "trn2": "neuron"}
_NAMES = {"cuda": "a GPU", "cpu": "a CPU", "tpu": "a TPU", "trn1": "trn1's Neuron cores", "trn2": "trn2's Neuron cores"}


class Choice(Record):
    """backend: `inductor`, `xla`, `neuron-xla`, `neuron`, or "" for none; launcher: the distribution that starts it."""

    backend: str
    why: str
    launcher: str


def choose(request: CompilerRequest, device: Device, distribution: str, world_size: int, torch_xla: str) -> Choice:
    """The compiler for this job.

    Args:
        distribution: the job's own.
        world_size: processes in the whole job.
        torch_xla: its version where it is installed, else "".

    Raises:
        LaunchError: the requested compiler cannot work here, or would silently train separate models.
    """
    traits = traits_of(distribution)
    ranks = traits.uncompiled or distribution
    if not request.on:
        why = f"turned off by {request.asked_by}" if request.asked_by else "not requested"
        return Choice("", why, ranks)
    backend, why = _backend(request, device, traits, torch_xla)
    if backend != "xla":
        return Choice(backend, why, ranks)
    if not traits.under_xla:
        raise LaunchError(
            f"torch_xla starts its own processes, but the job also asks for the distribution {distribution!r}",
            hint="leave out the distribution, or set trainshed_compiler to auto",
        )
    if not torch_xla:
        raise LaunchError(
            f"{request.asked_by} asks for torch_xla, which is not installed",
            hint="use the xla image (images/README.md), or set trainshed_compiler to inductor",
        )
    if device.kind == "cpu" and world_size > 1:
        raise LaunchError(
            f"torch_xla on a CPU cannot train with {world_size} processes: they cannot communicate, so each would train "
            "a separate model and report success",
            hint="use one process, or set trainshed_compiler to inductor to compile the ranks of torchrun",
        )
    return Choice("xla", why, "xla")


def _backend(request: CompilerRequest, device: Device, traits: DistributionTraits, torch_xla: str) -> tuple[str, str]:
    best = _OF_DEVICE[device.kind]
    if request.backend == "auto":
        if device.kind == "cpu" and traits.compiles and torch_xla:
            return "xla", f"{device.evidence}; torch_xla {torch_xla} is installed and {request.asked_by} asks for it"
        why = device.evidence
        if traits.compiles and best == "inductor":
            why += "; torch_xla no longer compiles for it" if device.kind == "cuda" else "; torch_xla is not installed"
        return best, why
    asked = f"{request.asked_by} = {request.backend}"
    if request.backend == "inductor" and best == "inductor":
        return best, f"{asked}; {device.evidence}"
    if request.backend == "neuron" and best.startswith("neuron"):
        return best, f"{asked}; {device.evidence}"
    if request.backend == "xla" and device.kind in ("tpu", "cpu", "trn1"):
        return ("neuron-xla" if device.kind == "trn1" else "xla"), f"{asked}; {device.evidence}"
    reason = ": torch_xla has had no CUDA since 2.9" if (request.backend, device.kind) == ("xla", "cuda") else ""
    raise LaunchError(
        f"{asked}, which does not compile for {_NAMES[device.kind]} ({device.evidence}){reason}",
        hint="set trainshed_compiler to auto",
    )


# TPU hosts set these variables (Google's TPU VM and GKE documentation) and have `/dev/accel<n>`; EC2 shows an instance's
# type as its DMI product name.
PRODUCT = "/sys/devices/virtual/dmi/id/product_name"
_TPU_VARIABLES = ("TPU_ACCELERATOR_TYPE", "TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES", "TPU_NAME")


class Device(Record):
    """kind: `cuda`, `tpu`, `trn1` (Neuron with XLA), `trn2` (native Neuron) or `cpu`; evidence: how we know."""

    kind: str
    evidence: str


def device_of(
    hardware: Hardware,
    instance_type: str,
    environ: Mapping[str, str],
    *,
    devices: str = "/dev",
    product: str = PRODUCT,
) -> Device:
    """The device that this host's ranks train on."""
    if hardware.gpus:
        return Device("cuda", f"{hardware.gpus} GPU{'s' if hardware.gpus > 1 else ''}")
    if hardware.neurons:
        return _neuron(hardware.neurons, instance_type, product)
    if environ.get("PJRT_DEVICE", "").upper() == "TPU":
        return Device("tpu", "PJRT_DEVICE is TPU")
    named = next((name for name in _TPU_VARIABLES if environ.get(name)), "")
    if named:
        return Device("tpu", f"{named} is set")
    chips = sum(1 for name in _names(devices) if re.fullmatch(r"accel\d+", name))
    if chips:
        return Device("tpu", f"{chips} TPU chip{'s' if chips > 1 else ''} in {devices}")
    return Device("cpu", "no GPU, TPU or Neuron core")


def _neuron(cores: int, instance_type: str, product: str) -> Device:
    told = instance_type.removeprefix("ml.")
    if not told.startswith(("trn", "inf")):
        try:
            with open(product, encoding="utf-8", errors="replace") as file:
                told = file.read(64).strip()
        except OSError:
            told = ""
    family = told.partition(".")[0]
    # Neuron ended PyTorch/XLA with release 2.30; its successor needs trn2 or newer.
    kind = "trn1" if family.startswith(("trn1", "inf")) else "trn2"
    return Device(kind, f"{cores} Neuron cores" + (f" of {told}" if family.startswith(("trn", "inf")) else ""))


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
