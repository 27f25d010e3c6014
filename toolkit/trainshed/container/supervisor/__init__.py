"""Runs the processes of one host: spawn, stream, signal, reap."""
