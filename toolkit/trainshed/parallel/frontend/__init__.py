"""Stages that run the user's own Python: what a forward does is recorded once, then each stage replays it, computes
its own part and stands in for the rest."""
