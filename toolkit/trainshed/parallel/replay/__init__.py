"""Replays a part of a recorded forward on one stage."""
