"""`trainshed completion SHELL`: completion of commands, flags, choices and runs for bash, zsh and fish.

The shell's part asks `trainshed completion words` at each TAB, so it never goes stale. Libraries do not fit: shtab
has no fish, and argcomplete needs one parser of the whole program, which no start of `trainshed` builds.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable

from trainshed.base.errors import EXIT_SUCCESS, visible

from . import RUNS
from .commands import all_commands, find
from .parser import Parser, parser_of

SHELLS = {
    "bash": """\
_trainshed() {
    local IFS=$'\\n'
    COMPREPLY=($(trainshed completion words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _trainshed trainshed
""",
    "zsh": """\
#compdef trainshed
_trainshed() {
    local -a found
    found=(${(f)"$(trainshed completion words "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( $#found )); then compadd -- $found; else _files; fi
}
compdef _trainshed trainshed
""",
    "fish": """\
function __trainshed_words
    set -l before (commandline -opc)
    set -l current (commandline -ct)
    trainshed completion words $before[2..-1] "$current" 2>/dev/null
end
complete -c trainshed -a '(__trainshed_words)'
""",
}


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.usage = "trainshed completion bash|zsh|fish"
    parser.description = "Prints the completion of `trainshed` for a shell."
    parser.epilog = (
        'bash, zsh: eval "$(trainshed completion bash)" in ~/.bashrc or ~/.zshrc (zsh after compinit). '
        "fish: trainshed completion fish > ~/.config/fish/completions/trainshed.fish"
    )
    parser.add_argument("shell", choices=(*SHELLS, "words"), metavar="SHELL", help="bash, zsh or fish")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="...", help="of `words`: the line so far")


def run(options: argparse.Namespace) -> int:
    """Prints the shell's script, or the words that may come next; returns the exit status."""
    if options.shell in SHELLS:
        print(SHELLS[options.shell], end="")
        return EXIT_SUCCESS
    *before, current = options.words or [""]
    for word in next_words(before, current):
        if word.startswith(current):
            print(visible(word))
    return EXIT_SUCCESS


def next_words(before: list[str], current: str) -> Iterable[str]:
    """The words that may follow these; none where a file or a text comes next."""
    if before[:1] == ["runs"]:
        before = before[1:]
        if not before:
            return RUNS
    if not before:
        return [*all_commands(), "help"]
    if find(before[0]) is None or before[0] == "train":
        return ()
    parser: argparse.ArgumentParser = parser_of(before[0])[1]
    for word in before[1:]:
        parser = _inner(parser).get(word, parser)
    flags = {flag: action for action in parser._actions for flag in action.option_strings}
    action = flags.get(before[-1])
    if action is not None and action.nargs != 0:
        return _values(action)
    if current.startswith("-"):
        return flags
    return dict.fromkeys(word for one in parser._actions if not one.option_strings for word in _values(one))


def _inner(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The subcommands of a command, by name."""
    found = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return next((dict(action.choices) for action in found), {})


def _values(action: argparse.Action) -> Iterable[str]:
    if action.choices is not None:
        return map(str, action.choices)
    if "RUN" not in str(action.metavar).split("|") or not os.path.isdir("runs"):
        return ()
    return sorted(name for name in os.listdir("runs") if os.path.isdir(f"runs/{name}"))
