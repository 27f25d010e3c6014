"""`sagemaker-containers`, the toolkit's name before 2020, based on the newer names."""

from __future__ import annotations

from sagemaker_training.environment import Environment as TrainingEnv


def training_env() -> TrainingEnv:
    """The job as the script sees it."""
    return TrainingEnv()
