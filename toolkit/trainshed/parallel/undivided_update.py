"""What an optimizer makes of whole parameters, in one process: the first rank takes its step with stand-ins for all of them.

What the others hold comes from there, as many parameters at a time as there is room for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate

from trainshed.base.errors import shorten

from .engine.verify.tensor_digest import Sketch, sketch
from .ground.grid import Grid
from .ground.memory import SPARE, free_bytes
from .ground.shards import local, whole
from .ground.torch_private import TorchDispatchMode
from .mixing import inner, stepping

# A parameter with its gradient, states and what is made of them, in copies of the parameter.
_COPIES = 8
Entries = dict[str, Any]


@dataclass(frozen=True)
class Made:
    """What an optimizer has made of one parameter: its weights, and what it keeps for them."""

    weights: Sketch
    states: Mapping[str, Sketch | float] = field(default_factory=dict)


@dataclass(frozen=True)
class Held:
    """One parameter as this rank has it.

    group: number of its group in the optimizer.
    """

    group: int
    parameter: Any


class Asks(Exception):
    """An optimizer talks with other ranks in its step."""


class _Alone(TorchDispatchMode):
    """Within this mode no rank is asked: the others would not answer."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        if func.namespace in ("c10d", "_c10d_functional"):
            raise Asks("it asks other ranks")
        return func(*args, **(kwargs or {}))


def entries_of(optimizer: torch.optim.Optimizer, parameter: Any) -> Entries:
    """What an optimizer, and those inside of it, keep for a parameter."""
    every = [(path, one.state) for path, one in inner(optimizer)]
    return {f"{path}{key}": value for path, state in every if parameter in state for key, value in state[parameter].items()}


def whole_entry(entry: Any, parameter: Any) -> Any:
    """An entry of a state as one process has it. Collective where it is in parts."""
    if not isinstance(entry, torch.Tensor):
        return entry
    parts = isinstance(parameter, DTensor) and not isinstance(entry, DTensor) and entry.shape != parameter.shape
    if parts and entry.shape == local(parameter).shape:
        shape, stride = parameter.shape, parameter.stride()
        entry = DTensor.from_local(
            entry, parameter.device_mesh, parameter.placements, run_check=False, shape=shape, stride=stride
        )
    return whole(entry.detach())


def made_of(weights: torch.Tensor, entries: Entries) -> Made:
    """Sketches of whole values; what has none is left out."""
    states: dict[str, Sketch | float] = {}
    for key, value in entries.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            states[key] = float(value)
        elif isinstance(value, torch.Tensor):
            try:
                states[key] = sketch(value)
            except (RuntimeError, NotImplementedError, TypeError, ValueError):  # a type of a library's own
                continue
    return Made(sketch(weights), states)


class UndividedUpdate:
    """One step of an optimizer, before it is taken. Collective over all ranks.

    Args:
        held: name -> what this rank updates.
        holders: name -> the ranks that update a parameter, or a part of it.

    made: what the step makes of each parameter, on the first rank.
    before: sketches of the parameters that this rank updates.
    reason: why there is nothing, or not of all, on the first rank.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, grid: Grid, held: Mapping[str, Held], holders: Mapping[str, Sequence[int]]
    ) -> None:
        self._optimizer, self._grid, self._held, self._holders = optimizer, grid, held, holders
        self.made: dict[str, Made] = {}
        self.before: dict[str, Sketch] = {}
        self.reason = ""

    def run(self, bunches: Sequence[Sequence[str]]) -> None:
        """Takes the step, for so many parameters at a time."""
        for names in bunches:
            fetched = [(name, self._fetch(name)) for name in names]
            if self._grid.rank == 0 and not self.reason:
                self._take({name: one for name, one in fetched if one is not None})

    def _fetch(self, name: str) -> tuple[int, Entries, bool] | None:
        """A parameter's group, values, gradient and state, on the first rank."""
        ranks, grid = self._holders[name], self._grid
        sent = None
        if name in self._held:
            one = self._held[name]
            parameter = one.parameter
            values = {"": whole(parameter.detach()), ".grad": whole(parameter.grad)}
            entries = entries_of(self._optimizer, parameter)
            values.update((key, whole_entry(entries[key], parameter)) for key in sorted(entries))
            self.before[name] = sketch(values[""])
            sent = one.group, values, isinstance(parameter, DTensor)
        if ranks[0] == 0:
            return sent if grid.rank == 0 else None
        box = [_on_cpu(sent) if grid.rank == ranks[0] else None]
        if grid.rank == ranks[0]:
            dist.send_object_list(box, 0, group=grid.control_group)
        elif grid.rank == 0:
            dist.recv_object_list(box, ranks[0], group=grid.control_group)
            return box[0]
        return None

    def _take(self, fetched: Mapping[str, tuple[int, Entries, bool]]) -> None:
        optimizer, device = self._optimizer, self._grid.device
        given: list[list[nn.Parameter]] = [[] for _ in optimizer.param_groups]
        mesh = next((one.parameter.device_mesh for one in self._held.values() if isinstance(one.parameter, DTensor)), None)
        named: dict[str, nn.Parameter] = {}
        for name, (group, values, parts) in fetched.items():
            if group >= len(given):
                self.reason = "the ranks gave it other groups of parameters"
                return
            made = nn.Parameter(_stand_in(values.pop(""), device, mesh if parts else None))
            made.grad = _stand_in(values.pop(".grad"), device, mesh if parts else None)
            named[name] = made
            given[group].append(made)
        state = rng_state(device)
        try:
            with stepping(optimizer, given, fresh=True) as step, _Alone():
                _put(optimizer, named, fetched, device, mesh)
                step()
                if any(not torch.equal(one, other) for one, other in zip(state, rng_state(device), strict=True)):
                    self.reason = "it draws random numbers"
                    return
                for name, one in named.items():
                    entries = {key: whole_entry(value, one) for key, value in entries_of(optimizer, one).items()}
                    self.made[name] = made_of(whole(one.detach()), entries)
        except Asks as error:
            self.reason = str(error)
        except Exception as error:
            self.reason = f"its step with whole parameters ended with {type(error).__name__}: {shorten(str(error))}"


def bunched(names: Sequence[str], sizes: Mapping[str, int], grid: Grid, *, together: bool) -> list[list[str]]:
    """Names of parameters that go at once; empty where there is no room on this rank.

    Args:
        sizes: bytes of each whole parameter.
        together: whether all must go at once.
    """
    room = free_bytes(grid.device) / (1 if grid.device.type == "cuda" else grid.local_world)
    found: list[list[str]] = []
    size = 0.0
    for name in names:
        needed = sizes[name] * _COPIES * SPARE
        if needed > room or (together and size + needed > room):
            return []
        if not found or size + needed > room:
            found.append([])
            size = 0.0
        found[-1].append(name)
        size += needed
    return found


def rng_state(device: torch.device) -> list[torch.Tensor]:
    """States of torch's generators that a step may draw from."""
    found = [torch.get_rng_state()]
    return [*found, torch.cuda.get_rng_state(device)] if device.type == "cuda" else found


def _on_cpu(sent: Any) -> Any:
    group, values, parts = sent
    return group, {key: one.cpu() if isinstance(one, torch.Tensor) else one for key, one in values.items()}, parts


def _stand_in(value: torch.Tensor, device: torch.device, mesh: Any) -> torch.Tensor:
    copy = value.detach().to(device, copy=True)
    if mesh is None:
        return copy
    # What was gathered along another axis than the first lies in another order.
    return DTensor.from_local(copy.contiguous(), mesh, [Replicate()] * mesh.ndim, run_check=False)


def _put(
    optimizer: torch.optim.Optimizer,
    named: Mapping[str, nn.Parameter],
    fetched: Mapping[str, tuple[int, Entries, bool]],
    device: torch.device,
    mesh: Any,
) -> None:
    """Gives the stand-ins the state of what they stand for."""
    for path, one in inner(optimizer):
        for name, stand_in in named.items():
            for key, value in _of(path, fetched[name][1]):
                parts = fetched[name][2] and isinstance(value, torch.Tensor) and value.shape == stand_in.shape
                copied = _copied(value, device, mesh if parts else None)
                one.state[stand_in][key] = copied


def _of(path: str, values: Entries) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if key.startswith(path) and "." not in key[len(path) :]:
            yield key[len(path) :], value


def _copied(value: Any, device: torch.device, mesh: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if value.dim() == 0:
        return value.clone()
    return _stand_in(value, device, mesh)
