"""The parts of a training script to compile: the outermost modules it calls, or the blocks that repeat inside them.

A block that repeats is compiled once and used for all of its copies, in a small part of the time that the whole model
takes. Copies must be alike in the shapes of their parameters, else each would be another graph.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from torch.nn import Module


def blocks(module: Module) -> list[Module]:
    """The repeated blocks, if those of one kind hold more than half of the module's parameters; else none."""
    import torch

    kinds: dict[object, list[Module]] = {}
    for container in module.modules():
        if not isinstance(container, (torch.nn.ModuleList, torch.nn.Sequential)) or len(container) < 2:
            continue
        children = list(container)
        signatures = {_signature(child) for child in children}
        if len(signatures) == 1:
            kinds.setdefault(signatures.pop(), []).extend(children)
    if not kinds:
        return []
    largest = max(kinds.values(), key=_parameters_of)
    return largest if 2 * _parameters_of(largest) > _parameters_of([module]) else []


def _signature(module: Module) -> object:
    return type(module), tuple((name, tuple(value.shape)) for name, value in module.named_parameters())


def _parameters_of(modules: Iterable[Module]) -> int:
    """Number of parameters; those that are shared count once."""
    found = {id(value): value.numel() for module in modules for value in module.parameters()}
    return sum(found.values())


def outermost(modules: Iterable[Module]) -> list[Module]:
    """Those that are in no other of them: activation checkpointing calls inner modules again, on their own."""
    candidates = list(modules)
    inside = {id(part) for module in candidates for part in module.modules() if part is not module}
    return [module for module in candidates if id(module) not in inside]


def inside_ddp(module: Module) -> Module:
    """The module that DDP wraps: its own part is not traced, and torch cuts its inside where gradients are exchanged."""
    import torch

    return module.module if isinstance(module, torch.nn.parallel.DistributedDataParallel) else module


def is_compiled(module: Module) -> bool:
    """Returns whether the script (or Accelerate) has compiled the module, or a part of it."""
    return any(
        type(part).__name__ == "OptimizedModule" or getattr(part, "_compiled_call_impl", None) is not None
        for part in module.modules()
    )


def compile_in_place(module: Module, **options: Any) -> None:
    """`Module.compile`, also for torch's own containers: what is written in torch.nn is not traced from its outside."""
    import torch

    if type(module).__module__.startswith("torch.nn.modules."):
        module._compiled_call_impl = torch.compile(_calls(module), **options)
    else:
        module.compile(**options)


def _calls(module: Module) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return module._call_impl(*args, **kwargs)

    return call


def why_not(module: Module) -> str:
    """Why this module cannot be compiled, or "" if it can."""
    import torch

    names = {type(part).__name__ for part in module.modules()}
    if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
        return "it is a TorchScript module"
    if "DataParallel" in names:
        return "nn.DataParallel copies the module at each step; use the distribution torchrun with DDP"
    if "DeepSpeedEngine" in names:
        return "DeepSpeed's engine has hooks of its own"
    for part in module.modules():
        if type(part).__name__ == "FullyShardedDataParallel" and not getattr(part, "_use_orig_params", True):
            return "FullyShardedDataParallel without use_orig_params=True cannot be traced"
    if not any(value.requires_grad for value in module.parameters()):
        return "it has no parameters to train"
    return ""
