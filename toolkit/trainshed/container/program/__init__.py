"""The user's program: located, unpacked, its requirements installed."""

from __future__ import annotations

from trainshed.algorithms import declaration_of
from trainshed.base.errors import JobError
from trainshed.contract.ready_programs import ready_folders

from .locate import Program, locate
from .source import fetch_source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trainshed.contract.job import TrainingJob

    from ..roster.roster import Preparing

__all__ = ["Program", "prepare"]


def prepare(
    job: TrainingJob,
    environ: Mapping[str, str],
    say: Callable[[str], None],
    *,
    dry: bool = False,
    others: Preparing | None = None,
) -> Program:
    """Makes the program ready to run, once on each host.

    Args:
        dry: install nothing; sources are still fetched and unpacked, since the program is not known otherwise.
        others: hears the job's other hosts while this one installs.

    Raises:
        ProgramError: it cannot be found, unpacked or installed.
        JobError: hyperparameters or channels are not what it declares.
        Interrupted: a stop signal arrived.
        ClusterError: another host has ended the job meanwhile.
    """
    folder = fetch_source(job, environ, say)
    program = locate(job, folder, environ)
    _check_declared(job, program, environ)
    if dry or not (program.requirements or program.installs):
        return program
    from .requirements import install  # only where there is something to install

    return install(program, job, environ, say, others)


def _check_declared(job: TrainingJob, program: Program, environ: Mapping[str, str]) -> None:
    """Nothing happens where the program declares nothing.

    Raises:
        JobError: hyperparameters or channels are not what the program declares; with all that is wrong.
        DeclarationError: the declaration itself is wrong.
    """
    path = declaration_of(program.name, (program.folder, *ready_folders(environ)))
    if not path:
        return
    from trainshed.algorithms.checking import check_channels, check_hyperparameters
    from trainshed.algorithms.declaration import read

    algorithm = read(path)
    user = job.hyperparameters.user
    problems = check_hyperparameters(algorithm, user, "hyperparameters.json")
    problems += check_channels(algorithm, {one.name: one for one in job.channels}, user, "inputdataconfig.json")
    if problems:
        raise JobError(problems)
