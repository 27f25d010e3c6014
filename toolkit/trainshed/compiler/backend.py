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

from trainshed.contract.wire.compile_cache import LOCKS
from trainshed.contract.wire.compile_plan import plan_of

from .messages import reason_of, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

ENOUGH = 3  # failures, without a success, after which no graph is tried any more


def install(module: Any) -> None:
    """Hooks into `torch._inductor.compile_fx`.

    Raises:
        RuntimeError: this version lacks the methods that trainshed patches.
    """
    plan = plan_of(os.environ)
    if plan is None or plan.backend != "inductor":
        return
    missing = [name for name in ("compile_fx", "_compile_fx_inner") if not callable(getattr(module, name, None))]
    if missing:
        raise RuntimeError(f"this version of torch has no {missing[0]}: each rank compiles for itself")
    shared = int(os.environ.get("LOCAL_WORLD_SIZE") or 1) > 1
    guard = Guard(plan.live if shared else "")
    module.compile_fx = guard.whole(module.compile_fx)
    module._compile_fx_inner = guard.part(module._compile_fx_inner)


class Guard:
    """The turns (where the live folder of the cache is named) and the way back, around inductor's two functions.

    `compile_fx` takes the graph of a forward pass, and compiles it and its backward pass; or that later, in the first
    backward pass. Both come to `_compile_fx_inner`.
    """

    def __init__(self, live: str) -> None:
        self._live = live
        self._inside = threading.local()
        self._ok = self._failed = 0

    def whole(self, compile_fx: Callable[..., Any]) -> Callable[..., Any]:
        """Gives back the graph itself where it cannot be compiled."""

        @functools.wraps(compile_fx)
        def compile_or_not(graph: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(self._inside, "value", False):  # it calls itself
                return compile_fx(graph, inputs, *args, **kwargs)
            if self._failed >= ENOUGH and not self._ok:
                return graph.forward
            spare = _copy(graph)
            self._inside.value = True
            try:
                done = compile_fx(graph, inputs, *args, **kwargs)
                self._ok += 1
                return done
            except Exception as error:
                if spare is None or _belongs_to_capture(error):
                    raise
                self._note(error)
                return spare.forward
            finally:
                self._inside.value = False

        return compile_or_not

    def part(self, compile_inner: Callable[..., Any]) -> Callable[..., Any]:
        """Takes turns; gives back a graph that the backward pass itself wanted compiled, where that fails."""

        @functools.wraps(compile_inner)
        def compile_in_turn(graph: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            alone = not getattr(self._inside, "value", False) and kwargs.get("is_backward")
            spare = _copy(graph) if alone else None
            try:
                with turn(self._live, graph, inputs):
                    return compile_inner(graph, inputs, *args, **kwargs)
            except Exception as error:
                if spare is None:
                    raise
                self._note(error)
                from functorch.compile import make_boxed_func

                return make_boxed_func(spare.forward)

        return compile_in_turn

    def _note(self, error: Exception) -> None:
        self._failed += 1
        if self._failed <= ENOUGH:
            say(f"stepping back to eager for a graph: {reason_of(error)}", every_rank=True)


def _belongs_to_capture(error: Exception) -> bool:
    """Whether torch raises this to itself while it captures graphs."""
    from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException

    return isinstance(error, TorchDynamoException) and not isinstance(error, BackendCompilerFailed)


def _copy(graph: Any) -> Any:
    """The graph as it is now, since compiling may change it; None for what is no graph module."""
    import torch

    if not isinstance(graph, torch.fx.GraphModule):
        return None
    return torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))


@contextlib.contextmanager
def turn(live: str, graph: Any, inputs: Any) -> Iterator[None]:
    """Waits until no other process of this host compiles the same graph. Does not wait without a live folder."""
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
