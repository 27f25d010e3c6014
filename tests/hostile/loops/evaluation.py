"""Evaluation, states, checkpoints: what scripts do between training steps."""

from __future__ import annotations

import copy
import io
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hostile.loops.data import Words, words
from hostile.loops.optimizers import sgd
from hostile.models.state_outside_tensors import Deep
from hostile.table import classify, loop, misuse, rows

BATCHES = rows()


def dropping() -> nn.Module:
    net = Deep()
    net.head = nn.Sequential(nn.Dropout(0.3), nn.BatchNorm1d(8), net.head)
    return net


def start(kit: Any, module: nn.Module) -> tuple[Any, Any, Any]:
    """The model, its optimizer and a training step."""
    kit.begin()
    model = kit.model(module)
    return model, kit.optimizer(sgd(model.parameters())), kit.step(classify)


def one_step(kit: Any, model: Any, optimizer: Any, train: Any, number: int) -> None:
    optimizer.zero_grad()
    kit.note(f"loss {number}", train(model, *BATCHES(number)))
    optimizer.step()


def predict(model: Any, x: torch.Tensor) -> Any:
    return model(x)


@loop
def evaluation_after_every_step(kit: Any) -> None:
    model, optimizer, train = start(kit, dropping())
    evaluate = kit.step(predict)
    for number in range(3):
        model.train()
        one_step(kit, model, optimizer, train, number)
        model.eval()
        with torch.no_grad():
            out = evaluate(model, rows(batch=16)(90 + number)[0])
        kit.note(f"predicted {number}", out.concat().argmax(1))
    kit.note("state", model.state_dict())


@loop
def evaluation_before_the_first_training_step(kit: Any) -> None:
    model, optimizer, train = start(kit, dropping())
    model.eval()
    with torch.inference_mode():
        kit.note("first", kit.step(predict)(model, BATCHES(50)[0]))
    model.train()
    for number in range(3):
        one_step(kit, model, optimizer, train, number)
    kit.note("state", model.state_dict())


@loop
def inference_mode_in_the_middle(kit: Any) -> None:
    model, optimizer, train = start(kit, dropping())
    evaluate = kit.step(lambda model, x, y: (F.cross_entropy(model(x), y), model(x).argmax(1)))
    for number in range(3):
        one_step(kit, model, optimizer, train, number)
        model.eval()
        with torch.inference_mode():
            loss, found = evaluate(model, *BATCHES(70))
        model.train()
        kit.note(f"evaluated {number}", [loss, found])
    kit.note("state", model.state_dict())


@loop
def evaluation_in_training_mode(kit: Any) -> None:
    """Monte Carlo dropout: no gradients, but dropout and batch statistics."""
    model, optimizer, train = start(kit, dropping())
    evaluate = kit.step(predict)
    for number in range(2):
        one_step(kit, model, optimizer, train, number)
        with torch.no_grad():
            kit.note(f"samples {number}", [evaluate(model, BATCHES(60)[0]) for _ in range(3)])
    kit.note("state", model.state_dict())


@loop
def loss_without_backward(kit: Any) -> None:
    """A validation loss with gradients switched on: nobody calls backward."""
    model, optimizer, train = start(kit, Deep())
    only = kit.step(lambda model, x, y: F.cross_entropy(model(x), y))
    for number in range(3):
        one_step(kit, model, optimizer, train, number)
        kit.note(f"validated {number}", only(model, *BATCHES(80)))
    kit.note("state", model.state_dict())


@loop
def best_state_is_kept_and_loaded(kit: Any) -> None:
    model, optimizer, train = start(kit, dropping())
    best: dict[str, Any] = {}
    for number in range(4):
        one_step(kit, model, optimizer, train, number)
        if number == 1:
            best = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(best)
    kit.note("loaded", model.state_dict())
    one_step(kit, model, optimizer, train, 9)
    kit.note("state", model.state_dict())


@loop
def states_through_torch_save(kit: Any) -> None:
    model, optimizer, train = start(kit, dropping())
    for number in range(4):
        if number == 2:
            stream = io.BytesIO()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": number}, stream)
            stream.seek(0)
            found = torch.load(stream, weights_only=True)
            model.load_state_dict(found["model"])
            optimizer.load_state_dict(found["optimizer"])
        one_step(kit, model, optimizer, train, number)
    kit.note("state", model.state_dict())
    kit.note("momenta", {k: v for k, v in optimizer.state_dict()["state"].items()})


@loop
def state_loaded_before_the_first_step(kit: Any) -> None:
    torch.manual_seed(77)
    other = Deep().state_dict()
    model, optimizer, train = start(kit, Deep())
    model.load_state_dict(other)
    for number in range(3):
        one_step(kit, model, optimizer, train, number)
    kit.note("state", model.state_dict())


@loop
def part_of_a_state_loaded_not_strictly(kit: Any) -> None:
    model, optimizer, train = start(kit, Deep())
    one_step(kit, model, optimizer, train, 0)
    model.load_state_dict(
        {"head.weight": torch.ones(5, 8), "blocks.1.line.bias": torch.zeros(8), "other": torch.ones(1)}, strict=False
    )
    for number in range(1, 3):
        one_step(kit, model, optimizer, train, number)
    kit.note("state", model.state_dict())


@loop
def a_plain_copy_predicts_from_the_state(kit: Any) -> None:
    model, optimizer, train = start(kit, Deep())
    copied = copy.deepcopy(model.module).requires_grad_(False).eval()
    for number in range(3):
        one_step(kit, model, optimizer, train, number)
        copied.load_state_dict(model.state_dict())
        kit.note(f"predicted {number}", copied(BATCHES(40)[0]))


@loop
def greedy_words_by_a_plain_copy(kit: Any) -> None:
    kit.begin()
    net = Words()
    copied = copy.deepcopy(net)
    model = kit.model(net)
    optimizer = kit.optimizer(sgd(model.parameters()))

    def step(model: Any, x: torch.Tensor) -> Any:
        loss = F.cross_entropy(model(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten())
        model.backward(loss)
        return loss

    train = kit.step(step)
    for number in range(3):
        optimizer.zero_grad()
        kit.note(f"loss {number}", train(model, words(number, 5)))
        optimizer.step()
    copied.load_state_dict(model.state_dict())
    text = words(9, 2)
    with torch.no_grad():
        for _ in range(4):
            text = torch.cat([text, copied(text)[:, -1:].argmax(-1)], 1)
    kit.note("text", text)


@loop
def greedy_words_in_steps(kit: Any) -> None:
    """One step a word: lengths grow."""
    kit.begin()
    model = kit.model(Words())
    decode = kit.step(predict)
    model.eval()
    text = words(9, 2)
    with torch.no_grad():
        for _ in range(4):
            text = torch.cat([text, decode(model, text).concat()[:, -1:].argmax(-1)], 1)
    kit.note("text", text)


@loop
def model_called_outside_a_step(kit: Any) -> None:
    """Without gradients a model may be called as it is."""
    model, optimizer, train = start(kit, Deep())
    for number in range(2):
        one_step(kit, model, optimizer, train, number)
        with torch.no_grad():
            kit.note(f"out {number}", model(BATCHES(1)[0]))
    kit.note("state", model.state_dict())


@misuse
def model_called_with_gradients_outside_a_step(kit: Any) -> None:
    model, optimizer, train = start(kit, Deep())
    one_step(kit, model, optimizer, train, 0)
    kit.note("out", model(BATCHES(1)[0]))


@misuse
def inner_model_called_outside_a_step(kit: Any) -> None:
    model, optimizer, train = start(kit, Deep())
    one_step(kit, model, optimizer, train, 0)
    with torch.no_grad():
        kit.note("out", model.module(BATCHES(1)[0]))


@misuse
def one_block_called_outside_a_step(kit: Any) -> None:
    model, optimizer, train = start(kit, Deep())
    one_step(kit, model, optimizer, train, 0)
    with torch.no_grad():
        kit.note("out", [block(BATCHES(1)[0]) for block in model.module.blocks])


@misuse
def inner_state_is_saved(kit: Any) -> None:
    model, optimizer, train = start(kit, Deep())
    one_step(kit, model, optimizer, train, 0)
    kit.note("state", model.module.state_dict())


@misuse
def inner_model_is_copied(kit: Any) -> None:
    model, optimizer, train = start(kit, Deep())
    one_step(kit, model, optimizer, train, 0)
    kit.note("state", copy.deepcopy(model.module).state_dict())


@misuse
def loop_without_the_decorator(kit: Any) -> None:
    model, optimizer, _ = start(kit, Deep())
    x, y = BATCHES(0)
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    kit.note("state", model.state_dict())


@misuse
def state_on_the_first_rank_alone(kit: Any) -> None:
    model, optimizer, train = start(kit, Deep())
    one_step(kit, model, optimizer, train, 0)
    if kit.rank == 0:
        kit.note("state", model.state_dict())
    one_step(kit, model, optimizer, train, 1)


@misuse
def evaluation_on_the_last_rank_alone(kit: Any) -> None:
    model, optimizer, train = start(kit, Deep())
    one_step(kit, model, optimizer, train, 0)
    if kit.rank:
        with torch.no_grad():
            kit.step(predict)(model, BATCHES(1)[0])
    one_step(kit, model, optimizer, train, 1)
