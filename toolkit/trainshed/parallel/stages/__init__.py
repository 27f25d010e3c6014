"""The steps of a model in stages: planned, prepared, run by torch's schedules, and checked."""
