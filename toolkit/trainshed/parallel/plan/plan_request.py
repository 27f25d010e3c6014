"""A job's request for a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainshed.contract.wire.pipeline import V_SHAPED

from ..ground.schedule_work import seat_of
from .costs import Link
from .partition import Request
from .runtime import UpdateCost
from .simulate import ZERO_BUBBLE, most_kept, order


@dataclass(frozen=True)
class Wish:
    """The job's request for a plan.

    ranks, virtual: pipeline ranks and stages on each of them.
    asked: what `virtual` was, where the model has not enough parts for that; else 0.
    schedule: "gpipe", "1f1b", "interleaved1f1b", "interleavedzerobubble", "zbvzerobubble" or "dualpipev".
    memory_limit: bytes a stage may take, or None.
    optimizer_states: tensors of the parameter's size that the optimizer keeps (Adam: 2).
    shared: replicas that these are shared out among.
    pins: module name -> stage.
    atomic: modules that shall not be opened.
    link: between stages.
    tensor, tensor_link: ranks that divide the modules of a stage, and how they talk.
    context: ranks that divide sequences inside of the blocks `sequences`; they talk as stages do.
    slower: how many times longer the devices take than was counted or measured.
    touch: seconds to read or write a byte, for what comes after the last backward; 0 to leave that out.
    update: of the optimizer's step; None to go by the bytes that it touches.
    on_cpus: whether ranks compute on CPUs, with memory of their host.
    recomputes: whether units may run again in their backward, or keep what it needs on the CPU, so that `memory_limit` is
        compared with what they keep on the device then.
    opens: a container that takes more than this share of the forward is opened, also where there is one stage.
    rows: how many times the rows of the microbatch that was measured one of this way has.
    crowd: how many times longer work takes where all ranks of a host work than where one does: they share its cores.
    """

    ranks: int
    virtual: int = 1
    schedule: str = "1f1b"
    microbatches: int = 4
    memory_weight: float = 0.0
    memory_limit: int | None = None
    optimizer_states: int = 2
    shared: int = 1
    pins: Mapping[str, int] = field(default_factory=dict)
    atomic: tuple[str, ...] = ()
    link: Link = field(default_factory=Link)
    asked: int = 0
    tensor: int = 1
    tensor_link: Link = field(default_factory=Link)
    slower: float = 1.0
    opens: float = 1.0
    rows: float = 1.0
    crowd: float = 1.0
    touch: float = 0.0
    update: UpdateCost | None = None
    on_cpus: bool = False
    recomputes: bool = False
    context: int = 1
    sequences: tuple[str, ...] = ()

    @property
    def stages(self) -> int:
        """Number of stages in the pipeline."""
        return self.ranks * self.virtual

    @property
    def pairs(self) -> bool:
        """Tells whether results of divided modules are thought to stay in parts: in stages few do, inside of units."""
        return self.tensor > 1 and self.stages == 1

    def seat(self, stage: int) -> int:
        """The rank that has a stage."""
        return seat_of(stage, self.ranks, self.schedule)

    def request(self, closed: Mapping[str, str]) -> Request:
        """As the partitioner reads it.

        Args:
            closed: modules that are not opened, with the reason.
        """
        memory = self.memory_weight, self.memory_limit
        return Request(self.stages, self.in_flight(), *memory, dict(self.pins), self.link, closed)

    def in_flight(self) -> tuple[int, ...]:
        """Microbatches whose activations each stage keeps at once."""
        if self.schedule in ZERO_BUBBLE:
            orders = order(self.schedule, self.ranks, self.virtual, self.microbatches)
            if self.schedule in V_SHAPED:
                return tuple(most_kept(orders[self.seat(stage)], stage) for stage in range(self.stages))
            most = [-(-most_kept(work) // self.virtual) for work in orders]
            return tuple(most[stage % self.ranks] for stage in range(self.stages))
        kept = []
        for stage in range(self.stages):
            if self.schedule == "gpipe":
                kept.append(self.microbatches)
            elif self.virtual == 1:
                kept.append(min(self.stages - stage, self.microbatches))
            else:
                warm = (self.ranks - stage % self.ranks - 1) * 2 + (self.virtual - 1) * self.ranks + 1
                kept.append(min(-(-warm // self.virtual), self.microbatches))
        return tuple(kept)
