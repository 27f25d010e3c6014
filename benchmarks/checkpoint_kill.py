"""Kills training at random moments, most of them during writes, and counts what a resumed run gets wrong.

    python benchmarks/checkpoint_kill.py --kills 1000
    python benchmarks/checkpoint_kill.py --kills 300 --ranks 2

Every run trains a small model with dropout and AdamW, saves every few steps in the background and writes each loss, to
the last bit, to a log. A random rank is killed by SIGKILL, the others follow within 30 ms, the next run resumes. At the
end every loss that any run has seen is compared with those of one run that was never interrupted.

Prints one JSON object; exit status 1 if anything was wrong. Runs are forked from one process that has imported torch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from trainshed.checkpoint import Checkpointer, folder
from trainshed.machine.network import free_port

INTERVAL = 4  # steps between checkpoints
ENTRY = struct.Struct("<id")  # step, loss
AFTER = -1.0  # in place of a loss: the step's snapshot, if it was due, has been taken (no loss here is negative)
ALL_STEPS = 1 << 30


def train(place: Path, rank: int, ranks: int, port: int, steps: int) -> None:
    """One rank of one run: resumes, notes where, trains and notes every loss."""
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    torch.manual_seed(rank)
    model: torch.nn.Module = torch.nn.Sequential(
        torch.nn.Linear(256, 1024), torch.nn.Dropout(0.1), torch.nn.ReLU(), torch.nn.Linear(1024, 256)
    )
    if ranks > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step / 1000))
    checkpointer = Checkpointer(
        place / "checkpoints",
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        every_steps=INTERVAL,
        keep_last=2,
        check_seconds=0.05,
    )
    step = checkpointer.restore()
    log = os.open(place / f"losses.rank{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(log, ENTRY.pack(-step - 1, 0.0))  # a resume at this step
    while step < steps:
        x = torch.randn(4, 256)
        loss = (model(x) - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        step += 1
        os.write(log, ENTRY.pack(step, loss.item()))
        checkpointer.step(step)
        os.write(log, ENTRY.pack(step, AFTER))
    checkpointer.close()


def warm_up() -> None:
    """Imports what torch imports at the first step, so that the forked runs need not."""
    import torch._dynamo
    import torch.nn.parallel.distributed

    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    torch.optim.AdamW([weight]).step()


def fork_run(place: Path, ranks: int, steps: int) -> list[int]:
    """Starts a run; returns its process ids by rank."""
    port = free_port(0) if ranks > 1 else 0
    pids = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                with open(place / f"stderr.rank{rank}", "w") as file:
                    os.dup2(file.fileno(), 2)
                train(place, rank, ranks, port, steps)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        pids.append(pid)
    return pids


def read_log(path: Path) -> list[tuple[int, float]]:
    """The entries of a loss log; what a kill has cut off is left out."""
    data = path.read_bytes() if path.exists() else b""
    return list(ENTRY.iter_unpack(data[: len(data) // ENTRY.size * ENTRY.size]))


def checkpoint_steps(place: Path) -> list[int]:
    """The steps of all published checkpoints."""
    with contextlib.suppress(FileNotFoundError):
        return [int(name[5:]) for name in os.listdir(place / "checkpoints") if name.startswith("step-")]
    return []


def being_written(place: Path) -> bool:
    """Whether a checkpoint is being written right now."""
    with contextlib.suppress(FileNotFoundError):
        return any(name.startswith(folder.ASIDE) for name in os.listdir(place / "checkpoints"))
    return False


def campaign(place: Path, kills: int, ranks: int, seed: int) -> dict[str, object]:
    """Kills that many runs one after another; what was found, by name."""
    chance = random.Random(seed)
    found = {"during_write": 0, "resumed_from_bad": 0, "lost_more_than_one_interval": 0, "lost_durable": 0, "failed": 0}
    most_lost = 0
    errors: list[str] = []
    for _ in range(kills):
        resumes_before = sum(step < 0 for step, _ in read_log(place / "losses.rank0"))
        done_before = max((step for step, _ in read_log(place / "losses.rank0")), default=0)
        through = max((step for step, loss in read_log(place / "losses.rank0") if loss == AFTER), default=0)
        durable = max(checkpoint_steps(place), default=0)
        pids = fork_run(place, ranks, ALL_STEPS)
        end = time.monotonic() + 60
        while sum(step < 0 for step, _ in read_log(place / "losses.rank0")) == resumes_before and time.monotonic() < end:
            if chance.random() < 0.002:  # now and then the kill comes while the run is still resuming
                break
            time.sleep(0.005)
        time.sleep(chance.random() * 0.15)
        if chance.random() < 0.8:
            until = time.monotonic() + 2
            while not being_written(place) and time.monotonic() < until:
                time.sleep(0.0005)
            time.sleep(chance.random() * 0.03)
        early = [pid for pid in pids if os.waitpid(pid, os.WNOHANG)[0]]
        if early:
            found["failed"] += 1
            errors += [(place / f"stderr.rank{rank}").read_text()[-2000:] for rank in range(ranks)]
        found["during_write"] += being_written(place)
        alive = [pid for pid in pids if pid not in early]
        chance.shuffle(alive)
        for number, pid in enumerate(alive):
            if number:
                time.sleep(chance.random() * 0.03)
            os.kill(pid, signal.SIGKILL)
        for pid in alive:
            os.waitpid(pid, 0)
        entries = read_log(place / "losses.rank0")
        resumes = [-step - 1 for step, _ in entries if step < 0]
        if len(resumes) > resumes_before:
            resumed = resumes[-1]
            found["lost_durable"] += resumed < durable
            # The newest snapshot may have been on its way to the disk; anything older must be there.
            last_snapshot = through // INTERVAL * INTERVAL
            found["lost_more_than_one_interval"] += resumed < last_snapshot - INTERVAL
            most_lost = max(most_lost, done_before - resumed if resumed <= done_before else 0)
        if early:
            break
    last = max((step for step, _ in read_log(place / "losses.rank0")), default=0)
    reference = place / "reference"
    reference.mkdir()
    for pid in fork_run(reference, ranks, last):
        os.waitpid(pid, 0)
    seen = 0
    for rank in range(ranks):
        log = read_log(reference / f"losses.rank{rank}")
        right = {step: loss for step, loss in log if step > 0 and loss != AFTER}
        for step, loss in read_log(place / f"losses.rank{rank}"):
            if 0 < step <= last and loss != AFTER:
                seen += 1
                found["resumed_from_bad"] += right.get(step) != loss
    return {
        "kills": kills,
        "ranks": ranks,
        **found,
        "losses_compared": seen,
        "steps": last,
        "interval": INTERVAL,
        "most_steps_repeated": most_lost,
        "checkpoint_megabytes": 6.3,
        "errors": errors,
    }


@contextlib.contextmanager
def working_folder(parent: str | None) -> Iterator[Path]:
    """A folder that is gone afterwards."""
    place = Path(tempfile.mkdtemp(prefix="checkpoint-kill-", dir=parent))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def main() -> int:
    """Reads the command line, runs the campaign, prints what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", help="where to work; the system's temporary folder by default")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warm_up()
    with working_folder(arguments.folder) as place:
        began = time.monotonic()
        result = campaign(place, arguments.kills, arguments.ranks, arguments.seed)
        result["seconds"] = round(time.monotonic() - began, 1)
    print(json.dumps(result))
    wrong = ("resumed_from_bad", "lost_more_than_one_interval", "lost_durable", "failed")
    return int(any(result[name] for name in wrong))


if __name__ == "__main__":
    sys.exit(main())
