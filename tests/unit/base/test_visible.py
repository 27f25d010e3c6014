"""What other people's text may do in our messages: nothing but be read."""

from __future__ import annotations

import pytest

from trainshed.base.errors import JobError, Problem, TrainshedError, one_line, visible
from trainshed.base.voice import Voice, tell


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2Jgone", r"\x1b[2Jgone"),
        ("a\rb\x00c\x7fd\x9be", r"a\rb\x00c\x7fd\x9be"),
        ("user\u202egnp.exe", r"user\u202egnp.exe"),
        ("\u2066\u2069\u200e\u200f\u061c", r"\u2066\u2069\u200e\u200f\u061c"),
        ("one\u2028two\u2029", r"one\u2028two\u2029"),
        ("\ufeffmark\u00ad\u200b", r"\ufeffmark\xad\u200b"),
        ("\ud800\udcff", r"\ud800\udcff"),
        ("\U000e0041tag", r"\U000e0041tag"),
        ("plain ünïcode 数 😀 a\u00a0b", "plain ünïcode 数 😀 a\u00a0b"),
        ("👩\u200d👧 می\u200cخواهم", "👩\u200d👧 می\u200cخواهم"),
    ],
)
def test_what_is_not_to_be_seen_is_spelled_out(text: str, shown: str) -> None:
    assert visible(text) == one_line(text) == shown


def test_line_ends_stay_in_text_and_not_in_a_line() -> None:
    assert visible("a\n\tb") == "a\n\tb"
    assert one_line("a\n\tb") == r"a\n\tb"


def test_an_error_is_one_line_whatever_is_in_it() -> None:
    error = TrainshedError("there is no \x1b[1mx\ntrainshed: Completed", hint="rm\n-rf", details="one\ntwo\x1b")
    assert error.message == str(error) == r"there is no \x1b[1mx\ntrainshed: Completed"
    assert error.hint == r"rm\n-rf"
    problem = Problem("a\nb", "must be \x1b", "f\u202e", "v\n\x00", "or\r")
    assert problem.line() == r"a\nb: f\u202e = v \x00: must be \x1b (or\r)"
    assert "\x1b" not in JobError([problem, problem]).details


def test_a_voice_and_a_line_of_the_users_process_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    Voice(said.append).say("two\nlines\x1b\u202e")
    assert said == ["two\nlines\\x1b\\u202e"]
    tell("a\nb\x1b")
    assert capsys.readouterr().err == "trainshed: a\\nb\\x1b\n"
