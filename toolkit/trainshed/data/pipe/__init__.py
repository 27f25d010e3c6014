"""Channels in Pipe mode: one process of a host reads the pipe of an epoch, and gives every rank its batches."""
