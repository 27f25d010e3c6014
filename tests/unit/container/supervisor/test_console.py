"""Our own stdout and stderr: nobody who does not read them holds up the job."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainshed.machine.streams import Console, Terminal, same_file


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe's two ends, closed afterwards."""
    read, write = os.pipe()
    yield read, write
    for fd in (read, write):
        try:
            os.close(fd)
        except OSError:
            pass


def test_what_is_put_arrives_in_order(pipe: tuple[int, int]) -> None:
    read, write = pipe
    console = Console(write)
    for number in range(100):
        console.put(b"%d\n" % number)
    console.flush(False)
    assert os.read(read, 1 << 16) == b"".join(b"%d\n" % number for number in range(100))
    assert (console.waiting, console.size) == ([], 0)


def test_a_full_pipe_blocks_nothing_and_loses_nothing(pipe: tuple[int, int]) -> None:
    read, write = pipe
    console = Console(write)
    lines = b"".join(b"line %d\n" % number for number in range(100_000))
    console.put(lines)
    console.flush(False)  # would wait for ever if it could wait
    console.flush(False)
    assert 0 < console.size < len(lines)
    assert not console.takes()
    got = bytearray()
    while console.size:
        got += os.read(read, 1 << 16)
        console.flush(False)
    os.close(write)
    while block := os.read(read, 1 << 16):
        got += block
    assert got == lines


def test_drain_waits_for_a_slow_reader(pipe: tuple[int, int]) -> None:
    read, write = pipe
    console = Console(write)
    console.put(b"x" * 1_000_000)
    got: list[bytes] = []

    def collect() -> None:
        while sum(map(len, got)) < 1_000_000:
            got.append(os.read(read, 1000))

    thread = threading.Thread(target=collect)
    thread.start()
    console.drain(60)
    thread.join(60)
    assert console.size == 0
    assert b"".join(got) == b"x" * 1_000_000


def test_drain_gives_up_on_a_reader_that_never_reads(pipe: tuple[int, int]) -> None:
    _, write = pipe
    console = Console(write)
    console.put(b"x" * 1_000_000)
    console.drain(0.05)
    assert console.size > 0


def test_after_giving_up_everyone_can_write_to_the_descriptor_without_waiting(pipe: tuple[int, int]) -> None:
    _, write = pipe
    console = Console(write)
    console.put(b"x" * 1_000_000)
    console.flush(False)
    console.give_up()
    console.put(b"more")
    assert (console.size, console.closed) == (0, True)
    assert os.write(write, b"y" * 1_000_000) == 1_000_000


def test_a_reader_that_leaves_closes_the_console_for_good(pipe: tuple[int, int]) -> None:
    read, write = pipe
    console = Console(write)
    os.close(read)
    console.put(b"nobody hears this\n")
    console.flush(False)
    assert console.closed
    console.put(b"nor this\n")
    console.drain(60)
    assert console.size == 0


def test_a_descriptor_that_does_not_exist_is_a_closed_console() -> None:
    read, write = os.pipe()
    os.close(read)
    os.close(write)
    console = Console(write)
    console.put(b"x")
    console.flush(True)
    assert console.closed


def test_a_full_disk_closes_the_console() -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    console = Console(fd)
    console.put(b"x")
    console.flush(False)
    assert console.closed
    os.close(fd)


def test_a_file_takes_everything_at_once(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    console = Console(fd)
    console.put(b"x" * 10_000_000)
    console.flush(False)
    assert console.size == 0
    assert os.path.getsize(tmp_path / "out") == 10_000_000
    os.close(fd)


def test_a_descriptor_that_somebody_made_non_blocking_is_no_trouble(pipe: tuple[int, int]) -> None:
    _, write = pipe
    os.set_blocking(write, False)
    console = Console(write)
    console.put(b"x" * 1_000_000)
    console.flush(True)
    console.flush(True)
    assert 0 < console.size < 1_000_000
    assert not console.closed


def test_the_two_ends_of_one_pipe_are_one_file_and_two_pipes_are_two(pipe: tuple[int, int], tmp_path: Path) -> None:
    _, write = pipe
    copy = os.dup(write)
    other_read, other_write = os.pipe()
    try:
        assert same_file(write, copy)
        assert not same_file(write, other_write)
        assert not same_file(write, 10_000)
    finally:
        for fd in (copy, other_read, other_write):
            os.close(fd)


def test_a_terminal_that_nobody_reads_blocks_nobody_and_is_put_back_as_it_was() -> None:
    controller, shared = os.openpty()
    copy = os.dup(shared)
    try:
        terminal = Terminal(copy)
        console = Console(copy)
        console.put(b"x" * 1_000_000)
        for _ in range(10):
            console.flush(False)  # would wait for ever if it could wait
        assert 0 < console.size < 1_000_000
        assert os.get_blocking(shared), "others who share the terminal must not notice"
        terminal.close(given_up=False)
        terminal.close(given_up=False)
        assert os.get_blocking(copy)
        assert same_file(copy, shared)
    finally:
        for fd in (controller, shared, copy):
            os.close(fd)


def test_a_terminal_that_is_read_gets_every_line() -> None:
    controller, shared = os.openpty()
    lines = b"".join(b"line %d\n" % number for number in range(20_000))
    terminal, console = Terminal(shared), Console(shared)
    console.put(lines)
    got = bytearray()
    while console.size:
        console.flush(False)
        got += os.read(controller, 1 << 16)
    terminal.close(given_up=False)
    while len(got) < len(lines) + 20_000:
        got += os.read(controller, 1 << 16)
    os.close(controller)
    os.close(shared)
    assert got.replace(b"\r\n", b"\n") == lines
