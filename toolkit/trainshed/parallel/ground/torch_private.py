"""What the wing takes from torch that torch does not call public, and nothing else does: names that begin with `_`.

Each has one line that says what it is for. All were tried with torch 2.13; `pyproject.toml` says which versions are
supported. Where somebody's torch has no such name, `TorchLacks` says so when it is used. The hooks of modules and tensors
have no names here: torch's own handles tell where they are kept.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, MutableMapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from .errors import TorchLacks

NAMES: dict[str, str] = {}  # name -> what it is for
ABSENT: list[str] = []  # those that this torch does not have


def _lacks(name: str, use: str) -> Callable[..., NoReturn]:
    ABSENT.append(name)

    def refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise TorchLacks(
            f"torch {torch.__version__} has no {name}, which is needed for {use}",
            hint="trainshed is tested with torch 2.13, and serves 2.9 and later (2.12 for models in stages)",
        )

    return refuse


def _there(home: Any, name: str, use: str) -> Any:
    """What torch has under a name."""
    NAMES[name] = use
    return getattr(home, name) if hasattr(home, name) else _lacks(name, use)


def _read(home: Any, name: str, use: str) -> Any:
    """What reads an attribute of objects like `home`, or of those of that class."""
    NAMES[name] = use
    return attrgetter(name) if hasattr(home, name) else _lacks(name, use)


_module = nn.Module()

# --- tensors ---------------------------------------------------------------------------------------------------------

version_of: Callable[[torch.Tensor], int] = _read(torch.Tensor, "_version", "whether a tensor was changed in place")
base_of: Callable[[torch.Tensor], torch.Tensor | None] = _read(torch.Tensor, "_base", "what a view is a view of")
wrapper_tensor: Callable[..., Any] = _there(
    torch.Tensor, "_make_wrapper_subclass", "tensors of which each rank has a part, with the sizes of the whole"
)
assert_async: Callable[[torch.Tensor, str], None] = _there(
    torch, "_assert_async", "checks of indices that do not wait for the device"
)

# --- hooks, where torch's handles tell them --------------------------------------------------------------------------


def hooks_behind(register: Callable[..., Any], **options: bool) -> Any:
    """The hooks among which `register` (`optimizer.register_step_pre_hook`) puts another one, in their order."""
    handle = register(_nothing, **options)
    hooks = handle.hooks_dict_ref()
    handle.remove()
    return hooks


def _nothing(*_args: Any) -> None:
    """Stands for a hook."""


# --- modules ---------------------------------------------------------------------------------------------------------

parameters_in: Callable[[nn.Module], MutableMapping[str, Any]] = _read(
    _module, "_parameters", "other tensors in the place of a module's parameters"
)
buffers_in: Callable[[nn.Module], MutableMapping[str, Any]] = _read(
    _module, "_buffers", "other tensors in the place of a module's buffers, and those that have no value yet"
)
children_in: Callable[[nn.Module], Mapping[str, nn.Module]] = _read(
    _module, "_modules", "under which names a module has its children, also one twice"
)
CALL = "_compiled_call_impl"  # in a module's dictionary: what nn.Module.__call__ calls in its place
call_instead: Callable[[nn.Module], Any] = _read(nn.Module, CALL, "calls of units alone; what torch.compile made of one")
CALL_ITSELF = "_call_impl"
call_itself: Callable[[nn.Module], Callable[..., Any]] = _read(
    nn.Module, CALL_ITSELF, "a unit's call past what is there; calls of all modules, with arguments that have names"
)
ORIGINAL = "_orig_mod"  # torch.compile's name for what it was given
NAMES[ORIGINAL] = "names of parameters in compiled models"
WRAPPED = (ORIGINAL, "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
NAMES.update(dict.fromkeys(WRAPPED[1:], "names of parameters in models of torch's wrappings"))

# --- modes and autograd ----------------------------------------------------------------------------------------------

_dispatch = importlib.import_module("torch.utils._python_dispatch")
if TYPE_CHECKING:
    from torch.utils._python_dispatch import TorchDispatchMode
else:
    TorchDispatchMode = _there(_dispatch, "TorchDispatchMode", "seeing each operation of a block")
without_modes: Callable[[], Any] = _there(_dispatch, "_disable_current_modes", "operations that no mode sees")
function_mode: Callable[[], Any] = _there(
    torch.overrides, "_get_current_function_mode", "taking a mode off where it is the innermost, for a unit"
)
saved_tensors_hooks_now: Callable[[bool], Any] = _there(
    torch._C._autograd,
    "_top_saved_tensors_default_hooks",
    "which events one activation checkpoint runs again",
)
autograd_engine: Any = _there(torch.autograd.Variable, "_execution_engine", "the moment at which DDP has exchanged all")

# --- parameters in shards --------------------------------------------------------------------------------------------

_ONE, _SEVERAL = "_fsdp_param_group", "_fsdp_param_groups"  # torch 2.13 has the second one as well
NAMES.update(
    dict.fromkeys((_ONE, _SEVERAL), "the shards of each parameter, and zeros for gradients that a rank has not made")
)
_RESHARD = "_to_sharded"
NAMES[_RESHARD] = "shards in the place of what a forward that was given up has left whole"


def shard_groups(unit: nn.Module) -> list[Any]:
    """What FSDP keeps for the parameters of a unit."""
    state: Any = fully_shard.state(unit)  # type: ignore[attr-defined]
    return [one for one in getattr(state, _SEVERAL, None) or [getattr(state, _ONE)] if one is not None]


def reshard(group: Any) -> None:
    """Puts shards in the place of whole parameters, also in the midst of a forward."""
    if not group.is_sharded:
        getattr(group, _RESHARD)()


# --- DistributedDataParallel -------------------------------------------------------------------------------------------

communication_hooks: Callable[[Any], list[Any]] = attrgetter("_comm_hooks")
NAMES["_comm_hooks"] = "whether the script, or something else, exchanges DDP's gradients"
LEAVES_OUT, COMPILES = "_delay_all_reduce_params", "_use_python_reducer"
NAMES[LEAVES_OUT] = "whether DDP was made with delay_all_reduce_named_params"
NAMES[COMPILES] = "whether torch.compile exchanges DDP's gradients"
