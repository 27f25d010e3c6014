"""`Voice`: what it says, and what it never says."""

from __future__ import annotations

import pytest

from trainshed.base.secrets import MASK
from trainshed.base.voice import Voice

pytestmark = pytest.mark.safety


def test_known_secrets_are_masked_the_longest_first() -> None:
    lines: list[str] = []
    voice = Voice(lines.append, ["abcd", "abcd-efgh"])

    voice.say("first abcd-efgh, then abcd")

    assert lines == [f"first {MASK}, then {MASK}"]


def test_a_secret_that_becomes_known_later_is_masked_for_those_who_hold_say_already() -> None:
    lines: list[str] = []
    voice = Voice(lines.append, ["first-secret"])
    say = voice.say

    voice.hide(["second-secret"])
    say("first-secret second-secret")

    assert lines == [f"{MASK} {MASK}"]
    assert set(voice.secrets) == {"first-secret", "second-secret"}


def test_logins_in_urls_are_masked_although_nobody_named_them() -> None:
    lines: list[str] = []

    Voice(lines.append).say("fetching https://user:word@host/x")

    assert lines == [f"fetching https://{MASK}@host/x"]
