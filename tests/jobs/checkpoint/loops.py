"""Small training loops for the tests, and a way to run one on several ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.lazy import Lazy
from support.notice_jobs import free_port
from support.paths import TOOLKIT

torch = Lazy("torch")

LIMIT = 300.0  # seconds; a hang must not hang the tests


def train(folder: Path, steps: int, **options: Any) -> list[tuple[int, float]]:
    """A loop that uses everything a checkpoint has to keep: dropout, AdamW, a schedule, shuffled data in epochs.

    Returns (step, loss) of the steps that this run did.
    """
    from trainshed.checkpoint import Checkpointer, ResumableLoader, ResumableSampler

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.Dropout(0.2), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 1)
    )
    optimizer = torch.optim.AdamW(
        [{"params": model[0].parameters(), "lr": 1e-2}, {"params": [*model[2].parameters(), *model[3].parameters()]}],
        lr=1e-3,
    )
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=200)
    features = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    data = torch.utils.data.TensorDataset(features, features.sum(1, keepdim=True))
    loader = ResumableLoader(torch.utils.data.DataLoader(data, batch_size=6, sampler=ResumableSampler(64), drop_last=True))
    losses = []
    options = {"every_steps": 7, **options}
    with Checkpointer(folder, model=model, optimizer=optimizer, scheduler=scheduler, data=loader, **options) as checkpointer:
        step = checkpointer.restore()
        while step < steps:
            for x, y in loader:
                loss = (model(x) - y).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
                step += 1
                losses.append((step, loss.item()))
                if checkpointer.step(step, {"loss": loss.item()}):
                    return losses
                if step == steps:
                    break
    return losses


def names(folder: Path) -> list[str]:
    """The entries of a checkpoint folder, hidden ones included, sorted."""
    return sorted(os.listdir(folder))


class Forge:
    """Runs scripts on several ranks (see `forge.py`)."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("forge.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(TOOLKIT), "OMP_NUM_THREADS": "1"},
        )

    def run(self, script: str, arguments: Sequence[str], ranks: int, env: Sequence[dict[str, str]] = ()) -> list[str]:
        """Returns what each rank printed; fails the test if one of them fails."""
        common = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        variables = [
            {**common, "RANK": str(rank), "LOCAL_RANK": str(rank), **(env[rank] if env else {})} for rank in range(ranks)
        ]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"script": script, "arguments": list(arguments), "env": variables}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        ended = json.loads(self._process.stdout.readline())["ranks"]
        assert all(one["status"] == 0 for one in ended), "\n".join(one["output"] for one in ended)
        return [one["output"] for one in ended]

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(LIMIT)
        assert self._process.stdout is not None
        self._process.stdout.close()
