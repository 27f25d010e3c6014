"""A job folder, `train` running on it as a process, and metadata services that this machine serves itself."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.free_ports import free_ports
from support.paths import TOOLKIT

LIMIT = 300.0  # seconds; a hang must not hang the tests

# A loop in plain PyTorch whose losses depend on what a checkpoint has to keep: weights, momentum, random numbers. torch's
# own optimizers and DDP are left out: they import the compiler, which doubles the time that a rank takes to start.
TRAINING = """\
import os, sys, time
import torch
import torch.distributed as dist
from trainshed.checkpoint import Checkpointer

class Momentum:
    def __init__(self, parameters):
        self.parameters = list(parameters)
        self.means = [torch.zeros_like(parameter) for parameter in self.parameters]
    def step(self):
        for parameter, mean in zip(self.parameters, self.means):
            if world > 1:
                dist.all_reduce(parameter.grad)
            mean.mul_(0.9).add_(parameter.grad, alpha=0.1 / world)
            parameter.data.add_(mean, alpha=-1e-2)
            parameter.grad = None
    def state_dict(self):
        return dict(enumerate(self.means))
    def load_state_dict(self, state):
        for number, mean in enumerate(self.means):
            mean.copy_(state[number])

torch.set_num_threads(1)
world = int(os.environ.get("WORLD_SIZE", "1"))
if world > 1:
    dist.init_process_group("gloo")
rank = dist.get_rank() if world > 1 else 0
torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
momentum = Momentum(model.parameters())
checkpointer = Checkpointer.for_job(model=model, extra={"momentum": momentum}, every_seconds=3600, check_seconds=0.05)
step = checkpointer.restore()
print(f"start rank={rank} step={step}", flush=True)
while step < int(os.environ.get("STEPS", "1000000")):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    loss.backward()
    momentum.step()
    step += 1
    time.sleep(0.002)
    if step % 10 == 0:
        print(f"loss rank={rank} step={step} {loss.item()!r}", flush=True)
    if checkpointer.step(step):
        break
checkpointer.close()
print(f"end rank={rank} step={step}", flush=True)
if world > 1:
    dist.destroy_process_group()
"""


class Train:
    """`train` on a job folder; its output is read as it comes."""

    def __init__(
        self,
        folder: Path,
        script: str,
        *,
        ranks: int = 0,
        env: dict[str, str] | None = None,
        mp_parameters: str = "",
        **settings: Any,
    ):
        self.folder = folder
        (folder / "code").mkdir(parents=True, exist_ok=True)
        (folder / "code/train.py").write_text(script)
        (folder / "input/config").mkdir(parents=True, exist_ok=True)
        if ranks:
            settings = {"master_port": free_port(), "distribution": "torchrun", "processes_per_host": ranks} | settings
        asked = {f"trainshed_{name}": str(value) for name, value in settings.items()}
        if mp_parameters:
            asked["mp_parameters"] = mp_parameters
        (folder / "input/config/hyperparameters.json").write_text(json.dumps(asked | {"sagemaker_program": "train.py"}))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "TRAINSHED_", "SM_"))}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trainshed.container.main"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=kept
            | {"SAGEMAKER_BASE_DIR": str(folder), "PYTHONPATH": str(TOOLKIT), "OMP_NUM_THREADS": "1"}
            | {"TMPDIR": str(_made(folder / "tmp"))}
            | (env or {}),
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def output(self) -> str:
        """Everything printed so far."""
        return "\n".join(self.lines)

    def until(self, *texts: str) -> None:
        """Waits until every text has been printed."""
        wait_for(lambda: all(text in self.output for text in texts) or self.process.poll() is not None)
        if self.process.poll() is not None:
            self._reader.join(LIMIT)
        assert all(text in self.output for text in texts), self.output

    def signal(self, number: int) -> None:
        """Sends `train` a signal."""
        self.process.send_signal(number)

    def end(self) -> int:
        """Waits for the end; the exit status."""
        try:
            status = self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"train did not end:\n{self.output}") from None
        self._reader.join(LIMIT)
        return status

    def record(self) -> dict[str, Any]:
        """The run record."""
        (path,) = (self.folder / "output/data/run").iterdir()
        return json.loads(path.read_text())

    def __enter__(self) -> Train:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(LIMIT)


def wait_for(condition: Callable[[], bool]) -> None:
    """Until the condition holds; returns after `LIMIT` in any case."""
    end = time.monotonic() + LIMIT
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)


def free_port() -> int:
    """A TCP port on which nobody listens, nor on the next one, where the hosts of a job meet."""
    return free_ports(2)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Service:
    """A metadata service; `answers` maps paths (without query) to (status, body), and may change at any time."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str]] = {}
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.needs: dict[str, str] = {}  # headers without which it answers 401
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def _answer(self) -> None:
                path = self.path.partition("?")[0]
                service.asked.append((self.command, self.path, dict(self.headers)))
                status, body = service.answers.get(path, (404, ""))
                if self.command == "GET" and any(self.headers.get(name) != value for name, value in service.needs.items()):
                    status, body = 401, ""
                self.send_response(status)
                self.send_header("Content-Length", str(len(body.encode())))
                self.send_header("ETag", str(hash(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            do_GET = do_PUT = _answer

            def log_message(self, *_: object) -> None:
                """Not on the tests' console."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops serving."""
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def service() -> Iterator[Service]:
    """A metadata service for the duration of a test."""
    one = Service()
    try:
        yield one
    finally:
        one.close()
