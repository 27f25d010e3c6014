"""The mean of all ranks' gradients for loops without DDP, and between the hosts of models that fully_shard has sharded."""

from __future__ import annotations

import uuid
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..ground.torch_private import timeout_of
from .algorithms import Algorithms, Peers, store_of
from .bucket_plan import SMALL
from .gradient_pieces import Described, GradientPiece, described, joined, named, own_part, refusal, settled, wrong_gradient
from .host_layout import found_layout
from .links import Wait
from .reducing import told

_WAYS = ("exact", "bf16")
_AT_ONCE = 8  # messages on their way: enough for all stages, and copies of few


class Gradients:
    """Averages the gradients of all ranks, in a loop without DDP.

        gradients = data.Gradients(model)
        for batch in loader:
            loss(model(batch)).backward()                      # once, or several times: gradients add up
            gradients.average()
            optimizer.step()
            optimizer.zero_grad()

    Where several ranks share each host, gradients are summed inside hosts first, so that less passes between them. All ranks
    of the group construct it together and call `average` equally often.

    Args:
        parameters: a model, or parameters, in the same order on all ranks. They stay what they are; those of a model are
            looked up in each call.
        reduce: `exact` (only the order of summation differs from DDP's) or `bf16` (gradients are rounded to bfloat16 where
            they pass between hosts, and summed in float32).
        hosts: for each rank of the group the number of its host; by default ranks find that out.
        group: whose gradients are averaged, all ranks by default. For parameters that are DTensors, the ranks that have the
            same shard.

    Raises:
        ValueError: on all ranks: parameters differ between ranks, or are not on the CPU, or average themselves (DDP, FSDP),
            or another argument cannot be used.
    """

    def __init__(
        self,
        parameters: nn.Module | Iterable[torch.Tensor],
        *,
        reduce: str = "exact",
        hosts: Sequence[int] | None = None,
        group: Any = None,
    ) -> None:
        if group is not None and dist.get_rank(group) < 0:
            raise ValueError("this rank is not in the group whose gradients are to be averaged")
        self._parameters = parameters if isinstance(parameters, nn.Module) else list(parameters)
        self._group: Any = dist.group.WORLD if group is None else group
        self._rank, self._world = dist.get_rank(self._group), dist.get_world_size(self._group)
        self._checked = False  # whether ranks have the same parameters' values
        self._failed: RuntimeError | None = None
        given = list(hosts) if hosts is not None else None
        wrong = f"reduce = {reduce!r}: not one of {', '.join(_WAYS)}" if reduce not in _WAYS else ""
        if given is not None and len(given) != self._world:
            wrong = wrong or f"hosts has {len(given)} numbers for {self._world} ranks"
        found = named(self._parameters)
        wrong = wrong or refusal(self._parameters, found)
        self._described: list[Described] = [] if wrong else [described(*one) for one in found]
        theirs, prefix = self._agreed(((reduce, given, self._described), uuid.uuid4().hex))
        self._raise_if_any(wrong or _difference((reduce, given, self._described), theirs))
        layout = found_layout(given, self._group)
        self._way = "bf16" if reduce == "bf16" and len(layout.hosts) > 1 else "hierarchical"
        store, timeout = store_of(f"trainshed/gradients/{prefix}"), timeout_of(self._group)
        self._peers = Peers(dist.PrefixStore("flags", store), range(self._world), self._rank, timeout)
        self._algorithms = Algorithms(layout, self._rank, store, timeout)
        self._algorithms.make([self._way, "direct"])
        weakref.finalize(self, self._algorithms.close)

    @torch.no_grad()
    def average(self) -> None:
        """Replaces each gradient by its mean over the ranks. Collective; call it after backward.

        A gradient that some ranks do not have counts as zero there, and is made; one that no rank has stays None.

        Raises:
            ValueError: on all ranks, gradients unchanged: sparse gradients, parameters that have changed since this was
                made, or (in the first call) whose values differ between ranks.
            RuntimeError: another rank did not take part, for the group's timeout or since it has ended. Gradients are then
                partly averaged: do not use them.
        """
        if self._failed is not None:
            raise self._failed
        found = named(self._parameters)
        wrong = refusal(self._parameters, found) or self._changed(found)
        wrong = wrong or next(filter(None, (wrong_gradient(*one) for one in found)), "")
        flags = torch.zeros(len(self._described) + 1, dtype=torch.int64)
        if wrong:
            flags[-1] = 1
        else:
            flags[:-1] = torch.tensor([one.grad is not None for _, one in found])
        try:
            self._peers.all_reduce(flags)
            if flags[-1]:
                self._raise_if_any(wrong)
            if not self._checked:
                self._compare_values(found)
            self._exchange([one for (_, one), count in zip(found, flags.tolist(), strict=False) if count])
        except ValueError:  # all ranks raise it, before anything was exchanged
            raise
        except BaseException as error:  # an interrupt, too: messages of this rank would meet others of its peers
            self._failed = told(error)
            if isinstance(error, RuntimeError):
                raise self._failed from error
            raise

    def _exchange(self, parameters: Sequence[torch.Tensor]) -> None:
        for one in parameters:
            if one.grad is None:
                one.grad = torch.zeros_like(one)
        own = [own_part(one.grad) for one in parameters if one.grad is not None]
        gradients = settled(own)
        sent: deque[tuple[GradientPiece, Wait]] = deque()
        for piece in joined(gradients):
            if len(sent) == _AT_ONCE:
                _arrived(*sent.popleft())
            wait = Wait()
            small = piece.flat.numel() * piece.flat.element_size() <= SMALL
            self._algorithms.average("direct" if small else self._way, piece.flat, wait)
            sent.append((piece, wait))
        while sent:
            _arrived(*sent.popleft())
        for parameter, before, after in zip(parameters, own, gradients, strict=True):
            if after is not before:
                parameter.grad = torch.zeros_like(parameter)
                own_part(parameter.grad).copy_(after)

    def _changed(self, found: Sequence[tuple[str, torch.Tensor]]) -> str:
        now = [described(*one) for one in found]
        if now == self._described:
            return ""
        unlike = next((one for one in now if one not in self._described), None)
        return f"parameters have changed ({unlike or 'some are gone'}): make data.Gradients anew, on all ranks"

    def _compare_values(self, found: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Once: ranks that began with other values would never train one model."""
        mine = [_fingerprint(own_part(one)) for _, one in found]
        theirs = self._agreed(mine)
        unlike = next((name for (name, _), one, other in zip(found, mine, theirs, strict=True) if one != other), None)
        self._raise_if_any(
            f"{unlike} has other values than on rank 0: give all ranks the same model first (dist.broadcast, or a seed)"
            if unlike
            else ""
        )
        self._checked = True

    def _agreed(self, value: Any) -> Any:
        """That of the group's first rank."""
        box = [value]
        dist.broadcast_object_list(box, dist.get_global_rank(self._group, 0), group=self._group)
        return box[0]

    def _raise_if_any(self, wrong: str) -> None:
        every: list[Any] = [""] * self._world
        dist.all_gather_object(every, wrong, group=self._group)
        for rank, said in enumerate(every):
            if said:
                raise ValueError(f"data.Gradients, rank {rank}: {said}")


def _arrived(piece: GradientPiece, wait: Wait) -> None:
    wait.result()
    piece.put_back()


def _difference(mine: tuple[str, Any, list[Described]], theirs: tuple[str, Any, list[Described]]) -> str:
    """What this rank has otherwise than the first one, "" where nothing."""
    for name, here, there in zip(("reduce", "hosts"), mine, theirs, strict=False):
        if here != there:
            return f"{name} = {here!r}, on rank 0 {there!r}"
    for one, other in zip(mine[2], theirs[2], strict=False):
        if one == other:
            continue
        if one.shard != other.shard and (one.name, one.shape, one.kind) == (other.name, other.shape, other.kind):
            return f"{one}, on rank 0 {other}: group= has to be the ranks that have the same shard"
        return f"{one}, on rank 0 {other}: all ranks need the same parameters in the same order"
    if theirs[2] and len(mine[2]) != len(theirs[2]):
        return f"{len(mine[2])} parameters, on rank 0 {len(theirs[2])}"
    return ""


def _fingerprint(tensor: torch.Tensor) -> int:
    """Of its bits; whatever the order in which they are summed."""
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    flat = tensor.detach().reshape(-1).contiguous().resolve_conj().resolve_neg()
    flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    return int(flat.view(words[flat.element_size()]).sum(dtype=torch.int64).item())
