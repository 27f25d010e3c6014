"""The ways in which a number of ranks can be used: stages, tensor groups and replicas, before any of them is planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from trainshed.contract.wire.pipeline import read_settings

from ..ground.errors import PipelineError
from ..ground.grid import Coordinates, alike, layout
from .costs import Link
from .host_links import Hosts
from .plan_request import Wish


@dataclass(frozen=True)
class RankLayout:
    """One way to use the ranks, without regard to what is sharded over replicas.

    microbatches: of each replica, or of each tensor group.
    wish: what is asked of its plan.
    replica_link: between the ranks that sum their gradients.
    group_link: between those of a tensor group and of its replicas, which sum the gradients of what is not divided.
    problem: why it is not possible, or "".
    """

    stages: int
    tensor: int
    replicas: int
    microbatches: int
    wish: Wish
    replica_link: Link = field(default_factory=Link)
    group_link: Link = field(default_factory=Link)
    problem: str = ""

    def settings(self, **more: Any) -> dict[str, Any]:
        """As `pipe.init` takes them.

        Args:
            more: those of sharding.
        """
        several = {"tensor_parallel_degree": self.tensor, "prescaled_batch": True} if self.tensor > 1 else {}
        found: dict[str, Any] = {"pipeline_parallel_degree": self.stages, **several, "microbatches": self.microbatches}
        if self.stages > 1 and self.wish.schedule != "1f1b":
            found["pipeline"] = "simple" if self.wish.schedule == "gpipe" else self.wish.schedule
            found.update({"virtual_stages": self.wish.virtual} if self.wish.virtual > 1 else {})
        return {**found, **more}


@dataclass(frozen=True)
class Terms:
    """The terms that the ways have to keep to.

    hosts: where the ranks are.
    placement: whose numbers are neighbours, as the setting `placement_strategy` says it.
    given: settings that the ways must go together with, those of a way aside.
    """

    hosts: Hosts = field(default_factory=Hosts)
    placement: str = "cluster"
    given: Mapping[str, Any] = field(default_factory=dict)


def ways_for(ranks: int, wish: Wish, terms: Terms | None = None) -> list[RankLayout]:
    """All ways, most stages first; `wish.microbatches` are those of all replicas together."""
    terms = terms or Terms()
    found = []
    for stages in _divisors(ranks):
        for tensor in reversed(_divisors(ranks // stages)):
            found.append(_way(ranks, stages, tensor, wish, terms))
    return found


def _way(ranks: int, stages: int, tensor: int, wish: Wish, terms: Terms) -> RankLayout:
    replicas, hosts = ranks // (stages * tensor), terms.hosts
    places = layout(ranks, stages, terms.placement, tensor)
    asked = replace(
        wish,
        ranks=stages,
        virtual=wish.virtual if stages > 1 else 1,  # a rank by itself has nobody to interleave with
        microbatches=max(1, wish.microbatches // replicas),
        memory_limit=None,
        tensor=tensor,
        link=hosts.link(_neighbours(places)),
        tensor_link=hosts.link(alike(places, "pipeline", "batch")).quicker(hosts.crowd),
        crowd=hosts.crowd,
    )
    copies, groups = alike(places, "pipeline", "tensor"), alike(places, "pipeline")
    way = RankLayout(stages, tensor, replicas, asked.microbatches, asked, hosts.link(copies), hosts.link(groups))
    return replace(way, problem=_problem(way, wish.microbatches, places, terms))


def _problem(way: RankLayout, microbatches: int, places: Sequence[Coordinates], terms: Terms) -> str:
    if microbatches % way.replicas:
        return f"{microbatches} microbatches do not divide among {way.replicas} replicas"
    if way.tensor > 1 and terms.hosts.spans(alike(places, "pipeline", "batch")):
        return f"a tensor group would span hosts, which have {terms.hosts.ranks} ranks each"
    try:
        read_settings({**terms.given, **way.settings()}, "settings")
    except PipelineError as error:
        return error.message.removeprefix("settings: ")
    return ""


def _neighbours(places: Sequence[Coordinates]) -> list[list[int]]:
    """The pairs of ranks that send each other what crosses from one stage to the next."""
    pairs = []
    for ranks in alike(places, "replica"):
        ordered = sorted(ranks, key=lambda rank: places[rank].pipeline)
        pairs += [list(pair) for pair in pairwise(ordered)]
    return pairs


def _divisors(number: int) -> list[int]:
    """Largest first."""
    return [one for one in range(number, 0, -1) if number % one == 0]
