"""Plays scripts one after the other in ranks that have been started once, each as ranks and as one process."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from datetime import timedelta
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import torch.distributed as dist

from trainshed.parallel.verify.judgement import told
from trainshed.parallel.verify.play import as_one, as_rank, compare
from trainshed.parallel.verify.script_hooks import Enough

STEPS, SECONDS = 3, 30


def play(scripts: dict[str, str]) -> dict[str, tuple[int, list[str], str]]:
    """Of each script: the status, the keys of its causes, and what is told; on rank 0."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, rank == 0)
    found = {}
    for number, (name, source) in enumerate(scripts.items()):
        print("---", name, flush=True)
        folder = Path(tempfile.gettempdir(), f"{os.environ['MASTER_PORT']}-{number}")
        folder.mkdir(exist_ok=True)
        with (
            _grouped(dist.PrefixStore(f"{number} ranks", store), rank, world),
            suppress(Exception, Enough),
            as_rank(folder, STEPS),
        ):
            _run(name, source)
        _meet(store, f"{number} played", world)
        if rank == 0:
            alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
            with (
                patch.dict(os.environ, alone),
                _grouped(dist.HashStore(), 0, 1),
                suppress(Exception, Enough),
                as_one(folder, STEPS),
            ):
                _run(name, source)
            verdict = compare(folder)
            found[name] = (verdict.status, [one.key for one in verdict.causes], told(verdict))
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
        _meet(store, f"{number} compared", world)
    return found


def _run(name: str, source: str) -> None:
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        exec(compile(source, name, "exec"), {"__name__": "__main__"})


@contextmanager
def _grouped(store: dist.Store, rank: int, world: int) -> Iterator[None]:
    """`init_process_group` of the script takes this store."""
    given = {"store": store, "rank": rank, "world_size": world, "timeout": timedelta(seconds=SECONDS)}
    with patch.object(dist, "init_process_group", functools.partial(dist.init_process_group, **given)):
        try:
            yield
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


def _meet(store: dist.Store, at: str, world: int) -> None:
    store.add(at, 1)
    store.wait([f"{at} all"], timedelta(seconds=SECONDS * 4)) if store.add(at, 0) < world else store.set(f"{at} all", "1")
