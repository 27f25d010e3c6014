"""`@step`: a function that runs once for each microbatch, in a pipeline."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .engine.batch import Microbatch
from .errors import PipelineError
from .model import PipelineModel
from .session import grid, session
from .split import join, split


def step(
    function: Callable[..., Any] | None = None,
    *,
    non_split_inputs: Sequence[str] = (),
    input_split_axes: Mapping[str, int] | None = None,
    detach_outputs: bool = True,
) -> Any:
    """Decorates a function that calls the model, and `model.backward(loss)` if it trains.

    Every tensor among the arguments is split into microbatches; the function runs for each of them on every rank of the
    pipeline, and each rank computes its own stages. Returned tensors become `StepOutput`, other values lists.

    Args:
        non_split_inputs: names of arguments that every microbatch gets whole.
        input_split_axes: argument -> axis to split along, 0 if not named.
        detach_outputs: accepted for scripts that set it; outputs never carry gradients.
    """
    if function is None:
        return lambda chosen: step(
            chosen,
            non_split_inputs=non_split_inputs,
            input_split_axes=input_split_axes,
            detach_outputs=detach_outputs,
        )
    axes = dict(input_split_axes or {})
    signature = inspect.signature(function)
    run = _in_type(function)

    @functools.wraps(function)
    def stepped(*args: Any, **kwargs: Any) -> Any:
        model = session.model
        if not isinstance(model, PipelineModel):
            raise PipelineError("a step runs before the model is wrapped", hint="wrap it in PipelineModel first")
        if session.in_step:
            return function(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        microbatches = _microbatches(bound, grid().settings.microbatches, non_split_inputs, axes, function.__name__)
        session.in_step = True
        try:
            results = join(model.engine.run(run, microbatches))
        finally:
            session.in_step = False
        model.stepped()
        return results

    return stepped


def _microbatches(
    bound: inspect.BoundArguments, parts: int, whole: Sequence[str], axes: Mapping[str, int], function: str
) -> list[Microbatch]:
    """The arguments of each microbatch.

    Args:
        whole: names of arguments that every microbatch gets whole.
        function: its name, for errors.
    """
    pieces: dict[str, list[Any]] = {}
    for name, value in bound.arguments.items():
        if name in whole or isinstance(value, PipelineModel):
            pieces[name] = [value] * parts
        else:
            pieces[name] = split(value, parts, axes.get(name, 0), f"{function}({name})")
    microbatches = []
    for number in range(parts):
        given = type(bound.arguments)((name, values[number]) for name, values in pieces.items())
        microbatch = inspect.BoundArguments(bound.signature, given)
        microbatches.append((microbatch.args, microbatch.kwargs))
    return microbatches


def _in_type(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function under autocast where the settings say float16 or bfloat16."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        settings = grid().settings
        if not (settings.fp16 or settings.bf16):
            return function(*args, **kwargs)
        with torch.autocast(grid().device.type, torch.float16 if settings.fp16 else torch.bfloat16):
            return function(*args, **kwargs)

    return run
