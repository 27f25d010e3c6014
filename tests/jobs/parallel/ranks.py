"""Starts ranks of a pipeline as torchrun does, and collects what they found.

A start of ranks costs seconds of CPU, most checks far less. So tests say what their ranks have to run,

    @pytest.mark.on_ranks("workers:train", {"partitions": 2}, world=2)
    def test_...(found: list[Any]) -> None:

with the test's parameters after the mark's arguments, and all tests of one file and one number of ranks share a start, which
does a work when its test asks for it (`Starts`).
`world` may be the name of a parameter. Ranks are forked from one process, which has imported what they need: torch and the
pipeline take four seconds of CPU. Scripts of users (`run_script`) are the main programs of such processes.
Plans are made of counted costs (`plans`), so that they are the same each time, but for works that are marked `measures`.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import itertools
import multiprocessing
import os
import pickle
import runpy
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from glob import glob
from multiprocessing import connection, forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil

from support.paths import ROOT, TOOLKIT

HERE = Path(__file__).parent
# A work hangs when its ranks have printed nothing, and together computed for less than `MOVED` seconds, in `SILENT` seconds:
# those that wait for a core are no hang, however long that takes. Less than the time of a test, which is a limit as well.
SILENT, MOVED = 90.0, 4.0
LIMIT = 400.0
# Ranks that wait for one that has failed have so many seconds to tell so themselves.
AFTER = 20.0
# What a rank waits for others at most.
SECONDS = 60


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


@contextmanager
def started(world: int, worker: str, *args: Any, out: str) -> Iterator[list[ForkServerProcess]]:
    """Ranks that do one work within the block; where that fails, their stacks are told."""
    processes = start(world, worker, *args, out=out)
    try:
        yield processes
    except BaseException:
        print(abort(processes, out))
        raise
    finally:
        end(processes)


def start(world: int, worker: str, *args: Any, out: str) -> list[ForkServerProcess]:
    """Starts ranks that do one work; what each finds is pickled to `out`/0.RANK, see `log`, too."""
    from support.free_ports import free_ports

    port, nursery, work = free_ports(), _nursery(), (worker, args)
    processes = [nursery.Process(target=_main, args=(out, environment(rank, world, port), work)) for rank in range(world)]
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


def abort(processes: list[ForkServerProcess], out: str) -> str:
    """Ends the ranks, those that wait with their stacks; what all have said, in their last work."""
    for process in processes:
        process.join(1.0)  # one that falls by itself
        if process.exitcode is None and process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGABRT)  # faulthandler then shows where it waits
    for process in processes:
        process.join(10.0)
    end(processes)
    said = [log(out, rank).rpartition("--- ")[2][-20000:] for rank in range(len(processes))]
    return "\n".join(f"rank {rank} ended with {process.exitcode}:\n{said[rank]}" for rank, process in enumerate(processes))


@dataclass(frozen=True)
class Ended:
    """How a script ended on one rank: its exit status, and what it printed."""

    status: int | None
    log: str


def play_script(
    world: int,
    script: str,
    *arguments: str,
    extra: dict[str, str] | None = None,
    cwd: str | None = None,
    measures: bool = False,
) -> list[Ended]:
    """Runs a Python script on each rank, as `python script` does, to its end; one that does not end is killed."""
    from support.free_ports import free_ports

    port, nursery = free_ports(), _nursery()
    with tempfile.TemporaryDirectory() as out:
        environs = [environment(rank, world, port, extra) for rank in range(world)]
        words = [script, *arguments]
        processes = [nursery.Process(target=_play, args=(out, environ, cwd, words, measures)) for environ in environs]
        for process in processes:
            process.start()
        deadline = time.monotonic() + LIMIT
        try:
            for process in processes:
                process.join(max(0.1, deadline - time.monotonic()))
            assert all(process.exitcode is not None for process in processes), "the ranks do not end"
        except BaseException:
            print(abort(processes, out))
            raise
        finally:
            end(processes)
        return [Ended(process.exitcode, log(out, rank)) for rank, process in enumerate(processes)]


def run_script(world: int, script: str, *arguments: str, **options: Any) -> list[str]:
    """Runs a Python script on each rank to its good end; the log of each."""
    ends = play_script(world, script, *arguments, **options)
    assert [one.status for one in ends] == [0] * world, "\n".join(one.log[-3000:] for one in ends)
    return [one.log for one in ends]


def run(world: int, worker: str, *args: Any) -> list[Any]:
    """What all ranks of a start of their own found, in order; their pipeline makes the process group."""
    with _Start(world, grouped=False) as ranks:
        return ranks.do(worker, args)


class Starts:
    """Starts of ranks, which do works one after the other as tests ask for them: one start for each number of ranks."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, int], _Start] = {}

    def do(self, world: int, worker: str, *args: Any, share: str = "") -> list[Any]:
        """What all ranks found, in order. After a work that fails there is a new start.

        Args:
            share: works of another name share no start: the one of those before ends.
        """
        for key in [key for key in self._running if key[0] != share]:
            self._running.pop(key).end()
        ranks = self._running.get((share, world)) or self._running.setdefault((share, world), _Start(world))
        try:
            return ranks.do(worker, args)
        except BaseException:
            self._running.pop((share, world)).end()
            raise

    def end(self) -> None:
        """Leaves no process."""
        while self._running:
            self._running.popitem()[1].end()


class _Start:
    """Ranks that are given works until one of them fails.

    Args:
        grouped: whether each work has process groups of its own, or the pipeline makes the one that there is.
    """

    def __init__(self, world: int, *, grouped: bool = True) -> None:
        from support.free_ports import free_ports

        self._folder = tempfile.TemporaryDirectory()
        self._out, port, nursery = self._folder.name, free_ports(), _nursery()
        pairs = [nursery.Pipe() for _ in range(world)]
        self._ends = [ours for ours, _ in pairs]
        self._processes = [
            nursery.Process(target=_serve, args=(self._out, environment(rank, world, port), theirs, grouped))
            for rank, (_, theirs) in enumerate(pairs)
        ]
        for process in self._processes:
            process.start()
        for _, theirs in pairs:
            theirs.close()

    def __enter__(self) -> _Start:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def do(self, worker: str, args: tuple[Any, ...]) -> list[Any]:
        """What the ranks found. Where the work does not end, or the test is given up, their stacks are told."""
        found: dict[int, Any] = {}
        try:
            self._give((worker, args))
            self._wait(found)
        except BaseException:  # the test's own time is over, say
            print(abort(self._processes, self._out))
            raise
        said = abort(self._processes, self._out) if len(found) < len(self._ends) else ""
        assert not said, said
        self._give(None)  # all are through
        return [found[rank] for rank in range(len(self._ends))]

    def end(self) -> None:
        """Kills the ranks that are left."""
        end(self._processes)
        self._folder.cleanup()

    def _give(self, message: Any) -> None:
        for theirs in self._ends:
            with suppress(OSError):  # it has ended, which `_wait` sees
                theirs.send(message)

    def _wait(self, found: dict[int, Any]) -> None:
        """Until each rank has found something or has ended, or none moves any more."""
        moved, since, limit = self._moved(), time.monotonic(), time.monotonic() + LIMIT
        left = set(range(len(self._ends)))
        while left and (now := time.monotonic()) < min(since + SILENT, limit):
            connection.wait(
                [one for rank in left for one in (self._ends[rank], self._processes[rank].sentinel)], timeout=1.0
            )
            for rank in sorted(left):
                ended = self._processes[rank].exitcode is not None  # asked first: what it has sent before is there
                with suppress(EOFError, OSError):
                    if self._ends[rank].poll():
                        found[rank] = pickle.loads(self._ends[rank].recv_bytes())
                left -= {rank} if ended or rank in found else set()
            if (newly := self._moved()) > moved + MOVED:
                moved, since = newly, now

    def _moved(self) -> float:
        """Seconds of CPU that the ranks have taken; a byte that they print counts as much as makes a difference."""
        seconds = 0.0
        for process in self._processes:
            with suppress(psutil.Error):  # it has ended
                seconds += sum(psutil.Process(process.pid).cpu_times()[:4])
        return seconds + 2 * MOVED * sum(os.path.getsize(path) for path in glob(f"{self._out}/log.*"))


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
    threading.Thread(target=_end_with_the_tests, name="tests", daemon=True).start()


def _end_with_the_tests() -> None:
    """A rank that hangs does not outlive tests that were killed."""
    tests = multiprocessing.parent_process()
    assert tests is not None
    tests.join()
    os._exit(1)


def _play(out: str, environ: dict[str, str], cwd: str | None, words: list[str], measures: bool) -> None:
    """Runs a script as the main program."""
    _become(out, environ, words)
    if cwd is not None:
        os.chdir(cwd)
    sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
    from plans import counted

    try:
        with nullcontext() if measures else counted():
            runpy.run_path(words[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # processes of multiprocessing end without them


def _main(out: str, environ: dict[str, str], work: tuple[str, tuple[Any, ...]]) -> None:
    """Does one rank's work."""
    _become(out, environ, ["ranks.py", out])
    path = Path(out, f"0.{environ['RANK']}")
    new = path.with_name(f"{path.name}.new")  # of this rank alone: with_suffix would take its number away
    new.write_bytes(pickle.dumps(_do(*work)))
    new.rename(path)
    _leave()


def _serve(out: str, environ: dict[str, str], works: connection.Connection, grouped: bool) -> None:
    """Does one rank's works as they are given, each with a pipeline of its own, until there are no more."""
    _become(out, environ, ["ranks.py", out])
    group = _grouping() if grouped else nullcontext
    with suppress(EOFError):
        while True:
            worker, args = works.recv()
            with group():
                works.send_bytes(pickle.dumps(_do(worker, args)))
                works.recv()  # until all are through
    _leave()


def _do(worker: str, args: tuple[Any, ...]) -> Any:
    """What a work finds on this rank."""
    import torch
    from plans import counted

    torch.set_num_threads(1)
    torch.manual_seed(0)
    module, name = worker.split(":")
    print(f"--- {worker} {args}"[:200], flush=True)
    function = getattr(importlib.import_module(module), name)
    gc.freeze()  # what is imported stays: a collection, as each step that fails makes one, takes a second less
    with nullcontext() if getattr(function, "measures", False) else counted():
        return function(*args)


def _grouping() -> Callable[[], AbstractContextManager[None]]:
    """Gives each work process groups of its own, which meet in one store; nothing is left of its pipeline."""
    import torch.distributed as dist

    import trainshed.parallel as pipe

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, world, rank == 0, timeout=timedelta(seconds=300))
    numbers = itertools.count()

    @contextmanager
    def group() -> Iterator[None]:
        own = dist.PrefixStore(str(next(numbers)), store)
        dist.init_process_group("gloo", store=own, rank=rank, world_size=world, timeout=timedelta(seconds=SECONDS))
        yield
        pipe.shutdown()
        if dist.is_initialized():
            dist.destroy_process_group()
        _forget_meshes()
        gc.collect()  # before `_do` freezes what is left: groups in circles of references would keep their threads for good

    return group


def _forget_meshes() -> None:
    """Lets go of process groups that torch's caches about DTensors hold: each has a thread that wakes 100 times a second.

    The names are those of torch 2.13; a version without one of them may be slower.
    """
    from torch.distributed.tensor import _collective_utils, _redistribute, debug

    for module, name in ((debug, "_clear_sharding_prop_cache"), (_redistribute, "clear_redistribute_planner_cache")):
        getattr(module, name, lambda: None)()
    topology = getattr(_collective_utils, "MeshTopoInfo", None)
    for cached in (getattr(_redistribute, "_gen_transform_infos", None), getattr(topology, "build_from_mesh", None)):
        if cached is not None:
            cached.cache_clear()


def _leave() -> None:
    """Without taking the interpreter apart: gloo's threads may still hold a tensor, and `train`, whose ranks wait for them,
    is not here."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
