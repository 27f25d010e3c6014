"""Which CPUs each rank of this host is bound to (`trainshed_bind`).

`cores`: the allowed CPUs, in the order of NUMA nodes and physical cores, in equal parts. `numa`: the same within the NUMA
node of a rank's GPU (evenly over the nodes if the GPU's node is unknown). Hyper-threads of one core stay together as long
as there are as many cores as ranks. A rank is never bound to a CPU that this container may not use.
"""

from __future__ import annotations

import os

from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_GPUS = "proc/driver/nvidia/gpus"


class Topology(Record):
    """CPUs that may be used, as physical cores by NUMA node, and the node of each GPU (None: unknown).

    nodes: `{node: ((cpu, its sibling ...), ...)}`.
    """

    nodes: dict[int, tuple[tuple[int, ...], ...]]
    gpus: tuple[int | None, ...] = ()


def read_topology(environ: Mapping[str, str], allowed: Iterable[int], root: str = "/") -> Topology:
    """This host's topology, from /sys and /proc; one node with one core for each CPU if they lack it."""
    cpus = sorted(allowed)
    listed = {node: parse_list(_read(f"{root}sys/devices/system/node/{node}/cpulist")) for node in _nodes(root)}
    node_of = {cpu: node for node, members in listed.items() for cpu in members}
    nodes: dict[int, dict[tuple[str, str], list[int]]] = {}
    for cpu in cpus:
        place = f"{root}sys/devices/system/cpu/cpu{cpu}/topology"
        core = _read(f"{place}/physical_package_id"), _read(f"{place}/core_id") or f"cpu{cpu}"
        node = int(node_of.get(cpu, "node0")[4:])
        nodes.setdefault(node, {}).setdefault(core, []).append(cpu)
    return Topology(
        nodes={node: tuple(tuple(core) for core in cores.values()) for node, cores in sorted(nodes.items())},
        gpus=_gpu_nodes(environ, root),
    )


def bind(how: str, topology: Topology, ranks: int) -> list[tuple[int, ...]]:
    """The CPUs of each local rank, in order; () for every rank if there are fewer CPUs than ranks, or for `none`."""
    if how == "none":
        return [()] * ranks
    everything = tuple(core for cores in topology.nodes.values() for core in cores)
    if how == "cores" or len(topology.nodes) < 2:
        return _share(everything, ranks)
    nodes = list(topology.nodes)
    at: dict[int, list[int]] = {}
    for rank in range(ranks):
        node = topology.gpus[rank] if rank < len(topology.gpus) else None
        at.setdefault(node if node in topology.nodes else nodes[rank * len(nodes) // ranks], []).append(rank)
    bound: list[tuple[int, ...]] = [()] * ranks
    for node, members in at.items():
        for rank, cpus in zip(members, _share(topology.nodes[node], len(members)), strict=True):
            bound[rank] = cpus
    return bound if all(bound) else [()] * ranks


def _share(cores: tuple[tuple[int, ...], ...], ranks: int) -> list[tuple[int, ...]]:
    """Equal, contiguous parts of the cores; of the CPUs where there are fewer cores than ranks."""
    if len(cores) < ranks:
        cores = tuple((cpu,) for core in cores for cpu in core)
    if len(cores) < ranks:
        return [()] * ranks
    return [
        tuple(sorted(cpu for core in cores[rank * len(cores) // ranks : (rank + 1) * len(cores) // ranks] for cpu in core))
        for rank in range(ranks)
    ]


def _nodes(root: str) -> list[str]:
    try:
        return [name for name in os.listdir(f"{root}sys/devices/system/node") if name[:4] == "node" and name[4:].isdigit()]
    except OSError:
        return []


def _gpu_nodes(environ: Mapping[str, str], root: str) -> tuple[int | None, ...]:
    """The NUMA nodes of the visible NVIDIA GPUs, in CUDA's order for equal ones: that of their bus addresses."""
    try:
        addresses = sorted(os.listdir(f"{root}{_GPUS}"))
    except OSError:
        return ()
    nodes: list[int | None] = []
    for address in addresses:
        text = _read(f"{root}sys/bus/pci/devices/{address}/numa_node")
        nodes.append(int(text) if text.isdigit() else None)  # -1: the firmware does not say
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if not chosen:
        return tuple(nodes)
    numbers = [entry.strip() for entry in chosen.split(",")]
    return tuple(nodes[int(n)] if n.isdigit() and int(n) < len(nodes) else None for n in numbers)


def parse_list(text: str) -> list[int]:
    """`0-3,8` as 0, 1, 2, 3, 8: the kernel's way to write CPUs."""
    cpus: list[int] = []
    for span in text.split(","):
        first, _, last = span.strip().partition("-")
        if first.isdigit():
            cpus += range(int(first), int(last if last.isdigit() else first) + 1)
    return cpus


def format_list(cpus: Iterable[int]) -> str:
    """The inverse of `parse_list`."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and spans[-1][1] + 1 == cpu:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""
