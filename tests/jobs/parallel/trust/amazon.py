"""What Amazon's public scripts count on: data on the first rank alone, states of parts, manual partitions, LAMB."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import trainshed.parallel as pipe
from trainshed.compat.smdistributed.modelparallel import torch as smp

from . import in_half
from .table import SECONDS, case, refused, same
from .training import State, one_process, squared

FIVE = 5


def layers() -> nn.Module:
    return nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(FIVE)])


def batch(number: int, replica: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(10 * number + replica)
    return torch.randn(8, 4, generator=generator), torch.randint(0, 4, (8,), generator=generator)


def classified(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = nn.functional.cross_entropy(model(x), y)
    model.backward(loss)
    return loss


def pipeline(first: int = 3, optimizer: Any = None, stages: int = 2, **settings: Any) -> tuple[Any, Any]:
    """Model and optimizer in two stages; `first` layers are on the first, one on each further stage."""
    smp.init({"partitions": stages, "microbatches": 2, "timeout_seconds": SECONDS, **settings})
    torch.manual_seed(3 + smp.rank())  # the first rank's weights count
    module = layers()
    model = smp.DistributedModel(module)
    for number, layer in enumerate(module):
        smp.set_partition(layer, min(max(0, number - first + 1), stages - 1))
    make = optimizer or (lambda parameters: torch.optim.Adam(parameters, lr=0.05))
    return model, smp.DistributedOptimizer(make(model.parameters()))


def steps(model: Any, optimizer: Any, batches: Callable[[int], Any], *numbers: int) -> list[float]:
    """Trains on the batches with these numbers; the losses."""
    losses, train = [], smp.step(classified)
    for number in numbers:
        optimizer.zero_grad()
        losses.append(float(train(model, *batches(number)).reduce_mean()))
        optimizer.step()
    return losses


def read_by_the_first(number: int, replica: int) -> tuple[torch.Tensor, ...]:
    """A batch as AWS's data pipeline gives it: only the first rank of a pipeline reads files."""
    return batch(number, replica) if smp.pp_rank() == 0 else (torch.Tensor(0), torch.Tensor(0))


@case(ranks=2)
def first_rank_has_the_data() -> None:
    model, optimizer = pipeline()
    losses = steps(model, optimizer, lambda number: read_by_the_first(number, smp.dp_rank()), 0, 1, 2)
    assert losses == smp.allgather(losses, smp.PP_GROUP)[0]
    expected = one_process(
        layers, batch, smp.dp_size(), 2, 3, lambda *_: None, lambda p: torch.optim.Adam(p, lr=0.05), classified
    )
    same(model.state_dict(), expected)
    model.eval()
    with torch.no_grad():
        seen = smp.step(lambda model, x, y: (model(x), y))(model, *read_by_the_first(5, smp.dp_rank()))
    assert seen[1].concat().tolist() == batch(5, smp.dp_rank())[1].tolist()


@case(ranks=4)
def first_rank_of_each_replica_has_the_data() -> None:
    first_rank_has_the_data()


@case(ranks=2)
def first_rank_has_the_data_along_another_axis() -> None:
    model, _ = pipeline()
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1)) if smp.rank() == 0 else torch.Tensor(0)

    def turned(model: Any, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return squared(model, x.T * factor)

    train = smp.step(turned, input_split_axes={"x": 1})
    first = train(model, x, torch.tensor(2.0)).reduce_mean()
    assert first == smp.allgather(first)[0] and first > 0


@case(ranks=2)
def other_data_is_not_taken_for_none() -> None:
    model, optimizer = pipeline()
    words = ("rank 1 was given another batch than rank 0", "may give empty tensors")
    train = smp.step(classified)
    refused(lambda: train(model, *batch(0, smp.rank())), *words)
    x, y = batch(0, 0)
    refused(lambda: train(model, x + smp.rank(), y if smp.rank() == 0 else y[:0]), *words)
    # The inputs are those of the first rank: it cannot be the one without.
    refused(lambda: train(model, *((x, y) if smp.rank() else (x[:0], y[:0]))), *words)
    more = smp.step(lambda model, *given: classified(model, *given[:2]))
    given = (x, y) if smp.rank() == 0 else (x[:0], y[:0], x[:0])
    refused(lambda: more(model, *given), "rank 1 calls the step with another number of tensors than rank 0")
    steps(model, optimizer, lambda number: batch(number, 0), 0)


def saved_parts(first: int) -> tuple[State, State, State, list[float]]:
    """This rank's parts after two steps, the whole then, and the losses of two more."""
    model, optimizer = pipeline(first)
    steps(model, optimizer, lambda number: batch(number, smp.dp_rank()), 0, 1)
    parts = {name: v.clone() if isinstance(v, torch.Tensor) else v for name, v in model.local_state_dict().items()}
    of_optimizer = optimizer.local_state_dict()
    of_optimizer["by_name"] = {n: {k: v.clone() for k, v in e.items()} for n, e in of_optimizer["by_name"].items()}
    whole = model.state_dict()
    return parts, of_optimizer, whole, steps(model, optimizer, lambda number: batch(number, smp.dp_rank()), 2, 3)


def parts_fit_another_cut(**settings: Any) -> None:
    """What each rank has saved of its stage is loaded where the stages are others: nothing may keep a first value."""
    parts, of_optimizer, whole, losses = saved_parts(1)
    smp.shutdown()
    model, optimizer = pipeline(4, **settings)
    model.load_state_dict(parts, strict=False)
    model.register_post_step_hook(lambda _, update: update.load_state_dict(of_optimizer))
    same({name: value.clone() for name, value in model.module.state_dict().items()}, whole)
    assert steps(model, optimizer, lambda number: batch(number, smp.dp_rank()), 2, 3) == losses
    model.load_state_dict(parts)  # and again where the model is cut already
    same(model.state_dict(), whole)


@case(ranks=2)
def parts_of_a_state_fit_another_cut() -> None:
    parts_fit_another_cut()


@case(ranks=4)
def parts_of_a_sharded_state_fit_another_cut() -> None:
    parts_fit_another_cut(shard_optimizer_state=True)


@case(ranks=2)
def parts_of_a_state_fit_another_number_of_ranks() -> None:
    """Files of two ranks are read by one, and the other way round."""
    folder, first = shared_folder(), {2: 2, 1: FIVE}
    model, optimizer = pipeline(first[2])
    steps(model, optimizer, lambda number: batch(number, 0), 0)
    for before, now in ((2, 1), (1, 2)):
        if smp.rdp_rank() == 0:
            smp.save(model.local_state_dict(), f"{folder}/model.pt")
            smp.save(optimizer.local_state_dict(), f"{folder}/optimizer.pt")
            smp.save({"model": 1}, f"{folder}/own.pt")
        smp.barrier()
        whole, losses = model.state_dict(), steps(model, optimizer, lambda number: batch(number, 0), 1, 2)
        smp.shutdown()
        model, optimizer = pipeline(first[now], stages=now)
        assert sorted(path.name for path in folder.glob("own*")) == [f"own.pt_{number}" for number in range(before)]
        if smp.pp_rank() or now == 1:  # the first of two ranks has the file that it looks for
            refused(
                lambda now=now: smp.load(f"{folder}/own.pt"), f"was saved by {before} ranks of a pipeline, which has {now}"
            )
        model.load_state_dict(smp.load(f"{folder}/model.pt"))
        parts = smp.load(f"{folder}/optimizer.pt")
        model.register_post_step_hook(lambda _, update, parts=parts: update.load_state_dict(parts))
        same({name: value.clone() for name, value in model.module.state_dict().items()}, whole, 0.0)
        found = steps(model, optimizer, lambda number: batch(number, 0), 1, 2)
        assert all(abs(one - other) < 1e-6 for one, other in zip(found, losses, strict=True)), (before, found, losses)
    refused(lambda: smp.load(f"{folder}/nothing.pt"), "there is no")


def shared_folder() -> Path:
    """A folder that all ranks of this start have in common."""
    import ranks

    folder = ranks.folder() / "amazon"
    folder.mkdir(exist_ok=True)
    return folder


@case(ranks=2)
def a_partial_state_on_one_rank_is_refused() -> None:
    model, optimizer = pipeline()
    steps(model, optimizer, lambda number: batch(number, 0), 0)
    parts = model.local_state_dict()
    refused(
        lambda: model.load_state_dict(parts) if smp.rank() == 0 else model.state_dict(),
        "rank 1 is at model.state_dict() while rank 0",
        "load_state_dict() of a partial state",
    )


@case(ranks=2)
def modules_without_a_partition_of_their_own_follow() -> None:
    settings = {"auto_partition": False, "default_partition": 0, "static_mode": True, "fast_mode": True}
    smp.init({"partitions": 2, "microbatches": 2, "timeout_seconds": SECONDS, **settings})
    module = layers()
    model = smp.DistributedModel(module)
    assert model.get_module() is module
    smp.set_partition(module[1], 0)
    smp.set_partition(module[2], 1)
    smp.step(classified)(model, *batch(0, 0))
    assert {unit.unit[0]: unit.stage for unit in model.plan.units} == {"0": 0, "1": 0, "2": 1, "3": 1, "4": 1}


@case(ranks=2)
def overflow_is_told_on_all_ranks() -> None:
    model, optimizer = pipeline(fp16=True)
    assert not optimizer.overflow
    steps(model, optimizer, lambda number: batch(number, 0), 0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    train = smp.step(classified)
    train(model, *batch(1, 0))
    if smp.rank() == 1:
        next(iter(model.local_parameters())).grad.fill_(float("inf"))
    optimizer.step()
    assert optimizer.overflow
    same(model.state_dict(), before, 0.0)
    optimizer.zero_grad()
    scale = optimizer.loss_scale
    steps(model, optimizer, lambda number: batch(number, 0), 2)
    assert not optimizer.overflow and optimizer.loss_scale == scale


def lamb(parameters: Any) -> torch.optim.Optimizer:
    return smp.optimizers.FusedLAMB(parameters, lr=0.1, max_grad_norm=0.05)


@case(ranks=2)
def lamb_clips_by_the_gradients_of_all_stages() -> None:
    model, optimizer = pipeline(optimizer=lamb)
    steps(model, optimizer, lambda number: batch(number, 0), 0, 1, 2)
    state = model.state_dict()
    optimizer.load_state_dict(optimizer.state_dict())
    smp.shutdown()
    same(state, one_process(layers, batch, 1, 2, 3, lambda *_: None, lamb, classified))


def _steep(model: Any, x: torch.Tensor) -> torch.Tensor:
    loss = 100 * model(x).square().mean()
    model.backward(loss)
    return loss


def _norms_of_updates(optimizer: Any = None, **settings: Any) -> list[float]:
    """The norm of all gradients that each step moves the parameters by."""
    make = optimizer or smp.DistributedOptimizer
    smp.init({"microbatches": 2, "timeout_seconds": SECONDS, **settings})
    torch.manual_seed(3)
    model = smp.DistributedModel(layers())
    update = make(torch.optim.SGD(model.parameters(), lr=1.0))
    train, found = smp.step(_steep), []
    for number in range(2):
        before = model.state_dict()
        update.zero_grad()
        train(model, batch(number, smp.dp_rank())[0])
        update.step()
        moved = [(value - before[name]).flatten() for name, value in model.state_dict().items()]
        found.append(float(torch.cat(moved).norm()))
    smp.shutdown()
    return found


def _clips(**kinds: int) -> None:
    free = _norms_of_updates(**kinds, sdp_gradient_clipping=0)
    assert free[0] > 2, free
    for limit, settings in ((1.0, {}), (0.25, {"sdp_gradient_clipping": 0.25})):
        found = _norms_of_updates(**kinds, **settings)
        torch.testing.assert_close(torch.tensor(found), torch.full((2,), limit), rtol=1e-4, atol=1e-4)
    assert _norms_of_updates(pipe.PipelineOptimizer, **kinds)[0] == free[0]  # by our names there is no default


@case(ranks=4)
def gradients_of_sharded_stages_are_clipped_as_the_setting_says() -> None:
    _clips(partitions=2, sharded_data_parallel_degree=2)


@case(ranks=4, heavy=True)
def gradients_of_sharded_models_are_clipped_and_those_of_others_are_not() -> None:
    _clips(sharded_data_parallel_degree=4)
    assert _norms_of_updates(partitions=2)[0] > 2


@case(ranks=2)
def loss_scales_go_on_in_a_resumed_run() -> None:
    """An overflow that is forgiven, then one that is not: with a resume at each place between them."""
    options = {"init_scale": 2.0**8, "scale_window": 2, "delayed_shift": 2}

    def built() -> tuple[Any, Any]:
        smp.shutdown()
        smp.init({"partitions": 2, "microbatches": 2, "fp16": True, "timeout_seconds": SECONDS})
        torch.manual_seed(3)
        module = layers()
        model = smp.DistributedModel(module)
        smp.set_partition(module[-1], 1)  # so that stage 1 has parameters, whatever a busy machine takes for slow
        update = torch.optim.Adam(model.parameters(), lr=0.05)
        return model, smp.DistributedOptimizer(update, dynamic_loss_scale=True, dynamic_loss_args=options)

    def trained(model: Any, update: Any, numbers: range) -> list[float]:
        train, found = smp.step(squared), []
        for number in numbers:
            update.zero_grad()
            train(model, batch(number, 0)[0])
            if number in (0, 3, 4) and smp.pp_rank() == 1:
                next(p.grad for p in model.local_parameters() if p.grad is not None).view(-1)[0] = float("inf")
            update.step()
            found.append(update.loss_scale)
        return found

    model, update = built()
    scales = trained(model, update, range(8))
    expected = model.state_dict()
    assert scales == [2.0**one for one in (8, 8, 9, 9, 8, 8, 9, 9)], scales
    with in_half.shared_folder() as folder:
        for cut in (1, 2, 4):
            model, update = built()
            trained(model, update, range(cut))
            smp.save_checkpoint(str(folder), f"{cut}", model=model, optimizer=update)
            states = model.local_state_dict(), update.local_state_dict()
            model, update = built()
            smp.resume_from_checkpoint(str(folder), f"{cut}")
            assert trained(model, update, range(cut, 8)) == scales[cut:]
            same(model.state_dict(), expected, 0.0)
            model, update = built()
            model.load_state_dict(states[0])
            update.load_state_dict(states[1])
            assert trained(model, update, range(cut, 8)) == scales[cut:]
            same(model.state_dict(), expected, 0.0)


@case(ranks=2)
def options_of_loss_scales_that_are_not_known_are_refused() -> None:
    model, _ = pipeline()
    update = torch.optim.Adam(model.parameters())
    refused(lambda: smp.DistributedOptimizer(update, dynamic_loss_args={"scale_windw": 2}), "scale_windw", "scale_window")
