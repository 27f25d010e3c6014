"""Jobs of `trainshed run` are run in a project folder."""

from support.runner_project import project

__all__ = ["project"]
