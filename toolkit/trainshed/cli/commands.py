"""The commands around `trainshed run`: ps, status, logs, stop, attach, resume, clone, rm, init, schema."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from trainshed.base.errors import EXIT_SUCCESS, EXIT_USER, did_you_mean, visible

if TYPE_CHECKING:
    from trainshed.runner.job.job import Job

_RUN = "the run: its name, the beginning of that, or its folder (default: the newest)"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line."""
        self.exit(2, f"{self.prog}: {message}; see `{self.prog} --help`\n")

    def parse(self, arguments: list[str]) -> argparse.Namespace:
        """As `parse_args`, with the nearest flag for one that does not exist."""
        options, unknown = self.parse_known_args(arguments)
        if unknown:
            known = [flag for action in self._actions for flag in action.option_strings]
            near = did_you_mean(unknown[0].partition("=")[0], known)
            self.error(f"does not take {unknown[0]!r}" + (f" ({near})" if near else ""))
        return options


def _parser(name: str, description: str, *, run: bool = True, epilog: str | None = None) -> _Parser:
    made = _Parser(prog=f"trainshed {name}", description=description, epilog=epilog, allow_abbrev=False)
    if run:
        made.add_argument("run", nargs="?", default="", metavar="RUN", help=_RUN)
    return made


def _say(message: str) -> None:
    print(f"trainshed: {visible(message)}", file=sys.stderr)


def ps(arguments: list[str]) -> int:
    """`trainshed ps`."""
    parser = _parser(
        "ps",
        "Lists the runs of this machine that are not over: those of ./runs and those that the index knows.",
        run=False,
        epilog="A run whose runner was killed is Lost; `trainshed stop` ends and collects it, `trainshed rm` removes it.",
    )
    parser.add_argument("--all", "-a", action="store_true", help="those that are over, too")
    options = parser.parse(arguments)
    from trainshed.runner.control.operations import state_of
    from trainshed.runner.display.runs import table
    from trainshed.runner.state.stored import every

    print(visible(table([(run, state_of(run, os.environ)) for run in every(os.environ)], everything=options.all)), end="")
    return EXIT_SUCCESS


def status(arguments: list[str]) -> int:
    """`trainshed status`."""
    parser = _parser(
        "status", "Tells how a run stands: phases with their seconds, exit status, metrics, reason of a failure."
    )
    parser.add_argument("--json", action="store_true", help="in the shape of DescribeTrainingJob, and `Trainshed` beside it")
    options = parser.parse(arguments)
    from trainshed.runner.control.operations import public_status, state_of
    from trainshed.runner.display.runs import describe
    from trainshed.runner.state.stored import find

    run = find(options.run, os.environ)
    if options.json:
        print(json.dumps(public_status(run, os.environ), indent=2))
    else:
        print(visible(describe(run, state_of(run, os.environ))), end="")
    return EXIT_SUCCESS


def logs(arguments: list[str]) -> int:
    """`trainshed logs`."""
    parser = _parser("logs", "Prints what a run's hosts have printed.")
    parser.add_argument("--follow", "-f", action="store_true", help="go on until the run is over")
    parser.add_argument("--rank", type=int, metavar="N", help="lines of one rank only")
    parser.add_argument("--host", default="", metavar="NAME", help="lines of one host only, like algo-2")
    parser.add_argument("--last", "-n", type=int, metavar="N", help="start with the last N lines of each host")
    options = parser.parse(arguments)
    from trainshed.runner.display.follow import logs_of, show_logs
    from trainshed.runner.state.stored import find

    run = find(options.run, os.environ)
    hosts = logs_of(run)
    if options.host and options.host not in hosts and not options.follow:
        near = did_you_mean(options.host, hosts)
        parser.error(f"there is no log of {options.host!r}" + (f": {near}" if near else ""))
    sys.stdout.flush()
    show_logs(run, 1, host=options.host, rank=options.rank, last=options.last, go_on=options.follow)
    return EXIT_SUCCESS


def stop(arguments: list[str]) -> int:
    """`trainshed stop`."""
    parser = _parser(
        "stop", "Asks a run to end: SIGTERM, its grace (120 s with the report), SIGKILL; what it made is collected."
    )
    parser.add_argument("--kill", action="store_true", help="do not wait for the script")
    options = parser.parse(arguments)
    from trainshed.runner.control.operations import state_of
    from trainshed.runner.control.operations import stop as stop_run
    from trainshed.runner.display.runs import describe
    from trainshed.runner.state.stored import find

    run = stop_run(find(options.run, os.environ), os.environ, _say, kill=options.kill)
    print(visible(describe(run, state_of(run, os.environ))), end="")
    return EXIT_SUCCESS


def attach(arguments: list[str]) -> int:
    """`trainshed attach`."""
    parser = _parser(
        "attach", "Shows a run's lines as they come, and its end; exits with its exit status. Ctrl-C leaves it running."
    )
    options = parser.parse(arguments)
    from trainshed.runner.display.follow import attach as follow
    from trainshed.runner.display.screen import Screen
    from trainshed.runner.state.stored import find

    run = find(options.run, os.environ)
    screen = Screen()
    try:
        run = follow(run, screen)
    except KeyboardInterrupt:
        screen.say(f"{run.name} goes on; `trainshed stop {run.name}` ends it")
        return EXIT_SUCCESS
    finally:
        screen.close()
    if run.lost:
        _say(f"{run.name}: its runner was killed; `trainshed stop {run.name}` ends and collects what it left")
        return EXIT_USER
    code = run.ours.get("ExitCode", EXIT_USER)
    return code if isinstance(code, int) else EXIT_USER


def resume(arguments: list[str]) -> int:
    """`trainshed resume`."""
    parser = _parser(
        "resume", "Takes a run that was stopped, failed or lost up again: same folder, same job, its checkpoints."
    )
    one = "give a hyperparameter another value; secrets that were plain text were not kept"
    parser.add_argument("--hyperparameter", "--hp", action="append", default=[], metavar="K=V", help=one)
    parser.add_argument(
        "--env", action="append", default=[], metavar="K=V", help="the same for a variable; K alone takes yours"
    )
    parser.add_argument("--detach", action="store_true", help="go on in the background")
    options = parser.parse(arguments)
    from trainshed.runner.control.operations import to_resume
    from trainshed.runner.job.flags import hyperparameter_of
    from trainshed.runner.state.stored import find

    given: dict[str, dict[str, Any]] = {"hyperparameter": {}, "env": {}}
    for flag, values in given.items():
        for pair in getattr(options, flag):
            name, equals, text = pair.partition("=")
            if not equals and flag == "env" and name in os.environ:
                equals, text = "=", os.environ[name]
            if not equals or not name:
                parser.error(f"--{flag} {pair}: must be NAME=VALUE")
            values[name] = text if flag == "env" else hyperparameter_of(text)

    def change(job: Job) -> Job:
        return replace(
            job,
            hyperparameters={**job.hyperparameters, **given["hyperparameter"]},
            environment={**job.environment, **given["env"]},
            references={name: one for name, one in job.references.items() if name not in given["env"]},
        )

    run = to_resume(find(options.run, os.environ), os.environ, _say, change)
    if options.detach:
        from trainshed.runner.control.detached import start

        print(start(run.job, os.environ, again=run).name)
        return EXIT_SUCCESS
    from trainshed.runner.control.execution import run_job

    return run_job(run.job, os.environ, again=run)


def clone(arguments: list[str]) -> int:
    """`trainshed clone`."""
    options = _parser("clone", "Prints a job file that makes a run again: trainshed clone RUN > job.yaml").parse(arguments)
    from trainshed.runner.control.operations import clone as cloned
    from trainshed.runner.state.stored import find

    print(cloned(find(options.run, os.environ)), end="")
    return EXIT_SUCCESS


def rm(arguments: list[str]) -> int:
    """`trainshed rm`."""
    parser = _parser("rm", "Removes runs with all that they left: folder, containers, networks, processes.", run=False)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="names, beginnings of names, or folders")
    parser.add_argument("--force", "-f", action="store_true", help="kill what is running")
    options = parser.parse(arguments)
    from trainshed.runner.control.operations import remove
    from trainshed.runner.state.stored import find

    for text in options.runs:
        run = find(text, os.environ)
        remove(run, os.environ, _say, force=options.force)
        print(run.name)
    return EXIT_SUCCESS


def init(arguments: list[str]) -> int:
    """`trainshed init`."""
    parser = _parser(
        "init",
        "Writes a job file and a Dockerfile beside a training script; without a script, a small one as well. "
        "What is there already stays.",
        run=False,
    )
    parser.add_argument("script", nargs="?", default="", metavar="SCRIPT", help="the training script (default: train.py)")
    parser.add_argument("--force", action="store_true", help="write job.yaml and Dockerfile anew")
    options = parser.parse(arguments)
    from trainshed.runner.tools.init import write

    for line in write(options.script, force=options.force):
        print(line)
    return EXIT_SUCCESS


def schema(arguments: list[str]) -> int:
    """`trainshed schema`."""
    _parser("schema", "Prints the JSON schema of the job file, for editors that check as one writes.", run=False).parse(
        arguments
    )
    from trainshed.runner.job.schema_json import text

    print(text(), end="")
    return EXIT_SUCCESS


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "ps": ps, "status": status, "logs": logs, "stop": stop, "attach": attach, "resume": resume, "clone": clone, "rm": rm,
    "init": init, "schema": schema,
}  # fmt: skip
