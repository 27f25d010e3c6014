"""What the hosts of a schedule train: files with checksums, and marks of the phases. Copied to code/train.py.

PLAY_SCRIPT: `{"steps", "pause", "handles", "torch", "model_bytes"}` as JSON. PLAY_MARKS: folder for a file a phase,
`<host>.<local rank>.<phase>`.
"""

import hashlib
import json
import os
import random
import signal
import sys
import time

PLAN = json.loads(os.environ["PLAY_SCRIPT"])
HOST = os.environ["SM_CURRENT_HOST"]
LOCAL = os.environ.get("LOCAL_RANK") or os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK") or "0"
STOPPED = []


def mark(phase):
    """Tells the player where this rank is: its process id, in a file that appears whole."""
    path = f"{os.environ['PLAY_MARKS']}/{HOST}.{LOCAL}.{phase}"
    with open(f"{path}.part", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{path}.part", path)


def write(path, step, size=65_536):
    """A file that begins with the checksum of the rest; by another name until it is whole."""
    data = random.Random(f"{HOST} {LOCAL} {step}").randbytes(size)
    with open(f"{path}.part", "wb") as file:
        file.write(hashlib.sha256(data).hexdigest().encode() + data)
        file.flush()
        os.fsync(file.fileno())
    os.rename(f"{path}.part", path)


if PLAN["handles"]:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: STOPPED.append(True))
mark("start")
if PLAN["torch"]:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
checkpoints = os.environ["SM_CHECKPOINT_DIR"]
os.makedirs(checkpoints, exist_ok=True)
for step in range(PLAN["steps"]):
    if step == 1:
        mark("training")
    if PLAN["torch"]:
        dist.all_reduce(torch.ones(1))
    time.sleep(PLAN["pause"])
    if step % 3 == 2 or STOPPED:
        if step == 2:
            mark("saving")
        write(f"{checkpoints}/step-{step}.{HOST}.{LOCAL}", step)
    if STOPPED:
        print("saved and stopped", flush=True)
        sys.exit(0)
write(f"{os.environ['SM_MODEL_DIR']}/model.{HOST}.{LOCAL}", PLAN["steps"], PLAN["model_bytes"])
mark("ending")
time.sleep(PLAN["pause"])
