"""`trainshed`: one word chooses the command, and only that command's modules are loaded.

Each command is a module with two functions: `add_arguments(parser)` and `run(options)`, which returns the exit status.
`--help` calls the first one alone, so a file imports what its command needs inside `run`. `commands` has the tables.
`trainshed --help` shows the commands in `SCREEN` and the families; `trainshed help --all` shows all.
"""

from __future__ import annotations

import os
import sys

from trainshed.base.errors import EXIT_INTERNAL, EXIT_JOB, EXIT_USER, TrainshedError, did_you_mean, one_line, visible
from trainshed.contract.wire.variables import LOG_LEVEL

from .commands import all_commands, find

# The first screen: group -> its commands.
SCREEN = {
    "run": ("init", "run", "demo", "algorithms"),
    "look": ("ps", "status", "logs", "watch", "report", "ui"),
    "repeat": ("resume", "rerun"),
    "look after": ("stop", "doctor"),
}
# Commands that have commands of their own, with those that the first screen names.
FAMILIES = {
    "runs": "ls|show|diff|tag|note|rm|clone|rerun|lineage|compare",
    "tune": "TUNE.yaml|status|stop|report",
    "steps": "run|status|show|stop",
    "models": "add|ls|show|tag|get|rm|verify|merge",
    "export": "kubernetes|sagemaker|algorithm|csv|tensorboard|mlflow",
    "cache": "ls|rm|prune",
    "checkpoints": "list|verify|prune|convert",
}
# `trainshed runs ls` and `trainshed ls` are the same command.
RUNS = tuple(FAMILIES["runs"].split("|"))


def main(argv: list[str] | None = None) -> int:
    """The `trainshed` command; returns its exit status. Every error is one line for a person.

    Raises:
        SystemExit: from a command's `--help`, or for a command line that cannot be read.
    """
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        words = arguments[1:] if arguments[:1] == ["help"] else []
        if words and find(words[0]) is not None:
            return main([*words, "--help"])
        print(full_help_text() if words == ["--all"] else help_text(), end="")
        return 0
    if arguments[0] in ("--version", "-V", "version"):
        from trainshed import __version__

        print(f"trainshed {__version__}")
        return 0
    if find(arguments[0]) is None:
        near = did_you_mean(arguments[0], all_commands())
        known = f": {near}" if near else ""
        say(f"there is no command {arguments[0]!r}{known}; see `trainshed --help`")
        return EXIT_JOB
    if (
        argv is None and arguments[0] == "train"
    ):  # the whole process is `train` then: stops and modules are held back at once
        from trainshed.container.main import command

        command(arguments[1:])
    try:
        return dispatch(arguments[0], arguments[1:])
    except TrainshedError as error:
        say(error.message)
        if error.details:
            print(visible(error.details), file=sys.stderr)
        if error.hint:
            say(f"hint: {error.hint}")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `trainshed doctor | head`
        # So that the interpreter's last flush finds a reader.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except ModuleNotFoundError as error:
        if not error.name or error.name.partition(".")[0] == "trainshed":
            return _defect(error)
        say(f"`trainshed {arguments[0]}` needs the module {error.name}, which {sys.executable} does not have")
        say("hint: install its package there; the extras name what each part needs, such as pip install 'trainshed[torch]'")
        return EXIT_USER
    except FileNotFoundError as error:
        from trainshed.machine.isolation import has_folder

        if has_folder():
            return _defect(error)
        say("the working directory has been removed")
        say("hint: change to one that is there: cd ~")
        return EXIT_USER
    except Exception as error:
        return _defect(error)


def dispatch(command: str, arguments: list[str], family: str = "") -> int:
    """Runs one command; returns its exit status. Raises what the command raises.

    Args:
        command: its name.
        arguments: the words after it.
        family: the word before it, for messages: `runs` in `trainshed runs ls`.
    """
    if command == "train":  # reads its own words: it has no time for argparse
        from trainshed.container.main import main as train

        return train(arguments)
    from .parser import parser_of

    module, parser = parser_of(command, family)
    status: int = module.run(parser.read(arguments))
    return status


def help_text() -> str:
    """The text of `trainshed --help`: one screen."""
    lines = ["usage: trainshed COMMAND ... (COMMAND --help: arguments; help --all: the rest)", ""]
    for group, names in SCREEN.items():
        lines += _under(group, [_line(name, 20) for name in names if find(name)])
    lines += _under("families", [f"{name:<12} {words}" for name, words in FAMILIES.items() if find(name)])
    return "\n".join(lines) + "\n"


def full_help_text() -> str:
    """The text of `trainshed help --all`: every command, in groups."""
    shown = {name for names in SCREEN.values() for name in names}
    more = [name for name in all_commands() if name not in {*shown, *FAMILIES, *RUNS}]
    groups = {**SCREEN, "families": FAMILIES, "also as runs COMMAND": RUNS, "more": more}
    lines = ["usage: trainshed COMMAND ..."]
    for title, names in groups.items():
        lines += ["", f"{title}:", *(f"  {_line(name)}" for name in names if find(name))]
    lines += [
        "",
        f"  {'COMMAND --help':<26} print what a command takes",
        f"  {'--version':<26} print the version",
        f"  {'--help':<26} print the commands for every day",
    ]
    return "\n".join(lines) + "\n"


def _line(name: str, width: int = 26) -> str:
    command = all_commands()[name]
    return f"{f'{name} {command.words}'.rstrip():<{width}} {command.summary}"


def _under(title: str, lines: list[str]) -> list[str]:
    """Lines with their title at the left of the first."""
    return [f"{'' if number else title:<11}{line}" for number, line in enumerate(lines)]


def _defect(error: Exception) -> int:
    """Tells a defect of ours in one line; with its traceback on request only."""
    if os.environ.get(LOG_LEVEL, "").upper() == "DEBUG":
        raise error
    say(f"trainshed itself failed: {type(error).__name__}: {error} ({_origin(error)})")
    say(f"hint: this is a defect of trainshed; please report it with what {LOG_LEVEL}=DEBUG prints")
    return EXIT_INTERNAL


def say(message: str) -> None:
    """One line for a person, on standard error."""
    print(f"trainshed: {one_line(message)}", file=sys.stderr)


def _origin(error: BaseException) -> str:
    """`file.py:12`, where an exception was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "?"
    return f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
