"""State that elastic scripts keep in step: saved in memory, committed to disk, the same on all ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from ..basics import rank, size
from ..functions import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters
from .kept import Kept
from .sampler import ElasticSampler


class State:
    """The base of states: a class of one's own has `save`, `restore`, `sync` and, to survive restarts, `content`.

    Args:
        options: functions that Horovod's own class takes here; not needed.
    """

    def __init__(self, **options: Any) -> None:
        self._callbacks: list[Callable[[], Any]] = []
        self._kept: Kept | None = None

    def begin(self, kept: Kept | None) -> None:
        """From here on commits are kept there; the newest one is loaded, on all ranks alike. `run` calls this."""
        self._kept = kept
        found = kept.newest() if kept is not None and rank() == 0 else None
        ranks_then = broadcast_object(found["ranks"] if found else None, 0, "elastic.begin")
        if ranks_then is None:
            return
        if found:
            print(f"[horovod] goes on from commit {found['number']}", flush=True)
            self.load_content(found["content"])
        self.save()
        if ranks_then != size():
            self.on_reset()

    def register_reset_callbacks(self, callbacks: list[Callable[[], Any]]) -> None:
        """Registers functions, called when the job was started again with more or fewer ranks, before `sync`."""
        self._callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """There are more or fewer ranks than before."""
        self.reset()
        for callback in self._callbacks:
            callback()

    def on_hosts_updated(self, timestamp: Any, update_res: Any) -> None:
        """Never called here: no host comes or goes."""

    def commit(self) -> None:
        """Saves the state in memory and, in a job, on disk, from where a restart goes on. All ranks call it together.

        Raises:
            OSError: the disk does not take it.
        """
        self.save()
        content = self.content()
        if self._kept is not None and rank() == 0 and content is not None:
            self._kept.write({"number": self._kept.next_number, "ranks": size(), "content": content})
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Nothing: no host comes or goes."""

    def content(self) -> dict[str, Any] | None:
        """Returns what is committed to disk; None for nothing. Called on all ranks, of which the first one's counts."""
        return None

    def load_content(self, content: dict[str, Any]) -> None:
        """Takes what `content` has given, on rank 0; `sync` follows."""

    def save(self) -> None:
        """Keeps the state in memory."""

    def restore(self) -> None:
        """Goes back to what was saved."""

    def sync(self) -> None:
        """Makes the state that of rank 0."""

    def reset(self) -> None:
        """There are more or fewer ranks than before."""


class ObjectState(State):
    """Values that can be pickled, as attributes.

    Args:
        bcast_object, get_rank: what Horovod's own class takes here; not needed.
        values: the attributes with their first values.
    """

    def __init__(self, bcast_object: Any = None, get_rank: Any = None, **values: Any) -> None:
        super().__init__()
        self._names = tuple(values)
        self._saved: dict[str, Any] = {}
        for name, value in values.items():
            setattr(self, name, value)
        self.save()

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names}

    def content(self) -> dict[str, Any] | None:
        return {"values": self._saved}

    def load_content(self, content: dict[str, Any]) -> None:
        for name, value in content["values"].items():
            if name in self._names:
                setattr(self, name, value)

    def save(self) -> None:
        self._saved = copy.deepcopy(self._values())

    def restore(self) -> None:
        for name, value in copy.deepcopy(self._saved).items():
            setattr(self, name, value)

    def sync(self) -> None:
        if self._names:
            for name, value in broadcast_object(self._values(), 0, "elastic.values").items():
                setattr(self, name, value)
        self.save()


class TorchState(ObjectState):
    """A model, an optimizer, and whatever else a training has.

    Args:
        model, optimizer: None for none.
        values: further ones: modules, optimizers, samplers and others with `state_dict` and `load_state_dict` by that, all
            else by pickle.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **values: Any) -> None:
        given = {name: value for name, value in (("model", model), ("optimizer", optimizer)) if value is not None}
        parts = {**given, **{name: value for name, value in values.items() if _is_part(value)}}
        self._parts = tuple(parts)
        self._saved_parts: dict[str, Any] = {}
        for name, part in parts.items():
            setattr(self, name, part)
        super().__init__(**{name: value for name, value in values.items() if name not in parts})

    def _part_states(self) -> dict[str, Any]:
        return {name: getattr(self, name).state_dict() for name in self._parts}

    def content(self) -> dict[str, Any] | None:
        states = dict(self._saved_parts)
        for name in self._samplers():
            states[name] = _seen_by_all(states[name])
        return {"values": self._saved, "parts": states}

    def load_content(self, content: dict[str, Any]) -> None:
        super().load_content(content)
        for name, state in content["parts"].items():
            if name in self._parts:
                getattr(self, name).load_state_dict(state)

    def save(self) -> None:
        super().save()
        self._saved_parts = copy.deepcopy(self._part_states())

    def restore(self) -> None:
        super().restore()
        for name, state in copy.deepcopy(self._saved_parts).items():
            getattr(self, name).load_state_dict(state)

    def sync(self) -> None:
        for name in self._parts:
            part = getattr(self, name)
            if isinstance(part, torch.nn.Module):
                broadcast_parameters(part.state_dict(), root_rank=0)
            elif isinstance(part, torch.optim.Optimizer):
                broadcast_optimizer_state(part, root_rank=0)
            elif isinstance(part, ElasticSampler):
                part.load_state_dict(_seen_by_all(part.state_dict()))
            else:
                part.load_state_dict(broadcast_object(part.state_dict(), 0, f"elastic.{name}"))
        super().sync()

    def reset(self) -> None:
        for name in self._samplers():
            getattr(self, name).reset()

    def _samplers(self) -> list[str]:
        return [name for name in self._parts if isinstance(getattr(self, name), ElasticSampler)]


def _is_part(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _seen_by_all(state: dict[str, Any]) -> dict[str, Any]:
    """A sampler's state with the samples that all ranks have seen, in the first rank's epoch."""
    states = allgather_object(state, "elastic.sampler")
    seen: set[int] = set()
    for one in states:
        if one["epoch"] == states[0]["epoch"]:
            seen |= one["processed_indices"]
    return {"epoch": states[0]["epoch"], "processed_indices": seen}
