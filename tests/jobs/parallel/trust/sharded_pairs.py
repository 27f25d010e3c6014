"""Pairs, results in parts along the tokens, and heads in parts up to the loss, of models whose parameters are sharded as
well: tensors in parts go from block to block, and models train as one process does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import ranks
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

import trainshed.parallel as pipe
from trainshed.parallel.engine.tensor import division, kinds, part_shards
from trainshed.parallel.engine.tensor import sharded_tensor as part
from trainshed.parallel.ground import exchanges

from .pairs import _MODELS, Heads, Mlp, rows
from .pairs import _gpt2 as gpt2
from .pairs import _llama as llama
from .sequences import Again, Block, Deep, Norm, Reentrant, at_any_price
from .sequences import words as tokens
from .sharded_parts import BOTH, ONE_BATCH, share
from .table import case, long_case, refused
from .tensor import Build, Tied, begun, with_dropout, words
from .training import adam, check, language, sgd, slow_sgd, squared
from .vocabulary import Language, cross, of

UNITS = "blocks.0.heads.out blocks.0.mlp.down blocks.1.heads.out blocks.1.mlp.down places table"


def flat(build: Build) -> nn.Module:
    """With an axis for each number, without which torch shards none."""
    model = build()
    for module in model.modules():
        for name, one in module._parameters.items():
            if one is not None and not one.dim():
                module._parameters[name] = nn.Parameter(one.detach().view(1), requires_grad=one.requires_grad)
    return model


def trains(build: Build, opened: str, closed: str, batches: Any = rows, along: str | None = None, **options: Any) -> None:
    """Trains as one process does; these modules make pairs, and every parameter is a shard."""
    model = check(partial(flat, build), batches, **{**BOTH, **options})
    made = model.engine.division
    found = tuple(" ".join(sorted(names)) for names in made.in_pairs())
    assert found == (opened, closed), found
    assert along is None or " ".join(sorted(made.along_tokens())) == along, made.along_tokens()
    for one in model.parameters():
        assert isinstance(one, DTensor) and one.placements[-1].is_shard(), (one.placements, one.shape)
        assert one.grad is None or one.grad.placements == one.placements
    pipe.shutdown()


def pair(between: Callable[[Any, torch.Tensor], torch.Tensor], **options: Any) -> None:
    for settings in (BOTH, ONE_BATCH):
        trains(lambda: Mlp(between), "up", "down", **settings, **options)


def deep(build: Build = Deep, along: str = UNITS, **options: Any) -> None:
    """Blocks between which tensors are in parts along the tokens."""
    settings: Any = {"step": of(cross), "steps": 2, "optimizer": slow_sgd, **options}
    model = check(partial(flat, build), tokens, **{**BOTH, **settings})
    found = model.engine.division
    assert " ".join(sorted(found.along_tokens())) == along, found.along_tokens()
    assert found.in_pairs()[0] and found.up_to_a_loss() == {"head"}
    pipe.shutdown()


@case(ranks=4)
def pairs_in_one_block() -> None:
    pair(lambda m, x: F.gelu(x) * m.scale, verify_steps=1)
    trains(lambda: Mlp(lambda m, x: F.relu(x, inplace=True) * m.scale.view(1, 1, -1) + m.one), "up", "down", **ONE_BATCH)
    trains(lambda: Mlp(lambda m, x: x.tanh() * m.scale, 7), "up", "down")
    options: Any = {"parts": 1, "optimizer": slow_sgd, **ONE_BATCH}
    trains(lambda: Heads(4, 2, "torch"), "k q v", "out", **options)
    trains(lambda: Heads(3, how="torch"), "", "", **options)


@case(ranks=4, heavy=True)
def pairs_across_blocks() -> None:
    """Every entry of a Sequential is gathered by itself."""
    trains(lambda: nn.Sequential(*(nn.Linear(8, 8) for _ in range(5))), "0 2", "1 3")
    trains(lambda: nn.Sequential(nn.Linear(8, 13), nn.Tanh(), nn.Linear(13, 8)), "0", "2", optimizer=adam, tolerance=1e-4)
    trains(
        lambda: nn.Sequential(nn.Linear(8, 13), nn.Dropout(0.0, inplace=True), nn.Linear(13, 5)), "0", "2", verify_steps=1
    )


@dataclass
class Passed:
    """What blocks give each other."""

    found: Any
    number: int = 0


class Giving(nn.Module):
    """Gives its features in some form."""

    def __init__(self, form: str, width: int = 12) -> None:
        super().__init__()
        self.up, self.form = nn.Linear(8, width), form

    def forward(self, x: torch.Tensor) -> Any:
        found = self.up(x)
        view = found.view(found.shape).unflatten(-1, (2, -1)).flatten(-2)
        forms = {
            "plain": found,
            "view": view,
            "pair": (found, view.tanh()),
            "named": {"found": found},
            "data": Passed(found),
            "object": SimpleNamespace(found=found, number=3),
        }
        return forms[self.form]


class Taking(nn.Module):
    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.down, self.scale = nn.Linear(width, 8), nn.Parameter(torch.linspace(0.5, 1.5, width))

    def forward(self, first: Any, *, more: Any = None) -> torch.Tensor:
        found = first if first is not None else more
        if isinstance(found, tuple):
            found = found[0] + found[1]
        found = found["found"] if isinstance(found, dict) else getattr(found, "found", found)
        return self.down(found.tanh() * self.scale)


class Passing(nn.Module):
    """A block gives, the next one takes; what is passed may be changed in place between them."""

    def __init__(self, form: str = "plain", named: bool = False, in_place: bool = False) -> None:
        super().__init__()
        self.blocks, self.named, self.in_place = nn.ModuleList([Giving(form), Taking()]), named, in_place
        self.places = nn.Parameter(torch.linspace(-1, 1, 12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.blocks[0](x)
        if self.in_place:
            found = found.mul_(2.0).add_(self.places)
        return x + (self.blocks[1](None, more=found) if self.named else self.blocks[1](found))


@case(ranks=4, heavy=True)
def more_pairs_in_one_block() -> None:
    trains(lambda: Mlp(lambda m, x: F.relu(x, inplace=True) * m.scale.view(1, 1, -1) + m.one), "up", "down")
    for width in (3, 31):
        trains(lambda width=width: Mlp(lambda m, x: x.tanh() * m.scale, width), "up", "down")


@case(ranks=4, heavy=True)
def parts_that_blocks_pass_on_in_all_forms() -> None:
    for form in ("plain", "view", "pair", "named", "data", "object"):
        for named in (False, True):
            trains(lambda form=form, named=named: Passing(form, named), "blocks.0.up", "blocks.1.down", steps=2)
    for form in ("plain", "view"):
        trains(lambda form=form: Passing(form, in_place=True), "blocks.0.up", "blocks.1.down", optimizer=slow_sgd)


@case(ranks=4, heavy=True)
def parts_that_are_gathered_around_blocks() -> None:
    class Looked(Passing):
        """Later steps read what is passed whole: before the block that takes it, in its hook, and after it."""

        at = 0

        def __init__(self) -> None:
            super().__init__()
            self.blocks[1].register_forward_pre_hook(self._look)

        def _look(self, _module: Any, args: Any) -> Any:
            return (args[0] + args[0].cumsum(-1),) if self.at == 3 else None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found = self.blocks[0](x)
            more: Any = found.softmax(-1).mean() if self.at in (1, 3) else 0.0
            last = self.blocks[1](found)
            if self.at == 2:
                more = found.square().norm()
            return x + last + more

    def later(number: int, module: Any) -> None:
        module.at = number

    for verified in (0, 1):
        options: Any = {"between": later, "steps": 4, "optimizer": slow_sgd, "verify_steps": verified}
        trains(Looked, "blocks.0.up", "blocks.1.down", **options)


@case(ranks=4)
def tokens_in_parts_between_blocks() -> None:
    deep(verify_steps=1)


@case(ranks=4, heavy=True)
def tokens_in_parts_between_blocks_of_many_kinds() -> None:
    deep(**ONE_BATCH)
    deep(partial(Deep, post=True, norm=nn.RMSNorm))
    deep(placement_strategy="spread")
    deep(lambda: Deep(lambda _m, h: F.normalize(h, dim=-1).mul_(2.0)))
    with at_any_price():
        deep(partial(Deep, norm=Norm))
        deep(lambda: Deep(lambda _m, h: h + h.mean(1, keepdim=True)))


@case(ranks=4, heavy=True)
def weights_of_norms_in_blocks_are_summed_with_the_means() -> None:
    model, _, _ = begun(partial(flat, Deep), **BOTH)
    train = pipe.step(of(cross))
    train(model, *tokens(0, pipe.dp_rank()))
    with (
        patch.object(part, "summed_later", side_effect=part.summed_later) as later,
        patch.object(part, "entering", side_effect=part.entering) as entering,
        patch.object(part, "part_of", side_effect=part.part_of) as cut,
    ):
        train(model, *tokens(1, pipe.dp_rank()))
    assert later.call_count and not entering.call_count and not cut.call_count
    pipe.shutdown()

    def thaw(number: int, module: Any) -> None:
        module.blocks[0].norms.requires_grad_(number > 0)
        module.norm.weight.requires_grad_(number != 1)

    deep(between=thaw, steps=3)

    class Shared(Deep):
        """One norm of parts in two blocks, and of a whole tensor."""

        def __init__(self) -> None:
            super().__init__()
            self.blocks[1].norms = self.blocks[0].norms

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + self.norm(self.scale.expand(2, 5, 8)).mean()

    deep(Shared)


@case(ranks=4, heavy=True)
def blocks_in_parts_that_run_again() -> None:
    deep(partial(Again, post=True), **ONE_BATCH)
    with at_any_price():
        deep(Reentrant, "places table")
    for reentrant in (False, True):

        class Inside(Mlp):
            again = reentrant

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x + checkpoint(super().forward, x * self.one, use_reentrant=self.again)

        def blocks(kind: Any = Inside) -> nn.Module:
            return nn.Sequential(*(kind(lambda m, x: x.tanh() * m.scale) for _ in range(2)))

        trains(blocks, "0.up 1.up", "0.down 1.down", optimizer=slow_sgd)


@case(ranks=4)
def heads_in_parts_of_sharded_models() -> None:
    for build in (Language, Tied):
        model = check(partial(flat, build), words, step=of(cross), optimizer=adam, tolerance=1e-4, verify_steps=1, **BOTH)
        assert model.engine.division.up_to_a_loss() == {"head"}
        pipe.shutdown()

    def returned(model: Any, x: torch.Tensor) -> Any:
        logits = model(x)
        loss = cross(logits, x)
        model.backward(loss)
        return loss, SimpleNamespace(logits=logits)

    check(partial(flat, Language), words, step=returned, **BOTH)
    pipe.shutdown()

    class Twice(Language):
        """Two heads of which the loss of one has no gradient."""

        def forward(self, x: torch.Tensor) -> Any:
            hidden = self.norm(self.table(x))
            return SimpleNamespace(first=self.head(hidden), second=self.head(hidden * 2).detach())

    def two(model: Any, x: torch.Tensor) -> torch.Tensor:
        found = model(x)
        loss = cross(found.first, x) + cross(found.second, x)
        model.backward(loss)
        return loss

    model = check(partial(flat, Twice), words, step=two, **BOTH)
    assert model.engine.division.up_to_a_loss() == {"head"}
    pipe.shutdown()


@case(ranks=4, heavy=True)
def halves_of_sharded_pairs() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        deep(tolerance=3e-2)
    deep(lambda: Deep().double(), tolerance=1e-9)


@case(ranks=4, heavy=True)
def optimizers_of_sharded_pairs() -> None:
    build = partial(Mlp, lambda m, x: F.gelu(x) * m.scale, 13)
    for options in ({"foreach": True}, {"fused": True}):
        update = partial(torch.optim.AdamW, lr=0.05, **options)
        trains(build, "up", "down", optimizer=update, tolerance=1e-4)
    deep_one = partial(flat, lambda: nn.Sequential(*(Mlp(lambda _m, x: x.tanh()) for _ in range(4))))
    model, update, _ = begun(deep_one, adam, **ONE_BATCH)
    for _ in range(2):
        update.zero_grad()
        pipe.step(squared)(model, *rows(0, 0))
        update.step()
    assert share(model) < 0.32, share(model)


def _curve(path: str, at: int, number: int, settings: dict[str, Any]) -> Iterator[float]:
    slow = partial(torch.optim.AdamW, lr=1e-3)
    model, update, _ = begun(partial(flat, Deep), slow, **{"tensor_parallel_degree": 1, **settings})
    if at:
        assert pipe.load_checkpoint(path, model, update) == at
    for step in range(at, at + number):
        update.zero_grad()
        yield float(pipe.step(of(cross))(model, *tokens(step, 0)).reduce_mean())
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        update.step()
    pipe.save_checkpoint(path, model, update, at + number)
    pipe.shutdown()


@case(ranks=4, heavy=True)
def a_checkpoint_of_sharded_pairs_goes_on_with_other_degrees() -> None:
    """All ranks are given one batch, so all ways train alike."""
    path = str(ranks.folder() / "sharded-pairs" / "checkpoint")
    expected = list(_curve(path + "-replicas", 0, 7, {}))
    ways: list[dict[str, Any]] = [
        ONE_BATCH,
        {"tensor_parallel_degree": 4},
        {**BOTH, "placement_strategy": "spread"},
        {"partitions": 2},
        BOTH,
        {"sharded_data_parallel_degree": 4},
    ]
    found = [loss for at, settings in enumerate([*ways, ways[0]]) for loss in _curve(path, at, 1, settings)]
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-5, atol=0)


@case(ranks=4, heavy=True)
def text_from_sharded_pairs() -> None:
    model, update, _ = begun(lambda: llama(), adam, **BOTH)
    x = torch.randint(1, 53, (4, 8))
    pipe.step(language)(model, x)
    update.step()
    assert model.engine.division.in_pairs()[0] and model.engine.division.along_tokens()
    torch.manual_seed(3)
    alone = llama()
    alone.load_state_dict(model.state_dict())
    alone.eval()
    model.eval()
    mine = torch.arange(1, 5)[None] + pipe.rank()
    more = {"do_sample": False, "max_new_tokens": 2 + 2 * pipe.rdp_rank(), "pad_token_id": 0}
    assert torch.equal(model.generate(mine, **more), alone.generate(mine, **more))
    for without in (torch.no_grad, torch.inference_mode):
        with without():
            found, expected = (one(input_ids=x, output_hidden_states=True) for one in (model, alone))
        torch.testing.assert_close(found.hidden_states, expected.hidden_states, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-5)
    model.train()
    update.zero_grad()
    pipe.step(language)(model, x)
    update.step()
    assert share(model) < 0.3


class Gpt(nn.Module):
    """With dropout between words and blocks, in them and between the Linears of a pair; some of it runs again in the
    backward, and the head shares a table of an odd size."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.drop = nn.Embedding(53, 8), nn.Embedding(8, 8), nn.Dropout(0.1)
        self.blocks, self.norm = nn.ModuleList(Block(nn.LayerNorm, number == 1, 0.1) for number in range(3)), nn.LayerNorm(8)
        for block in self.blocks:
            block.heads = Mlp(lambda m, x: F.dropout(x.tanh() * m.scale, 0.1) * m.one, 13)
            block.mlp = Mlp(lambda m, x: F.gelu(x * m.scale) * m.one, 12)
        self.head = nn.Linear(8, 53, bias=False)
        self.head.weight = self.words.weight

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
        x = self.drop(self.words(input_ids) + self.places(torch.arange(8)))
        x = self.blocks[0](x)
        x = checkpoint(self.blocks[1], x, use_reentrant=False)
        logits = self.head(self.norm(self.blocks[2](x)))
        return SimpleNamespace(loss=F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()), logits=logits)


@long_case(ranks=4)
def sharded_gpts_in_pairs_with_dropout(steps: int) -> None:
    for settings in ({}, {"prescaled_batch": True}):
        model = with_dropout(partial(flat, Gpt), 0.8, steps=steps, sharded_data_parallel_degree=2, **settings)
        found = model.engine.division
        assert len(found.in_pairs()[0]) == 6 and found.up_to_a_loss() == {"head"} and len(found.along_tokens()) == 8


def _models(*cases: tuple[Build, bool, set[str], str], steps: int = 20) -> None:
    for build, prescaled, names, _ in cases:
        model = with_dropout(build, 0.9, steps=steps, prescaled_batch=prescaled, sharded_data_parallel_degree=2)
        opened, closed = model.engine.division.in_pairs()
        assert {name.rpartition(".")[2] for name in opened | closed} == names, (opened, closed)
        assert model.engine.division.along_tokens()


@case(ranks=4)
def a_sharded_llama_in_pairs_with_dropout() -> None:
    _models(_MODELS[0], steps=4)


@case(ranks=4, heavy=True)
def sharded_models_of_transformers_in_pairs_with_dropout() -> None:
    _models(*_MODELS)
    _models(*((build, False, names, kept) for build, _, names, kept in _MODELS[:2]))
    _models((gpt2, False, {"c_fc", "c_proj"}, ".attn."))


# Defects that are planted one at a time: each is found before the first optimizer step.


def _planted(module: Any, name: str, wrong: Any) -> None:
    with patch.object(module, name, wrong):
        model, _, _ = begun(partial(flat, Deep), sgd, **BOTH)
        refused(lambda: pipe.step(of(cross))(model, *tokens(0, pipe.dp_rank())), "is not right, no parameter was changed")
    assert all(parameter.grad is None for parameter in model.parameters())
    pipe.shutdown()


@case(ranks=4)
def wrong_sums_of_sharded_pairs_are_found() -> None:
    _planted(part, "summed_later", lambda parameter, _mesh, _is_later: parameter)


@case(ranks=4, heavy=True)
def other_wrong_sums_of_sharded_pairs_are_found() -> None:
    back = part_shards._with
    _planted(part_shards, "_with", lambda one, own, alias=None: back(one, own.detach(), alias))
    _planted(exchanges, "_sum_in_parts", lambda term, mesh, axis: exchanges.part_of(term * mesh.size(), mesh, axis))
    _planted(division, "scattered", lambda term, mesh, axis: exchanges.part_of(term, mesh, axis))
    wide = kinds._with_bias
    _planted(kinds, "_with_bias", lambda found, bias, mesh: wide(wide(found, bias, mesh), bias, mesh))
