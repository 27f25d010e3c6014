"""The training of goodput.py as users of torchrun write it: torch's distributed checkpoints, saved beside the steps."""

import os
from concurrent.futures import Future
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from loop import build, train
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


class Saver:
    """Checkpoints in a folder that all hosts share; those with `.metadata`, which is written last, are whole."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, every: int) -> None:
        self.model, self.optimizer, self.every = model, optimizer, every
        self.folder, self.durable, self.saving = Path(os.environ["BENCH_LOG"], "checkpoints"), 0, 0
        self.future: Future[object] | None = None

    def restore(self) -> int:
        found = [int(path.parent.name) for path in self.folder.glob("*/.metadata")]
        if found:
            self.durable = self.saving = max(found)
            state = self._state()
            dcp.load(state, checkpoint_id=str(self.folder / str(self.durable)))
            set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        return self.durable

    def step(self, step: int) -> None:
        if self.future is not None and self.future.done():
            self.future.result()
            self.durable = self.saving
        if step % self.every == 0:
            self.close()
            self.future = dcp.async_save(self._state(), checkpoint_id=str(self.folder / str(step)))
            self.saving = step

    def close(self) -> None:
        if self.future is not None:
            self.future.result()
            self.durable = self.saving

    def _state(self) -> dict[str, object]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}


dist.init_process_group("gloo")
model, optimizer = build()
train(model, optimizer, Saver(model, optimizer, int(os.environ["BENCH_EVERY"])))
dist.destroy_process_group()
