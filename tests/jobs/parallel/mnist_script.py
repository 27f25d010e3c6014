"""A user's script in the style of Amazon's examples for its model parallel library: MNIST-like data, pipeline, replicas."""

import argparse
import json
import os

import smdistributed.modelparallel.torch as smp
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, 1)
        self.one = nn.Linear(4 * 36, 32)
        self.two = nn.Linear(32, 4)

    def forward(self, x):
        x = F.relu(self.conv(x))
        x = torch.flatten(x, 1)
        x = F.relu(self.one(x))
        return F.log_softmax(self.two(x), dim=1)


@smp.step
def train_step(model, data, target):
    output = model(data)
    loss = F.nll_loss(output, target, reduction="mean")
    model.backward(loss)
    return output, loss


@smp.step
def test_step(model, data, target):
    output = model(data)
    loss = F.nll_loss(output, target, reduction="sum").item()
    prediction = output.argmax(dim=1, keepdim=True)
    correct = prediction.eq(target.view_as(prediction)).sum().item()
    return loss, correct


def batch(number):
    generator = torch.Generator().manual_seed(number)
    target = torch.randint(0, 4, (16,), generator=generator)
    data = 0.3 * torch.randn(16, 1, 8, 8, generator=generator)
    for row, label in enumerate(target):
        data[row, 0, 2 * label : 2 * label + 2] += 1.0
    length = 16 // smp.dp_size()
    part = slice(smp.dp_rank() * length, (smp.dp_rank() + 1) * length)
    return data[part], target[part]


def main(output):
    smp.init()
    torch.manual_seed(smp.rank())
    torch.cuda.set_device(smp.local_rank())
    model = smp.DistributedModel(Net())
    optimizer = smp.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=5e-3))
    losses = []
    model.train()
    for number in range(20):
        optimizer.zero_grad()
        _, loss_mb = train_step(model, *batch(number))
        losses.append(loss_mb.reduce_mean())
        optimizer.step()
    model.eval()
    with torch.no_grad():
        loss, correct = test_step(model, *batch(100))
    assert len(loss) == len(correct) == smp.num_microbatches()
    assert sum(correct) >= 6, correct
    mean = [
        sum(values) / smp.dp_size() for values in zip(*smp.allgather([float(x) for x in losses], smp.DP_GROUP), strict=True)
    ]
    if smp.rank() == 0:
        smp.broadcast({"mean": mean}, smp.WORLD)
    else:
        mean = smp.recv_from(0, smp.RankType.WORLD_RANK)["mean"]

    folder = os.path.join(output, "checkpoints")
    smp.save_checkpoint(folder, tag="first", partial=True, model=model, optimizer=optimizer, user_content={"epoch": 1})
    model.train()
    optimizer.zero_grad()
    train_step(model, *batch(50))
    optimizer.step()
    after = train_step(model, *batch(51))[1].reduce_mean()
    content = smp.resume_from_checkpoint(folder, tag="first", partial=True)
    assert content == {"epoch": 1}
    optimizer.zero_grad()
    train_step(model, *batch(50))
    optimizer.step()
    resumed = train_step(model, *batch(51))[1].reduce_mean()
    after, resumed = (sum(smp.allgather(float(x), smp.WORLD)) / smp.size() for x in (after, resumed))
    smp.save_checkpoint(folder, tag="full.pt", partial=False, model=model)
    print("RESULT " + json.dumps({"first": mean[0], "last": mean[-1], "last_after": after, "resumed": resumed}), flush=True)
    smp.barrier()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default=os.environ.get("SM_CHECKPOINT_DIR"))
    main(parser.parse_known_args()[0].output)
