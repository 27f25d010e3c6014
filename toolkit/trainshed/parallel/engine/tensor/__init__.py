"""Tensor parallelism without stages: modules whose parameters are divided among the ranks of a tensor group."""
