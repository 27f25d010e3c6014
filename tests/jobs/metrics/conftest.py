"""Fixtures for whole jobs with metrics."""

from support.runner_project import project

__all__ = ["project"]
