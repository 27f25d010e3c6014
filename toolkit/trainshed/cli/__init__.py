"""`trainshed`: one word chooses the command, and only that command's modules are loaded."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from trainshed.base.errors import EXIT_INTERNAL, EXIT_JOB, TrainshedError, did_you_mean, visible
from trainshed.contract.wire.variables import LOG_LEVEL

HELP = """\
usage: trainshed COMMAND ...

  init [SCRIPT]         write a job file and a Dockerfile beside a script
  run JOB.yaml|SCRIPT   run a training job here, as processes or as containers;
                        --on slurm submits it
  ps, status, logs      which runs there are, how one stands, what it printed
  attach, stop          watch a run, end it
  resume, clone, rm     take a run up again, write its job file, remove it
  schema                print the job file's JSON schema
  demo                  train a small network in ten seconds, without data
  train                 in a container: run the job that /opt/ml describes
  doctor                check this machine or container, and the job in /opt/ml
  check-image IMAGE     check a container image from outside
  export PLACE JOB.yaml print a job for kubernetes or sagemaker
  compare RUN_A RUN_B   two runs: throughput, loss, time, billable seconds
  checkpoints FOLDER    list, verify, prune and convert checkpoints
  plan SCRIPT           profile a model and write its pipeline plan

  COMMAND --help        print what a command takes
  --version             print the version
  --help                print this
"""


def _run(arguments: list[str]) -> int:
    from .places import main as run

    return run(arguments)


def _runs(name: str) -> Callable[[list[str]], int]:
    """A command around runs, by its name."""

    def command(arguments: list[str]) -> int:
        from .commands import COMMANDS as around

        return around[name](arguments)

    return command


def _demo(arguments: list[str]) -> int:
    from trainshed.container.demo import main as demo

    return demo(arguments)


def _train(arguments: list[str]) -> int:
    from trainshed.container.main import main as train

    return train(arguments)


def _doctor(arguments: list[str]) -> int:
    from trainshed.container.doctor import main as doctor

    return doctor(arguments)


def _check_image(arguments: list[str]) -> int:
    from trainshed.runner.tools.check_image.check import main as check_image

    return check_image(arguments)


def _export(arguments: list[str]) -> int:
    from .export import main as export

    return export(arguments)


def _checkpoints(arguments: list[str]) -> int:
    from trainshed.checkpoint.__main__ import main as checkpoints

    return checkpoints(arguments)


def _compare(arguments: list[str]) -> int:
    from trainshed.runner.tools.compare import main as compare

    return compare(arguments)


def _plan(arguments: list[str]) -> int:
    from trainshed.parallel.plan.arguments import read_plan_arguments

    options = read_plan_arguments(arguments)  # before torch is imported: who asks for help does not wait for it
    from trainshed.parallel.plan.command import run as plan

    return plan(options)


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "run": _run,
    **{name: _runs(name) for name in ("ps", "status", "logs", "stop", "attach", "resume", "clone", "rm", "init", "schema")},
    "demo": _demo,
    "train": _train,
    "doctor": _doctor,
    "check-image": _check_image,
    "export": _export,
    "compare": _compare,
    "checkpoints": _checkpoints,
    "plan": _plan,
}


def main(argv: list[str] | None = None) -> int:
    """The `trainshed` command; returns its exit status. Every error is one line for a person."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        print(HELP, end="")
        return 0
    if arguments[0] in ("--version", "-V", "version"):
        from trainshed import __version__

        print(f"trainshed {__version__}")
        return 0
    command = COMMANDS.get(arguments[0])
    if command is None:
        near = did_you_mean(arguments[0], COMMANDS)
        _say(f"there is no command {arguments[0]!r}" + (f": {near}" if near else "") + "; see `trainshed --help`")
        return EXIT_JOB
    try:
        return command(arguments[1:])
    except TrainshedError as error:
        _say(error.message)
        if error.details:
            print(visible(error.details), file=sys.stderr)
        if error.hint:
            _say(f"hint: {error.hint}")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `trainshed doctor | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that the interpreter's last flush finds a reader
        return 141
    except Exception as error:  # a defect of ours: one line, and the whole only for who asks
        if os.environ.get(LOG_LEVEL, "").upper() == "DEBUG":
            raise
        _say(f"trainshed itself failed: {type(error).__name__}: {error} ({_place(error)})")
        _say(f"hint: this is a defect of trainshed; please report it with what {LOG_LEVEL}=DEBUG prints")
        return EXIT_INTERNAL


def _say(message: str) -> None:
    print(f"trainshed: {visible(message)}", file=sys.stderr)


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}" if trace else "?"
