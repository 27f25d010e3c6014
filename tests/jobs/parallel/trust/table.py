"""A table of cases, which ranks that are started once run one after the other."""

from __future__ import annotations

import functools
import importlib
import io
import os
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from quick import planned_quickly
from torch import nn
from torch.distributed.tensor import _collective_utils, _redistribute, debug
from trust.topics import ORDER

import trainshed.parallel as pipe

# Topics about what plans put back when they are made: their plans are made as those of jobs are.
_PLANNED_IN_FULL = frozenset({"surroundings", "noted", "callables", "kept", "remembered"})
# What a case waits for at most; one that waits longer hangs.
SECONDS = 60

_CASES: dict[str, tuple[int, bool, Callable[[], None]]] = {}


def case(ranks: int, *, heavy: bool = False) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Puts a function into the table: every one of `ranks` ranks runs it, and it raises where something is wrong.

    One that takes long is `heavy`: `make test-all` runs it.
    """

    def put(function: Callable[[], None]) -> Callable[[], None]:
        _CASES[_name(function)] = (ranks, heavy, function)
        return function

    return put


def long_case(ranks: int, *, heavy: bool = False) -> Callable[[Callable[[int], None]], Callable[[int], None]]:
    """Puts a function of a number of steps into the table twice: with a few, and heavy with the twenty that are promised.

    One of which others train much the same is `heavy` with twenty alone.
    """

    def put(function: Callable[[int], None]) -> Callable[[int], None]:
        if not heavy:
            _CASES[_name(function)] = (ranks, False, partial(function, 4))
        _CASES[f"{_name(function)}_for_twenty_steps"] = (ranks, True, partial(function, 20))
        return function

    return put


def _name(function: Callable[..., None]) -> str:
    return f"{function.__module__.rpartition('.')[2]}:{function.__name__}"


def listed() -> list[str]:
    """The lines of `topics.CASES`: number of ranks, `heavy` or `light`, name; in the order of the topics."""
    for topic in ORDER:
        importlib.import_module(f"trust.{topic}")
    found = [f"{ranks} {'heavy' if heavy else 'light'} {name}" for name, (ranks, heavy, _) in _CASES.items()]
    return sorted(found, key=lambda line: ORDER.index(line.split()[2].partition(":")[0]))


def run(name: str) -> str:
    """What went wrong in a case on this rank, empty where nothing did. Each case has process groups of its own."""
    importlib.import_module(f"trust.{name.partition(':')[0]}")
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store, wrong = dist.PrefixStore(name, _store()), ""
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=SECONDS))
    torch.manual_seed(0)
    started = time.monotonic()
    try:
        with redirect_stdout(io.StringIO()), _planning(name):
            _CASES[name][-1]()
    except Exception:
        wrong = traceback.format_exc()[-4000:]
    print(f"{time.monotonic() - started:.1f} s {name}", flush=True)
    store.add("ended", 1)
    _wait(store, "ended", ranks)
    pipe.shutdown()
    dist.destroy_process_group()
    _forget_meshes()
    # Rank 0 has the store, and goes last.
    if rank:
        store.set(f"left/{rank}", "")
    for other in range(1, ranks if rank == 0 else 0):
        store.wait([f"left/{other}"])
    return wrong


run.makes_groups = True  # type: ignore[attr-defined]


@functools.cache
def _store() -> dist.Store:
    """One for all cases of a start."""
    environ = os.environ
    address, rank, ranks = (
        (environ["MASTER_ADDR"], int(environ["MASTER_PORT"])),
        int(environ["RANK"]),
        int(environ["WORLD_SIZE"]),
    )
    return dist.TCPStore(*address, ranks, rank == 0, timeout=timedelta(seconds=300))


def _forget_meshes() -> None:
    """Lets go of process groups that torch's caches about DTensors hold: each has a thread that wakes 100 times a second.

    The names are those of torch 2.13; a version without one of them may be slower.
    """
    for module, name in ((debug, "_clear_sharding_prop_cache"), (_redistribute, "clear_redistribute_planner_cache")):
        getattr(module, name, lambda: None)()
    topology = getattr(_collective_utils, "MeshTopoInfo", None)
    for cached in (getattr(_redistribute, "_gen_transform_infos", None), getattr(topology, "build_from_mesh", None)):
        if cached is not None:
            cached.cache_clear()


def _planning(name: str) -> AbstractContextManager[None]:
    return nullcontext() if name.partition(":")[0] in _PLANNED_IN_FULL else planned_quickly()


def _wait(store: dist.Store, key: str, count: int) -> None:
    while store.add(key, 0) < count:
        time.sleep(0.005)


def begin(**settings: Any) -> Any:
    """A pipeline whose ranks wait for each other for `SECONDS` at most."""
    return pipe.init({"timeout_seconds": SECONDS, **settings})


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float = 1e-5) -> None:
    """Raises where tensors differ, with the names of all that do."""
    assert found.keys() == expected.keys(), sorted(found.keys() ^ expected.keys())
    wrong = {
        name: float((found[name].double() - value.double()).norm() / (value.double().norm() + 1e-12))
        for name, value in expected.items()
        if not torch.allclose(found[name].double(), value.double(), rtol=tolerance, atol=tolerance)
    }
    assert not wrong, f"relative differences: {wrong}"


def same_norms(model: Any, alone: nn.Module, **tolerance: float) -> None:
    """Raises where norms of gradients differ: by `get_total_norm`, and by `clip_grad_norm_`, which clips nothing here."""
    expected = [one.grad for one in alone.parameters() if one.grad is not None]
    for kind in (1.0, 2.0, 3.0, float("inf")):
        norm = nn.utils.get_total_norm(expected, kind)
        found = nn.utils.get_total_norm([one.grad for one in model.parameters() if one.grad is not None], kind)
        torch.testing.assert_close(found, norm, **tolerance)
        torch.testing.assert_close(nn.utils.clip_grad_norm_(model.parameters(), 1e9, kind), norm, **tolerance)


def refused(action: Callable[[], Any], *words: str, kind: type[Exception] = pipe.PipelineError) -> str:
    """The message of the error that `action` ends with; it must have these words."""
    try:
        result = action()
    except kind as error:
        text = str(error)
        assert all(word in text for word in words), text
        return text
    raise AssertionError(f"nothing was refused, the result is {result!r}")
