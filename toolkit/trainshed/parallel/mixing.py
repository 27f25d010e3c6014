"""Optimizers that update a parameter by others, where a rank holds some of the model's parameters alone.

A norm of all gradients that an optimizer takes inside of its step, as many a LAMB does, is then that of a part of them.
What an optimizer does is tried: it runs a step with small stand-ins for its parameters, and another one in which some of
them have large gradients. Where the others then become something else, it goes by all of them.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from .engine.remote_parameters import AbsentParameter
from .ground.errors import PipelineError
from .ground.shards import local
from .ground.torch_private import hooks_behind
from .ground.tree import map_leaves
from .session import session

# Places of a stand-in along an axis, and how large a gradient is that others must not feel.
_PLACES, _LARGE = 4, 1e4
ASKS_ALL_RANKS = "asks_all_ranks"  # an optimizer with this attribute takes its norms over all ranks
_KEPT = ("param_groups", "state", "defaults")  # what is put back by itself
Found = list[list[torch.Tensor]]


def refuse_mixing(optimizer: torch.optim.Optimizer) -> bool:
    """Before a step of an optimizer that is not torch's own, or has hooks before its step.

    Returns:
        Whether it could be tried, for which it needs two gradients.

    Raises:
        PipelineError: it updates a parameter by others.
    """
    known = type(optimizer).__module__.startswith("torch.optim.") or getattr(optimizer, ASKS_ALL_RANKS, False)
    if known and not hooks_behind(optimizer.register_step_pre_hook):
        return True
    pieces = [[_piece(one) for one in _here(group)] for group in optimizer.param_groups]
    if sum(map(len, pieces)) < 2:
        return False
    pairs = [group for group in pieces if len(group) > 1] or [next(group for group in pieces if group)]
    large = {id(group[0]) for group in pairs}
    try:
        calm, loud = _stepped(optimizer, pieces, set()), _stepped(optimizer, pieces, large)
    except Exception as error:
        warnings.warn(
            f"it could not be tried whether {type(optimizer).__name__} goes by all parameters ({error}): on a rank it has "
            "those of the rank's own stages alone",
            RuntimeWarning,
            stacklevel=2,
        )
        return True
    flat = [one for group in pieces for one in group]
    if any(not _same(*both) for one, *both in zip(flat, calm, loud, strict=True) if id(one) not in large):
        raise PipelineError(
            f"{type(optimizer).__name__} updates each parameter by others (by a norm of all gradients, also in a hook), "
            "and a rank has some of them alone",
            hint="turn that off in the optimizer (max_grad_norm, grad_clip), and call torch.nn.utils.clip_grad_norm_ before "
            "the step; or leave out stages and shard_optimizer_state",
        )
    return True


def _here(group: dict[str, Any]) -> list[torch.Tensor]:
    """Parameters that this rank updates."""
    return [one for one in group["params"] if not isinstance(one, AbsentParameter) and one.grad is not None]


def _piece(parameter: torch.Tensor) -> nn.Parameter:
    """A stand-in: some places of it, with their gradient."""
    made = nn.Parameter(_corner(parameter))
    made.grad = _corner(parameter.grad)  # type: ignore[arg-type]
    return made


def _corner(tensor: torch.Tensor) -> torch.Tensor:
    return local(tensor.detach())[tuple(slice(_PLACES) for _ in range(tensor.dim()))].clone()


def _stepped(optimizer: torch.optim.Optimizer, pieces: list[list[nn.Parameter]], large: set[int]) -> Found:
    """What a step makes of each stand-in: its values, and what the optimizer keeps for it.

    Args:
        large: `id` of those that have a large gradient.
    """
    copies = [[_copied(one, id(one) in large) for one in group] for group in pieces]
    with stepping(optimizer, copies) as step:
        step()
        return [[one.detach(), *_tensors(optimizer.state[one])] for group in copies for one in group]


@contextmanager
def stepping(
    optimizer: torch.optim.Optimizer, stand_ins: list[list[nn.Parameter]], *, fresh: bool = False
) -> Iterator[Callable[[], None]]:
    """Within this context an optimizer has stand-ins for its parameters, and all that it does is forgotten.

    Args:
        stand_ins: for the parameters of each group that have a gradient here, in order, with a part of their state.
        fresh: they have no state, and may stand for any parameters.

    Yields:
        what takes a step with them.
    """

    def step() -> None:
        for hook in list(hooks_behind(optimizer.register_step_pre_hook).values()):
            hook(optimizer, (), {})
        inspect.unwrap(type(optimizer).step)(optimizer)

    with _standing_in(optimizer, stand_ins, fresh), torch.no_grad():
        session.trying = True
        try:
            yield step
        finally:
            session.trying = False


def _copied(piece: nn.Parameter, is_large: bool) -> nn.Parameter:
    made = nn.Parameter(piece.detach().clone())
    gradient: Any = piece.grad
    made.grad = torch.full_like(gradient, _LARGE) if is_large else gradient.clone()
    return made


@contextmanager
def _standing_in(optimizer: torch.optim.Optimizer, copies: list[list[nn.Parameter]], fresh: bool) -> Iterator[None]:
    """Within this context an optimizer has stand-ins alone, and all that it does is forgotten."""
    groups, state = optimizer.param_groups, optimizer.state
    every = [one for _, one in inner(optimizer)]
    own = [dict(vars(one)) for one in every]
    before = [dict(group) for group in groups]
    real = [(one, one.grad) for group in groups for one in group["params"] if not isinstance(one, AbsentParameter)]
    for each in every:
        vars(each).update({key: _apart(value) for key, value in vars(each).items() if key not in _KEPT})
        each.state = defaultdict(dict)
    for group, given in zip(groups, copies, strict=True):
        for one, stand_in in () if fresh else zip(_here(group), given, strict=True):
            if one in state:
                optimizer.state[stand_in] = {key: _cut(value, one) for key, value in state[one].items()}
        group["params"] = given
    for one, _ in real:
        one.grad = None
    devices = {one.device for one, _ in real if one.device.type == "cuda"}
    try:
        with torch.random.fork_rng([device.index for device in devices]):
            yield
    finally:
        for one, gradient in real:
            one.grad = gradient
        for group, kept in zip(groups, before, strict=True):
            group.clear()
            group.update(kept)
        for each, kept in zip(every, own, strict=True):
            vars(each).clear()
            vars(each).update(kept)


def _apart(value: Any) -> Any:
    """The same with tensors of its own, which a step may change in place; parameters have no gradient then."""

    def apart(one: Any) -> Any:
        if isinstance(one, deque):
            return type(one)(map(_apart, one), one.maxlen)
        return one.detach().clone() if isinstance(one, torch.Tensor) and not isinstance(one, nn.Parameter) else one

    return map_leaves(apart, value)


def inner(optimizer: torch.optim.Optimizer, path: str = "") -> list[tuple[str, torch.optim.Optimizer]]:
    """An optimizer, and those that it holds over the same groups (Lookahead): the names of their attributes, and they."""
    found = [(path, optimizer)]
    for name, one in vars(optimizer).items():
        if isinstance(one, torch.optim.Optimizer) and one.param_groups is optimizer.param_groups:
            found += inner(one, f"{path}{name}.")
    return found


def _cut(value: Any, parameter: torch.Tensor) -> Any:
    """What is kept for a parameter, for its stand-in."""
    if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
        return _corner(value)
    return copy.deepcopy(value)


def _tensors(entry: dict[str, Any]) -> list[torch.Tensor]:
    return [value for _, value in sorted(entry.items()) if isinstance(value, torch.Tensor)]


def _same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    """Whether all numbers are the same, those that are not finite included."""
    return all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(one, other, strict=True))
