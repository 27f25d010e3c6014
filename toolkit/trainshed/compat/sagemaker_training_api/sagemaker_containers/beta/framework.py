"""`from sagemaker_containers.beta.framework import ...`: the parts for training, and names of those for serving.

AWS's example scripts hold code for training and for serving in one file, so the latter's names must at least import.
"""

from __future__ import annotations

from typing import Any

from sagemaker_containers import TrainingEnv, training_env
from sagemaker_training import (
    content_types,
    encoders,
    entry_point,
    errors,
    files,
    functions,
    intermediate_output,
    mapping,
    modules,
    params,
    process,
    runner,
)
from sagemaker_training import environment as env
from sagemaker_training import logging_config as logging


class _Serving:
    """A part of the old toolkit that answers requests."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        raise AttributeError(
            f"sagemaker_containers.beta.framework.{self._name}.{attribute} serves models; trainshed only trains them"
        )


server, transformer, worker = _Serving("server"), _Serving("transformer"), _Serving("worker")

__all__ = [
    "TrainingEnv", "content_types", "encoders", "entry_point", "env", "errors", "files", "functions", "intermediate_output",
    "logging", "mapping", "modules", "params", "process", "runner", "server", "training_env", "transformer", "worker",
]  # fmt: skip
