"""The one error that the user's loop may see."""

from __future__ import annotations


class CheckpointError(Exception):
    """A checkpoint cannot be loaded into this model, or the writer broke down; one line, for a person."""
