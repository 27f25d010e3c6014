"""The table of cases, on the side of the ranks that run them one after the other."""

from __future__ import annotations

import importlib
import io
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from plans import counted, measures
from ranks import SECONDS
from torch import nn

import trainshed.parallel as pipe
from support.combinations import CASES
from trainshed.parallel.session import grid, session

from .topics import TOPICS

# Topics about what plans put back when they are made: all that a job does for one is done.
_PLANNED_IN_FULL = frozenset({"surroundings", "noted", "callables", "kept", "remembered"})

_CASES: dict[str, tuple[int, bool, Callable[[], None]]] = {}


def case(ranks: int, *, heavy: bool = False, name: str = "") -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Puts a function into the table: every one of `ranks` ranks runs it, and it raises where something is wrong.

    One that takes long is `heavy`. `topics` reads the sources: this is called at the start of a line, in one line.

    Args:
        name: of the case, for functions that are made.
    """

    def put(function: Callable[[], None]) -> Callable[[], None]:
        _CASES[f"{_topic(function)}:{name or function.__name__}"] = (ranks, heavy, function)
        return function

    return put


def long_case(ranks: int, *, heavy: bool = False) -> Callable[[Callable[[int], None]], Callable[[int], None]]:
    """Puts a function of a number of steps into the table twice: with a few, and heavy with the twenty that are promised.

    One of which others train much the same is `heavy` with twenty alone.
    """

    def put(function: Callable[[int], None]) -> Callable[[int], None]:
        name = f"{_topic(function)}:{function.__name__}"
        if not heavy:
            _CASES[name] = (ranks, False, partial(function, 4))
        _CASES[f"{name}_for_twenty_steps"] = (ranks, True, partial(function, 20))
        return function

    return put


def _topic(function: Callable[..., None]) -> str:
    return function.__module__.rpartition(".")[2]


def registered() -> list[tuple[str, int, bool]]:
    """A work that imports all topics: what they have put into the table."""
    for topic in itertools.chain(*TOPICS.values()):
        importlib.import_module(f"trust.{topic}")
    return [(name, ranks, heavy) for name, (ranks, heavy, _) in _CASES.items()]


@measures
def play(name: str) -> None:
    """A work that runs a case; it ends this rank where something is wrong."""
    topic = name.partition(":")[0]
    importlib.import_module(f"trust.{topic}")
    with redirect_stdout(io.StringIO()), counted(runs=topic in _PLANNED_IN_FULL), trained_together(CASES.get(name, ())):
        _CASES[name][-1]()


@contextmanager
def trained_together(wanted: Sequence[Collection[str]]) -> Iterator[None]:
    """Raises at the end of the block where no step in it has had all features of one of these, as a page says."""
    missing, native = {frozenset(one) for one in wanted}, pipe.PipelineModel.stepped

    def stepped(model: pipe.PipelineModel) -> None:
        delayed = {"delayed_parameter_initialization"} if session.tape is not None else set()
        features = {*grid().settings.features, *delayed}
        missing.difference_update([one for one in missing if one <= features])
        native(model)

    with patch.object(pipe.PipelineModel, "stepped", stepped) if wanted else nullcontext():
        yield
    assert not missing, f"support/combinations.py says that these are trained together: {missing}"


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
