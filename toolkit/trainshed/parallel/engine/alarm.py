"""Tells the other ranks why a rank has left a step, so that they stop with that reason instead of waiting.

gloo and NCCL cannot be told: a rank that waits for a message wakes when the connection ends. The failing rank writes its
reason into the store that the ranks have met at, and closes its connections; who wakes up finds the reason there.
"""

from __future__ import annotations

import gc
import traceback

import torch.distributed as dist

from ..ground.errors import PipelineError
from ..ground.exchanges import meeting_store
from ..ground.grid import Grid

# What gloo and NCCL say where a peer is gone.
_LOST = ("Connection closed", "Connection reset", "peer", "Broken pipe", "Timed out", "timed out", "gloo")
_LONGEST = 2000


class Alarm:
    """The alarm of one pipeline and its replicas.

    reason: why this rank has stopped; empty while it has not.
    """

    def __init__(self, grid: Grid) -> None:
        self.reason = ""
        self._grid = grid
        self._prefix = f"trainshed/stopped/{grid.control_group.group_name}"

    def check(self) -> None:
        """Raises:
        PipelineError: a step has failed before.
        """
        if self.reason:
            raise PipelineError(
                f"the pipeline has stopped, for a step failed: {self.reason}",
                hint="a failed step cannot be left out: start again from the last checkpoint",
            )

    def ring(self, error: Exception, raised: BaseException) -> None:
        """Ends this rank's part: the others wake up and find the reason.

        Args:
            raised: the error as it came, whose frames hold the schedule and so the connections.
        """
        if self._grid.world == 1 or self.reason:
            return
        self.reason = f"{type(error).__name__}: {error}"[:_LONGEST]
        if dist.is_initialized():
            if error is raised:  # not explained by the loss of another rank, which would be no reason to tell
                meeting_store().set(f"{self._prefix}/{self._grid.rank}", self.reason)
            self._grid.leave()
        waiting: list[BaseException | None] = [raised]
        seen: set[int] = set()
        while waiting:
            one = waiting.pop()
            if one is not None and id(one) not in seen:
                seen.add(id(one))
                traceback.clear_frames(one.__traceback__)
                waiting += [one.__cause__, one.__context__]
        gc.collect()

    def explain(self, error: Exception, or_else: str = "") -> Exception:
        """The error, or a better one if it says that another rank was lost.

        Args:
            or_else: why another rank may not have come, though none has ended.
        """
        text, rank = str(error), self._grid.rank
        if not waited_in_vain(error):
            return error
        for other in self._others():
            reason = self._reason_of(other)
            if reason:
                return PipelineError(
                    f"rank {other} failed during a step: {reason}", details=text, hint=f"see the log of rank {other}"
                )
        return PipelineError(
            f"rank {rank} lost another rank of the job during a step",
            details=text,
            hint=f"the cause is in the log of the rank that ended first{f'; if none did, {or_else}' if or_else else ''}",
        )

    def _others(self) -> list[int]:
        """Those of this pipeline first."""
        near = self._grid.pipeline_ranks
        return [rank for rank in [*near, *(r for r in range(self._grid.world) if r not in near)] if rank != self._grid.rank]

    def _reason_of(self, rank: int) -> str:
        try:
            store, key = meeting_store(), f"{self._prefix}/{rank}"
            return store.get(key).decode() if store.check([key]) else ""
        except (RuntimeError, ValueError):  # whoever has the store is gone
            return ""


def waited_in_vain(error: Exception) -> bool:
    """Returns whether gloo or NCCL say that another rank did not come."""
    lost = any(word in str(error) for word in _LOST)
    return isinstance(error, RuntimeError) and not isinstance(error, PipelineError) and lost
