"""Measures the steps of a training loop from inside its process, without a change to the script (docs/profiler.md).

hooks puts marks into torch; segments turns them into steps and phases, on the host's clock or on a GPU's; window_file writes
what `observe.steps` reads.
"""
