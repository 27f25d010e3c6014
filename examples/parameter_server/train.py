"""A parameter-server training in plain PyTorch: workers send gradients to servers, which hold the parameters.

No worker waits for another. The chief has them train epoch after epoch, and saves what the servers hold.
The task is made up: which of two interleaved spirals does a point belong to? Nothing is downloaded.
"""

import argparse
import json
import os
import signal
import threading
from pathlib import Path

import torch
from torch import nn
from torch.distributed import rpc
from torch.nn.functional import cross_entropy


def spirals(points: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`points` points of shape (2,) and the number of their spiral, 0 or 1."""
    generator = torch.Generator().manual_seed(0)
    label = torch.arange(points) % 2
    turn = torch.rand(points, generator=generator)
    angle = 9 * turn + torch.pi * label
    radius = 0.1 + turn
    place = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    return place + 0.02 * torch.randn(points, 2, generator=generator), label


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))


class Server:
    """Some of the network's parameters and their optimizer, on one parameter server. Workers call it at the same time."""

    def __init__(self, number: int, servers: int, learning_rate: float) -> None:
        """Every `servers`-th parameter of the network, from `number` on."""
        self.parameters = dict(list(network().named_parameters())[number::servers])
        self.optimizer = torch.optim.Adam(self.parameters.values(), lr=learning_rate)
        self.lock = threading.Lock()

    def values(self) -> dict[str, torch.Tensor]:
        with self.lock:
            return {name: parameter.detach().clone() for name, parameter in self.parameters.items()}

    def step(self, gradients: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Takes a worker's gradients of these parameters; returns their new values."""
        with self.lock:
            for name, parameter in self.parameters.items():
                parameter.grad = gradients[name]
            self.optimizer.step()
        return self.values()

    def state(self) -> dict[str, dict]:
        with self.lock:
            return {"parameters": self.parameters, "optimizer": self.optimizer.state_dict()}

    def restore(self, state: dict[str, dict]) -> None:
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(state["parameters"][name])
        self.optimizer.load_state_dict(state["optimizer"])


def train_epoch(servers: list[rpc.RRef], epoch: int, worker: int, workers: int, batch_size: int) -> float:
    """Runs on a worker: one pass over its part of the data. Returns the mean loss."""
    model, (places, labels) = network(), spirals(4096)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))[worker::workers]
    values = [server.rpc_async().values() for server in servers]
    losses = []
    for batch in order.split(batch_size):
        model.load_state_dict({name: value for future in values for name, value in future.wait().items()})
        loss = cross_entropy(model(places[batch]), labels[batch])
        model.zero_grad()
        loss.backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        values = [server.rpc_async().step(gradients) for server in servers]
        losses.append(loss.item())
    for future in values:
        future.wait()
    return sum(losses) / len(losses)


def lead(options: argparse.Namespace, workers: int, count: int) -> None:
    """Runs on the chief: has `workers` workers train, with the parameters on `count` servers."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))  # taken notice of after an epoch
    servers = [rpc.remote(f"ps{one}", Server, args=(one, count, options.learning_rate)) for one in range(count)]
    checkpoint = Path(os.environ["SM_CHECKPOINT_DIR"], "servers.pt")
    done = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        done = saved["epoch"]
        for server, state in zip(servers, saved["servers"], strict=True):
            server.rpc_sync().restore(state)
    for epoch in range(done, options.epochs):
        asked = [
            rpc.rpc_async(f"worker{one}", train_epoch, (servers, epoch, one, workers, options.batch_size), timeout=0)
            for one in range(workers)
        ]
        loss = sum(future.wait() for future in asked) / workers
        print(f"metric loss={loss:.4f} epoch={epoch + 1}", flush=True)
        states = [server.rpc_sync().state() for server in servers]
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"epoch": epoch + 1, "servers": states}, f"{checkpoint}.new")
        os.replace(f"{checkpoint}.new", checkpoint)
        if stopped:
            return  # `trainshed resume` goes on from here
    model, (places, labels) = network(), spirals(4096)
    model.load_state_dict({name: value for server in servers for name, value in server.rpc_sync().values().items()})
    accuracy = (model(places).argmax(dim=1) == labels).float().mean().item()
    print(f"metric accuracy={accuracy:.4f}", flush=True)
    torch.save(model.state_dict(), os.path.join(os.environ["SM_MODEL_DIR"], "model.pt"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=64, help="samples that a worker takes at once")
    parser.add_argument("--learning-rate", type=float, default=0.01)
    options = parser.parse_args()

    role = os.environ["ROLE_NAME"]
    name = role if role == "chief" else role + os.environ["ROLE_RANK"]
    rpc.init_rpc(name, rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    if role == "chief":
        cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
        lead(options, len(cluster["worker"]), len(cluster["ps"]))
    rpc.shutdown()  # workers and servers do what they are called for until the chief is here, too


if __name__ == "__main__":
    main()
