"""What the wing takes from torch that torch does not call public, and nothing else does: names that begin with `_`.

Each has one line that says what it is for. All were tried with torch 2.13; `pyproject.toml` says which versions are
supported. Where somebody's torch has no such name, `TorchLacks` says so when it is used. The hooks of modules and tensors
have no names here: torch's own handles tell where they are kept.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from .errors import TorchLacks

T = TypeVar("T")
NAMES: dict[str, str] = {}  # name -> what it is for
ABSENT: list[str] = []  # those that this torch does not have


class _Lacking:
    """Stands for what this torch does not have: whoever calls it, asks for what it has, or derives from it is told."""

    def __init__(self, name: str) -> None:
        vars(self)["name"] = name

    def __call__(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise TorchLacks(
            f"torch {torch.__version__} has no {self.name}, which is needed for {NAMES[self.name]}",
            hint="trainshed is tested with torch 2.13, and serves 2.9 and later (2.12 for models in stages)",
        )

    def __getattr__(self, _name: str) -> NoReturn:
        self()

    __mro_entries__ = __bool__ = __call__


def _lacks(name: str) -> Any:
    ABSENT.append(name)
    return _Lacking(name)


def _there(home: Any, name: str, use: str) -> Any:
    """What torch has under a name."""
    NAMES[name] = use
    return getattr(home, name) if hasattr(home, name) else _lacks(name)


def _read(home: Any, name: str, use: str) -> Any:
    """What reads an attribute of objects like `home`, or of those of that class."""
    NAMES[name] = use
    return attrgetter(name) if hasattr(home, name) else _lacks(name)


def its(holder: Any, name: str) -> Any:
    """What an object, or a class, of torch has under one of the names of this file."""
    return getattr(holder, name) if hasattr(holder, name) else _Lacking(name)()


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


def _kept_under(*registers: str, **options: bool) -> tuple[str, ...]:
    """The attributes of a module in which it keeps the hooks that these methods put there."""
    module = nn.Module()
    for register in registers:
        getattr(module, register)(_nothing, **options)
    return tuple(name for name, kept in vars(module).items() if isinstance(kept, dict) and kept)


(FORWARD_HOOKS,) = _kept_under("register_forward_hook")
(FORWARD_PRE_HOOKS,) = _kept_under("register_forward_pre_hook")
BACKWARD_HOOKS = _kept_under("register_full_backward_hook", "register_full_backward_pre_hook")
ALL_HOOKS = (
    *_kept_under("register_forward_hook", with_kwargs=True, always_call=True),
    *_kept_under("register_forward_pre_hook", with_kwargs=True),
    *BACKWARD_HOOKS,
)


def has_hooks(module: nn.Module, kinds: tuple[str, ...]) -> bool:
    """Whether a module has hooks of these kinds."""
    return any(getattr(module, kind, None) for kind in kinds)


def _on_tensors(register: str) -> Callable[[torch.Tensor], Any]:
    """What reads the hooks that a method of tensors puts on one; None where it never had any."""
    with torch.inference_mode(False):
        tensor = torch.zeros((), device="cpu", requires_grad=True)
        hooks = hooks_behind(getattr(tensor, register))
    return attrgetter(next(name for name in dir(tensor) if "hooks" in name and getattr(tensor, name) is hooks))


gradient_hooks = _on_tensors("register_hook")
accumulated_hooks = _on_tensors("register_post_accumulate_grad_hook")
backward_hooks_of_all: tuple[Mapping[int, Any], ...] = (
    hooks_behind(nn.modules.module.register_module_full_backward_pre_hook),
    _there(nn.modules.module, "_global_backward_hooks", "units whose gradients a hook of all modules may change"),
)


# --- modules ---------------------------------------------------------------------------------------------------------

PARAMETERS, BUFFERS, CHILDREN = "_parameters", "_buffers", "_modules"
parameters_in: Callable[[nn.Module], dict[str, Any]] = _read(
    _module, PARAMETERS, "other tensors in the place of a module's parameters"
)
buffers_in: Callable[[nn.Module], dict[str, Any]] = _read(
    _module, BUFFERS, "other tensors in the place of a module's buffers, and those that have no value yet"
)
children_in: Callable[[nn.Module], dict[str, nn.Module]] = _read(
    _module, CHILDREN, "under which names a module has its children, also one twice"
)
CALL = "_compiled_call_impl"  # in a module's dictionary: what nn.Module.__call__ calls in its place
call_instead: Callable[[nn.Module], Any] = _read(nn.Module, CALL, "calls of units alone; what torch.compile made of one")
CALL_ITSELF = "_call_impl"
call_itself: Callable[[nn.Module], Callable[..., Any]] = _read(
    nn.Module, CALL_ITSELF, "a unit's call past what is there; calls of all modules, with arguments that have names"
)
ORIGINAL = "_orig_mod"  # torch.compile's name for what it was given
NAMES[ORIGINAL] = "names of parameters in compiled models"

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

_GROUP = "_fsdp_param_group"
NAMES[_GROUP] = "shards of parameters, and zeros for gradients that a rank has not made"
_RESHARD = "_to_sharded"
NAMES[_RESHARD] = "shards in the place of what a forward that was given up has left whole"


def shard_groups(unit: nn.Module) -> list[Any]:
    """What FSDP keeps for the parameters of a unit."""
    from torch.distributed.fsdp import fully_shard

    state: Any = fully_shard.state(unit)  # type: ignore[attr-defined]
    group = its(state, _GROUP)
    return [] if group is None else [group]


def reshard(group: Any) -> None:
    """Puts shards in the place of whole parameters, also in the midst of a forward."""
    if not group.is_sharded:
        its(group, _RESHARD)()


# --- DistributedDataParallel -------------------------------------------------------------------------------------------

_HOOKS = "_comm_hooks"
NAMES[_HOOKS] = "whether the script, or something else, exchanges DDP's gradients"


def communication_hooks(model: Any) -> list[Any]:
    """Those that DDP was given."""
    found: list[Any] = its(model, _HOOKS)
    return found


LEAVES_OUT, COMPILES = "_delay_all_reduce_params", "_use_python_reducer"
NAMES[LEAVES_OUT] = "whether DDP was made with delay_all_reduce_named_params"
NAMES[COMPILES] = "whether torch.compile exchanges DDP's gradients"

# --- loss scaling ------------------------------------------------------------------------------------------------------

UNSCALE = "_unscale_grads_"
NAMES[UNSCALE] = "a gradient that overflows on one rank has all ranks skip the step, by torch's own loss scaler"

# --- process groups ----------------------------------------------------------------------------------------------------

_BACKEND, _TIMEOUT, _GATHER = "_get_backend", "_timeout", "_allgather_base"
NAMES.update(dict.fromkeys((_BACKEND, _TIMEOUT), "groups of ours that wait as long as the script's"))
NAMES[_GATHER] = "gathering into one tensor, in a group that torch's registry does not know"


def timeout_of(group: Any) -> timedelta:
    """How long calls of a process group wait for another rank."""
    try:
        backend = getattr(group, _BACKEND)(torch.device("cpu"))
        return timedelta(seconds=getattr(backend.options, _TIMEOUT).total_seconds())
    except (AttributeError, RuntimeError):  # another backend than gloo
        return dist.default_pg_timeout


def gather_into(group: dist.ProcessGroupGloo, whole: torch.Tensor, share: torch.Tensor) -> None:
    """Puts the ranks' shares together; all ranks then have the same."""
    its(group, _GATHER)(whole, share).wait()


# --- DTensor -----------------------------------------------------------------------------------------------------------

_LOCAL, _SPEC = "_local_tensor", "_spec"
NAMES[_LOCAL] = "a part that goes, and one that comes in its place, of a parameter that stays the same object"
NAMES[_SPEC] = "a norm whose parts are joined in place"
_DISPATCHER, _HANDLERS, _PLAIN, TAIL = (
    *("_op_dispatcher", "_custom_op_handlers", "_allow_implicit_replication"),
    "_dispatch_fast_path_python_tail",
)
NAMES.update(dict.fromkeys((_DISPATCHER, _HANDLERS), "numbers that scripts read of divided tensors: the whole tensor's"))
NAMES[_PLAIN] = "plain tensors beside divided ones in an optimizer's step, and then again as the script had it"
NAMES[TAIL] = "writes into a plain tensor, and into a copy of a piece of a divided one"


def put_local(tensor: Any, part: torch.Tensor) -> None:
    """Gives a DTensor another part; its sizes are those of before."""
    setattr(tensor, _LOCAL, part)


def become(tensor: Any, other: Any) -> None:
    """Gives a DTensor what another one is."""
    setattr(tensor, _LOCAL, its(other, _LOCAL))
    setattr(tensor, _SPEC, its(other, _SPEC))


def as_plain(tensor: Any) -> DTensor:
    """A DTensor of a derived class as one of torch's."""
    return DTensor(its(tensor, _LOCAL), its(tensor, _SPEC), requires_grad=tensor.requires_grad)


def dispatcher() -> Any:
    """What runs each operation of DTensors."""
    return its(DTensor, _DISPATCHER)


def operation_handlers() -> dict[Any, Any]:
    """By operation: what runs it in the place of torch's own."""
    handlers: dict[Any, Any] = its(dispatcher(), _HANDLERS)
    return handlers


@contextmanager
def plain_on_all_ranks() -> Iterator[None]:
    """Within this context a plain tensor beside a divided one is one that all ranks have alike."""
    place = dispatcher()
    before = its(place, _PLAIN)
    setattr(place, _PLAIN, True)
    try:
        yield
    finally:
        setattr(place, _PLAIN, before)


# --- pipelines, and what else stands in a text of torch's --------------------------------------------------------------

_STEP, _BEGIN = "_step_microbatches", "_initialize_stages"
NAMES.update(dict.fromkeys((_STEP, _BEGIN), "a schedule of torch's that runs its actions by our loop"))


def by_our_loop(schedule: type[T]) -> type[T]:
    """A class of schedules of torch's whose `microbatches` go by its `run_all`."""

    def step(self: Any, arg_mbs: Any = None, kwarg_mbs: Any = None, *_others: Any, **_options: Any) -> None:
        given = arg_mbs or [()] * self.microbatches
        its(self, _BEGIN)(given[0], kwarg_mbs[0] if kwarg_mbs else {})
        self.run_all(given)

    setattr(schedule, _STEP, step)
    return schedule


RAW_SAVED = "_raw_saved_"
NAMES[RAW_SAVED] = "whether a node of a backward saves values through hooks, and may not run twice"
SHALLOW, LOADS = "_has_compatible_shallow_copy_type", "_load_from_state_dict"
NAMES[SHALLOW] = "`module.to(...)` with parameters of other ranks, which asks this of each of them"
NAMES[LOADS] = "a state that is loaded past the model, on one rank alone"
