"""Sums gradients: over the stages that share a parameter, then over the replicas.

Of a parameter that is divided among the ranks of a tensor group, the replicas are the ranks that have the same part; a whole
one takes the mean of all ranks, so that last bits do not move the ranks of a group apart.

The replicas' sum of a bucket starts as soon as the last microbatch's backward has completed it, while the backward goes
on. All trained parameters are in the buckets, and the buckets go out in one fixed order, whatever a replica's own batch made
it compute: who has no gradient adds zeros. Gradients of earlier steps (accumulation) are set aside first, so that nothing is
summed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from ..ground.errors import PipelineError
from ..ground.grid import Grid
from ..ground.halves import gradient_type, no_gradient
from ..ground.shards import local, tensor_axis
from ..plan.costs import BUCKET_BYTES
from .stage_shards import Reduced, StageShards


@dataclass
class _Bucket:
    names: list[str]
    waiting: int = 0
    flat: torch.Tensor | None = None
    work: Any = None
    reduced: Reduced | None = None


@dataclass
class GradientSync:
    """Gradients of this rank's parameters.

    parameters: name -> parameter, all that this rank holds.
    shared: name -> pipeline ranks that hold it, where there are several.
    usual: names that the first step trained on some replica; the others go last, for a sum waits for all of its parameters.
    overlap: whether to sum buckets during the backward.
    shards: of the parameters, where they are sharded: each rank then gets its part of the sums.
    """

    grid: Grid
    parameters: Mapping[str, nn.Parameter]
    shared: Mapping[str, tuple[int, ...]]
    usual: frozenset[str]
    overlap: bool = True
    bucket_bytes: int = BUCKET_BYTES
    shards: StageShards | None = None
    _sent: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _trained: list[str] = field(default_factory=list)
    _before: dict[str, torch.Tensor] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)
    _expected: dict[str, int] = field(default_factory=dict)
    _handles: list[Any] = field(default_factory=list)
    _buckets: list[_Bucket] = field(default_factory=list)
    _bucket_of: dict[str, _Bucket] = field(default_factory=dict)
    _launched: int = 0

    @property
    def replicas(self) -> int:
        """Number of replicas."""
        return len(self.grid.replica_ranks)

    def begin(self, expected: Mapping[str, int]) -> None:
        """Before the backward of a step.

        Args:
            expected: name -> how often the backward adds to its gradient in this step, at most; of all parameters that the
                recorded loss depends on.
        """
        self._before, self._expected, self._sent = {}, dict(expected), {}
        self._trained = [
            name
            for name, parameter in self.parameters.items()
            if parameter.requires_grad and (self.shards is None or self.shards.has(name))
        ]
        for name in self._trained:
            parameter = self.parameters[name]
            if parameter.grad is not None:
                self._before[name], parameter.grad = parameter.grad, None
        if self.replicas > 1 and self.overlap:
            self._make_buckets()
            for bucket in self._buckets:
                for name in bucket.names:
                    hook = self._hook(name)
                    self._handles.append(self.parameters[name].register_post_accumulate_grad_hook(hook))

    def arrived(self, name: str) -> tuple[int, ...] | None:
        """The shape of the gradient that the backward of this rank has made; None if it has made none. Before `finish`."""
        gradient = self.parameters[name].grad
        return self._sent.get(name) if gradient is None else tuple(gradient.shape)

    def abandon(self) -> None:
        """After a failed step: the hooks go."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def finish(self) -> None:
        """After the backward: all sums done, gradients of earlier steps added again."""
        self.abandon()
        for name in self._trained:
            parameter = self.parameters[name]
            # For what a later stage has detached torch sends zeros; one process would have no gradient. (A parameter that
            # the recorded loss did not depend on may have a real one, where values decide what is computed.)
            if name not in self._expected and parameter.grad is not None and self._is_zero(parameter.grad):
                parameter.grad = None
        self._sum_shared()
        if self.shards is not None:
            self._sum_to_shards(self.shards)
        elif self.replicas > 1:
            self._sum_replicas()
        for name, before in self._before.items():
            parameter = self.parameters[name]
            parameter.grad = before if parameter.grad is None else before.add_(parameter.grad)
        self._before = {}

    # During the backward ---------------------------------------------------------------------------------------------

    def _make_buckets(self) -> None:
        self._counts, self._launched = {}, 0
        self._buckets, self._bucket_of = [], {}
        size = 0
        kind: Any = None
        alone = [name for name in reversed(self._trained) if name not in self.shared]
        for name in sorted(alone, key=lambda name: name not in self.usual):
            parameter = self.parameters[name]
            own = (gradient_type(parameter), name in self.usual, self._is_divided(name))
            if not self._buckets or size > self.bucket_bytes or kind != own:
                self._buckets.append(_Bucket([]))
                size, kind = 0, own
            self._buckets[-1].names.append(name)
            self._bucket_of[name] = self._buckets[-1]
            size += local(parameter).numel() * parameter.element_size()
        for bucket in self._buckets:
            bucket.waiting = len(bucket.names)

    def _hook(self, name: str) -> Callable[[torch.Tensor], None]:
        def added(_parameter: torch.Tensor) -> None:
            self._counts[name] = self._counts.get(name, 0) + 1
            bucket = self._bucket_of[name]
            if bucket.flat is not None or bucket.reduced is not None:
                raise PipelineError(
                    f"the gradient of {name!r} changed after it was sent",
                    hint="pass overlapping_allreduce=False to PipelineModel",
                )
            if self._counts[name] == self._expected.get(name):
                bucket.waiting -= 1
                self._launch_ready()

        return added

    def _launch_ready(self) -> None:
        while self._launched < len(self._buckets) and self._buckets[self._launched].waiting == 0:
            self._launch(self._buckets[self._launched])

    def _launch(self, bucket: _Bucket) -> None:
        self._launched += 1
        if self.shards is not None:
            bucket.reduced = self._reduce(bucket.names, self.shards)
            return
        bucket.flat = torch.cat([self._gradient(name).reshape(-1) for name in bucket.names])
        bucket.work = dist.all_reduce(bucket.flat, group=self._alike(bucket.names[0])[0], async_op=True)

    def _reduce(self, names: list[str], shards: StageShards) -> Reduced:
        """Begins a sum, of which this rank gets its part; the gradients themselves go."""
        held = [self.parameters[name] for name in names]
        self._sent.update({name: tuple(p.grad.shape) for name, p in zip(names, held, strict=True) if p.grad is not None})
        reduced = shards.reduce(held, [self._gradient(name) for name in names])
        for parameter in held:
            parameter.grad = None
        return reduced

    def _gradient(self, name: str) -> torch.Tensor:
        """Of this rank's part, where the parameter is divided; zeros if there is none."""
        parameter = self.parameters[name]
        return local(no_gradient(parameter) if parameter.grad is None else parameter.grad)

    def _is_divided(self, name: str) -> bool:
        return tensor_axis(self.parameters[name]) is not None

    def _alike(self, name: str) -> tuple[dist.ProcessGroup, int]:
        """The ranks that hold the same of a parameter, and their number."""
        tensor = self.grid.tensor
        if tensor is not None and self._is_divided(name):
            return tensor.twin_group, len(tensor.twins)
        return self.grid.replica_group, self.replicas

    def _is_zero(self, gradient: torch.Tensor) -> bool:
        count = local(gradient).count_nonzero()
        if self.grid.tensor is not None and isinstance(gradient, DTensor):
            dist.all_reduce(count, group=self.grid.tensor.group)
        return not count

    # After the backward ----------------------------------------------------------------------------------------------

    def _sum_shared(self) -> None:
        groups = self.grid.subgroups([])
        for members in sorted(set(self.shared.values())):
            names = [name for name, ranks in self.shared.items() if ranks == members and name in self._trained]
            if names and self.grid.place.pipeline in members:
                self._sum_flat(names, groups[members], 1)

    def _sum_flat(self, names: list[str], group: dist.ProcessGroup, divisor: int) -> None:
        """One sum for parameters of one type; who has no gradient anywhere keeps none."""
        for dtype in dict.fromkeys(gradient_type(self.parameters[name]) for name in names):
            same = [name for name in names if gradient_type(self.parameters[name]) == dtype]
            present = torch.tensor([float(self.parameters[name].grad is not None) for name in same])
            pieces = [self._gradient(name).reshape(-1) for name in same]
            flat = torch.cat([*pieces, present.to(pieces[0])])
            dist.all_reduce(flat, group=group)
            self._put(same, flat[: -len(same)], flat[-len(same) :].tolist(), divisor)

    def _put(self, names: list[str], flat: torch.Tensor, present: list[float], divisor: int) -> None:
        """Gives parameters the mean of their gradients; `flat` becomes that."""
        if divisor != 1:
            flat.div_(divisor)
        parts = flat.split([local(self.parameters[name]).numel() for name in names])
        for name, part, somewhere in zip(names, parts, present, strict=True):
            parameter = self.parameters[name]
            if not somewhere:
                parameter.grad = None
                continue
            if parameter.grad is None:
                parameter.grad = no_gradient(parameter)
            own = local(parameter.grad)
            own.copy_(part.view_as(own))

    def _sum_replicas(self) -> None:
        buckets = self._buckets if self.overlap else []
        while self._launched < len(buckets):
            self._launch(buckets[self._launched])
        covered = [name for bucket in buckets for name in bucket.names]
        rest = [name for name in self._trained if name not in set(covered)]
        for divided in (False, True):
            same = [name for name in rest if self._is_divided(name) == divided]
            if same:
                self._sum_flat(same, *self._alike(same[0]))
        if not covered:
            return
        present = torch.tensor([float(self.parameters[name].grad is not None) for name in covered], device=self.grid.device)
        dist.all_reduce(present, group=self.grid.replica_group)
        somewhere = dict(zip(covered, present.tolist(), strict=True))
        for bucket in buckets:
            bucket.work.wait()
            if bucket.flat is not None:
                count = self._alike(bucket.names[0])[1]
                self._put(bucket.names, bucket.flat, [somewhere[name] for name in bucket.names], count)
            bucket.flat = bucket.work = None
        self._buckets, self._bucket_of = [], {}

    def _sum_to_shards(self, shards: StageShards) -> None:
        while self._launched < len(self._buckets):
            self._launch(self._buckets[self._launched])
        rest = [name for name in self._trained if name not in self._bucket_of]
        bunches = [_Bucket(names) for names in shards.bunches(rest)]
        here = [float(self.arrived(name) is not None) for name in self._trained]
        present = torch.tensor(here, device=self.grid.device)
        dist.all_reduce(present, group=self.grid.replica_group)
        somewhere = dict(zip(self._trained, present.tolist(), strict=True))
        for bucket in [*self._buckets, *bunches]:
            reduced = bucket.reduced or self._reduce(bucket.names, shards)
            for name, part in zip(bucket.names, reduced.parts(), strict=True):
                if somewhere[name]:
                    shards.put(name, part / self._alike(name)[1])
            bucket.reduced = None
        self._buckets, self._bucket_of = [], {}


def reached_by_replicas(grid: Grid, mine: frozenset[str]) -> frozenset[str]:
    """Names that one of the ranks with these stages has. Collective over the replicas."""
    if len(grid.replica_ranks) == 1:
        return mine
    found: list[Any] = [None] * len(grid.replica_ranks)
    dist.all_gather_object(found, mine, group=grid.replica_group)
    return frozenset().union(*found)
