"""Gradients as products of two thin matrices: fewer bytes in every step, and another training (PowerSGD).

Source: "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization" (Vogels et al., 2019). The engine
is torch's hook of that name. What this adds: its state goes into checkpoints, and outlives that DDP lays its buckets out
anew, which it does after the first step of every process; a step whose gradients are not finite does not spoil all later
ones; and on CPUs the hook has one bucket at a time. It waits in gloo's threads for messages that need these threads, and
sends them in the order in which these come to it: several buckets at once would stop there, or be mistaken for each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from trainshed.base.voice import tell

from ..ground.torch_private import communication_hooks, timeout_of
from .reducing import told

LEAST_RATE = 2  # a gradient is sent as it is where its factors are not smaller by more than that


class PowerSGD:
    """Has the ranks of a DistributedDataParallel exchange gradients of low rank.

        model = DistributedDataParallel(model)
        compressed = data.PowerSGD(model, rank=4, start=1000)
        checkpoints = Checkpointer(model=model, optimizer=optimizer, extra={"compressed": compressed})

    What a rank's gradient loses by it is kept on that rank, and added to its next one (error feedback); the factors of a
    step are where the next one begins. Both are in `state_dict`, each rank's own: a job that goes on with as many ranks ends
    as if it had never been interrupted. With other ranks what was kept back so far is dropped, and a line says so.

    Args:
        model: as it was made, without another communication hook, on all ranks alike.
        rank: of the products, from 1: more is nearer to the gradient, and more bytes.
        start: how many steps exchange whole gradients first, from 2.

    Raises:
        TypeError: the model is not a DistributedDataParallel.
        ValueError: an argument, or the model, cannot be used.
    """

    def __init__(self, model: DistributedDataParallel, *, rank: int = 4, start: int = 1000) -> None:
        if not isinstance(model, DistributedDataParallel):
            raise TypeError(f"PowerSGD() takes a DistributedDataParallel, not a {type(model).__name__}")
        if rank < 1 or start < 2:
            raise ValueError(f"rank = {rank}, start = {start}: from 1, and from 2 (DDP lays out its buckets after a step)")
        if reason := _refusal(model):
            raise ValueError(reason)
        # One of its own: nothing else may come between its messages, whose order is that of the buckets.
        ranks = dist.get_process_group_ranks(model.process_group)
        self._group: Any = dist.new_group(ranks, timeout_of(model.process_group), use_local_synchronization=True)
        self._in_order = ThreadPoolExecutor(1, thread_name_prefix="trainshed-reduce")
        self._rank = rank
        self._state = PowerSGDState(
            self._group, matrix_approximation_rank=rank, start_powerSGD_iter=start, min_compression_rate=LEAST_RATE
        )
        self._parameters = [one for one in model.module.parameters() if one.requires_grad]
        self._places = {id(parameter): place for place, parameter in enumerate(self._parameters)}
        self._layout: dict[int, tuple[int, ...]] = {}  # by bucket: places of its parameters
        self._under_way: set[int] = set()  # buckets of this backward
        self._kept: dict[int, tuple[torch.Tensor | None, torch.Tensor | None]] = {}  # of no bucket yet: errors and factors
        hook = self._exchange

        def trainshed_power_sgd(_, bucket):  # type: ignore[no-untyped-def]  # (DDP refuses annotations as text)
            return hook(bucket)

        model.register_comm_hook(None, trainshed_power_sgd)
        if dist.get_rank(self._group) == 0:
            whole, less = (sum(sizes) / 1e6 for sizes in zip(*(self._bytes(one) for one in self._parameters), strict=True))
            tell(f"powersgd: from step {start} on {less:.3g} MB of gradients instead of {whole:.3g}, of rank {rank}")

    def state_dict(self) -> dict[str, Any]:
        """This rank's own part, by parameters: what was kept back, and the factors. Between two steps."""
        kept = dict(self._kept)
        for index in self._layout:
            kept |= self._taken(index)
        parts = [kept.get(place, (None, None)) for place in range(len(self._parameters))]
        name, numbers, *rest = self._state.rng.get_state()
        return {
            "world": dist.get_world_size(self._group),
            "rank": self._rank,
            "steps": self._state.iter,
            "errors": [None if error is None else error.clone() for error, _ in parts],
            "factors": [None if factor is None else factor.clone() for _, factor in parts],
            "draw": [name, [int(number) for number in numbers], *rest],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on there: exactly with as many ranks.

        Raises:
            ValueError: it is the state of another model, or of products of another rank.
        """
        errors, factors = state["errors"], state["factors"]
        fits = len(errors) == len(factors) == len(self._parameters) and all(
            (error is None or error.numel() == one.numel()) and (factor is None or factor.numel() == self._factor(one))
            for one, error, factor in zip(self._parameters, errors, factors, strict=True)
        )
        if not fits or state["rank"] != self._rank:
            raise ValueError(
                f"it is PowerSGD's state of another model, or of gradients of rank {state['rank']}: "
                f"these are of rank {self._rank}"
            )
        world = dist.get_world_size(self._group)
        alike = state["world"] == world
        if not alike and dist.get_rank(self._group) == 0:
            tell(f"powersgd: {state['world']} ranks are now {world}: what their gradients had lost so far is dropped")
        self._forget()
        for place, (one, error, factor) in enumerate(zip(self._parameters, errors, factors, strict=True)):
            self._kept[place] = (
                error.to(one) if alike and error is not None else None,
                factor.to(one) if factor is not None else None,
            )
        self._state.iter = int(state["steps"])
        name, numbers, *rest = state["draw"]
        self._state.rng.set_state((name, numbers, *rest))

    # --- in a backward ---

    def _exchange(self, bucket: Any) -> Any:
        if self._state.iter < self._state.start_powerSGD_iter:
            return powerSGD_hook(self._state, bucket)
        if bucket.buffer().device.type != "cpu":
            return self._compress(bucket)
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()

        def work() -> None:
            try:
                future.set_result(self._compress(bucket).wait())
            except BaseException as error:
                future.set_exception(told(error))  # type: ignore[arg-type]

        self._in_order.submit(work)
        return future

    def _compress(self, bucket: Any) -> Any:
        index, places = bucket.index(), tuple(self._places[id(one)] for one in bucket.parameters())
        if self._layout.get(index) != places:
            self._lay_out(index, places, bucket.buffer())
        self._under_way.add(index)
        if bucket.is_last():
            self._under_way.clear()
        return powerSGD_hook(self._state, bucket).then(lambda done: self._checked(index, done))

    def _checked(self, index: int, done: Any) -> torch.Tensor:
        """The sum. One that is not finite, which all ranks see alike, leaves nothing for the next step."""
        value = done.value()
        result: torch.Tensor = value[0] if isinstance(value, (list, tuple)) else value
        if not bool(torch.isfinite(result).all()):
            self._drop(index)
        return result

    def _lay_out(self, index: int, places: tuple[int, ...], buffer: torch.Tensor) -> None:
        """Gives a bucket what its parameters had in others; those of this backward are at work, and stay as they are."""
        for other in [one for one in self._layout if one not in self._under_way]:
            self._kept |= self._taken(other)
            self._drop(other)
            del self._layout[other]
        self._layout[index] = places
        parts = [self._kept.pop(place, (None, None)) for place in places]
        if any(error is not None for error, _ in parts):
            flat = torch.zeros_like(buffer)
            for piece, (error, _) in zip(self._pieces(flat, places), parts, strict=True):
                if error is not None:
                    piece.copy_(error.view(-1))
            self._state.error_dict[index] = flat
        factor_of = {place: factor for place, (_, factor) in zip(places, parts, strict=True)}
        factors = [factor_of[place] for place in self._factored(places)]
        if factors and not any(factor is None for factor in factors):
            others = [self._parameters[place] for place in self._factored(places)]
            self._state.p_memory_dict[index] = buffer.new_empty(sum(one.shape[0] * self._rank_of(one) for one in others))
            self._state.q_memory_dict[index] = torch.cat([factor.view(-1) for factor in factors if factor is not None])

    def _taken(self, index: int) -> dict[int, tuple[torch.Tensor | None, torch.Tensor | None]]:
        """What a bucket's parameters have, by place."""
        places = self._layout[index]
        errors, factors = self._state.error_dict.get(index), self._state.q_memory_dict.get(index)
        errors_of: Sequence[torch.Tensor | None] = [None] * len(places) if errors is None else self._pieces(errors, places)
        factor_of: dict[int, torch.Tensor] = {}
        if factors is not None:
            whole = self._factored(places)
            sizes = [self._factor(self._parameters[place]) for place in whole]
            factor_of = dict(zip(whole, factors.split(sizes), strict=True))
        pairs = {place: (error, factor_of.get(place)) for place, error in zip(places, errors_of, strict=True)}
        return {place: (error, factor) for place, (error, factor) in pairs.items() if not (error is None and factor is None)}

    def _drop(self, index: int) -> None:
        for held in (self._state.error_dict, self._state.p_memory_dict, self._state.q_memory_dict):
            held.pop(index, None)

    def _forget(self) -> None:
        for index in self._layout:
            self._drop(index)
        self._layout.clear()
        self._kept.clear()

    # --- sizes, as torch's hook has them ---

    def _pieces(self, flat: torch.Tensor, places: tuple[int, ...]) -> Sequence[torch.Tensor]:
        return flat.split([self._parameters[place].numel() for place in places])

    def _factored(self, places: tuple[int, ...]) -> list[int]:
        """Those that have factors, in the order in which these lie in torch's memory: matrices of one shape together."""
        by_shape: dict[tuple[int, int], list[int]] = {}
        for place in places:
            one = self._parameters[place]
            if self._factor(one):
                by_shape.setdefault((one.shape[0], one.numel() // one.shape[0]), []).append(place)
        return [place for alike in by_shape.values() for place in alike]

    def _rank_of(self, parameter: torch.Tensor) -> int:
        rows = parameter.shape[0]
        return min(rows, parameter.numel() // rows, self._rank)

    def _factor(self, parameter: torch.Tensor) -> int:
        """Elements of the factor that is kept from step to step; 0 for a gradient that is sent as it is."""
        rows, columns = parameter.shape[0], math.prod(parameter.shape[1:])
        rank = self._rank_of(parameter)
        return columns * rank if (rows + columns) * rank * LEAST_RATE < rows * columns else 0

    def _bytes(self, parameter: torch.Tensor) -> tuple[int, int]:
        """Of the gradient, and of what is exchanged for it."""
        factor = self._factor(parameter)
        less = factor + parameter.shape[0] * self._rank_of(parameter) if factor else parameter.numel()
        return parameter.numel() * parameter.element_size(), less * parameter.element_size()


def _refusal(model: DistributedDataParallel) -> str:
    """Why torch's hook cannot serve a model; "" where it can."""
    if communication_hooks(model):
        return "the model has another communication hook (reduce=auto, or one of the script's)"
    for name, one in model.module.named_parameters():
        if one.requires_grad and not one.numel():
            return f"parameter {name} is empty: PowerSGD takes none"
        if one.requires_grad and not one.dim():
            return f"parameter {name} is a single number: make it torch.ones(1) or the like for PowerSGD"
        if one.requires_grad and one.is_complex():
            return f"parameter {name} is complex: PowerSGD takes real ones"
    if any(getattr(module, "sparse", False) for module in model.module.modules()):
        return "gradients are sparse: PowerSGD takes dense ones"
    return ""
