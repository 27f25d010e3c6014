"""Tells when its first and its last statement ran, in nanoseconds of the machine's monotonic clock."""

import time

first = time.monotonic_ns()

import os  # noqa: E402 - nothing may stand before the first reading

marks = os.open(os.environ["BENCH_MARKS"], os.O_WRONLY)
os.write(marks, b"first %d\nlast %d\n" % (first, time.monotonic_ns()))
