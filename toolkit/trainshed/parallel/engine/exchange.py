"""Parameters of which a rank has a part, beside the whole ones that forwards were recorded with.

The modules have the one or the other: whoever opens an exchange gathers the whole values into the parameters of before, and
closes it again. Between the two, the whole ones stand without values.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ..ground.shards import follow, local
from ..ground.torch_private import parameters_in, put_local
from .remote_parameters import IN_SHARDS, AbsentParameter

Hand = Callable[[Mapping[int, str], Mapping[str, nn.Parameter]], None]


@dataclass
class Exchanged:
    """One parameter.

    whole: what the modules have while the exchange is open.
    part: what they have else.
    """

    whole: nn.Parameter
    part: nn.Parameter
    kind: type
    stride: tuple[int, ...]


class Exchange(ABC):
    """The parameters that one rank holds in parts.

    Args:
        on_parts: takes `id` -> name of the parameters before, and name -> parameter after they were cut.
    """

    def __init__(self, root: nn.Module, on_parts: Hand) -> None:
        self._root, self._on_parts = root, on_parts
        self._known: dict[str, Exchanged] = {}
        self._open = True
        self._settled = False
        self._users = 0

    @property
    def names(self) -> dict[int, str]:
        """`id` of the whole parameters -> name."""
        return {id(one.whole): name for name, one in self._known.items()}

    def has(self, name: str) -> bool:
        """Returns whether a parameter is cut."""
        return name in self._known

    def now(self, parameters: Sequence[nn.Parameter]) -> Sequence[nn.Parameter]:
        """The parameters that the modules have now in the places of parameters of before."""
        if self._open:
            return parameters
        parts = {id(one.whole): one.part for one in self._known.values()}
        return [parts.get(id(parameter), parameter) for parameter in parameters]

    def part(self, name: str, parameter: nn.Parameter) -> nn.Parameter:
        """The parameter that the modules have in a parameter's place when the exchange is closed."""
        return self._known[name].part if name in self._known else parameter

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer goes on with the parts of parameters that it was given before the first step."""
        names = self.names
        if any(id(one) in names for group in optimizer.param_groups for one in group["params"]):
            follow(optimizer, names, {name: one.part for name, one in self._known.items()})

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Within the block the modules have whole parameters. Collective over the ranks that have the parts, if none is
        around it."""
        if self._users == 0 and self._settled:  # also where this rank has no parameters
            self._meet()
            self.open()
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if self._users == 0 and self._settled:
                self.close()

    def open(self) -> None:
        """The modules get whole parameters. Collective."""
        if self._open:
            return
        self._drop_replaced()
        self._open = True
        try:
            self._gather()
        except BaseException:  # another rank was lost, or memory is short
            self.close()
            raise
        self._put_in({id(one.part): one.whole for one in self._known.values()})

    def close(self) -> None:
        """The modules get the parts, and the whole parameters go."""
        if not self._open:
            return
        self._open = False
        with torch.inference_mode(False):
            for name, one in self._known.items():
                whole, part = one.whole, one.part
                if part.requires_grad != whole.requires_grad:
                    part.requires_grad_(whole.requires_grad)
                self._empty(whole)
                if not isinstance(whole, DTensor):
                    whole._home = (name, IN_SHARDS)  # type: ignore[attr-defined]
                    whole.__class__ = AbsentParameter
        self._put_in({id(one.whole): one.part for one in self._known.values()})

    def settled(self) -> None:
        """The first parameters are cut: whoever knows them gets the parts."""
        self._settled = True
        self.close()
        self._on_parts(self.names, {name: one.part for name, one in self._known.items()})

    @abstractmethod
    def take(self, names: Iterable[str]) -> None:
        """Cuts parameters of this rank, which are in the modules."""

    @abstractmethod
    def _gather(self) -> None:
        """Gives the whole parameters their values, with `_revive`. Collective."""

    @abstractmethod
    def _meet(self) -> None:
        """Before parts are gathered. Collective."""

    @staticmethod
    def _empty(whole: nn.Parameter) -> None:
        """A parameter has a shape, and no memory."""
        value = math.nan if whole.is_floating_point() else 0
        element = torch.full((1,) * whole.dim(), value, dtype=whole.dtype, device=whole.device)
        if isinstance(whole, DTensor):  # a part, of which there is less yet
            put_local(whole, element.expand(local(whole).shape))
            whole.grad = None
        else:
            whole.data, whole.grad = element.expand(whole.shape), None

    @staticmethod
    def _revive(one: Exchanged, value: torch.Tensor) -> None:
        if isinstance(one.whole, DTensor):
            put_local(one.whole, value)
        else:
            one.whole.__class__ = one.kind
            one.whole.data = value
        one.whole.requires_grad_(one.part.requires_grad)

    def _put_in(self, others: Mapping[int, nn.Parameter]) -> None:
        """Each parameter in the modules that has another one in its place, by `id`, becomes that."""
        for module in self._root.modules():
            parameters = parameters_in(module)
            for key, parameter in parameters.items():
                if id(parameter) in others:
                    parameters[key] = others[id(parameter)]

    def _drop_replaced(self) -> None:
        """What the script has put in the place of a parameter is one that nothing has read yet."""
        now = {id(parameter) for parameter in self._root.parameters()}
        self._known = {name: one for name, one in self._known.items() if id(one.part) in now}
