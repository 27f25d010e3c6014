"""Notes what data this host has before the script can change it: a fingerprint of each channel, for the run record."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from trainshed.contract.config import Channel
    from trainshed.contract.job import TrainingJob

LONGEST = 10.0  # seconds that a start may wait for fingerprints that nobody asked for


def data_seen(job: TrainingJob, say: Callable[[str], None]) -> dict[str, dict[str, Any]]:
    """The fingerprints by channel; {} where the job wants none. What the runner has handed over is taken from there."""
    if not job.channels or job.settings.fingerprint == "off":
        return {}
    from trainshed.contract.wire.fingerprints import handed_over

    known = handed_over(job.paths.config)
    end = None if job.settings.fingerprint == "whole" else time.monotonic() + LONGEST
    return {one.name: known.get(one.name) or _fingerprint(one, job.settings.fingerprint, end, say) for one in job.channels}


def _fingerprint(channel: Channel, method: str, end: float | None, say: Callable[[str], None]) -> dict[str, Any]:
    """end: when it must be there, in seconds of the monotonic clock; None for no limit."""
    from trainshed.machine.fingerprint import INCOMPLETE, LISTED, Fingerprint, of_folder, to_plain

    if channel.input_mode == "Pipe":
        return to_plain(Fingerprint(notes=("no fingerprint: what comes through a pipe is known to who writes it",)))
    if channel.input_mode == "FastFile":
        found = of_folder(channel.path, LISTED, LONGEST if end is None else _left(end))
        found = found.replace(notes=(*found.notes, "FastFile: contents are not fetched for this"))
    else:
        if end is None:
            say(f"hashing all files of the channel {channel.name}, as trainshed_fingerprint asks for")
        found = of_folder(channel.path, method, None if end is None else _left(end))
    if found.method in ("", INCOMPLETE):
        say(f"warning: the channel {channel.name}: {found.notes[0]}; the run record cannot say for sure what data this was")
    return to_plain(found)


def _left(end: float) -> float:
    return end - time.monotonic()
