"""Which rank is which: pipelines, tensor groups and replicas over one set of ranks, and the process groups for them.

A rank has a place in its pipeline (P), in the tensor group that divides the modules of its stages (T), and among the
replicas (D). `cluster` is DPT: the ranks of one tensor group have neighbouring numbers (they talk most), then those of one
pipeline. `spread` is TPD: the ranks that hold the same have neighbouring numbers. Amazon's permutations of the letters are
read the same way: the rightmost letter changes fastest. A context group, which divides sequences, has the place of a tensor
group; where there are both, it is made of one rank of each of several tensor groups, which stand side by side.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist

from trainshed.contract.wire.pipeline import PipelineSettings
from trainshed.machine.gloo_threads import settle

from .errors import NotServed, PipelineError
from .schedule_work import seat_of
from .torch_version import TORCH


@dataclass(frozen=True)
class Coordinates:
    """A rank's place, all counted from 0.

    pipeline: in its pipeline.
    replica: the number of its pipeline; those of one tensor group have one each.
    tensor: in its tensor group.
    batch: the number of its tensor group, or of all groups that run one batch, among those that hold the same stages: ranks
        with one number have the same batch.
    context: in its context group.
    """

    pipeline: int
    replica: int
    tensor: int = 0
    batch: int = 0
    context: int = 0


def layout(world: int, degree: int, placement: str, tensor: int = 1, context: int = 1) -> list[Coordinates]:
    """Coordinates of each rank.

    Args:
        degree: ranks of a pipeline.
        tensor: ranks of a tensor group.
        context: ranks of a context group.

    Raises:
        PipelineError: the degrees do not divide the world, or the placement is unknown.
    """
    if world % degree:
        raise PipelineError(f"{world} ranks cannot be split into pipelines of {degree}")
    joint = tensor * context
    if world % (degree * joint):
        what = f"{world} ranks" if degree == 1 else f"{world} ranks in pipelines of {degree}"
        raise PipelineError(f"{_said(tensor, context, ' times ')} does not divide {what}")
    names = {"cluster": "DPT", "spread": "TPD"}
    letters = names.get(placement.lower(), placement.upper())
    if sorted(letters) != ["D", "P", "T"]:
        raise PipelineError(f"placement_strategy = {placement!r}: not cluster, spread or a permutation of D, P and T")
    sizes = {"D": world // (degree * joint), "P": degree, "T": joint}
    found = []
    for rank in range(world):
        number, place = rank, {}
        for letter in reversed(letters):
            number, place[letter] = divmod(number, sizes[letter])
        outer, inner = [letter for letter in letters if letter != "P"]
        replica = place[outer] * sizes[inner] + place[inner]
        found.append(Coordinates(place["P"], replica, place["T"] % tensor, place["D"], place["T"] // tensor))
    return found


def _said(tensor: int, context: int, between: str) -> str:
    """Degrees of groups, as settings."""
    degrees = {"tensor_parallel_degree": tensor, "context_parallel_degree": context}
    given = {name: degree for name, degree in degrees.items() if degree > 1} or {"tensor_parallel_degree": tensor}
    return between.join(f"{name} = {degree}" for name, degree in given.items())


@dataclass(frozen=True)
class TensorGroup:
    """Ranks that run one batch together, and those at the same place in other groups.

    The ranks of a tensor group divide parameters among them, and twins have the same parts; those of a context group divide
    sequences, and twins have the same places of them.

    ranks, twins: global ranks, in order.
    kind: "tensor", "context", or for both together "tensor x context".
    """

    ranks: list[int]
    group: dist.ProcessGroup
    twins: list[int]
    twin_group: dist.ProcessGroup
    kind: str = "tensor"


def alike(places: Sequence[Coordinates], *facts: str) -> list[list[int]]:
    """Global ranks that have these facts in common, by what they are: all ranks find the same groups in the same order."""
    found: dict[tuple[int, ...], list[int]] = {}
    for rank, place in enumerate(places):
        found.setdefault(tuple(getattr(place, fact) for fact in facts), []).append(rank)
    return [found[key] for key in sorted(found)]


@dataclass
class Grid:
    """This rank's place among all, with groups.

    pipeline_ranks: global ranks of this rank's pipeline, by stage rank.
    replica_ranks: global ranks that hold the same stages, by replica.
    left: whether this rank has closed its connections, after a step that failed.
    tensor: the ranks that divide parameters with this one, each of which counts as a replica; None without tensor
        parallelism.
    context: the ranks that divide sequences with this one; they hold the same, as replicas do. None without context
        parallelism.
    joint: the ranks that run batches together without stages: of the tensor group, of the context group, or of both; its
        twins are those at this rank's place in other replicas.
    parts_group, copies_group: see `divide_replicas`.
    company_ranks: global ranks that run one batch together, in one group: those of the pipeline, and with tensor or
        context groups within stages (`run_groups_as_stages`: within one stage) those of all their pipelines.
    """

    rank: int
    world: int
    local_rank: int
    local_world: int
    settings: PipelineSettings
    device: torch.device
    places: list[Coordinates]
    pipeline_group: dist.ProcessGroup
    replica_group: dist.ProcessGroup
    control_group: dist.ProcessGroup
    pipeline_ranks: list[int]
    replica_ranks: list[int]
    company_ranks: list[int]
    company_group: dist.ProcessGroup
    owns_process_group: bool = False
    left: bool = False
    tensor: TensorGroup | None = None
    context: TensorGroup | None = None
    joint: TensorGroup | None = None
    parts_group: dist.ProcessGroup | None = None
    copies_group: dist.ProcessGroup | None = None
    _everyone: list[dist.ProcessGroup] = field(default_factory=list)
    _subgroups: dict[tuple[int, ...], dist.ProcessGroup] = field(default_factory=dict)
    _made: set[tuple[int, ...]] = field(default_factory=set)
    _lasting: list[dist.ProcessGroup] = field(default_factory=list)

    @property
    def place(self) -> Coordinates:
        """This rank's coordinates."""
        return self.places[self.rank]

    def seat(self, stage: int) -> int:
        """The pipeline rank that has a stage."""
        return seat_of(stage, len(self.pipeline_ranks), self.settings.schedule)

    @property
    def writes(self) -> bool:
        """Tells whether this rank writes what it holds, alone or together with others: of replicas the first one does."""
        place = self.place
        first = place.replica if self.settings.tensor_parallel_degree == 1 else place.batch + place.context
        return first == 0 or self.settings.sharded_data_parallel_degree > 1

    def _together(self) -> list[dist.ProcessGroup]:
        """Groups of the ranks that run one batch with this one, outside of its pipeline."""
        found = [one for one in (self.tensor, self.context, self.joint) if one is not None]
        return [group for one in found for group in (one.group, one.twin_group)]

    def close(self) -> None:
        """Leaves the groups that were made for this grid, and the process group if it was made here as well."""
        if not dist.is_initialized():
            return
        if self.owns_process_group:
            dist.destroy_process_group()
            return
        for group in dict.fromkeys([*self._for_steps(), self.control_group, *self._lasting]):
            dist.destroy_process_group(group)

    def leave(self) -> None:
        """Closes this rank's connections to its pipeline and its replicas, so that nobody waits for it."""
        made = dict.fromkeys(self._for_steps())
        self.pipeline_group = self.replica_group = self.company_group = self.control_group
        self.parts_group = self.copies_group = None
        self._everyone.clear()
        self._subgroups.clear()
        self.tensor = self.context = self.joint = None
        self.left = True
        for group in made:
            dist.destroy_process_group(group)

    def _for_steps(self) -> list[dist.ProcessGroup]:
        """Groups in which ranks may wait for one whose step has failed."""
        divided = [group for group in (self.parts_group, self.copies_group) if group is not None]
        own = [self.pipeline_group, self.company_group, self.replica_group, *self._subgroups.values()]
        return [*own, *divided, *self._everyone, *self._together()]

    @property
    def everyone(self) -> dist.ProcessGroup:
        """All ranks, for tensors on the CPU; one may wait there for another that has failed. To be asked for each time: who
        keeps it keeps its connections. Collective at first."""
        if not self._everyone:
            timeout = timedelta(seconds=self.settings.timeout_seconds)
            self._everyone.append(dist.new_group(list(range(self.world)), backend="gloo", timeout=timeout))
        return self._everyone[0]

    def can_make(self, member: tuple[int, ...]) -> bool:
        """Returns whether the ranks of a pipeline can make a group of some, or have it: replicas would have to join in."""
        degree = self.settings.pipeline_parallel_degree
        return self.world == degree or len(member) in (1, degree) or member in self._made

    def subgroups(self, members: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], dist.ProcessGroup]:
        """Groups of pipeline ranks (numbers within a pipeline), made on all ranks in the same order."""
        degree = self.settings.pipeline_parallel_degree
        for member in sorted(set(members)):
            if member in self._made:
                continue
            self._made.add(member)  # also by ranks outside of it: all ranks must make the same groups
            if len(member) == degree:
                self._subgroups[member] = self.pipeline_group
                continue
            for replica in range(self.world // degree):
                ranks = [
                    rank for rank, place in enumerate(self.places) if place.replica == replica and place.pipeline in member
                ]
                group = dist.new_group(ranks)
                if self.rank in ranks:
                    self._subgroups[member] = group
        return self._subgroups

    def run_groups_as_stages(self) -> None:
        """The ranks of a tensor group run their batches together, as with several stages, also where there is one."""
        if self.tensor is not None:
            self.company_ranks, self.company_group = self.tensor.ranks, self.tensor.group

    @property
    def batches(self) -> tuple[list[int], dist.ProcessGroup]:
        """Global ranks of stages that hold the same as this one's and are given other batches, this rank among them, and
        their group."""
        if self.joint is None:
            return self.replica_ranks, self.replica_group
        return self.joint.twins, self.joint.twin_group

    @property
    def alike_ranks(self) -> list[int]:
        """Global ranks that hold the same as this one: its replicas, with tensor groups its twins."""
        return self.replica_ranks if self.tensor is None else self.tensor.twins

    @property
    def alike_group(self) -> dist.ProcessGroup:
        """Their group."""
        return self.replica_group if self.tensor is None else self.tensor.twin_group

    def holders(self) -> list[list[int]]:
        """Global ranks of the whole job, those together that hold the same."""
        return alike(self.places, *(("pipeline",) if self.tensor is None else ("pipeline", "tensor")))

    def divide_replicas(self, degree: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
        """Divides the ranks that hold the same as this one into parts of `degree` neighbours. Collective over all ranks.

        Steps use `parts_group`, of this rank's part, and `copies_group`, of those at the same place in each part (None if
        there is one part).

        Returns:
            The same groups once more (first that of the copies), which stay when steps have ended.

        Raises:
            PipelineError: the degree does not divide their number.
        """
        number = len(self.alike_ranks)
        if number % degree:
            stages = self.settings.pipeline_parallel_degree
            groups = f", {len(self.tensor.ranks)} in a tensor group," if self.tensor is not None else ""
            raise PipelineError(
                f"sharded_data_parallel_degree = {degree} does not divide {number} replicas",
                hint=f"{self.world} ranks in pipelines of {stages}{groups} make that many",
            )
        self.copies_group, self.parts_group = None, self.alike_group
        if degree < number:
            self.copies_group, self.parts_group = self._among_replicas(degree)
        lasting = self._among_replicas(degree)
        self._lasting.extend(lasting)
        return lasting

    def _among_replicas(self, degree: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
        groups: dict[str, dist.ProcessGroup] = {}
        timeout = timedelta(seconds=self.settings.timeout_seconds)
        for ranks in self.holders():
            divided = [("copies", ranks[place::degree]) for place in range(degree)]
            divided += [("part", ranks[start : start + degree]) for start in range(0, len(ranks), degree)]
            for kind, members in divided:
                group = dist.new_group(members, timeout=timeout)
                if self.rank in members:
                    groups[kind] = group
        return groups["copies"], groups["part"]


def device_of(local_rank: int, gpus: int) -> torch.device:
    """The device of a rank, on a host that has so many GPUs.

    Raises:
        PipelineError: there are GPUs, but none for this rank.
    """
    if not gpus:
        return torch.device("cpu")
    if local_rank >= gpus:
        raise PipelineError(
            f"local rank {local_rank} has no GPU: this host has {gpus}, and every stage needs one of its own",
            hint=f"start at most {gpus} ranks on each host (processes_per_host), or hide the GPUs (CUDA_VISIBLE_DEVICES=)",
        )
    return torch.device("cuda", local_rank)


def own_device() -> torch.device:
    """The device of this rank, if the script does not say."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    return device_of(local, torch.cuda.device_count() if torch.cuda.is_available() else 0)


@dataclass(frozen=True)
class Joined:
    """The ranks of a job that have met.

    control: a group of gloo, of all ranks.
    owns: whether the default process group was made here.
    """

    rank: int
    world: int
    local_rank: int
    local_world: int
    control: dist.ProcessGroup
    owns: bool


def join(settings: PipelineSettings, device: torch.device) -> Joined:
    """Joins the ranks (torchrun's variables; one rank without them). Collective."""
    timeout = timedelta(seconds=settings.timeout_seconds)
    owns = not dist.is_initialized()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if owns:
        if "RANK" not in os.environ:
            store = dist.HashStore()
            dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        else:
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=timeout)
    rank, world = dist.get_rank(), dist.get_world_size()
    local = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", str(world)))
    atexit.unregister(settle)  # once, also in a script that begins again
    atexit.register(settle)
    control = dist.new_group(list(range(world)), backend="gloo", timeout=timeout)
    return Joined(rank, world, *local, control, owns)


def make_grid(settings: PipelineSettings, joined: Joined, device: torch.device) -> Grid:
    """Makes the groups of ranks that have met. Collective."""
    timeout = timedelta(seconds=settings.timeout_seconds)
    rank, world = joined.rank, joined.world
    degree = settings.pipeline_parallel_degree
    if degree > 1 and TORCH < (2, 12):
        raise NotServed(
            f"models in stages need torch 2.12 or later, and this is {torch.__version__}",
            hint="install a newer torch, or leave out stages (partitions, pipeline_parallel_degree): "
            "sharded_data_parallel_degree, tensor_parallel_degree and context_parallel_degree work without them",
        )
    divided = settings.tensor_parallel_degree, settings.context_parallel_degree
    places = layout(world, degree, settings.placement_strategy, *divided)
    replicas = world // (degree * divided[0] * divided[1])
    if replicas > 1 and not settings.ddp:
        raise PipelineError(
            f"{world} ranks, partitions = {degree} and {_said(*divided, ' and ')} make {replicas} replicas, but ddp is off",
            hint="set ddp",
        )
    groups: dict[str, dist.ProcessGroup] = {}
    members: dict[str, list[int]] = {}
    for kind, count in (("pipeline", world // degree), ("replica", degree)):
        for index in range(count):
            inside = [
                other
                for other, place in enumerate(places)
                if (place.replica if kind == "pipeline" else place.pipeline) == index
            ]
            inside.sort(key=lambda other: (places[other].pipeline, places[other].replica))
            group = dist.new_group(inside, timeout=timeout)
            if rank in inside:
                groups[kind], members[kind] = group, inside
    tensor = context = joint = None
    if settings.tensor_parallel_degree > 1:
        tensor = joint = _make_group(places, rank, timeout, "tensor", ("batch", "context"), ("tensor",))
    if settings.context_parallel_degree > 1:
        context = joint = _make_group(places, rank, timeout, "context", ("batch", "tensor"), ("context",))
    if tensor is not None and context is not None:
        joint = _make_group(places, rank, timeout, "tensor x context", ("batch",), ("tensor", "context"))
    company = members["pipeline"], groups["pipeline"]
    if joint is not None and degree > 1:
        company = _own_of(alike(places, "batch"), rank, timeout)
    return Grid(
        rank=rank,
        world=world,
        local_rank=joined.local_rank,
        local_world=joined.local_world,
        settings=settings,
        device=device,
        places=places,
        pipeline_group=groups["pipeline"],
        replica_group=groups["replica"],
        control_group=joined.control,
        pipeline_ranks=members["pipeline"],
        replica_ranks=members["replica"],
        company_ranks=company[0],
        company_group=company[1],
        owns_process_group=joined.owns,
        tensor=tensor,
        context=context,
        joint=joint,
    )


def _make_group(
    places: Sequence[Coordinates], rank: int, timeout: timedelta, kind: str, inside: Sequence[str], across: Sequence[str]
) -> TensorGroup:
    """Args:
    inside, across: what ranks of a group, and twins, have in common.
    """
    group = _own_of(alike(places, "pipeline", *inside), rank, timeout)
    return TensorGroup(*group, *_own_of(alike(places, "pipeline", *across), rank, timeout), kind)


def _own_of(groups: Sequence[list[int]], rank: int, timeout: timedelta) -> tuple[list[int], dist.ProcessGroup]:
    """Makes all the groups; the one that this rank is in. Collective over all ranks."""
    made = [(ranks, dist.new_group(ranks, timeout=timeout)) for ranks in groups]
    return next(one for one in made if rank in one[0])
