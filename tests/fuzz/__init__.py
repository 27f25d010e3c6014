"""Mutated inputs for everything that reads other people's files and words."""
