"""Digits by Ray Train: DDP on one worker for each node, whole-batch steps."""

import os

import numpy
import ray
import ray.train
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy


def train(config):
    torch.set_num_threads(1)
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    print(f"RANK {rank} of {world} on {os.environ['SM_CURRENT_HOST']}", flush=True)
    digits = load_digits()
    points = torch.tensor(digits.data.astype(numpy.float32))[rank::world] / 16
    labels = torch.tensor(digits.target)[rank::world]
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    model = prepare_model(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for _ in range(config["steps"]):
        optimizer.zero_grad()
        loss = cross_entropy(model(points), labels)
        loss.backward()
        optimizer.step()
    loss = loss.detach()
    torch.distributed.all_reduce(loss)
    if rank == 0:
        print(f"metric loss={loss.item() / world!r}", flush=True)
        torch.save(net.state_dict(), config["model"] + "/net.pt")
    ray.train.report({"loss": loss.item() / world})


ray.init()
TorchTrainer(
    train,
    train_loop_config={"steps": 60, "model": os.environ["SM_MODEL_DIR"]},
    scaling_config=ScalingConfig(
        num_workers=len(ray.nodes()), resources_per_worker={"CPU": ray.nodes()[0]["Resources"]["CPU"]}
    ),
    run_config=RunConfig(storage_path=os.environ["SM_OUTPUT_DATA_DIR"]),
).fit()
