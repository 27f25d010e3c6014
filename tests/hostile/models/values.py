"""What goes into modules and comes out of them: containers, kwargs, None, numbers, odd types, odd memory."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from hostile.models.state_outside_tensors import Block, Deep, forward_of_deep
from hostile.table import BATCH, Spec, generator, model, rows, tokens


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


@model
def named_tuples_between_blocks() -> Spec:
    class Swap(Block):
        def forward(self, pair: Any) -> Any:
            return Pair(super().forward(pair.right), pair.left)

    class Net(Deep):
        block = Swap

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            pair = Pair(x, x * 2)
            for block in self.blocks:
                pair = block(pair)
            return self.head(pair.left + pair.right)

    return Spec(Net(), rows())


@model
def namespace_between_blocks() -> Spec:
    class Spaced(Block):
        def forward(self, space: Any) -> Any:
            return SimpleNamespace(x=super().forward(space.x), depth=space.depth + 1)

    class Net(Deep):
        block = Spaced

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            space = SimpleNamespace(x=x, depth=0)
            for block in self.blocks:
                space = block(space)
            return self.head(space.x) / space.depth

    return Spec(Net(), rows())


@model
def dataclass_changed_in_place() -> Spec:
    @dataclasses.dataclass
    class State:
        x: torch.Tensor
        steps: int = 0

    class Changes(Block):
        def forward(self, state: State) -> None:  # type: ignore[override]
            state.x = super().forward(state.x)
            state.steps += 1

    class Net(Deep):
        block = Changes

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            state = State(x)
            for block in self.blocks:
                block(state)
            return self.head(state.x) / state.steps

    return Spec(Net(), rows())


@model
def dictionary_updated_by_blocks() -> Spec:
    """Each block writes into a dictionary that all have: a bus."""

    class Writes(Block):
        def __init__(self) -> None:
            super().__init__()
            self.name = ""

        def forward(self, bus: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            bus[self.name] = super().forward(sum(bus.values()) / len(bus))
            return bus

    class Net(Deep):
        block = Writes

        def __init__(self) -> None:
            super().__init__()
            for number, block in enumerate(self.blocks):
                block.name = f"out {number}"

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            bus = {"in": x}
            for block in self.blocks:
                bus = block(bus)
            return self.head(torch.stack(list(bus.values())).mean(0))

    return Spec(Net(), rows())


@model
def list_that_grows_densely_connected() -> Spec:
    class Dense(nn.Module):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.line = nn.Linear(8 * (number + 1), 8)

        def forward(self, features: list[torch.Tensor]) -> torch.Tensor:
            return self.line(torch.cat(features, 1)).relu()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Dense(number) for number in range(8))
            self.head = nn.Linear(72, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            features = [x]
            for block in self.blocks:
                features.append(block(features))
            return self.head(torch.cat(features, 1))

    return Spec(Net(), rows())


@model
def optional_results_that_are_none() -> Spec:
    class Maybe(Block):
        def __init__(self) -> None:
            super().__init__()
            self.extra = False

        def forward(self, x: torch.Tensor, before: Any = None) -> Any:  # type: ignore[override]
            x = super().forward(x if before is None else x + before)
            return x, (x.mean(1, keepdim=True) if self.extra else None), {"calls": 1, "name": "block", "none": None}

    class Net(Deep):
        block = Maybe

        def __init__(self) -> None:
            super().__init__()
            for block in self.blocks[::3]:
                block.extra = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            extra, calls = None, 0
            for block in self.blocks:
                x, extra, notes = block(x, before=extra)
                calls += notes["calls"]
            return self.head(x) / calls

    return Spec(Net(), rows())


@model
def keyword_arguments_only() -> Spec:
    class Words(Block):
        def forward(self, *, hidden: torch.Tensor, scale: float = 1.0, flags: tuple[bool, ...] = ()) -> torch.Tensor:  # type: ignore[override]
            return super().forward(hidden * scale) * (2 if any(flags) else 1)

    class Net(Deep):
        block = Words

        def forward(self, *, inputs: dict[str, torch.Tensor]) -> dict[str, Any]:  # type: ignore[override]
            x = inputs["x"]
            for number, block in enumerate(self.blocks):
                x = block(hidden=x, scale=0.5 + number / 8, flags=(number == 3, False))
            return {"logits": self.head(x), "depth": len(self.blocks), "kind": "words", "nothing": None}

    def step(model: Any, batch: dict[str, torch.Tensor]) -> Any:
        out = model(inputs={"x": batch["x"]})
        loss = F.cross_entropy(out["logits"], batch["y"])
        model.backward(loss)
        return {"loss": loss, "depth": out["depth"], "kind": out["kind"], "logits": out["logits"]}

    make = rows()
    return Spec(Net(), lambda n: ({"x": make(n)[0], "y": make(n)[1]},), step, evaluate=None)


@model
def own_class_of_output_with_properties() -> Spec:
    """Like a ModelOutput: a dictionary with attributes."""

    class Output(OrderedDict):  # type: ignore[type-arg]
        def __getattr__(self, name: str) -> Any:
            try:
                return self[name]
            except KeyError:
                raise AttributeError(name) from None

    class Gives(Block):
        def forward(self, x: torch.Tensor) -> Any:
            out = super().forward(x)
            return Output(hidden=out, norm=out.norm(dim=1, keepdim=True))

    class Net(Deep):
        block = Gives

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                out = block(x)
                x = out.hidden / (1 + out["norm"])
            return self.head(x)

    return Spec(Net(), rows())


@model
def complex_numbers_between_blocks() -> Spec:
    class Spectral(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(5, dtype=torch.complex64))

        def forward(self, z: torch.Tensor) -> torch.Tensor:
            return z * self.weight / (1 + z.abs())

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inward, self.blocks = nn.Linear(8, 8), nn.ModuleList(Spectral() for _ in range(8))
            self.head = nn.Linear(8, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            z = torch.fft.rfft(self.inward(x))
            for block in self.blocks:
                z = block(z)
            return self.head(torch.fft.irfft(z, 8))

    return Spec(Net(), rows())


@model
def integers_and_masks_beside_values() -> Spec:
    """Positions that blocks move on, and a mask that they narrow: no gradients, but sent."""

    class Moves(Block):
        def forward(self, x: torch.Tensor, places: torch.Tensor, mask: torch.Tensor) -> Any:  # type: ignore[override]
            x = super().forward(x.gather(1, places)) * mask
            return x, (places + 1) % 8, mask & (x.detach() > -2)

    class Net(Deep):
        block = Moves

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            places = torch.arange(8).expand(len(x), 8)
            mask = torch.ones_like(x, dtype=torch.bool)
            for block in self.blocks:
                x, places, mask = block(x, places, mask)
            return self.head(x)

    return Spec(Net(), rows())


@model
def half_precision_blocks_in_the_middle() -> Spec:
    class Net(Deep):
        def __init__(self) -> None:
            super().__init__()
            for block in self.blocks[2:6]:
                block.bfloat16()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for number, block in enumerate(self.blocks):
                x = block(x.bfloat16() if 2 <= number < 6 else x.float())
            return self.head(x)

    return Spec(Net(), rows())


@forward_of_deep
def autocast_inside_the_model(self: Deep, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        for block in self.blocks[:5]:
            x = block(x)
    for block in self.blocks[5:]:
        x = block(x.float())
    return self.head(x)


@model
def double_precision() -> Spec:
    make = rows()
    return Spec(Deep().double(), lambda n: (make(n)[0].double(), make(n)[1]))


@model
def views_cross_the_cut() -> Spec:
    """chunk, transpose, expand and narrow of one tensor are used far down."""

    class Net(Deep):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first = self.blocks[0](x)
            left, right = first.chunk(2, 1)
            wide = first[:, :1].expand(-1, 8)
            x = torch.cat([right, left], 1)
            for block in self.blocks[1:]:
                x = block(x) + wide
            return self.head(x.t().contiguous().t()) + left.sum(1, keepdim=True)

    return Spec(Net(), rows())


@forward_of_deep
def in_place_on_slices_and_results(self: Deep, x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(len(x), 8, 8)
    for number, block in enumerate(self.blocks):
        x = block(x)
        out[:, number] = x
        out[:, : number + 1] *= 0.9
        x = out[:, : number + 1].sum(1)
    return self.head(out.flatten(1)[:, ::8])


@model
def sparse_graph_with_index_add() -> Spec:
    """Edges are the same for all; messages are summed at the nodes."""

    class Message(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(16, 8)

        def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
            a, b = edges
            sent = self.line(torch.cat([nodes[:, a], nodes[:, b]], -1)).relu()
            return nodes + torch.zeros_like(nodes).index_add(1, b, sent)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks, self.head = nn.ModuleList(Message() for _ in range(8)), nn.Linear(8, 5)
            self.register_buffer("edges", torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]]), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x, self.edges)
            return self.head(x.mean(1))

    def batch(number: int) -> Any:
        source = generator(number)
        return torch.randn(BATCH, 5, 8, generator=source), torch.randint(0, 5, (BATCH,), generator=source)

    return Spec(Net(), batch)


@model
def nested_containers_of_modules() -> Spec:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleDict(
                {
                    f"level {n}": nn.ModuleList(
                        [nn.ModuleDict({"a b": Block(), "norm": nn.Identity()}), nn.Sequential(Block())]
                    )
                    for n in range(4)
                }
            )
            self.scales = nn.ParameterList(torch.ones(8) for _ in range(4))
            self.shifts = nn.ParameterDict({"one": nn.Parameter(torch.zeros(8))})
            self.head = nn.Linear(8, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for scale, (dictionary, line) in zip(self.scales, self.parts.values(), strict=True):
                x = line(dictionary["norm"](dictionary["a b"](x * scale))) + self.shifts["one"]
            return self.head(x)

    return Spec(Net(), rows())


@model
def modules_in_a_plain_list_and_registered_by_hand() -> Spec:
    """Blocks stand in a Python list; add_module registers them under other names."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.order = [Block() for _ in range(8)]
            for number, block in enumerate(self.order):
                self.add_module(f"z{number}", block)
            self.head = nn.Linear(8, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in reversed(self.order):
                x = block(x)
            return self.head(x)

    return Spec(Net(), rows())


@forward_of_deep
def generator_and_lambda_in_the_forward(self: Deep, x: torch.Tensor) -> torch.Tensor:
    import functools

    steps = (lambda value, block=block: block(value).clamp(-3, 3) for block in self.blocks)
    return self.head(functools.reduce(lambda value, function: function(value), steps, x))


@model
def scalars_of_python_from_the_input() -> Spec:
    """The step gives numbers, a string and None beside tensors."""

    class Net(Deep):
        def forward(self, x: torch.Tensor, scale: float, power: int, name: str, mask: Any, flag: bool) -> torch.Tensor:
            x = x * scale if name == "wide" and flag and mask is None else x
            return super().forward(x) * power

    def step(model: Any, x: torch.Tensor, scale: float, power: int, y: torch.Tensor) -> Any:
        loss = F.cross_entropy(model(x, scale, power, "wide", None, True), y)
        model.backward(loss)
        return loss, scale, power

    make = rows()
    return Spec(Net(), lambda n: (make(n)[0], 0.5, 2, make(n)[1]), step, evaluate=None)


@model
def tensor_of_no_dimension_travels() -> Spec:
    class Scales(Block):
        def forward(self, x: torch.Tensor, scale: torch.Tensor) -> Any:  # type: ignore[override]
            x = super().forward(x) * scale
            return x, scale * (1 + x.mean() / 10)

    class Net(Deep):
        block = Scales

        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scale = self.scale
            for block in self.blocks:
                x, scale = block(x, scale)
            return self.head(x) * scale

    return Spec(Net(), rows())


@forward_of_deep
def empty_tensors_travel(self: Deep, x: torch.Tensor) -> torch.Tensor:
    past = x[:, :0]
    for block in self.blocks:
        x = block(x)
        past = torch.cat([past, x[:, :0]], 1)
    return self.head(torch.cat([x, past], 1))


@model
def words_with_an_embedding_bag_and_offsets() -> Spec:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag, self.body = nn.EmbeddingBag(20, 8, mode="sum"), Deep()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            offsets = torch.arange(0, x.numel(), x.shape[1])
            return self.body(self.bag(x.flatten(), offsets))

    return Spec(Net(), tokens())


@model
def sparse_gradients_of_an_embedding() -> Spec:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.body = nn.Embedding(20, 8, sparse=True), Deep()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(self.table(x).mean(1))

    return Spec(Net(), tokens())


@model
def padding_index_and_max_norm() -> Spec:
    """max_norm changes the table in place in the forward."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.body = nn.Embedding(20, 8, padding_idx=0, max_norm=1.0), Deep()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(self.table(x).sum(1))

    return Spec(Net(), tokens())
