"""Which parameters are read by their own module alone, in operations that are known to work with a part of them.

A parameter that something else reads as well (a decoder that takes an embedding's weight, a penalty on all weights, a hook)
stays whole: that reader would need all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

from ...ground.torch_private import parameters_in
from ...ground.tree import leaves

Reads = tuple[Callable[..., Any], ...] | None
# Facts, which are the same for a parameter that is divided.
_FACTS = frozenset(
    {
        *("size", "dim", "ndimension", "numel", "nelement", "element_size", "__len__", "is_floating_point", "is_complex"),
        *("requires_grad_", "is_same_size", "__hash__", "get_device", "__repr__"),
    }
)


class Uses(TorchFunctionMode):
    """Watches a forward and its backward.

    Args:
        parameters: those that might be divided.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__()
        self._watched = {id(parameter) for parameter in parameters}
        self._owners: list[tuple[set[int], Reads]] = []
        self.inside: set[int] = set()
        self.outside: dict[int, str] = {}

    @contextmanager
    def of(self, module: nn.Module, reads: Reads) -> Iterator[None]:
        """Within this context the module's own forward runs.

        Args:
            reads: what it may do with a part of a parameter; None for anything.
        """
        self._owners.append(({id(parameter) for parameter in parameters_in(module).values()}, reads))
        try:
            yield
        finally:
            self._owners.pop()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for leaf in leaves((args, kwargs or {})):
            if id(leaf) in self._watched:
                self._see(id(leaf), func)
        return func(*args, **(kwargs or {}))

    def _see(self, key: int, func: Callable[..., Any]) -> None:
        own, reads = self._owners[-1] if self._owners else ((), ())
        if key in own and (reads is None or func in reads):
            self.inside.add(key)
            return
        name = getattr(func, "__name__", "") or ""
        if name == "__get__":  # an attribute
            name = getattr(getattr(func, "__self__", None), "__name__", "")
            if name not in ("data", "T", "mT", "H", "mH", "real", "imag"):
                return
        if name not in _FACTS:
            self.outside[key] = name
