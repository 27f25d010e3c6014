"""Buffers and statistics that the forward changes."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hostile.models.state_outside_tensors import Block, Deep
from hostile.table import Spec, images, model, rows


@model
def batch_norm_with_momentum_none() -> Spec:
    class Net(Deep):
        def __init__(self) -> None:
            super().__init__()
            for block in self.blocks:
                block.norm = nn.BatchNorm1d(8, momentum=None)

    return Spec(Net(), rows(batch=16))


@model
def running_maximum_in_a_buffer() -> Spec:
    """Observers of quantization: the range so far."""

    class Observed(Block):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("low", torch.tensor(0.0))
            self.register_buffer("high", torch.tensor(0.1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                self.low = torch.minimum(self.low, x.detach().min())
                self.high = torch.maximum(self.high, x.detach().max())
            scale = (self.high - self.low) / 255
            rounded = ((x - self.low) / scale).round() * scale + self.low
            return super().forward(x + (rounded - x).detach())

    class Net(Deep):
        block = Observed

    return Spec(Net(), rows())


@model
def codebook_by_moving_averages() -> Spec:
    class Quantize(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("codes", torch.randn(6, 8))
            self.register_buffer("counts", torch.ones(6))
            self.register_buffer("sums", self.codes.clone())

        def forward(self, x: torch.Tensor) -> Any:
            chosen = torch.cdist(x, self.codes).argmin(1)
            hot = F.one_hot(chosen, 6).float()
            if self.training:
                with torch.no_grad():
                    self.counts.mul_(0.9).add_(hot.sum(0), alpha=0.1)
                    self.sums.mul_(0.9).add_(hot.t() @ x, alpha=0.1)
                    self.codes.copy_(self.sums / self.counts.unsqueeze(1).clamp_min(1e-3))
            near = self.codes[chosen]
            return x + (near - x).detach(), (x - near.detach()).square().mean()

    class Net(Deep):
        def __init__(self) -> None:
            super().__init__()
            self.quantize = Quantize()

        def forward(self, x: torch.Tensor) -> Any:
            for block in self.blocks[:4]:
                x = block(x)
            x, commit = self.quantize(x)
            for block in self.blocks[4:]:
                x = block(x)
            return self.head(x), commit

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        logits, commit = model(x)
        loss = F.cross_entropy(logits, y) + 0.25 * commit
        model.backward(loss)
        return loss, commit

    return Spec(Net(), rows(), step)


@model
def queue_of_keys_in_the_root() -> Spec:
    class Net(Deep):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("queue", F.normalize(torch.randn(12, 5)))
            self.register_buffer("place", torch.zeros(1, dtype=torch.long))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = F.normalize(super().forward(x))
            logits = out @ self.queue.clone().t()
            if self.training:
                at = int(self.place)
                self.queue[at : at + len(x)] = out.detach()
                self.place[0] = (at + len(x)) % 12
            return logits[:, :5]

    return Spec(Net(), rows())


@model
def momentum_copy_of_the_encoder_inside() -> Spec:
    """A second encoder without gradients, moved at the start of each forward."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.online = nn.Sequential(*(Block() for _ in range(4)), nn.Linear(8, 5))
            self.target = copy.deepcopy(self.online).requires_grad_(False)

        def forward(self, x: torch.Tensor) -> Any:
            if self.training:
                with torch.no_grad():
                    for mine, other in zip(self.target.parameters(), self.online.parameters(), strict=True):
                        mine.mul_(0.9).add_(other, alpha=0.1)
            with torch.no_grad():
                target = self.target(x.flip(1))
            return self.online(x), target

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        out, target = model(x)
        loss = F.mse_loss(out, target) + F.cross_entropy(out, y)
        model.backward(loss)
        return loss

    return Spec(Net(), rows(), step, evaluate=None)


@model
def group_instance_and_local_norms() -> Spec:
    def block() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
            nn.LocalResponseNorm(2), nn.ReLU(inplace=True),
        )  # fmt: skip

    net = nn.Sequential(nn.Conv2d(3, 4, 1), *(block() for _ in range(7)), nn.Flatten(), nn.Linear(256, 5))
    return Spec(net, images())


@model
def batch_norm_frozen_in_eval_mode() -> Spec:
    """Some norms stay in eval mode while all else trains."""

    class Net(Deep):
        def __init__(self) -> None:
            super().__init__()
            for block in self.blocks:
                block.norm = nn.BatchNorm1d(8)

        def train(self, mode: bool = True) -> Any:
            super().train(mode)
            for block in self.blocks[:4]:
                block.norm.eval()
            return self

    return Spec(Net().train(), rows(batch=16))


@model
def buffer_that_is_replaced_by_none_and_back() -> Spec:
    class Toggles(Block):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", None)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.kept is None:
                self.kept = x.detach().mean(0)
            else:
                x = x + 0.1 * self.kept
                self.kept = None
            return super().forward(x)

    class Net(Deep):
        block = Toggles

    return Spec(Net(), rows(), evaluate=None)


@model
def counter_in_a_long_buffer_decides_warmup() -> Spec:
    class Warms(Block):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.tensor(0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                self.calls += 1
            return super().forward(x) * (self.calls.float() / 10).clamp(max=1)

    class Net(Deep):
        block = Warms

    return Spec(Net(), rows())


@model
def statistics_of_a_later_block_read_by_an_earlier_one() -> Spec:
    """Feedback: the first block reads a buffer that the last one wrote a microbatch ago."""

    class Net(Deep):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("feedback", torch.zeros(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + 0.1 * self.feedback
            for block in self.blocks:
                x = block(x)
            if self.training:
                self.feedback = x.detach().mean(0)
            return self.head(x)

    return Spec(Net(), rows())


@model
def spiking_neurons_with_membranes() -> Spec:
    """Surrogate gradients; the membrane lives for the time steps of one forward."""

    class Spike(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return (x > 0).float()

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            (x,) = ctx.saved_tensors
            return gradients[0] / (1 + x.abs()).square()

    class Neurons(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line, self.membrane = nn.Linear(8, 8), None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.membrane = self.line(x) if self.membrane is None else 0.5 * self.membrane + self.line(x)
            return Spike.apply(self.membrane - 0.2)

    class Net(Deep):
        block = Neurons

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                block.membrane = None
            out = 0
            for _ in range(3):
                hidden = x
                for block in self.blocks:
                    hidden = block(hidden) + x
                out = out + self.head(hidden)
            return out

    return Spec(Net(), rows())
