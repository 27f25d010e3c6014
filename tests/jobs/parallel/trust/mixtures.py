"""Mixtures of experts whose experts are divided among ranks: they train as in one process, whatever their router does, and
experts that are lost, counted twice or taken for others are found in the first step."""

from __future__ import annotations

from contextlib import redirect_stdout
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import trainshed.parallel as pipe
from trainshed.parallel.engine.tensor import experts
from trainshed.parallel.engine.tensor.experts import Experts

from .table import case, long_case, refused
from .tensor import WORDS, begun, goes_on, trains, with_dropout, words
from .training import adam, squared

COUNT = 5


class Packed(nn.Module):
    """Experts in one tensor each, whose sizes make no equal parts."""

    def __init__(self, sharing: Packed | None = None) -> None:
        super().__init__()
        self.num_experts = COUNT
        self.up = sharing.up if sharing else nn.Parameter(torch.randn(COUNT, 9, 6) / 3)
        self.down = sharing.down if sharing else nn.Parameter(torch.randn(COUNT, 6, 9) / 3)

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        found = torch.zeros_like(x)
        for number in range(self.num_experts):
            rows, choice = (chosen == number).nonzero(as_tuple=True)
            one = F.linear(F.linear(x[rows], self.up[number]).tanh(), self.down[number])
            found = found.index_add(0, rows, (one * weights[rows, choice, None]).to(x.dtype))
        return found


class Counting(Packed):
    """Keeps what its loss outside needs of all experts."""

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        self.load = torch.bincount(chosen.flatten(), minlength=self.num_experts)
        return super().forward(x, chosen, weights)


class Mixture(nn.Module):
    """A router in whole precision, with losses of its own; a shared expert; what an expert has no room for is dropped."""

    def __init__(self, kind: Any = Packed, *, room: int = 99, only: int = COUNT, again: str = "") -> None:
        super().__init__()
        self.router, self.experts, self.shared = nn.Linear(6, COUNT, bias=False), kind(), nn.Linear(6, 6)
        self.room, self.only, self.again = room, only, again
        self.loss = torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, -2)
        scores = self.router(flat.float())
        odds = scores.softmax(-1)
        weights, chosen = odds[:, : self.only].topk(2)
        share = F.one_hot(chosen, COUNT).float().mean((0, 1))
        self.loss = 0.1 * (share * odds.mean(0)).sum() + 0.01 * scores.logsumexp(-1).square().mean()
        place = F.one_hot(chosen.flatten(), COUNT).cumsum(0).gather(1, chosen.flatten()[:, None]).view_as(chosen)
        chosen = torch.where(place > self.room, COUNT, chosen)  # the number of no expert
        if self.again:
            found = checkpoint(self.experts, flat, chosen, weights, use_reentrant=self.again == "reentrant")
        else:
            found = self.experts(flat, chosen, weights=weights)
        return (found + self.shared(flat)).view_as(x)


class ByHand(nn.Module):
    """Experts that are modules, each called with its tokens; those of the last have none in some batches."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(6, COUNT)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 6)) for _ in range(COUNT))
        self.loss = torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, -2)
        odds = self.router(flat).softmax(-1)
        weights, chosen = odds.topk(1)
        self.loss = 0.1 * odds.mean(0).square().sum()
        found = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows, choice = (chosen == number).nonzero(as_tuple=True)
            if len(rows):
                found[rows] += expert(flat[rows]) * weights[rows, choice, None]
        return found.view_as(x)


class Net(nn.Module):
    def __init__(self, middle: nn.Module, *more: nn.Module) -> None:
        super().__init__()
        self.table, self.middle, self.more = nn.Embedding(WORDS, 6), middle, nn.ModuleList(more)
        self.head = nn.Linear(6, WORDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.table(x)
        for one in (self.middle, *self.more):
            hidden = hidden + one(hidden)
        return self.head(hidden)


def with_losses(model: Any, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().mean() + sum(one.loss for one in (model.module.middle, *model.module.more))
    model.backward(loss)
    return loss


DIVIDED = {"table", "head", "middle.experts", "middle.shared", "middle.router"}


@case(ranks=2)
def experts_with_losses_of_their_router() -> None:
    trains(lambda: Net(Mixture()), DIVIDED, words, step=with_losses)
    trains(lambda: Net(Mixture()), DIVIDED, words, step=with_losses, optimizer=adam, tolerance=1e-4, verify_steps=1)


@case(ranks=2)
def experts_that_no_token_reaches() -> None:
    for only in (2, 3):  # all of the second rank, and some of it
        trains(lambda only=only: Net(Mixture(only=only)), DIVIDED, words, optimizer=adam, tolerance=1e-4)


@case(ranks=2)
def tokens_that_a_full_expert_drops() -> None:
    trains(lambda: Net(Mixture(room=2)), DIVIDED, words, step=with_losses)


@case(ranks=2)
def experts_that_run_again_in_the_backward() -> None:
    for way in ("reentrant", "other"):
        trains(lambda way=way: Net(Mixture(again=way)), DIVIDED, words)


@case(ranks=2)
def experts_that_two_layers_share() -> None:
    def build() -> nn.Module:
        first, second = Mixture(), Mixture()
        second.experts = Packed(sharing=first.experts)
        return Net(first, second)

    trains(build, {*DIVIDED, "more.0.experts", "more.0.shared", "more.0.router"}, words, step=with_losses)


@case(ranks=2)
def frozen_experts_and_a_frozen_router() -> None:
    for name in ("experts", "router"):

        def frozen(name: str = name) -> nn.Module:
            net = Net(Mixture())
            net.middle.get_submodule(name).requires_grad_(False)
            return net

        trains(frozen, DIVIDED, words)


@case(ranks=2)
def hooks_of_experts_see_what_is_whole() -> None:
    def hooked() -> nn.Module:
        net = Net(Mixture())
        net.middle.experts.register_forward_hook(
            lambda _module, args, output: output + args[0].mean() * args[1].float().mean()
        )
        return net

    trains(hooked, DIVIDED, words)

    def of_gradients() -> nn.Module:
        net = Net(Mixture())
        net.middle.experts.up.register_hook(lambda gradient: gradient * 3)
        return net

    trains(of_gradients, DIVIDED - {"middle.experts"}, words)


@case(ranks=2)
def experts_that_need_all_of_them_stay_whole() -> None:
    trains(lambda: Net(Mixture(Counting)), DIVIDED - {"middle.experts"}, words, step=with_losses)
    model, _, said = begun(lambda: Net(Mixture(Counting)))
    with redirect_stdout(said):
        pipe.step(squared)(model, *words(0, pipe.rank()))
    assert pipe.rank() or "whole stay: 'middle.experts': its forward changes 'load'" in said.getvalue()


@case(ranks=2)
def experts_that_are_modules() -> None:
    inside = {f"middle.experts.{number}.{layer}" for number in range(COUNT) for layer in (0, 2)}
    model = trains(lambda: Net(ByHand()), None, words, step=with_losses)
    names = {name for name, one in model.module.named_modules() for other in model.distributed_modules() if one is other}
    assert names - inside == DIVIDED - {"middle.experts", "middle.shared"} and names & inside


@case(ranks=2)
def experts_between_steps() -> None:
    """Evaluation, scaled losses, clipping."""
    model, update, _ = begun(lambda: Net(Mixture()), adam, microbatches=1)
    torch.manual_seed(3)
    alone = Net(Mixture())
    alone_update = adam(alone.parameters())
    scaler, other = (torch.amp.GradScaler("cpu", init_scale=8.0) for _ in range(2))
    for number in range(3):
        update.zero_grad()
        alone_update.zero_grad()

        @pipe.step
        def train(model: Any, x: torch.Tensor) -> torch.Tensor:
            loss = model(x).square().mean()
            model.backward(scaler.scale(loss))
            return loss

        train(model, words(number, pipe.rank())[0])
        (sum(other.scale(alone(words(number, replica)[0]).square().mean()) for replica in range(2)) / 2).backward()
        norms = []
        for one, optimizer, scale in ((model, update, scaler), (alone, alone_update, other)):
            scale.unscale_(optimizer)
            norms.append(float(nn.utils.clip_grad_norm_(one.parameters(), 0.1)))
            scale.step(optimizer)
            scale.update()
        torch.testing.assert_close(norms[0], norms[1], rtol=1e-5, atol=0)
        x = words(50 + number, 0)[0]
        model.eval()
        with torch.no_grad():
            torch.testing.assert_close(model(x), alone(x), rtol=1e-4, atol=1e-5)
        model.train()


def _mixtral() -> nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    sizes = {"hidden_size": 24, "intermediate_size": 28, "num_attention_heads": 4, "num_key_value_heads": 2}
    options = {"attention_dropout": 0.1, "output_router_logits": True, "router_jitter_noise": 0.01}
    config = MixtralConfig(vocab_size=53, num_hidden_layers=1, num_local_experts=7, **sizes, **options)
    return MixtralForCausalLM(config)


def _qwen() -> nn.Module:
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    sizes = {"hidden_size": 24, "intermediate_size": 28, "num_attention_heads": 4, "num_key_value_heads": 2}
    mixed = {"moe_intermediate_size": 12, "shared_expert_intermediate_size": 12, "num_experts": 7, "num_experts_per_tok": 3}
    config = Qwen2MoeConfig(vocab_size=53, num_hidden_layers=1, output_router_logits=True, **sizes, **mixed)
    return Qwen2MoeForCausalLM(config)


class Written(Net):
    """A language model by hand."""

    def __init__(self) -> None:
        super().__init__(Mixture(), Mixture(room=5))
        self.table, self.head = nn.Embedding(53, 6), nn.Linear(6, 53)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:  # type: ignore[override]
        found = super().forward(input_ids)
        loss = F.cross_entropy(found[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return SimpleNamespace(loss=loss + sum(one.loss for one in (self.middle, *self.more)))


@long_case(ranks=2)
def mixtures_of_transformers(steps: int) -> None:
    for build in (_mixtral, _qwen):
        with_dropout(build, 0.95, steps=steps)
    with_dropout(Written, 0.95, steps=steps, prescaled_batch=True)


@case(ranks=4, heavy=True)
def mixtures_among_four_ranks() -> None:
    with_dropout(_mixtral, 0.95, degree=4)
    trains(lambda: Net(Mixture()), {"table", "head"}, words, degree=4)  # 5 and 6 make no 4 parts


@case(ranks=4)
def mixtures_go_on_with_another_degree() -> None:
    goes_on(_small, 2, 4, 1)


def _small() -> nn.Module:
    class Seven(Packed):
        def __init__(self) -> None:
            super().__init__()
            self.num_experts = 7
            self.up, self.down = nn.Parameter(torch.randn(7, 9, 6) / 3), nn.Parameter(torch.randn(7, 6, 9) / 3)

    return Net(Mixture(Seven))


# Defects that are planted one at a time: each is found before the first optimizer step.


def _found(change: Any, *words_: str) -> None:
    model, _, _ = begun(lambda: Net(Mixture()))
    with change:
        refused(
            lambda: pipe.step(with_losses)(model, *words(0, pipe.rank())),
            *("is not right, no parameter was changed", "'middle.experts'", *words_),
        )
    assert all(parameter.grad is None for parameter in model.parameters())
    pipe.shutdown()


@case(ranks=2)
def experts_that_are_dropped_are_found() -> None:
    native = experts.summed
    second = lambda part, mesh: native(part * (1 - mesh.get_local_rank()), mesh)  # noqa: E731
    _found(patch.object(experts, "summed", second), "gave another output")


@case(ranks=2)
def experts_that_count_twice_are_found() -> None:
    native = experts.summed
    both = lambda part, mesh: native(native(part, mesh), mesh)  # noqa: E731
    _found(patch.object(experts, "summed", both), "gave another output")


@case(ranks=2)
def experts_that_are_taken_for_others_are_found() -> None:
    native = Experts.computing

    def shifted(kind: Experts, entrance: Any) -> Any:
        compute = native(kind, entrance)
        return lambda x, chosen, weights: compute(x, (chosen + 1) % COUNT, weights)

    _found(patch.object(Experts, "computing", shifted), "gave another output")
