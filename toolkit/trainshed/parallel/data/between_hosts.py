"""One exchange: hosts compare where they are, sum what has changed, and average buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .host_lines import Line, Stages, broadcast
from .quantize import BITS, rounded_sum

_TEXT = 1000  # bytes of what a host's first rank tells the others of an error


class LocalStepsError(RuntimeError):
    """The hosts cannot agree on a model; the message says why. All ranks raise it."""


@dataclass(frozen=True)
class Given:
    """The part that a host brings to an exchange.

    exchange, step: which one, and after which step: alike on all hosts. agreed: the step of the last one before.
    change: float32 [n].
    lost: float32 [n], what rounding has kept back before; None where numbers are not rounded.
    buffers: those of the model, [] if they are not part of this exchange; changed: which are not the agreed ones.
    """

    exchange: int
    step: int
    agreed: int
    change: torch.Tensor
    lost: torch.Tensor | None
    buffers: Sequence[torch.Tensor] = ()
    changed: Sequence[bool] = ()


@dataclass(frozen=True)
class Taken:
    """The result of an exchange.

    change: the mean over hosts, float32 [n]. lost: what rounding keeps back now. buffers: agreed ones, None: unchanged.
    """

    change: torch.Tensor
    lost: torch.Tensor | None
    buffers: Sequence[torch.Tensor | None]


def across(
    line: Line, given: Given, bits: int, names: Sequence[str] | None = None, givers: Sequence[int] | None = None
) -> Stages[Taken]:
    """An exchange among hosts' first ranks.

    Args:
        bits: of a number.
        names: of the hosts, for messages; numbers by default.
        givers: the hosts of the line that have something to give; the others bring zeros. By default all.

    Raises:
        LocalStepsError: a host's model is not finite, or hosts are not at the same step.
    """
    bad = not bool(torch.isfinite(given.change).all())
    mine = [float(given.exchange), float(given.step), float(bad), *map(float, given.changed)]
    told = yield from line.gathered(torch.tensor(mine, dtype=torch.float64))
    givers = range(line.hosts) if givers is None else givers
    names = [str(host) for host in range(line.hosts)] if names is None else names
    facts = {host: told[host].tolist() for host in givers}
    first = givers[0]
    unlike = next((host for host in givers if facts[host][:2] != facts[first][:2]), None)
    if unlike is not None:
        raise LocalStepsError(
            f"hosts have made unequally many steps: host {names[first]} {facts[first][1]:.0f}, host {names[unlike]} "
            f"{facts[unlike][1]:.0f}; give each as many batches, and let no host leave out steps of the optimizer "
            "(GradScaler does)"
        )
    wrong = [names[host] for host in givers if facts[host][2]]
    if wrong:
        raise LocalStepsError(
            f"the model of host {', '.join(wrong)} has values that are not finite after step {given.step}: "
            f"nothing was exchanged; the last model that the hosts agreed on is that of step {given.agreed}"
        )
    if bits in BITS and given.lost is not None:
        change, lost = yield from rounded_sum(line, given.change, given.lost, bits)
    else:
        change, lost = (yield from line.summed(given.change)), None
    agreed: list[torch.Tensor | None] = [None] * len(given.buffers)
    for at, own in enumerate(given.buffers):
        if not any(facts[host][3 + at] for host in givers):
            continue
        if own.is_floating_point():  # the mean; others, like counters, are those of the first host
            mine_there = own if line.host in givers else torch.zeros_like(own)
            agreed[at] = (yield from line.summed(mine_there)).div_(len(givers))
        else:
            (agreed[at],) = yield from line.spread([own], first)
    return Taken(change / len(givers), lost, agreed)


def alone(given: Given) -> Stages[Taken]:
    """An exchange of a single host: with itself."""
    if not bool(torch.isfinite(given.change).all()):
        raise LocalStepsError(
            f"the model has values that are not finite after step {given.step}: the last one exchanged is that of step "
            f"{given.agreed}"
        )
    changed = zip(given.buffers, given.changed, strict=True)
    return Taken(given.change, given.lost, [one.clone() if new else None for one, new in changed])
    yield  # a generator, as its like is


def inside(group: Any, stages: Stages[Taken] | None, given: Given, lost_host: str) -> Stages[Taken]:
    """Gives what came of an exchange to all ranks of a host; an error, too.

    Args:
        group: of the host's ranks, the first of which has `stages`; the others have None.
        lost_host: what to say where the exchange breaks off.
    """
    taken, text = None, ""
    if stages is not None:
        try:
            taken = yield from stages
        except LocalStepsError as error:
            text = str(error)
        except RuntimeError as error:
            text = f"{lost_host} ({str(error).splitlines()[0][:300]})"
    if group is None:
        if taken is None:
            raise LocalStepsError(text)
        return taken
    head = torch.zeros(_TEXT + len(given.buffers), dtype=torch.uint8)
    if text:
        said = text.encode()[:_TEXT]
        head[: len(said)] = torch.frombuffer(bytearray(said), dtype=torch.uint8)
    if taken is not None:
        head[_TEXT:] = torch.tensor([one is not None for one in taken.buffers], dtype=torch.uint8)
    change = taken.change.cpu() if taken is not None else torch.empty(given.change.shape)
    try:
        yield [broadcast(group, head, 0)]
        text = bytes(head[:_TEXT].tolist()).rstrip(b"\0").decode(errors="replace")
        if not text:
            agreed: list[torch.Tensor | None] = [None] * len(given.buffers)
            works = [broadcast(group, change, 0)]
            for at, own in enumerate(given.buffers):
                if head[_TEXT + at]:
                    value = taken.buffers[at] if taken is not None else None
                    agreed[at] = held = (own if value is None else value).to("cpu", copy=True).contiguous()
                    works.append(broadcast(group, held, 0))
            yield works
    except RuntimeError as error:
        text = f"{lost_host}, or a rank of this host has ended ({str(error).splitlines()[0][:300]})"
    if text:
        raise LocalStepsError(text)
    return Taken(change.to(given.change.device), taken.lost if taken is not None else None, agreed)
