"""Numbers drawn in the forward: by torch, Python and numpy, by generators of one's own."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical, Normal
from torch.utils.checkpoint import checkpoint

from hostile.models.state_outside_tensors import Block, Deep, forward_of_deep
from hostile.table import Spec, model, rows, tokens


@model
def dropout_of_three_kinds() -> Spec:
    class Drops(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = super().forward(F.dropout(x, 0.2, self.training))
            return F.alpha_dropout(x, 0.1, self.training)

    class Net(Deep):
        block = Drops

        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout1d(0.3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(self.drop(x.unsqueeze(2)).squeeze(2))

    return Spec(Net(), rows())


@model
def noise_that_the_root_adds() -> Spec:
    class Net(Deep):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x + 0.1 * torch.randn_like(x))
            return self.head(x)

    return Spec(Net(), rows(), evaluate=None)


@model
def reparametrized_latent_with_two_losses() -> Spec:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(*(Block() for _ in range(4)))
            self.mean, self.log = nn.Linear(8, 4), nn.Linear(8, 4)
            self.decoder = nn.Sequential(nn.Linear(4, 8), *(Block() for _ in range(4)))

        def forward(self, x: torch.Tensor) -> Any:
            x = self.encoder(x)
            mean, deviation = self.mean(x), self.log(x).clamp(-3, 3).exp()
            latent = Normal(mean, deviation).rsample()
            return self.decoder(latent), mean, deviation

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        rebuilt, mean, deviation = model(x)
        divergence = 0.5 * (mean.square() + deviation.square() - 1 - 2 * deviation.log()).sum(1).mean()
        loss = F.mse_loss(rebuilt, x) + 0.1 * divergence
        model.backward(loss)
        return loss, divergence

    return Spec(Net(), rows(), step)


@model
def sampled_actions_policy_gradient() -> Spec:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        policy = Categorical(logits=model(x))
        action = policy.sample()
        reward = (action == y).float() - 0.2
        loss = -(policy.log_prob(action) * reward).mean() - 0.01 * policy.entropy().mean()
        model.backward(loss)
        return loss, action

    return Spec(Deep(), rows(), step)


@model
def gumbel_softmax_codebook() -> Spec:
    class Codes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.logits, self.codes = nn.Linear(8, 6), nn.Parameter(torch.randn(6, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + F.gumbel_softmax(self.logits(x), tau=0.7, hard=True) @ self.codes

    class Net(Deep):
        block = Codes

    return Spec(Net(), rows(), evaluate=None)


@forward_of_deep
def python_random_drops_whole_layers(self: Deep, x: torch.Tensor) -> torch.Tensor:
    for block in self.blocks:
        if not self.training or random.random() > 0.2:
            x = block(x)
    return self.head(x)


@forward_of_deep
def torch_random_drops_whole_layers(self: Deep, x: torch.Tensor) -> torch.Tensor:
    for block in self.blocks:
        x = block(x) if not self.training or torch.rand(()) > 0.2 else x
    return self.head(x)


@model
def stochastic_depth_inside_blocks_by_row() -> Spec:
    class Path(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self.training:
                return super().forward(x)
            kept = torch.empty(len(x), 1).bernoulli_(0.8)
            return x + (super().forward(x) - x) * kept / 0.8

    class Net(Deep):
        block = Path

    return Spec(Net(), rows())


@model
def numpy_permutes_rows_in_a_block() -> Spec:
    class Shuffles(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            order = np.random.permutation(len(x))
            return super().forward(x) + 0.1 * x[torch.from_numpy(order)]

    class Net(Deep):
        block = Shuffles

    return Spec(Net(), rows(), evaluate=None)


@model
def cutmix_with_numpy_in_the_step() -> Spec:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        share = float(np.random.beta(1.0, 1.0))
        cut = int(8 * share)
        other = x.roll(1, 0)
        mixed = torch.cat([x[:, :cut], other[:, cut:]], 1)
        out = model(mixed)
        loss = share * F.cross_entropy(out, y) + (1 - share) * F.cross_entropy(out, y.roll(1, 0))
        model.backward(loss)
        return loss, share

    return Spec(Deep(), rows(), step)


@model
def python_choice_of_augmentation_in_the_step() -> Spec:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        change = random.choice([lambda v: v, lambda v: v.flip(1), lambda v: -v])
        loss = F.cross_entropy(model(change(x)), y)
        model.backward(loss)
        return loss

    return Spec(Deep(), rows(), step)


@model
def own_torch_generator_of_the_model() -> Spec:
    """A generator that lives in an attribute, and goes on with each call."""

    class Net(Deep):
        def __init__(self) -> None:
            super().__init__()
            self.source = torch.Generator().manual_seed(5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x + 0.1 * torch.randn(x.shape, generator=self.source))

    return Spec(Net(), rows(), evaluate=None)


@model
def own_python_generator_of_a_block() -> Spec:
    class Draws(Block):
        def __init__(self) -> None:
            super().__init__()
            self.dice = random.Random(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x * self.dice.uniform(0.9, 1.1))

    class Net(Deep):
        block = Draws

    return Spec(Net(), rows(), evaluate=None)


@model
def own_numpy_generator_of_the_root() -> Spec:
    class Net(Deep):
        def __init__(self) -> None:
            super().__init__()
            self.dice = np.random.default_rng(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x + 0.1 * torch.from_numpy(self.dice.normal(size=tuple(x.shape))).float())

    return Spec(Net(), rows(), evaluate=None)


@model
def checkpointed_blocks_with_dropout() -> Spec:
    class Recomputed(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(super().forward, F.dropout(x, 0.2, self.training), use_reentrant=False)

    class Net(Deep):
        block = Recomputed

    return Spec(Net(), rows())


@model
def words_masked_by_chance_in_the_step() -> Spec:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.blocks, self.head = (
                nn.Embedding(21, 8),
                nn.Sequential(*(Block() for _ in range(8))),
                nn.Linear(8, 20),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.blocks(self.table(x)))

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        hidden = torch.rand(x.shape) < 0.3
        hidden[:, 0] = True
        out = model(x.masked_fill(hidden, 20))
        loss = F.cross_entropy(out[hidden], x[hidden])
        model.backward(loss)
        return loss, hidden.sum()

    return Spec(Net(), tokens(), step)


@model
def diffusion_step_with_drawn_times() -> Spec:
    class Net(Deep):
        def __init__(self) -> None:
            super().__init__()
            self.time, self.out = nn.Embedding(10, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
            x = x + self.time(time)
            for block in self.blocks:
                x = block(x)
            return self.out(x)

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        time, noise = torch.randint(0, 10, (len(x),)), torch.randn_like(x)
        weight = (time / 10).unsqueeze(1)
        loss = F.mse_loss(model((1 - weight) * x + weight * noise, time), noise)
        model.backward(loss)
        return loss

    return Spec(Net(), rows(), step, evaluate=None)
