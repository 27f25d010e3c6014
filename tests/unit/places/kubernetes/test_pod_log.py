"""Where a log is read on from: nothing is lost, nothing comes twice."""

from __future__ import annotations

import random

import pytest

from trainshed.places.kubernetes.pod_log import Mark, Position, split


def line(nanos: int, text: str) -> bytes:
    return f"2026-11-23T20:39:{nanos // 10**9:02d}.{nanos % 10**9:09d}Z {text}\n".encode()


@pytest.mark.parametrize("seed", range(5))
def test_reading_on_after_a_cut_anywhere(seed: int) -> None:
    """Times that repeat and that are a little out of order; the node sends the lines since a whole second again."""
    dice = random.Random(seed)
    moments = [dice.randrange(12 * 10) * 10**8 for _ in range(200)]
    moments = [max(0, moment) for moment in sorted(moments)]
    for _ in range(40):
        at = dice.randrange(len(moments) - 1)
        moments[at], moments[at + 1] = moments[at + 1], moments[at]
    log = [line(moment, str(number)) for number, moment in enumerate(moments)]
    read, mark, position = b"", Mark(), 0
    while position < len(log):
        reader = Position(mark)
        again = [one for one in log if (split(one)[0] or 0) >= mark.since * 10**9]
        known = len(again) - (len(log) - position)
        assert known >= 0
        upto = dice.randrange(len(again) + 1)
        read += reader.new(again[: upto // 2]) + reader.new(again[upto // 2 : upto])
        mark = reader.mark
        position = read.count(b"\n")
    assert sorted(read.split()) == sorted(str(number).encode() for number in range(200))


def test_lines_as_nodes_send_them() -> None:
    assert split(b"2026-11-23T20:39:05.5Z a b\n") == split(b"2026-11-23T21:39:05.5+01:00 a b\n")
    time, text = split(b"2026-11-23T20:39:05Z \n")
    assert time is not None and time % 10**9 == 0 and text == b"\n"
    for other in (
        b"unable to retrieve container logs for containerd://x\n",
        b"\n",
        b"2026 is a year\n",
        b"2026-11-23Tx:y:zz.0Z a\n",
    ):
        assert split(other) == (None, other)
