"""Checkpoint folders that take nothing: refused at the start; one that stops taking any is said, at the end as well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.obstacles import read_only_disk

pytestmark = [pytest.mark.torch, pytest.mark.safety]

TRAIN = """\
import os, shutil, torch
from trainshed.checkpoint import Checkpointer
model = torch.nn.Linear(2, 2)
with Checkpointer.for_job(model=model, every_steps=1) as checkpointer:
    for step in range(checkpointer.restore() + 1, 6):
        checkpointer.step(step)
        checkpointer.wait()
        if step == 2:
            shutil.rmtree(checkpointer.folder)
            open(checkpointer.folder, "w").close()
print("trained to the end")
"""


def test_a_read_only_folder_is_refused_by_all_ways_to_save(tmp_path: Path) -> None:
    import torch

    from trainshed.checkpoint import Checkpointer, CheckpointError
    from trainshed.checkpoint import tensor_folder as parts
    from trainshed.checkpoint.guard import Guard

    says = "checkpoints cannot be written to .*: Read-only file system; mount it writable"
    with read_only_disk(tmp_path / "ro") as folder:
        with pytest.raises(CheckpointError, match=says):
            Checkpointer(folder / "run", model=torch.nn.Linear(1, 1))
        with pytest.raises(CheckpointError, match=says):  # what transformers' and Lightning's Trainers save through
            Guard(str(folder))
        with pytest.raises(CheckpointError, match=says):  # the pipeline
            parts.save(folder / "step", {"value": torch.ones(1)})


def test_a_job_that_trains_on_without_checkpoints_says_so_at_its_end(job_tree: Any) -> None:
    job_tree.configure(hyperparameters={"sagemaker_program": "train.py"})
    job_tree.code("train.py", TRAIN)
    done = job_tree.train()
    assert done.status == 0, done.output
    assert "trained to the end" in done.stdout
    assert done.stderr.count("WARNING: no checkpoint of step ") == 3
    assert "WARNING: the last 3 checkpoints (step 5) could not be made: " in done.stderr
    (record,) = (job_tree.base / "output/data/run").glob("*.json")
    assert "the last 3 checkpoints" in json.loads(record.read_text())["checkpoints"]["problem"]
    assert [path.name for path in record.parent.iterdir()] == [record.name]
