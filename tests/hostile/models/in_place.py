"""What changes tensors in place, or changes what they look like."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from hostile.models.state_outside_tensors import Block, Deep, forward_of_deep
from hostile.table import Spec, model, rows


@forward_of_deep
def result_filled_in_row_by_row(self: Deep, x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(len(x), 8, 8)
    for number, block in enumerate(self.blocks):
        x = block(x)
        out[:, number] = x
    return self.head(out.mean(1))


@forward_of_deep
def result_filled_in_and_scaled_whole(self: Deep, x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(len(x), 8, 8)
    for number, block in enumerate(self.blocks):
        x = block(x)
        out[:, number] = x
        out *= 0.9
    return self.head(out.mean(1))


@forward_of_deep
def result_filled_in_and_scaled_so_far(self: Deep, x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(len(x), 8, 8)
    for number, block in enumerate(self.blocks):
        x = block(x)
        out[:, number] = x
        out[:, : number + 1] *= 0.9
    return self.head(out.mean(1))


@forward_of_deep
def result_filled_in_and_read_so_far(self: Deep, x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(len(x), 8, 8)
    for number, block in enumerate(self.blocks):
        x = block(x)
        out[:, number] = x
        x = out[:, : number + 1].sum(1)
    return self.head(out.mean(1))


@forward_of_deep
def result_of_the_inputs_size_filled_in(self: Deep, x: torch.Tensor) -> torch.Tensor:
    out = x.new_zeros(len(x), 8)
    for number, block in enumerate(self.blocks):
        x = block(x)
        out[:, number] += x[:, number]
    return self.head(out)


@forward_of_deep
def every_other_column_added_to(self: Deep, x: torch.Tensor) -> torch.Tensor:
    for block in self.blocks:
        x = block(x)
        x[:, ::2] += 0.1
        x[:, 1::2] *= 0.9
        x.narrow(1, 0, 2).sin_()
    return self.head(x)


@forward_of_deep
def views_that_are_kept_and_changed_later(self: Deep, x: torch.Tensor) -> torch.Tensor:
    base = self.blocks[0](x)
    part = base.view(len(x), 2, 4)[:, 1]
    x = base.clone()
    for number, block in enumerate(self.blocks[1:]):
        part.mul_(0.9) if number % 2 else part.add_(0.1)
        x = block(x) + base
    return self.head(x)


@model
def a_view_of_the_input_is_changed() -> Spec:
    """The step's own batch is changed in place, after a copy."""

    class Net(Deep):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.clone()
            x[:, 0] = x[:, 1]
            for block in self.blocks:
                x = block(x) + x[:, :1]
            return self.head(x)

    return Spec(Net(), rows())


@forward_of_deep
def transposed_and_squeezed_in_place(self: Deep, x: torch.Tensor) -> torch.Tensor:
    for block in self.blocks:
        x = block(x)
        x = (x * 1).unsqueeze_(0).transpose_(0, 1).squeeze_(1)
    return self.head(x)


@forward_of_deep
def filled_copied_and_scattered_in_place(self: Deep, x: torch.Tensor) -> torch.Tensor:
    places = torch.arange(len(x)).unsqueeze(1) % 8
    for number, block in enumerate(self.blocks):
        x = block(x)
        if number % 4 == 0:
            x = x.clone().masked_fill_(x.detach() > 1, 1.0)
        elif number % 4 == 1:
            x = x.clone().scatter_(1, places, 0.5)
        elif number % 4 == 2:
            x = x.clone().index_copy_(1, torch.tensor([0, 1]), x[:, 2:4])
        else:
            x = x.clone().index_put_((torch.tensor([0]), torch.tensor([1])), x[1, 1], accumulate=True)
    return self.head(x)


@forward_of_deep
def mask_of_ones_zeroed_by_values(self: Deep, x: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(len(x), 1)
    for block in self.blocks:
        x = block(x) * mask.clone()
        mask[x.detach().mean(1) < -0.3] = 0.5
    return self.head(x * mask)


@forward_of_deep
def activations_in_place(self: Deep, x: torch.Tensor) -> torch.Tensor:
    for number, block in enumerate(self.blocks):
        x = block(x)
        x = F.leaky_relu_(x, 0.1) if number % 2 else F.elu_(x)
    return self.head(x.clamp(-4, 4))


@model
def blocks_change_their_argument() -> Spec:
    """A block gives nothing back: it adds to what it was given."""

    class Adds(Block):
        def forward(self, x: torch.Tensor) -> None:  # type: ignore[override]
            x.add_(self.line(x.clone()).tanh())

    class Net(Deep):
        block = Adds

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.clone()
            for block in self.blocks:
                block(x)
            return self.head(x)

    return Spec(Net(), rows())


@model
def blocks_write_into_a_workspace() -> Spec:
    """A buffer of the root is a workspace: each block writes its detached result, the head reads all."""

    class Net(Deep):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("space", torch.zeros(8, 8), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for number, block in enumerate(self.blocks):
                x = block(x)
                self.space[number] = x.detach().mean(0)
            return self.head(x + self.space.mean(0))

    return Spec(Net(), rows())


@forward_of_deep
def data_of_a_result_is_changed(self: Deep, x: torch.Tensor) -> torch.Tensor:
    for block in self.blocks:
        x = block(x)
        x.data.clamp_(-2, 2)
    return self.head(x)


@forward_of_deep
def detached_memory_is_changed(self: Deep, x: torch.Tensor) -> torch.Tensor:
    for block in self.blocks:
        x = block(x) * 1.0
        with torch.no_grad():
            x.detach().mul_(0.9)
    return self.head(x)


@forward_of_deep
def list_of_tensors_changed_by_foreach(self: Deep, x: torch.Tensor) -> torch.Tensor:
    kept: list[Any] = []
    for block in self.blocks:
        x = block(x)
        kept.append(x * 1.0)
    torch._foreach_mul_(kept, 0.5)
    return self.head(torch.stack(kept).sum(0))
