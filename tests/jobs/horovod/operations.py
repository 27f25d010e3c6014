"""What ranks run for test_horovod_jobs.py: every check on all ranks of one job, each told with its outcome."""

from __future__ import annotations

import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from horovod.common.exceptions import HorovodInternalError

CHECKS: list[Callable[[], None]] = []


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS.append(function)
    return function


def raises(kind: type[BaseException], *words: str) -> Any:
    """A block that must raise an error with these words."""

    class Expected:
        def __enter__(self) -> None:
            pass

        def __exit__(self, wrong: Any, error: Any, trace: Any) -> bool:
            assert error is not None, f"no {kind.__name__}"
            assert isinstance(error, kind), f"{type(error).__name__}: {error}"
            missing = [word for word in words if word not in str(error)]
            assert not missing, f"{missing} not in: {error}"
            return True

    return Expected()


def everywhere(value: Any) -> None:
    """All ranks have the same."""
    assert all(torch.equal(one, value) for one in hvd.allgather_object(value))


@check
def ranks_and_what_there_is() -> None:
    assert hvd.is_initialized() and hvd.size() == 4 and hvd.rank() in range(4)
    assert (hvd.local_size(), hvd.local_rank()) == (4, hvd.rank()) and (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    assert hvd.gloo_built() and hvd.gloo_enabled() and not hvd.mpi_built() and not hvd.mpi_enabled()
    assert hvd.is_homogeneous() and not hvd.mpi_threads_supported() and not hvd.ddl_built() and not hvd.ccl_built()
    hvd.init()  # again: nothing happens


@check
def allreduce_of_every_dtype() -> None:
    rank = hvd.rank()
    for dtype in (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.uint8,
    ):
        given = torch.tensor([[1, 2], [3, 4]], dtype=dtype) * (rank + 1)
        assert hvd.allreduce(given, op=hvd.Sum, name="sum").tolist() == [[10, 20], [30, 40]], dtype
        assert hvd.allreduce(given, op=hvd.Max).tolist() == [[4, 8], [12, 16]], dtype
        assert hvd.allreduce(given, op=hvd.Min).tolist() == [[1, 2], [3, 4]], dtype
        assert given.tolist() == [[rank + 1, 2 * (rank + 1)], [3 * (rank + 1), 4 * (rank + 1)]]
    assert hvd.allreduce(torch.tensor([1.0, 2.0]) * rank).tolist() == [1.5, 3.0]
    assert hvd.allreduce(torch.tensor([5, -5]) * rank).tolist() == [7, -8]  # rounded down
    assert hvd.allreduce(torch.tensor([rank == 2, False]), op=hvd.Sum).tolist() == [True, False]
    assert hvd.allreduce(torch.tensor([1j * rank]), average=False).tolist() == [6j]
    assert hvd.allreduce(torch.tensor(2.0), op=hvd.Product).item() == 16
    assert hvd.allreduce(torch.ones(2), prescale_factor=0.5, postscale_factor=3.0, op=hvd.Sum).tolist() == [6, 6]
    assert hvd.allreduce(torch.ones(3), compression=hvd.Compression.fp16).dtype == torch.float32
    assert hvd.allreduce(torch.empty(0, 3)).shape == (0, 3)
    with raises(ValueError, "op only"):
        hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum)
    with raises(NotImplementedError, "Adasum is not served"):
        hvd.allreduce(torch.ones(1), op=hvd.Adasum)


@check
def in_place_and_strided() -> None:
    rank = hvd.rank()
    whole = torch.arange(12.0).reshape(3, 4) * rank
    column = whole[:, 1]
    assert hvd.allreduce_(column, op=hvd.Sum) is column
    assert whole[:, 1].tolist() == [6, 30, 54] and whole[0, 2] == 2 * rank
    transposed = torch.full((2, 3), float(rank)).t()
    hvd.broadcast_(transposed, root_rank=3)
    assert transposed.tolist() == [[3, 3]] * 3
    leaf = torch.nn.Parameter(torch.ones(2) * rank)
    hvd.broadcast_(leaf, 2)
    assert leaf.tolist() == [2, 2] and leaf.requires_grad
    pair = [torch.ones(2) * rank, torch.tensor([rank])]
    assert hvd.grouped_allreduce_(pair, op=hvd.Sum)[1] is pair[1] and pair[0].tolist() == [6, 6] and pair[1].item() == 6


@check
def other_orders_on_other_ranks() -> None:
    """Operations with names are matched by them, in whatever order they come."""
    names = [f"tensor {number}" for number in range(40)]
    order = names if hvd.rank() % 2 else names[::-1]
    handles = {
        name: hvd.allreduce_async(torch.full((5,), float(names.index(name))), name=name, op=hvd.Sum) for name in order
    }
    for name in sorted(handles, key=lambda name: (hash(name) + hvd.rank()) % 7):
        assert hvd.synchronize(handles[name]).tolist() == [4.0 * names.index(name)] * 5
        assert hvd.poll(handles[name])
    mixed = [
        lambda: hvd.allgather_async(torch.ones(1), name="gather"),
        lambda: hvd.broadcast_async(torch.ones(1), 1, name="broadcast"),
        lambda: hvd.alltoall_async(torch.arange(4), name="all to all"),
        lambda: hvd.grouped_allgather_async([torch.ones(1), torch.ones(2)], name="group"),
        lambda: hvd.reducescatter_async(torch.ones(4), name="scatter", op=hvd.Sum),
        lambda: hvd.grouped_reducescatter_async([torch.ones(4)], name="scatters", op=hvd.Sum),
    ]
    turned = mixed[hvd.rank() :] + mixed[: hvd.rank()]
    for handle in [begin() for begin in turned]:
        hvd.synchronize(handle)


@check
def ragged_rows() -> None:
    rank = hvd.rank()
    rows = torch.full((rank, 2), rank, dtype=torch.int16)  # none on rank 0
    assert hvd.allgather(rows).tolist() == [[1, 1]] + [[2, 2]] * 2 + [[3, 3]] * 3
    assert hvd.allgather(torch.empty(0, 5)).shape == (0, 5)
    assert hvd.allgather(torch.tensor([rank % 2 == 0])).tolist() == [True, False, True, False]
    one, other = hvd.grouped_allgather([torch.tensor([rank]), torch.ones(rank + 1, 0)])
    assert one.tolist() == [0, 1, 2, 3] and other.shape == (10, 0)
    given, came = hvd.alltoall(torch.arange(6) + 10 * rank, splits=torch.tensor([0, 1, 2, 3]))
    start = [0, 0, 1, 3][rank]
    assert came.tolist() == [rank] * 4 and given.tolist() == [
        10 * other + start + i for other in range(4) for i in range(rank)
    ]
    assert hvd.alltoall(torch.tensor([0, 1, 2, 3]) + 10 * rank).tolist() == [rank, rank + 10, rank + 20, rank + 30]
    share = hvd.reducescatter(torch.arange(6.0).reshape(6, 1) * (rank + 1), op=hvd.Sum)
    assert share.flatten().tolist() == [[0, 10], [20, 30], [40], [50]][rank]
    assert hvd.reducescatter(torch.ones(4) * rank).tolist() == [1.5]
    with raises(ValueError, "no rows"):
        hvd.allgather(torch.tensor(1.0))
    with raises(ValueError, "splits [1] must be 4 numbers of rows that make 1"):
        hvd.alltoall(torch.ones(1), splits=[1])
    with raises(ValueError, "5 rows cannot be shared evenly among 4 ranks"):
        hvd.alltoall(torch.ones(5))


@check
def gradients_flow_through_operations() -> None:
    """They are those of the sum of all ranks' losses, computed here once more without communication."""
    rank = hvd.rank()
    weights = [torch.arange(1.0, 4.0) * (other + 1) for other in range(4)]  # what each rank's loss makes of a result

    def gradient(operation: Callable[[torch.Tensor], torch.Tensor], mine: torch.Tensor, factor: torch.Tensor) -> Any:
        leaf = mine.clone().requires_grad_()
        (operation(leaf) * factor).sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    total = sum(weights)
    x = torch.ones(3)
    assert torch.equal(gradient(lambda t: hvd.allreduce(t, op=hvd.Sum), x, weights[rank]), total)
    assert torch.equal(gradient(lambda t: hvd.allreduce(t), x, weights[rank]), total / 4)
    assert torch.equal(gradient(lambda t: hvd.grouped_allreduce([t, t * 2])[1], x, weights[rank]), total / 2)
    expected = total if rank == 2 else torch.zeros(3)
    assert torch.equal(gradient(lambda t: hvd.broadcast(t, 2), x, weights[rank]), expected)
    rows = torch.ones(rank + 1, 3)
    assert torch.equal(gradient(hvd.allgather, rows, weights[rank]), total.expand(rank + 1, 3))
    got = gradient(lambda t: hvd.alltoall(t, splits=[0, 1, 0, 1])[0], torch.ones(2, 3), weights[rank])
    assert torch.equal(got, torch.stack([weights[1], weights[3]]))
    got = gradient(lambda t: hvd.reducescatter(t, op=hvd.Sum), torch.ones(4, 3), weights[rank])
    assert torch.equal(got, torch.stack(weights))
    with raises(NotImplementedError, "Sum and hvd.Average only"):
        gradient(lambda t: hvd.allreduce(t, op=hvd.Max), x, x)


@check
def sparse_tensors() -> None:
    rank = hvd.rank()
    mine = torch.sparse_coo_tensor([[0, rank + 1]], torch.tensor([[1.0, 2.0], [3.0, 4.0]]), (6, 2), check_invariants=True)
    dense = hvd.allreduce(mine.to_dense(), op=hvd.Sum)
    assert torch.equal(hvd.allreduce(mine, op=hvd.Sum).to_dense(), dense)
    assert torch.equal(hvd.synchronize(hvd.sparse_allreduce_async(mine, name="sparse")).to_dense(), dense / 4)
    with raises(ValueError, "only hvd.Sum and hvd.Average"):
        hvd.sparse_allreduce_async(mine, op=hvd.Max)


@check
def objects() -> None:
    rank = hvd.rank()
    assert hvd.allgather_object({"rank": rank, "text": "é" * rank * 1000})[3]["text"] == "é" * 3000
    assert hvd.broadcast_object(None if rank else {"a": (1, torch.ones(2))}, root_rank=0)["a"][1].tolist() == [1, 1]
    assert hvd.broadcast_object(rank, root_rank=2, name="named") == 2


@check
def what_does_not_match_is_an_error_on_all_ranks() -> None:
    rank = hvd.rank()
    with raises(HorovodInternalError, "'weight'", "shapes differ: [3] on ranks 0, 1, 3, [4] on rank 2"):
        hvd.allreduce(torch.ones(4 if rank == 2 else 3), name="weight")
    with raises(HorovodInternalError, "'weight'", "dtypes differ: float64 on rank 0, float32 on ranks 1, 2, 3"):
        hvd.allreduce(torch.ones(3, dtype=torch.float64 if rank == 0 else torch.float32), name="weight")
    with raises(HorovodInternalError, "'weight'", "reductions differ: sum on ranks 0, 1, 2, max on rank 3"):
        hvd.allreduce(torch.ones(3), name="weight", op=hvd.Max if rank == 3 else hvd.Sum)
    with raises(HorovodInternalError, "'weight'", "Average, Sum"):
        hvd.allreduce(torch.ones(3), name="weight", op=hvd.Average if rank == 3 else hvd.Sum)
    with raises(HorovodInternalError, "'weight'", "operations differ: allreduce on ranks 0, 2, 3, allgather on rank 1"):
        hvd.synchronize((hvd.allgather_async if rank == 1 else hvd.allreduce_async)(torch.ones(3), name="weight"))
    with raises(HorovodInternalError, "root ranks differ: 0 on rank 0, 1 on ranks 1, 2, 3"):
        hvd.broadcast(torch.ones(1), root_rank=min(rank, 1), name="weight")
    with raises(HorovodInternalError, "allgather of 'rows'", "shapes differ: [*, 2]"):
        hvd.allgather(torch.ones(1, 2 + rank % 2), name="rows")
    with raises(HorovodInternalError, "'extra' only on rank 3"):
        names = ["bias", "weight", *(["extra"] if rank == 3 else [])]
        hvd.broadcast_parameters({name: torch.ones(1) for name in names}, root_rank=0)
    with raises(HorovodInternalError, "'bias': shapes differ"):
        hvd.broadcast_parameters({"bias": torch.ones(1 + rank % 2)}, root_rank=0)
    assert hvd.allreduce(torch.ones(3), name="weight").tolist() == [1, 1, 1]  # and all goes on


@check
def a_name_twice_at_once_is_refused() -> None:
    if hvd.rank() == 0:
        first = hvd.allreduce_async(torch.ones(1), name="twice")
        with raises(ValueError, "allreduce of 'twice'", "is going on"):
            hvd.allreduce_async(torch.ones(1), name="twice")
        assert not hvd.poll(first)
        hvd.barrier()
        hvd.synchronize(first)
    else:
        hvd.barrier()
        hvd.allreduce(torch.ones(1), name="twice")


@check
def ranks_that_wait_for_each_other_are_told() -> None:
    """Seconds later, and not after half an hour."""
    began = time.monotonic()
    with raises(HorovodInternalError, "wait for different operations", "rank 0 waits for allreduce of 'one'", "'other'"):
        hvd.allreduce(torch.ones(1), name="one" if hvd.rank() < 2 else "other")
    assert time.monotonic() - began < 120  # half an hour is what torch would take
    hvd.barrier()


@check
def process_sets() -> None:
    rank = hvd.rank()
    even, odd = hvd.add_process_set([0, 2]), hvd.add_process_set(hvd.ProcessSet([3, 1]))
    mine = even if rank % 2 == 0 else odd
    assert mine.included() and mine.size() == 2 and mine.rank() == rank // 2 and odd.ranks == [1, 3]
    for _ in range(1 + rank % 2):  # unnamed operations are counted by the set
        assert hvd.allreduce(torch.tensor([float(rank)]), process_set=mine).item() == (1 if mine is even else 2)
    assert hvd.allgather(torch.tensor([rank]), process_set=mine).tolist() == mine.ranks
    assert hvd.broadcast(torch.tensor([rank]), mine.ranks[1], process_set=mine).item() == mine.ranks[1]
    assert hvd.allgather_object(rank, process_set=mine) == mine.ranks
    assert hvd.alltoall(torch.tensor([rank, rank]), process_set=mine).tolist() == mine.ranks
    hvd.barrier(process_set=mine)
    assert hvd.allreduce(torch.tensor([1.0 * rank])).item() == 1.5
    with raises(ValueError, f"rank {rank} is not in ProcessSet"):
        hvd.allreduce(torch.ones(1), process_set=odd if mine is even else even)
    with raises(ValueError, "there is a process set of these ranks"):
        hvd.add_process_set([2, 0])
    with raises(ValueError, "there are ranks 0 to 3"):
        hvd.add_process_set([4])
    with raises(HorovodInternalError, "ranks of the process set differ: [0, 1] on rank 0"):
        hvd.add_process_set([0, 1] if rank == 0 else [1, 2])
    assert hvd.remove_process_set(odd) and not hvd.remove_process_set(hvd.global_process_set)
    with raises(ValueError, "was not added"):
        hvd.allreduce(torch.ones(1), process_set=odd)
    assert hvd.remove_process_set(even)


@check
def batch_norm_is_that_of_all_samples() -> None:
    """Ranks have different numbers of samples; output, running statistics and gradients are those of one process."""
    torch.manual_seed(5)
    data, wanted = torch.randn(10, 3, 2, dtype=torch.float64) * 5 + 100, torch.randn(10, 3, 2, dtype=torch.float64)
    lengths = [1, 2, 3, 4]
    start = sum(lengths[: hvd.rank()])
    mine = slice(start, start + lengths[hvd.rank()])
    alone, together = torch.nn.BatchNorm1d(3).double(), hvd.SyncBatchNorm(3).double()
    whole, part = data.clone().requires_grad_(), data[mine].clone().requires_grad_()
    expected = alone(whole)
    ((expected - wanted) ** 2).sum().backward()
    got = together(part)
    ((got - wanted[mine]) ** 2).sum().backward()
    assert torch.allclose(got, expected[mine]) and torch.allclose(part.grad, whole.grad[mine])
    assert torch.allclose(together.running_mean, alone.running_mean)
    assert torch.allclose(together.running_var, alone.running_var)
    gradient = hvd.allreduce(together.weight.grad, op=hvd.Sum)
    assert torch.allclose(gradient, alone.weight.grad) and together.num_batches_tracked == 1
    assert torch.allclose(together.eval()(part), alone.eval()(data)[mine])


# --- training --------------------------------------------------------------------------------------------------------

DATA = torch.randn(48, 6, generator=torch.Generator().manual_seed(1))
TARGETS = torch.randint(0, 3, (48,), generator=torch.Generator().manual_seed(2))
STEPS, PER_RANK = 4, 3  # samples of a rank in a step


def model_of(seed: int = 0) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def sgd(model: torch.nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01, **options)


def batches(step: int) -> torch.Tensor:
    """Samples of all ranks in a step."""
    return torch.arange(step * 12, step * 12 + 12)


def trained_alone(optimizer_of: Callable[[torch.nn.Module], torch.optim.Optimizer] = sgd) -> torch.nn.Module:
    """One process with all samples: what Horovod must give on many."""
    model = model_of()
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(model(DATA[batches(step)]), TARGETS[batches(step)]).backward()
        optimizer.step()
    return model


def trained(passes: int = 1, steps: int = STEPS, **options: Any) -> torch.nn.Module:
    """The ranks with their parts of the samples, in `passes` parts."""
    model = model_of(hvd.rank())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    named = list(model.named_parameters())
    if "groups" in options and options["groups"] == "listed":
        options["groups"] = [[named[0][1], named[3][1]], [named[1][1]]]
    optimizer = hvd.DistributedOptimizer(sgd(model), named, backward_passes_per_step=passes, **options)
    assert isinstance(optimizer, torch.optim.SGD) and optimizer.param_groups[0]["momentum"] == 0.9
    for step in range(steps):
        mine = batches(step)[hvd.rank() * PER_RANK : (hvd.rank() + 1) * PER_RANK]
        optimizer.zero_grad()
        for part in mine.chunk(passes):
            (F.cross_entropy(model(DATA[part]), TARGETS[part]) / passes).backward()
        optimizer.step()
    return model


def assert_same(one: torch.nn.Module, other: torch.nn.Module, tolerance: float = 1e-6) -> None:
    for (name, got), expected in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.allclose(got, expected, atol=tolerance), f"{name}: {(got - expected).abs().max()}"
        everywhere(got.detach())


@check
def training_is_that_of_one_process() -> None:
    alone = trained_alone()
    assert_same(trained(), alone)
    assert_same(trained(passes=3), alone)
    assert_same(trained(groups=2), alone)
    assert_same(trained(groups="listed", passes=3), alone)
    assert_same(trained(gradient_predivide_factor=4.0), alone)
    assert_same(trained(compression=hvd.Compression.fp16), alone, tolerance=5e-3)
    summed = trained_alone(lambda model: torch.optim.SGD(model.parameters(), lr=0.4))
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), op=hvd.Sum)
    for step in range(STEPS):
        mine = batches(step)[hvd.rank() * PER_RANK : (hvd.rank() + 1) * PER_RANK]
        optimizer.zero_grad()
        F.cross_entropy(model(DATA[mine]), TARGETS[mine]).backward()
        optimizer.step()
    assert_same(model, summed)


@check
def clipping_between_synchronize_and_step() -> None:
    model = model_of()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    F.cross_entropy(model(DATA[batches(0)]), TARGETS[batches(0)]).backward()
    optimizer.synchronize()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    with optimizer.skip_synchronize():
        optimizer.step()
    expected = model_of()
    F.cross_entropy(expected(DATA[batches(0)]), TARGETS[batches(0)]).backward()
    torch.nn.utils.clip_grad_norm_(expected.parameters(), 0.01)
    sgd(expected).step()
    assert_same(model, expected)
    F.cross_entropy(model(DATA[:2]), TARGETS[:2]).backward()
    optimizer.synchronize()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        optimizer.step()
    assert any("skip_synchronize" in str(one.message) for one in told)


@check
def wrong_moments_are_errors() -> None:
    model = model_of()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    model(DATA).sum().backward()
    with raises(AssertionError, "zero_grad() was called while gradients are being reduced"):
        optimizer.zero_grad()
    with raises(AssertionError, "more than 1 time(s)", "backward_passes_per_step"):
        model(DATA).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    with raises(ValueError, "1 parameter(s) of the optimizer are not in named_parameters"):
        hvd.DistributedOptimizer(sgd(model), list(model.named_parameters())[1:])
    with raises(ValueError, "names twice: a"):
        hvd.DistributedOptimizer(sgd(model), [("a", one) for one in model.parameters()])
    with raises(ValueError, "works with op=hvd.Average only"):
        hvd.DistributedOptimizer(sgd(model), gradient_predivide_factor=2.0, op=hvd.Sum)
    with raises(NotImplementedError, "Adasum"):
        hvd.DistributedOptimizer(sgd(model), op=hvd.Adasum)
    with raises(ValueError, "already"):
        hvd.DistributedOptimizer(optimizer)


@check
def unused_parameters_get_what_others_have() -> None:
    """Each step another half of the ranks uses the second layer; the last one nobody."""
    torch.manual_seed(0)
    layers = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layers.parameters(), lr=0.1), layers.named_parameters())
    before = [one.clone() for one in layers.parameters()]
    for step in range(2):
        optimizer.zero_grad()
        out = layers[0](torch.ones(1, 2))
        (layers[1](out) if hvd.rank() % 2 == step else out).sum().backward()
        optimizer.step()
        assert torch.equal(layers[2].weight.grad, torch.zeros(2, 2))
    for one in layers.parameters():
        everywhere(one.detach())
    changed = [not torch.equal(old, new) for old, new in zip(before, layers.parameters(), strict=True)]
    assert changed == [True, True, True, True, False, False]


@check
def sparse_gradients_with_ranks_that_have_none() -> None:
    def run(sparse: bool, **options: Any) -> torch.Tensor:
        torch.manual_seed(0)
        table = torch.nn.Embedding(10, 2, sparse=sparse)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters(), **options
        )
        for step in range(2):
            optimizer.zero_grad()
            if hvd.rank() != step:  # that rank has seen no word
                table(torch.tensor([hvd.rank(), 5, 5])).sum().backward()
            optimizer.step()
        everywhere(table.weight.detach())
        return table.weight.detach()

    dense = run(False)
    assert torch.allclose(run(True), dense) and torch.allclose(run(True, sparse_as_dense=True), dense)


@check
def frozen_and_added_parameters() -> None:
    model = model_of()
    model[0].requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model[2].parameters(), lr=0.1))
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.01})
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model(DATA[hvd.rank() * 4 :][:4]).sum().backward()
    optimizer.step()
    scheduler.step()
    for one in model.parameters():
        everywhere(one.detach())
    assert [round(group["lr"], 6) for group in optimizer.param_groups] == [0.01, 0.001]


@check
def closures() -> None:
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.LBFGS(model.parameters(), max_iter=4), model.named_parameters())
    mine = slice(hvd.rank() * 12, hvd.rank() * 12 + 12)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(DATA[mine]), TARGETS[mine])
        loss.backward()
        return hvd.allreduce(loss.detach())

    first = optimizer.step(closure)
    assert closure() < first
    optimizer.synchronize()
    for one in model.parameters():
        everywhere(one.detach())


@check
def optimizer_state_with_numbers() -> None:
    """Ranks that have no state get rank 1's: tensors, numbers, and options."""
    for kind, options in ((torch.optim.Adam, {"betas": (0.5, 0.6), "amsgrad": True}), (torch.optim.SGD, {"momentum": 0.3})):
        model = model_of()
        optimizer = kind(model.parameters(), lr=0.5 if hvd.rank() == 1 else 0.1, **(options if hvd.rank() == 1 else {}))
        optimizer.param_groups[0]["note"] = ("text", None, hvd.rank())
        if hvd.rank() == 1:
            model(DATA).sum().backward()
            optimizer.step()
            optimizer.state[model[0].weight]["a number"] = 7
        hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        group = optimizer.param_groups[0]
        assert group["lr"] == 0.5 and group["note"] == ("text", None, 1)
        assert all(group[name] == value for name, value in options.items())
        assert len(optimizer.state) == 4 and optimizer.state[model[0].weight]["a number"] == 7
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    everywhere(value)
    hvd.broadcast_optimizer_state(sgd(model_of()), root_rank=0)  # without any state


@check
def learning_rate_scaled_by_ranks() -> None:
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size()), model.named_parameters())
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: (epoch + 1) / 2)
    assert optimizer.param_groups[0]["lr"] == 0.02
    model(DATA).sum().backward()
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.04


@check
def uneven_data_with_join() -> None:
    """Rank r has r + 1 batches; who has none adds zeros, and averages are over all ranks."""
    rank = hvd.rank()
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    table = torch.nn.Embedding(4, 1, sparse=True)
    torch.nn.init.zeros_(table.weight)
    parameters = [*model.parameters(), *table.parameters()]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0))
    for batch in range(rank + 1):
        optimizer.zero_grad()
        (model(torch.ones(1, 1)) + table(torch.tensor([batch]))).sum().backward()
        optimizer.step()
        assert hvd.allgather(torch.tensor([rank]), name="who").tolist() == list(range(batch, 4))
    last = hvd.join()
    assert last == 3, last
    hvd.broadcast_parameters(model.state_dict(), root_rank=last)
    assert model.weight.item() == 1 - (4 + 3 + 2 + 1) / 4
    if rank == 3:
        assert table.weight.flatten().tolist() == [-1, -0.75, -0.5, -0.25]
    if rank == 0:  # others wait for what cannot go on with a rank that joined
        hvd.join()
    else:
        with raises(HorovodInternalError, "'highest'", "rank 0 joined", "max"):
            hvd.allreduce(torch.ones(1), name="highest", op=hvd.Max)
        with raises(HorovodInternalError, "'shares'", "rank 0 joined"):
            hvd.alltoall(torch.ones(4), name="shares")
        with raises(HorovodInternalError, "rank 0, joined"):
            hvd.broadcast(torch.ones(1), 0, name="nothing")
        assert hvd.broadcast(torch.tensor([rank]), 2, name="from another").item() == 2
        hvd.barrier()
        hvd.join()


@check
def torch_distributed_beside_horovod() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    value = torch.ones(1)
    handle = hvd.allreduce_async(value, op=hvd.Sum, name="beside")
    dist.all_reduce(value)
    assert value.item() == 4 and hvd.synchronize(handle).item() == 4
    dist.destroy_process_group()


@check
def names_that_are_not_served() -> None:
    with raises(AttributeError, "horovod.torch.start_timeline is not served: `trainshed profile`"):
        hvd.start_timeline("file")
    for module in ("tensorflow", "keras", "tensorflow.keras", "mxnet", "spark"):
        with raises(ImportError, "is not served: ", "install the real Horovod"):
            __import__(f"horovod.{module}")
    with raises(ImportError, "`train` starts the ranks"):
        __import__("horovod.run")


@check
def elastic_sampler() -> None:
    sampler = hvd.elastic.ElasticSampler(range(10), shuffle=True)
    sampler.set_epoch(3)
    dealt = hvd.allgather_object(list(sampler))
    assert len(sampler) == 3 and {index for part in dealt for index in part} == set(range(10))
    sampler.record_batch(0, 2)
    state = hvd.elastic.TorchState(sampler=sampler, epoch=3)
    state.sync()
    left = {index for part in hvd.allgather_object(list(sampler)) for index in part}
    assert len(left) == 2 and len(sampler) == 1 and not left & sampler.processed_indices


@check
def leaving_and_coming_back() -> None:
    hvd.shutdown()
    assert not hvd.is_initialized()
    with raises(ValueError, "call hvd.init() first"):
        hvd.rank()
    pair = hvd.ProcessSet([1, 2])
    hvd.init(process_sets=[pair])
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 4
    if pair.included():
        assert hvd.allgather(torch.tensor([hvd.rank()]), process_set=pair).tolist() == [1, 2]


def main() -> None:
    hvd.init()
    torch.set_num_threads(1)
    failed = False
    for one in CHECKS:
        try:
            one()
            print(f"CHECK {one.__name__} passed", flush=True)
        except Exception:
            failed = True
            trace = traceback.format_exc()
            print(f"CHECK {one.__name__} FAILED {trace!r}", flush=True)
            print(trace, file=sys.stderr, flush=True)
            break  # ranks are out of step now
    sys.exit(failed)


if __name__ == "__main__":
    main()
