"""Hooks, wrappers, patched methods: code that sits around modules."""

from __future__ import annotations

import functools
import types
from typing import Any

import torch
from torch import nn

from hostile.models.state_outside_tensors import Block, Deep, forward_of_deep
from hostile.table import Spec, model, rows


@model
def forward_hooks_scale_results() -> Spec:
    net = Deep()
    for number, block in enumerate(net.blocks):
        block.register_forward_hook(lambda _m, _a, out, n=number: out * (1 + n / 20))
    return Spec(net, rows())


@model
def pre_hooks_with_keywords_change_arguments() -> Spec:
    class Takes(Block):
        def forward(self, x: torch.Tensor, gain: float = 1.0) -> torch.Tensor:  # type: ignore[override]
            return super().forward(x) * gain

    class Net(Deep):
        block = Takes

    net = Net()
    for block in net.blocks:
        block.register_forward_pre_hook(lambda _m, args, kwargs: (args, {**kwargs, "gain": 0.9}), with_kwargs=True)
    return Spec(net, rows())


@model
def backward_hooks_clip_gradients_of_values() -> Spec:
    class Clips(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = super().forward(x)
            if out.requires_grad:
                out.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
            return out

    class Net(Deep):
        block = Clips

    return Spec(Net(), rows())


@model
def full_backward_hooks_of_modules() -> Spec:
    net = Deep()
    for block in net.blocks:
        block.register_full_backward_hook(lambda _m, inward, _o: tuple(None if g is None else g * 0.9 for g in inward))
    return Spec(net, rows())


@model
def hooks_of_parameters_scale_gradients() -> Spec:
    net = Deep()
    for number, parameter in enumerate(net.parameters()):
        parameter.register_hook(lambda gradient, n=number: gradient * (1 + n / 50))
    return Spec(net, rows())


@model
def post_accumulate_hooks_clamp() -> Spec:
    def shrink(parameter: torch.Tensor) -> None:
        parameter.grad.clamp_(-0.5, 0.5)  # type: ignore[union-attr]

    net = Deep()
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(shrink)
    return Spec(net, rows())


@model
def hook_catches_features_for_the_loss() -> Spec:
    """Deep supervision by hooks: features go into a dictionary of the step's closure."""
    net, caught = Deep(), {}
    for number in (1, 4, 6):
        net.blocks[number].register_forward_hook(lambda _m, _a, out, n=number: caught.__setitem__(n, out))

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        caught.clear()
        loss = nn.functional.cross_entropy(model(x), y) + sum(value.square().mean() for value in caught.values())
        model.backward(loss)
        return loss

    return Spec(net, rows(), step)


@model
def hook_on_a_module_that_is_inside_a_unit() -> Spec:
    """Perceptual features: values inside of blocks are caught, and detached."""

    class Net(Deep):
        def __init__(self) -> None:
            super().__init__()
            self.features: list[torch.Tensor] = []
            for block in self.blocks:
                block.line.register_forward_hook(lambda _m, _a, out: self.features.append(out.detach().abs().mean()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.features.clear()
            out = super().forward(x)
            return out * (1 + torch.stack(self.features).mean())

    return Spec(Net(), rows())


@model
def forward_replaced_on_the_instance() -> Spec:
    net = Deep()

    def slower(self: Any, x: torch.Tensor) -> torch.Tensor:
        return Block.forward(self, x) * 0.5 + x

    for block in net.blocks[::2]:
        block.forward = types.MethodType(slower, block)
    return Spec(net, rows())


@model
def forward_wrapped_by_a_decorator() -> Spec:
    def residual(function: Any) -> Any:
        @functools.wraps(function)
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            return args[0] * 0.5 + function(self, *args, **kwargs)

        return wrapped

    class Wrapped(Block):
        @residual
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)

    class Net(Deep):
        block = Wrapped

    return Spec(Net(), rows())


@model
def wrapper_module_that_forwards_attributes() -> Spec:
    class Wrapper(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(super().__getattr__("inner"), name)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.inner(*args, **kwargs)

    net = Deep()
    for number in range(8):
        net.blocks[number] = Wrapper(Wrapper(net.blocks[number]))
    return Spec(Wrapper(net), rows())


@model
def methods_other_than_forward() -> Spec:
    """The root calls `block.encode(x)` and `block.decode(x)`: no call of a module."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.up = nn.Linear(8, 4), nn.Linear(4, 8)

        def encode(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(x).tanh()

        def decode(self, x: torch.Tensor) -> torch.Tensor:
            return self.up(x).tanh()

    class Net(Deep):
        block = Two

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = x + block.decode(block.encode(x))
            return self.head(x)

    return Spec(Net(), rows())


@model
def context_manager_of_ones_own_around_blocks() -> Spec:
    class Scaled:
        def __init__(self, net: Any) -> None:
            self.net = net

        def __enter__(self) -> None:
            self.net.gain = 0.5

        def __exit__(self, *_: Any) -> None:
            self.net.gain = 1.0

    class Net(Deep):
        gain = 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for number, block in enumerate(self.blocks):
                if number % 2:
                    with Scaled(self):
                        x = block(x) * self.gain
                else:
                    x = block(x) * self.gain
            return self.head(x)

    return Spec(Net(), rows())


@model
def exception_as_control_flow() -> Spec:
    """A block raises where it has had enough, and the root catches it."""

    class Enough(Exception):
        pass

    class Net(Deep):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                for number, block in enumerate(self.blocks):
                    x = block(x)
                    if number == 6:
                        raise Enough
            except Enough:
                x = x * 0.5
            return self.head(x)

    return Spec(Net(), rows())


@forward_of_deep
def finally_with_tensors_between_blocks(self: Deep, x: torch.Tensor) -> torch.Tensor:
    for block in self.blocks:
        try:
            x = block(x)
        finally:
            x = x * 0.9
    return self.head(x)


@model
def properties_and_slots_of_modules() -> Spec:
    class Property(Block):
        @property
        def gain(self) -> torch.Tensor:
            return self.norm.weight.mean() + 1

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * self.gain

    class Net(Deep):
        block = Property

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = super().forward(x)
            return out * self.blocks[2].gain

    return Spec(Net(), rows())


@model
def register_buffer_in_the_first_forward() -> Spec:
    class Lazily(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not hasattr(self, "scale"):
                self.register_buffer("scale", torch.full((x.shape[-1],), 0.5))
            return super().forward(x) * self.scale

    class Net(Deep):
        block = Lazily

    return Spec(Net(), rows())
