"""Exchanges of hosts that come and go, each with a model for those that are new."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from trainshed.base.voice import tell

from .agreed_model import AgreedModel
from .between_hosts import Given, LocalStepsError, Taken, across
from .fragments import nothing_lost
from .host_lines import Line, Stages
from .members import Members
from .rendezvous import EXCHANGE, JOIN, Meeting


@dataclass(frozen=True)
class Standing:
    """How far a host is.

    steps, exchanges: made. agreed: after which step the last exchange was.
    token: of the meeting whose model it has, "": none.
    lost: what rounding keeps back, float32 [n], or None.
    """

    steps: int
    exchanges: int
    agreed: int
    token: str
    lost: torch.Tensor | None


class ComingAndGoing:
    """Those of a model, in place of `Fragments`: all of it at once.

    Args:
        every: steps between exchanges.
        bits: of a number.
        settings: others that hosts must have alike.
    """

    def __init__(self, members: Members, model: AgreedModel, every: int, bits: int, *settings: float) -> None:
        self._members, self._model, self._every, self._bits = members, model, every, bits
        self._plan = plan_of(model, every, bits, *settings)
        self._at = Standing(0, 0, 0, "", nothing_lost(model, 0, bits))
        self.joined = False

    @property
    def agreed(self) -> int:
        """The step after which the last exchange was."""
        return self._at.agreed

    @property
    def exchanges(self) -> int:
        """Those made."""
        return self._at.exchanges

    @property
    def sent(self) -> int:
        """Bytes that this host has given to others."""
        return self._members.sent

    def join(self, steps: int) -> int:
        """Begins with the other hosts, or gets their model, once; how many steps that is. Raises LocalStepsError."""
        steps = self._meet(steps, joins=True)
        self.joined = True
        return steps

    def stepped(self, steps: int) -> int:
        """After a step of the optimizer; how many that makes. Raises LocalStepsError."""
        if not self.joined:
            raise LocalStepsError("call join() before the first step: it meets the other hosts")
        return steps if steps % self._every else self._meet(steps, joins=False)

    def finish(self, steps: int) -> None:
        """Exchanges what the last steps have changed, and leaves. Raises LocalStepsError."""
        if steps > self._at.agreed:
            self._meet(steps, joins=False)
        self._members.leave()

    def state(self) -> dict[str, Any]:
        """This host's part of a checkpoint."""
        at = self._at
        lost = [at.lost.clone() if at.lost is not None else None]
        return {"exchanges": at.exchanges, "agreed": at.agreed, "token": at.token, "lost": lost}

    def load(self, state: Mapping[str, Any], same: bool) -> None:
        """Goes on there."""
        lost = nothing_lost(self._model, 0, self._bits)
        if same and lost is not None and state["lost"][0] is not None:
            lost.copy_(state["lost"][0])
        self._at = Standing(self._at.steps, int(state["exchanges"]), int(state["agreed"]), state.get("token", ""), lost)

    def _meet(self, steps: int, joins: bool) -> int:
        at = replace(self._at, steps=steps)
        self._at = met(self._members, self._model, self._bits, self._plan, at, joins)
        return self._at.steps


def plan_of(model: AgreedModel, *settings: float) -> str:
    """A digest of what hosts exchange: alike for the same tensors and settings."""
    tensors = [(tuple(one.shape), str(one.dtype)) for one in model.tensors()]
    return hashlib.sha256(repr((tensors, settings)).encode()).hexdigest()[:16]


def met(members: Members, model: AgreedModel, bits: int, plan: str, at: Standing, joins: bool) -> Standing:
    """Meets the other hosts, exchanges or begins with them; where this host stands then.

    Args:
        joins: this host begins, or comes to a job that runs; it brings no steps of its own.

    Raises:
        LocalStepsError: this host's model is not finite, or has other parameters to train, and the others go on without it;
            or `Members.agree` says why.
    """
    try:
        change = model.change(0)
    except LocalStepsError:
        members.leave(failed=True)
        raise
    if not joins and not bool(torch.isfinite(change).all()):
        members.leave(failed=True)
        raise LocalStepsError(
            f"this host's model has values that are not finite after step {at.steps}: the others go on without it; "
            f"the last model that it has agreed on is that of step {at.agreed}"
        )

    def work(line: Line, meeting: Meeting) -> Stages[tuple[list[torch.Tensor], Taken | None]]:
        got: list[torch.Tensor] = []
        if meeting.newcomers:
            counted = torch.tensor([at.exchanges, at.agreed], dtype=torch.int64)
            got = yield from line.spread([*model.tensors(), counted], meeting.source)
        if not meeting.givers:
            return got, None
        gives = line.host in meeting.givers
        lost = at.lost if gives or at.lost is None else torch.zeros_like(at.lost)
        own = change if gives else torch.zeros_like(change)
        buffers = [one.detach().clone() for one in model.buffers()]
        given = Given(at.exchanges, at.steps, at.agreed, own, lost, buffers, model.changed_buffers())
        return got, (yield from across(line, given, bits, meeting.names, meeting.givers))

    why = JOIN if joins else EXCHANGE
    meeting, (got, taken) = members.agree(why, at.exchanges, at.steps, at.token, plan, work)
    steps, exchanges, agreed, lost = at.steps, at.exchanges, at.agreed, at.lost
    new = meeting.ids.index(members.id) in meeting.newcomers
    if new:
        model.take(got[:-1])
        model.follow_all()
        exchanges, agreed = got[-1].tolist()
        lost = torch.zeros_like(lost) if lost is not None else None
    if taken is not None:
        model.step(0, taken.change)
        model.take_buffers(taken.buffers, follow=True)
        model.follow(0, 0)
        agreed, exchanges = meeting.hosts[meeting.source].step, exchanges + 1
        lost = taken.lost
    if new or taken is not None:
        if new and at.steps > 0:
            tell(
                f"local steps: this host was at step {at.steps} without the others: it goes on from step {agreed} with "
                f"their model; its own steps since step {at.agreed} are left out"
            )
        steps = agreed
    return Standing(steps, exchanges, agreed, meeting.token, lost)
