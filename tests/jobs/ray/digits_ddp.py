"""Digits by DDP: whole-batch steps, a checkpoint every five; what it prints last depends on every step."""

import os
import time

import numpy
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from trainshed.checkpoint import Checkpointer

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
data = numpy.load(os.environ["SM_CHANNEL_DIGITS"] + "/digits.npz")
points, labels = torch.tensor(data["points"])[rank::world] / 16, torch.tensor(data["labels"])[rank::world]
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
checkpointer = Checkpointer.for_job(model=model, optimizer=optimizer, every_steps=5)
step = checkpointer.restore()
print(f"start at step={step} node={os.environ['NODE']}", flush=True)
last = 20
while step < last:
    optimizer.zero_grad()
    loss = cross_entropy(model(points), labels)
    loss.backward()
    optimizer.step()
    step += 1
    if checkpointer.step(step):
        raise SystemExit
    while step == 13 and os.environ.get("HOLD") and not os.path.exists(os.environ["HOLD"]):
        time.sleep(0.05)
total = loss.detach().clone()
dist.all_reduce(total)
if rank == 0:
    print(f"metric loss={total.item() / world!r} step={step}", flush=True)
    torch.save(net.state_dict(), os.environ["SM_MODEL_DIR"] + "/net.pt")
dist.destroy_process_group()
