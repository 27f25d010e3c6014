"""`train`, the command: reads its arguments and runs the job (`training`).

The file `toolkit/train`, which becomes the command on PATH, starts an isolated Python and calls `command`.
"""

from __future__ import annotations

import gc
import os
import sys

from trainshed.base.errors import EXIT_JOB, EXIT_SUCCESS
from trainshed.machine.isolation import isolate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn

USAGE = """\
usage: train [--dry-run] [--help] [--version]

Runs the training job that /opt/ml describes: reads input/config, sets the environment, launches the script under the
distribution the job asks for, passes signals on, and leaves model, output/data, output/success or output/failure.

SIGUSR1 makes it report where every rank is (output/data/hang-<host>-<n>.txt); the job continues.

  --dry-run   print what would be run (command lines, environment, hosts, signals) and exit
  --version   print the version and exit
  --help      print this and exit

SAGEMAKER_BASE_DIR moves /opt/ml elsewhere. `trainshed doctor` checks an image and a job.

Exit status: the script's own; 128+n if signal n killed it; 1 if the program cannot be found, installed or started; 2 if
the job cannot be read; 69 if another host is missing; 70 for a defect of trainshed; 124 if the job hung; 126 if the
program cannot be executed; 127 if it does not exist. An interrupted job ends with trainshed_interrupted_exit_code
(75 under Slurm and Kubernetes).
"""


def main(argv: list[str] | None = None) -> int:
    """The `train` command; returns its exit status."""
    _open_standard_streams()
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["train"]:  # the platform's argument, in an image whose ENTRYPOINT is `train`
        arguments = arguments[1:]
    known = {"--dry-run", "--help", "-h", "--version"}
    unknown = [argument for argument in arguments if argument not in known]
    if unknown:
        from trainshed.base.errors import did_you_mean
        from trainshed.machine.console import say

        near = did_you_mean(unknown[0], known)
        say(f"train does not take {unknown[0]!r}" + (f" ({near})" if near else "") + "; see `train --help`")
        return EXIT_JOB
    if "--help" in arguments or "-h" in arguments:
        print(USAGE, end="")
        return EXIT_SUCCESS
    if "--version" in arguments:
        import trainshed

        print(f"trainshed {trainshed.__version__}")
        return EXIT_SUCCESS
    return train(os.environ, dry_run="--dry-run" in arguments)


def _open_standard_streams() -> None:
    """Descriptors 0 to 2 that we were started without lead to /dev/null; else our own pipes would take their numbers."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is `fd`


def command(argv: list[str] | None = None) -> NoReturn:
    """The whole process: ends without Python's own clean-up, which takes longer than all of our reporting.

    Stop signals wait until `training` handles them, and none of our modules can be one of the user's.
    """
    isolate()
    from trainshed.machine.signals import hold_stops

    hold_stops()
    code = main(argv)
    try:
        print(end="", flush=True)
    except OSError:  # nobody reads any more
        pass
    os._exit(code)


def train(environ: Mapping[str, str], dry_run: bool = False) -> int:
    """Runs one job to its end (or prints what it would run) and returns the exit status."""
    gc.disable()  # a start is mostly imports, which leave nothing to collect
    try:
        from .parent_death import Guardian

        if dry_run:
            from .training import HostTraining

            return HostTraining(environ).show()
        with Guardian(environ) as guardian:  # forked while `train` is small
            from .training import HostTraining

            gc.enable()
            return HostTraining(guardian.environ).execute()
    finally:
        gc.enable()


if __name__ == "__main__":
    command()
