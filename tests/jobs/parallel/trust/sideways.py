"""Values that leave a module sideways: attributes, hooks, transformers' recorder of outputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import trainshed.parallel as pipe

from .table import begin, case, refused
from .training import check, language, squared


def rows(number: int, replica: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(8, 4, generator=torch.Generator().manual_seed(10 * number + replica)),)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.a(x).tanh()
        self.middle = inner if self.keeps_graph else inner.detach()
        return x + self.b(inner)

    keeps_graph = False


class Blocks(nn.Module):
    def __init__(self, keeps_graph: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.last = nn.Linear(4, 4)
        for block in self.blocks:
            block.keeps_graph = keeps_graph

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.last(x)


WHOLE = [f"blocks.{number}" for number in range(4)]


def with_attributes(model: Any, x: torch.Tensor) -> torch.Tensor:
    out = model(x)
    inner = model.module.blocks
    loss = out.square().mean() + sum((number + 1) * block.middle.square().mean() for number, block in enumerate(inner))
    model.backward(loss * (1 + inner[0].middle.mean()))
    return loss


@case(ranks=2)
def detached_value_in_attribute() -> None:
    check(Blocks, rows, step=with_attributes, partitions=2, atomic=WHOLE)


@case(ranks=4)
def detached_value_in_attribute_of_four_stages() -> None:
    check(Blocks, rows, step=with_attributes, partitions=4, parts=4, atomic=WHOLE)


@case(ranks=2)
def value_with_gradient_in_attribute() -> None:
    for options in ({}, {"pipeline": "interleavedzerobubble"}):
        check(lambda: Blocks(True), rows, step=with_attributes, partitions=2, atomic=WHOLE, **options)
        pipe.shutdown()


class Caught(nn.Module):
    """Hooks catch what the blocks give and what is inside of them, in a list and in a dictionary."""

    def __init__(self, detaches: bool) -> None:
        super().__init__()
        self.body = Blocks()
        self.seen: list[torch.Tensor] = []
        inside: dict[str, torch.Tensor] = {}
        seen = self.seen

        def outside(_module: nn.Module, _args: Any, output: torch.Tensor) -> None:
            seen.append(output.detach() if detaches else output)

        for number, block in enumerate(self.body.blocks):
            block.register_forward_hook(outside)
            block.a.register_forward_hook(lambda _m, _a, output, n=str(number): inside.__setitem__(n, output))
        self.inside = [inside]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.clear()
        out = self.body(x)
        weighed = sum(number * value.square().mean() for number, value in enumerate(self.seen, 1))
        return 0.1 * out + 0.01 * weighed + 0.1 * torch.stack([self.inside[0][n].mean() for n in "0123"]).prod()


@case(ranks=2)
def hook_catches_features_detached() -> None:
    check(lambda: Caught(True), rows, partitions=2, atomic=[f"body.{name}" for name in WHOLE])


@case(ranks=2)
def hook_catches_features_with_gradient() -> None:
    check(lambda: Caught(False), rows, partitions=2, atomic=[f"body.{name}" for name in WHOLE])


@case(ranks=2)
def value_in_a_place_nobody_looks_at() -> None:
    """A module leaves it in another module: refused, or kept in one stage, but never an old value."""

    class Leaves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            globals()["_left"] = self.a(x).tanh()
            return x + globals()["_left"]

    class Takes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.middle, self.last = Leaves(), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.middle(self.first(x))
            return self.last(x * globals()["_left"])

    begin(partitions=2, microbatches=2, atomic=["first"])
    model = pipe.PipelineModel(Takes())
    model.set_partition(model.module.first, 0)
    model.set_partition(model.module.last, 1)
    step = pipe.step(squared)
    try:
        step(model, *rows(0, 0))
    except pipe.PipelineError:
        return
    cut = {unit.unit: unit.stage for unit in model.plan.units}
    raise AssertionError(f"nothing was refused: {cut}")


@case(ranks=2)
def tensors_are_walked_through() -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([self.b(row) for row in self.a(x)])

    check(Rows, rows, partitions=2)


def tiny_moe(loss: bool = True) -> nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=17, hidden_size=8, intermediate_size=8, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1,
        num_local_experts=4, num_experts_per_tok=2, output_router_logits=loss, router_aux_loss_coef=0.5, use_cache=False,
        max_position_embeddings=16,
    )  # fmt: skip
    config._attn_implementation = "eager"
    return MixtralForCausalLM(config)


def tiny_llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=17, hidden_size=8, intermediate_size=8, num_hidden_layers=4, num_attention_heads=2,
            num_key_value_heads=1, use_cache=False, max_position_embeddings=16,
        )
    )  # fmt: skip


LAYERS = [f"model.layers.{number}" for number in range(4)]


def tokens(number: int, replica: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(10 * number + replica)
    return (torch.randint(1, 17, (4, 6), generator=generator),)


def with_hidden_states(model: Any, x: torch.Tensor) -> torch.Tensor:
    out = model(input_ids=x, labels=x, output_hidden_states=True, output_attentions=True)
    loss = out.loss + sum((n + 1) * state.square().mean() for n, state in enumerate(out.hidden_states))
    loss = loss + sum((n + 1) * weights.square().mean() for n, weights in enumerate(out.attentions))
    model.backward(loss)
    return loss


def ragged(number: int, replica: int) -> tuple[torch.Tensor, ...]:
    x = tokens(number, replica)[0]
    mask = torch.ones_like(x)
    mask[number % 4, 3:] = 0
    return x, mask


def padded(model: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    loss = model(input_ids=x, attention_mask=mask, labels=x.masked_fill(mask == 0, -100)).loss
    model.backward(loss)
    return loss


@case(ranks=2)
def mixtral_router_aux_loss() -> None:
    check(tiny_moe, tokens, step=language, partitions=2, atomic=LAYERS, tolerance=1e-4)


@case(ranks=2, heavy=True)
def hidden_states_and_attentions_of_llama() -> None:
    def build() -> nn.Module:
        model = tiny_llama()
        model.set_attn_implementation("eager")
        return model

    check(build, tokens, step=with_hidden_states, partitions=2, atomic=LAYERS, tolerance=1e-4)
    pipe.shutdown()
    check(build, tokens, step=with_hidden_states, steps=1, tensor_parallel_degree=2, tolerance=1e-4)


@case(ranks=2)
def llama_with_padding_in_some_microbatches() -> None:
    check(tiny_llama, ragged, step=padded, parts=4, partitions=2, atomic=LAYERS, tolerance=1e-4)


_CAUGHT: dict[str, list[torch.Tensor]] = {"seen": []}


class Memory:
    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []


class Leaving(nn.Module):
    """Blocks leave a detached value with the model, in a variable of the script, or in an object that they share."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.body, self.way = Blocks(), way
        self.features: list[torch.Tensor] = []
        self.memory = Memory()
        for block in self.body.blocks:
            if way == "parent":
                block.parent = (self,)
            elif way == "object":
                block.memory = self.memory
            elif way == "variable":
                block.register_forward_hook(catch)
            else:
                block.a.register_forward_hook(lambda _m, _a, out: self.features.append(out.detach().abs().mean()))
        self.body.blocks[0].a.register_forward_hook(self.put)

    def put(self, _module: nn.Module, _args: Any, out: torch.Tensor) -> None:
        self.first = out.detach().mean()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = {"variable": _CAUGHT["seen"], "object": self.memory.seen}.get(self.way, self.features)
        kept.clear()
        for block in self.body.blocks:
            if self.way in ("parent", "object"):
                block.forward = leave.__get__(block)
        out = self.body(x)
        return out * (1 + torch.stack(kept).mean() + self.first)


def catch(_module: nn.Module, _args: Any, out: torch.Tensor) -> None:
    _CAUGHT["seen"].append(out.detach().abs().mean())


def leave(self: Any, x: torch.Tensor) -> torch.Tensor:
    out = Block.forward(self, x)
    (self.parent[0].features if hasattr(self, "parent") else self.memory.seen).append(out.detach().abs().mean())
    return out


@case(ranks=2)
def values_left_with_the_model_or_in_a_variable() -> None:
    for way in ("hook", "parent", "variable", "object"):
        for options in ({}, {"virtual_stages": 2, "pipeline": "interleaved1f1b"}):
            check(lambda way=way: Leaving(way), rows, partitions=2, atomic=[f"body.{name}" for name in WHOLE], **options)
            pipe.shutdown()


class Neuron(nn.Module):
    """Keeps its state from one call to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.state = nn.Linear(4, 4), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.state = self.line(x) if self.state is None else 0.5 * self.state + self.line(x)
        return self.state.tanh()


class Recurrent(nn.Module):
    """Its blocks run three times in a forward."""

    def __init__(self, forgets: bool = True) -> None:
        super().__init__()
        self.blocks, self.forgets = nn.ModuleList(Neuron() for _ in range(4)), forgets

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks if self.forgets else ():
            block.state = None
        out = torch.zeros_like(x)
        for _ in range(3):
            hidden = x
            for block in self.blocks:
                hidden = block(hidden) + x
            out = out + hidden
        return out


@case(ranks=2)
def blocks_keep_a_state_within_a_forward() -> None:
    for atomic in (WHOLE, WHOLE[1:3], []):
        for options in ({}, {"virtual_stages": 2, "pipeline": "interleaved1f1b"}, {"pipeline": "interleavedzerobubble"}):
            check(Recurrent, rows, partitions=2, atomic=atomic, **options)
            pipe.shutdown()


class Stateful(nn.Module):
    """Goes on from what the microbatch before has left in it."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.state = nn.Linear(4, 4), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.line(x).tanh()
        out = out if self.state is None else out + 0.5 * self.state
        self.state = out.detach()
        return out


def stateful() -> nn.Module:
    return nn.Sequential(*(Stateful() for _ in range(4)))


@case(ranks=2)
def blocks_keep_a_state_from_one_microbatch_to_the_next() -> None:
    for options in ({}, {"virtual_stages": 2, "pipeline": "interleaved1f1b"}):
        check(stateful, rows, parts=4, partitions=2, atomic=["0", "1", "2", "3"], **options)
        pipe.shutdown()


class Unrolled(Recurrent):
    """Its blocks run several times, and go on from what the microbatch before has left."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            block.state = None if block.state is None else block.state.detach()
        return super().forward(x)


@case(ranks=2)
def a_state_that_another_stage_has_left_is_refused() -> None:
    begin(partitions=2, microbatches=4, atomic=WHOLE)
    model = pipe.PipelineModel(Unrolled(False))
    step = pipe.step(squared)
    refused(lambda: step(model, *rows(0, 0)), "differs from the recorded one")
