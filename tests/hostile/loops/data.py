"""What batches are: sizes, lengths, containers, types, loaders."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from hostile.loops.optimizers import sgd
from hostile.models.state_outside_tensors import Block, Deep
from hostile.table import classify, generator, loop, misuse, rows


def fit(kit: Any, batches: Any, module: Any = None, step: Any = classify, **options: Any) -> Any:
    """Trains on the batches that are given."""
    kit.begin()
    model = kit.model(module or Deep())
    optimizer = kit.optimizer(sgd(model.parameters()))
    train = kit.step(step, **options)
    for number, batch in enumerate(batches):
        optimizer.zero_grad()
        kit.note(f"loss {number}", train(model, *batch))
        kit.gradients(f"gradients {number}", model)
        optimizer.step()
    kit.note("state", model.state_dict())
    return model


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.blocks, self.head = (
            nn.Embedding(20, 8),
            nn.Sequential(*(Block() for _ in range(8))),
            nn.Linear(8, 20),
        )

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        hidden = self.table(x)
        if mask is not None:
            hidden = hidden * mask.unsqueeze(-1)
        return self.head(self.blocks(hidden))


def next_word(model: Any, x: torch.Tensor) -> Any:
    out = model(x)
    loss = F.cross_entropy(out[:, :-1].flatten(0, 1), x[:, 1:].flatten())
    model.backward(loss)
    return loss


def words(number: int, length: int, batch: int = 8) -> torch.Tensor:
    return torch.randint(1, 20, (batch, length), generator=generator(number))


@loop
def lengths_of_a_curriculum(kit: Any) -> None:
    fit(kit, [(words(n, length),) for n, length in enumerate((3, 3, 4, 6, 4, 9))], Words(), next_word)


@loop
def last_batch_is_smaller(kit: Any) -> None:
    fit(kit, [rows(batch=size)(n) for n, size in enumerate((8, 8, 4, 8, 4))])


@loop
def first_batch_is_the_smallest(kit: Any) -> None:
    fit(kit, [rows(batch=size)(n) for n, size in enumerate((4, 16, 12))])


@loop
def last_batch_does_not_divide(kit: Any) -> None:
    """Seven and ten rows in four parts: the loss is the mean of all rows."""
    fit(kit, [rows(batch=size)(n) for n, size in enumerate((8, 7, 10, 8, 7))])


@loop
def last_batch_has_fewer_rows_than_there_are_microbatches(kit: Any) -> None:
    fit(kit, [rows(batch=size)(n) for n, size in enumerate((8, 3, 1, 8, 2))])


@loop
def first_batch_does_not_divide(kit: Any) -> None:
    fit(kit, [rows(batch=size)(n) for n, size in enumerate((7, 8, 7))])


@loop
def dictionaries_of_lists_of_tensors(kit: Any) -> None:
    def step(model: Any, batch: dict[str, Any]) -> Any:
        x = torch.cat(batch["halves"], 1) + batch["meta"]["shift"]
        loss = F.cross_entropy(model(x), batch["y"], label_smoothing=batch["meta"]["smooth"])
        model.backward(loss)
        return {"loss": loss}

    def batch(number: int) -> Any:
        x, y = rows()(number)
        return (
            {
                "halves": [x[:, :4], x[:, 4:]],
                "y": y,
                "meta": {"shift": torch.full((8, 1), 0.1), "smooth": 0.1, "none": None},
            },
        )

    fit(kit, [batch(n) for n in range(3)], step=step)


@loop
def weights_of_classes_that_are_not_split(kit: Any) -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> Any:
        loss = F.cross_entropy(model(x), y, weight=weight)
        model.backward(loss)
        return loss

    batches = [(*rows()(n), torch.rand(5, generator=generator(n)) + 0.5) for n in range(3)]
    fit(kit, batches, step=step, non_split_inputs=("weight",))


@loop
def time_comes_first(kit: Any) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.GRU(8, 8) for _ in range(8))
            self.head = nn.Linear(8, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = x + layer(x)[0]
            return self.head(x[-1])

    batches = [(torch.randn(6, 8, 8, generator=generator(n)), rows()(n)[1]) for n in range(3)]
    fit(kit, batches, Net(), input_split_axes={"x": 1})


@loop
def padded_to_the_longest_of_each_batch(kit: Any) -> None:
    def step(model: Any, x: torch.Tensor, mask: torch.Tensor) -> Any:
        out = model(x, mask=mask)
        kept = mask[:, 1:].bool()
        loss = F.cross_entropy(out[:, :-1][kept], x[:, 1:][kept])
        model.backward(loss)
        return loss, kept.sum()

    def batch(number: int) -> Any:
        lengths = torch.randint(3, 8, (8,), generator=generator(number))
        x = words(number, int(lengths.max()))
        mask = (torch.arange(x.shape[1]) < lengths.unsqueeze(1)).float()
        return x * mask.long(), mask

    fit(kit, [batch(n) for n in range(4)], Words(), step)


@loop
def sorted_and_packed_sequences(kit: Any) -> None:
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.lstm = nn.Embedding(20, 8), nn.LSTM(8, 8, batch_first=True)
            self.body = Deep()

        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            packed = pack_padded_sequence(self.table(x), lengths, batch_first=True, enforce_sorted=False)
            out, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x.shape[1])
            return self.body(out.sum(1))

    def step(model: Any, x: torch.Tensor, lengths: torch.Tensor, y: torch.Tensor) -> Any:
        loss = F.cross_entropy(model(x, lengths), y)
        model.backward(loss)
        return loss

    batches = [(words(n, 6), torch.tensor([6, 5, 4, 3, 6, 2, 1, 4]), rows()(n)[1]) for n in range(3)]
    fit(kit, batches, Net(), step)


@loop
def loader_that_shuffles_by_the_global_generator(kit: Any) -> None:
    """The loader draws from torch's generator between steps; the model draws in steps."""
    x, y = rows(batch=24)(0)
    net = Deep()
    net.head = nn.Sequential(nn.Dropout(0.3), net.head)
    fit(kit, [b for _ in range(2) for b in DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)], net)


@loop
def loader_that_is_drawn_from_between_steps(kit: Any) -> None:
    x, y = rows(batch=24)(0)
    net = Deep()
    net.head = nn.Sequential(nn.Dropout(0.3), net.head)
    fit(kit, DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True), net)


@loop
def iterable_dataset_with_python_random(kit: Any) -> None:
    class Stream(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            for number in range(24):
                scale = random.uniform(0.5, 1.5) * float(np.random.rand())
                x, y = rows(batch=1)(number)
                yield x[0] * scale, y[0]

    fit(kit, DataLoader(Stream(), batch_size=8))


@loop
def noise_added_by_numpy_between_steps(kit: Any) -> None:
    def batches() -> Any:
        for number in range(3):
            x, y = rows()(number)
            yield x + torch.from_numpy(np.random.normal(size=tuple(x.shape))).float(), y

    fit(kit, batches())


@loop
def one_tensor_twice_in_a_batch(kit: Any) -> None:
    def step(model: Any, x: torch.Tensor, again: torch.Tensor) -> Any:
        loss = (model(x).sum(1) - again.mean(1)).square().mean()
        model.backward(loss)
        return loss

    fit(kit, [(x, x) for x in (rows()(n)[0] for n in range(3))], step=step)


@loop
def integers_booleans_and_halves(kit: Any) -> None:
    def step(model: Any, x: torch.Tensor, keep: torch.Tensor, y: torch.Tensor, gain: torch.Tensor) -> Any:
        losses = F.cross_entropy(model(x.float() / 4 * gain.float()), y.long(), reduction="none")
        loss = (losses * keep).sum() / keep.sum().clamp_min(1)
        model.backward(loss)
        return loss

    def batch(number: int) -> Any:
        source = generator(number)
        x = torch.randint(-8, 8, (8, 8), generator=source, dtype=torch.int8)
        keep = torch.rand(8, generator=source) > 0.3
        return x, keep, torch.randint(0, 5, (8,), generator=source).to(torch.uint8), torch.ones(8, 1, dtype=torch.float16)

    fit(kit, [batch(n) for n in range(3)], step=step)


@loop
def a_batch_that_is_all_padding(kit: Any) -> None:
    """Nothing counts in one microbatch: its loss is 0 * something."""

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        kept = y != 4
        losses = F.cross_entropy(model(x), y, reduction="none")
        loss = (losses * kept).sum() / kept.sum().clamp_min(1)
        model.backward(loss)
        return loss

    def batch(number: int) -> Any:
        x, y = rows()(number)
        y[2:4] = 4
        return x, y

    fit(kit, [batch(n) for n in range(3)], step=step)


@loop
def targets_with_ignored_rows(kit: Any) -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = F.cross_entropy(model(x), y, ignore_index=-100)
        model.backward(loss)
        return loss

    def batch(number: int) -> Any:
        x, y = rows()(number)
        y[::3] = -100
        return x, y

    fit(kit, [batch(n) for n in range(3)], step=step)


@loop
def inputs_that_require_gradients(kit: Any) -> None:
    """Saliency: not supported, with words."""

    def batch(number: int) -> Any:
        x, y = rows()(number)
        return x.requires_grad_(), y

    fit(kit, [batch(n) for n in range(2)])


@loop
def positional_and_keyword_arguments_mixed(kit: Any) -> None:
    def step(model: Any, x: torch.Tensor, *rest: torch.Tensor, scale: float = 1.0, **more: Any) -> Any:
        loss = F.cross_entropy(model(x * scale + more["shift"]), rest[0])
        model.backward(loss)
        return loss

    kit.begin()
    model = kit.model(Deep())
    optimizer, train = kit.optimizer(sgd(model.parameters())), kit.step(step)
    for number in range(3):
        x, y = rows()(number)
        optimizer.zero_grad()
        kit.note(f"loss {number}", train(model, x, y, scale=0.5, shift=torch.ones(8, 1)))
        optimizer.step()
    kit.note("state", model.state_dict())


@misuse
def another_batch_on_each_rank(kit: Any) -> None:
    kit.begin()  # the rank is to be known
    fit(kit, [rows()(n + 10 * kit.rank) for n in range(3)])


@misuse
def another_batch_on_one_rank_in_a_late_step(kit: Any) -> None:
    kit.begin()
    fit(kit, [rows()(n + (10 * kit.rank if n == 5 else 0)) for n in range(6)])
