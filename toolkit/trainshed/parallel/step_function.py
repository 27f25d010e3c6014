"""`@step`: a function that runs once for each microbatch, in a pipeline."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from trainshed.base.errors import did_you_mean

from .engine.batch import Microbatch, runs_evenly
from .ground.errors import PipelineError
from .model import PipelineModel
from .session import grid, session
from .split import join, rows, split
from .tracing.captured_values import name_of


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

    Raises:
        PipelineError: a name is not that of an argument.
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
    for argument in (*non_split_inputs, *axes):
        if argument not in signature.parameters:
            raise PipelineError(
                f"the step function {name_of(function)} has no argument {argument!r}",
                hint=did_you_mean(argument, list(signature.parameters)) or "what `**` takes has no axis of its own: name it",
            )
    run = _in_type(function)

    name = name_of(function).rpartition(".")[2]
    methods: dict[int, Any] = {}

    def _of(owner: Any) -> Any:
        if id(owner) not in methods:
            method = functools.partial(function, owner)
            methods[id(owner)] = step(method, non_split_inputs=non_split_inputs, input_split_axes=input_split_axes)
        return methods[id(owner)]

    @functools.wraps(function, updated=())
    def stepped(*args: Any, **kwargs: Any) -> Any:
        model = session.model
        if not isinstance(model, PipelineModel):
            raise PipelineError("a step runs before the model is wrapped", hint="wrap it in PipelineModel first")
        if session.in_step:
            return function(*args, **kwargs)
        if args and getattr(type(args[0]), name, None) is stepped:  # decorated in a class: a step of each of its objects
            return _of(args[0])(*args[1:], **kwargs)
        bound = signature.bind(*args, **kwargs)
        count = _count(_rows(bound, non_split_inputs, axes))
        microbatches = _microbatches(bound, count, non_split_inputs, axes, name)

        def rows_of(microbatch: Microbatch) -> int | None:
            given = signature.bind(*microbatch[0], **microbatch[1])
            return _rows(given, non_split_inputs, axes)

        session.in_step = True
        try:
            ran = model.engine.run(run, microbatches, rows_of)
            results = join(ran.results, ran.parts)
        finally:
            session.in_step = False
        model.stepped()
        return results

    return stepped


def _rows(bound: inspect.BoundArguments, whole: Sequence[str], axes: Mapping[str, int]) -> int | None:
    """Rows of the first argument that is split."""
    for name, value in bound.arguments.items():
        if name in whole or isinstance(value, PipelineModel):
            continue
        if (found := rows(value, axes.get(name, 0))) is not None:
            return found
    return None


def _count(length: int | None) -> int:
    """Number of microbatches: that of the settings, fewer where a batch has fewer rows."""
    settings = grid().settings
    if not length:  # on a rank that reads no data
        return settings.microbatches
    most = min(length, settings.microbatches)
    ranks = settings.pipeline_parallel_degree
    return next((count for count in range(most, 0, -1) if runs_evenly(settings.schedule, ranks, count)), 1)


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

    @functools.wraps(function, updated=())
    def run(*args: Any, **kwargs: Any) -> Any:
        settings = grid().settings
        if not (settings.fp16 or settings.bf16):
            return function(*args, **kwargs)
        with torch.autocast(grid().device.type, torch.float16 if settings.fp16 else torch.bfloat16):
            return function(*args, **kwargs)

    return run
