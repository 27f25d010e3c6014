"""For a run that makes another one again: whether each channel has the very data that the other run saw."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trainshed.base.errors import ProgramError
from trainshed.machine.fingerprint import LISTED, PART, SAMPLED, WHOLE, of_folder

from .run import Run

_METHODS = {WHOLE: WHOLE, SAMPLED: SAMPLED, PART: SAMPLED, LISTED: LISTED}


def check_data(run: Run, say: Callable[[str], None], *, staged: bool = True) -> None:
    """Compares fingerprints of the channels, where they are before the hosts start, with those that the job expects.

    Args:
        say: told of channels that cannot be compared.
        staged: whether also those that are fetched or put together for the run; they must be there.

    Raises:
        ProgramError: a channel has other data.
    """
    wrong = list(_wrong(run, say, staged))
    if wrong:
        raise ProgramError(
            "; ".join(wrong),
            hint="put the data back as it was, or take what is there now: --other-data",
        )


def _wrong(run: Run, say: Callable[[str], None], staged: bool) -> Iterator[str]:
    waiting = {channel.name for channel in run.job.channels if channel.staged and not staged}
    for name, expected in run.job.expect_data.items():
        if name in waiting:
            continue
        method = expected[0].partition(":")[0]
        if method not in _METHODS:
            say(f"note: the data of the channel {name} cannot be compared: its fingerprint is by {method}")
            continue
        found = {}
        for host in run.hosts:
            for channel in run.job.channels_of(host.name):
                if channel.name == name and (place := run.data(host, channel)) not in found:
                    found[place] = of_folder(place, _METHODS[method]).digest
        if not found:
            yield f"the job has no channel {name} any more"
        for place, digest in found.items():
            if digest not in expected:
                yield f"the channel {name} has other data than then: {place} is {digest}, was {' or '.join(expected)}"
