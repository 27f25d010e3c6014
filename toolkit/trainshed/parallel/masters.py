"""float32 values ("masters") of parameters in half precision, which an optimizer updates in their place.

A master lies in the optimizer's state of its parameter, as the entry `master`, so it is saved, loaded, divided and shared
out as the rest of the state is. In a step the optimizer has masters for parameters; afterwards each parameter is its master
rounded. Where it is not when a step begins, the script has changed it (weights were loaded, clamped, averaged), and it
counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from .engine.holding import Holding
from .errors import PipelineError
from .halves import is_half
from .shards import like, local

State = Mapping[str, Any]
MASTER = "master"


@contextmanager
def updated(optimizer: torch.optim.Optimizer, holding: Holding | None) -> Iterator[None]:
    """Within this context the optimizer has the masters of parameters in half precision that have a gradient."""
    settle(optimizer, holding)
    places = [
        (group["params"], index, parameter)
        for group in optimizer.param_groups
        for index, parameter in enumerate(group["params"])
        if is_half(parameter) and parameter.grad is not None
    ]
    masters: list[nn.Parameter] = []
    with torch.no_grad(), torch.inference_mode(False):
        for parameters, index, parameter in places:
            entry = optimizer.state.pop(parameter, {})
            master = entry.pop(MASTER, None)
            master = _made(parameter) if master is None else _followed(master, parameter)
            if entry:
                optimizer.state[master] = entry
            master.grad = parameter.grad
            parameters[index] = master
            masters.append(master)
    try:
        yield
    finally:
        with torch.no_grad(), torch.inference_mode(False):
            for (parameters, index, parameter), master in zip(places, masters, strict=True):
                local(parameter.detach()).copy_(local(master.detach()))
                master.grad = None
                optimizer.state[parameter] = {**optimizer.state.pop(master, {}), MASTER: master}
                parameters[index] = parameter


def _made(parameter: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(parameter.detach().to(torch.float32))


def _followed(master: nn.Parameter, parameter: torch.Tensor) -> nn.Parameter:
    """The master, with what the script has changed in the parameter."""
    own, held = local(master.detach()), local(parameter.detach())
    own.copy_(torch.where(own.to(held.dtype) == held, own, held.to(own.dtype)))
    return master


def has_halves(optimizer: torch.optim.Optimizer) -> bool:
    """Whether parameters of an optimizer have masters, or will have them."""
    return any(is_half(parameter) for group in optimizer.param_groups for parameter in group["params"])


def settle(optimizer: torch.optim.Optimizer, holding: Holding | None) -> None:
    """Values of float32 that were loaded into parameters of an optimizer become their masters."""
    if holding is None or not holding.exact:
        return
    names = holding.names
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            value = holding.exact.pop(names[id(parameter)], None) if id(parameter) in names else None
            if value is not None and is_half(parameter):
                optimizer.state[parameter][MASTER] = nn.Parameter(value)


@contextmanager
def loading(
    optimizer: torch.optim.Optimizer, states: Mapping[int, State], holding: Holding | None
) -> Iterator[dict[int, State]]:
    """Around `optimizer.load_state_dict`, which gives a state the types of the parameters, and knows no masters.

    Args:
        states: what is to be loaded, by number of the parameter; the context gives what torch may have of it.
    """
    before = {parameter: entry[MASTER] for parameter, entry in optimizer.state.items() if MASTER in entry}
    known = {index: {key: one for key, one in entry.items() if key != MASTER} for index, entry in states.items()}
    yield {index: entry for index, entry in known.items() if entry}
    flat = [p for group in optimizer.param_groups for p in group["params"]]
    names = holding.names if holding is not None else {}
    for index, entry in states.items():
        parameter = flat[index]
        if not is_half(parameter):
            continue
        there = optimizer.state[parameter] if known[index] else {}
        for key, value in known[index].items():
            if isinstance(value, torch.Tensor) and value.is_floating_point() and key != "step":
                there[key] = value.detach().to(parameter.device, copy=True)
        if MASTER in entry:
            before[parameter] = nn.Parameter(entry[MASTER].detach().to(parameter.device, torch.float32, copy=True))
            if holding is not None and id(parameter) in names:
                holding.exact.pop(names[id(parameter)], None)
    for parameter, master in before.items():
        optimizer.state[parameter][MASTER] = master


def is_bare(entry: State) -> bool:
    """Whether a state is a master alone, which torch's own optimizers do not take."""
    return set(entry) == {MASTER}


def keep_exact(holding: Holding, name: str, parameter: nn.Parameter, value: Any) -> None:
    """Notes the value that is loaded into a parameter, where it is more exact than the parameter."""
    if is_half(parameter) and isinstance(value, torch.Tensor) and value.dtype in (torch.float32, torch.float64):
        with torch.no_grad():
            exact = like(value.detach(), parameter)
            holding.exact[name] = exact.to(parameter.device, torch.float32, copy=True)


def refuse_plain(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> None:
    """Raises:
    PipelineError: an optimizer that is not wrapped would update parameters in half precision.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) in names and is_half(parameter) and parameter.grad is not None:
                raise PipelineError(
                    f"{type(optimizer).__name__} would update {names[id(parameter)]!r} in {parameter.dtype} itself, where "
                    "the job asks for master weights",
                    hint="wrap it: PipelineOptimizer(optimizer); or leave out master_weights",
                )
