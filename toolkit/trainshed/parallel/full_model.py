"""Runs the undivided model outside of steps, on the first rank of each pipeline: for what calls a model in ways of its own.

`generate` of transformers calls a model once for each token, with a cache that it hands on; stages would have to send that
cache to and fro. So the other ranks lend what they hold (parameters, buffers, and what modules keep in attributes), wait,
and get the result.
"""

from __future__ import annotations

import pickle
from typing import Any

import torch
from torch import nn

from trainshed.base.errors import shorten

from .engine.batch import digest
from .engine.checking import gathered, meet
from .engine.holding import Holding
from .engine.object_collectives import GENERATE, RESULT, ROOM
from .engine.verify.attributes import Attributes
from .engine.verify.traces import Traces
from .engine.verify.values import WholeParameters, fetch_buffers, fetch_parameters
from .engine.verify.verify_budget import has_room_for_all
from .ground.errors import PipelineError
from .ground.torch_private import buffers_in
from .ground.tree import map_leaves
from .tracing import host_rng as dice
from .tracing import rng


def on_first_rank(holding: Holding, call: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns what a method of the user's model returns, on all ranks of the pipeline. Collective over the pipeline.

    Nothing of it stays in the model. Random numbers that it draws are drawn for all ranks, if they were at the same place.

    Args:
        call: the method.
        args, kwargs: for it; the same on all ranks.

    Raises:
        PipelineError: on all ranks, if they were given other inputs, the model has no room on the first rank, or that one
            ends with an error (its own error there).
    """
    grid, root = holding.grid, holding.root
    meet(grid, GENERATE, f"{root.training}", digest([(args, kwargs)]))
    leads = grid.place.pipeline == 0
    if not all(gathered(grid, ROOM, not leads or has_room_for_all(root, grid))):
        raise PipelineError(
            f"model.{call}() needs the whole model on the first rank, which has no room for it",
            hint="load model.state_dict() in a process that has: for a checkpoint, say",
        )
    values = WholeParameters(root, fetch_parameters(holding))
    buffers, attributes = fetch_buffers(holding), Attributes(holding)
    before = rng.get_state(grid.device), dice.get_state()
    answer: Any = None
    failure: Exception | None = None
    if leads:
        traces = Traces(root, lambda: None, grid.device)
        try:
            with values.there(), attributes.there(), torch.no_grad():
                _take(root, buffers)
                result = getattr(root, call)(*args, **kwargs)
            sent = map_leaves(_plain, result)
            pickle.dumps(sent)  # what cannot be sent is an error here
            answer = True, sent, rng.get_state(grid.device), dice.get_state(), before
        except Exception as error:
            failure, answer = error, (False, f"{type(error).__name__}: {shorten(str(error))}")
        finally:
            traces.restore()
    worked, found, *drawn = gathered(grid, RESULT, answer)[0]
    if not worked:
        raise PipelineError(f"model.{call}() ended on rank {grid.pipeline_ranks[0]} with {found}") from failure
    state, rolled, (first_state, first_rolled) = drawn
    if torch.equal(first_state, before[0]):
        rng.set_state(state, grid.device)
    if dice.same(first_rolled, before[1]):
        dice.set_state(rolled)
    return result if leads else map_leaves(lambda leaf: _there(leaf, grid.device), found)


def _take(root: nn.Module, buffers: dict[str, torch.Tensor]) -> None:
    """Puts buffers of other ranks into the model, which has what it had again when its traces are put back."""
    there = dict(root.named_buffers())
    for name, value in buffers.items():
        if name in there:
            there[name].copy_(value)
        else:
            module, _, key = name.rpartition(".")
            buffers_in(root.get_submodule(module))[key] = value


def _plain(leaf: Any) -> Any:
    return leaf.detach().cpu() if isinstance(leaf, torch.Tensor) else leaf


def _there(leaf: Any, device: torch.device) -> Any:
    return leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf
