"""Hosts that are far apart: each trains by itself for many steps, and then they agree on one model.

Every host takes `every` steps of its own optimizer from the same model. What has changed, averaged over hosts, is then one
step of an outer optimizer (SGD with Nesterov's momentum), and all go on from there. Sources: "Local SGD Converges Fast and
Communicates Little" (Stich, 2019), and DiLoCo, "Distributed Low-Communication Training of Language Models" (Douillard et
al., 2023), whose values of the outer optimizer are the defaults.

It is another training than DDP's, not a faster way to the same one.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainshed.base.voice import tell

from .few_bits import BITS, FewBits
from .host_layout import HostLayout, found_layout


class LocalStepsError(RuntimeError):
    """The hosts cannot agree on a model; the message says why. All ranks raise it."""


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
    ) -> None:
        if every < 1:
            raise ValueError(f"every = {every}: at least one step lies between exchanges")
        if not outer_rate > 0 or not 0 <= outer_momentum < 1:
            raise ValueError(f"outer_rate = {outer_rate}, outer_momentum = {outer_momentum}: above 0, and from 0 to below 1")
        if bits not in (32, *BITS):
            raise ValueError(f"bits = {bits}: 32, 8 or 4")
        self._every, self._rate, self._momentum = every, outer_rate, outer_momentum
        self._layout = found_layout(hosts)
        self._rank = dist.get_rank()
        neighbours = self._layout.neighbours(self._rank)
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        if isinstance(model, DistributedDataParallel) and dist.get_world_size(model.process_group) != len(neighbours):
            raise TypeError("the model is averaged over all hosts in each step: give DDP process_group=data.host_group()")
        if len(neighbours) > 1 and not isinstance(model, DistributedDataParallel):
            raise TypeError(
                f"{len(neighbours)} ranks share a host: wrap the model by "
                "DistributedDataParallel(model, process_group=data.host_group()) first"
            )
        self._host = self._layout.hosts.index(neighbours)
        self._inner, self._optimizer = inner, optimizer
        self._parameters = [one for one in inner.parameters() if one.requires_grad]
        if len({parameter.device for parameter in self._parameters}) > 1:
            raise ValueError("the model's parameters are on several devices")
        self._leaders = dist.new_group([ranks[0] for ranks in self._layout.hosts])
        self._neighbours = _own_group(self._layout)
        self.outer = copy.deepcopy(inner).requires_grad_(False)
        self._outer = [
            one for one, own in zip(self.outer.parameters(), inner.parameters(), strict=True) if own.requires_grad
        ]
        for tensor in (*self.outer.parameters(), *self.outer.buffers()):
            dist.broadcast(tensor, 0)
        self._exact = [one.float() for one in self._outer]  # the same tensors, unless they are of less precision
        self._speed = [torch.zeros_like(one) for one in self._exact]
        leads = self._rank == self._layout.hosts[self._host][0]
        count = sum(one.numel() for one in self._exact)
        self._few = (
            FewBits(self._leaders, count, self._exact[0].device, bits)
            if bits in BITS and leads and len(self._layout.hosts) > 1
            else None
        )
        self._follow()
        self.steps = 0  # of the optimizer, on this rank
        self.exchanges = 0
        self.sent = 0  # bytes that this host has given to others, as a ring does it
        me = weakref.ref(self)

        def stepped(*_: Any) -> None:
            local = me()
            if local is not None:
                local._stepped()

        self._handle = optimizer.register_step_post_hook(stepped)
        if self._rank == 0:
            size = count * bits / 8 / 1e6
            tell(f"local steps: {self._layout.text()} exchange {size:.4g} MB every {every} steps, not in each")

    def finish(self) -> None:
        """Exchanges what the last steps have changed, and ends. Collective. Raises LocalStepsError."""
        if self.steps % self._every:
            self._exchange()
        self._handle.remove()

    def _stepped(self) -> None:
        self.steps += 1
        if self.steps % self._every == 0:
            self._exchange()

    # --- the exchange ---

    @torch.no_grad()
    def _exchange(self) -> None:
        pairs = zip(self._exact, self._parameters, strict=True)
        flat = torch.cat([(exact - own).reshape(-1) for exact, own in pairs])
        bad = not bool(torch.isfinite(flat).all())
        facts = torch.tensor([float(self.exchanges), float(self.steps), float(bad)], dtype=torch.float64)
        every = self._told(facts)
        unlike = next((host for host, (round_, steps, _) in enumerate(every) if (round_, steps) != every[0][:2]), None)
        if unlike is not None:
            raise LocalStepsError(
                f"hosts have made unequally many steps: host 0 {every[0][1]:.0f}, host {unlike} {every[unlike][1]:.0f}; "
                "give each as many batches, and let no host leave out steps of the optimizer (GradScaler does)"
            )
        wrong = [str(host) for host, (_, _, bad_there) in enumerate(every) if bad_there]
        if wrong:
            raise LocalStepsError(
                f"the model of host {', '.join(wrong)} has values that are not finite after step {self.steps}: nothing was "
                f"exchanged; the last model that the hosts agreed on is that of step {self.exchanges * self._every}"
            )
        leads = self._rank == self._layout.hosts[self._host][0]
        count = len(self._layout.hosts)
        if self._few is not None:
            before = self._few.sent
            flat = self._few.sum(flat)
            self.sent += self._few.sent - before
        elif leads and count > 1:
            dist.all_reduce(flat, group=self._leaders)
            self.sent += round(2 * (count - 1) / count * flat.numel() * flat.element_size())
        dist.broadcast(flat, self._layout.hosts[self._host][0], group=self._neighbours)
        at = 0
        for outer, exact, speed in zip(self._outer, self._exact, self._speed, strict=True):
            change = flat[at : at + exact.numel()].view_as(exact) / count
            at += exact.numel()
            speed.mul_(self._momentum).add_(change)
            exact.sub_(change.add(speed, alpha=self._momentum), alpha=self._rate)
            outer.copy_(exact)
        self._average_buffers(leads, count)
        self._follow()
        self.exchanges += 1

    def _told(self, facts: torch.Tensor) -> list[tuple[float, ...]]:
        """Every host's numbers, by its first rank, on all ranks."""
        held: list[Any] = [None] * self._layout.world
        dist.all_gather_object(held, tuple(facts.tolist()))
        return [held[ranks[0]] for ranks in self._layout.hosts]

    def _average_buffers(self, leads: bool, count: int) -> None:
        """Running means and the like; whole numbers are those of the first host."""
        for outer, own in zip(self.outer.buffers(), self._inner.buffers(), strict=True):
            outer.copy_(own)
            if leads and count > 1:
                if outer.is_floating_point():
                    dist.all_reduce(outer, group=self._leaders)
                    outer.div_(count)
                else:
                    dist.broadcast(outer, 0, group=self._leaders)
                self.sent += outer.numel() * outer.element_size()
            dist.broadcast(outer, self._layout.hosts[self._host][0], group=self._neighbours)

    @torch.no_grad()
    def _follow(self) -> None:
        """The script's model becomes the one agreed on."""
        for outer, own in zip(self.outer.parameters(), self._inner.parameters(), strict=True):
            own.copy_(outer)
        for outer, own in zip(self.outer.buffers(), self._inner.buffers(), strict=True):
            own.copy_(outer)

    # --- checkpoints ---

    def state_dict(self) -> dict[str, Any]:
        """This host's own part: what has changed since the last exchange, and the optimizer's state."""
        return {
            "hosts": [list(ranks) for ranks in self._layout.hosts],
            "steps": self.steps,
            "exchanges": self.exchanges,
            "exact": [one.detach().clone() for one in self._exact],
            "speed": [one.detach().clone() for one in self._speed],
            "own": [one.detach().clone() for one in self._parameters],
            "buffers": [one.detach().clone() for one in self._inner.buffers()],
            "optimizer": self._optimizer.state_dict(),
            "lost": self._few.lost.clone() if self._few is not None else None,
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on there, once `outer` has its own state: exactly with the same hosts, else from the last exchange.

        Raises:
            ValueError: it is the state of another model.
        """
        if [one.shape for one in state["own"]] != [one.shape for one in self._parameters]:
            raise ValueError("it is the state of another model: other shapes of parameters")
        for mine, saved in zip((*self._exact, *self._speed), (*state["exact"], *state["speed"]), strict=True):
            mine.copy_(saved)
        self.exchanges = int(state["exchanges"])
        self._follow()
        if state["hosts"] != [list(ranks) for ranks in self._layout.hosts]:
            self.steps = self.exchanges * self._every
            if self._rank == 0:
                tell(f"local steps: the hosts are others: going on from step {self.steps}, the last one they agreed on")
            return
        self.steps = int(state["steps"])
        for own, saved in zip(self._parameters, state["own"], strict=True):
            own.copy_(saved)
        for own, saved in zip(self._inner.buffers(), state["buffers"], strict=True):
            own.copy_(saved)
        self._optimizer.load_state_dict(state["optimizer"])
        if self._few is not None and state.get("lost") is not None:
            self._few.lost.copy_(state["lost"])


def host_group(hosts: Sequence[int] | None = None) -> Any:
    """A process group of the ranks on this rank's host. Collective.

    Args:
        hosts: for each rank of the job the number of its host; by default ranks find that out.
    """
    return _own_group(found_layout(hosts))


def _own_group(layout: HostLayout) -> Any:
    """This rank's host's group; those of all hosts are made by all ranks, in the same order."""
    groups = [dist.new_group(list(ranks)) for ranks in layout.hosts]
    return groups[layout.hosts.index(layout.neighbours(dist.get_rank()))]
