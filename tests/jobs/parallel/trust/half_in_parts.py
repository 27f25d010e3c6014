"""Masters of parameters in half precision where stages are sharded, divided, both, or share out their states."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

import trainshed.parallel as pipe
from trainshed.parallel.ground.shards import local, whole

from .in_half import BF16, WORDS, Copies, Job, Small, after_steps_of, batches, by_hand, loss_of, own_share, shared_folder
from .mixtures import Mixture, Net
from .table import case, same

FP16: dict[str, Any] = {"fp16": True, "master_weights": True, "microbatches": 2}
PLAIN: dict[str, Any] = {"partitions": 2}
SHARDED: dict[str, Any] = {"partitions": 2, "sharded_data_parallel_degree": 2}
DIVIDED: dict[str, Any] = {"partitions": 2, "tensor_parallel_degree": 2, "prescaled_batch": True}
SHARED_OUT: dict[str, Any] = {"partitions": 2, "shard_optimizer_state": True}
BOTH: dict[str, Any] = {"tensor_parallel_degree": 2, "sharded_data_parallel_degree": 2, "prescaled_batch": True}
# A plan that opens blocks ends the pairs in them, and sums have another order.
WHOLE_BLOCKS: dict[str, Any] = {"atomic": [f"blocks.{block}" for block in range(4)]}
EACH = (SHARDED, DIVIDED, SHARED_OUT, BOTH)
# Products in parts, and replicas' sums in another order, are rounded to bfloat16 elsewhere.
NEAR = 2e-2


def scaled(scale: float) -> Any:
    return lambda: pipe.GradScaler(init_scale=scale, growth_interval=2)


def elements(job: Job, name: str) -> tuple[int, int]:
    """Elements of the float32 masters, and of all entries `name`, that ranks of one stage have together."""
    found = [entry for entry in job.optimizer.optimizer.state.values() if "master" in entry]
    counts = torch.tensor([sum(local(one[key]).numel() for one in found) for key in ("master", name)])
    dist.all_reduce(counts)
    return int(counts[0]), int(counts[1])


@case(ranks=4)
def parts_train_as_by_hand_and_each_rank_has_its_own() -> None:
    weights, values = by_hand(4, clip=0.5)
    halves = sum(values[name].numel() for name in values if weights[name].dtype is torch.bfloat16)
    expected = Job(**BF16, **PLAIN).train(clip=0.5).masters()
    same(expected, values, 2e-3)
    # Shards sum the norm in parts.
    for settings, tolerance in ((SHARDED, 2e-3), (SHARED_OUT, 0.0), (DIVIDED, NEAR), (BOTH, NEAR)):
        job = Job(**BF16, **settings).train(clip=0.5)
        same(job.masters(), expected, tolerance)
        kinds = {name: one.dtype for name, one in job.model.local_named_parameters() if name in values}
        assert kinds == {name: weights[name].dtype for name in kinds}
        assert elements(job, "exp_avg") == (halves, halves), (settings, elements(job, "exp_avg"), halves)


@case(ranks=4, heavy=True)
def parts_of_several_stages_a_rank_train_as_one_does() -> None:
    expected = Job(**BF16, **PLAIN).train(clip=0.5).masters()
    for schedule in ("interleavedzerobubble", "zbvzerobubble"):
        more = {"pipeline": schedule, "virtual_stages": 2}
        same(Job(**BF16, **SHARDED, **more).train(clip=0.5).masters(), expected, 2e-3)
        same(Job(**BF16, **DIVIDED, **more).train(clip=0.5).masters(), expected, NEAR)


@case(ranks=4)
def replicated_shards_train_as_whole_ones() -> None:
    """Two of four replicas share; with one stage a rank has to hold all stages, so that there are four."""
    expected = by_hand(8, clip=0.5)[1]
    for settings in ({"sharded_data_parallel_degree": 2}, {"tensor_parallel_degree": 2, "prescaled_batch": True}):
        more = {**settings, "microbatches": 2 if "prescaled_batch" not in settings else 4}
        same(Job(**{**BF16, **more}).train(clip=0.5).masters(), expected, NEAR)


@case(ranks=4, heavy=True)
def a_tied_table_in_parts_is_one() -> None:
    def tied() -> nn.Module:
        return Small(tied=True)

    expected = Job(made=tied, **BF16, **PLAIN).train().masters()
    for settings, tolerance in ((SHARDED, 0.0), (SHARED_OUT, 0.0), (DIVIDED, NEAR), (BOTH, NEAR)):
        job = Job(made=tied, **BF16, **settings).train()
        same(job.masters(), expected, tolerance)
        held = whole(dict(job.model.local_named_parameters())["table.weight"].detach())
        seen: list[Any] = [None] * 4
        dist.all_gather_object(seen, held)
        assert all(torch.equal(one, seen[0]) for one in seen)


@case(ranks=4, heavy=True)
def scaled_losses_are_unscaled_in_float32_and_an_overflow_on_one_rank_stops_all() -> None:
    expected = Job(scaler=scaled(2.0**12), **FP16, **PLAIN).train(clip=1e-3).masters()
    for settings, tolerance in ((SHARDED, 2e-3), (SHARED_OUT, 0.0), (DIVIDED, 2e-3), (BOTH, 2e-3)):
        job = Job(scaler=scaled(2.0**12), **FP16, **settings).train(clip=1e-3)
        same(job.masters(), expected, tolerance)
        assert job.optimizer.loss_scale == 2.0**14
        before, weights = job.masters(), job.model.state_dict()
        job.optimizer.zero_grad()
        job.step(job.model, *own_share(*next(batches(1))))
        # Replicas have the same gradients where those are whole.
        if pipe.rank() in ((1, 3) if settings is SHARED_OUT else (3,)):
            gradient = next(p.grad for p in job.model.local_parameters() if p.grad is not None and local(p.grad).numel())
            local(gradient).view(-1)[0] = float("inf")
        job.optimizer.step()
        assert job.optimizer.overflow and job.optimizer.loss_scale == 2.0**13
        same(job.masters(), before, 0.0)
        same(job.model.state_dict(), weights, 0.0)
        job.train(last=1)
        assert not job.optimizer.overflow


@case(ranks=4, heavy=True)
def torchs_own_scaler_serves_as_well() -> None:
    def run(settings: dict[str, Any]) -> dict[str, torch.Tensor]:
        job = Job(**FP16, **settings)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

        @pipe.step
        def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            model.backward(scaler.scale(loss))
            return loss

        for x, y in batches():
            job.optimizer.zero_grad()
            step(job.model, *own_share(x, y))
            scaler.unscale_(job.optimizer)
            nn.utils.clip_grad_norm_(job.model.parameters(), 1e-3)
            scaler.step(job.optimizer)
            scaler.update()
        return job.masters()

    expected = run(PLAIN)
    for settings, tolerance in ((SHARDED, 2e-3), (SHARED_OUT, 0.0), (DIVIDED, 2e-3), (BOTH, 2e-3)):
        same(run(settings), expected, tolerance)


@case(ranks=4)
def what_the_script_changes_in_parts_counts() -> None:
    for settings in EACH:
        job = Job(**BF16, **settings).train(last=2)
        before = job.masters()
        with torch.no_grad():
            for _, parameter in job.model.local_named_parameters():
                if parameter.dim() > 1:
                    parameter.mul_(0.5)
        for group in job.optimizer.param_groups:
            group["lr"] = 0.0
        job.train(first=2, last=3)
        after = job.masters()
        weights = job.model.state_dict()
        for name, value in after.items():
            if weights[name].dtype is torch.bfloat16:
                assert torch.equal(value, before[name].bfloat16().float() * 0.5), name
            else:
                assert torch.equal(value, before[name] * (0.5 if value.dim() > 1 else 1.0)), name


@case(ranks=4, heavy=True)
def runs_in_parts_go_on_to_the_bit() -> None:
    with shared_folder() as folder:
        for number, degrees in enumerate(EACH):
            settings = {**degrees, **WHOLE_BLOCKS}
            job = Job(**BF16, **settings).train(last=2, clip=0.5)
            pipe.save_checkpoint(str(folder / f"{number}"), job.model, job.optimizer)
            weights, states = job.model.state_dict(), deepcopy(job.optimizer.state_dict())  # torch goes on with these
            job.train(first=2, clip=0.5)
            expected, found = job.model.state_dict(), job.masters()
            job = Job(**BF16, **settings)
            pipe.load_checkpoint(str(folder / f"{number}"), job.model, job.optimizer)
            job.train(first=2, clip=0.5)
            same(job.model.state_dict(), expected, 0.0)
            same(job.masters(), found, 0.0)
            late = Job(**BF16, **settings).train(last=1)  # its parameters have their places already
            for load in ((late.model, weights), (late.optimizer, states)):
                load[0].load_state_dict(load[1])
            late.optimizer.zero_grad()
            same(late.train(first=2, clip=0.5).masters(), found, 0.0)
            late = Job(**BF16, **settings).train(last=1)
            pipe.load_checkpoint(str(folder / f"{number}"), late.model, late.optimizer)
            same(late.train(first=2, clip=0.5).masters(), found, 0.0)


@case(ranks=4, heavy=True)
def each_step_in_parts_may_have_other_degrees() -> None:
    expected = by_hand(4, steps=9)[1]
    kinds: tuple[dict[str, Any], ...] = (
        SHARDED,
        DIVIDED,
        {"partitions": 4, "microbatches": 4},
        SHARED_OUT,
        {"sharded_data_parallel_degree": 4, "microbatches": 1},
        {**DIVIDED, "placement_strategy": "spread"},
        BOTH,
        {"tensor_parallel_degree": 4, "microbatches": 4, "prescaled_batch": True},
        SHARDED,
    )
    same(after_steps_of(kinds), expected, 5e-3)


@case(ranks=4, heavy=True)
def float32_goes_in_and_out_of_parts_as_it_is() -> None:
    with shared_folder() as folder:
        plain = Job(**PLAIN, microbatches=2).train(last=2)
        weights, states = plain.model.state_dict(), plain.optimizer.state_dict()["state"]
        pipe.save_checkpoint(str(folder / "plain"), plain.model, plain.optimizer)
        for number, settings in enumerate(EACH):
            half = Job(**BF16, **settings)
            pipe.load_checkpoint(str(folder / "plain"), half.model, half.optimizer)
            half.step(half.model, *own_share(*next(batches(1))))  # gives parameters their places
            half.optimizer.zero_grad()
            pipe.save_checkpoint(str(folder / f"half{number}"), half.model, half.optimizer)
            back = Job(**PLAIN, microbatches=2)
            pipe.load_checkpoint(str(folder / f"half{number}"), back.model, back.optimizer)
            back.step(back.model, *own_share(*next(batches(1))))
            same(back.model.state_dict(), weights, 0.0)
            found = back.optimizer.state_dict()["state"]
            for key, entry in states.items():
                same(found[key], entry, 0.0)


@case(ranks=4, heavy=True)
def weights_in_files_go_into_parts_exactly_and_come_out_rounded() -> None:
    from safetensors.torch import load_file, save_file

    torch.manual_seed(9)
    weights = {name: torch.randn_like(value) for name, value in Small().state_dict().items()}
    with shared_folder() as folder:
        if dist.get_rank() == 0:
            save_file(weights, folder / "given.safetensors")
        dist.barrier()
        for number, settings in enumerate(EACH):
            for late in (False, True):
                job = Job(**BF16, **settings)
                if late:
                    job.train(last=2)
                job.model.load_weights(folder / "given.safetensors")
                for group in job.optimizer.param_groups:
                    group["lr"] = 0.0
                job.train(last=1)
                trained = job.masters()
                same(trained, {name: weights[name] for name in trained}, 0.0)
            for group in job.optimizer.param_groups:
                group["lr"] = 1e-2
            state = job.train(first=1, last=2).model.state_dict()
            job.model.save_weights(folder / f"out{number}", shard_bytes=2048)
            read = {
                k: v for one in sorted((folder / f"out{number}").glob("*.safetensors")) for k, v in load_file(one).items()
            }
            assert {name: value.dtype for name, value in read.items()} == {name: v.dtype for name, v in state.items()}
            same(read, state, 0.0)
            values = job.masters()
            same({name: values[name].to(read[name].dtype) for name in values}, {name: read[name] for name in values}, 0.0)


@case(ranks=4)
def states_that_are_shared_out_may_lie_on_the_cpu() -> None:
    """From CPU to CPU, by the same copies; with a scaled loss and clipping."""
    alone = Job(scaler=scaled(2.0**8), **FP16, **SHARED_OUT).train(clip=1e-3)
    expected, scale = alone.masters(), alone.optimizer.loss_scale
    with shared_folder() as folder, Copies().there():
        job = Job(scaler=scaled(2.0**8), **FP16, **SHARED_OUT, offload_optimizer_state=True).train(last=2, clip=1e-3)
        pipe.save_checkpoint(str(folder / "two"), job.model, job.optimizer)
        job = Job(scaler=scaled(2.0**8), **FP16, **SHARED_OUT, offload_optimizer_state=True)
        pipe.load_checkpoint(str(folder / "two"), job.model, job.optimizer)
        same(job.train(first=2, clip=1e-3).masters(), expected, 0.0)
        assert job.optimizer.loss_scale == scale == 2.0**10


@case(ranks=4, heavy=True)
def weights_that_are_trained_later_get_masters_then() -> None:
    def run(settings: dict[str, Any]) -> dict[str, torch.Tensor]:
        job = Job(**BF16, **settings)
        for number in range(4):
            if number == 2:
                for name, parameter in job.model.module.named_parameters():
                    if name.endswith("frozen.weight"):
                        parameter.requires_grad_(True)
                    if "blocks.0.line" in name:
                        parameter.requires_grad_(False)
            job.train(first=number, last=number + 1)
        return job.model.state_dict()

    expected = run(PLAIN)
    assert not torch.equal(expected["blocks.3.frozen.weight"], Small().blocks[3].frozen.weight.bfloat16())
    for settings, tolerance in ((SHARDED, 0.0), (SHARED_OUT, 0.0), (DIVIDED, NEAR), (BOTH, NEAR)):
        same(run(settings), expected, tolerance)


@case(ranks=4, heavy=True)
def models_without_values_get_them_in_parts_in_half_precision() -> None:
    def later() -> nn.Module:
        with pipe.delayed_initialization():
            return Small()

    for settings in EACH:
        expected = Job(**BF16, **settings).train().masters()
        same(Job(made=later, **BF16, **settings).train().masters(), expected, 0.0)


@case(ranks=4, heavy=True)
def experts_in_parts_have_masters() -> None:
    def mixture() -> nn.Module:
        torch.manual_seed(0)
        net = Net(Mixture(), Mixture())
        net.table, net.head = nn.Embedding(WORDS, 6), nn.Linear(6, WORDS)
        return net

    expected = Job(made=mixture, **BF16, **PLAIN).train().masters()
    for settings, tolerance in ((SHARDED, 0.0), (BOTH, 5e-2), (DIVIDED, 5e-2)):
        job = Job(made=mixture, **BF16, **settings).train()
        same(job.masters(), expected, tolerance)
    divided = [name for name, one in job.model.local_named_parameters() if isinstance(one, DTensor) and one.dim() == 3]
    everywhere: list[Any] = [None] * 4
    dist.all_gather_object(everywhere, divided)
    assert len({name for found in everywhere for name in found}) == 4, everywhere
    with shared_folder() as folder:
        pipe.save_checkpoint(str(folder / "four"), job.model, job.optimizer)
        values = job.masters()
        other = Job(made=mixture, **BF16, **SHARDED)
        pipe.load_checkpoint(str(folder / "four"), other.model, other.optimizer)
        other.step(other.model, *own_share(*next(batches(1))))  # gives parameters their places
        same(other.masters(), values, 0.0)


def _under_autocast(*ways: tuple[dict[str, Any], float]) -> None:
    """Losses of eight steps beside those of one process. Each way: settings, and what rounding leaves of sums in parts."""
    torch.manual_seed(0)
    alone = Small()
    update, expected = torch.optim.AdamW([p for p in alone.parameters() if p.requires_grad], lr=1e-2), []
    for x, y in batches(8):
        update.zero_grad()
        losses = []
        for part in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(alone, x.chunk(2)[part], y.chunk(2)[part])
            (loss / 2).backward()
            losses.append(float(loss.detach()))
        update.step()
        expected.append(sum(losses) / 2)
    for settings, tolerance in ways:
        job = Job(bf16=True, microbatches=2, **{**DIVIDED, **settings})
        found = []
        for x, y in batches(8):
            job.optimizer.zero_grad()
            found.append(float(job.step(job.model, x, y).reduce_mean()))
            job.optimizer.step()
        torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=tolerance, atol=0)


@case(ranks=4)
def autocast_in_divided_stages_is_near_one_process() -> None:
    """Pairs are summed in bfloat16 within units of float32: the first step is verified."""
    _under_autocast((WHOLE_BLOCKS, 1e-3))


@case(ranks=4, heavy=True)
def autocast_in_divided_stages_of_other_kinds_is_near_one_process() -> None:
    other, rounded = {"pipeline": "zbvzerobubble"}, {"master_weights": True}  # rounded parameters are another model
    _under_autocast((other, 1e-3), (rounded, 3e-3), ({**other, **rounded}, 3e-3))
