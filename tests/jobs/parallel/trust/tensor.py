"""Tensor parallelism: models of many kinds train as in one process, what cannot be divided stays whole, and wrong parts of
others are found in the first step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from copy import deepcopy
from functools import partial
from io import BytesIO, StringIO
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import ranks
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

import trainshed.parallel as pipe
from trainshed.compat.smdistributed.modelparallel import torch as smp
from trainshed.compat.smdistributed.modelparallel.torch.utils import get_distribution_axis
from trainshed.parallel.engine.tensor import kinds
from trainshed.parallel.engine.tensor.division import Division
from trainshed.parallel.engine.tensor.gradient_averaging import Means

from .replicas import List, Routed, routed_batches
from .table import SECONDS, begin, case, long_case, refused, same
from .training import adam, check, language, one_process, sgd, slow_sgd, squared

WORDS = 13
Build = Callable[[], nn.Module]


def words(number: int, replica: int) -> tuple[torch.Tensor, ...]:
    return (torch.randint(0, WORDS, (4, 5), generator=torch.Generator().manual_seed(10 * number + replica)),)


def rows(number: int, replica: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(8, 6, generator=torch.Generator().manual_seed(10 * number + replica)),)


class Wrapped(nn.Module):
    """Linear, what is tried, Linear."""

    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 6), middle, nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.middle(self.first(x)).relu())


class Tied(nn.Module):
    """A head that shares the table's weight, whose 13 words make no equal parts."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.middle = nn.Embedding(WORDS, 6, padding_idx=9), nn.Linear(6, 6)
        self.head = nn.Linear(6, WORDS, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.middle(self.table(x)).tanh())


class Read(nn.Module):
    """A head that is the table's weight, read where it is not expected."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.middle = nn.Embedding(WORDS, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.middle(self.table(x))
        return F.linear(hidden @ self.middle.weight.t(), self.table.weight)


def trains(
    build: Build, divided: set[str] | None = None, batches: Any = rows, degree: int = 2, **options: Any
) -> pipe.PipelineModel:
    """Trains as one process does; these modules are divided."""
    model = check(build, batches, tensor_parallel_degree=degree, **options)
    names = {id(module): name for name, module in model.module.named_modules()}
    found = {names[id(module)] for module in model.distributed_modules()}
    assert divided is None or found == divided, found
    inside = [one for module in model.distributed_modules() for one in module.parameters(recurse=False)]
    assert {id(one) for one in inside} == {
        id(one) for one in model.module.parameters() if model.is_distributed_parameter(one)
    }
    for one in inside:
        assert isinstance(one, DTensor) and one.to_local().untyped_storage().nbytes() < 4 * one.numel()
    pipe.shutdown()
    return model


@case(ranks=2)
def a_tied_table_of_an_odd_size() -> None:
    trains(Tied, {"table", "middle", "head"}, words)
    trains(Tied, {"table", "middle", "head"}, words, optimizer=adam, tolerance=1e-4, verify_steps=1)


@case(ranks=2)
def weights_that_are_read_elsewhere_stay_whole() -> None:
    trains(Read, set(), words)

    def penalised(model: Any, x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean() + 0.1 * model.module.first.weight.norm()
        model.backward(loss)
        return loss

    trains(lambda: Wrapped(nn.Identity()), {"last"}, step=penalised)


@case(ranks=2)
def weights_that_are_made_of_others_stay_whole() -> None:
    trains(lambda: Wrapped(nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))), {"first", "last"})
    trains(lambda: Wrapped(nn.utils.weight_norm(nn.Linear(6, 6))), {"first", "last"})
    trains(lambda: Wrapped(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6))), {"first", "last"}, tolerance=1e-4)


class Later(nn.Module):
    """Reads another module's weight in evaluation alone."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) if self.training else F.linear(x, self.inner.weight)


@case(ranks=2)
def a_weight_that_is_read_later() -> None:
    model, _, _ = begun(Later)
    pipe.step(squared)(model, *rows(0, pipe.rank()))
    model.eval()
    with torch.no_grad():
        refused(lambda: model(*rows(0, pipe.rank())), "is read outside of its own module", "set_tensor_parallelism(")


class Attending(nn.Module):
    """torch's attention reads the weight of a Linear that it never calls."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x[None], x[None], x[None])[0][0]


class Scaled(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight * 2, self.bias)


@case(ranks=2)
def modules_that_nobody_knows_stay_whole() -> None:
    trains(lambda: Wrapped(Attending()), {"first", "last"})
    trains(lambda: Wrapped(Scaled(6, 6)), {"first", "last"})
    trains(lambda: nn.Sequential(nn.LayerNorm(6), nn.Tanh(), nn.PReLU(6)), set())


@case(ranks=2)
def few_features_stay_whole() -> None:
    trains(lambda: nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 1)), {"0"})


@case(ranks=2)
def settings_of_tables_that_need_all_words_stay_whole() -> None:
    for options in ({"scale_grad_by_freq": True}, {"max_norm": 1.0}):
        trains(lambda options=options: nn.Sequential(nn.Embedding(WORDS, 6, **options), nn.Linear(6, 3)), {"1"}, words)
    trains(lambda: nn.Sequential(nn.Embedding(WORDS, 6, padding_idx=2), nn.Linear(6, 3)), {"0", "1"}, words)


def _hooked() -> nn.Module:
    module = Wrapped(nn.Linear(6, 6))
    module.middle.register_forward_pre_hook(lambda _module, args: (args[0] * 2,))
    module.middle.register_forward_hook(lambda _module, args, output: output + args[0].sum(-1, keepdim=True))
    module.last.register_forward_hook(lambda one, args, output: output + F.linear(args[0], one.weight))
    module.first.weight.register_hook(lambda gradient: gradient * 3)
    return module


@case(ranks=2)
def hooks_see_what_is_whole() -> None:
    trains(_hooked, {"middle"}, optimizer=slow_sgd)


class Twice(nn.Module):
    """One Linear under two names, called three times; rows of one axis."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)
        self.b = self.a

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.a(self.b(one)) for one in x]) + self.b(x)


@case(ranks=2)
def one_module_under_two_names() -> None:
    trains(Twice, {"a"})


class Recomputed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 6)), reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


@case(ranks=2)
def forwards_that_run_again_in_the_backward() -> None:
    for reentrant in (False, True):
        trains(
            lambda reentrant=reentrant: Wrapped(Recomputed(reentrant)), {"first", "last", "middle.inner.0", "middle.inner.2"}
        )


class Several(nn.Module):
    """Linears that read one tensor, one after the other, without and with a gradient."""

    def __init__(self, again: bool = False) -> None:
        super().__init__()
        self.first, self.again = nn.Linear(6, 6), again
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        with torch.no_grad():
            before = self.a(x).sum()
        one = self.a(x)
        two = checkpoint(self.b, x, use_reentrant=False) if self.again else self.b(x)
        (inner,) = torch.autograd.grad(one.sum(), x, retain_graph=True) if self.training else (x,)
        found = (one * two)[:, :5] + self.c(x) + before + inner.detach().sum()
        return found + self.c(x.detach()) * self.c(x)


class Apart(nn.Module):
    """An input that is changed in place after frozen Linears have read it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.q, self.k, self.v = (nn.Linear(6, 6) for _ in range(4))
        self.q.requires_grad_(False)
        self.k.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x) * 2
        found = self.q(x) * self.k(x)
        x.mul_(0.5)
        return found + self.v(x)


@case(ranks=2)
def inputs_that_several_read() -> None:
    for again in (False, True):
        trains(lambda again=again: Several(again), {"first", "a", "b", "c"})


@case(ranks=2)
def gradients_of_one_input_are_summed_once() -> None:
    trains(Apart, {"first", "q", "k", "v"})
    model, _, _ = begun(Apart)
    pipe.step(squared)(model, *rows(0, pipe.rank()))
    with patch.object(kinds, "entering", side_effect=kinds.entering) as entering:
        pipe.step(squared)(model, *rows(1, pipe.rank()))
    # In each of two microbatches of both ranks: what came in, its first layer's result, that changed.
    assert entering.call_count == 3 * 2 * 2


@case(ranks=2)
def buffers_that_a_forward_changes() -> None:
    trains(lambda: Wrapped(nn.BatchNorm1d(6)), {"first", "last"}, steps=1, parts=1, batches=lambda n, _r: rows(n, 0))


@case(ranks=2)
def routes_of_each_batch() -> None:
    trains(lambda: Routed(5, 5, 5, 5), None, routed_batches)
    trains(List, None, routed_batches)


@case(ranks=2)
def parameters_that_thaw_later() -> None:
    def thaw(number: int, module: nn.Module) -> None:
        module.first.requires_grad_(number > 0)

    trains(lambda: Wrapped(nn.Linear(6, 6)), {"first", "middle", "last"}, between=thaw)


@case(ranks=2)
def modules_that_the_script_excludes_or_names() -> None:
    def excluding() -> nn.Module:
        module = Wrapped(nn.Linear(6, 6))
        pipe.set_tensor_parallelism(module.middle, False)
        return module

    def naming() -> nn.Module:
        with pipe.tensor_parallelism():
            middle = nn.Sequential(nn.Linear(6, 6))
        return Wrapped(middle)

    trains(excluding, {"first", "last"})
    trains(naming, {"middle.0"})
    trains(lambda: Wrapped(nn.Linear(6, 6)), {"first", "last"}, atomic=("middle",))


@case(ranks=2)
def a_rank_of_a_tensor_group_that_fails_is_heard_at_once() -> None:
    begin(tensor_parallel_degree=2, prescaled_batch=True)
    model = pipe.PipelineModel(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), OnOne(), nn.Linear(4, 4)))
    run = pipe.step(squared)
    run(model, torch.ones(8, 4))
    model.module[2].fails = pipe.rank() == 1
    try:
        run(model, torch.ones(8, 4))
        raise AssertionError("the step did not fail")
    except (ValueError, pipe.PipelineError) as error:
        assert "the disk is full" in str(error), error
        assert "imed out" not in str(getattr(error, "details", "")), error
    path = ranks.folder() / "tensor-failed"
    pipe.save_checkpoint(path, model)  # what was trained can still be saved


class OnOne(nn.Module):
    fails = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fails:
            raise ValueError("the disk is full")
        return x


@case(ranks=2)
def optimizers_of_many_tensors_at_once() -> None:
    for options in ({"foreach": True}, {"fused": True}):
        trains(
            lambda: Wrapped(nn.LayerNorm(6)),
            {"first", "last"},
            optimizer=partial(torch.optim.AdamW, lr=0.05, **options),
            tolerance=1e-4,
        )


def begun(build: Build = Tied, optimizer: Any = sgd, **settings: Any) -> tuple[pipe.PipelineModel, Any, StringIO]:
    begin(**{"tensor_parallel_degree": 2, "microbatches": 2, "verify": "changes", **settings})
    torch.manual_seed(3)
    model = pipe.PipelineModel(build())
    return model, pipe.PipelineOptimizer(optimizer(model.parameters())), StringIO()


class ByHand:
    """An optimizer that assigns `data`, as scripts do; whole tensors every second time."""

    def __init__(self, parameters: Iterator[nn.Parameter]) -> None:
        self.param_groups = [{"params": list(parameters)}]
        self.state: dict[Any, Any] = {}

    def zero_grad(self, set_to_none: bool = True) -> None:
        for one in self.param_groups[0]["params"]:
            one.grad = None

    def step(self) -> None:
        for number, one in enumerate(self.param_groups[0]["params"]):
            found = one.data - 0.5 * one.grad
            one.data = _whole(found) if number % 2 else found


@case(ranks=2)
def data_that_is_assigned() -> None:
    trains(lambda: Wrapped(nn.LayerNorm(6)), {"first", "last"}, optimizer=ByHand)
    model, _, _ = begun(Later)
    pipe.step(squared)(model, *rows(0, pipe.rank()))
    weight = model.module.inner.weight
    for value in (weight.data.double(), torch.zeros(3, 3)):
        refused(lambda value=value: setattr(weight, "data", value), "another shape, type or placement")
    torch.testing.assert_close(_whole(deepcopy(weight)), _whole(weight))


@case(ranks=2)
def what_is_divided_is_said() -> None:
    model, _, said = begun(Read)
    with redirect_stdout(said):
        pipe.step(squared)(model, *words(0, 0))
    if pipe.rank() == 0:
        assert "tensor parallelism: 0.0 % of 120 parameters are divided among 2 ranks" in said.getvalue()
        assert "'table': weight is also read by linear() outside of its own forward" in said.getvalue()


@case(ranks=2)
def a_batch_of_its_own_where_all_have_one() -> None:
    model, _, _ = begun(prescaled_batch=True)
    refused(lambda: pipe.step(squared)(model, *words(0, pipe.rank())), "was given another batch", "rdp_rank()")


@case(ranks=2)
def a_batch_that_is_no_argument() -> None:
    model, _, _ = begun(verify="off")
    x = words(0, pipe.rank())[0]

    @pipe.step
    def train(model: Any) -> torch.Tensor:
        return squared(model, x)

    refused(lambda: train(model), "a module ('table') had another input", "give it as an argument")
    assert all(parameter.grad is None for parameter in model.parameters())


@case(ranks=2)
def calls_outside_of_a_step() -> None:
    model, _, _ = begun()
    pipe.step(squared)(model, *words(0, pipe.rank()))
    with torch.no_grad():
        refused(lambda: model.module(*words(0, 0)), "outside a step")
        refused(lambda: model.module.middle(torch.randn(2, 6)), "'middle' is called outside a step")
        found = model(words(0, pipe.rank())[0])
    whole = Tied()
    whole.load_state_dict(model.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(found, whole(words(0, pipe.rank())[0]))


@case(ranks=2)
def parameters_of_before_the_first_step() -> None:
    begin(tensor_parallel_degree=2, microbatches=2)
    module = Tied()
    update = torch.optim.SGD(module.parameters(), lr=0.1)
    model = pipe.PipelineModel(module)
    pipe.step(squared)(model, *words(0, pipe.rank()))
    refused(update.step, "was divided among ranks", "PipelineOptimizer")


@case(ranks=2)
def gradients_add_up_over_steps() -> None:
    begin(microbatches=2, tensor_parallel_degree=2)
    batches = lambda number, replica: words(0, replica)  # noqa: E731
    expected = one_process(Tied, batches, 2, 2, 1, lambda *_: None, lambda ps: torch.optim.SGD(ps, lr=1.0))
    torch.manual_seed(3)
    model = pipe.PipelineModel(Tied())
    update = pipe.PipelineOptimizer(torch.optim.SGD(model.parameters(), lr=0.5))
    for _ in range(2):
        pipe.step(squared)(model, *words(0, pipe.rank()))
    update.step()
    same(model.state_dict(), expected)


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@case(ranks=2)
def norms_of_all_kinds() -> None:
    model, _, _ = begun(lambda: Wrapped(nn.LayerNorm(6)))
    pipe.step(squared)(model, *rows(0, pipe.rank()))
    whole = [_whole(one.grad).clone() for one in model.parameters()]
    for kind in (1.0, 2.0, 3.0, float("inf")):
        expected = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(one, kind) for one in whole]), kind)
        torch.testing.assert_close(nn.utils.get_total_norm([p.grad for p in model.parameters()], kind), expected)
        torch.testing.assert_close(nn.utils.clip_grad_norm_(model.parameters(), 1e9, kind), expected)
    nn.utils.clip_grad_norm_(model.parameters(), 0.5 * float(expected), float("inf"))
    for one, before in zip(model.parameters(), whole, strict=True):
        torch.testing.assert_close(_whole(one.grad), before * 0.5, rtol=1e-4, atol=1e-7)


@case(ranks=4)
def two_groups_with_shared_states() -> None:
    for settings in ({}, {"shard_optimizer_state": True}, {"placement_strategy": "spread"}):
        trains(Tied, None, words, optimizer=adam, tolerance=1e-4, **settings)
    trains(lambda: Wrapped(nn.Linear(6, 6)), None, degree=4)


@case(ranks=4)
def the_numbers_of_ranks() -> None:
    begin(tensor_parallel_degree=2)
    rank = pipe.rank()
    assert (pipe.tp_rank(), pipe.tp_size()) == (rank % 2, 2)
    assert (pipe.rdp_rank(), pipe.rdp_size()) == (rank // 2, 2)
    assert (pipe.dp_rank(), pipe.dp_size()) == (rank, 4)
    assert dist.get_process_group_ranks(pipe.tp_group()) == [rank - rank % 2, rank - rank % 2 + 1]
    pipe.shutdown()
    begin(tensor_parallel_degree=2, placement_strategy="spread")
    assert (pipe.tp_rank(), pipe.rdp_rank()) == (rank // 2, rank % 2)
    pipe.shutdown()
    refused(lambda: begin(tensor_parallel_degree=3), "tensor_parallel_degree = 3 does not divide 4 ranks")


class Block(nn.Module):
    """Of a GPT, with dropout in the attention as well, and a width that makes no equal parts."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.before, self.after = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width, bias=False)
        self.up, self.down, self.drop = nn.Linear(width, 4 * width + 1), nn.Linear(4 * width + 1, width), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.attention(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0.0, is_causal=True)
        x = x + self.drop(self.out(found.transpose(1, 2).flatten(-2)))
        return x + self.drop(self.down(F.gelu(self.up(self.after(x)))))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(53, 12), nn.Embedding(8, 12)
        self.blocks, self.norm = nn.ModuleList(Block(12, 3) for _ in range(2)), nn.LayerNorm(12)
        self.head = nn.Linear(12, 53, bias=False)
        self.head.weight = self.words.weight

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
        x = self.words(input_ids) + self.places(torch.arange(8))
        for block in self.blocks:
            x = block(x)
        found = self.head(self.norm(x))
        return SimpleNamespace(loss=F.cross_entropy(found[:, :-1].flatten(0, 1), labels[:, 1:].flatten()))


def _llama(layers: int = 1) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 24, "intermediate_size": 31, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=53, num_hidden_layers=layers, attention_dropout=0.1, **sizes))


def _bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    sizes = {"hidden_size": 24, "intermediate_size": 31, "num_attention_heads": 4, "max_position_embeddings": 8}
    return BertForMaskedLM(BertConfig(vocab_size=53, num_hidden_layers=1, **sizes))


def with_dropout(build: Build, share: float, degree: int = 2, steps: int = 20, **settings: Any) -> pipe.PipelineModel:
    """With dropout and clipping, each batch drawing from the generator of its replica.

    Args:
        share: of the parameters that are divided, at least.
    """
    begin(tensor_parallel_degree=degree, **settings)
    own = not pipe.Settings(**settings).prescaled_batch
    count, mine = (pipe.dp_size(), pipe.dp_rank()) if own else (pipe.rdp_size(), pipe.rdp_rank())

    def batch(number: int, replica: int) -> torch.Tensor:
        return torch.randint(1, 53, (2, 8), generator=torch.Generator().manual_seed(100 * number + replica))

    def made(kind: Build) -> tuple[nn.Module, Any]:
        torch.manual_seed(3)
        module = kind().train()
        return module, torch.optim.AdamW(module.parameters(), lr=1e-3)

    module, update = made(build)
    generators = [torch.Generator().manual_seed(7 + replica).get_state() for replica in range(count)]
    expected = []
    for number in range(steps):
        update.zero_grad()
        losses = []
        for replica in range(count):
            torch.set_rng_state(generators[replica])
            loss = module(input_ids=batch(number, replica), labels=batch(number, replica)).loss
            (loss / count).backward()
            losses.append(float(loss))
            generators[replica] = torch.get_rng_state()
        expected.append([losses[mine], float(nn.utils.clip_grad_norm_(module.parameters(), 0.5))])
        update.step()

    divided, update = made(build)
    model, update = pipe.PipelineModel(divided), pipe.PipelineOptimizer(update)
    torch.manual_seed(7 + mine)

    train, found = pipe.step(language), []
    for number in range(steps):
        update.zero_grad()
        loss = train(model, batch(number, mine)).reduce_mean()
        found.append([float(loss), float(nn.utils.clip_grad_norm_(model.parameters(), 0.5))])
        update.step()
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-6, atol=0)
    parts = sum(one.numel() for one in model.parameters() if model.is_distributed_parameter(one))
    assert parts > share * sum(one.numel() for one in model.parameters())
    assert list(model.state_dict()) == list(module.state_dict())
    assert len(update.state_dict()["state"]) == len(list(module.parameters()))
    pipe.shutdown()
    return model


@long_case(ranks=2)
def models_with_dropout(steps: int) -> None:
    with_dropout(Gpt, 0.95, steps=steps, prescaled_batch=True)
    for build in (_llama, _bert):
        with_dropout(build, 0.9, steps=steps)


@long_case(ranks=4, heavy=True)
def replicas_of_models_with_dropout(steps: int) -> None:
    with_dropout(Gpt, 0.95, steps=steps, prescaled_batch=True)
    with_dropout(Gpt, 0.95, steps=steps)


@case(ranks=2)
def names_and_states_of_amazons_library() -> None:
    settings = {"partitions": 1, "tensor_parallel_degree": 2, "prescaled_batch": True, "ddp": False, "microbatches": 2}

    def trained(numbers: range, states: Any = None) -> tuple[Any, Any, list[float]]:
        smp.init({**settings, "timeout_seconds": SECONDS})
        torch.manual_seed(3)
        with smp.model_creation(tensor_parallelism=True):
            module = Tied()
        model = smp.DistributedModel(module)
        update = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.05))
        if states is not None:
            model.load_state_dict(states[0])
            update.load_state_dict(states[1])
        losses = []
        for number in numbers:
            update.zero_grad()
            losses.append(float(smp.step(squared)(model, *words(number, 0)).reduce_mean()))
            update.step()
        return model, update, losses

    model, update, losses = trained(range(4))
    rank = smp.rank()
    assert (smp.tp_rank(), smp.tp_size(), smp.mp_rank(), smp.mp_size()) == (rank, 2, rank, 2)
    assert (smp.rdp_rank(), smp.rdp_size(), smp.dp_rank(), smp.dp_size()) == (0, 1, rank, 2)
    assert smp.get_tp_group() == smp.get_mp_group() == [0, 1] and smp.get_rdp_group() == [rank]
    assert smp.allgather(rank, smp.TP_GROUP) == [0, 1]
    assert [get_distribution_axis(one) for one in model.parameters()] == [0, 0, 0]
    assert len(list(model.distributed_modules())) == 3
    smp.shutdown()
    model, update, first = trained(range(2))
    kept = BytesIO()
    torch.save((model.local_state_dict(), update.local_state_dict()), kept)
    smp.shutdown()
    kept.seek(0)
    *_, rest = trained(range(2, 4), torch.load(kept, weights_only=False))
    torch.testing.assert_close(torch.tensor(first + rest), torch.tensor(losses))


# Defects that are planted one at a time: each is found before the first optimizer step.


def wrong_is_found(change: Any, *words_: str, steps: int = 1, **settings: Any) -> None:
    """The last of `steps` steps, which runs with this change, is refused with these words; no gradient is left."""
    model, _, _ = begun(lambda: nn.Sequential(nn.Embedding(WORDS, 6), nn.LayerNorm(6), nn.Linear(6, 5)), **settings)
    train = pipe.step(squared)
    for _ in range(steps - 1):
        train(model, *words(0, pipe.rank()))
        model.zero_grad()
    with change:
        refused(lambda: train(model, *words(0, pipe.rank())), "is not right, no parameter was changed", *words_)
    assert all(parameter.grad is None for parameter in model.parameters())
    pipe.shutdown()


@case(ranks=2)
def parts_of_another_rank_are_found() -> None:
    native = Division.part_of

    def swapped(division: Division, old: nn.Parameter, axis: int) -> nn.Parameter:
        return native(division, nn.Parameter(old.detach().flip(axis)), axis)

    wrong_is_found(patch.object(Division, "part_of", swapped), "parameter '0.weight'", "is not the model's own")


@case(ranks=2)
def a_sum_that_is_left_out_is_found() -> None:
    entering = patch.object(kinds, "entering", lambda x, _mesh: x)
    wrong_is_found(entering, "the gradient of '")
    wrong_is_found(entering, "the gradient of '", steps=2, verify_steps=1)


@case(ranks=2)
def outputs_that_are_gathered_in_another_order_are_found() -> None:
    native = kinds.gathered
    wrong_is_found(
        patch.object(kinds, "gathered", lambda *args: native(*args).roll(1, -1)), "module '2'", "gave another output"
    )


@case(ranks=2)
def words_that_are_not_found_anywhere_are_found() -> None:
    wrong_is_found(patch.object(kinds, "start_of", lambda *_: 0), "module '0'", "gave another output")


@case(ranks=2)
def means_that_are_not_taken_are_found() -> None:
    def doubled(means: Means) -> None:
        for parameter in means._trained:
            parameter.grad = parameter.grad * 2
        means.put_back()

    wrong_is_found(patch.object(Means, "finish", doubled), "the gradient of '", "it is 2 times")


def _curve(path: str, degree: int, first: int, last: int, build: Build) -> Iterator[float]:
    model, update, _ = begun(build, adam, tensor_parallel_degree=degree, prescaled_batch=degree > 1)
    if first:
        assert pipe.load_checkpoint(path, model, update) == {"step": first}
    for number in range(first, last):
        update.zero_grad()
        yield float(pipe.step(squared)(model, *words(number, 0)).reduce_mean())
        update.step()
    pipe.save_checkpoint(path, model, update, {"step": last})
    model.save_weights(path + "-weights")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    model.load_weights(path + "-weights")
    same(model.state_dict(), before, 0.0)
    pipe.shutdown()


def goes_on(build: Build, *degrees: int) -> None:
    """Trains two steps with each degree, which goes on from the checkpoint of the one before."""
    path = str(ranks.folder() / build.__name__ / f"{dist.get_world_size()} ranks")
    expected = list(_curve(path + "-whole", 1, 0, 2 * len(degrees), build))
    found = [loss for at, degree in enumerate(degrees) for loss in _curve(path, degree, 2 * at, 2 * at + 2, build)]
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-5, atol=0)


@case(ranks=2)
def a_checkpoint_goes_on_with_another_degree() -> None:
    goes_on(Tied, 2, 1, 2)
