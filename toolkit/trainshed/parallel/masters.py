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
from .ground.errors import PipelineError
from .ground.halves import is_half
from .ground.shards import like, local

State = Mapping[str, Any]
MASTER = "master"


@contextmanager
def updated(optimizer: torch.optim.Optimizer, holding: Holding | None) -> Iterator[None]:
    """Within this context the optimizer has masters in the place of parameters in half precision that have a gradient, and
    copies in the CPU's memory of those whose states are kept there."""
    settle(optimizer, holding)
    places = [
        (group["params"], index, parameter)
        for group in optimizer.param_groups
        for index, parameter in enumerate(group["params"])
        if parameter.grad is not None and (is_half(parameter) or _goes(parameter, holding))
    ]
    masters: list[nn.Parameter] = []
    with torch.no_grad(), torch.inference_mode(False):
        for parameters, index, parameter in places:
            apart = _goes(parameter, holding)
            entry = optimizer.state.pop(parameter, {})
            held = _on_cpu(parameter.detach()) if apart else parameter.detach()
            master = _master(entry.pop(MASTER, None), held) if is_half(parameter) else nn.Parameter(held)
            if entry:
                optimizer.state[master] = {key: _moved(one) for key, one in entry.items()} if apart else entry
            master.grad = _on_cpu(parameter.grad) if apart else parameter.grad
            parameters[index] = master
            masters.append(master)
    if holding is not None:
        names = holding.names
        known = [(master, names.get(id(one))) for (*_, one), master in zip(places, masters, strict=True)]
        holding.standing = {id(master): name for master, name in known if name is not None}
    try:
        yield
    finally:
        if holding is not None:
            holding.standing = {}
        with torch.no_grad(), torch.inference_mode(False):
            for (parameters, index, parameter), master in zip(places, masters, strict=True):
                local(parameter.detach()).copy_(local(master.detach()).to(parameter.dtype))
                master.grad = None
                entry = optimizer.state.pop(master, {})
                optimizer.state[parameter] = {**entry, MASTER: master} if is_half(parameter) else entry
                parameters[index] = parameter


def _master(master: nn.Parameter | None, held: torch.Tensor) -> nn.Parameter:
    """The master, with what the script has changed in the parameter; a new one, if there is none.

    Args:
        held: the parameter's value, where the master is to be.
    """
    if master is None:
        return nn.Parameter(held.to(torch.float32))
    own, value = local(master.detach()), local(held)
    own.copy_(torch.where(own.to(value.dtype) == value, own, value.to(own.dtype)))
    return master


def is_away(parameter: torch.Tensor) -> bool:
    """Returns whether a parameter lies in other memory than the CPU's."""
    return parameter.device.type != "cpu"


def _goes(parameter: torch.Tensor, holding: Holding | None) -> bool:
    """Whether what an optimizer keeps for a parameter goes to the CPU's memory."""
    return holding is not None and holding.grid.settings.offload_optimizer_state and is_away(parameter)


def home_of_state(parameter: torch.Tensor, holding: Holding | None) -> torch.device:
    """The device on which an optimizer keeps a parameter's state."""
    return torch.device("cpu") if _goes(parameter, holding) else parameter.device


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in memory that a GPU reaches by itself."""
    copy = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda, requires_grad=False)
    return copy.copy_(tensor)


def _moved(entry: Any) -> Any:
    return entry.cpu() if isinstance(entry, torch.Tensor) else entry


def has_others(optimizer: torch.optim.Optimizer, holding: Holding | None) -> bool:
    """Returns whether an optimizer has to update others in the place of its parameters.

    Raises:
        PipelineError: it cannot.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    goes = any(_goes(parameter, holding) for parameter in parameters)
    if not goes and not any(map(is_half, parameters)):
        return False
    setting = "offload_optimizer_state" if goes else "master_weights"
    if isinstance(optimizer, torch.optim.LBFGS):
        raise PipelineError(f"LBFGS is not supported together with {setting}", hint="use another optimizer")
    if goes and any(group.get("capturable") for group in optimizer.param_groups):
        raise PipelineError(
            f"an optimizer with capturable=True steps on the GPU, and {setting} has it step on the CPU",
            hint="leave out one of the two",
        )
    return True


def settle(optimizer: torch.optim.Optimizer, holding: Holding | None) -> None:
    """Values of float32 that were loaded into parameters of an optimizer become their masters."""
    if holding is None or not holding.exact:
        return
    names = holding.names
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            value = holding.exact.pop(names[id(parameter)], None) if id(parameter) in names else None
            if value is not None and is_half(parameter):
                optimizer.state[parameter][MASTER] = nn.Parameter(value.to(home_of_state(parameter, holding)))


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
    flat = [p for group in optimizer.param_groups for p in group["params"]]
    given = {  # torch would put all of it beside the parameters
        index: {key: one for key, one in entry.items() if not (_goes(flat[index], holding) and _is_large(one))}
        for index, entry in known.items()
    }
    yield {index: entry for index, entry in given.items() if entry}
    names = holding.names if holding is not None else {}
    for index, entry in states.items():
        parameter = flat[index]
        goes, home = _goes(parameter, holding), home_of_state(parameter, holding)
        if not is_half(parameter) and not goes:
            continue
        there = optimizer.state[parameter] if known[index] else {}
        for key, value in known[index].items():
            if isinstance(value, torch.Tensor) and key != "step" and (value.is_floating_point() or goes):
                there[key] = value.detach().to(home, copy=True)
        if MASTER in entry and is_half(parameter):
            before[parameter] = nn.Parameter(entry[MASTER].detach().to(home, torch.float32, copy=True))
            if holding is not None and id(parameter) in names:
                holding.exact.pop(names[id(parameter)], None)
    for parameter, master in before.items():
        optimizer.state[parameter][MASTER] = master


def _is_large(entry: Any) -> bool:
    return isinstance(entry, torch.Tensor) and entry.dim() > 0


def is_bare(entry: State) -> bool:
    """Returns whether a state is a master alone, which torch's own optimizers do not take."""
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
