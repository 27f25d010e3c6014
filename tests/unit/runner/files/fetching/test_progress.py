"""The line that says how far fetching is."""

from __future__ import annotations

import pytest

from trainshed.runner.files.fetching import progress
from trainshed.runner.files.fetching.progress import TransferProgress


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_bytes_files_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    shown = TransferProgress("the channel train", 3, 10_000_000)
    assert shown.line() == "the channel train: 0 B of 10.0 MB · 0 of 3 files"
    shown.came(4_000_000, here=True)  # was kept: it has no part in the rate
    shown.came(2_000_000)
    shown.finish()
    clock.now = 2.0
    assert shown.line() == "the channel train: 6.0 MB of 10.0 MB · 1 of 3 files · 1.0 MB/s · 4 s left"
    shown.note("s3://b/x: SlowDown")
    assert shown.line().endswith(" · trying again: s3://b/x: SlowDown")
    for clock.now in range(3, 30):
        shown.line()
    assert shown.line() == "the channel train: 6.0 MB of 10.0 MB · 1 of 3 files · trying again: s3://b/x: SlowDown"
    shown.came(1)
    assert "trying again" not in shown.line()


def test_unknown_sizes_have_no_end() -> None:
    shown = TransferProgress("x", 1, -1)
    shown.came(5)
    assert shown.line().startswith("x: 5 B") and "left" not in shown.line() and "of" not in shown.line()
