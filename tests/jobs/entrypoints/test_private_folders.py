"""Programs on the Trainer over hosts whose folders of checkpoints are their own: killed and started again, they go on."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from jobs.entrypoints.test_fine_tune_sharded import furthest, tensors
from support import programs
from support.extras import needs
from support.programs import Module

needs("transformers", "accelerate", "peft")
pytestmark = [pytest.mark.torch, pytest.mark.heavy, pytest.mark.exact]
HOSTS = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "SM_CURRENT_HOST": "algo-{rank}"}  # of one rank each
TUNE = ("fine_tune.py", "--model", "model", "--method", "full", "--learning_rate", "0.005", "--max_length", "64")
NEW = ("language_model.py", "--n_layer", "1", "--n_embd", "16", "--n_head", "2", "--block_size", "16")
JOBS = {"whole": (*TUNE, "--sharding", "replicate"), "in parts": (*TUNE, "--sharding", "shard"), "from scratch": NEW}


@pytest.mark.parametrize("name", list(JOBS))
def test_two_hosts_with_folders_of_their_own_go_on_exactly(name: str, tmp_path: Path, data: Path, module: Module) -> None:
    program, *given = JOBS[name]
    if program == "language_model.py":
        (tmp_path / "train").mkdir()
        (tmp_path / "train/a.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 60)
    else:
        for part in ("train", "model"):
            (tmp_path / part).symlink_to(data / part)
    (tmp_path / "host-0").mkdir()
    (tmp_path / "host-1").mkdir()
    settings = ("--train", "train", "--device", "cpu", "--log_interval", "1", "--batch_size", "4", "--max_steps", "8")
    settings += tuple(given)

    def train(to: str, *more: str, **extra: str) -> str:
        return programs.run(program, *settings, "--model_dir", to, *more, cwd=tmp_path, ranks=2, **HOSTS, **extra)

    straight = train("straight")
    kept: dict[str, Any] = {"SM_CHECKPOINT_DIR": str(tmp_path / "host-{rank}")}
    often = ("--save_steps", "2", "--model_dir", "resumed")
    with programs.started(program, *settings, *often, cwd=tmp_path, ranks=2, **HOSTS, **kept) as run:
        run.wait_for("^metric train_loss=.* step=5$")
        for process in run.processes:
            process.send_signal(signal.SIGKILL)
        assert run.finish() == [-signal.SIGKILL] * 2
    resumed = train("resumed", *often, **kept)

    losses, later = (programs.metrics(output, "train_loss") for output in (straight, resumed))
    assert len(losses) == 8 and 1 <= len(later) < 8 and later == losses[-len(later) :]
    assert tensors(tmp_path / "straight") and furthest(tmp_path / "resumed", tmp_path / "straight") == 0
    again = train("resumed", *often, **kept)  # that all was done is found on both hosts
    assert not programs.metrics(again, "train_loss") and furthest(tmp_path / "resumed", tmp_path / "straight") == 0
