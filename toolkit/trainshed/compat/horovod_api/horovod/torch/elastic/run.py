"""`hvd.elastic.run`: a training function that goes on from the last commit."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from ...common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from ..basics import init
from .kept import Kept
from .state import State


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Makes of `func(state, ...)` a function that first takes the last commit of this job, and rank 0's state on all ranks.

    When a rank is lost the function raises HorovodInternalError on all others, and `train` starts all again where
    `trainshed_max_restarts` allows it: a rank alone cannot be replaced.
    """

    @functools.wraps(func)
    def wrapper(state: State, *arguments: Any, **options: Any) -> Any:
        init()
        state.begin(Kept.of_job(os.environ, getattr(func, "__name__", "training")))
        while True:
            state.sync()
            try:
                return func(state, *arguments, **options)
            except HostsUpdatedInterrupt:  # raised by the script itself: a round begins with the state as it is
                state.on_reset()
            except HorovodInternalError as error:
                raise HorovodInternalError(
                    f"{error}; a rank alone cannot be replaced: with trainshed_max_restarts all go on from the last commit"
                ) from error

    return wrapper
