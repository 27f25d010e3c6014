"""Lightning's Trainer in a job that asks for `trainshed_checkpoint=auto`: not a line of the script knows of it."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from jobs.checkpoint.damage import newer_but_damaged
from support.extras import needs
from support.notice_jobs import Train

needs("torch", "lightning")
pytestmark = [pytest.mark.torch, pytest.mark.exact]

# The position in the data is the loader's to keep: this one does, as torchdata's StatefulDataLoader does.
SCRIPT = """\
import os, time
import torch
import lightning.pytorch as pl

ROOT = os.environ["SM_OUTPUT_DATA_DIR"]

class Loader:
    def __init__(self):
        self.at = 0
    def __len__(self):
        return 10
    def __iter__(self):
        self.at %= 10
        while self.at < 10:
            self.at += 1
            yield torch.randn(4, 8, generator=torch.Generator().manual_seed(self.at))
    def state_dict(self):
        return {"at": self.at}
    def load_state_dict(self, state):
        self.at = state["at"]

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
    def training_step(self, batch, number):
        loss = (self.layers(batch) - batch.sum(1, keepdim=True)).pow(2).mean()
        print(f"loss rank={self.global_rank} step={self.global_step + 1} {loss.item()!r}", flush=True)
        return loss
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)
    def on_train_batch_end(self, *_):
        time.sleep(float(os.environ.get("PAUSE", "0")))

torch.set_num_threads(1)
pl.seed_everything(3)
world = int(os.environ.get("WORLD_SIZE", "1"))
trainer = pl.Trainer(
    accelerator="cpu", devices=world, strategy="ddp" if world > 1 else "auto", max_epochs=int(os.environ["EPOCHS"]),
    logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=ROOT,
)
trainer.fit(Model(), Loader())
print("DONE", trainer.global_step, flush=True)
"""


def losses(job: Train) -> list[tuple[int, int, str]]:
    """(rank, step, loss) of every step, sorted."""
    found = [line[line.index("loss rank=") :].split() for line in job.lines if "loss rank=" in line]
    return sorted((int(rank[5:]), int(step[5:]), loss) for _, rank, step, loss in found)


@pytest.mark.parametrize("ranks", [pytest.param(0, marks=pytest.mark.spine), pytest.param(2, marks=pytest.mark.heavy)])
def test_a_fit_interrupted_in_mid_epoch_ends_with_the_losses_of_one_that_never_was(ranks: int, tmp_path: Path) -> None:
    """A damaged save is passed over. Two ranks: Lightning's own DDP."""
    with Train(tmp_path / "job", SCRIPT, ranks=ranks, checkpoint="auto", env={"EPOCHS": "10000", "PAUSE": "0.05"}) as job:
        job.until(*(f"loss rank={rank} step=13 " for rank in range(ranks or 1)))
        job.signal(signal.SIGTERM)
        assert job.end() == 0, job.output
    assert job.record()["state"] == "Interrupted"
    assert "DONE" not in job.output
    step = job.record()["interruption"]["step"]
    saved = tmp_path / f"job/checkpoints/checkpoint-{step}"
    assert step >= 13
    assert any(path.suffix == ".manifest" for path in saved.iterdir())
    damaged = newer_but_damaged(saved, "lightning.ckpt")
    epochs = {"EPOCHS": str(step // 10 + 2)}
    with Train(tmp_path / "job", SCRIPT, ranks=ranks, checkpoint="auto", env=epochs) as last:
        assert last.end() == 0, last.output
    assert f"{damaged.name} passed over: lightning.ckpt is damaged" in last.output
    assert f"resuming from {saved} (verified)" in last.output
    with Train(tmp_path / "straight", SCRIPT, ranks=ranks, env=epochs) as straight:
        assert straight.end() == 0, straight.output
    assert "checkpoint=auto" not in straight.output  # nobody asked
    assert len(losses(straight)) == 10 * (step // 10 + 2) * (ranks or 1)
    assert sorted(losses(job) + losses(last)) == losses(straight)


def test_a_fit_that_is_killed_goes_on_from_the_hosts_memory(tmp_path: Path) -> None:
    kill = "if [os.environ['TORCHELASTIC_RESTART_COUNT'], self.global_step] == ['0', 8]: os.kill(os.getpid(), 9)"
    script = SCRIPT.replace('        time.sleep(float(os.environ.get("PAUSE", "0")))\n', f"        {kill}\n")
    epochs = {"EPOCHS": "2"}
    memory = '{"every_steps": 3}'
    with Train(tmp_path / "job", script, checkpoint="auto", checkpoint_memory=memory, max_restarts=1, env=epochs) as job:
        assert job.end() == 0, job.output
    assert re.search(r"resuming from /dev/shm/\S+/checkpoint-6 \(verified\)", job.output), job.output
    with Train(tmp_path / "straight", SCRIPT, env=epochs) as straight:
        assert straight.end() == 0, straight.output
    assert set(losses(job)) == set(losses(straight))
