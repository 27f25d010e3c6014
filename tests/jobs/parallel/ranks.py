"""Starts ranks of a pipeline as torchrun does, and collects what they found."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from support.paths import ROOT, TOOLKIT

HERE = Path(__file__).parent


def environment(rank: int, world: int, port: int, extra: dict[str, str] | None = None) -> dict[str, str]:
    """torchrun's variables for one rank."""
    # The hook that `train` gives its ranks lets gloo's threads put down their tensors before the interpreter is taken apart.
    hook = TOOLKIT / "trainshed" / "container" / "hangs" / "hook"
    path = os.pathsep.join(map(str, [hook, TOOLKIT, HERE, ROOT / "tests", TOOLKIT / "trainshed" / "compat"]))
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("SM_", "TRAINSHED_PIPELINE"))},
        "PYTHONPATH": path,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PYTHONFAULTHANDLER": "1",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        **(extra or {}),
    }


def start(
    world: int, worker: str, *args: Any, extra: dict[str, str] | None = None, out: str
) -> list[subprocess.Popen[bytes]]:
    """Starts `worker` (module:function in this folder) on each rank; its result is pickled to `out`/RANK."""
    return start_script(world, str(HERE / "ranks.py"), worker, out, pickle.dumps(args).hex(), extra=extra)


def start_script(
    world: int, *words: str, extra: dict[str, str] | None = None, cwd: str | None = None
) -> list[subprocess.Popen[bytes]]:
    """Starts a Python script with its arguments on each rank; stdout and stderr are one pipe."""
    from support.free_ports import free_ports

    port = free_ports()
    return [
        subprocess.Popen(
            [sys.executable, *words],
            env=environment(rank, world, port, extra),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=cwd,
        )
        for rank in range(world)
    ]


def run_script(world: int, *words: str, extra: dict[str, str] | None = None, cwd: str | None = None) -> list[str]:
    """Runs a Python script on each rank to its good end; the log of each."""
    processes = start_script(world, *words, extra=extra, cwd=cwd)
    logs = []
    try:
        for process in processes:
            logs.append(process.communicate(timeout=400)[0].decode())
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * world, "\n".join(log[-3000:] for log in logs)
    return logs


def run(world: int, worker: str, *args: Any, extra: dict[str, str] | None = None, seconds: float = 400) -> list[Any]:
    """Results of all ranks, in order; fails with the log of the ranks that failed."""
    with tempfile.TemporaryDirectory() as out:
        processes = start(world, worker, *args, extra=extra, out=out)
        logs = []
        deadline = time.monotonic() + seconds
        for process in processes:
            try:
                output = process.communicate(timeout=max(1.0, deadline - time.monotonic()))[0]
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGABRT)  # faulthandler then shows where it waits
                output = process.communicate()[0]
            logs.append(output.decode(errors="replace"))
        ended = list(zip(processes, logs, strict=True))
        failed = [f"rank {rank} ended with {p.returncode}:\n{log}" for rank, (p, log) in enumerate(ended) if p.returncode]
        assert not failed, "\n".join(text[-6000:] for text in failed)
        return [pickle.loads(Path(out, str(rank)).read_bytes()) for rank in range(world)]


def main() -> None:
    """Runs one rank's worker."""
    import importlib

    import torch

    torch.set_num_threads(1)
    worker, out, args = sys.argv[1:]
    module, function = worker.split(":")
    result = getattr(importlib.import_module(module), function)(*pickle.loads(bytes.fromhex(args)))
    Path(out, os.environ["RANK"]).write_bytes(pickle.dumps(result))
    import trainshed.parallel as pipe

    pipe.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # Without taking the interpreter apart: gloo's threads may still hold a tensor, and `train`,
    # whose ranks wait for them, is not here.
    os._exit(0)


if __name__ == "__main__":
    main()
