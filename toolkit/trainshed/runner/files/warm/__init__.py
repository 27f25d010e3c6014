"""Warm pools: what a job with `keep_alive` leaves for the next run of its shape. pool: on disk; keeper: ends it in time."""
