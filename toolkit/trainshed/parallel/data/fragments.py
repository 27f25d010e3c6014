"""Exchanges of hosts that stay: a model's fragments are sent off in turn, are on their way beside steps, and are applied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .agreed_model import AgreedModel
from .between_hosts import Given, Taken, across, alone, inside
from .host_layout import HostLayout
from .host_lines import Flight, Line
from .quantize import BITS


@dataclass(frozen=True)
class _Sent:
    """A fragment's exchange that is not applied yet: sent after step `at`, applied after step `due`."""

    fragment: int
    at: int
    due: int
    flight: Flight[Taken]


class Fragments:
    """Those of a model, among the hosts of a process group. Collective.

    Args:
        layout, rank: of the process group.
        every: steps after which each fragment is sent off again.
        overlap: steps that go on meanwhile.
        bits: of a number.
        mix: the part of a host's own values that stays.
        timeout: seconds to wait for a host.

    Attributes:
        agreed: the step after which the last exchange was sent that is applied.
        exchanges: those applied.
    """

    def __init__(
        self,
        model: AgreedModel,
        layout: HostLayout,
        rank: int,
        *,
        every: int,
        overlap: int,
        bits: int,
        mix: float,
        timeout: float,
    ) -> None:
        self._model, self._layout, self._rank = model, layout, rank
        self._every, self._overlap, self._bits, self._mix, self._timeout = every, overlap, bits, mix, timeout
        # Fragments on their way do not share a group: its messages are told apart by their order.
        made = [_groups(layout, rank, timeout) for _ in model.pieces]
        self._lines, self._insides = [line for line, _ in made], [group for _, group in made]
        self.agreed = self.exchanges = 0
        self._begin_from(0)

    @property
    def sent(self) -> int:
        """Bytes that this host has given to others."""
        return sum(line.sent for line in self._lines if line is not None)

    @property
    def away(self) -> int:
        """Fragments on their way."""
        return len(self._sent)

    def stepped(self, steps: int) -> int:
        """After a step of the optimizer; how many that makes. Raises LocalStepsError."""
        for sent in self._sent:
            if sent.due > steps:
                sent.flight.advance()
        self._apply([sent for sent in self._sent if sent.due <= steps], steps, self._mix)
        fragments = len(self._lines)
        for fragment in range(fragments):
            # The last one after each `every` steps, the others spread over the time between.
            if (steps - (fragment + 1) * self._every // fragments) % self._every == 0:
                self._send(fragment, steps)
        self._apply([sent for sent in self._sent if sent.due <= steps], steps, self._mix)
        return steps

    def finish(self, steps: int) -> None:
        """Exchanges what the last steps have changed. Raises LocalStepsError."""
        self._apply([sent for sent in self._sent if sent.at < steps], steps, self._mix)
        for fragment in [fragment for fragment, at in enumerate(self._sent_at) if at < steps]:
            self._send(fragment, steps)
        self._apply(list(self._sent), steps, 0.0)

    # --- checkpoints ---

    def state(self) -> dict[str, Any]:
        """This host's part. Waits for fragments on their way. Raises LocalStepsError."""
        arrived = [(sent, sent.flight.land()) for sent in self._sent]
        return {
            "exchanges": self.exchanges,
            "agreed": self.agreed,
            "sent_at": list(self._sent_at),
            "arrived": [
                {
                    **{"fragment": sent.fragment, "at": sent.at, "due": sent.due},
                    **{"change": taken.change, "lost": taken.lost, "buffers": list(taken.buffers)},
                }
                for sent, taken in arrived
            ],
            "lost": [one.clone() if one is not None else None for one in self._lost],
        }

    def load(self, state: Mapping[str, Any], same: bool) -> None:
        """Goes on there: as if nothing had been between if hosts and fragments are the same, else from the last exchange."""
        self.exchanges, self.agreed = int(state["exchanges"]), int(state["agreed"])
        self._begin_from(self.agreed)
        if not same:
            return
        self._sent_at = [int(at) for at in state["sent_at"]]
        for held, saved in zip(self._lost, state["lost"], strict=True):
            if held is not None and saved is not None:
                held.copy_(saved)
        for one in state["arrived"]:
            taken = Taken(one["change"], one["lost"], one["buffers"])
            self._sent.append(_Sent(int(one["fragment"]), int(one["at"]), int(one["due"]), Flight.landed_with(taken)))

    # --- one exchange ---

    def _begin_from(self, step: int) -> None:
        self._sent: list[_Sent] = []  # in the order of sending
        self._sent_at = [step] * len(self._lines)
        self._lost = [
            nothing_lost(self._model, fragment, self._bits) if line is not None else None
            for fragment, line in enumerate(self._lines)
        ]

    def _send(self, fragment: int, steps: int) -> None:
        """Begins to exchange it."""
        last = fragment == len(self._lines) - 1
        given = Given(
            exchange=self.exchanges + len(self._sent),
            step=steps,
            agreed=self.agreed,
            change=self._model.change(fragment),
            lost=self._lost[fragment],
            buffers=[one.detach().clone() for one in self._model.buffers()] if last else (),
            changed=self._model.changed_buffers() if last else (),
        )
        line, group = self._lines[fragment], self._insides[fragment]
        leads = self._rank == self._layout.neighbours(self._rank)[0]
        between = None if not leads else across(line, given, self._bits) if line is not None else alone(given)
        broken = (
            f"the exchange after step {steps} was not completed: {self._others()} has ended, or did not answer for "
            f"{self._timeout:g} s; the last model that the hosts agreed on is that of step {self.agreed}"
        )
        flight = Flight(inside(group, between, given, broken))
        self._sent_at[fragment] = steps
        self._sent.append(_Sent(fragment, steps, steps + self._overlap, flight))

    def _apply(self, due: Sequence[_Sent], steps: int, mix: float) -> None:
        """Waits for what was sent, and goes on from it."""
        for sent in due:
            taken = sent.flight.land()
            if taken.lost is not None:
                self._lost[sent.fragment] = taken.lost
            self._model.step(sent.fragment, taken.change)
            if taken.buffers:
                self._model.take_buffers(taken.buffers, follow=sent.at == steps)
            self._model.follow(sent.fragment, mix)
            self.agreed = sent.at
            self.exchanges += 1
            self._sent.remove(sent)

    def _others(self) -> str:
        """For messages: whom this host waits for."""
        host = self._layout.hosts.index(self._layout.neighbours(self._rank))
        return f"host {1 - host}" if len(self._layout.hosts) == 2 else "another host"


def nothing_lost(model: AgreedModel, fragment: int, bits: int) -> torch.Tensor | None:
    """Returns what rounding has kept back of a fragment before its first exchange; None where numbers are not rounded."""
    return torch.zeros(model.size(fragment), device=model.own[0].device) if bits in BITS else None


def own_group(layout: HostLayout, **options: Any) -> Any:
    """This rank's host's group; those of all hosts are made by all ranks, in the same order."""
    groups = [dist.new_group(list(ranks), **options) for ranks in layout.hosts]
    return groups[layout.hosts.index(layout.neighbours(dist.get_rank()))]


def _groups(layout: HostLayout, rank: int, timeout: float) -> tuple[Line | None, Any]:
    """What hosts' first ranks exchange over, None on others and if there is one host; and this host's group, None if
    each has a single rank. Collective."""
    within = timedelta(seconds=timeout)
    leaders = dist.new_group([ranks[0] for ranks in layout.hosts], timeout=within, backend="gloo")
    inside = own_group(layout, timeout=within, backend="gloo") if layout.shared else None
    host = layout.hosts.index(layout.neighbours(rank))
    leads = rank == layout.hosts[host][0] and len(layout.hosts) > 1
    return Line(leaders, host, len(layout.hosts)) if leads else None, inside
