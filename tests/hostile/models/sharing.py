"""Weights that several places read: tied, transposed, sliced, shared blocks, parametrized, made by other networks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from hostile.models.state_outside_tensors import Block, Deep
from hostile.table import Spec, model, rows, tokens


class Language(nn.Module):
    """Table, blocks, and the table again."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(8))
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.table(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))[:, :5]


@model
def tied_table_with_scaled_logits() -> Spec:
    class Scaled(Language):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 8**-0.5

    return Spec(Scaled(), tokens())


@model
def rows_of_the_table_added_in_the_middle() -> Spec:
    """The blocks' glue reads rows of the embedding directly."""

    class Direct(Language):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.table(x)
            for number, block in enumerate(self.blocks):
                hidden = block(hidden) + 0.1 * self.table.weight[number]
            return self.head(hidden.mean(1))[:, :5]

    return Spec(Direct(), tokens())


@model
def blocks_repeat_in_pairs() -> Spec:
    """Universal transformer: four blocks, each used twice, one after the other and round again."""

    class Net(Deep):
        def __init__(self) -> None:
            super().__init__(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in [*self.blocks, *reversed(self.blocks)]:
                x = block(block(x))
            return self.head(x)

    return Spec(Net(), rows())


@model
def one_norm_shared_by_all_blocks() -> Spec:
    class Net(Deep):
        def __init__(self) -> None:
            super().__init__()
            for block in self.blocks[1:]:
                block.norm = self.blocks[0].norm

    return Spec(Net(), rows())


@model
def half_of_a_weight_shared() -> Spec:
    """Two layers read two slices of one parameter of the root."""

    class Net(Deep):
        def __init__(self) -> None:
            super().__init__()
            self.both = nn.Parameter(torch.randn(16, 8) / 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = F.linear(x, self.both[:8])
            for block in self.blocks:
                x = block(x)
            return self.head(F.linear(x, self.both[8:]))

    return Spec(Net(), rows())


@model
def decoder_with_transposed_encoder() -> Spec:
    """An autoencoder whose decoder has the encoder's weights."""

    class Auto(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lines = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(5))
            self.biases = nn.ParameterList(torch.zeros(8) for _ in range(5))
            self.head = nn.Linear(8, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for line in self.lines:
                x = line(x).tanh()
            for line, bias in zip(reversed(self.lines), self.biases, strict=True):
                x = F.linear(x, line.weight.t(), bias).tanh()
            return self.head(x)

    return Spec(Auto(), rows())


@model
def the_same_module_under_two_names() -> Spec:
    class Net(Deep):
        def __init__(self) -> None:
            super().__init__()
            self.alias = self.blocks[3]
            self.also = nn.Sequential(self.blocks[5], nn.Tanh())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x)
            return self.head(self.also(self.alias(x)))

    return Spec(Net(), rows())


@model
def weight_norm_of_parametrizations() -> Spec:
    class Net(Deep):
        def __init__(self) -> None:
            super().__init__()
            for block in self.blocks:
                parametrizations.weight_norm(block.line)

    return Spec(Net(), rows())


@model
def spectral_norm_old_and_new() -> Spec:
    """Power iterations change buffers in each forward."""

    class Net(Deep):
        def __init__(self) -> None:
            super().__init__()
            for number, block in enumerate(self.blocks):
                (parametrizations.spectral_norm if number % 2 else nn.utils.spectral_norm)(block.line)

    return Spec(Net(), rows())


@model
def symmetric_parametrization_of_ones_own() -> Spec:
    class Symmetric(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.triu() + x.triu(1).t()

    class Net(Deep):
        def __init__(self) -> None:
            super().__init__()
            for block in self.blocks:
                parametrize.register_parametrization(block.line, "weight", Symmetric())

    return Spec(Net(), rows())


@model
def network_that_makes_weights_for_blocks() -> Spec:
    class Made(nn.Module):
        def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return x + torch.bmm(weight, x.unsqueeze(2)).squeeze(2).tanh()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hyper = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 64))
            self.blocks, self.head = nn.ModuleList(Made() for _ in range(8)), nn.Linear(8, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weight = self.hyper(x).view(-1, 8, 8) / 4
            for block in self.blocks:
                x = block(x, weight)
            return self.head(x)

    return Spec(Net(), rows())


@model
def low_rank_adapters_with_frozen_base() -> Spec:
    class Adapted(Block):
        def __init__(self) -> None:
            super().__init__()
            self.requires_grad_(False)
            self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + self.up(self.down(x))

    class Net(Deep):
        block = Adapted

    return Spec(Net(), rows())


@model
def tied_biases_of_other_shapes_by_view() -> Spec:
    """A parameter that is used as a vector here, and as a matrix there."""

    class Net(Deep):
        def __init__(self) -> None:
            super().__init__()
            self.flat = nn.Parameter(torch.randn(64) / 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.flat[:8]
            for block in self.blocks:
                x = block(x)
            return self.head(x @ self.flat.view(8, 8)) + self.flat.sum() * 0.01

    return Spec(Net(), rows())


@model
def siamese_pair_with_contrastive_loss() -> Spec:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        left, right = model(x), model(x.flip(1))
        loss = F.cosine_embedding_loss(left, right, torch.where(y > 2, 1.0, -1.0)) + F.cross_entropy(left + right, y)
        model.backward(loss)
        return loss, (left - right).detach()

    return Spec(Deep(), rows(), step)


@model
def triplet_through_one_call() -> Spec:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        out = model(torch.cat([x, x + 0.1, x.flip(0)]))
        anchor, positive, negative = out.chunk(3)
        loss = F.triplet_margin_loss(anchor, positive, negative)
        model.backward(loss)
        return loss

    return Spec(Deep(), rows(), step)


@model
def parameter_in_the_loss_alone() -> Spec:
    """Uncertainty weights of two losses: parameters of the root that no module reads."""

    class Net(Deep):
        def __init__(self) -> None:
            super().__init__()
            self.other = nn.Linear(8, 8)
            self.log_variance = nn.Parameter(torch.zeros(2))

        def forward(self, x: torch.Tensor) -> Any:
            for block in self.blocks:
                x = block(x)
            return self.head(x), self.other(x)

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        logits, rebuilt = model(x)
        losses = torch.stack([F.cross_entropy(logits, y), F.mse_loss(rebuilt, x)])
        weights = model.module.log_variance
        loss = (losses * (-weights).exp() + weights).sum()
        model.backward(loss)
        return losses

    return Spec(Net(), rows(), step)


@model
def centers_of_classes_moved_by_a_loss_module() -> Spec:
    """The loss is a module with parameters inside the model."""

    class Centers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.centers = nn.Parameter(torch.randn(5, 8))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return (x - self.centers[y]).square().sum(1).mean()

    class Net(Deep):
        def __init__(self) -> None:
            super().__init__()
            self.loss = Centers()

        def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> Any:
            for block in self.blocks:
                x = block(x)
            logits = self.head(x)
            return logits if y is None else (F.cross_entropy(logits, y) + 0.1 * self.loss(x, y), logits)

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        loss, logits = model(x, y)
        model.backward(loss)
        return loss, logits

    return Spec(Net(), rows(), step)
