"""Starts and ends the pipeline of a process; puts modules on stages as they are built."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from trainshed.contract.wire.pipeline import (
    PipelineSettings,
    given_in_environment,
    read_settings,
    settings_from_environment,
    without_effect,
)
from trainshed.contract.wire.variables import PIPELINE_BEGUN, PLAN_ONLY

from .choice import choose_degrees
from .delayed.tape import Addresses, Tape
from .float8 import check_float8
from .ground.errors import PipelineError
from .ground.grid import Grid, Joined, join, make_grid, own_device
from .plan.open_ways import smallest_microbatches
from .plan.plan_options import how_asked
from .session import session


def init(config: Mapping[str, Any] | PipelineSettings | None = None, *, device: torch.device | str | None = None) -> Grid:
    """Joins the ranks and lays the grid out. Collective; a second call does nothing.

    Args:
        config: settings; None takes the job's (`TRAINSHED_PIPELINE` or `SM_HP_MP_PARAMETERS`).
        device: this rank's device; None is its GPU, or the CPU where there is none.
    """
    if session.grid is not None:
        return session.grid
    given, where = given_in_environment() if config is None else (config, "init()")
    if os.environ.get(PLAN_ONLY):
        session.planned = settings_from_environment()
        settings = _to_plan(session.planned)
    else:
        settings = read_settings(given.given() if isinstance(given, PipelineSettings) else given, where)
    chosen = torch.device(device) if device is not None else own_device()
    if settings.fp8:
        check_float8(chosen)
    joined = join(settings, chosen)
    _compare(settings, joined)
    if settings.degrees == "auto":
        settings = choose_degrees(settings, joined, chosen)
    session.grid = make_grid(settings, joined, chosen)
    _tell_train()
    # Gloo connects ranks one after the other: one that left now would hang up on those that still connect.
    dist.barrier(joined.control)
    _say_what_changes_nothing(session.grid, given)
    return session.grid


def _tell_train() -> None:
    """`train` learns that this script has begun a pipeline."""
    if path := os.environ.get(PIPELINE_BEGUN):
        with suppress(OSError), open(path, "w"):
            pass


def _to_plan(planned: PipelineSettings) -> PipelineSettings:
    """Those of a process that plans for a job: its microbatches, and its types, by which memory is counted."""
    auto = planned.degrees == "auto"
    count = smallest_microbatches(how_asked().ranks, planned) if auto else planned.microbatches
    types = planned.fp16, planned.bf16, planned.master_weights
    return PipelineSettings(microbatches=count, fp16=types[0], bf16=types[1], master_weights=types[2])


def _say_what_changes_nothing(grid: Grid, given: Mapping[str, Any] | PipelineSettings) -> None:
    """Names settings of Amazon's library that have no meaning here, and why."""
    idle = without_effect(given) if isinstance(given, Mapping) else ()
    if idle and grid.rank == 0:
        print(f"settings that change nothing: {'; '.join(idle)}", flush=True)


def _compare(settings: PipelineSettings, joined: Joined) -> None:
    """Ranks with other settings than the first one's would wait for each other; those that hash in another way may build
    another model, for sets of strings have another order there, unless all hash alike, which `train` sees to. Collective.

    Raises:
        PipelineError: on all ranks, where one has other settings.
    """
    found: list[Any] = [None] * joined.world
    dist.all_gather_object(found, (hash("trainshed"), settings.replace(partition_file="").plain()), group=joined.control)
    for rank, (_, other) in enumerate(found):
        for name, value in other.items():
            if value != (first := found[0][1][name]):
                raise PipelineError(
                    f"the ranks differ in their settings: {name} is {value!r} on rank {rank}, {first!r} on rank 0",
                    hint="give init() the same settings on all ranks",
                )
    if joined.rank == 0 and len({hashed for hashed, _ in found}) > 1:
        warnings.warn(
            "the ranks hash strings differently: a model that walks through a set runs in another order on each rank; "
            "start all of them with PYTHONHASHSEED=0",
            RuntimeWarning,
            stacklevel=3,
        )


def shutdown() -> None:
    """Ends what `init` and the model have set up; leaves the process group if `init` made it.

    Another `init` may follow, with other settings and another model.
    """
    if session.grid is not None:
        session.grid.close()
    session.clear()
    # A process group in a cycle would otherwise end in whatever process is forked next (a data loader's worker), where its
    # threads are not, and which waits for them for ever.
    gc.collect()


def is_initialized() -> bool:
    """Returns whether `init` was called."""
    return session.grid is not None


@contextmanager
def partition(stage: int) -> Iterator[None]:
    """Modules built inside belong to `stage` where auto_partition is off; the innermost wins."""
    native = nn.Module.__init__

    def remembering(module: nn.Module, *args: Any, **kwargs: Any) -> None:
        native(module, *args, **kwargs)
        session.built_in[id(module)] = (module, session.partition_stack[-1])

    session.partition_stack.append(stage)
    nn.Module.__init__ = remembering  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        session.partition_stack.pop()
        nn.Module.__init__ = native  # type: ignore[method-assign]


@contextmanager
def tensor_parallelism(enabled: bool = True) -> Iterator[None]:
    """Marks the modules that are built inside: only marked modules are divided, or all but those that are excluded.

    Args:
        enabled: whether they are to be divided; the innermost block counts.
    """
    native = nn.Module.__init__

    def remembering(module: nn.Module, *args: Any, **kwargs: Any) -> None:
        native(module, *args, **kwargs)
        session.tensor_marks.mark(module, enabled)

    nn.Module.__init__ = remembering  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        nn.Module.__init__ = native  # type: ignore[method-assign]


def set_tensor_parallelism(module: nn.Module, enabled: bool = True) -> None:
    """Marks a module and all in it, as `tensor_parallelism` does; before the first step.

    Raises:
        PipelineError: the model is divided already.
    """
    if session.holding is not None and session.holding.partitioned:
        raise PipelineError("the model is divided already", hint="call set_tensor_parallelism before the first step")
    for one in module.modules():
        session.tensor_marks.mark(one, enabled)


def set_context_parallelism(module: nn.Module, enabled: bool = True) -> None:
    """Says that a module is a block inside of which sequences are divided, or that it is none; before the first step.

    Where a script names blocks, only those are divided; else the entries of lists of modules that call attention.

    Raises:
        PipelineError: the first step has run.
    """
    if session.holding is not None and session.holding.partitioned:
        raise PipelineError("the first step has run", hint="call set_context_parallelism before the first step")
    session.context_marks.mark(module, enabled)


@contextmanager
def delayed_initialization(enabled: bool = True) -> Iterator[None]:
    """A model that is built inside gets the values of its parameters in the first step, a rank those of its own stages.

    They are those that it would have had; until then it takes next to no memory. Random numbers go on as ever. Give all
    ranks the same seed first, and do all that changes parameters inside the block.

    Args:
        enabled: False does nothing.

    Raises:
        PipelineError: the model is wrapped already, or the system reserves no addresses.
    """
    if not enabled:
        yield
        return
    if session.model is not None:
        raise PipelineError(
            "delayed_initialization() comes after the model was wrapped", hint="build the model inside of it, then wrap it"
        )
    if session.tape is None:
        session.tape = Tape(draws=not how_asked().count)
    with Addresses(session.tape), session.tape:
        yield
    session.tape.fill_all_but_parameters()
