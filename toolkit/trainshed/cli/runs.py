"""`trainshed runs`: the family of commands about runs, past and present."""

from __future__ import annotations

from argparse import REMAINDER, Namespace

from . import RUNS, dispatch
from .commands import all_commands
from .parser import Parser


def add_arguments(parser: Parser) -> None:
    """The command line: a command, and the words that go to it."""
    parser.usage = "trainshed runs COMMAND ..."
    width = max(map(len, RUNS))
    known = all_commands()
    listed = "\n".join(f"  {name:<{width}}  {known[name].summary}" for name in RUNS if name in known)
    parser.take_lines()
    parser.description = f"Search, compare, tag, repeat and remove runs:\n\n{listed}"
    parser.epilog = "`trainshed runs COMMAND --help` prints what it takes. `trainshed COMMAND` is the same."
    parser.add_argument("command", choices=RUNS, metavar="COMMAND", help="one of these")
    parser.add_argument("words", nargs=REMAINDER, metavar="...", help="what it takes")


def run(options: Namespace) -> int:
    """Runs the command; returns its exit status. Raises what the command raises."""
    return dispatch(options.command, options.words, "runs")
