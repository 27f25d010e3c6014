"""Starts ranks that play many cases, and starts them again after a case that hangs or kills one."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from hostile.combinations import Combination
from jobs.parallel.ranks import environment
from support.free_ports import free_ports

# A case hangs when its ranks have together computed for less than `IDLE` seconds in `LIMIT` seconds: those that wait for a
# core are no hang, however long that takes.
LIMIT = 200.0
IDLE = 2.0
# Cases in one start: what a process leaves behind does not add up for ever.
MOST = 60


@dataclass
class Played:
    """What came of a case: of each rank ("done", notes, parts) or ("refused" or "crashed", type, message, hint, traceback).

    hung, died: its ranks were ended, with what their logs say; or one of them ended by itself.
    """

    name: str
    found: list[Any]
    seconds: float = 0.0
    hung: str = ""
    died: str = ""


def play(names: list[str], combination: Combination, seed: int, limit: float = LIMIT) -> Iterator[Played]:
    """Plays cases one after the other; gives each as soon as it is over.

    Args:
        limit: seconds without progress after which a case hangs.
    """
    while names:
        count = 0
        for played in _start(names[:MOST], combination, seed, limit):
            count += 1
            yield played
        names = names[count:]


def _start(names: list[str], combination: Combination, seed: int, limit: float) -> Iterator[Played]:
    """The cases of one start, up to the first that hangs or kills a rank."""
    world = combination.ranks or 1
    with tempfile.TemporaryDirectory() as out:
        folder = Path(out)
        (folder / "works").write_bytes(pickle.dumps((0, names, combination.name, seed)))
        port = free_ports()
        logs = [(folder / f"log.{rank}").open("wb") for rank in range(world)]
        script = str(Path(__file__).with_name("rank.py"))
        processes = [
            subprocess.Popen(
                [sys.executable, script, out],
                env=environment(rank, world, port, {"PYTHONHASHSEED": "0", "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1"}),
                stdin=subprocess.DEVNULL,
                stdout=logs[rank],
                stderr=subprocess.STDOUT,
            )
            for rank in range(world)
        ]
        try:
            for number, name in enumerate(names):
                played = _watch(folder, number, name, processes, limit)
                yield played
                if played.hung or played.died:
                    return
        finally:
            for process in processes:
                process.kill()
                process.wait()
            for log in logs:
                log.close()


def _watch(folder: Path, number: int, name: str, processes: list[subprocess.Popen[bytes]], limit: float) -> Played:
    """Waits until all ranks are through with a case."""
    results = [folder / f"{number}.{rank}" for rank in range(len(processes))]
    started = since = time.monotonic()
    computed = _computed(processes)
    while not all(path.exists() for path in results):
        if any(process.poll() is not None for process in processes):
            time.sleep(0.5)  # the others may fail of that too, or write their results
            if all(path.exists() for path in results):
                break
            return Played(name, _found(results), died=_logs(folder, processes))
        now = time.monotonic()
        if _computed(processes) - computed > IDLE:
            since, computed = now, _computed(processes)
        if now - since > limit or now - started > 10 * limit:
            for process in processes:
                process.send_signal(signal.SIGABRT)  # faulthandler then shows where it waits
            for process in processes:
                process.wait(30)
            return Played(name, _found(results), now - started, hung=_logs(folder, processes))
        time.sleep(0.1)
    found = [pickle.loads(path.read_bytes()) for path in results]
    return Played(name, [one[0] for one in found], max(one[1] for one in found))


def _computed(processes: list[subprocess.Popen[bytes]]) -> float:
    """CPU seconds that processes have taken so far."""
    total = 0.0
    for process in processes:
        try:
            used = psutil.Process(process.pid).cpu_times()
        except psutil.Error:  # it is gone, which the caller sees
            continue
        total += used.user + used.system
    return total


def _found(results: list[Path]) -> list[Any]:
    return [pickle.loads(path.read_bytes())[0] if path.exists() else None for path in results]


def _logs(folder: Path, processes: list[subprocess.Popen[bytes]]) -> str:
    texts = []
    for rank, process in enumerate(processes):
        log = (folder / f"log.{rank}").read_text(errors="replace")
        texts.append(f"rank {rank} (status {process.returncode}):\n{log.rpartition('--- ')[2][-3000:]}")
    return "\n".join(texts)
