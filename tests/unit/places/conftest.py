"""Tests of the places work in a project folder."""

from support.runner_project import project

__all__ = ["project"]
