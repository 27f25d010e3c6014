"""torch's functions that are looked at while a script's steps are written down. All is put back afterwards."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed import device_mesh, fsdp, pipelining
from torch.distributed.tensor import parallel as tensor_parallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from ..engine.verify.tensor_digest import sketch
from ..ground.torch_private import CALL_ITSELF
from .evidence import COMPRESSED, STAGES, Loader
from .global_batch import Fed, Kept
from .script_hooks import ScriptRecorder, plain_name

_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
_LOSSES = (
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "nll_loss", "kl_div", "soft_margin_loss"),
    *("binary_cross_entropy", "binary_cross_entropy_with_logits"),
)


@contextmanager
def looking(seen: ScriptRecorder, kept: Kept, fed: Fed | None) -> Iterator[None]:
    """Within this context a recorder sees what the script does.

    Args:
        fed: what DataLoaders give in the one process; None in a rank.
    """
    with ExitStack() as stack:
        for handle in _hooks(seen):
            stack.callback(handle.remove)
        for owner, name, made in (*_functions(seen), *_loaders(seen, kept, fed), *_meshes(fed is not None)):
            native = getattr(owner, name)
            stack.enter_context(patch.object(owner, name, functools.wraps(native)(made(native))))
        yield


Patch = tuple[Any, str, Callable[[Any], Any]]


def _hooks(seen: ScriptRecorder) -> list[Any]:
    return [
        register_optimizer_step_pre_hook(lambda optimizer, _args, _kwargs: seen.stepping(optimizer)),
        register_optimizer_step_post_hook(lambda *_: seen.stepped()),
    ]


def _functions(seen: ScriptRecorder) -> list[Patch]:
    scaler = torch.amp.GradScaler
    found: list[Patch] = [(F, name, lambda native: _without_dropout(native, seen)) for name in _DROPOUTS]
    return [
        *found,
        (F, "scaled_dot_product_attention", lambda native: _without_attention_dropout(native, seen)),
        (F, "cross_entropy", lambda native: _counting(native, seen)),
        *((F, name, lambda native: _loss(native, seen)) for name in _LOSSES),
        (torch.Tensor, "backward", lambda native: _backward(native, seen)),
        (nn.utils, "clip_grad_norm_", lambda native: _clipping(native, seen)),
        (nn.utils.clip_grad, "clip_grad_norm_", lambda native: _clipping(native, seen)),
        (scaler, "scale", lambda native: _scaling(native, seen)),
        (scaler, "unscale_", lambda native: _unscaling(native, seen)),
        (nn.parallel.DistributedDataParallel, "__init__", lambda native: _ddp(native, seen)),
        (nn.parallel.DistributedDataParallel, "register_comm_hook", lambda native: _comm_hook(native, seen)),
        (fsdp, "fully_shard", lambda native: _divided(native, seen, "FSDP")),
        (tensor_parallel, "parallelize_module", lambda native: _divided(native, seen, "TP")),
        (pipelining.PipelineStage, "__init__", lambda native: _stage(native, seen)),
        (DistributedSampler, "__iter__", lambda native: _sampling(native, seen)),
        # torch's hook of all modules is not told of arguments that have names.
        (nn.Module, CALL_ITSELF, lambda native: _called(native, seen)),
    ]


def _called(native: Any, seen: ScriptRecorder) -> Any:
    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = seen.began(module, args, kwargs)
        output = None
        try:
            output = native(module, *args, **kwargs)
        finally:
            seen.left(module, output)
        return output

    return call


def _without_dropout(native: Any, seen: ScriptRecorder) -> Any:
    usual = "alpha" not in native.__name__  # whether it is on unless it is told

    def dropout(input: torch.Tensor, p: float = 0.5, training: bool = usual, inplace: bool = False) -> Any:
        if training and p > 0:
            seen.dropped()
        return native(input, p, training and seen.over, inplace)

    return dropout


def _without_attention_dropout(native: Any, seen: ScriptRecorder) -> Any:
    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *args: Any, **more: Any
    ) -> Any:
        if dropout_p > 0:
            seen.dropped()
        return native(query, key, value, attn_mask, dropout_p if seen.over else 0.0, *args, **more)

    return attention


def _counting(native: Any, seen: ScriptRecorder) -> Any:
    signature = inspect.signature(native)

    def cross_entropy(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        told = given.arguments
        told["target"] = seen.targets(told["target"])
        seen.counted(told["target"], told["ignore_index"], told["reduction"])
        return native(*given.args, **given.kwargs)

    return cross_entropy


def _loss(native: Any, seen: ScriptRecorder) -> Any:
    def loss(input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        return native(input, seen.targets(target), *args, **kwargs)

    return loss


def _backward(native: Any, seen: ScriptRecorder) -> Any:
    def backward(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        native(tensor, *args, **kwargs)
        seen.backward(tensor)

    return backward


def _clipping(native: Any, seen: ScriptRecorder) -> Any:
    def clip(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
        norm = native(parameters, max_norm, *args, **kwargs)
        seen.clipped(max_norm, norm)
        return norm

    return clip


def _scaling(native: Any, seen: ScriptRecorder) -> Any:
    def scale(scaler: Any, outputs: Any) -> Any:
        scaled = native(scaler, outputs)
        seen.scale["now"] = float(scaler.get_scale())
        seen.scale["waits"] = float(seen.scale["now"] != 1.0)
        return scaled

    return scale


def _unscaling(native: Any, seen: ScriptRecorder) -> Any:
    def unscale(scaler: Any, optimizer: Any) -> Any:
        seen.scale["waits"] = 0.0
        return native(scaler, optimizer)

    return unscale


def _ddp(native: Any, seen: ScriptRecorder) -> Any:
    def init(wrapper: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        native(wrapper, module, *args, **kwargs)
        seen.parallel.append(wrapper)
        seen.wrapped.add(id(module))
        seen.evidence.ways.append("DDP")
        seen.evidence.buffers_sent &= bool(wrapper.broadcast_buffers)

    return init


def _comm_hook(native: Any, seen: ScriptRecorder) -> Any:
    def register(wrapper: Any, *args: Any, **kwargs: Any) -> None:
        native(wrapper, *args, **kwargs)
        seen.evidence.ways.append(COMPRESSED)

    return register


def _stage(native: Any, seen: ScriptRecorder) -> Any:
    def init(stage: Any, *args: Any, **kwargs: Any) -> None:
        native(stage, *args, **kwargs)
        seen.evidence.ways.append(STAGES)

    return init


def _divided(native: Any, seen: ScriptRecorder, way: str) -> Any:
    """Parameters are other objects afterwards: one that another module has as well is then apart from it."""

    def divide(module: Any, *args: Any, **kwargs: Any) -> Any:
        modules = module if isinstance(module, (list, tuple)) else [module]
        before = _parameters(modules)
        old = {name: p for name, p in before.items() if type(p) is nn.Parameter and not p.is_meta}
        if way == "FSDP":
            seen.evidence.before += [(plain_name(name), sketch(p)) for name, p in old.items()]
        seen.evidence.ways.append(way)
        result = native(module, *args, **kwargs)
        after = _parameters(modules)
        seen.evidence.loose += _untied(before, after)
        still = {id(p) for p in after.values()}
        seen.replaced += [p for p in old.values() if id(p) not in still]
        if way == "TP":
            mesh = args[0] if args and isinstance(args[0], device_mesh.DeviceMesh) else kwargs.get("device_mesh")
            if mesh is not None:
                seen.evidence.twins = sorted(dist.get_process_group_ranks(mesh.get_group()))
        return result

    return divide


def _parameters(modules: Sequence[nn.Module]) -> dict[str, nn.Parameter]:
    """By all names that they have."""
    return {
        f"{type(module).__name__}.{name}": parameter
        for module in modules
        for name, parameter in module.named_parameters(remove_duplicate=False)
    }


def _untied(before: dict[str, nn.Parameter], after: dict[str, nn.Parameter]) -> list[str]:
    """Names of what was the same parameter as another one."""
    first: dict[int, str] = {}
    for name, one in before.items():
        first.setdefault(id(one), name)
    return [name for name, one in before.items() if after.get(name) is not after.get(first[id(one)])]


def _sampling(native: Any, seen: ScriptRecorder) -> Any:
    epochs: dict[int, list[int]] = {}

    def walk(sampler: Any) -> Any:
        walked = epochs.setdefault(id(sampler), [])
        if sampler.shuffle and sampler.epoch in walked and not seen.over:
            seen.evidence.repeated = True
        walked.append(sampler.epoch)
        return native(sampler)

    return walk


def _loaders(seen: ScriptRecorder, kept: Kept, fed: Fed | None) -> list[Patch]:
    numbers: dict[int, int] = {}
    held: list[Any] = []

    def made(native: Any) -> Any:
        def init(loader: Any, *args: Any, **kwargs: Any) -> None:
            native(loader, *args, **kwargs)
            numbers[id(loader)] = len(numbers)
            held.append(loader)  # no other one gets its id
            kept.loaders.append(Loader(_length(loader)))

        return init

    def walked(native: Any) -> Any:
        def walk(loader: Any) -> Any:
            number = numbers.get(id(loader))
            if number is None or seen.over:
                return native(loader)
            return kept.walk(number, native(loader)) if fed is None else fed.walk(number)

        return walk

    def measured(native: Any) -> Any:
        def length(loader: Any) -> int:
            number = numbers.get(id(loader), -1)
            known = fed.loaders[number].length if fed is not None and 0 <= number < len(fed.loaders) else -1
            return known if known >= 0 else int(native(loader))

        return length

    return [(DataLoader, "__init__", made), (DataLoader, "__iter__", walked), (DataLoader, "__len__", measured)]


def _length(loader: Any) -> int:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return -1


def _meshes(alone: bool) -> list[Patch]:
    """In the one process meshes have one rank along each axis."""
    if not alone:
        return []

    def made(native: Any) -> Any:
        def mesh(device_type: str, mesh_shape: Any, **kwargs: Any) -> Any:
            return native(device_type, (1,) * len(mesh_shape), **kwargs)

        return mesh

    return [(device_mesh, "init_device_mesh", made), (dist, "init_device_mesh", made)]
