"""Heterogeneous clusters: `instance_groups`, each with its own hosts and resources, and who is in which."""

from __future__ import annotations

from dataclasses import replace

from trainshed.base.errors import did_you_mean

from .checker import Checker
from .fields import GROUP, Field
from .job import ALL_GPUS, InstanceGroupSpec, Job, Resources
from .nodes import Node

LONGEST_NAME = 64  # characters, the platform's limit
MOST_HOSTS = 512


def read_groups(fields: Checker, row: Field) -> tuple[InstanceGroupSpec, ...]:
    """The groups in the order of the file; problems are noted in `fields`."""
    nodes = fields.mapping(row.name)
    if fields.node(row.name) is not None and not nodes and isinstance(fields.values[row.name].value, dict):
        fields.problem(row.name, "has no group", "leave it out, or name one: {gpu: 2}", value="")
    if len(nodes) > row.most:
        fields.problem(row.name, f"there are {len(nodes)} groups; a job has at most {row.most}", value="")
    outer = Checker(nodes, fields.problems, f"{row.name}.")
    return tuple(group for name in nodes if (group := _group(outer, name)) is not None)


def _group(outer: Checker, name: str) -> InstanceGroupSpec | None:
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        outer.problem(name, f"is not a valid group name: text of 1 to {LONGEST_NAME} characters", value="")
        return None
    node = outer.values[name]
    values = (
        node.value if isinstance(node.value, dict) else {"instances": Node(node.value, node.where, node.folder, node.text)}
    )
    inner = Checker(values, outer.problems, f"{outer.prefix}{name}.")
    inner.unknown(row.name for row in GROUP)
    given = {row.name: inner.read(row) for row in GROUP}
    if given["gpus"] == "all":
        given["gpus"] = ALL_GPUS
    limits = {limit: given.pop(limit) for limit in ("cpus", "memory", "gpus", "shm_size")}
    return InstanceGroupSpec(name, resources=Resources(**limits), **given)


def with_groups(fields: Checker, job: Job) -> Job:
    """The job with as many hosts as its groups have; what does not go together is noted in `fields`."""
    groups = {group.name: group for group in job.instance_groups}
    for channel in job.channels:
        _check_names(_channel(fields, channel.name), channel.instance_groups, groups, "instance_groups")
    chosen = job.distribution.instance_groups
    distribution = Checker(fields.mapping("distribution"), fields.problems, "distribution.")
    _check_names(distribution, chosen, groups, "instance_groups")
    has_ranks = job.distribution.traits.has_ranks
    if chosen and not has_ranks:
        without = f"has no effect with the distribution {job.distribution.kind!r}, which every host runs"
        distribution.problem("instance_groups", without, value="")
    if not groups:
        return job
    if fields.node("instances") is not None:
        fields.problem(
            "instances", "is for hosts of one kind; each of `instance_groups` has its own", "leave out one of both"
        )
    total = sum(group.instances for group in groups.values())
    if total > MOST_HOSTS:
        fields.problem("instance_groups", f"have {total} hosts; a job has at most {MOST_HOSTS}", value="")
    made = replace(job, instances=total)
    if has_ranks and not chosen:  # `train` by itself takes the host's own, as the platform's does
        made = replace(made, distribution=replace(job.distribution, instance_groups=tuple(groups)))
    _check_ranks(fields, made)
    return made


def _channel(fields: Checker, name: str) -> Checker:
    node = fields.mapping("channels").get(name)
    values = node.value if node is not None and isinstance(node.value, dict) else {}
    return Checker(values, fields.problems, f"channels.{name}.")


def _check_names(fields: Checker, names: tuple[str, ...], groups: dict[str, InstanceGroupSpec], field: str) -> None:
    for name in names:
        if name not in groups:
            known = f"the job's groups are {', '.join(groups)}" if groups else "the job has no instance_groups"
            fields.problem(field, f"{name!r} is not a group of the job", did_you_mean(name, list(groups)) or known, value="")


def _check_ranks(fields: Checker, job: Job) -> None:
    """Ranks of one job are equally many on each of its hosts: where hardware decides, hosts must have the same."""
    distribution = job.distribution
    if not distribution.traits.has_ranks or distribution.processes_per_host:
        return
    taking_part = [group for group in job.instance_groups if group.name in (distribution.instance_groups or (group.name,))]
    kinds = {(limits.gpus, limits.cpus) for group in taking_part for limits in (job.resources_of(group),)}
    if len(kinds) > 1:
        names = ", ".join(group.name for group in taking_part)
        fields.problem(
            "instance_groups",
            f"hosts of {names} have other numbers of GPUs or CPUs, and ranks must be equally many on each host",
            "set distribution.processes_per_host, or name the groups that take part: distribution.instance_groups",
            value="",
        )
