"""Which compiler a job gets, and how its ranks are then started: a pure function of the request and the device.

    CUDA, CPU     inductor (torch.compile), ranks as torchrun's
    TPU           torch_xla, its own launcher
    trn1, inf     torch_xla's Neuron variant, ranks as torchrun's
    trn2, trn3    Neuron's native backend, ranks as torchrun's

torch_xla has no CUDA support since 2.9. On a CPU its processes do not find each other: two ranks would train two models
and report success. So on a CPU it runs in one process or not at all.
"""

from __future__ import annotations

from trainshed.base.errors import LaunchError
from trainshed.base.record import Record
from trainshed.contract.distributions import traits_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.contract.distributions import DistributionTraits
    from trainshed.contract.wire.compile_plan import CompilerRequest

    from .devices import Device

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
