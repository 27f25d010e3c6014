"""Acting on runs: start, watch, repeat, stop, resume, remove, and recover what a killed runner left."""
