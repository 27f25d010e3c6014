"""Variables for EFA, Amazon's network adapter, by instance type: a table, and when it applies.

Only what the software does not detect by itself, each with its reason in `REASONS`. The user's own value wins over each of
them. FI_EFA_USE_DEVICE_RDMA is set by type only, never because an adapter is there: libfabric may refuse to start with it
where the adapter has no RDMA.

NCCL_PROTO, NCCL_IB_DISABLE and NCCL_DEBUG, which other toolkits force, are left to NCCL: `simple` costs latency where
there is no EFA, and the plugin for EFA chooses for itself. NCCL_SOCKET_IFNAME is the cluster's interface.

Source: the tables of sagemaker-training 5.1 (SM_EFA_NCCL_INSTANCES and SM_EFA_RDMA_INSTANCES: g4dn.8xlarge,
g4dn.12xlarge, g5.48xlarge, p3dn, p4d, p4de, p5, p5e, trn1.32xlarge, p6e-gb200), and, for what these lack (g4dn.16xlarge
and metal, the other sizes of g5, g6, g6e, p5en, p6, trn1n, trn2), the EC2 user guide's list of types with EFA. trn2u is a
trn2 in a group of four, by its name; nobody has looked it up. Types whose RDMA is not certain from these are listed
without it, which leaves the choice to libfabric. The values are theirs; we have not measured them on these machines. That
each type exists is held against EC2's own model. Types that we have no such list for (g7, g7e, smaller p5) are left out,
and so are those of no training job (hpc): a name that is wrongly here would stop a job that could go by TCP, and one that
is missing costs nothing where the kernel lists the adapter.
"""

from __future__ import annotations

import os

from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainshed.contract.cluster import Cluster

_LARGE = ("8xlarge", "12xlarge", "16xlarge", "24xlarge", "48xlarge")
# family: (sizes with EFA, whether it has RDMA)
EFA = {
    "p3dn": (("24xlarge",), False),
    "p4d": (("24xlarge",), True),
    "p4de": (("24xlarge",), True),
    "p5": (("48xlarge",), True),
    "p5e": (("48xlarge",), True),
    "p5en": (("48xlarge",), True),
    "p6-b200": (("48xlarge",), True),
    "p6-b300": (("48xlarge",), True),
    "p6e-gb200": (("36xlarge",), True),
    "g4dn": (("8xlarge", "12xlarge", "16xlarge", "metal"), False),
    "g5": (_LARGE, False),
    "g6": (_LARGE, False),
    "g6e": (_LARGE, False),
    "trn1": (("32xlarge",), True),
    "trn1n": (("32xlarge",), True),
    "trn2": (("48xlarge",), True),
    "trn2u": (("48xlarge",), False),
}
REASONS = {
    "FI_PROVIDER": "libfabric takes the EFA adapter, and fails rather than fall back to TCP in silence",
    "FI_EFA_USE_DEVICE_RDMA": "the adapter writes to the other host's memory itself, which older libfabric leaves off",
    "RDMAV_FORK_SAFE": "memory that is registered for RDMA survives a fork, as for DataLoader's workers, on older kernels",
    "NCCL_SOCKET_IFNAME": "NCCL makes its connections between hosts over the job's interface",
    "GLOO_SOCKET_IFNAME": "gloo makes its connections between hosts over the job's interface",
}
DEVICES = "/sys/class/infiniband"


class NetworkSettings(Record):
    """Variables, and how we know that they fit (shown by `--dry-run`); both empty if nothing is to be set."""

    variables: dict[str, str]
    evidence: str = ""


def network_settings(cluster: Cluster, instance_type: str, devices: str = DEVICES) -> NetworkSettings:
    """The network variables to set on this host.

    Args:
        instance_type: with or without SageMaker's `ml.`; "" where unknown.
        devices: the folder in which the kernel lists RDMA devices.
    """
    if len(cluster.hosts) < 2:
        return NetworkSettings({})
    family, _, size = instance_type.removeprefix("ml.").partition(".")
    sizes, rdma = EFA.get(family, ((), False))
    known = size in sizes
    device = _efa_device(devices)
    if not known and not device:
        return NetworkSettings({})
    variables = {"FI_PROVIDER": "efa"}
    if known and rdma:
        variables.update(FI_EFA_USE_DEVICE_RDMA="1", RDMAV_FORK_SAFE="1")
    found = f"this host has {device}" if device else ""
    listed = f"{instance_type} has EFA{' with RDMA' if rdma else ''}" if known else ""
    return NetworkSettings(variables, "; ".join(text for text in (listed, found) if text))


def explained(wanted: Mapping[str, str], environment: Mapping[str, str]) -> list[str]:
    """One line a variable: what it is set to and why, or that the user's own value stays.

    Args:
        wanted: what trainshed would set; names of `REASONS`.
        environment: what a rank gets.
    """
    lines = []
    for name, value in wanted.items():
        given = environment.get(name)
        if given == value:
            lines.append(f"{name}={value}: {REASONS[name]}")
        else:
            lines.append(f"{name}={given or ''} is the job's own value, and stays; without it {value}: {REASONS[name]}")
    return lines


def _efa_device(folder: str) -> str:
    """The first EFA adapter, "" without one. Its driver identifies it, since udev's rules decide its name."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return ""
    for name in names:
        try:
            driver = os.path.basename(os.readlink(f"{folder}/{name}/device/driver"))
        except OSError:
            driver = ""
        if driver == "efa" or (not driver and name.startswith("efa_")):
            return name
    return ""
