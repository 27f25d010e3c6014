"""The one rule about hopeless restarts: a job that keeps failing without a newer checkpoint is broken, not unlucky.

`train` applies it to the restarts in place (`restarts`, `shared_restarts`), and torch's elastic agent to its own
(`launchers.elastic`); docs/restarts.md says who restarts what.
"""

from __future__ import annotations

import os

from trainshed.base.record import Record

WITHOUT_PROGRESS = 3  # failures in a row


class Progress(Record):
    """The failures and checkpoints of a job, and what they say about its chances.

    newest: the highest step of a checkpoint so far, -1 for none.
    failures: how many in a row came without a newer checkpoint.
    """

    newest: int = -1
    failures: int = 0

    def after_failure(self, newest: int) -> Progress:
        """The progress after one more failure, at which `newest` was the highest step (-1 for none)."""
        return self.after(newest, newest > self.newest)

    def after(self, newest: int, progressed: bool) -> Progress:
        """The same where it is known whether the ranks have saved a newer one, as each of several hosts does of its own."""
        return Progress(max(newest, self.newest), 0 if progressed else self.failures + 1)

    @property
    def refusal(self) -> str:
        """Why the job must not be restarted, "" if it may be."""
        if self.failures < WITHOUT_PROGRESS:
            return ""
        return f"not restarted: {self.failures} failures in a row without a newer checkpoint"


def newest_step(*folders: str) -> int:
    """The highest step in the names of checkpoints (`step-12`, `checkpoint-12`, `model_12.pt` ...); -1 for none."""
    return max(newest_checkpoint(folder)[0] for folder in folders)


def newest_checkpoint(folder: str) -> tuple[int, float]:
    """The same with when it was last written to, in seconds since 1970; 0 for none."""
    try:
        names = [name for name in os.listdir(folder) if not name.startswith(".")]
    except OSError:
        return -1, 0.0
    if not names:
        return -1, 0.0
    import re

    numbered = [(int(digits[-1]), name) for name in names if (digits := re.findall(r"\d+", name))]
    step, name = max(numbered, default=(-1, ""))
    try:
        return step, os.stat(f"{folder}/{name}").st_mtime if name else 0.0
    except OSError:
        return step, 0.0


def resumption(step: int) -> str:
    """Says where a restart begins, for the user: `resuming from step 12`, or `from the beginning` for -1."""
    return f"resuming from step {step}" if step >= 0 else "from the beginning"
