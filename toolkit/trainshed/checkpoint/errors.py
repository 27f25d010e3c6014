"""The error that a user's training loop may get."""

from __future__ import annotations


class CheckpointError(Exception):
    """A checkpoint cannot be saved, fetched or loaded into this model; the message is one line for the user."""
