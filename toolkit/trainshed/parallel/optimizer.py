"""The optimizer as the user's script holds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from . import lbfgs
from .clip import GradScaler, clip_grad_norm_
from .engine.holding import Holding
from .gather import gather_optimizer, load_optimizer, local_optimizer
from .ground.errors import PipelineError
from .ground.grid import Grid
from .ground.shards import follow, local
from .ground.torch_private import plain_on_all_ranks
from .masters import has_others, updated
from .session import session

# In torch's errors about what its DTensor cannot do.
_ABOUT_PARTS = ("Sharding propagation failed", "sharding strategy", "StridedShard", "mixed torch.Tensor and DTensor")


class PipelineOptimizer(torch.optim.Optimizer):
    """Any torch optimizer over the model's parameters; it has state for what this rank holds, and only for that.

    It may be made before or after the model is wrapped. It is an `Optimizer` by type alone, as learning rate schedulers
    ask for one: everything that it does not define is the wrapped optimizer's.

    Args:
        scaler: for float16: `model.backward` then scales the loss, and a step unscales the gradients (or is left out on all
            ranks if one of them overflows) and adjusts the scale.

    overflow: whether the last step was left out because a scaled gradient was not finite.
    """

    _unless_given = 0.0  # sdp_gradient_clipping

    def __init__(self, optimizer: torch.optim.Optimizer, scaler: GradScaler | None = None) -> None:
        self.optimizer = optimizer
        self.scaler = scaler
        self.overflow = False
        self._update = _Update(self)
        self._unscaled = False
        self._owners: dict[int, int] = {}
        session.optimizer = self

    def __getattr__(self, name: str) -> Any:
        if name in ("optimizer", "scaler"):
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.optimizer!r})"

    @property
    def state(self) -> Any:
        """The wrapped optimizer's."""
        return self.optimizer.state

    @state.setter
    def state(self, value: Any) -> None:
        self.optimizer.state = value

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The wrapped optimizer's."""
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, value: list[dict[str, Any]]) -> None:
        self.optimizer.param_groups = value

    @property
    def defaults(self) -> dict[str, Any]:
        """The wrapped optimizer's."""
        return self.optimizer.defaults

    @defaults.setter
    def defaults(self, value: dict[str, Any]) -> None:
        self.optimizer.defaults = value

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the wrapped optimizer's."""
        self.optimizer.add_param_group(param_group)

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        """One update of what this rank holds: parameters of other ranks have no gradient here.

        Raises:
            PipelineError: the loss was scaled for another optimizer, or LBFGS has parameters that it cannot move.
        """
        self._check_scaler()
        limit = self._limit()
        if closure is not None and (limit or self.scaler is not None):
            what = "sdp_gradient_clipping" if self.scaler is None else "a scaler"
            raise PipelineError(f"a step with {what} takes no closure", hint="run the step function before optimizer.step()")
        self.unscale()
        if limit:
            clip_grad_norm_([p for group in self.optimizer.param_groups for p in group["params"]], limit)
        if self.scaler is None:
            return self._plain_step(closure)
        self.overflow = True
        result = self.scaler.step(self._update)
        self.scaler.update()
        self._unscaled = False
        return result

    def _limit(self) -> float:
        """What gradients are clipped to in a step; 0 for no clipping."""
        settings = session.grid.settings if session.grid is not None else None
        if settings is None or settings.sharded_data_parallel_degree == 1:
            return 0.0
        return self._unless_given if settings.sdp_gradient_clipping is None else settings.sdp_gradient_clipping

    def _check_scaler(self) -> None:
        current = session.optimizer
        if isinstance(current, PipelineOptimizer) and current.scaler is not self.scaler:
            raise PipelineError(
                "the loss is scaled for another optimizer, which has another scaler",
                hint="make one GradScaler and give it to all optimizers",
            )

    @property
    def loss_scale(self) -> float:
        """Factor by which `model.backward` multiplies the loss."""
        return self.scaler.get_scale() if self.scaler is not None else 1.0

    def unscale(self) -> None:
        """Divides the gradients by the loss scale, once a step; call it to read gradients before the step. Collective."""
        self._check_scaler()
        if self.scaler is not None and not self._unscaled:
            self.scaler.unscale_(self._update)
            self._unscaled = True

    def _plain_step(self, closure: Any = None) -> Any:
        here = session.grid
        others = has_others(self.optimizer, session.holding)
        if isinstance(self.optimizer, torch.optim.LBFGS) and closure is not None and here is not None and here.world > 1:
            return lbfgs.step(self.optimizer, closure, _holding())
        shared = here is not None and len(_alike(here)[0]) > 1 and _shards_states(here)
        loss = None
        if closure is not None and (others or shared):  # gradients go where the step finds them
            with torch.enable_grad():
                loss = closure()
            closure = None
        result = self._sharded_step(here) if here is not None and shared else self._step_here(closure)
        return result if loss is None else loss

    def _step_here(self, closure: Any = None) -> Any:
        """The wrapped optimizer's step."""
        others = has_others(self.optimizer, session.holding)
        # An optimizer may take parts and whole parameters in one operation.
        session.updating = True
        try:
            masters = updated(self.optimizer, session.holding) if others else nullcontext()
            with masters, plain_on_all_ranks(), _in_words(self.optimizer):
                return self.optimizer.step(closure) if closure is not None else self.optimizer.step()
        finally:
            session.updating = False

    def _sharded_step(self, grid: Grid) -> Any:
        """ZeRO-1: each replica updates its share of the parameters, has optimizer state for that alone, and sends it."""
        held = session.holding.parameters if session.holding is not None else {}
        here = {id(parameter) for parameter in held.values()}
        every = [p for group in self.optimizer.param_groups for p in group["params"] if id(p) in here]
        ranks, group = _alike(grid)
        owners = self._share_out(every, len(ranks))
        trained = [p for p in every if p.requires_grad or p.grad is not None]
        owner = [owners[id(p)] for p in trained]
        others = [p for p in every if owners[id(p)] != ranks.index(grid.rank)]
        kept = [p.grad for p in others]
        for parameter in others:
            parameter.grad = None
        result = self._step_here()
        for parameter, gradient in zip(others, kept, strict=True):
            parameter.grad = gradient
            self.optimizer.state.pop(parameter, None)  # of a checkpoint, which each replica has loaded as a whole
        with torch.no_grad():
            for number, parameter in enumerate(trained):
                dist.broadcast(local(parameter.detach()), src=ranks[owner[number]], group=group)
        return result

    def _share_out(self, parameters: list[torch.Tensor], replicas: int) -> dict[int, int]:
        """`id` of each parameter -> the replica that updates it. For good, for that one has the state, whatever is frozen
        or added later."""
        loads = [0] * replicas
        for parameter in parameters:
            if id(parameter) in self._owners:
                loads[self._owners[id(parameter)]] += parameter.numel()
        fresh = [number for number, parameter in enumerate(parameters) if id(parameter) not in self._owners]
        for number in sorted(fresh, key=lambda number: (-parameters[number].numel(), number)):
            owner = self._owners[id(parameters[number])] = loads.index(min(loads))
            loads[owner] += parameters[number].numel()
        return self._owners

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets all gradients."""
        if self.scaler is not None and self._unscaled:  # they were read, but there was no step
            self.scaler.update()
            self._unscaled = False
        self.optimizer.zero_grad(set_to_none=set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The whole optimizer's state, in plain PyTorch's form, on every rank of the pipeline. Collective."""
        return gather_optimizer(self.optimizer, _holding())

    def local_state_dict(self, gather_if_shard: bool = True) -> dict[str, Any]:
        """State of this rank's parameters, by name."""
        scale = self.scale_state()
        return {**local_optimizer(self.optimizer, _holding()), **({"scaler": scale} if scale else {})}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes the whole state, or parts of it (then collective); before the first step it is kept until the model is
        partitioned."""
        self.load_scale(state.get("scaler"))
        if session.holding is None:
            load_optimizer(self.optimizer, state, None)
        else:
            holding = session.holding
            holding.when_partitioned(lambda: load_optimizer(self.optimizer, state, holding))

    def scale_state(self) -> dict[str, Any]:
        """The loss scale and what moves it, for a checkpoint; empty where the loss is not scaled."""
        return self.scaler.state_dict() if self.scaler is not None else {}

    def load_scale(self, state: Mapping[str, Any] | None) -> None:
        """Goes on with the loss scale of a checkpoint, by this scaler's own rules; None changes nothing."""
        now = self.scale_state()
        if state and now and self.scaler is not None:
            moved = {key: value for key, value in state.items() if key == "scale" or key.startswith("_")}
            # torch lets a scale grow at this very number of steps, which another interval may have passed.
            for key in moved.keys() - {"scale"}:
                moved[key] = min(moved[key], now["growth_interval"] - 1)
            self.scaler.load_state_dict({**now, **moved})

    def follow(self, names: Mapping[int, str], shards: Mapping[str, nn.Parameter]) -> None:
        """Goes on with this rank's shards of its parameters.

        Args:
            names: `id` of a parameter before it was sharded -> its name.
            shards: name -> the sharded parameter.
        """
        follow(self.optimizer, names, shards)


class _Update(torch.optim.Optimizer):
    """The optimizer as a loss scaler sees it: its parameters, and the step without scaling."""

    def __init__(self, owner: PipelineOptimizer) -> None:
        self.owner = owner

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The wrapped optimizer's."""
        return self.owner.optimizer.param_groups

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        """One update, gradients as they are; not called after an overflow."""
        self.owner.overflow = False
        return self.owner._plain_step(closure)


@contextmanager
def _in_words(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Says what torch's errors about parts of tensors mean.

    Raises:
        PipelineError: an optimizer does something that parts of parameters cannot.
    """
    try:
        yield
    except (RuntimeError, NotImplementedError) as error:
        if isinstance(error, PipelineError) or not any(word in str(error) for word in _ABOUT_PARTS):
            raise
        raise PipelineError(
            f"{type(optimizer).__name__} does something to a divided parameter that torch does not do in parts: "
            f"{str(error).strip().splitlines()[0]}",
            hint="another optimizer, or one without states in blocks; or leave out tensor_parallel_degree and "
            "sharded_data_parallel_degree",
        ) from error


def _alike(here: Grid) -> tuple[list[int], dist.ProcessGroup]:
    """The ranks that hold the same as this one, and their group."""
    if here.tensor is not None:
        return here.tensor.twins, here.tensor.twin_group
    return here.replica_ranks, here.replica_group


def _shards_states(here: Grid) -> bool:
    """Whether we shard optimizer states: sharded parameters have sharded states anyway."""
    return here.settings.shard_optimizer_state and here.settings.sharded_data_parallel_degree == 1


def _holding() -> Holding:
    if session.holding is None:
        raise PipelineError("an optimizer's state is asked for before the model is wrapped")
    return session.holding
