"""Hosts that are far apart: each trains by itself for many steps, and then they agree on one model.

Every host takes `every` steps of its own optimizer from the same model. What has changed, averaged over hosts, is then one
step of an outer optimizer (SGD with Nesterov's momentum), and all go on from there. Sources: "Local SGD Converges Fast and
Communicates Little" (Stich, 2019); DiLoCo, "Distributed Low-Communication Training of Language Models" (Douillard et
al., 2023), whose values of the outer optimizer are the defaults; for fragments and exchanges beside the computation
"Streaming DiLoCo with overlapping communication" (Douillard et al., 2025).

It is another training than DDP's, not a faster way to the same one.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainshed.base.voice import tell

from .agreed_model import AgreedModel
from .between_hosts import LocalStepsError
from .fragments import Fragments, own_group
from .host_layout import HostLayout, found_layout
from .members import Members
from .membership import ComingAndGoing
from .quantize import BITS

__all__ = ["LocalSteps", "LocalStepsError", "host_group"]


class LocalSteps:
    """Keeps the models of several hosts together, by an exchange every some steps of the optimizer.

        model = Model()                                        # the same on all ranks: it is made so
        optimizer = torch.optim.AdamW(model.parameters())
        local = data.LocalSteps(model, optimizer, every=100)
        for batch in loader:
            loss(model(batch)).backward()
            optimizer.step()                                   # every 100th call ends with an exchange
            optimizer.zero_grad()
        local.finish()                                         # one model on all hosts again

    The ranks of one host train together, as DDP does: `DistributedDataParallel(model, process_group=data.host_group())`.
    All ranks construct it together, after that, and take equally many steps.

    `outer` is the model that the hosts have agreed on last, with the names of the script's: what to evaluate, and to save:
    `Checkpointer(model=local.outer, extra={"local": local})` keeps all of it, so that a job that goes on with as many ranks
    ends as if it had never been interrupted. With other ranks it goes on from the model agreed on.

    Args:
        model: a module, or a DistributedDataParallel over the ranks of this host.
        optimizer: of the model's parameters.
        every: steps between exchanges, from 1.
        hosts: for each rank of the job the number of its host; by default ranks find that out.
        outer_rate, outer_momentum: of the outer optimizer; 1 and 0 average the hosts' models.
        bits: of a number that hosts exchange: 32; or 8 or 4, of which four or eight times as many exchanges cost as many
            bytes. What rounding loses is made up for by the next exchange.
        fragments: pieces of the model that are exchanged in turn, each every `every` steps: as many bytes, never all at
            once. From 1 to the number of parameters, and not more than `every`.
        overlap: steps that go on while a fragment is exchanged, from 0 to below `every`; hosts wait for it afterwards.
        mix: the part of a host's own values that stays when the agreed ones come; by default 0, with `overlap` a half.
        timeout: seconds that an exchange waits for a host before it fails.
        members: of a job whose hosts come and go; each host is a job of one rank by itself, and calls `join()` once its
            checkpoint is loaded.

    Raises:
        TypeError: the model is a DistributedDataParallel over several hosts, or a host's ranks have none.
        ValueError: an argument cannot be used.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        every: int = 100,
        hosts: Sequence[int] | None = None,
        outer_rate: float = 0.7,
        outer_momentum: float = 0.9,
        bits: int = 32,
        fragments: int = 1,
        overlap: int = 0,
        mix: float | None = None,
        timeout: float = 1800,
        members: Members | None = None,
    ) -> None:
        mix = mix if mix is not None else 0.5 if overlap else 0.0
        _check(every, outer_rate, outer_momentum, bits, fragments, overlap, mix)
        if members is not None:
            _check_members(hosts, fragments, overlap, mix)
        self._layout = found_layout(hosts) if members is None else HostLayout(((0,),))
        self._rank = dist.get_rank() if members is None else 0
        self._inner, self._optimizer, self._every, self._bits = _own(model, self._layout, self._rank), optimizer, every, bits
        self._model = AgreedModel(self._inner, fragments, outer_rate, outer_momentum)
        self.outer = self._model.outer
        for tensor in (*self.outer.parameters(), *self.outer.buffers()) if members is None else ():
            dist.broadcast(tensor, 0)
        self._model.begin()
        self._model.follow_all()
        self._exchanges: Fragments | ComingAndGoing
        if members is not None:
            self._exchanges = ComingAndGoing(members, self._model, every, bits, outer_rate, outer_momentum)
        else:
            self._exchanges = Fragments(
                self._model, self._layout, self._rank, every=every, overlap=overlap, mix=mix, bits=bits, timeout=timeout
            )
        self.steps = 0  # of the optimizer, on this rank
        me = weakref.ref(self)

        def stepped(*_: Any) -> None:
            local = me()
            if local is not None:
                local.steps += 1
                local.steps = local._exchanges.stepped(local.steps)

        self._handle = optimizer.register_step_post_hook(stepped)
        if self._rank == 0:
            who = self._layout.text() if members is None else "hosts that come and go"
            tell(f"local steps: {who} exchange {self._plan(overlap)}")

    @property
    def exchanges(self) -> int:
        """Of fragments, those applied."""
        return self._exchanges.exchanges

    @property
    def sent(self) -> int:
        """Bytes that this host has given to others, as a ring does it."""
        return self._exchanges.sent

    def join(self) -> None:
        """Of hosts that come and go: begins with them, or gets the model of those that are further, and with it `steps`.

        Waits until `begin` hosts are there, or for the next exchange of a job that runs. Raises LocalStepsError.
        """
        if not isinstance(self._exchanges, ComingAndGoing) or self._exchanges.joined:
            raise LocalStepsError("join() is for hosts that come and go (members), once")
        self.steps = self._exchanges.join(self.steps)

    def finish(self) -> None:
        """Exchanges what the last steps have changed, and ends. Collective. Raises LocalStepsError."""
        self._exchanges.finish(self.steps)
        self._handle.remove()

    def _hosts(self) -> list[list[int]]:
        """Between which hosts states are the same; none: those that come and go, each with its own."""
        return [list(ranks) for ranks in self._layout.hosts] if isinstance(self._exchanges, Fragments) else []

    def _plan(self, overlap: int) -> str:
        """For a person: what is exchanged, and when."""
        fragments = len(self._model.pieces)
        size = max(map(self._model.size, range(fragments))) * self._bits / 8 / 1e6
        pieces = f", one of {fragments} fragments at a time" if fragments > 1 else ""
        beside = f", beside {overlap} step{'s' * (overlap > 1)}" if overlap else ""
        return f"{size:.4g} MB every {self._every} steps, not in each{pieces}{beside}"

    # --- checkpoints ---

    def state_dict(self) -> dict[str, Any]:
        """This host's own part: what has changed since the last exchange, and the optimizer's state.

        Waits for fragments on their way. Raises LocalStepsError.
        """
        return {
            **self._exchanges.state(),
            "hosts": self._hosts(),
            "pieces": self._pieces(),
            "steps": self.steps,
            "exact": [one.detach().clone() for one in self._model.exact],
            "speed": [one.detach().clone() for one in self._model.speed],
            "own": [one.detach().clone() for one in self._model.own],
            "buffers": [one.detach().clone() for one in self._inner.buffers()],
            "optimizer": self._optimizer.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on there, once `outer` has its own state: exactly with the same hosts, else from the last exchange.

        Raises:
            ValueError: it is the state of another model, or comes after join().
        """
        if isinstance(self._exchanges, ComingAndGoing) and self._exchanges.joined:
            raise ValueError("load the checkpoint before join(), which gets what other hosts are further with")
        mine = self._model
        if [one.shape for one in state["own"]] != [one.shape for one in mine.own]:
            raise ValueError("it is the state of another model: other shapes of parameters")
        for one, saved in zip((*mine.exact, *mine.speed), (*state["exact"], *state["speed"]), strict=True):
            one.copy_(saved)
        same_hosts, same_pieces = state["hosts"] == self._hosts(), state["pieces"] == self._pieces()
        self._exchanges.load(state, same_hosts and same_pieces)
        mine.follow_all()
        if not same_hosts:
            self.steps = self._exchanges.agreed
            self._say(f"the hosts are others: going on from step {self.steps}, the last one they agreed on")
            return
        self.steps = int(state["steps"])
        for own, saved in zip(mine.own, state["own"], strict=True):
            own.copy_(saved)
        for buffer, saved in zip(self._inner.buffers(), state["buffers"], strict=True):
            buffer.copy_(saved)
        self._optimizer.load_state_dict(state["optimizer"])
        if not same_pieces:
            self._say("the fragments are others: what was on its way is left out, and exchanged again later")

    def _pieces(self) -> list[list[int]]:
        return [[one.start, one.stop] for one in self._model.pieces]

    def _say(self, line: str) -> None:
        if self._rank == 0:
            tell(f"local steps: {line}")


def host_group(hosts: Sequence[int] | None = None) -> Any:
    """A process group of the ranks on this rank's host. Collective.

    Args:
        hosts: for each rank of the job the number of its host; by default ranks find that out.
    """
    return own_group(found_layout(hosts))


def _check(
    every: int, outer_rate: float, outer_momentum: float, bits: int, fragments: int, overlap: int, mix: float
) -> None:
    """Raises ValueError for what cannot be used."""
    if every < 1:
        raise ValueError(f"every = {every}: at least one step lies between exchanges")
    if not outer_rate > 0 or not 0 <= outer_momentum < 1:
        raise ValueError(f"outer_rate = {outer_rate}, outer_momentum = {outer_momentum}: above 0, and from 0 to below 1")
    if bits not in (32, *BITS):
        raise ValueError(f"bits = {bits}: 32, 8 or 4")
    if fragments > every:
        raise ValueError(f"fragments = {fragments}, every = {every}: only one fragment is exchanged after a step")
    if not 0 <= overlap < every:
        raise ValueError(f"overlap = {overlap}, every = {every}: a fragment has to arrive before it is sent again")
    if not 0 <= mix < 1:
        raise ValueError(f"mix = {mix}: from 0, all is agreed, to below 1")


def _check_members(hosts: Sequence[int] | None, fragments: int, overlap: int, mix: float) -> None:
    """Raises ValueError for what hosts that come and go do not have."""
    if hosts is not None or fragments > 1 or overlap or mix:
        raise ValueError("hosts that come and go (members) exchange all at once: without hosts, fragments, overlap, mix")
    if dist.is_initialized() and dist.get_world_size() > 1:
        raise ValueError(f"hosts that come and go (members) have one rank each, not {dist.get_world_size()}")


def _own(model: nn.Module, layout: HostLayout, rank: int) -> nn.Module:
    """The script's own module, averaged over the ranks of this host alone. Raises TypeError."""
    ranks = len(layout.neighbours(rank))
    if isinstance(model, DistributedDataParallel):
        if dist.get_world_size(model.process_group) != ranks:
            raise TypeError("the model is averaged over all hosts in each step: give DDP process_group=data.host_group()")
        inner: nn.Module = model.module
        return inner
    if ranks > 1:
        raise TypeError(
            f"{ranks} ranks share a host: wrap the model by "
            "DistributedDataParallel(model, process_group=data.host_group()) first"
        )
    return model
