"""Commands and flags that have been given to users go on to work: earlier_commands.txt lists them, and only grows.

A line is a command and what it takes: `--flag`, `--flag=` with a value, `word`, `[word]`, `word...`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from support.command_line import parser_of
from support.offenders import check_each
from trainshed.cli.commands import all_commands

LINES = Path(__file__).with_name("earlier_commands.txt").read_text().splitlines()
_COUNTS = {None: "{}", "?": "[{}]", "*": "[{}...]", "+": "{}...", argparse.REMAINDER: "{}..."}


def spelled(action: argparse.Action) -> list[str]:
    """An argument as the list has it, one text a spelling."""
    if action.option_strings:
        return [flag if action.nargs == 0 else f"{flag}=" for flag in action.option_strings]
    return [_COUNTS[action.nargs].format(action.dest)]  # type: ignore[index]


def inner(parser: argparse.ArgumentParser, word: str) -> argparse.ArgumentParser:
    """The parser of a subcommand."""
    (action,) = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    found = action.choices[word]
    assert isinstance(found, argparse.ArgumentParser)
    return found


def test_every_earlier_command_takes_what_it_took() -> None:
    def check(line: str) -> None:
        words, _, takes = line.partition(":")
        command, *rest = words.split()
        parser: argparse.ArgumentParser = parser_of(command)
        for word in rest:
            parser = inner(parser, word)
        assert {text for action in parser._actions for text in spelled(action)} >= set(takes.split())

    check_each(LINES, check)


def test_every_command_is_listed() -> None:
    listed = {line.partition(":")[0].split()[0] for line in LINES}

    assert {*listed, "train", "runs", "completion", "chaos"} == set(all_commands())
