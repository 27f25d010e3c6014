"""Prints BENCH_LINES lines of about 60 bytes, then tells what that cost this process.

BENCH_STYLE says how: `blocks` through a buffer of 8 KiB, whatever the launcher made of stdout; `lines` with one print()
of one text; `words` with one print() of several arguments, which is several writes where stdout is unbuffered. With
BENCH_HOLD set it then waits until its launcher has been looked at.
"""

import os
import resource
import sys
import time

lines = int(os.environ["BENCH_LINES"])
style = os.environ["BENCH_STYLE"]
if style == "blocks":
    sys.stdout = open(1, "w", buffering=8192, closefd=False)  # noqa: SIM115 - it lives as long as the script
start = time.monotonic_ns()
if style == "words":
    for step in range(lines):
        print("bench", "step", step, "loss", 0.6931471805599453, "accuracy", 0.9125, "end")
else:
    for step in range(lines):
        print(f"bench step {step:>9} loss 0.6931471805599453 accuracy 0.9125 end")
sys.stdout.flush()
elapsed = time.monotonic_ns() - start

marks = os.open(os.environ["BENCH_MARKS"], os.O_WRONLY)
if "BENCH_HOLD" in os.environ:
    os.write(marks, b"holding %d\n" % os.getpid())
    with open(os.environ["BENCH_RELEASE"]) as release:
        release.read()
usage = resource.getrusage(resource.RUSAGE_SELF)
cpu = round((usage.ru_utime + usage.ru_stime) * 1e9)
os.write(marks, b"elapsed %d\ncpu %d\n" % (elapsed, cpu))
