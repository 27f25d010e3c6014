"""Property tests: hypothesis is imported when one of them runs, and not by every process that only collects them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

import pytest

from support.lazy import Lazy

# Other packages of this environment would add to hypothesis what no test here needs, and import themselves for it.
os.environ.setdefault("HYPOTHESIS_NO_PLUGINS", "1")

st = Lazy("hypothesis.strategies")


def given(
    strategies: Callable[[], Any], *, example: dict[str, Any] | None = None, **settings: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes a property test of a function; its fixtures are the arguments that can be given by name alone.

    Args:
        strategies: returns those of all other arguments: one, a tuple in their order, or a dict by their names.
        example: one case that is always tried.
        settings: hypothesis' own, for this test. Time is never judged: a machine that stalls is no defect of what is tested.
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        whole = inspect.signature(test)
        fixtures = [one for one in whole.parameters.values() if one.kind is one.KEYWORD_ONLY]

        def wake() -> Callable[..., None]:
            import hypothesis

            test.__signature__ = whole
            made = strategies()
            if not isinstance(made, dict):
                names = [name for name, one in whole.parameters.items() if one not in fixtures]
                made = dict(zip(names, made if isinstance(made, tuple) else (made,), strict=True))
            woken = hypothesis.given(**made)(test)
            woken = hypothesis.example(**example)(woken) if example else woken
            slow = hypothesis.HealthCheck.too_slow
            return hypothesis.settings(deadline=None, suppress_health_check=[slow], **settings)(woken)

        test.__signature__ = whole.replace(parameters=fixtures)  # what pytest has to give
        test.wake = wake
        return test

    return decorate


def wake(item: pytest.Item) -> None:
    """Before its first run, a property test becomes one of hypothesis."""
    if wake := getattr(getattr(item, "obj", None), "wake", None):
        item.obj = wake()
