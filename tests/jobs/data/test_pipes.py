"""Channels in Pipe mode: each record of an epoch once, over all ranks of all hosts, and never a silently short epoch."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.paths import TOOLKIT
from trainshed.data.formats.recordio import MAGIC

pytestmark = [pytest.mark.torch, pytest.mark.exact]

RANK = Path(__file__).with_name("pipe_rank.py")


def frame(payload: bytes) -> bytes:
    return struct.pack("<II", MAGIC, len(payload)) + payload + bytes(-len(payload) % 4)


def records(first: int, end: int) -> bytes:
    return b"".join(frame(str(number).encode()) for number in range(first, end))


class Host:
    """A host's channel, fed as the platform does: one content an epoch, the next pipe is there before the last one goes."""

    def __init__(self, base: Path, *contents: bytes) -> None:
        self.path = base / "input" / "data" / "train"
        self.path.parent.mkdir(parents=True)
        self.contents = contents
        os.mkfifo(f"{self.path}_0")
        self.thread = threading.Thread(target=self.feed, daemon=True)
        self.thread.start()

    def feed(self) -> None:
        for epoch, content in enumerate(self.contents):
            with open(f"{self.path}_{epoch}", "wb") as pipe:
                os.mkfifo(f"{self.path}_{epoch + 1}")
                try:
                    pipe.write(content)
                    pipe.flush()
                except BrokenPipeError:
                    pass
                finally:
                    os.unlink(f"{self.path}_{epoch}")
                    try:
                        pipe.close()
                    except BrokenPipeError:
                        pass


def run(hosts: list[Host], ranks: int, *words: object, **extra: str) -> list[list[str]]:
    """The lines of each rank, with `ranks` of them on each host."""
    processes = []
    for number, host in enumerate(hosts):
        for local in range(ranks):
            environ = {
                **os.environ,
                "PYTHONPATH": str(TOOLKIT),
                "RANK": str(number * ranks + local),
                "WORLD_SIZE": str(len(hosts) * ranks),
                "LOCAL_RANK": str(local),
                "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": "29500",
                **extra,
            }
            command = [sys.executable, str(RANK), str(host.path), *map(str, words)]
            processes.append(subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True))
    return [process.communicate(timeout=300)[0].splitlines() for process in processes]


def of(lines: list[str], kind: str) -> list[str]:
    return [line.partition(" ")[2] for line in lines if line.startswith(kind)]


def numbers(lines: list[str]) -> list[int]:
    return [int(word) for line in of(lines, "batch") for word in line.split()]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Any]:
    made = []

    def make(*contents: bytes) -> Host:
        made.append(Host(tmp_path / f"host-{len(made)}", *contents))
        return made[-1]

    yield make
    for one in made:
        for path in one.path.parent.glob("train_*"):
            path.unlink()


def test_one_rank_reads_epoch_after_epoch_in_order(host: Any) -> None:
    [lines] = run([host(records(0, 21), records(100, 103))], 1, 8, "-", 2)

    assert of(lines, "batch")[:3] == ["0 1 2 3 4 5 6 7", "8 9 10 11 12 13 14 15", "16 17 18 19 20"]
    assert numbers(lines)[21:] == [100, 101, 102]
    assert len(of(lines, "epoch")) == 2


@pytest.mark.parametrize(("hosts", "ranks", "workers"), [(1, 2, "-"), (1, 2, 2), (2, 2, "-"), (2, 1, "-")])
def test_all_ranks_of_all_hosts_share_what_comes_through_the_pipes(
    hosts: int, ranks: int, workers: object, host: Any
) -> None:
    """Each host has a pipe with the whole channel."""
    content = records(0, 104), records(0, 104)
    each = run([host(*content) for _ in range(hosts)], ranks, 5, workers, 2)

    assert Counter(number for lines in each for number in numbers(lines)) == Counter([*range(104)] * 2)
    assert len({len(of(lines, "batch")) for lines in each}) == 1  # equally many batches


def test_hosts_with_parts_of_their_own_share_them_among_their_ranks(host: Any) -> None:
    each = run([host(records(0, 20)), host(records(50, 70))], 2, 5, "-", 1, SHARDED="1")

    assert sorted(numbers(each[0]) + numbers(each[1])) == list(range(20))
    assert sorted(numbers(each[2]) + numbers(each[3])) == list(range(50, 70))


def test_a_loop_that_has_enough_goes_on_with_the_next_epoch(host: Any) -> None:
    big = records(0, 100_000)
    each = run([host(big, big)], 2, 5, 0, 2, STOP="2")

    assert sorted(numbers(each[0]) + numbers(each[1])) == sorted([*range(20)] * 2)


def test_a_run_goes_on_within_an_epoch(host: Any) -> None:
    first = run([host(records(0, 50))], 2, 5, 0, 1, STOP="3")
    state = of(first[0], "epoch")[-1]
    assert of(first[1], "epoch")[-1] == state
    second = run([host(records(0, 50))], 2, 5, 0, 1, state)

    assert sorted(number for lines in [*first, *second] for number in numbers(lines)) == list(range(50))


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_pipe_that_breaks_off_is_an_error_of_all_ranks(ranks: int, host: Any) -> None:
    each = run([host(records(0, 50)[:-3])], ranks, 5, "-", 1)

    for lines in each:
        [said] = of(lines, "error")
        assert "train_0: record 49 at byte" in said and "is cut short" in said


def test_a_second_dataset_goes_on_with_the_next_pipe(host: Any) -> None:
    one = host(records(0, 5), records(10, 15), records(20, 25))
    assert [numbers(run([one], 1, 5, "-", 1)[0]) for _ in range(3)] == [
        [0, 1, 2, 3, 4],
        [10, 11, 12, 13, 14],
        [20, 21, 22, 23, 24],
    ]


def test_a_rank_that_leaves_an_epoch_alone_ends_it_for_all_with_words(host: Any) -> None:
    """Rank 0 has the pipe; what the other would take for the end of the epoch is none."""
    each = run([host(records(0, 100_000))], 2, 5, "-", 1, STOP_OF="0", STOP="2")

    assert of(each[0], "error") == [] and len(of(each[0], "batch")) == 2
    assert of(each[1], "error") == ["local rank 0, which reads the pipe, has left the epoch"]


def test_ranks_whose_place_on_the_host_nobody_says_are_refused(host: Any) -> None:
    [lines] = run([host(records(0, 10))], 1, 5, "-", 1, WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="")

    assert of(lines, "error") == ["the channel train is one pipe for all ranks of a host, and nobody says which they are"]


def opened(pid: int, path: str) -> bool:
    """Whether a process has a file open."""
    try:
        return path in [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    except OSError:  # one was closed meanwhile
        return False


def test_a_loop_that_ends_while_nothing_comes_does_not_wait(host: Any, tmp_path: Path) -> None:
    stuck = tmp_path / "stuck" / "input" / "data" / "train"
    stuck.parent.mkdir(parents=True)
    os.mkfifo(f"{stuck}_0")
    writer = os.open(f"{stuck}_0", os.O_RDWR)  # there, and silent
    try:
        command = [sys.executable, str(RANK), str(stuck), "5", "-", "1"]
        environ = {**os.environ, "PYTHONPATH": str(TOOLKIT)}
        process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        while not opened(process.pid, f"{stuck}_0"):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) != 0
    finally:
        os.close(writer)
        os.unlink(f"{stuck}_0")
