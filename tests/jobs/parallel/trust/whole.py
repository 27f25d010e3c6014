"""`model.generate`: the undivided model on the first rank, outside of steps."""

from __future__ import annotations

import copy
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

import trainshed.parallel as pipe
from trainshed.parallel.engine.verify import verify_budget as room

from .surroundings import BLOCKS, alone
from .table import begin, case, refused, same
from .training import Alone, sgd, squared


def small() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(3)
    sizes = {"vocab_size": 24, "n_positions": 32, "n_embd": 16, "n_layer": 4, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=1, pad_token_id=0, initializer_range=0.5))


def predicted(model: Any, ids: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(input_ids=ids, labels=ids, use_cache=False).loss
    model.backward(loss)
    return loss


@case(ranks=2)
def transformers_generate_with_a_cache_as_one_process_does() -> None:
    begin(partitions=2, microbatches=2)
    module = small()
    whole = copy.deepcopy(module)
    model = pipe.PipelineModel(module)
    update, train = pipe.PipelineOptimizer(sgd(model.parameters())), pipe.step(predicted)
    prompt = torch.tensor([[5, 6, 7], [8, 9, 10]])
    for kind in ("before the first step", "after it", "after the second one"):
        whole.load_state_dict(model.state_dict())
        model.eval()
        whole.eval()
        for options in ({}, {"num_beams": 3}, {"do_sample": True}, {"do_sample": True}):
            place = torch.get_rng_state()
            wanted = whole.generate(prompt, max_new_tokens=8, **options)
            after = torch.get_rng_state()
            torch.set_rng_state(place)
            found = model.generate(prompt, max_new_tokens=8, **options)
            assert torch.equal(found, wanted), (kind, options, found, wanted)
            assert torch.equal(torch.get_rng_state(), after), (kind, options)
        model.train()
        train(model, torch.arange(12).view(2, 6))
        update.step()
        update.zero_grad()


@case(ranks=2)
def hidden_states_are_those_of_one_forward_after_generate_was_asked_for_them() -> None:
    """transformers puts hooks on a model's blocks when it is first asked for hidden states, and notes that it has."""
    begin(partitions=2, microbatches=2)
    module = small().eval()
    whole = copy.deepcopy(module)
    model = pipe.PipelineModel(module)
    prompt = torch.tensor([[5, 6, 7], [8, 9, 10]])
    asked: Any = {"output_hidden_states": True, "return_dict_in_generate": True, "max_new_tokens": 2}

    def all_states(model: Any, ids: torch.Tensor) -> torch.Tensor:
        found = model(input_ids=ids, labels=ids, use_cache=False, output_hidden_states=True)
        loss = found.loss + sum((n + 1) * state.square().mean() for n, state in enumerate(found.hidden_states))
        model.backward(loss)
        return loss

    wanted = whole.generate(prompt, **asked).hidden_states
    one = Alone(whole, 0.5)
    losses = torch.stack([all_states(one, part).detach() for part in prompt.chunk(2)])
    for _ in range(2):
        found = model.generate(prompt, **asked).hidden_states
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
        mine = pipe.step(all_states)(model, prompt).outputs
        torch.testing.assert_close(torch.stack(list(mine)).detach(), losses, rtol=1e-5, atol=0)


class Says(nn.Module):
    """Has a `generate` of its own, which moves a buffer, and modules that keep things."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Keeps() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x

    def generate(self, x: torch.Tensor, fail: bool = False) -> dict[str, Any]:
        if fail:
            raise ValueError("no such thing")
        return {"first": self(x), "both": [self(x), 3]}


class Keeps(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        self.mean = torch.zeros(4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.mean = 0.5 * self.mean + x.detach().mean(0)
        return super().forward(x - self.mean) / self.count.sqrt()


@case(ranks=2)
def a_generate_of_its_own_leaves_nothing_in_the_model() -> None:
    states, said = [], []
    for generates in (False, True):
        begin(partitions=2, microbatches=4, atomic=BLOCKS)
        torch.manual_seed(3)
        model = pipe.PipelineModel(Says())
        update, train = pipe.PipelineOptimizer(sgd(model.parameters())), pipe.step(squared)
        for number in range(3):
            update.zero_grad()
            train(model, *alone(number, 0))
            update.step()
            if generates:
                said.append(model.generate(alone(9, 0)[0]))
        states.append(model.state_dict())
        pipe.shutdown()
    same(states[1], states[0], tolerance=0.0)
    torch.manual_seed(3)
    one = Says()
    update = sgd(one.parameters())
    for number in range(3):
        update.zero_grad()
        for part in alone(number, 0)[0].chunk(4):
            (one(part).square().mean() / 4).backward()
        update.step()
    with torch.no_grad():
        wanted = one.generate(alone(9, 0)[0])
    same({"a": said[2]["first"], "b": said[2]["both"][0]}, {"a": wanted["first"], "b": wanted["both"][0]})
    assert said[2]["both"][1] == 3


@case(ranks=2)
def a_generate_that_cannot_be_done_is_refused_on_all_ranks() -> None:
    begin(partitions=2, microbatches=2)
    model = pipe.PipelineModel(Says())
    x = torch.ones(4, 4)
    pipe.step(squared)(model, x)
    refused(lambda: model.generate(x, fail=True), "model.generate() ended on rank 0 with ValueError: no such thing")
    refused(lambda: model.generate(x + pipe.pp_rank()), "another batch")
    with patch.object(room, "free_bytes", lambda _device: 0.0):
        refused(lambda: model.generate(x), "needs the whole model on the first rank", "no room", "state_dict()")
    refused(lambda: model.module.generate(x), "called outside a step", "model.generate()")
    assert model.generate(x)["first"].shape == (4, 4)
    pipe.step(squared)(model, x)
    pipe.shutdown()
    begin(partitions=2, microbatches=2)
    model = pipe.PipelineModel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    refused(lambda: model.generate(x), "Sequential has no generate()")


@case(ranks=4)
def replicas_generate_alone() -> None:
    begin(partitions=2, microbatches=2, atomic=BLOCKS)
    torch.manual_seed(3)
    model = pipe.PipelineModel(Says())
    pipe.step(squared)(model, torch.ones(4, 4))
    if pipe.dp_rank() == 0:
        assert model.generate(torch.ones(2, 4))["both"][1] == 3
    pipe.step(squared)(model, torch.ones(4, 4))
