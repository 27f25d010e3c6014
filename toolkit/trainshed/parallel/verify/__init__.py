"""Whether a script that is parallel by torch's own means trains as one process does.

    from trainshed.parallel import verify

    verify.watch(steps=3)

`trainshed verify` does the same for a script that has no line of ours (docs/verify.md).

Each module knows those above it:

    evidence        what is written down of a few steps
    global_batch    batches of all ranks, for the one process
    padding         whether a loss has counted some
    script_hooks    sees a script's steps, and writes them down
    surroundings    torch's functions that are looked at meanwhile
    agreement       what differs
    likely_causes   why, by facts
    judgement       in words
    play            starts the ranks and the one process
    rank            the program of each of them
"""

from __future__ import annotations

__all__ = ["watch"]


def watch(steps: int = 3) -> None:
    """Verifies the first steps of this script, which runs as several ranks. Call it on all ranks, before the model is made.

    After so many steps of the optimizer rank 0 runs the script once more as one process, with the same weights and the
    batches of all ranks, and prints whether the two agree. The training then goes on. Dropout is left out in these steps.
    """
    from .play import watch_here

    watch_here(steps)
