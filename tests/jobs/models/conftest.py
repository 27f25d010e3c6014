"""Tests of the model store work in a project folder with a store beside it."""

from __future__ import annotations

from support.runner_project import project

__all__ = ["project"]
