"""Around inductor's compilation of one graph: ranks take turns, and a graph that cannot be compiled runs as it is.

When several ranks of a host meet the same graph at once, one compiles it and the others wait, and then find it in the
cache. The lock is held by the kernel for as long as the compiling process lives, and only while it compiles: nothing that
one rank needs of another happens in there.
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import functools
import hashlib
import os
import threading

from trainshed.contract.compile_cache import LOCKS
from trainshed.contract.compiler import plan_of

from .voice import reason_of, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

ENOUGH = 3  # failures, without a success, after which no graph is tried any more


def install(module: Any) -> None:
    """Hooks into `torch._inductor.compile_fx`.

    Raises:
        RuntimeError: this version has not what we hook into.
    """
    plan = plan_of(os.environ)
    if plan is None or plan.backend != "inductor":
        return
    if not callable(getattr(module, "compile_fx", None)):
        raise RuntimeError("this version of torch has no compile_fx: ranks compile each for themselves")
    shared = int(os.environ.get("LOCAL_WORLD_SIZE") or 1) > 1
    module.compile_fx = guarded(module.compile_fx, plan.live if shared else "")


def guarded(compile_fx: Callable[..., Any], live: str) -> Callable[..., Any]:
    """`compile_fx` with the turns (where the live folder of the cache is named) and with the way back."""
    inside = threading.local()
    counts = {"ok": 0, "failed": 0}

    @functools.wraps(compile_fx)
    def compile_or_not(graph: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(inside, "value", False):  # it calls itself
            return compile_fx(graph, inputs, *args, **kwargs)
        from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException

        if counts["failed"] >= ENOUGH and not counts["ok"]:
            return graph.forward
        spare = _copy(graph)
        inside.value = True
        try:
            with turn(live, graph, inputs):
                done = compile_fx(graph, inputs, *args, **kwargs)
            counts["ok"] += 1
            return done
        except Exception as error:
            if isinstance(error, TorchDynamoException) and not isinstance(error, BackendCompilerFailed):
                raise  # part of how graphs are captured
            if spare is None:
                raise
            counts["failed"] += 1
            if counts["failed"] <= ENOUGH:
                say(f"stepping back to eager for a graph: {reason_of(error)}", every_rank=True)
            return spare.forward
        finally:
            inside.value = False

    return compile_or_not


def _copy(graph: Any) -> Any:
    """The graph as it is now, since compiling may change it; None for what is no graph module."""
    import torch

    if not isinstance(graph, torch.fx.GraphModule):
        return None
    return torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))


@contextlib.contextmanager
def turn(live: str, graph: Any, inputs: Any) -> Iterator[None]:
    """Waits until no other process of this host compiles the same graph. Without a live folder nobody waits."""
    if not live:
        yield
        return
    try:
        os.makedirs(f"{live}/{LOCKS}", exist_ok=True)
        file = open(f"{live}/{LOCKS}/{fingerprint(graph, inputs)}", "ab")  # noqa: SIM115 (closed below)
    except OSError:
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def fingerprint(graph: Any, inputs: Any) -> str:
    """The same for ranks that are about to compile the same thing."""
    shapes = [
        f"{tuple(value.shape)} {value.dtype} {value.device}" if hasattr(value, "dtype") else str(value) for value in inputs
    ]
    text = "\n".join([str(getattr(graph, "code", "")), *shapes])
    return hashlib.sha256(text.encode()).hexdigest()[:32]
