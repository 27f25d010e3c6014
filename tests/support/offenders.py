"""One test for all rows of a rule: it looks at all of them, and its one failure names all that break the rule."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

import pytest

T = TypeVar("T")
IN_FULL = 5


def no_offenders(found: Mapping[str, Collection[str]], rule: str) -> None:
    """Fails where anything is found wrong with any of these names, and says the rule, and all that was found."""
    __tracebackhide__ = True
    assert found, "nothing was looked at"
    wrong = [f"{name}: {', '.join(sorted(what))}" for name, what in found.items() if what]
    assert not wrong, "\n".join([f"{rule} ({len(wrong)} of {len(found)} break it)", *wrong])


def check_each(cases: Iterable[T], check: Callable[[T], object], name: Callable[[T], str] = str) -> None:
    """Fails where the check of any case does: names all such cases, and shows the first few in full."""
    __tracebackhide__ = True
    cases = list(cases)
    assert cases, "nothing was looked at"
    failed: dict[str, BaseException] = {}
    for number, case in enumerate(cases):
        try:
            check(case)
        except (Exception, pytest.fail.Exception) as error:
            failed[f"case {number}, {name(case)}"] = error
    if failed:
        said = {key: f"{type(error).__name__}: {error}".removeprefix("AssertionError: ") for key, error in failed.items()}
        lines = [f"{key}: {text.partition(chr(10))[0]}" for key, text in said.items()]
        shown = [f"--- {key}\n{text}" for key, text in said.items() if "\n" in text][:IN_FULL]
        first = next(iter(failed.values()))
        raise AssertionError("\n".join([f"{len(failed)} of {len(cases)} fail", *lines, *shown])) from first
