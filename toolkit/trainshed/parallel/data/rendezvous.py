"""Who takes part in an exchange of hosts that come and go: pure decisions on what hosts have said."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass

EXCHANGE, JOIN = "exchange", "join"


@dataclass(frozen=True)
class Present:
    """The message of a host that comes to a meeting.

    id: of the process, used once. name: for people. why: EXCHANGE or JOIN. exchange, step: how far it is.
    token: of the meeting whose model it has; hosts with the same one have the same. plan: of model and settings.
    """

    id: str
    name: str
    why: str
    exchange: int
    step: int
    token: str
    plan: str

    def line(self) -> str:
        """As it is told to the others."""
        return json.dumps(asdict(self)) + "\n"


@dataclass(frozen=True)
class Meeting:
    """A list of hosts that all have alike, by which they exchange.

    token: of this meeting. hosts: in the order of the process group.
    source: the host whose model counts. givers: those that have it too, and steps of their own to exchange; none when
    hosts begin. newcomers: those that get the model.
    """

    number: int
    token: str
    hosts: tuple[Present, ...]
    source: int
    givers: tuple[int, ...]
    newcomers: tuple[int, ...]

    @property
    def ids(self) -> list[str]:
        """Of the hosts."""
        return [one.id for one in self.hosts]

    @property
    def names(self) -> list[str]:
        """Of the hosts, for people."""
        return [one.name for one in self.hosts]

    def text(self) -> str:
        """As it is kept for all."""
        return json.dumps({"number": self.number, "token": self.token, "hosts": [asdict(one) for one in self.hosts]})


def read_here(text: str) -> list[Present]:
    """Those that have come, from the lines that they have written; of two lines of one host the later."""
    found = [Present(**json.loads(line)) for line in text.splitlines()]
    return list({one.id: one for one in found}.values())


def read_meeting(text: str, last: Collection[str]) -> Meeting:
    """The inverse of `Meeting.text`; `last` are the hosts of the last exchange."""
    kept = json.loads(text)
    return meeting_of(kept["number"], kept["token"], [Present(**one) for one in kept["hosts"]], last)


def meeting_of(number: int, token: str, here: Sequence[Present], last: Collection[str]) -> Meeting:
    """Who gives and who gets, the same for all that know the same."""
    hosts = tuple(sorted(here, key=lambda one: (one.name, one.id)))
    order = range(len(hosts))
    source = max(
        order, key=lambda at: (hosts[at].why == EXCHANGE, hosts[at].exchange, hosts[at].id in last, hosts[at].token, -at)
    )
    same = [at for at in order if hosts[at].token == hosts[source].token and (hosts[at].token or at == source)]
    givers = [at for at in same if hosts[at].why == EXCHANGE]
    kept = set(givers if givers else same)
    return Meeting(number, token, hosts, source, tuple(givers), tuple(at for at in order if at not in kept))


def may_begin(here: Sequence[Present], last: Collection[str], away: Collection[str], begin: int) -> bool:
    """Returns whether nobody has to be waited for.

    Args:
        last: the hosts of the last exchange; none before the first.
        away: hosts that are lost, or have left.
        begin: how many hosts begin together.
    """
    there = {one.id for one in here} - set(away)
    expected = set(last) - set(away)
    if expected:
        return expected <= there
    return len(there) >= begin or any(one.why == EXCHANGE for one in here if one.id in there)


def alike(here: Sequence[Present], last: Collection[str]) -> list[Present]:
    """Those with the model and settings of the host whose model counts: others cannot exchange with it."""
    source = meeting_of(0, "", here, last)
    return [one for one in here if one.plan == source.hosts[source.source].plan]
