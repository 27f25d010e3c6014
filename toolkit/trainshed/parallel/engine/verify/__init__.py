"""Verifies what a pipelined step has computed against the undivided model."""
