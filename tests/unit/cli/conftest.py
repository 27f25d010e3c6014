"""Tests of commands work in a project folder."""

from support.prey import prey
from support.runner_project import project

__all__ = ["prey", "project"]
