"""Heads whose results stay in parts up to the loss: whatever a script does with them, it trains as in one process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import trainshed.parallel as pipe
from trainshed.parallel.engine.tensor import kinds
from trainshed.parallel.engine.tensor import loss_parallel as part_losses
from trainshed.parallel.engine.tensor import sharded_tensor as part

from .pairs import _bert, _gpt2, _llama, _t5, generated
from .table import case, refused
from .tensor import WORDS, Build, Tied, begun, goes_on, with_dropout, words
from .training import adam, check, sgd, slow_sgd

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Language(nn.Module):
    """A head of its own, with a bias and 13 words."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(WORDS, 6), nn.LayerNorm(6)
        self.head, self.temper = nn.Linear(6, WORDS), nn.Parameter(torch.tensor(0.7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.table(x)))


def cross(logits: torch.Tensor, labels: torch.Tensor, **options: Any) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), **options)


def of(loss: Loss) -> Callable[..., torch.Tensor]:
    """A step with this loss of the logits and the next words."""

    def step(model: Any, x: torch.Tensor) -> torch.Tensor:
        found = loss(model(x)[:, :-1], x[:, 1:])
        model.backward(found)
        return found

    return step


def trains(loss: Loss, build: Build = Language, names: str = "head", **options: Any) -> pipe.PipelineModel:
    """Trains as one process does; these modules' results stay in parts up to the loss."""
    settings: Any = {"tensor_parallel_degree": 2, "steps": 2, **options}
    model = check(build, words, step=of(loss), **settings)
    found = model.engine.division.up_to_a_loss()
    assert " ".join(sorted(found)) == names, found
    pipe.shutdown()
    return model


def whole(loss: Loss, **options: Any) -> None:
    """The logits are gathered."""
    trains(loss, names="", **options)


@case(ranks=2)
def losses_of_all_kinds() -> None:
    trains(cross, verify_steps=1)
    trains(lambda x, y: cross(x.float(), y, reduction="sum") / 10, prescaled_batch=True)
    trains(lambda x, y: (cross(x, y, reduction="none") * torch.linspace(0, 1, y.numel())).mean())
    trains(partial(cross, label_smoothing=0.1, ignore_index=3))
    trains(lambda x, y: F.cross_entropy(x.transpose(1, 2), y))


@case(ranks=2)
def losses_of_other_functions() -> None:
    trains(lambda x, y: F.nll_loss(x.log_softmax(-1).reshape(-1, WORDS), y.reshape(-1)))
    trains(lambda x, y: -torch.gather(F.log_softmax(x, -1), -1, y[..., None]).mean())
    trains(lambda x, y: nn.CrossEntropyLoss()((30 * torch.tanh(x / 30)).contiguous().view(-1, WORDS), y.reshape(-1)))


@case(ranks=2)
def several_losses_of_one_head() -> None:
    trains(lambda x, y: cross(x, y) + 0.1 * x.float().logsumexp(-1).square().mean())
    trains(lambda x, y: cross(x, y) + cross(x * 0.5, y.flip(0), reduction="sum") / 8)
    trains(lambda x, y: cross(x, y) * (1 + (x.argmax(-1) == y).float().mean()))
    trains(lambda x, y: cross(x, y) + (x.logsumexp(-1) - x.gather(-1, y[..., None])[..., 0]).detach().mean())


@case(ranks=2)
def losses_that_need_all_words() -> None:
    whole(partial(cross, weight=torch.linspace(0.5, 1.5, WORDS)))
    whole(lambda x, y: cross(x, y) * (1 + (x.topk(3)[1] == y[..., None]).float().mean()))
    whole(lambda x, y: F.cross_entropy(x.flatten(0, 1), F.one_hot(y.flatten(), WORDS).float()))
    whole(lambda x, y: cross(x, y) + 0.1 * (x.softmax(-1) * x.log_softmax(-1)).sum(-1).mean())
    whole(lambda x, y: cross(x[..., :8], y.clamp(max=7)))
    whole(lambda x, y: cross(x, y) + x[..., 0].mean())


@case(ranks=2)
def labels_that_are_ignored() -> None:
    """All of one rank's words, those of all ranks in one batch, and none."""
    trains(lambda x, y: cross(x, y.where(y < 7, -100)))
    trains(lambda x, y: cross(x, y.where(y >= 7, -100)))
    trains(lambda x, y: cross(x, torch.full_like(y, -100), reduction="sum") + cross(x, y))

    def nothing_counts(number: int, _module: nn.Module) -> None:
        seen.append(number)

    seen: list[int] = []
    found: list[torch.Tensor] = []

    def sometimes(model: Any, x: torch.Tensor) -> torch.Tensor:
        loss = cross(model(x), x if seen[-1] != 1 else torch.full_like(x, -100))
        found.append(loss.detach())
        model.backward(loss)
        return loss

    model = check(Language, words, step=sometimes, between=nothing_counts, tensor_parallel_degree=2, verify_steps=1)
    assert model.engine.division.up_to_a_loss() == {"head"}
    assert torch.isnan(torch.stack(found)).any() and not torch.isnan(torch.stack(found)).all()


@case(ranks=2)
def words_that_are_masked_out() -> None:
    """All of one rank's; a mask of some words."""
    for some in (torch.arange(WORDS) >= 7, torch.arange(WORDS) < 7, torch.arange(WORDS) == 4):
        trains(lambda x, y, some=some: cross(x.masked_fill(some, -torch.inf), y.where(~some[y], -100)))


@case(ranks=2)
def labels_out_of_range() -> None:
    for wrong in (WORDS, -1):
        model, _, _ = begun(Language)
        pipe.step(of(cross))(model, *words(0, pipe.rank()))
        bad = words(1, pipe.rank())[0]
        step = of(lambda x, y, wrong=wrong: cross(x, y.where(y < 9, wrong)))
        refused(partial(pipe.step(step), model, bad), "a target that a loss over 13 classes", kind=Exception)
        pipe.shutdown()


@case(ranks=2)
def labels_that_are_not_the_same_on_all_ranks() -> None:
    model, _, _ = begun(Language, verify="off")
    pipe.step(of(cross))(model, *words(0, pipe.rank()))
    step = pipe.step(of(lambda x, y: cross(x, (y + pipe.rank()) % WORDS)))
    refused(lambda: step(model, *words(1, pipe.rank())), "'head') had another input on rank 1")


@case(ranks=2)
def heads_that_share_a_table() -> None:
    trains(cross, Tied, optimizer=adam, tolerance=1e-4, verify_steps=1, steps=3)
    goes_on(Tied, 2, 1, 2)


@case(ranks=2)
def heads_behind_another_linear() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Embedding(WORDS, 2), nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, WORDS))

    trains(cross, build, "3")  # a pair would send more

    class Few(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(WORDS, 6), nn.Linear(6, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.table(x))

    trains(lambda x, y: cross(x, y % 5), Few, "")  # a loss would send more


@case(ranks=2)
def logits_that_the_step_returns_or_keeps() -> None:
    def returned(model: Any, x: torch.Tensor) -> Any:
        logits = model(x)
        loss = cross(logits, x)
        model.backward(loss)
        return loss, {"logits": logits}

    model = check(Language, words, step=returned, tensor_parallel_degree=2)
    assert model.engine.division.up_to_a_loss() == set()
    pipe.shutdown()

    model, _, _ = begun(Language, verify="first")
    kept: list[Any] = []

    def keeps(model: Any, x: torch.Tensor) -> torch.Tensor:
        logits = model(x)
        kept.append(logits)
        loss = cross(logits, x)
        model.backward(loss)
        return loss

    pipe.step(of(cross))(model, *words(0, pipe.rank()))
    pipe.step(keeps)(model, *words(1, pipe.rank()))
    refused(lambda: kept[-1].sum(), "'head' gave is divided among ranks, and it is read outside the step")
    refused(lambda: cross(kept[-1], torch.zeros(2, 5, dtype=torch.int64)), "it is read outside the step")


@case(ranks=2)
def logits_that_later_steps_need_whole() -> None:
    """What the first step did not do: returned, looked at, read in another loss."""
    number = 0

    def counts(at: int, _module: nn.Module) -> None:
        nonlocal number
        number = at

    def later(model: Any, x: torch.Tensor) -> Any:
        logits = model(x)
        loss = cross(logits, x)
        if number == 1:
            loss = loss + (logits.softmax(-1) ** 2).sum(-1).mean() + float(logits.max()) * logits.std()
        model.backward(loss)
        return loss, logits if number == 2 else None

    model = check(Language, words, step=later, between=counts, tensor_parallel_degree=2, verify_steps=1)
    assert model.engine.division.up_to_a_loss() == {"head"}


@case(ranks=2)
def halves_and_loss_scales() -> None:
    for kind in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", kind):
            trains(lambda x, y: cross(x.float(), y) + 0.01 * x.logsumexp(-1).square().mean(), tolerance=3e-2)
    trains(cross, lambda: Language().double(), tolerance=1e-9)

    class Typed(Exception):
        """The type of the loss is another one."""

    def typed(expected: torch.dtype) -> Loss:
        def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            found = cross(x, y)
            if found.dtype != expected:
                raise Typed(f"{found.dtype}, not {expected}")
            return found

        return loss

    trains(typed(torch.bfloat16), lambda: Language().bfloat16(), tolerance=5e-2, steps=1)
    with torch.autocast("cpu", torch.bfloat16):
        trains(typed(torch.float32), tolerance=3e-2, steps=1)
    model, update, _ = begun(Language, slow_sgd, fp16=True)
    scaler = pipe.GradScaler(init_scale=2.0**10)
    for number in range(2):
        update.zero_grad()
        loss = pipe.step(of(cross))(model, *words(number, pipe.rank())).reduce_mean()
        scaler.step(update)
        scaler.update()
        assert torch.isfinite(loss)
    assert model.engine.division.up_to_a_loss() == {"head"}


@case(ranks=2)
def heads_and_losses_that_run_again() -> None:
    class Again(Language):
        def __init__(self, reentrant: bool) -> None:
            super().__init__()
            self.reentrant = reentrant

        def forward(self, x: torch.Tensor) -> Any:
            def found(hidden: torch.Tensor) -> torch.Tensor:
                return cross(self.head(hidden)[:, :-1], x[:, 1:])

            return checkpoint(found, self.norm(self.table(x)), use_reentrant=self.reentrant)

    def step(model: Any, x: torch.Tensor) -> torch.Tensor:
        loss = model(x)
        model.backward(loss)
        return loss

    for reentrant in (False, True):
        model = check(partial(Again, reentrant), words, step=step, tensor_parallel_degree=2)
        assert model.engine.division.up_to_a_loss() == {"head"}
        pipe.shutdown()


@case(ranks=2)
def losses_without_gradients() -> None:
    model, _, _ = begun(Language)
    pipe.step(of(cross))(model, *words(0, pipe.rank()))
    alone = Language()
    alone.load_state_dict(model.state_dict())
    x = words(1, pipe.rank())[0]

    @pipe.step
    def judged(model: Any, x: torch.Tensor) -> Any:
        logits = model(x)
        return cross(logits, x), logits.argmax(-1), logits.topk(2)[1]

    model.eval()
    alone.eval()
    for without in (torch.no_grad, torch.inference_mode):
        with without():
            logits, expected = alone(x), torch.stack([cross(alone(part), part) for part in x.chunk(2)])
            loss, best, two = (one.concat() for one in judged(model, x))
            torch.testing.assert_close(loss, expected)
            assert torch.equal(best, logits.argmax(-1)) and torch.equal(two, logits.topk(2)[1])
            torch.testing.assert_close(model(x), logits)


class Counting:
    """Counts values of what ranks exchange."""

    def __init__(self) -> None:
        self.values = 0

    def __call__(self, native: Any) -> Any:
        def counted(tensor: torch.Tensor, *args: Any) -> Any:
            self.values += tensor.numel()
            return native(tensor, *args)

        return counted


@case(ranks=2)
def nothing_of_all_words_is_gathered() -> None:
    model, _, _ = begun(Language, microbatches=1, prescaled_batch=True)
    step = pipe.step(of(cross))
    step(model, *words(0, 0))
    gathers, sums = Counting(), Counting()
    with (
        patch.object(part, "gathered", gathers(part.gathered)),
        patch.object(kinds, "gathered", gathers(kinds.gathered)),
        patch.object(part_losses, "summed", sums(part_losses.summed)),
    ):
        step(model, *words(1, 0))
    assert (gathers.values, sums.values) == (0, 3 * 4 * 4)  # the largest, the sum and the target's of each row
    pipe.shutdown()


@case(ranks=2)
def a_loss_that_is_wrong_is_found() -> None:
    """In its result, which is then gathered, and in its gradient."""
    native = part_losses._cross_entropy

    def planted(change: Any) -> Any:
        def rule(call: Any) -> Any:
            joint = native(call)
            return joint and part_losses.Joint(joint.given, joint.axis, joint.numbers, change(joint.result))

        return patch.dict(part_losses._RULES, {F.cross_entropy: rule})

    with planted(lambda result: lambda sums, top: result(sums, top) * 1.01):
        whole(cross)
    with planted(lambda result: lambda sums, top: result(sums, top).detach() + 0 * result(sums, top)):
        model, _, _ = begun(Language, sgd)
        refused(lambda: pipe.step(of(cross))(model, *words(0, pipe.rank())), "is not right, no parameter was changed")


_HEADS: tuple[tuple[Build, bool, str], ...] = (
    (_llama, True, "lm_head"),
    (_gpt2, True, "lm_head"),
    (_t5, True, "lm_head"),
    (_bert, True, "cls.predictions.decoder"),
    (_llama, False, "lm_head"),
    (_gpt2, False, "lm_head"),
)


def _models(degree: int, *cases: tuple[Build, bool, str]) -> None:
    for build, prescaled, name in cases:
        model = with_dropout(build, 0.9, degree, prescaled_batch=prescaled)
        assert model.engine.division.up_to_a_loss() == {name}, model.engine.division.up_to_a_loss()


@case(ranks=2, heavy=True)
def models_of_transformers() -> None:
    _models(2, *_HEADS)


@case(ranks=4, heavy=True)
def models_of_transformers_among_four() -> None:
    _models(4, *_HEADS[:4])


@case(ranks=4)
def words_among_four_ranks() -> None:
    for prescaled in (False, True):
        trains(cross, Tied, tensor_parallel_degree=4, optimizer=slow_sgd, prescaled_batch=prescaled)
        trains(partial(cross, label_smoothing=0.1), prescaled_batch=prescaled)


@case(ranks=2, heavy=True)
def texts_of_heads_in_parts() -> None:
    generated(_gpt2)


@case(ranks=2, heavy=True)
def logits_that_one_rank_reads_later() -> None:
    model, _, _ = begun(Language, verify="first", timeout_seconds=10)
    pipe.step(of(cross))(model, *words(0, pipe.rank()))

    def looks(model: Any, x: torch.Tensor) -> torch.Tensor:
        logits = model(x)
        if pipe.rank() == 0:
            logits.topk(2)
        loss = cross(logits, x)
        model.backward(loss)
        return loss

    expected = ("waited in vain for the others to gather what 'head' gave, for topk",) if pipe.rank() == 0 else ()
    refused(lambda: pipe.step(looks)(model, *words(1, pipe.rank())), *expected)


class Twice(Language):
    """A penalty on the gradient of the loss."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.table(x))
        loss = cross(self.head(hidden)[:, :-1], x[:, 1:])
        (slope,) = torch.autograd.grad(loss, hidden, create_graph=True)
        return loss + slope.square().sum()


@case(ranks=2)
def gradients_of_gradients() -> None:
    def step(model: Any, x: torch.Tensor) -> torch.Tensor:
        loss = model(x)
        model.backward(loss)
        return loss

    model = check(Twice, words, step=step, tensor_parallel_degree=2, steps=2, optimizer=slow_sgd)
    assert model.engine.division.up_to_a_loss() == {"head"}


class Frozen(Language):
    def __init__(self) -> None:
        super().__init__()
        self.head.requires_grad_(False)


@case(ranks=2)
def heads_that_are_frozen() -> None:
    trains(cross, Frozen)
