"""The content of a checkpoint: tensors by name, and everything else as one small tree of plain objects.

Tensors are named by where they belong (`model/<parameter>`, `optimizer/state/<parameter>/exp_avg`), never by position,
so that another number of ranks, or other wrappers around the model, find them again.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence

import torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TENSOR = "__tensor__"  # in the tree, {TENSOR: key} stands for a tensor
_WRAPPERS = re.compile(r"(?:^|(?<=\.))(?:_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\.")


class StateError(Exception):
    """State and checkpoint do not match; the message says where."""


def plain_name(name: str) -> str:
    """A parameter's name without what torch.compile and the wrappers of torch.distributed put into it."""
    return _WRAPPERS.sub("", name)


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The module inside DistributedDataParallel and torch.compile."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, torch.nn.parallel.DistributedDataParallel):
            inner = model.module
        if inner is None:
            return model
        model = inner


class ModelState:
    """Parameters and buffers of a module."""

    def __init__(self, name: str, model: torch.nn.Module) -> None:
        self.name = name
        self.model = unwrapped(model)

    def key(self, name: str) -> str:
        """The name of a parameter or buffer of the module in a checkpoint."""
        return f"{self.name}/{plain_name(name)}"

    def capture(self, tensors: dict[str, torch.Tensor]) -> Any:
        """Adds the tensors to `tensors`; returns the rest of the state."""
        other = {}
        for name, value in self.model.state_dict().items():
            if isinstance(value, torch.Tensor):
                tensors[self.key(name)] = value.detach()
            else:
                other[plain_name(name)] = value
        return other

    def wanted(self, stored: Mapping[str, Any], tree: Any) -> dict[str, torch.Tensor]:
        """Returns the tensors to be filled from the checkpoint."""
        tensors: dict[str, torch.Tensor] = {}
        self.capture(tensors)
        return tensors

    def restore(self, filled: Mapping[str, torch.Tensor], tree: Any) -> None:
        """Puts the filled tensors in place."""
        own = {tensor.data_ptr() for tensor in (*self.model.parameters(), *self.model.buffers()) if _plain(tensor)}
        if not tree and all(not _plain(tensor) or tensor.data_ptr() in own for tensor in filled.values()):
            return  # they are the module's own memory
        state = self.model.state_dict()
        for name, value in state.items():
            key = self.key(name)
            state[name] = filled[key] if isinstance(value, torch.Tensor) else tree[plain_name(name)]
        self.model.load_state_dict(state)


class OptimizerState:
    """An optimizer's state, by the names of the parameters it belongs to."""

    def __init__(self, name: str, optimizer: torch.optim.Optimizer, models: Iterable[ModelState]) -> None:
        self.name = name
        self.optimizer = optimizer
        known = {}
        for model in models:
            for parameter_name, parameter in model.model.named_parameters():
                known[parameter] = plain_name(parameter_name)
        self._names: dict[torch.nn.Parameter, str] = known

    def _named(self) -> dict[str, torch.nn.Parameter]:
        """The optimizer's parameters by name, in its own order; unknown ones by position."""
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        return {self._names.get(parameter, f"#{number}"): parameter for number, parameter in enumerate(parameters)}

    def capture(self, tensors: dict[str, torch.Tensor]) -> Any:
        """Adds the tensors to `tensors`; returns groups and the rest of the state."""
        packed = self.optimizer.state_dict()
        names = list(self._named())
        state = {
            names[number] if isinstance(number, int) else str(number): _take(
                value, f"{self.name}/state/{names[number] if isinstance(number, int) else number}", tensors
            )
            for number, value in packed["state"].items()
        }
        groups = [{**group, "params": [names[number] for number in group["params"]]} for group in packed["param_groups"]]
        return {"state": state, "param_groups": groups}

    def wanted(self, stored: Mapping[str, Any], tree: Any) -> dict[str, torch.Tensor]:
        """Returns empty tensors for the stored state, placed as their parameters are."""
        tensors = {}
        for name, parameter in self._named().items():
            for key in _references(tree["state"].get(name, {})):
                if key not in stored:
                    raise StateError(f"{key} is not in the checkpoint")
                dtype, shape = stored[key]
                if tuple(parameter.shape) == shape:
                    tensors[key] = torch.empty_like(parameter, dtype=dtype, requires_grad=False).detach()
                elif _plain(parameter) or len(shape) == 0:
                    tensors[key] = torch.empty(shape, dtype=dtype)
                else:
                    raise StateError(f"{key} of shape {shape} cannot be spread like its parameter {tuple(parameter.shape)}")
        return tensors

    def restore(self, filled: Mapping[str, torch.Tensor], tree: Any) -> None:
        """Loads the state; types stay as they were saved."""
        named = self._named()
        numbers = {name: number for number, name in enumerate(named)}
        groups = tree["param_groups"]
        group_of = {name: group for group in groups for name in group["params"]}
        same_names(f"the parameters of {self.name}", named, group_of)
        state = {numbers[name]: _put(value, filled) for name, value in tree["state"].items() if name in numbers}
        name_of = {id(parameter): name for name, parameter in named.items()}
        new_groups = []
        for group in self.optimizer.param_groups:
            names = [name_of[id(parameter)] for parameter in group["params"]]
            new_groups.append({**(group_of[names[0]] if names else group), "params": [numbers[name] for name in names]})
        self.optimizer.load_state_dict({"state": state, "param_groups": new_groups})
        for name, parameter in named.items():  # load_state_dict casts to the parameter's type
            held = self.optimizer.state.get(parameter, {})
            for entry, value in state.get(numbers[name], {}).items():
                now = held.get(entry)
                if isinstance(now, torch.Tensor) and isinstance(value, torch.Tensor) and now.dtype != value.dtype:
                    held[entry] = value.to(now.device)


class ObjectState:
    """Anything with `state_dict` and `load_state_dict`: scheduler, GradScaler, sampler, the user's own."""

    def __init__(self, name: str, thing: Any) -> None:
        if not callable(getattr(thing, "state_dict", None)) or not callable(getattr(thing, "load_state_dict", None)):
            raise StateError(f"{name} is a {type(thing).__name__}, which has no state_dict and load_state_dict")
        self.name = name
        self.thing = thing

    def capture(self, tensors: dict[str, torch.Tensor]) -> Any:
        """Returns its state; tensors stay in the tree, since they are small."""
        return self.thing.state_dict()

    def wanted(self, stored: Mapping[str, Any], tree: Any) -> dict[str, torch.Tensor]:
        """Returns nothing: the state is in the tree."""
        return {}

    def restore(self, filled: Mapping[str, torch.Tensor], tree: Any) -> None:
        """Loads the state."""
        self.thing.load_state_dict(tree)


class RandomState:
    """The state of every random generator of this rank: torch's, the GPU's, Python's, NumPy's if it is in use."""

    name = "random"

    def capture(self, tensors: dict[str, torch.Tensor]) -> Any:
        """Returns the state of all generators."""
        import sys

        state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state()
        numpy = sys.modules.get("numpy")
        if numpy is not None and hasattr(numpy, "random"):
            kind, keys, *rest = numpy.random.get_state()
            state["numpy"] = [kind, torch.from_numpy(keys.astype("int64")), *rest]
        return state

    def wanted(self, stored: Mapping[str, Any], tree: Any) -> dict[str, torch.Tensor]:
        """Returns nothing: this state stores no tensors."""
        return {}

    def restore(self, filled: Mapping[str, torch.Tensor], tree: Any) -> None:
        """Restores all generators."""
        import sys

        torch.set_rng_state(tree["torch"])
        random.setstate(tree["python"])
        if "cuda" in tree and torch.cuda.is_available():
            torch.cuda.set_rng_state(tree["cuda"])
        numpy = sys.modules.get("numpy")
        if numpy is not None and "numpy" in tree:
            kind, keys, *rest = tree["numpy"]
            numpy.random.set_state((kind, keys.numpy().astype("uint32"), *rest))


def _take(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Returns `value` with its tensors moved to `tensors` and replaced by references."""
    if isinstance(value, torch.Tensor):
        tensors[path] = value.detach()
        return {TENSOR: path}
    if isinstance(value, Mapping):
        return {key: _take(item, f"{path}/{key}", tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_take(item, f"{path}/{number}", tensors) for number, item in enumerate(value)])
    return value


def _put(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The reverse of `_take`."""
    if isinstance(value, Mapping):
        if TENSOR in value:
            return tensors[value[TENSOR]]
        return {key: _put(item, tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_put(item, tensors) for item in value])
    return value


def _references(value: Any) -> list[str]:
    """The keys of all tensors in a tree."""
    if isinstance(value, Mapping):
        return [value[TENSOR]] if TENSOR in value else [key for item in value.values() for key in _references(item)]
    if isinstance(value, (list, tuple)):
        return [key for item in value for key in _references(item)]
    return []


def _plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor is whole on this rank (no DTensor)."""
    return not hasattr(tensor, "device_mesh")


def same_names(what: str, own: Iterable[str], stored: Iterable[str]) -> None:
    """Raises StateError unless both hold the same names."""
    missing, extra = sorted(set(own) - set(stored)), sorted(set(stored) - set(own))
    if missing or extra:
        groups = ((missing, "not in the checkpoint"), (extra, "only in it"))
        parts = [f"{len(names)} {which}, first {names[0]}" for names, which in groups if names]
        raise StateError(f"{what} have changed since the checkpoint was made: {'; '.join(parts)}")


def all_states(model: Any, optimizer: Any, others: Mapping[str, Any]) -> list[Any]:
    """Everything that goes into a checkpoint, with unique names. Raises ValueError."""
    models = [ModelState(name, module) for name, module in _named("model", model)]
    optimizers = [OptimizerState(name, each, models) for name, each in _named("optimizer", optimizer)]
    try:
        objects = [ObjectState(name, thing) for name, thing in others.items() if thing is not None]
    except StateError as error:
        raise ValueError(str(error)) from None
    states: list[Any] = [*models, *optimizers, *objects, RandomState()]
    names = [state.name for state in states]
    twice = next((name for name in names if names.count(name) > 1), "")
    if twice:
        raise ValueError(f"the name {twice!r} is used twice in the checkpoint")
    return states


def _named(kind: str, things: Any) -> Sequence[tuple[str, Any]]:
    if things is None:
        return []
    if isinstance(things, dict):
        return [(f"{kind}.{name}", thing) for name, thing in things.items()]
    if isinstance(things, (list, tuple)):
        return [(f"{kind}.{number}", thing) for number, thing in enumerate(things)]
    return [(kind, things)]
