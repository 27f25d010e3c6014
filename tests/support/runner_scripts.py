"""Training scripts for tests of the runner: each waits for files, never for time to pass."""

from __future__ import annotations

# Counts steps into its checkpoint folder. Stops there after a stop signal, or when the step is reached that `--until` names.
COUNT = """\
import argparse, os, signal, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--until", type=int, default=10**9)
until = parser.parse_args().until
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
path = os.path.join(os.environ["SM_CHECKPOINT_DIR"], "step-" + os.environ["SM_CURRENT_HOST"])
step = int(open(path).read()) if os.path.exists(path) else 0
print("starting at", step, flush=True)
while step < until:
    step += 1
    print(f"metric loss={1 / step:.6f} step={step}", flush=True)
    with open(path + ".new", "w") as file:
        file.write(str(step))
    os.replace(path + ".new", path)
    if stopped:
        print("saved at", step, flush=True)
        sys.exit(0)
    time.sleep(0.02)
open(os.path.join(os.environ["SM_MODEL_DIR"], "model.bin"), "w").write("x")
"""
# Never ends of its own accord, and ignores stop signals once it has had one.
DEAF = """\
import signal, sys, time
def stop(*_):
    print("deaf", flush=True)
signal.signal(signal.SIGTERM, stop)
print("running", flush=True)
while True:
    time.sleep(0.05)
"""
# Fails until there are two files in the checkpoint folder; each attempt makes one.
FAIL_TWICE = """\
import os
folder = os.environ["SM_CHECKPOINT_DIR"]
count = len(os.listdir(folder))
open(f"{folder}/{count}", "w").close()
if count < 2:
    raise ValueError(f"attempt {count}")
"""
# Leaves so large a model (of nothing but zeros, so it is quickly made) that packing it takes a while.
LARGE = """\
import os
with open(os.path.join(os.environ["SM_MODEL_DIR"], "zeros"), "wb") as file:
    file.truncate(1 << 30)
"""
