"""Holds a job against what its program declares of itself, before anything is installed for it."""

from __future__ import annotations

from trainshed.algorithms import declaration_of
from trainshed.base.errors import JobError
from trainshed.contract.ready_programs import ready_folders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainshed.contract.job import TrainingJob

    from .locate import Program


def check_declared(job: TrainingJob, program: Program, environ: Mapping[str, str]) -> None:
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
