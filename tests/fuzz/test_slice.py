"""A slice of the fuzz in every test run; `python -m fuzz` plays as many cases as one likes."""

from __future__ import annotations

import pytest

from fuzz.play import play
from fuzz.targets import TARGETS

pytestmark = pytest.mark.safety

CASES = 900  # together; about five seconds
SHARES = {name: part for name, (_, part) in TARGETS.items() if name != "plan files"}  # torch is not worth it here


@pytest.mark.parametrize("name", SHARES)
def test_mutated_input_is_answered_in_words(name: str) -> None:
    """No exception but ours, no message without words or with control characters, nothing that hangs."""
    count = CASES * SHARES[name] // sum(SHARES.values())
    _, played, _, wrong = play((2026, name, 0, count))
    assert played == count
    assert not wrong, "\n".join(f"{result.number}: {result.problem}" for result in wrong[:3])
