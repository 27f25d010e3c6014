"""Starts ranks of a pipeline as torchrun does, and collects what they found.

A start of ranks costs seconds of CPU, most checks far less. So tests say what their ranks have to run,

    @pytest.mark.on_ranks("workers:train", {"partitions": 2}, world=2)
    def test_...(found: list[Any]) -> None:

with the test's parameters after the mark's arguments, and all tests of one file and one number of ranks share a start
(`shared`).
`world` may be the name of a parameter. Ranks are forked from one process, which has imported what they need: torch and the
pipeline take four seconds of CPU. Scripts of users (`run_script`) are the main programs of such processes.
"""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
import pickle
import runpy
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing import connection, forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

from support.paths import ROOT, TOOLKIT

HERE = Path(__file__).parent


def environment(rank: int, world: int, port: int, extra: dict[str, str] | None = None) -> dict[str, str]:
    """torchrun's variables for one rank."""
    # The hook that `train` gives its ranks lets gloo's threads put down their tensors before the interpreter is taken apart.
    hook = TOOLKIT / "trainshed" / "container" / "hangs" / "hook"
    path = os.pathsep.join(map(str, [hook, TOOLKIT, HERE, ROOT / "tests", TOOLKIT / "trainshed" / "compat"]))
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("SM_", "TRAINSHED_PIPELINE"))},
        "PYTHONPATH": path,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PYTHONFAULTHANDLER": "1",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        **(extra or {}),
    }


Work = tuple[str, tuple[Any, ...]]  # module:function in this folder, and its arguments


def start(world: int, *works: Work, out: str) -> list[ForkServerProcess]:
    """Starts ranks that do one work after the other; the results are pickled to `out`/NUMBER.RANK, see `log`, too."""
    from support.free_ports import free_ports

    Path(out, "works").write_bytes(pickle.dumps(works))
    port, nursery = free_ports(), _nursery()
    processes = [nursery.Process(target=main, args=(out, environment(rank, world, port))) for rank in range(world)]
    for process in processes:
        process.start()
    return processes


@functools.cache
def _nursery() -> ForkServerContext:
    """What starts ranks by forking a process that has begun as one: it ends with the tests."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["workers"])
    with patch.dict(os.environ, environment(0, 1, 0), clear=True):
        forkserver.ensure_running()
    return context


def log(out: str, rank: int) -> str:
    """What a rank has printed until now."""
    path = Path(out, f"log.{rank}")
    return path.read_text(errors="replace") if path.exists() else ""


def end(processes: list[ForkServerProcess]) -> None:
    """Kills the ranks that are left."""
    for process in processes:
        process.kill()
        process.join()


@dataclass(frozen=True)
class Ended:
    """How a script ended on one rank: its exit status, and what it printed."""

    status: int | None
    log: str


def play_script(
    world: int, script: str, *arguments: str, extra: dict[str, str] | None = None, cwd: str | None = None
) -> list[Ended]:
    """Runs a Python script on each rank, as `python script` does, to its end; one that does not end is killed."""
    from support.free_ports import free_ports

    port, nursery = free_ports(), _nursery()
    with tempfile.TemporaryDirectory() as out:
        processes = [
            nursery.Process(target=_play, args=(out, environment(rank, world, port, extra), cwd, [script, *arguments]))
            for rank in range(world)
        ]
        for process in processes:
            process.start()
        deadline = time.monotonic() + 400
        try:
            for process in processes:
                process.join(max(1.0, deadline - time.monotonic()))
        finally:
            end(processes)
        return [Ended(process.exitcode, log(out, rank)) for rank, process in enumerate(processes)]


def run_script(
    world: int, script: str, *arguments: str, extra: dict[str, str] | None = None, cwd: str | None = None
) -> list[str]:
    """Runs a Python script on each rank to its good end; the log of each."""
    ends = play_script(world, script, *arguments, extra=extra, cwd=cwd)
    assert [one.status for one in ends] == [0] * world, "\n".join(one.log[-3000:] for one in ends)
    return [one.log for one in ends]


def run(world: int, worker: str, *args: Any) -> list[Any]:
    """Results of all ranks, in order; fails with the log of the ranks that failed."""
    return result(shared(world, [(worker, args)])[0])


@dataclass
class Failed:
    """A work that did not end on all ranks, and why."""

    why: str


def result(found: list[Any] | Failed) -> list[Any]:
    """What the ranks found."""
    assert not isinstance(found, Failed), found.why
    return found


def shared(world: int, works: list[Work]) -> list[list[Any] | Failed]:
    """Does all works in one start of ranks; for each the results of all ranks, in order."""
    start_of_all = SharedStart(world, works)
    return [start_of_all.result(number) for number in range(len(works))]


class SharedStart:
    """Works that one start of ranks does one after the other while tests wait for theirs; after one that fails, the others
    are done by a new start.

    Args:
        world: number of ranks.
        works: in the order in which they are done.
    """

    def __init__(self, world: int, works: list[Work]) -> None:
        self._world, self._works = world, works
        self._found: dict[int, list[Any] | Failed] = {}
        self._processes: list[ForkServerProcess] = []
        self._out: tempfile.TemporaryDirectory[str] | None = None
        self._numbers: list[int] = []  # of the works that the running start does

    def result(self, number: int) -> list[Any] | Failed:
        """Waits for a work. A test that is ended meanwhile ends the ranks; its work has failed."""
        try:
            while number not in self._found:
                self._go_on()
        except BaseException:
            left = [one for one in self._numbers if one not in self._found]
            self._found |= {one: Failed("it was ended with the test that waited for it") for one in left[:1]}
            self.end()
            raise
        return self._found[number]

    def end(self) -> None:
        """Ends the ranks and forgets their files."""
        end(self._processes)
        if self._out is not None:
            self._out.cleanup()
        self._processes, self._out = [], None

    def _go_on(self) -> None:
        if self._out is None:
            self._numbers = [number for number in range(len(self._works)) if number not in self._found]
            self._out = tempfile.TemporaryDirectory()
            self._processes = start(self._world, *[self._works[number] for number in self._numbers], out=self._out.name)
        left = [process for process in self._processes if process.exitcode is None]
        connection.wait([process.sentinel for process in left], timeout=0.02)
        # The last work has ended well only when its ranks have.
        for position, number in enumerate(self._numbers if not left else self._numbers[:-1]):
            paths = [Path(self._out.name, f"{position}.{rank}") for rank in range(self._world)]
            if number not in self._found and all(path.exists() for path in paths):
                self._found[number] = [pickle.loads(path.read_bytes()) for path in paths]
        if not left:
            self._close()

    def _close(self) -> None:
        """After all ranks have ended: the first work without a result is the one that failed."""
        assert self._out is not None
        codes = [(rank, process.exitcode) for rank, process in enumerate(self._processes)]
        failed = "\n".join(
            f"rank {rank} ended with {code}:\n{log(self._out.name, rank)}"[-6000:] for rank, code in codes if code
        )
        without = [number for number in self._numbers if number not in self._found]
        if without or failed:
            number = without[0] if without else self._numbers[-1]
            self._found[number] = Failed(failed or "the ranks ended well, without a result")
        self.end()


def folder() -> Path:
    """For the works: a folder that all ranks of this start have in common."""
    return Path(sys.argv[1])


def _become(out: str, environ: dict[str, str], words: list[str]) -> None:
    """Makes of a forked process the rank that it stands for: its log, environment, arguments and path of modules."""
    output = os.open(Path(out, f"log.{environ['RANK']}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = words
    sys.path[:0] = environ["PYTHONPATH"].split(os.pathsep)


def _play(out: str, environ: dict[str, str], cwd: str | None, words: list[str]) -> None:
    """Runs a script as the main program."""
    _become(out, environ, words)
    if cwd is not None:
        os.chdir(cwd)
    sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
    try:
        runpy.run_path(words[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # processes of multiprocessing end without them


def main(out: str, environ: dict[str, str]) -> None:
    """Does one rank's works, each with a pipeline of its own in one process group."""
    _become(out, environ, ["ranks.py", out])
    import gc
    import importlib

    import torch

    import trainshed.parallel as pipe

    torch.set_num_threads(1)
    gc.freeze()  # what is imported stays: a collection, as each step that fails makes one, takes a second less
    works = pickle.loads(Path(out, "works").read_bytes())
    for number, (worker, args) in enumerate(works):
        module, name = worker.split(":")
        print(f"--- {worker}", flush=True)
        function = getattr(importlib.import_module(module), name)
        # Of a single work the pipeline makes its own group, and so do cases of the table.
        if len(works) > 1 and not hasattr(function, "makes_groups") and not torch.distributed.is_initialized():
            torch.distributed.init_process_group("gloo")
        found = pickle.dumps(function(*args))
        Path(out, f"part.{environ['RANK']}").write_bytes(found)
        os.replace(Path(out, f"part.{environ['RANK']}"), Path(out, f"{number}.{environ['RANK']}"))
        pipe.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # Without taking the interpreter apart: gloo's threads may still hold a tensor, and `train`,
    # whose ranks wait for them, is not here.
    os._exit(0)
