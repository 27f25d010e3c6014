"""Results that stay in parts along the tokens between pairs: whatever is done to them, models train as in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import trainshed.parallel as pipe
from trainshed.parallel.engine.tensor import division
from trainshed.parallel.engine.tensor import sequences as along_tokens
from trainshed.parallel.engine.tensor import sharded_tensor as part
from trainshed.parallel.engine.tensor.sharded_tensor import Part
from trainshed.parallel.ground import exchanges

from .pairs import Double, Heads, Mlp, drawn
from .table import case, refused
from .tensor import WORDS, Build, begun
from .training import adam, check, sgd, slow_sgd
from .vocabulary import cross, of

Between = Callable[[Any, torch.Tensor], torch.Tensor]
ALL = "blocks.0.heads.out blocks.0.mlp.down blocks.1.heads.out blocks.1.mlp.down places table"


class Norm(nn.Module):
    """A norm by hand, in float32, whose weight is an offset."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (wide * (self.weight + torch.ones_like(self.weight))).type_as(x)


class Block(nn.Module):
    """Attention and an MLP, with norms before or after them."""

    def __init__(self, norm: Callable[[int], nn.Module], post: bool, rate: float) -> None:
        super().__init__()
        self.heads, self.mlp = Heads(how="torch"), Mlp(lambda _m, x: F.gelu(x))
        self.norms = nn.ModuleList([norm(8), norm(8)])
        self.drop, self.post = nn.Dropout(rate), post

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        if self.post:
            return self.norms[1](self.drop(self.mlp(self.norms[0](self.heads(h)))))
        h = h + self.drop(self.heads(self.norms[0](h)))
        return h + self.drop(self.mlp(self.norms[1](h)))


class Deep(nn.Module):
    """Words in, words out; something is done between the blocks."""

    def __init__(
        self, between: Between = lambda _m, h: h, norm: Any = nn.LayerNorm, post: bool = False, rate: float = 0.0
    ) -> None:
        super().__init__()
        self.table, self.places, self.between = nn.Embedding(WORDS, 8), nn.Embedding(6, 8), between
        self.blocks = nn.ModuleList(Block(norm, post, rate) for _ in range(2))
        self.norm, self.head, self.scale = norm(8), nn.Linear(8, WORDS), nn.Parameter(torch.linspace(0.5, 1.5, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.table(x) + self.places(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = self.between(self, block(h))
        return self.head(self.norm(h))


class Long(Deep):
    """MLPs alone, for sequences of any length."""

    def __init__(self, between: Between = lambda _m, h: h) -> None:
        super().__init__(between)
        self.places = nn.Embedding(40, 8)
        self.blocks = nn.ModuleList(Mlp(lambda _m, x: F.gelu(x)) for _ in range(2))


LONG = "blocks.0.down blocks.1.down places table"


def words(number: int, replica: int, length: int = 5) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(10 * number + replica)
    return (torch.randint(0, WORDS, (4, length), generator=generator),)


def trains(build: Build = Deep, names: str = ALL, batches: Any = words, degree: int = 2, **options: Any) -> Any:
    """Trains as one process does; these modules' results are in parts along the tokens."""
    settings: Any = {"step": of(cross), "steps": 2, "optimizer": slow_sgd, **options}
    model = check(build, batches, tensor_parallel_degree=degree, **settings)
    found = model.engine.division.along_tokens()
    assert " ".join(sorted(found)) == names, found
    pipe.shutdown()
    return model


@contextmanager
def at_any_price() -> Iterator[None]:
    """Results stay in parts although much is gathered besides."""
    with patch.object(along_tokens, "_MORE", 100):
        yield


def gathers(between: Between, **options: Any) -> None:
    """What is done between blocks is right with results in parts, and sends too much to be chosen."""
    trains(lambda: Deep(between), "", **options)
    with at_any_price():
        trains(lambda: Deep(between), **options)


@case(ranks=2)
def norms_before_and_after() -> None:
    trains(verify_steps=1)
    trains(prescaled_batch=True)
    trains(partial(Deep, post=True, norm=nn.RMSNorm))
    with at_any_price():  # in a small model the norms' offsets, which are summed at once, are too much
        trains(partial(Deep, norm=Norm), batches=words)


@case(ranks=2)
def sequences_of_any_length() -> None:
    def growing(number: int, replica: int) -> tuple[torch.Tensor, ...]:
        return words(number, replica, (4, 2, 7, 3)[number])

    trains(Long, LONG, growing, steps=4)
    step = of(lambda x, y: cross(x, y, reduction="sum") + x.square().mean())
    trains(Long, "", partial(words, length=1), step=step)


@case(ranks=4, heavy=True)
def sequences_among_four() -> None:
    def uneven(number: int, replica: int) -> tuple[torch.Tensor, ...]:
        return words(number, replica, (7, 5, 4, 13)[number])  # of 5 tokens the last rank would have none

    trains(Long, LONG, uneven, degree=4, steps=4)
    trains(batches=partial(words, length=5), names="", degree=4, steps=1)
    trains(Long, LONG, uneven, degree=2, prescaled_batch=True, optimizer=adam, tolerance=1e-4)


@case(ranks=2)
def dropout_between() -> None:
    options: Any = {"between": drawn, "parts": 1, "prescaled_batch": True}
    trains(partial(Deep, rate=0.3), **options)
    trains(lambda: Deep(lambda _m, h: F.dropout(h, 0.3, inplace=True)), **options)
    with at_any_price():
        trains(lambda: Deep(lambda _m, h: F.alpha_dropout(h, 0.3)), **options)
        trains(lambda: Deep(lambda _m, h: h + 0.1 * torch.rand_like(h)), **options)


@case(ranks=2)
def functions_of_each_token() -> None:
    trains(lambda: Deep(lambda m, h: h * m.scale + h.mean(-1, keepdim=True)))
    trains(lambda: Deep(lambda _m, h: F.normalize(h, dim=-1).mul_(2.0)))
    trains(lambda: Deep(lambda _m, h: torch.stack([h, h.tanh()]).sum(0).clone()))
    trains(lambda: Deep(lambda _m, h: h + torch.arange(5.0)[:, None] * h.detach()))


@case(ranks=2, heavy=True)
def functions_of_all_tokens() -> None:
    gathers(lambda _m, h: h + h.mean(1, keepdim=True))
    gathers(lambda _m, h: h.cumsum(1))
    gathers(lambda _m, h: torch.cat([h[:, 1:], h[:, :1]], 1))
    gathers(lambda _m, h: h.flatten(0, 1).view(h.shape).tanh())
    gathers(lambda m, h: h * 2 if h.max() > 0.5 else h * m.scale)
    gathers(lambda _m, h: h + Double.apply(h) * 0.01)


@case(ranks=2)
def whole_tensors_that_meet_parts() -> None:
    class Residual(Deep):
        """A table that stays whole, which the last block's result meets as well."""

        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(WORDS, 8, scale_grad_by_freq=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = first = self.table(x)
            for block in self.blocks:
                h = block(h)
            return self.head(self.norm(h + first + self.scale.tanh()))

    blocks = " ".join(name for name in ALL.split() if "blocks" in name)
    trains(Residual, "")
    with at_any_price():
        trains(Residual, blocks, verify_steps=1)
        trains(Residual, blocks, prescaled_batch=True)

    class Learned(Deep):
        """Positions that are a parameter, which costs nothing."""

        def __init__(self) -> None:
            super().__init__()
            self.places = nn.Parameter(torch.randn(1, 5, 8))  # type: ignore[assignment]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.table(x) + self.places
            for block in self.blocks:
                h = block(h)
            return self.head(self.norm(h))

    trains(Learned, f"{blocks} table")


@case(ranks=2, heavy=True)
def norms_that_are_shared_frozen_or_hooked() -> None:
    class Shared(Deep):
        """One norm of parts and of a whole tensor."""

        def __init__(self) -> None:
            super().__init__()
            self.blocks[1].norms = self.blocks[0].norms

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + self.norm(self.scale.expand(2, 5, 8)).mean()

    trains(Shared)

    def thaw(number: int, module: Any) -> None:
        module.blocks[0].norms.requires_grad_(number > 0)
        module.norm.weight.requires_grad_(number != 1)

    trains(between=thaw, steps=3)

    def clipped() -> nn.Module:
        model = Deep()
        model.norm.weight.register_hook(lambda gradient: gradient / (1 + gradient.norm()))
        return model

    trains(clipped)

    def looked_at(when: str, look: Any) -> nn.Module:
        model = Deep()
        getattr(model.norm, f"register_{when}_hook")(look)
        return model

    with at_any_price():
        trains(lambda: looked_at("forward", lambda _m, _given, found: found * found.std()))
        trains(lambda: looked_at("full_backward", lambda _m, into, _out: (into[0] / (1 + into[0].norm()),)))


@case(ranks=2, heavy=True)
def gradients_that_the_script_takes() -> None:
    class Sloped(Long):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found = super().forward(x)
            slopes = torch.autograd.grad(found.square().mean(), [self.scale, self.norm.weight], create_graph=self.training)
            return found * (1 + sum(one.square().sum() for one in slopes))

    trains(partial(Sloped, lambda m, h: h * m.scale), LONG, verify_steps=1)

    class Taken(Sloped):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found = Long.forward(self, x)
            (slope,) = torch.autograd.grad(found.square().mean(), [self.scale], retain_graph=True)
            return found * (1 + slope.square().sum())

    trains(partial(Taken, lambda m, h: h * m.scale), LONG, verify_steps=1)


@case(ranks=2)
def tensors_that_have_to_be_whole() -> None:
    def hooked(_m: Any, h: torch.Tensor) -> torch.Tensor:
        if h.requires_grad:
            h.register_hook(lambda gradient: gradient / (1 + gradient.norm()))
        return h

    def kept(m: Any, h: torch.Tensor) -> torch.Tensor:
        m.seen = h.detach() * 2
        return h

    def set_in_place(_m: Any, h: torch.Tensor) -> torch.Tensor:
        h = h * 1
        h[:, 0] = 0.5
        return h

    with at_any_price():
        for between in (hooked, kept, set_in_place):
            trains(lambda between=between: Deep(between), "")


class Again(Deep):
    """Its blocks run again in the backward."""

    reentrant = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.table(x) + self.places(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=self.reentrant)
        return self.head(self.norm(h))


class Reentrant(Again):
    reentrant = True


@case(ranks=2)
def blocks_that_run_again() -> None:
    options: Any = {"between": drawn, "parts": 1, "prescaled_batch": True}
    trains(partial(Again, rate=0.3), **options)
    trains(Again, prescaled_batch=True)  # what runs again ends where nothing more is needed, which is elsewhere in parts
    with at_any_price():
        trains(Reentrant, "places table")


@case(ranks=2)
def halves_and_doubles() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        trains(tolerance=3e-2)
    trains(lambda: Deep().double(), tolerance=1e-9)
    trains(lambda: Long().bfloat16(), LONG, tolerance=5e-2)


class Turning(Deep):
    """Goes other ways in later steps."""

    later = False

    def __init__(self) -> None:
        super().__init__(lambda m, h: h + h.mean(1, keepdim=True) if m.later else h)


@case(ranks=2)
def ways_of_later_steps() -> None:
    def later(number: int, module: Any) -> None:
        module.later = number > 0

    trains(Turning, between=later, steps=3)

    def kept(m: Any, h: torch.Tensor) -> torch.Tensor:
        if m.later:
            m.seen = h
        return h

    model, _, _ = begun(lambda: Deep(kept))
    model.module.later = False
    train = pipe.step(of(cross))
    train(model, *words(0, pipe.rank()))
    model.module.later = True
    train(model, *words(1, pipe.rank()))
    assert model.module.seen.shape == (2, 5, 8)
    refused(lambda: model.module.seen.sum(), "is divided among ranks, and it is read outside the step")


class Told(Deep):
    """Gives all hidden states."""

    def forward(self, x: torch.Tensor, told: bool = False) -> Any:
        states: list[torch.Tensor] = []
        self.between = lambda _m, h: states.append(h) or h
        found = super().forward(x)
        self.between = lambda _m, h: h
        return (found, tuple(states)) if told else found


@case(ranks=2)
def forwards_without_gradients() -> None:
    model, _, _ = begun(Told)
    train = pipe.step(of(cross))
    train(model, *words(0, pipe.rank()))
    assert len(model.engine.division.along_tokens()) == 6
    alone = Told()
    alone.load_state_dict(model.state_dict())
    for without in (torch.no_grad, torch.inference_mode, nullcontext):
        model.train(without is nullcontext)
        with torch.no_grad(), without():
            found, states = model(*words(1, pipe.rank()), told=True)
            expected, expected_states = alone(*words(1, pipe.rank()), told=True)
        assert not any(isinstance(one, Part) and one.whole is None for one in states)
        torch.testing.assert_close([found, *states], [expected, *expected_states])
    pipe.shutdown()


def kept_bytes(build: Build) -> int:
    """Bytes that the forwards and backwards of a second step keep for backwards."""
    model, _, _ = begun(build)
    train = pipe.step(of(cross))
    train(model, *words(0, pipe.rank(), 40))
    seen: dict[int, Any] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, nn.Parameter):
            seen[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        train(model, *words(1, pipe.rank(), 40))
    pipe.shutdown()
    return sum(one.nbytes() for one in seen.values())


@case(ranks=2)
def memory_of_what_is_between() -> None:
    def build() -> nn.Module:
        return Long(lambda m, h: F.layer_norm(F.dropout(h.tanh(), 0.3) * m.scale, (8,)))

    parts = kept_bytes(build)
    with patch.object(along_tokens, "_MORE", -1):
        wholes = kept_bytes(build)
    assert parts < 0.8 * wholes, (parts, wholes)


def _planted(module: Any, name: str, wrong: Any) -> None:
    with patch.object(module, name, wrong):
        model, _, _ = begun(Deep, sgd)
        refused(lambda: pipe.step(of(cross))(model, *words(0, pipe.rank())), "is not right, no parameter was changed")
    pipe.shutdown()


@case(ranks=2)
def wrong_sums_are_found() -> None:
    _planted(part, "summed_later", lambda parameter, _mesh, _is_later: parameter)
    _planted(exchanges, "_sum_in_parts", lambda term, mesh, axis: exchanges.part_of(term * mesh.size(), mesh, axis))
    _planted(division, "scattered", lambda term, mesh, axis: exchanges.part_of(term, mesh, axis))
