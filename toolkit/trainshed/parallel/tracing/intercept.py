"""Routes what one forward does (module calls, tensor operations, autograd functions) to a handler.

While a forward is recorded, `nn.Module.__call__` and `autograd.Function.apply` are replaced (as torch.fx does), and
operations arrive through a `TorchFunctionMode`. While one is replayed, which happens for every microbatch, calls of units
arrive through `gates.UnitGates` instead. A unit that a stage owns runs with all of that lifted, so that torch.compile,
custom kernels and control flow inside it see plain PyTorch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Protocol

import torch
import torch.utils.checkpoint
from torch import nn
from torch.overrides import TorchFunctionMode

from ..ground.torch_private import function_mode

_module_call = nn.Module.__call__
# What moves a module, as far as this torch has it.
_MOVES = (
    "to",
    "to_empty",
    "cpu",
    "cuda",
    "ipu",
    "mtia",
    "xpu",
    "type",
    "float",
    "double",
    "half",
    "bfloat16",
    "share_memory",
)
_module_moves = {name: getattr(nn.Module, name) for name in _MOVES if hasattr(nn.Module, name)}
_function_apply = torch.autograd.Function.__dict__["apply"]

# Attributes of a tensor that give another tensor; all other attributes are facts about it, not computations.
_TENSOR_ATTRIBUTES = frozenset({"T", "mT", "H", "mH", "data", "real", "imag", "grad"})
_FACTS = frozenset(
    {
        *("size", "dim", "stride", "numel", "nelement", "__len__", "ndimension", "element_size", "storage_offset"),
        *("is_floating_point", "is_complex", "is_contiguous", "is_inference", "is_signed", "is_set_to", "is_same_size"),
        *("get_device", "__hash__", "requires_grad_", "__set__", "__delete__", "has_names", "__repr__", "__dir__"),
        *("register_hook", "retain_grad", "untyped_storage", "data_ptr", "__format__"),
    }
)


class OperationHandler(Protocol):
    """Decides what happens to each operation of a forward."""

    def operation(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Stands for `function(*args, **kwargs)`, an operation outside all units."""

    def reentrant(self) -> None:
        """A reentrant activation checkpoint runs between the units."""

    def device_of(self, tensor: torch.Tensor) -> torch.device | None:
        """The device that the user's code shall see for a stand-in; None for a real tensor."""


class Handler(OperationHandler, Protocol):
    """Decides what happens to each event of a forward."""

    def module_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Stands for `module(*args, **kwargs)`."""


class Interception:
    """The patches and the mode of one forward."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self._mode = OperationMode(handler)
        self._lifted = False

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within this context everything goes to the handler."""
        self._patch()
        patch_functions(self._mode)
        try:
            with self._mode:
                yield
        finally:
            restore()

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Within this context, inside `active`, PyTorch is itself.

        Where nothing was compiled calls of modules only pass through: to replace `nn.Module.__call__` each time takes long,
        since Python then forgets what it had cached about every class.
        """
        self._lifted = True
        if self._mode.compiles:
            nn.Module.__call__ = _module_call  # type: ignore[method-assign]
        left = self._mode.leave()
        try:
            yield
        finally:
            self._mode.resume(left)
            if nn.Module.__call__ is _module_call:
                self._patch()
            self._lifted = False

    def _patch(self) -> None:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._lifted:
                return _module_call(module, *args, **kwargs)
            return self.handler.module_call(module, args, kwargs)

        nn.Module.__call__ = call  # type: ignore[method-assign]


def patch_functions(mode: OperationMode) -> None:
    """From here to `restore` the use of an autograd function is an operation for the mode's handler."""

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        native = _function_apply.__get__(None, cls)
        if not mode.enabled:
            return native(*args, **kwargs)
        if (cls.__module__, cls.__name__) == ("torch.utils.checkpoint", "CheckpointFunction"):
            mode.handler.reentrant()
            return _without_reentrance(*args)
        mode.enabled = False
        try:
            return mode.handler.operation(f"{cls.__name__}.apply", native, args, kwargs)
        finally:
            mode.enabled = True

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment]


def let_modules_move() -> None:
    """From here on `module.to(...)` in a forward is not an operation on tensors: it is about where parameters lie."""
    for name, native in _module_moves.items():
        if getattr(nn.Module, name) is native:
            setattr(nn.Module, name, _moving(native))


def _moving(native: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(native)
    def move(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        mode = function_mode()
        if not isinstance(mode, OperationMode) or not mode.enabled:
            return native(module, *args, **kwargs)
        mode.enabled = False
        try:
            return native(module, *args, **kwargs)
        finally:
            mode.enabled = True

    return move


def _without_reentrance(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
    """A reentrant activation checkpoint in the other form, for its function runs modules of several stages. Like the
    reentrant one it gives no gradients where no argument has one."""
    if any(isinstance(one, torch.Tensor) and one.requires_grad for one in args):
        return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, preserve_rng_state=preserve)
    with torch.no_grad():
        return function(*args)


def restore() -> None:
    """PyTorch as it was imported. Both only where needed: Python then forgets what it cached about thousands of classes."""
    if nn.Module.__call__ is not _module_call:
        nn.Module.__call__ = _module_call  # type: ignore[method-assign]
    if torch.autograd.Function.__dict__["apply"] is not _function_apply:
        torch.autograd.Function.apply = _function_apply  # type: ignore[method-assign]


def call_natively(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`module(*args, **kwargs)` past the patch, children still patched."""
    return _module_call(module, *args, **kwargs)


# How a mode was left: it lies under one of the user's; it was taken off the stack; and the compiler may work as well.
_COVERED, _OFF, _OUT = range(3)


def _compiles() -> bool:
    """Whether anything was compiled so far: else no unit needs to tell the compiler that it may work."""
    backends = getattr(sys.modules.get("torch._dynamo.eval_frame"), "cached_backends", None)
    return backends is None or any(map(callable, backends.values()))  # None stands for what must not be compiled


class OperationMode(TorchFunctionMode):
    """Hands tensor operations to a handler, questions about tensors excepted.

    Functions that the user compiled run as they were written while it is on: the compiler would compile our handler, too.
    """

    def __init__(self, handler: OperationHandler) -> None:
        super().__init__()
        self.handler = handler
        self._stance: Any = None
        self.compiles = False  # whether a compiler may be at work in units
        self.enabled = True  # a mode of the user's may lie above ours, which then cannot be taken off the stack

    def __enter__(self) -> OperationMode:
        if self._stance is not None:
            self._stance.__enter__()
        elif "torch._dynamo" in sys.modules:  # else nothing is compiled
            self._stance = torch.compiler.set_stance("force_eager")
            self.compiles = _compiles()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if self._stance is not None:
            self._stance.__exit__(None, None, None)

    def leave(self) -> int:
        """From here to `resume` PyTorch is itself, for a unit: also what the user compiled.

        Returns:
            What `resume` needs to know.
        """
        self.enabled = False
        if function_mode() is not self:  # there is none at all in a thread of the user's
            return _COVERED
        super().__exit__(None, None, None)
        if not self.compiles:
            return _OFF
        self._stance.__exit__(None, None, None)
        return _OUT

    def resume(self, left: int) -> None:
        """After the unit."""
        if left == _OFF:
            super().__enter__()
        elif left == _OUT:
            self.__enter__()
        self.enabled = True

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.enabled:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "?")
        if name == "__get__":
            attribute = getattr(getattr(func, "__self__", None), "__name__", "")
            if attribute in ("device", "is_cuda", "is_cpu", "is_meta"):
                device = self.handler.device_of(args[0])
                if device is not None:
                    return device if attribute == "device" else device.type == attribute[3:]
            if attribute not in _TENSOR_ATTRIBUTES:
                return func(*args, **kwargs)
            name = attribute
        elif name in _FACTS:
            return func(*args, **kwargs)
        elif name == "__iter__" and args[0].dim():
            return iter(self.handler.operation("unbind", torch.Tensor.unbind, (args[0],), {}))
        return self.handler.operation(name, func, args, kwargs)
