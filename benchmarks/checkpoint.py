"""What a checkpoint costs: ours against torch.save and torch.distributed.checkpoint, and against the machine's limits.

    python benchmarks/checkpoint.py                      # 0.5 and 2 GB, one table
    python benchmarks/checkpoint.py --megabytes 256 --repeat 5

Each method runs in a process of its own, saves a state of 16 MiB float32 tensors once to warm up and then `--repeat`
times, in turn with the two limits: a memcpy of the same state into memory that is already there (what a snapshot cannot
beat) and `dd conv=fsync` of as many bytes (what everyone calls the disk's speed). The best of the repeats counts, for the
limits as well: whatever else the machine does only ever adds time.

    stall     seconds that the training loop stands still
    durable   seconds until the data is fsynced and may be relied on ("-": this method never says so)
    vs memcpy stall / memcpy of the state, in the same process
    vs dd     speed to durable / speed of dd, in the same process
    memory    resident memory that saving adds, as a share of the state
    slowdown  time of a training step (matrix products on all cores) while a save is being written / otherwise
    load      seconds to load, page cache warm; ours includes reading and verifying every checksum
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _claims import claim

METHODS = ("trainshed", "torch.save", "torch.save+fsync", "dcp.save", "dcp.async_save")
PIECE = 4 << 20  # elements of one tensor: 16 MiB of float32


def build(megabytes: int) -> Any:
    """A model whose parameters make up the state."""
    import torch

    count = max(1, megabytes * 1_000_000 // (PIECE * 4))
    return torch.nn.ParameterList([torch.nn.Parameter(torch.randn(PIECE)) for _ in range(count)])


def resident() -> int:
    """Resident memory of this process in bytes, without what is mapped from files."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return sum(int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))


class Method:
    """One way to save: `save` returns when the loop may go on, `finish` when all is on disk."""

    def __init__(self, name: str, model: Any, place: Path) -> None:
        import torch
        import torch.distributed.checkpoint as dcp

        self.name, self.model, self.place = name, model, place
        self.torch, self.dcp = torch, dcp
        self.pending: Any = None
        self.says_durable = name != "torch.save"
        if name == "trainshed":
            from trainshed.checkpoint import Checkpointer

            self.checkpointer = Checkpointer(place / "ours", model=model, every_steps=10, keep_last=1000)
        elif name == "dcp.async_save":
            torch.distributed.init_process_group("gloo", init_method=f"file://{place}/rendezvous", rank=0, world_size=1)

    def save(self, number: int) -> None:
        """Until the loop may go on."""
        target = self.place / f"save{number}"
        if self.name == "trainshed":
            self.checkpointer.step(10 * (number + 1))
        elif self.name.startswith("torch.save"):
            with open(target, "wb") as file:
                self.torch.save(self.model.state_dict(), file)
                if self.name.endswith("fsync"):
                    file.flush()
                    os.fsync(file.fileno())
        elif self.name == "dcp.save":
            self.dcp.save(self.model.state_dict(), checkpoint_id=target, no_dist=True)
        else:
            self.pending = self.dcp.async_save(self.model.state_dict(), checkpoint_id=target)

    @property
    def done(self) -> bool:
        """Whether nothing is being written any more."""
        if self.name == "trainshed":
            return not self.checkpointer.busy
        return self.pending is None or self.pending.done()

    def finish(self) -> None:
        """Until all is on disk."""
        if self.name == "trainshed":
            self.checkpointer.wait()
        elif self.pending is not None:
            self.pending.result()

    def load(self, number: int) -> None:
        """Loads what was saved last."""
        target = self.place / f"save{number}"
        if self.name == "trainshed":
            if self.checkpointer.restore() != 10 * (number + 1):
                raise SystemExit("the wrong checkpoint was loaded")
        elif self.name.startswith("torch.save"):
            self.model.load_state_dict(self.torch.load(target))
        else:
            state = self.model.state_dict()
            self.dcp.load(state, checkpoint_id=target, no_dist=True)

    def forget(self, number: int) -> None:
        """Deletes a save, so that the disk does not fill up."""
        target = self.place / f"save{number}"
        if self.name == "trainshed":
            target = self.place / f"ours/step-{10 * (number + 1):012d}"
        if target.is_dir():
            shutil.rmtree(target)
        elif target.exists():
            target.unlink()


def timed(action: Callable[[], object]) -> float:
    """Seconds that it takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def dd(path: Path, size: int) -> float:
    """Seconds that dd needs to write as many bytes and fsync them."""
    command = ["dd", "if=/dev/zero", f"of={path}", "bs=1M", f"count={size >> 20}", "conv=fsync", "status=none"]
    seconds = timed(lambda: subprocess.run(command, check=True))
    path.unlink()
    return seconds


def measure(name: str, megabytes: int, repeat: int, place: Path) -> dict[str, float]:
    """One method in this process."""
    import torch

    model = build(megabytes)
    size = sum(tensor.numel() * 4 for tensor in model.parameters())
    kept = [torch.zeros_like(tensor) for tensor in model.parameters()]

    def memcpy() -> None:
        with torch.no_grad():
            for target, source in zip(kept, model.parameters(), strict=True):
                target.copy_(source)

    left, right = torch.randn(384, 384), torch.randn(384, 384)

    def step() -> None:
        for _ in range(6):
            torch.mm(left, right)

    memcpy()
    method = Method(name, model, place)
    before = resident()
    peak = before
    watching = True

    def watch() -> None:
        nonlocal peak
        while watching:
            peak = max(peak, resident())
            time.sleep(0.01)

    watcher = threading.Thread(target=watch)
    watcher.start()
    if name == "trainshed":  # the first steps of a loop, during which memory is made ready
        method.checkpointer.step(1)
    for _ in range(200):
        step()
    first = timed(lambda: method.save(0))
    method.finish()
    watching = False
    watcher.join()
    stalls, durables, copies, disks, idle, busy = [], [], [], [], [], []
    for number in range(1, repeat + 1):
        method.forget(number - 1)
        os.sync()
        copies.append(timed(memcpy))
        disks.append(dd(place / "dd", size))
        began = time.perf_counter()
        stalls.append(timed(lambda number=number: method.save(number)))
        method.finish()
        durables.append(time.perf_counter() - began)
    for number in range(repeat + 1, repeat + 3):  # once more, with a loop that goes on meanwhile
        method.forget(number - 1)
        idle += [timed(step) for _ in range(50)]
        method.save(number)
        while not method.done:
            busy.append(timed(step))
        method.finish()
    load = min(timed(lambda: method.load(repeat + 2)) for _ in range(2))
    return {
        "size": size,
        "stall": min(stalls),
        "first_stall": first,
        "durable": min(durables) if method.says_durable else -1.0,
        "vs_memcpy": min(stalls) / min(copies),
        "vs_dd": min(disks) / min(durables) if method.says_durable else -1.0,
        "memory": (peak - before) / size,
        "slowdown": statistics.median(busy) / statistics.median(idle) if busy else 1.0,
        "load": load,
        "memcpy_gb_s": size / min(copies) / 1e9,
        "dd_gb_s": size / min(disks) / 1e9,
    }


def table(rows: list[tuple[str, int, dict[str, float]]]) -> str:
    """The results as a Markdown table."""
    lines = [
        "| state | method | stall | vs memcpy | durable | vs dd | memory | slowdown | load | (first stall) "
        "| (memcpy, dd GB/s) |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, megabytes, one in rows:
        durable, disk = f"{one['durable']:.2f} s", f"{one['vs_dd']:.2f}x"
        if one["durable"] < 0:
            durable = disk = "-"
        lines.append(
            f"| {megabytes / 1000:g} GB | {name} | {one['stall']:.3f} s | {one['vs_memcpy']:.2f}x "
            f"| {durable} | {disk} "
            f"| {one['memory']:.2f}x | {one['slowdown']:.2f}x | {one['load']:.2f} s "
            f"| {one['first_stall']:.2f} s | {one['memcpy_gb_s']:.1f}, {one['dd_gb_s']:.2f} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Reads the command line, runs every method, prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[500, 2000])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--folder", help="where to write; the system's temporary folder by default")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments.megabytes[0], arguments.repeat, Path(arguments.folder))))
        return 0
    rows = []
    for megabytes in arguments.megabytes:
        for name in arguments.methods:
            with contextlib.ExitStack() as stack:
                place = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.folder))
                command = [sys.executable, __file__, "--one", name, "--megabytes", str(megabytes)]
                command += ["--repeat", str(arguments.repeat), "--folder", place]
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode:
                    print(f"{name}, {megabytes} MB: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
                    return 1
                rows.append((name, megabytes, json.loads(done.stdout.splitlines()[-1])))
                print(f"{name}, {megabytes} MB: done", file=sys.stderr)
    print(table(rows))
    stalls = {(name, megabytes): one["stall"] for name, megabytes, one in rows}
    for megabytes in arguments.megabytes:
        ours = stalls.get(("trainshed", megabytes))
        for peer in ("dcp.async_save", "dcp.save"):
            if ours is not None and (peer, megabytes) in stalls:
                claim(
                    f"checkpoint: what a save of {megabytes} MB costs the loop, beside {peer}",
                    ours,
                    "s",
                    times=1.0,
                    peer=stalls[peer, megabytes],
                    peer_name=peer,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
