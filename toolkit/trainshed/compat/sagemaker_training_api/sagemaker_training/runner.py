"""The interface by which an image's own launcher starts the user's script."""

from __future__ import annotations

import enum
from typing import Any

from . import environment, errors, process


class RunnerType(enum.Enum):
    """The toolkit's ways to start a script; here a launcher starts one process, and `train` everything else."""

    MPI = "MPI"
    Process = "Process"
    SMDataParallel = "SMDataParallel"
    PyTorchXLA = "PyTorchXLA"
    TorchDistributed = "TorchDistributed"


ProcessRunnerType = RunnerType.Process
MPIRunnerType = RunnerType.MPI
SMDataParallelRunnerType = RunnerType.SMDataParallel
PyTorchXLARunnerType = RunnerType.PyTorchXLA
TorchDistributedRunnerType = RunnerType.TorchDistributed


def get(
    identifier: Any,
    user_entry_point: str | None = None,
    args: list[str] | None = None,
    env_vars: dict[str, str] | None = None,
    extra_opts: dict[str, Any] | None = None,
) -> process.ProcessRunner:
    """Returns the runner for a type; returns a runner unchanged.

    Raises:
        errors.ClientError: a distribution, which is `train`'s to start.
        ValueError: nothing of the kind.
    """
    if isinstance(identifier, process.ProcessRunner):
        return identifier
    if identifier is not RunnerType.Process and isinstance(identifier, RunnerType):
        raise errors.ClientError(
            f"trainshed starts {identifier.value} itself: leave out SAGEMAKER_TRAINING_MODULE (or the call of "
            "entry_point.run) and ask for the distribution by hyperparameters, as the SDKs do"
        )
    if identifier is not RunnerType.Process:
        raise ValueError(f"Invalid identifier {identifier}")
    env = environment.Environment()
    return process.ProcessRunner(
        user_entry_point or env["user_entry_point"], args or env.to_cmd_args(), env_vars or env.to_env_vars(), 1
    )
