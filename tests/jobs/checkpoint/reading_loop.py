"""`reading_loop.py FOLDER START_METHOD`: trains on what a DataLoader's processes read, until it is stopped."""

from __future__ import annotations

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

from trainshed.checkpoint import Checkpointer


def main() -> None:
    """The loop."""
    folder, start = sys.argv[1:]
    model = torch.nn.Linear(1, 1)
    loader = DataLoader(TensorDataset(torch.ones(64, 1)), batch_size=1, num_workers=2, multiprocessing_context=start)
    step = 0
    with Checkpointer(folder, model=model, every_seconds=3600) as checkpointer:
        while True:
            for [batch] in loader:
                model(batch)
                step += 1
                print("step", step, flush=True)
                if checkpointer.step(step):
                    return


if __name__ == "__main__":
    main()
