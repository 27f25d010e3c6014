"""Which run a command is about."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable

from . import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.runner.state.stored import Stored


def run_of(options: Namespace) -> Stored:
    """The run that RUN names; without RUN this folder's newest one, as `Parser.add_run` tells people. Raises NoRunError."""
    from trainshed.runner.state.stored import find, newest

    return find(options.run, os.environ) if options.run else newest(os.environ, say, acts=options.acts)


def run_or_none(text: str, is_other: Callable[[str], bool]) -> Stored | None:
    """The run that a person names; None for a folder or file of another kind. Raises NoRunError also where it may be either.

    Args:
        is_other: whether a path leads to something of the other kind; it is not asked about the folders of runs.
    """
    from trainshed.runner.state.stored import find, is_runs_folder, refuse_run_named

    if is_runs_folder(text) or not is_other(text):
        return find(text, os.environ)
    refuse_run_named(text, os.environ)
    return None
