"""Computes what the hosts of a job ask of a Ray cluster, and whether it has that. Pure: nodes are as `ray.nodes()` tells."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainshed.base.units import size
from trainshed.runner.job.job import ALL_GPUS, Job

from .wishes import RayOptions

Bundle = dict[str, float]  # CPU, GPU, memory (bytes) and the cluster's own resources, by Ray's names


@dataclass(frozen=True)
class RayNode:
    """A living node: its address, and all it has, whoever uses that."""

    address: str
    has: Mapping[str, float]


def bundles(job: Job, nodes: Sequence[RayNode], options: RayOptions) -> list[Bundle]:
    """Returns what each host asks for, in their order. A host that names neither CPUs nor GPUs takes a whole node: as
    much as the weakest of the nodes that the job needs has, parted where there are fewer nodes than hosts."""
    ranked = sorted(nodes, key=lambda node: (node.has.get("GPU", 0), node.has.get("CPU", 0)), reverse=True)
    weakest = ranked[min(job.instances, len(ranked)) - 1].has if ranked else {}
    share = math.ceil(job.instances / max(1, len(ranked)))
    cpus, gpus = weakest.get("CPU", 0) // share, weakest.get("GPU", 0) // share
    found = []
    for host in job.hosts:
        wanted = job.resources_of(job.group_of(host))
        own_gpus = gpus if wanted.gpus in (None, ALL_GPUS) else float(wanted.gpus or 0)
        own_cpus = max(1.0, cpus)
        if wanted.cpus is not None:
            own_cpus = wanted.cpus
        elif gpus and own_gpus < gpus:  # its part of a node with GPUs
            own_cpus = max(1.0, cpus * own_gpus // gpus)
        bundle = {"CPU": own_cpus, **options.resources}
        if own_gpus:
            bundle["GPU"] = own_gpus
        if wanted.memory is not None:
            bundle["memory"] = float(wanted.memory)
        found.append(bundle)
    return found


def strategy(wanted: Sequence[Bundle], nodes: Sequence[RayNode], options: RayOptions) -> str:
    """Ray's word for how hosts are placed."""
    if options.placement != "auto":
        return options.placement.upper()
    return "STRICT_SPREAD" if fits(wanted, nodes, "STRICT_SPREAD") or options.autoscaling else "SPREAD"


def fits(wanted: Sequence[Bundle], nodes: Sequence[RayNode], how: str) -> bool:
    """Returns whether the nodes could ever hold the hosts, were nobody else there. Says yes where it cannot tell at once."""
    left = [dict(node.has) for node in nodes]
    if how == "STRICT_PACK":
        total: Counter[str] = Counter()
        for bundle in wanted:
            total.update(bundle)  # type: ignore[arg-type]
        return any(_holds(node, total) for node in left)
    for bundle in sorted(wanted, key=lambda one: sorted(one.items()), reverse=True):
        # The node that has least and is enough: the others are for who needs more.
        enough = [node for node in left if _holds(node, bundle)]
        if not enough:
            return False
        chosen = min(enough, key=lambda node: (node.get("GPU", 0), node.get("CPU", 0), node.get("memory", 0)))
        if how == "STRICT_SPREAD":
            left.remove(chosen)
            continue
        for name, count in bundle.items():
            chosen[name] = chosen.get(name, 0) - count
    return True


def _holds(node: Mapping[str, float], bundle: Mapping[str, float]) -> bool:
    return all(node.get(name, 0) + 1e-9 >= count for name, count in bundle.items())


def asked(wanted: Sequence[Bundle]) -> str:
    """Says what is asked for, in words: `2 x (4 CPUs, 1 GPU)`."""
    counts = Counter(shown(bundle) for bundle in wanted)
    return " and ".join(f"{count} x ({words})" for words, count in counts.items())


def had(nodes: Sequence[RayNode], wanted: Sequence[Bundle] = ()) -> str:
    """Says what a cluster has, in words: CPUs, GPUs and what else is asked for."""
    names = {"CPU", "GPU"}.union(*wanted)
    counts = Counter(shown({name: node.has[name] for name in _ordered(node.has) if name in names}) for node in nodes)
    words = ", ".join(f"{count} with {has or 'nothing'}" for has, count in counts.items())
    return f"{len(nodes)} node{'' if len(nodes) == 1 else 's'}" + (f": {words}" if words else "")


def _ordered(names: Mapping[str, float]) -> list[str]:
    own = [name for name in names if not name.startswith(("node:", "object_store", "accelerator_type:"))]
    return sorted(
        own, key=lambda name: (["CPU", "GPU", "memory"].index(name) if name in ("CPU", "GPU", "memory") else 9, name)
    )


def shown(bundle: Mapping[str, float]) -> str:
    """Resources in words: `4 CPUs, 1 GPU`."""
    parts = []
    for name in _ordered(bundle):
        count = bundle[name]
        if name == "memory":
            parts.append(f"{size(count)} of memory")
        else:
            parts.append(f"{count:g} {name}{'s' if name in ('CPU', 'GPU') and count != 1 else ''}")
    return ", ".join(parts)
