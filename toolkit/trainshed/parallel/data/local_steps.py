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
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainshed.base.voice import tell

from .agreed_model import AgreedModel
from .between_hosts import Given, LocalStepsError, Taken, across, alone, inside
from .coming_and_going import Standing, met, plan_of
from .few_bits import BITS
from .host_layout import HostLayout, found_layout
from .host_lines import Flight, Line
from .members import Members

__all__ = ["LocalSteps", "LocalStepsError", "host_group"]


@dataclass(frozen=True)
class _Sent:
    """A fragment's exchange that is not applied yet: sent after step `at`, applied after step `due`."""

    fragment: int
    at: int
    due: int
    flight: Flight[Taken]


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
        if mix is not None and not 0 <= mix < 1:
            raise ValueError(f"mix = {mix}: from 0, all is agreed, to below 1")
        self._every, self._overlap, self._bits, self._timeout = every, overlap, bits, timeout
        self._mix = mix if mix is not None else 0.5 if overlap else 0.0
        if members is not None and (hosts is not None or fragments > 1 or overlap or mix):
            raise ValueError("hosts that come and go (members) exchange all at once: without hosts, fragments, overlap, mix")
        if members is not None and dist.is_initialized() and dist.get_world_size() > 1:
            raise ValueError(f"hosts that come and go (members) have one rank each, not {dist.get_world_size()}")
        self._members, self._joined = members, False
        self._layout = found_layout(hosts) if members is None else HostLayout(((0,),))
        self._rank = dist.get_rank() if members is None else 0
        neighbours = self._layout.neighbours(self._rank)
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        if isinstance(model, DistributedDataParallel) and dist.get_world_size(model.process_group) != len(neighbours):
            raise TypeError("the model is averaged over all hosts in each step: give DDP process_group=data.host_group()")
        if len(neighbours) > 1 and not isinstance(model, DistributedDataParallel):
            raise TypeError(
                f"{len(neighbours)} ranks share a host: wrap the model by "
                "DistributedDataParallel(model, process_group=data.host_group()) first"
            )
        self._inner, self._optimizer = inner, optimizer
        self._model = AgreedModel(inner, fragments, outer_rate, outer_momentum)
        self.outer = self._model.outer
        for tensor in (*self.outer.parameters(), *self.outer.buffers()) if members is None else ():
            dist.broadcast(tensor, 0)
        self._model.begin()
        self._model.follow_all()
        # Fragments on their way do not share a group: its messages are told apart by their order.
        made = [_groups(self._layout, self._rank, timeout) if members is None else (None, None) for _ in range(fragments)]
        self._lines, self._insides = [line for line, _ in made], [group for _, group in made]
        self._leads = self._rank == neighbours[0]
        self._lost = [self._nothing_lost(fragment) for fragment in range(fragments)]
        self._sent: list[_Sent] = []  # in the order of sending
        self._sent_at = [0] * fragments
        self._token = ""  # of the meeting whose model this host has
        self._coming = plan_of(self._model, every, bits, outer_rate, outer_momentum)
        self._agreed = 0  # the step after which the last exchange was sent that is applied
        self.steps = 0  # of the optimizer, on this rank
        self.exchanges = 0  # of fragments, those applied
        me = weakref.ref(self)

        def stepped(*_: Any) -> None:
            local = me()
            if local is not None:
                local._stepped()

        self._handle = optimizer.register_step_post_hook(stepped)
        if self._rank == 0:
            who = self._layout.text() if members is None else "hosts that come and go"
            tell(f"local steps: {who} exchange {self._plan()}")

    @property
    def sent(self) -> int:
        """Bytes that this host has given to others, as a ring does it."""
        if self._members is not None:
            return self._members.sent
        return sum(line.sent for line in self._lines if line is not None)

    def join(self) -> None:
        """Of hosts that come and go: begins with them, or gets the model of those that are further, and with it `steps`.

        Waits until `begin` hosts are there, or for the next exchange of a job that runs. Raises LocalStepsError.
        """
        if self._members is None or self._joined:
            raise LocalStepsError("join() is for hosts that come and go (members), once")
        self._meet(joins=True)
        self._joined = True

    def finish(self) -> None:
        """Exchanges what the last steps have changed, and ends. Collective. Raises LocalStepsError."""
        if self._members is not None:
            if self.steps > self._agreed:
                self._meet(joins=False)
            self._handle.remove()
            self._members.leave()
            return
        self._apply([sent for sent in self._sent if sent.at < self.steps])
        late = [fragment for fragment, at in enumerate(self._sent_at) if at < self.steps]
        for fragment in late:
            self._send(fragment)
        self._apply(list(self._sent), mix=0)
        self._handle.remove()

    def _stepped(self) -> None:
        if self._members is not None and not self._joined:
            raise LocalStepsError("call join() before the first step: it meets the other hosts")
        self.steps += 1
        if self._members is not None:
            if self.steps % self._every == 0:
                self._meet(joins=False)
            return
        for sent in self._sent:
            if sent.due > self.steps:
                sent.flight.advance()
        self._apply([sent for sent in self._sent if sent.due <= self.steps])
        fragments = len(self._lines)
        for fragment in range(fragments):
            # The last one after each `every` steps, the others spread over the time between.
            if (self.steps - (fragment + 1) * self._every // fragments) % self._every == 0:
                self._send(fragment)
        self._apply([sent for sent in self._sent if sent.due <= self.steps])

    # --- the exchange ---

    def _meet(self, joins: bool) -> None:
        """Exchanges with hosts that come and go."""
        assert self._members is not None
        at = Standing(self.steps, self.exchanges, self._agreed, self._token, self._lost[0])
        now = met(self._members, self._model, self._bits, self._coming, at, joins)
        self.steps, self.exchanges, self._agreed, self._token = now.steps, now.exchanges, now.agreed, now.token
        self._lost = [now.lost]

    def _send(self, fragment: int) -> None:
        """Begins to exchange it."""
        last = fragment == len(self._lines) - 1
        given = Given(
            exchange=self.exchanges + len(self._sent),
            step=self.steps,
            agreed=self._agreed,
            change=self._model.change(fragment),
            lost=self._lost[fragment],
            buffers=[one.detach().clone() for one in self._model.buffers()] if last else (),
            changed=self._model.changed_buffers() if last else (),
        )
        line, group = self._lines[fragment], self._insides[fragment]
        between = None if not self._leads else across(line, given, self._bits) if line is not None else alone(given)
        broken = (
            f"the exchange after step {self.steps} was not completed: {self._others()} has ended, or did not answer for "
            f"{self._timeout:g} s; the last model that the hosts agreed on is that of step {self._agreed}"
        )
        flight = Flight(inside(group, between, given, broken))
        self._sent_at[fragment] = self.steps
        self._sent.append(_Sent(fragment, self.steps, self.steps + self._overlap, flight))

    def _apply(self, due: Sequence[_Sent], mix: float | None = None) -> None:
        """Waits for what was sent, and goes on from it."""
        for sent in due:
            taken = sent.flight.land()
            if taken.lost is not None:
                self._lost[sent.fragment] = taken.lost
            self._model.step(sent.fragment, taken.change)
            if taken.buffers:
                self._model.take_buffers(taken.buffers, follow=sent.at == self.steps)
            self._model.follow(sent.fragment, self._mix if mix is None else mix)
            self._agreed = sent.at
            self.exchanges += 1
            self._sent.remove(sent)

    def _nothing_lost(self, fragment: int) -> torch.Tensor | None:
        if self._bits not in BITS or (self._lines[fragment] is None and self._members is None):
            return None
        return torch.zeros(self._model.size(fragment), device=self._model.own[0].device)

    def _hosts(self) -> list[list[int]]:
        """Between which hosts states are the same; none: those that come and go, each with its own."""
        return [list(ranks) for ranks in self._layout.hosts] if self._members is None else []

    def _others(self) -> str:
        """For messages: whom this host waits for."""
        host = self._layout.hosts.index(self._layout.neighbours(self._rank))
        return f"host {1 - host}" if len(self._layout.hosts) == 2 else "another host"

    def _plan(self) -> str:
        """For a person: what is exchanged, and when."""
        size = max(self._model.size(one) for one in range(len(self._lines))) * self._bits / 8 / 1e6
        pieces = f", one of {len(self._lines)} fragments at a time" if len(self._lines) > 1 else ""
        beside = f", beside {self._overlap} step{'s' * (self._overlap > 1)}" if self._overlap else ""
        return f"{size:.4g} MB every {self._every} steps, not in each{pieces}{beside}"

    # --- checkpoints ---

    def state_dict(self) -> dict[str, Any]:
        """This host's own part: what has changed since the last exchange, and the optimizer's state.

        Waits for fragments on their way. Raises LocalStepsError.
        """
        arrived = [(sent, sent.flight.land()) for sent in self._sent]
        return {
            "hosts": self._hosts(),
            "token": self._token,
            "pieces": [[one.start, one.stop] for one in self._model.pieces],
            "steps": self.steps,
            "exchanges": self.exchanges,
            "agreed": self._agreed,
            "sent_at": list(self._sent_at),
            "arrived": [
                {
                    **{"fragment": sent.fragment, "at": sent.at, "due": sent.due},
                    **{"change": taken.change, "lost": taken.lost, "buffers": list(taken.buffers)},
                }
                for sent, taken in arrived
            ],
            "exact": [one.detach().clone() for one in self._model.exact],
            "speed": [one.detach().clone() for one in self._model.speed],
            "own": [one.detach().clone() for one in self._model.own],
            "buffers": [one.detach().clone() for one in self._inner.buffers()],
            "optimizer": self._optimizer.state_dict(),
            "lost": [one.clone() if one is not None else None for one in self._lost],
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on there, once `outer` has its own state: exactly with the same hosts, else from the last exchange.

        Raises:
            ValueError: it is the state of another model.
        """
        if self._joined:
            raise ValueError("load the checkpoint before join(), which gets what other hosts are further with")
        mine = self._model
        if [one.shape for one in state["own"]] != [one.shape for one in mine.own]:
            raise ValueError("it is the state of another model: other shapes of parameters")
        for one, saved in zip((*mine.exact, *mine.speed), (*state["exact"], *state["speed"]), strict=True):
            one.copy_(saved)
        self.exchanges, self._agreed = int(state["exchanges"]), int(state["agreed"])
        self._sent = []
        mine.follow_all()
        self._token = state.get("token", "")
        if state["hosts"] != self._hosts():
            self.steps = self._agreed
            self._sent_at = [self.steps] * len(self._lines)
            self._lost = [self._nothing_lost(fragment) for fragment in range(len(self._lines))]
            if self._rank == 0:
                tell(f"local steps: the hosts are others: going on from step {self.steps}, the last one they agreed on")
            return
        self.steps = int(state["steps"])
        for own, saved in zip(mine.own, state["own"], strict=True):
            own.copy_(saved)
        for own, saved in zip(self._inner.buffers(), state["buffers"], strict=True):
            own.copy_(saved)
        self._optimizer.load_state_dict(state["optimizer"])
        if state["pieces"] != [[one.start, one.stop] for one in mine.pieces]:
            self._sent_at = [self._agreed] * len(self._lines)
            if self._rank == 0:
                tell("local steps: the fragments are others: what was on its way is left out, and exchanged again later")
            return
        self._sent_at = [int(at) for at in state["sent_at"]]
        for fragment, saved in enumerate(state["lost"]):
            held = self._lost[fragment]
            if held is not None and saved is not None:
                held.copy_(saved)
        for one in state["arrived"]:
            taken = Taken(one["change"], one["lost"], one["buffers"])
            self._sent.append(_Sent(int(one["fragment"]), int(one["at"]), int(one["due"]), Flight.landed_with(taken)))


def host_group(hosts: Sequence[int] | None = None) -> Any:
    """A process group of the ranks on this rank's host. Collective.

    Args:
        hosts: for each rank of the job the number of its host; by default ranks find that out.
    """
    return _own_group(found_layout(hosts))


def _groups(layout: HostLayout, rank: int, timeout: float) -> tuple[Line | None, Any]:
    """What hosts' first ranks exchange over, None on others and if there is one host; and this host's group, None if
    each has a single rank. Collective."""
    within = timedelta(seconds=timeout)
    leaders = dist.new_group([ranks[0] for ranks in layout.hosts], timeout=within, backend="gloo")
    inside = _own_group(layout, timeout=within, backend="gloo") if layout.shared else None
    host = layout.hosts.index(layout.neighbours(rank))
    leads = rank == layout.hosts[host][0] and len(layout.hosts) > 1
    return Line(leaders, host, len(layout.hosts)) if leads else None, inside


def _own_group(layout: HostLayout, **options: Any) -> Any:
    """This rank's host's group; those of all hosts are made by all ranks, in the same order."""
    groups = [dist.new_group(list(ranks), **options) for ranks in layout.hosts]
    return groups[layout.hosts.index(layout.neighbours(dist.get_rank()))]
