"""The step itself: how it is written, which parts train, several models, several losses, errors that are caught."""

from __future__ import annotations

import copy
import functools
import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hostile.loops.evaluation import BATCHES, one_step, predict, start
from hostile.loops.optimizers import run, sgd
from hostile.models.state_outside_tensors import Block, Deep
from hostile.table import classify, loop, rows


@loop
def step_is_a_method(kit: Any) -> None:
    class Trainer:
        def __init__(self) -> None:
            kit.begin()
            self.model = kit.model(Deep())
            self.optimizer = kit.optimizer(sgd(self.model.parameters()))
            self.train = kit.step(self.forward_backward)

        def forward_backward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            loss = F.cross_entropy(self.model(x), y)
            self.model.backward(loss)
            return loss

    trainer = Trainer()
    for number in range(3):
        trainer.optimizer.zero_grad()
        kit.note(f"loss {number}", trainer.train(*BATCHES(number)))
        trainer.optimizer.step()
    kit.note("state", trainer.model.state_dict())


@loop
def step_is_a_partial_and_takes_no_model(kit: Any) -> None:
    kit.begin()
    model = kit.model(Deep())
    optimizer = kit.optimizer(sgd(model.parameters()))

    def forward(smoothing: float, x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = F.cross_entropy(model(x), y, label_smoothing=smoothing)
        model.backward(loss)
        return loss

    train = kit.step(functools.partial(forward, 0.1))
    for number in range(3):
        optimizer.zero_grad()
        kit.note(f"loss {number}", train(*BATCHES(number)))
        optimizer.step()
    kit.note("state", model.state_dict())


@loop
def step_calls_a_step(kit: Any) -> None:
    inner = kit.step(classify)

    def outer(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        return inner(model, x * 0.5, y)

    run(kit, step=outer)


@loop
def step_is_made_anew_every_time(kit: Any) -> None:
    kit.begin()
    model = kit.model(Deep())
    optimizer = kit.optimizer(sgd(model.parameters()))
    for number in range(4):

        @kit.step
        def train(model: Any, x: torch.Tensor, y: torch.Tensor, gain: float = 1 + number / 4) -> Any:
            loss = F.cross_entropy(model(x) * gain, y)
            model.backward(loss)
            return loss

        optimizer.zero_grad()
        kit.note(f"loss {number}", train(model, *BATCHES(number)))
        optimizer.step()
    kit.note("state", model.state_dict())


@loop
def two_steps_take_turns(kit: Any) -> None:
    """One classifies, the other rebuilds its input."""
    kit.begin()
    model = kit.model(Deep())
    optimizer = kit.optimizer(sgd(model.parameters()))

    def other(model: Any, x: torch.Tensor, _y: torch.Tensor) -> Any:
        loss = (model(x) - x[:, :5]).square().mean()
        model.backward(loss)
        return loss

    steps = itertools.cycle([kit.step(classify), kit.step(other)])
    for number in range(5):
        optimizer.zero_grad()
        kit.note(f"loss {number}", next(steps)(model, *BATCHES(number)))
        optimizer.step()
    kit.note("state", model.state_dict())


@loop
def factor_of_the_loss_changes_every_step(kit: Any) -> None:
    kit.begin()
    model = kit.model(Deep())
    optimizer = kit.optimizer(sgd(model.parameters()))

    def step(model: Any, x: torch.Tensor, y: torch.Tensor, weight: float) -> Any:
        loss = F.cross_entropy(model(x), y) * weight
        model.backward(loss)
        return loss

    train = kit.step(step)
    for number in range(4):
        optimizer.zero_grad()
        kit.note(f"loss {number}", train(model, *BATCHES(number), 1 / (number + 1)))
        optimizer.step()
    kit.note("state", model.state_dict())


@loop
def factor_in_a_closure_changes_every_step(kit: Any) -> None:
    annealing = {"weight": 1.0}

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = F.cross_entropy(model(x), y) * annealing["weight"]
        model.backward(loss)
        return loss

    def after(_m: Any, _o: Any, _n: int) -> None:
        annealing["weight"] *= 0.5

    run(kit, step=step, after=after)


@loop
def list_of_losses_kept_by_the_step(kit: Any) -> None:
    """The step notes its loss in a list outside, and reads the loss as a number."""
    seen: list[float] = []

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = F.cross_entropy(model(x), y)
        model.backward(loss)
        seen.append(float(loss.detach()))
        return loss

    run(kit, step=step)


@loop
def two_backwards_in_one_step(kit: Any) -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        first = F.cross_entropy(model(x), y)
        model.backward(first)
        second = F.cross_entropy(model(x.flip(1)), y)
        model.backward(second)
        return first, second

    run(kit, step=step)


@loop
def several_losses_at_once(kit: Any) -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        out = model(x)
        losses = [F.cross_entropy(out, y), out.square().mean() * 0.1]
        model.backward(losses)
        return losses

    run(kit, step=step)


@loop
def backward_of_logits_with_gradients(kit: Any) -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        out = model(x)
        gradient = (out.detach().softmax(1) - F.one_hot(y, 5)) / len(y)
        model.backward(out, gradient)
        return out

    run(kit, step=step)


@loop
def outputs_of_every_kind(kit: Any) -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        out = model(x)
        loss = F.cross_entropy(out, y)
        model.backward(loss)
        return {
            "loss": loss,
            "right": (out.argmax(1) == y).sum(),
            "rows": len(x),
            "name": "a",
            "pair": (out, None),
            "flag": True,
        }

    run(kit, step=step)


@loop
def consistency_of_two_views(kit: Any) -> None:
    """FixMatch: pseudo labels of one view, without gradients, teach the other."""

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        with torch.no_grad():
            soft = model(x + 0.01).softmax(1)
        sure, label = soft.max(1)
        loss = F.cross_entropy(model(x), y)
        loss = loss + ((sure > 0.2) * F.cross_entropy(model(x * 1.1), label, reduction="none")).mean()
        model.backward(loss)
        return loss

    run(kit, step=step)


@loop
def teacher_outside_the_model(kit: Any) -> None:
    torch.manual_seed(5)
    teacher = Deep().requires_grad_(False).eval()

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        soft = teacher(x).softmax(1)
        loss = F.kl_div(model(x).log_softmax(1), soft, reduction="batchmean")
        model.backward(loss)
        return loss

    run(kit, step=step)


@loop
def teacher_is_an_average_of_states(kit: Any) -> None:
    kit.begin()
    net = Deep()
    teacher = copy.deepcopy(net).requires_grad_(False)
    model = kit.model(net)
    optimizer = kit.optimizer(sgd(model.parameters()))

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = F.cross_entropy(model(x), y) + F.mse_loss(model(x * 0.9), teacher(x))
        model.backward(loss)
        return loss

    train = kit.step(step)
    for number in range(3):
        optimizer.zero_grad()
        kit.note(f"loss {number}", train(model, *BATCHES(number)))
        optimizer.step()
        state = model.state_dict()
        with torch.no_grad():
            for name, parameter in teacher.named_parameters():
                parameter.lerp_(state[name], 0.1)
    kit.note("teacher", teacher.state_dict())


class Adversaries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(*(Block() for _ in range(4)))
        self.critic = nn.Sequential(*(Block() for _ in range(4)), nn.Linear(8, 1))

    def forward(self, x: torch.Tensor, real: torch.Tensor | None = None) -> Any:
        made = self.generator(x)
        return self.critic(made) if real is None else (self.critic(real), self.critic(made.detach()))


@loop
def two_adversaries_in_one_module(kit: Any) -> None:
    kit.begin()
    model = kit.model(Adversaries())
    first, second = model.module.generator, model.module.critic
    optimizer = kit.optimizer(sgd([{"params": first.parameters()}, {"params": second.parameters(), "lr": 0.05}]))

    def critic(model: Any, x: torch.Tensor, noise: torch.Tensor) -> Any:
        real, made = model(noise, x)
        loss = F.softplus(-real).mean() + F.softplus(made).mean()
        model.backward(loss)
        return loss

    def generator(model: Any, noise: torch.Tensor) -> Any:
        loss = F.softplus(-model(noise)).mean()
        model.backward(loss)
        return loss

    teach, fool = kit.step(critic), kit.step(generator)
    for number in range(3):
        x, noise = BATCHES(number)[0], BATCHES(50 + number)[0]
        optimizer.zero_grad()
        kit.note(f"critic {number}", teach(model, x, noise))
        for parameter in first.parameters():
            parameter.grad = None
        optimizer.step()
        optimizer.zero_grad()
        kit.note(f"generator {number}", fool(model, noise))
        for parameter in second.parameters():
            parameter.grad = None
        optimizer.step()
    kit.note("state", model.state_dict())


@loop
def penalty_of_gradients(kit: Any) -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        x = x.detach().requires_grad_()
        out = model(x)
        (gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        loss = F.cross_entropy(out, y) + 0.1 * (gradient.norm(dim=1) - 1).square().mean()
        model.backward(loss)
        return loss

    run(kit, step=step)


@loop
def adversarial_inputs_by_two_backwards(kit: Any) -> None:
    """FGSM: the sign of the gradient of the input, which a first pass gives."""

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(F.cross_entropy(model(x), y), x)
        loss = F.cross_entropy(model(x.detach() + 0.1 * gradient.sign()), y)
        model.backward(loss)
        return loss

    run(kit, step=step)


@loop
def bad_microbatches_are_left_out(kit: Any) -> None:
    """`if loss > threshold: return` without a backward."""

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = F.cross_entropy(model(x), y)
        if float(loss.detach()) < 1.7:
            model.backward(loss)
        return loss

    run(kit, step=step)


@loop
def backward_now_and_then_by_the_input(kit: Any) -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = F.cross_entropy(model(x), y)
        model.backward(loss * (y != 0).any())
        return loss

    run(kit, step=step)


@loop
def first_half_frozen_from_the_start(kit: Any) -> None:
    def build() -> nn.Module:
        net = Deep()
        net.blocks[:4].requires_grad_(False)
        return net

    run(kit, build=build)


@loop
def last_half_frozen_from_the_start(kit: Any) -> None:
    def build() -> nn.Module:
        net = Deep()
        net.blocks[5:].requires_grad_(False)
        net.head.requires_grad_(False)
        return net

    run(kit, build=build)


@loop
def unfrozen_block_by_block(kit: Any) -> None:
    def build() -> nn.Module:
        net = Deep()
        net.blocks.requires_grad_(False)
        return net

    def after(model: Any, _o: Any, number: int) -> None:
        model.module.blocks[7 - 2 * number].requires_grad_(True)

    run(kit, build=build, after=after)


@loop
def frozen_after_two_steps(kit: Any) -> None:
    def after(model: Any, _o: Any, number: int) -> None:
        if number == 1:
            model.module.blocks[:5].requires_grad_(False)

    run(kit, after=after)


@loop
def parts_trained_in_turn(kit: Any) -> None:
    def after(model: Any, _o: Any, number: int) -> None:
        model.module.blocks.requires_grad_(number % 2 == 1)
        model.module.head.requires_grad_(number % 2 == 0)

    run(kit, after=after)


@loop
def some_blocks_in_evaluation_mode_later(kit: Any) -> None:
    def build() -> nn.Module:
        net = Deep()
        for block in net.blocks:
            block.norm = nn.BatchNorm1d(8, momentum=0.3)
        return net

    def after(model: Any, _o: Any, number: int) -> None:
        if number == 1:
            model.module.blocks[:3].eval()

    run(kit, build=build, after=after)


@loop
def probability_of_dropout_changes(kit: Any) -> None:
    def build() -> nn.Module:
        net = Deep()
        net.head = nn.Sequential(nn.Dropout(0.1), net.head)
        return net

    def after(model: Any, _o: Any, number: int) -> None:
        model.module.head[0].p = 0.1 * (number + 2)

    run(kit, build=build, after=after)


@loop
def depth_grows_by_an_attribute(kit: Any) -> None:
    class Growing(Deep):
        depth = 8

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks[: self.depth]:
                x = block(x)
            return self.head(x)

    def after(model: Any, _o: Any, number: int) -> None:
        model.module.depth = 8 - number

    run(kit, build=Growing, after=after)


@loop
def number_of_blocks_is_an_argument(kit: Any) -> None:
    class Cut(Deep):
        def forward(self, x: torch.Tensor, depth: int) -> torch.Tensor:  # type: ignore[override]
            for block in self.blocks[:depth]:
                x = block(x)
            return self.head(x)

    kit.begin()
    model = kit.model(Cut())
    optimizer = kit.optimizer(sgd(model.parameters()))

    def step(model: Any, x: torch.Tensor, y: torch.Tensor, depth: int) -> Any:
        loss = F.cross_entropy(model(x, depth), y)
        model.backward(loss)
        return loss

    train = kit.step(step)
    for number, depth in enumerate((8, 8, 7, 8)):
        optimizer.zero_grad()
        kit.note(f"loss {number}", train(model, *BATCHES(number), depth))
        optimizer.step()
    kit.note("state", model.state_dict())


@loop
def bad_batch_raises_and_is_caught(kit: Any) -> None:
    """The step checks its batch; the loop goes on with the next one."""

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        if not torch.isfinite(x).all():
            raise ValueError("a batch with NaN")
        loss = F.cross_entropy(model(x), y)
        model.backward(loss)
        return loss

    kit.begin()
    model = kit.model(Deep())
    optimizer, train = kit.optimizer(sgd(model.parameters())), kit.step(step)
    for number in range(4):
        x, y = BATCHES(number)
        if number == 2:
            x[1, 1] = float("nan")
        optimizer.zero_grad()
        try:
            kit.note(f"loss {number}", train(model, x, y))
        except ValueError as error:
            kit.note(f"loss {number}", str(error))
            continue
        optimizer.step()
    kit.note("state", model.state_dict())


@loop
def bad_batch_looked_at_before_the_step(kit: Any) -> None:
    model, optimizer, train = start(kit, Deep())
    for number in range(4):
        if float(BATCHES(number)[0].mean()) > 0.1:
            continue
        one_step(kit, model, optimizer, train, number)
    kit.note("state", model.state_dict())


@loop
def losses_that_are_nan_skip_the_update(kit: Any) -> None:
    kit.begin()
    model = kit.model(Deep())
    optimizer, train = kit.optimizer(sgd(model.parameters())), kit.step(classify)
    for number in range(4):
        x, y = BATCHES(number)
        optimizer.zero_grad()
        loss = train(model, x * float("nan") if number == 1 else x, y).reduce_mean()
        kit.note(f"loss {number}", loss)
        if torch.isfinite(loss):
            optimizer.step()
    kit.note("state", model.state_dict())


@loop
def autocast_around_the_forward(kit: Any) -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            out = model(x)
        loss = F.cross_entropy(out.float(), y)
        model.backward(loss)
        return loss

    run(kit, step=step)


@loop
def anomalies_are_detected(kit: Any) -> None:
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        run(kit)


@loop
def default_type_is_double(kit: Any) -> None:
    torch.set_default_dtype(torch.float64)

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = F.cross_entropy(model(x.double()), y)
        model.backward(loss)
        return loss

    run(kit, step=step)


@loop
def whole_model_compiled(kit: Any) -> None:
    def build() -> nn.Module:
        net = Deep()
        for number in range(8):
            net.blocks[number] = torch.compile(net.blocks[number], backend="eager")
        return net

    run(kit, build=build)


@loop
def hooks_put_on_between_steps(kit: Any) -> None:
    def after(model: Any, _o: Any, number: int) -> None:
        if number == 1:
            model.module.blocks[3].register_forward_hook(lambda _m, _a, out: out * 0.5)

    run(kit, after=after)


@loop
def head_replaced_in_the_middle(kit: Any) -> None:
    """A new module after the model was cut."""

    def after(model: Any, _o: Any, number: int) -> None:
        if number == 1:
            torch.manual_seed(9)
            model.module.head = nn.Linear(8, 5)

    run(kit, after=after)


@loop
def head_initialised_again(kit: Any) -> None:
    def after(model: Any, _o: Any, number: int) -> None:
        if number == 1:
            with torch.no_grad():
                model.module.head.weight.fill_(0.1)
                nn.init.zeros_(model.module.head.bias)

    run(kit, after=after)


@loop
def weights_set_from_a_numpy_array(kit: Any) -> None:
    def after(model: Any, _o: Any, number: int) -> None:
        if number == 1:
            model.load_state_dict({"head.bias": torch.arange(5.0)}, strict=False)

    run(kit, after=after)


@loop
def counts_and_names_of_parameters(kit: Any) -> None:
    """What scripts print at the start, and during training."""

    def after(model: Any, _o: Any, _n: int) -> Any:
        parameters = dict(model.module.named_parameters())
        return [sum(p.numel() for p in parameters.values()), sorted(parameters), [list(p.shape) for p in model.parameters()]]

    run(kit, after=after)


@loop
def predictions_collected_in_the_training_step(kit: Any) -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        out = model(x)
        loss = F.cross_entropy(out, y)
        model.backward(loss)
        return loss, out.detach().argmax(1), y

    kit.begin()
    model = kit.model(Deep())
    optimizer, train = kit.optimizer(sgd(model.parameters())), kit.step(step)
    right = 0
    for number in range(3):
        optimizer.zero_grad()
        _, found, truth = train(model, *BATCHES(number))
        right += int((found.concat() == truth.concat()).sum())
        optimizer.step()
    kit.note("right", right)
    model.eval()
    with torch.no_grad():
        kit.note("out", kit.step(predict)(model, rows(batch=4)(3)[0]).stack())
