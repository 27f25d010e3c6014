"""The parser of every command: one style of errors, and the nearest name for one that does not exist."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterable
from types import ModuleType
from typing import Any, NoReturn

from trainshed.base.errors import EXIT_JOB, TrainshedError, did_you_mean, one_line
from trainshed.base.secrets import mask_arguments

RUN_HELP = "the run: its name, the beginning of it, or its folder"
_LOOKS = "default: this folder's newest run, else the newest of all"
_ACTS = "default: this folder's newest run"
_OF_A_JOB = {"--hp", "--no-image"}  # flags of the commands that take a job


def _as_hyperparameters(words: list[str]) -> str:
    """`--epochs 1 --lr=0.1 --amp` as the flags that pass hyperparameters to a script; values of secrets are masked."""
    given: dict[str, str] = {}
    for at, word in enumerate(words):
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            following = words[at + 1] if at + 1 < len(words) and not words[at + 1].startswith("--") else "true"
            given[name] = value if equals else following
    shown = mask_arguments([f"{name}={value}" for name, value in given.items()])
    return " ".join(f"--hp {shlex.quote(one)}" for one in shown)


def whole(text: str) -> int:
    """A whole number from 0 on, as a type of arguments."""
    if not (text.isascii() and text.isdecimal()) or len(text) > 18:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


class UsageError(TrainshedError):
    """The command line asks for something that does not exist or does not go together."""

    exit_code = EXIT_JOB


class Parser(argparse.ArgumentParser):
    """Reads the words after `trainshed COMMAND`. Flags are never guessed from their beginning."""

    def __init__(self, *, prog: str, **options: Any) -> None:
        super().__init__(prog=prog, allow_abbrev=False, **options)

    def read(self, arguments: list[str]) -> argparse.Namespace:
        """The options. Raises SystemExit for `--help` (0) and for words that are not known (2)."""
        options, unknown = self.parse_known_args(arguments)
        if unknown:
            self.error(f"does not take {unknown[0]!r}{self._hint(unknown, [*self._flags(options)])}")
        return options

    def _hint(self, unknown: list[str], flags: list[str]) -> str:
        word = unknown[0].partition("=")[0]
        for_script = _OF_A_JOB.issubset(flags) and word.startswith("--")
        near = did_you_mean(word, flags, 0.85 if for_script else 0.6)
        if for_script and not near:
            near = f"for the script: {_as_hyperparameters(unknown)}"
        return f" ({near})" if near else ""

    def add_run(self, *, acts: bool) -> None:
        """Adds the optional positional RUN: which run a command is about (`which.run_of`).

        Args:
            acts: the command changes or starts something: without RUN it never takes a run of another folder.
        """
        self.add_argument("run", nargs="?", default="", metavar="RUN", help=f"{RUN_HELP} ({_ACTS if acts else _LOOKS})")
        self.set_defaults(acts=acts)

    def take_dashed_words(self) -> None:
        """Takes words with one dash and several letters as values: `--sort -loss`, `tag RUN -draft`.

        argparse does the same with negative numbers, and has a pattern for what looks like one.
        """
        self._negative_number_matcher = re.compile(r"-[^-].*", re.DOTALL)

    def take_lines(self) -> None:
        """Prints the description as its lines are, not as one paragraph."""
        self.formatter_class = argparse.RawDescriptionHelpFormatter

    def error(self, message: str) -> NoReturn:
        """Ends the program with one line and status 2."""
        self.exit(EXIT_JOB, f"{self.prog}: {one_line(message)}; see `{self.prog} --help`\n")

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """The value of an argument. Python before 3.13 drops the one of `--flag=--`, and gives [] instead."""
        if not action.option_strings and "" in arg_strings and action.nargs != argparse.REMAINDER:
            # `trainshed stop "$RUN"` must not stop just any run
            raise argparse.ArgumentError(action, "is empty: is a variable not set?")
        if not action.option_strings or arg_strings != ["--"]:
            return super()._get_values(action, arg_strings)
        value = self._get_value(action, "--")
        self._check_value(action, value)
        return value

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuses a value that is not among the choices, with the nearest one."""
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        near = did_you_mean(str(value), choices)
        message = f"{value!r} must be one of {', '.join(choices)}" + (f" ({near})" if near else "")
        raise argparse.ArgumentError(action, message)

    def _flags(self, options: argparse.Namespace) -> Iterable[str]:
        """The flags of this parser and of the chosen subcommand."""
        for action in self._actions:
            yield from action.option_strings
            if isinstance(action, argparse._SubParsersAction):
                chosen = action.choices.get(getattr(options, action.dest))
                yield from chosen._flags(options) if isinstance(chosen, Parser) else ()


def parser_of(command: str, family: str = "") -> tuple[ModuleType, Parser]:
    """A command's module, and its parser.

    Args:
        command: any but `train`.
        family: the word before it, which messages and usage repeat.

    Raises:
        ValueError: there is none of that name.
    """
    from importlib import import_module

    from .commands import find

    found = find(command)
    if found is None:
        raise ValueError(f"there is no command {command!r}")
    module = import_module(found.module)
    name = f"{family} {command}".lstrip()
    parser = Parser(prog=f"trainshed {name}")
    module.add_arguments(parser)
    if family and parser.usage:
        parser.usage = parser.usage.replace(f"trainshed {command}", f"trainshed {name}")
    return module, parser
