"""Starts ranks in milliseconds: one process imports torch once and forks every rank of every run from itself.

Requests and replies are JSON objects, one a line: {"script", "arguments", "env": [one dict a rank]} and
{"ranks": [{"status", "output"}]}.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
import traceback

LIMIT = 300.0  # seconds for one run


def warm_up() -> None:
    """Imports what the runs need; starts no threads, or forking would not be safe."""
    import torch

    torch.set_num_threads(1)
    import torch._dynamo
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torch.nn.parallel.distributed

    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    torch.optim.AdamW([weight]).step()


def rank(script: str, arguments: list[str], env: dict[str, str], output: int) -> None:
    """The forked process: becomes one rank, never returns."""
    status = 1
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.update(env)
        sys.argv = ["-c", *arguments]
        exec(compile(script, "<rank>", "exec"), {"__name__": "__main__"})
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def run(request: dict[str, object]) -> dict[str, object]:
    """All ranks of one run, to their end."""
    files = [tempfile.TemporaryFile() for _ in request["env"]]  # type: ignore[attr-defined]  # noqa: SIM115
    pids = []
    for env, file in zip(request["env"], files, strict=True):  # type: ignore[call-overload]
        pid = os.fork()
        if pid == 0:
            rank(request["script"], request["arguments"], env, file.fileno())  # type: ignore[arg-type]
        pids.append(pid)
    statuses: dict[int, int] = {}
    end = time.monotonic() + LIMIT
    while len(statuses) < len(pids):
        for pid in pids:
            if pid not in statuses:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    statuses[pid] = os.waitstatus_to_exitcode(status)
                elif time.monotonic() > end:
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    ranks = []
    for pid, file in zip(pids, files, strict=True):
        file.seek(0)
        ranks.append({"status": statuses[pid], "output": file.read().decode(errors="replace")})
        file.close()
    return {"ranks": ranks}


def main() -> None:
    """Answers requests until there are no more."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing else may come between the replies
    warm_up()
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), file=replies, flush=True)


if __name__ == "__main__":
    main()
