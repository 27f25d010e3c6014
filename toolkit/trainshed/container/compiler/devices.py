"""Which kind of device the job trains on, for the choice of a compiler; imports and starts nothing.

Sources: TPU hosts set `TPU_ACCELERATOR_TYPE`, `TPU_WORKER_ID` (Google's TPU VM and GKE documentation) and have
`/dev/accel<n>`; EC2 shows an instance's type as its DMI product name.
"""

from __future__ import annotations

import os
import re

from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainshed.contract.cluster import Hardware

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
