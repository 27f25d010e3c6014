"""The parts of `benchmarks/gpu.py`, a module each, in the order in which they run."""
