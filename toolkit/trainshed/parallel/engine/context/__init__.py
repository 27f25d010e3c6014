"""Sequences that ranks divide among them inside of a model's blocks."""
