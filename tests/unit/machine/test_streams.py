"""From a pipe to the console and the log: lines stay whole, bytes stay bytes, memory stays bounded."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.offenders import check_each
from support.properties import given, st
from trainshed.machine.streams import LONGEST_LINE, READ_BYTES, TAIL_BYTES, Console, LogFile, RankPipe


def outputs() -> Any:
    """Bytes as scripts print them: text of all widths, line ends, and now and then something that is no UTF-8."""
    text = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=20).map(str.encode)
    parts = st.lists(st.one_of(text, st.binary(max_size=4), st.just(b"\n")), max_size=30)
    return parts.map(lambda parts: b"".join(parts).replace(b"\r", b""))


class Screen(Console):
    """A console that only remembers."""

    def __init__(self) -> None:
        super().__init__(-1)
        self.seen = bytearray()

    def put(self, data: bytes) -> None:
        self.seen += data


class Pipe:
    """A stream with its writing end in our hands, its console in memory and its log in a pipe of its own."""

    def __init__(self, label: str = "", log: str = "", hidden: tuple[bytes, ...] = ()) -> None:
        read, self.write_fd = os.pipe()
        os.set_blocking(read, False)
        self.screen, self.log = Screen(), LogFile(log)
        self.stream = RankPipe(read, self.screen, self.log, label, hidden=hidden)

    def print(self, *blocks: bytes, now: float = 0.0) -> None:
        """Writes each block and lets the stream read it."""
        for block in blocks:
            rest = memoryview(block)
            while rest:
                rest = rest[os.write(self.write_fd, rest[:4096]) :]
                self.stream.read(now)

    def end(self) -> bytes:
        """Closes both ends; what the console has got."""
        os.close(self.write_fd)
        while self.stream.read(0.0):
            pass
        self.stream.close()
        self.log.close()
        return bytes(self.screen.seen)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "logs/rank0.log"


@given(lambda: (outputs(), st.lists(st.integers(0, 200), max_size=8)))
def test_wherever_the_reads_fall_the_console_shows_the_same_valid_lines(output: bytes, cuts: list[int]) -> None:
    edges = sorted({0, len(output), *(cut for cut in cuts if cut < len(output))})
    pipe = Pipe("algo-1:3")
    pipe.print(*(output[start:end] for start, end in itertools.pairwise(edges)))
    shown = pipe.end().decode()  # valid UTF-8, whatever came
    lines = output.split(b"\n")
    lines = lines[:-1] if lines[-1] == b"" else lines
    assert shown == "".join(f"[algo-1:3] {line.decode('utf-8', 'backslashreplace')}\n" for line in lines)


def test_the_log_holds_every_byte_in_its_order(log: Path) -> None:
    blocks = [b"caf\xe9 \xc3", b"\xa9\n", b"10%\r20%\r", b"30%\r", b"done\nno end"]
    pipe = Pipe("algo-1:0", log=str(log))
    pipe.print(*blocks)
    pipe.end()
    assert log.read_bytes() == b"".join(blocks)


def test_a_line_is_shown_only_when_it_is_whole() -> None:
    pipe = Pipe()
    pipe.print(b"loss=0.", b"25")
    assert pipe.screen.seen == b""
    pipe.print(b"3\nloss")
    assert pipe.screen.seen == b"loss=0.253\n"
    assert pipe.end() == b"loss=0.253\nloss\n"


def test_indentation_empty_lines_and_windows_line_ends_survive() -> None:
    pipe = Pipe()
    pipe.print(b"  two\n\n\tone\r\nlast\r\n\n")
    assert pipe.end() == b"  two\n\n\tone\nlast\n\n"


def test_a_line_longer_than_the_limit_comes_in_pieces_of_whole_characters(log: Path) -> None:
    text = "a" + "\u00e9\u20ac\U0001f600" * (LONGEST_LINE // 4)
    pipe = Pipe(log=str(log))
    pipe.print(text.encode() + b"\n")
    pieces = pipe.end().decode().split("\n")
    assert "".join(pieces) == text
    assert len(pieces) > 2
    assert max(len(piece.encode()) for piece in pieces) <= LONGEST_LINE + READ_BYTES
    assert log.read_bytes() == text.encode() + b"\n"


def test_endless_bytes_that_are_no_text_and_no_line_are_passed_on_too() -> None:
    pipe = Pipe()
    pipe.print(b"\xbf" * (LONGEST_LINE + READ_BYTES))
    assert pipe.end().replace(b"\n", b"") == rb"\xbf" * (LONGEST_LINE + READ_BYTES)


@pytest.mark.parametrize("before", [b"", b"x" * 50, b"x" * (TAIL_BYTES + 7)])
def test_only_the_end_of_what_was_printed_is_kept_in_memory(before: bytes) -> None:
    pipe = Pipe()
    pipe.print(before, *(b"%06d" % n * 1000 for n in range(100)))
    everything = before + b"".join(b"%06d" % n * 1000 for n in range(100))
    assert pipe.stream.last_bytes() == everything[-TAIL_BYTES:]
    assert len(pipe.stream.tail) <= 4 * TAIL_BYTES + READ_BYTES
    pipe.end()


def test_of_a_progress_bar_one_frame_a_second_is_shown() -> None:
    pipe = Pipe("algo-1:0")
    for step in range(100):
        pipe.print(b"\r%d/100 |##  |" % step, now=10.0 + step / 20)
    pipe.print(b"\r100/100 |####|\n", now=15.0)
    shown = pipe.end().decode().splitlines()
    assert 4 <= len(shown) <= 7
    assert shown[-1] == "[algo-1:0] 100/100 |####|"
    assert all(line.endswith("|") for line in shown)


def test_a_line_printed_into_a_progress_bar_is_shown_as_a_line() -> None:
    pipe = Pipe()
    pipe.print(b"\r10% |#   |", b"\r20% |##  |\nloss=0.5\n\r30% |### |")
    assert pipe.end() == b"20% |##  |\nloss=0.5\n30% |### |\n"


def test_a_progress_bar_that_wipes_itself_out_leaves_no_text_behind() -> None:
    pipe = Pipe()
    pipe.print(b"\r 99% |####|\r              \rsaved\n")
    assert pipe.end() == b"saved\n"


def test_a_traceback_is_noticed_wherever_the_reads_fall() -> None:
    header = b"Traceback (most recent call last):"

    def check(cut: int) -> None:
        pipe = Pipe()
        pipe.print(b"step 1\n", now=1.0)
        pipe.print(header[:cut], now=2.0)
        pipe.print(header[cut:] + b"\n", now=3.0)
        assert pipe.stream.traceback_at == 3.0
        pipe.end()

    check_each(range(1, 33), check)


def test_the_last_traceback_counts() -> None:
    pipe = Pipe()
    pipe.print(b"Traceback (most recent call last):\n", now=1.0)
    pipe.print(b"more\n", now=2.0)
    pipe.print(b"Traceback (most recent call last):\n", now=5.0)
    assert pipe.stream.traceback_at == 5.0
    pipe.end()


@pytest.mark.safety
def test_what_looks_like_a_secret_is_masked_on_the_screen_and_in_the_log(log: Path) -> None:
    pipe = Pipe("install", log=str(log))
    line = b"Looking in indexes: https://aws:s3cr3t@host/simple\n"
    pipe.print(line[:40], line[40:], b"Authorization: Bearer abc123def456\n", b"\xff token: hello\n")
    shown = b"Looking in indexes: https://******@host/simple\nAuthorization: Bearer ******\n"
    assert pipe.end() == b"[install] " + shown.replace(b"\nA", b"\n[install] A") + b"[install] \\xff token: hello\n"
    assert log.read_bytes() == shown + b"\xff token: hello\n"


def test_a_log_in_a_place_that_does_not_exist_and_cannot_be_made_is_reported_not_raised(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = LogFile(f"{tmp_path}/file/logs/rank0.log")
    log.write(b"lost")
    assert "no log file" in log.problem and "rank0.log" in log.problem


def test_a_log_on_a_full_disk_is_given_up_and_reported() -> None:
    log = LogFile("/dev/full")
    log.write(b"lost")
    log.write(b"lost again")
    assert log.problem == "log file /dev/full ends early: No space left on device"
    log.close()


def test_a_stream_that_is_closed_reads_nothing_and_closes_once() -> None:
    pipe = Pipe()
    pipe.end()
    assert pipe.stream.read(0.0) == 0
    pipe.stream.close()


# --- secrets ----------------------------------------------------------------------------------------------------------

SECRET = b"correct-horse-battery-staple"


@pytest.mark.safety
@given(
    lambda: (
        st.lists(st.sampled_from([SECRET, b"loss=1", b"\n", b"\r", b"\r\n", b"correct", b"x" * 300, b"\xff"]), max_size=12),
        st.lists(st.integers(0, 900), max_size=8),
    ),
)
def test_a_secret_is_masked_wherever_the_reads_cut_it(parts: list[bytes], cuts: list[int]) -> None:
    output = b"".join(parts)
    edges = sorted({0, len(output), *(cut for cut in cuts if cut < len(output))})
    pipe = Pipe("algo-1:3", hidden=(SECRET,))
    pipe.print(*(output[start:end] for start, end in itertools.pairwise(edges)))
    assert SECRET not in pipe.end()
    assert pipe.stream.last_bytes() == output.replace(SECRET, b"******")


@pytest.mark.safety
@pytest.mark.parametrize("before", [LONGEST_LINE - 9, LONGEST_LINE - 1, LONGEST_LINE - 12])
def test_a_secret_on_the_edge_of_a_piece_of_a_very_long_line_is_masked(log: Path, before: int) -> None:
    pipe = Pipe(log=str(log), hidden=(SECRET,))
    pipe.print(b"x" * before, SECRET[:12], SECRET[12:], b"y" * LONGEST_LINE, SECRET[:-1], b"\n")
    shown = pipe.end()
    assert log.read_bytes() == b"x" * before + b"******" + b"y" * LONGEST_LINE + SECRET[:-1] + b"\n"
    assert shown.replace(b"\n", b"") == log.read_bytes().replace(b"\n", b"")


@pytest.mark.safety
def test_a_secret_with_a_carriage_return_in_it_is_masked_in_a_progress_bar(log: Path) -> None:
    secret = b"abc\rdef\rghi"
    pipe = Pipe(log=str(log), hidden=(secret,))
    pipe.print(b"10%\r", b"abc\rd", b"ef\rghi", b"\r20%\r", b"end\n", now=5.0)
    assert b"abc" not in pipe.end() and b"def" not in pipe.screen.seen
    assert log.read_bytes() == b"10%\r******\r20%\rend\n"


@pytest.mark.safety
def test_the_tail_for_the_report_does_not_begin_inside_a_secret() -> None:
    for shift in range(0, len(SECRET) + 2, 3):
        pipe = Pipe(hidden=(SECRET,))
        pipe.print(b"z" * shift, (SECRET + b"\n") * (6 * TAIL_BYTES // len(SECRET)))
        assert not {*pipe.stream.last_bytes().split(b"\n")} - {b"******", b"*****", b"", b"*", b"**", b"***", b"****"}
        pipe.end()
