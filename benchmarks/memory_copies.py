"""What copies of the state in the hosts' memory cost a training: the stall beside a memcpy, and the time of a step.

    python benchmarks/memory_copies.py [--megabytes 100] [--repeat 15] [--step-ms 200]

Ranks are processes on this machine, each with memory of its own as on a host of its own; they talk over loopback. The state
is that of AdamW, of the given size on each rank, whole (`plain`) or sharded by FSDP2 (`fsdp`). There each rank's share goes
to the other one. The stall is the best of the repeats, as the memcpy of the same tensors in the same process is. A step is
a wait, as for a GPU; rounds with and without copies (`every_steps: 10`) take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _claims import claim

ROOT = Path(__file__).resolve().parents[1]
STEPS = 10  # `every_steps`
ROUND, ROUNDS = 20, 3  # steps, and times that they are taken each way


def rank_main(kind: str, megabytes: int, repeat: int, step_ms: float) -> None:
    """One rank; the first one prints its numbers."""
    import torch
    import torch.distributed as dist

    from trainshed.checkpoint import Checkpointer

    torch.set_num_threads(1)
    if int(os.environ["WORLD_SIZE"]) > 1:
        dist.init_process_group("gloo")
    rows = megabytes * 1_000_000 // 3 // 4 // 1024 // 8 * int(os.environ["WORLD_SIZE"])  # AdamW keeps three of each
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, rows, bias=False) for _ in range(8)))
    if kind == "fsdp":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    held = [*model.parameters(), *(optimizer.state[p][n] for p in model.parameters() for n in ("exp_avg", "exp_avg_sq"))]
    held = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in held]
    kept = [torch.zeros_like(tensor) for tensor in held]

    def memcpy() -> None:
        with torch.no_grad():
            for target, source in zip(kept, held, strict=True):
                target.copy_(source)

    def checkpointer(place: str, **memory: int) -> Any:
        asked: dict[str, Any] = {"memory": memory} if memory else {}
        return Checkpointer(place, model=model, optimizer=optimizer, every_seconds=1e6, check_seconds=1e6, **asked)

    with tempfile.TemporaryDirectory() as folder:
        one = checkpointer(f"{folder}/one", every_steps=1)
        stalls, copies = [], []
        memcpy()
        for number in range(repeat + 3):
            began = time.perf_counter()
            memcpy()
            copies.append(time.perf_counter() - began)
            one._copies._writer.wait()  # a stall that waits for the last copy is counted with the steps
            if dist.is_initialized():
                dist.barrier()
            began = time.perf_counter()
            one.step(number + 1)
            stalls.append(time.perf_counter() - began)
        one.close()
        size = sum(tensor.nbytes for tensor in held)
        with_copies, without = checkpointer(f"{folder}/two", every_steps=STEPS), checkpointer(f"{folder}/three")
        means: dict[str, list[float]] = {"without": [], "with": []}
        for number in range(ROUNDS):
            for saver, times in ((without, means["without"]), (with_copies, means["with"])):
                began = time.perf_counter()
                for more in range(ROUND):
                    time.sleep(step_ms / 1000)
                    saver.step(number * ROUND + more + 1)
                times.append((time.perf_counter() - began) / ROUND)
        for saver in (with_copies, without):
            saver.close()
    if int(os.environ["RANK"]) == 0:
        steps = {how: statistics.median(values) for how, values in means.items()}
        print("NUMBERS " + json.dumps({"stall": min(stalls[3:]), "memcpy": min(copies), "bytes": size, **steps}), flush=True)


def measure(kind: str, ranks: int, arguments: argparse.Namespace) -> dict[str, float]:
    """One kind of state on so many ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    mine = f"{os.getpid()}-bench{kind}{ranks}"
    processes = []
    for rank in range(ranks):
        environ = {
            **os.environ,
            **{"PYTHONPATH": str(ROOT / "toolkit"), "TRAINSHED_TRAIN_ID": f"{mine}{rank}"},
            **{"SM_CURRENT_HOST": f"algo-{rank}", "RANK": str(rank), "WORLD_SIZE": str(ranks)},
            **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
        }
        given = [kind, str(arguments.megabytes), str(arguments.repeat), str(arguments.step_ms)]
        command = [sys.executable, __file__, "--rank", *given]
        processes.append(subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate()[0] for process in processes]
    for path in Path("/dev/shm").glob(f"trainshed-{mine}*"):
        shutil.rmtree(path)
    line = next(line for line in outputs[0].splitlines() if line.startswith("NUMBERS "))
    return dict(json.loads(line.partition(" ")[2]))


def main() -> int:
    """Measures, prints and claims; the exit status."""
    if sys.argv[1:2] == ["--rank"]:
        kind, megabytes, repeat, step_ms = sys.argv[2:]
        rank_main(kind, int(megabytes), int(repeat), float(step_ms))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--step-ms", type=float, default=200)
    arguments = parser.parse_args()
    well = True
    for kind, ranks in (("plain", 1), ("fsdp", 2)):
        found = measure(kind, ranks, arguments)
        what = f"memory copies of {found['bytes'] / 1e6:.0f} MB, {kind}, {ranks} rank(s)"
        well &= claim(f"{what}: stall", found["stall"], "s", times=1.3, peer=found["memcpy"], peer_name="memcpy")
        ratio = found["with"] / found["without"]
        well &= claim(f"{what}: a step of {arguments.step_ms:.0f} ms", ratio, "times as long", limit=1.03)
    return 0 if well else 1


if __name__ == "__main__":
    raise SystemExit(main())
