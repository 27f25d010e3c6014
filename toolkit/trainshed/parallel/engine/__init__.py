"""Runs a plan on torch.distributed.pipelining's schedules."""
