"""Pairs of Linears between which nothing is gathered: whatever a model does between them, it trains as in one process."""

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
from trainshed.parallel.engine.tensor import op_rules as part_rules
from trainshed.parallel.engine.tensor import sharded_tensor as part
from trainshed.parallel.engine.tensor.sharded_tensor import Part

from .table import case, refused
from .tensor import WORDS, Build, begun, goes_on, with_dropout
from .training import adam, check, language, sgd, slow_sgd, squared

Between = Callable[[Any, torch.Tensor], torch.Tensor]


def rows(number: int, replica: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(10 * number + replica)),)


class Mlp(nn.Module):
    """Code between two Linears."""

    def __init__(self, between: Between, width: int = 12, **parts: nn.Module) -> None:
        super().__init__()
        self.up, self.down, self.between = nn.Linear(8, width), nn.Linear(width, 8), between
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, width))
        self.one = nn.Parameter(torch.tensor(0.7))
        for name, module in parts.items():
            self.add_module(name, module)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.between(self, self.up(x)))


class Heads(nn.Module):
    """Attention with q, k and v of their own; fewer heads of keys where `shared` are named."""

    def __init__(self, heads: int = 4, shared: int = 0, how: str = "eager", width: int = 4) -> None:
        super().__init__()
        self.heads, self.shared, self.how, self.width = heads, shared or heads, how, width
        self.q, self.k = nn.Linear(8, heads * width), nn.Linear(8, self.shared * width)
        self.v, self.out = nn.Linear(8, self.shared * width), nn.Linear(heads * width, 8)
        self.q_norm, self.temper = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(heads, 1, 1))
        self.bias = nn.Parameter(torch.zeros(1, heads, 5, 5))
        self.kept: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, places, _ = x.shape
        q = self.q(x).view(batch, places, self.heads, self.width)
        k = self.k(x).view(batch, places, self.shared, self.width).transpose(1, 2)
        v = self.v(x).view(batch, places, -1, self.width).transpose(1, 2)
        q = (q * torch.rsqrt(q.pow(2).mean(-1, keepdim=True) + 1e-6) * self.q_norm).transpose(1, 2)
        angle = torch.arange(places)[:, None] * torch.ones(self.width)
        half = torch.cat([-q[..., self.width // 2 :], q[..., : self.width // 2]], dim=-1)
        q = q * angle.cos() + half * angle.sin()
        if self.shared < self.heads and self.how != "grouped":
            times = self.heads // self.shared
            k, v = (
                one[:, :, None].expand(batch, self.shared, times, places, self.width).reshape(batch, self.heads, places, -1)
                for one in (k, v)
            )
        found = self.attend(q, k, v).transpose(1, 2).contiguous()
        return x + self.out(found.reshape(batch, places, -1))

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(5, 5).tril().bool()[None, None]
        if self.how != "eager":
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=self.how == "grouped")
        scores = torch.matmul(q, k.transpose(2, 3)) * self.width**-0.5 * self.temper
        scores += self.bias
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).type_as(scores)
        return torch.matmul(F.dropout(weights, 0.2, self.training), v)


def trains(
    build: Build, opened: str, closed: str, batches: Any = rows, degree: int = 2, **options: Any
) -> pipe.PipelineModel:
    """Trains as one process does; these modules make pairs."""
    model = check(build, batches, tensor_parallel_degree=degree, **options)
    found = tuple(" ".join(sorted(names)) for names in model.engine.division.in_pairs())
    assert found == (opened, closed), found
    pipe.shutdown()
    return model


def pair(between: Between, **options: Any) -> None:
    """Both Linears make a pair, with and without a batch for all."""
    for prescaled in (False, True):
        trains(lambda: Mlp(between), "up", "down", prescaled_batch=prescaled, **options)


def whole(between: Between, **options: Any) -> None:
    """The first Linear's results are gathered."""
    trains(lambda: Mlp(between), "", "", **options)


@case(ranks=2)
def functions_of_each_place() -> None:
    pair(lambda _m, x: F.gelu(x))
    pair(lambda _m, x: 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.04 * torch.pow(x, 3.0)))))
    pair(lambda m, x: x.clamp(min=-0.3).mul_(m.one).relu_() - m.scale, optimizer=slow_sgd)
    pair(lambda m, x: torch.where(x > 0, x, m.scale * x))
    pair(lambda m, x: torch.addcmul(m.scale, x, x.sigmoid(), value=0.5))
    pair(lambda _m, x: x.flatten(0, 1).view(x.shape).clone())
    pair(lambda _m, x: torch.stack([x, x.tanh()], 0).sum(0))


@case(ranks=2, heavy=True)
def parameters_between_that_need_gradients() -> None:
    pair(lambda m, x: x * m.scale, verify_steps=1)
    pair(lambda m, x: (m.scale * m.one) * x.tanh() + m.one)
    pair(lambda m, x: F.relu(x, inplace=True) * m.scale.view(1, 1, -1))
    trains(lambda: Mlp(lambda m, x: F.prelu(x.tanh(), m.prelu.weight), prelu=nn.PReLU(5)), "", "")


def drawn(number: int, module: nn.Module) -> None:
    torch.manual_seed(20 + number)


@case(ranks=2)
def random_numbers_between() -> None:
    options = {"between": drawn, "parts": 1, "prescaled_batch": True}
    trains(lambda: Mlp(lambda m, x: F.dropout(x.tanh(), 0.3, m.training)), "up", "down", **options)
    trains(lambda: Mlp(lambda m, x: m.drop(x), drop=nn.Dropout(0.3, inplace=True)), "up", "down", **options)
    trains(lambda: Mlp(lambda m, x: F.dropout(x.transpose(0, 1), 0.3).transpose(0, 1)), "up", "down", **options)
    trains(lambda: Mlp(lambda m, x: F.alpha_dropout(x, 0.3, m.training)), "", "", **options)
    trains(lambda: Mlp(lambda m, x: x + torch.rand_like(x)), "", "", **options)
    trains(
        lambda: Mlp(lambda m, x: x * torch.rand(x.shape) * torch.bernoulli(torch.full((12,), 0.5))), "up", "down", **options
    )


@case(ranks=2, heavy=True)
def functions_of_all_features() -> None:
    whole(lambda m, x: F.layer_norm(x, (12,), m.scale))
    whole(lambda _m, x: x.softmax(-1))
    whole(lambda _m, x: x * x.mean(-1, keepdim=True).sigmoid())
    whole(lambda _m, x: x / x.norm())
    whole(lambda _m, x: x.flip(-1))
    whole(lambda _m, x: x.cumsum(-1))
    whole(lambda _m, x: torch.cat([x[..., 6:], x[..., :6]], -1))
    whole(lambda _m, x: x.view(4, 5, 3, 4).softmax(2).view(4, 5, 12) if len(x) == 4 else x.sort(-1)[0])
    whole(lambda m, x: F.linear(x, m.scale.diag()))
    whole(lambda _m, x: x.view(-1).view(12, -1).t().reshape(x.shape).roll(1, -1))
    whole(lambda _m, x: x[..., torch.arange(11, -1, -1)])
    whole(lambda _m, x: torch.einsum("bsf,bsf->bsf", x, x))


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x.abs().sum()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x.abs().sum() + (gradient * x).sum() * x.sign()


@case(ranks=2)
def code_that_looks_at_values() -> None:
    whole(lambda _m, x: x * 2 if x.max() > 0.7 else x)
    whole(lambda _m, x: x * x.abs().mean().item())
    whole(lambda _m, x: x + torch.from_numpy(x.detach().numpy()).abs())
    whole(lambda _m, x: x * (1 + (x.data_ptr() == 0)))
    whole(lambda _m, x: x + x.new_tensor(x.tolist()))
    whole(lambda _m, x: Double.apply(x) * 0.01)
    whole(lambda _m, x: x * float(f"{x.sum():.2f}") * 0.1)
    whole(lambda _m, x: torch.autograd.grad((x**2).sum(), x, create_graph=True)[0] if x.requires_grad else 2 * x)


@case(ranks=2, heavy=True)
def changes_in_place_through_views() -> None:
    def part_of_it(_m: Any, x: torch.Tensor) -> torch.Tensor:
        x = x * 1
        x[..., :3] *= 2
        return x

    def some_features(_m: Any, x: torch.Tensor) -> torch.Tensor:
        x = x * 1
        x.narrow(-1, 0, 5).mul_(3)
        return x

    def a_row(_m: Any, x: torch.Tensor) -> torch.Tensor:
        x = x * 1
        x[0].mul_(3)
        x.view(-1, 12).add_(1)
        return x

    def sets_rows(_m: Any, x: torch.Tensor) -> torch.Tensor:
        x = x * 1
        x[:, 0] = 0.5
        return x

    whole(part_of_it)
    whole(some_features)
    whole(sets_rows)
    pair(a_row)


@case(ranks=2, heavy=True)
def what_leaves_sideways() -> None:
    class Keeps(Mlp):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found = self.up(x)
            self.seen = found.relu()
            return self.down(found.tanh())

    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Keeps(lambda _m, x: x)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) + self.inner.seen.mean()

    trains(Reads, "", "")
    whole(lambda m, x: setattr(m, "seen", x.detach()) or x)

    def hooked() -> nn.Module:
        module = Mlp(lambda m, x: m.act(x), act=nn.Tanh())
        seen: list[Any] = []
        module.act.register_forward_hook(lambda _m, _args, output: seen.append(output))
        module.seen = seen
        return module

    trains(hooked, "", "")

    def changing() -> nn.Module:
        module = Mlp(lambda m, x: m.act(x), act=nn.Tanh())
        module.act.register_forward_hook(lambda _m, args, output: output + args[0] * 2)
        module.up.register_forward_hook(lambda _m, args, output: output * 2)
        module.down.register_forward_pre_hook(lambda _m, args: (args[0] + 1,))
        return module

    trains(changing, "up", "down")

    def backwards() -> nn.Module:
        module = Mlp(lambda m, x: m.act(x), act=nn.Tanh())
        module.act.register_full_backward_hook(lambda _m, _given, found: (found[0] * 2,))
        return module

    trains(backwards, "", "")
    whole(lambda _m, x: _hooked(x * 1))

    class Both(Mlp):
        def forward(self, x: torch.Tensor) -> Any:
            found = self.up(x)
            return self.down(found.relu()), found

    def of_both(model: Any, x: torch.Tensor) -> Any:
        found, inner = model(x)
        loss = found.square().mean() + inner.square().mean()
        model.backward(loss)
        return loss

    trains(lambda: Both(lambda _m, x: x), "", "", step=of_both)


def _hooked(x: torch.Tensor) -> torch.Tensor:
    if x.requires_grad:
        x.register_hook(lambda gradient: gradient / (1 + gradient.norm()))
    return x


@case(ranks=2)
def code_that_one_rank_runs() -> None:
    def logs(_m: Any, x: torch.Tensor) -> torch.Tensor:
        if pipe.rank() == 0:
            str(x)
        return x.tanh()

    whole(logs)


@case(ranks=2)
def what_is_not_the_same_on_all_ranks() -> None:
    for between in (lambda m, x: x * (1.0 + m.own), lambda m, x: x + torch.full((12,), float(m.own))):
        model, _, _ = begun(lambda between=between: Mlp(between), verify="off")
        model.module.own = 0
        pipe.step(squared)(model, *rows(0, pipe.rank()))
        model.module.own = pipe.rank()
        refused(lambda model=model: pipe.step(squared)(model, *rows(1, pipe.rank())), "'up') had another input on rank 1")
        pipe.shutdown()


@case(ranks=2)
def forwards_without_gradients() -> None:
    model, _, _ = begun(lambda: Mlp(lambda m, x: F.gelu(x) * m.scale))
    pipe.step(squared)(model, *rows(0, pipe.rank()))
    alone = Mlp(lambda m, x: F.gelu(x) * m.scale)
    alone.load_state_dict(model.state_dict())
    for without in (torch.no_grad, torch.inference_mode):
        with without():
            torch.testing.assert_close(model(*rows(1, pipe.rank())), alone(*rows(1, pipe.rank())))
    pipe.shutdown()


class Route(Mlp):
    """Goes another way in later steps, and in evaluation."""

    later = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.up(x)
        if self.later:
            found = found.softmax(-1) * found.max()
        return x + self.down(found.tanh()) + (self.down(self.scale) if self.later else 0)


@case(ranks=2)
def ways_of_later_steps() -> None:
    def later(number: int, module: Any) -> None:
        module.later = number > 0

    trains(lambda: Route(lambda _m, x: x), "up", "down", between=later)
    trains(lambda: Route(lambda _m, x: x), "up", "down", between=later, verify="changes", verify_steps=1)

    class Kept(Mlp):
        later = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found = self.up(x)
            if self.later:
                found[:, 0] = 1.0
            return self.down(found.tanh())

    model, _, _ = begun(lambda: Kept(lambda _m, x: x))
    pipe.step(squared)(model, *rows(0, pipe.rank()))
    model.module.later = True
    refused(lambda: pipe.step(squared)(model, *rows(1, pipe.rank())), "'up' gave is divided among ranks, and __setitem__()")


@case(ranks=2)
def values_that_are_read_after_the_step() -> None:
    class Keeps(Mlp):
        later = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found = self.up(x)
            if self.later:
                self.seen = found
            return self.down(found.tanh())

    model, _, _ = begun(lambda: Keeps(lambda _m, x: x))
    pipe.step(squared)(model, *rows(0, pipe.rank()))
    model.module.later = True
    pipe.step(squared)(model, *rows(1, pipe.rank()))
    assert model.module.seen.shape == (2, 5, 12)
    refused(lambda: model.module.seen.sum(), "'up' gave is divided among ranks, and it is read outside the step")


@case(ranks=2)
def sizes_that_do_not_divide() -> None:
    for width in (3, 7, 31):
        trains(lambda width=width: Mlp(lambda m, x: x.tanh() * m.scale, width), "up", "down")
    options: Any = {"between": drawn, "parts": 1, "prescaled_batch": True, "optimizer": slow_sgd}
    trains(lambda: Heads(3), "", "", **options)
    trains(lambda: Heads(6, 3), "q", "out", **options)


@case(ranks=2)
def heads_of_attention() -> None:
    options: Any = {"between": drawn, "parts": 1, "prescaled_batch": True, "optimizer": slow_sgd}
    trains(Heads, "k q v", "out", **options)
    trains(lambda: Heads(4, 2), "k q v", "out", **options)
    trains(lambda: Heads(4, 1), "q", "out", **options)
    for how in ("torch", "grouped"):
        trains(lambda how=how: Heads(4, 2, how), "k q v", "out", **options)
        trains(lambda how=how: Heads(4, 1, how), "q" if how == "torch" else "", "out" if how == "torch" else "", **options)


@case(ranks=2, heavy=True)
def several_of_a_kind() -> None:
    class Gated(Mlp):
        def __init__(self) -> None:
            super().__init__(lambda _m, x: x)
            self.gate = nn.Linear(8, 12, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(F.silu(self.gate(x)) * self.up(x))

    trains(Gated, "gate up", "down")
    trains(lambda: nn.Sequential(*(nn.Linear(8, 8) for _ in range(5))), "0 2", "1 3")

    class Twice(Mlp):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(self.up(x).tanh()) + self.down(self.up(x.tanh()))

    trains(lambda: Twice(lambda _m, x: x), "up", "down")

    class Mixed(Mlp):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(self.up(x).tanh()) + self.down(torch.cat([x, x[..., :4]], -1))

    trains(lambda: Mixed(lambda _m, x: x), "", "")
    trains(lambda: nn.Sequential(nn.Linear(8, 2), nn.Linear(2, 64)), "", "")  # a pair would send more

    class Shared(Mlp):
        def __init__(self) -> None:
            super().__init__(lambda _m, x: x.tanh(), 8)
            self.down.weight = self.up.weight

    trains(Shared, "", "")


@case(ranks=2, heavy=True)
def forwards_between_that_run_again() -> None:
    for reentrant in (False, True):
        trains(
            lambda reentrant=reentrant: Mlp(lambda _m, x: checkpoint(torch.tanh, x, use_reentrant=reentrant)),
            *(("", "") if reentrant else ("up", "down")),
        )

        class Inside(Mlp):
            again = reentrant

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x + checkpoint(super().forward, x * self.one, use_reentrant=self.again)

        trains(lambda Inside=Inside: Inside(lambda m, x: x.tanh() * m.scale), "up", "down")


class Penalised(Mlp):
    """Adds the slope of what it gives."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.one
        found = super().forward(x)
        (slope,) = torch.autograd.grad(found.square().sum(), x, create_graph=True)
        return found + slope


@case(ranks=2)
def gradients_of_gradients() -> None:
    options: Any = {"optimizer": slow_sgd, "steps": 2}
    trains(lambda: Penalised(lambda m, x: x.tanh() * m.scale), "up", "down", **options)
    trains(lambda: Penalised(lambda m, x: x.softmax(-1) * m.scale), "", "", **options)


@case(ranks=2, heavy=True)
def compiled_functions_between() -> None:
    act = torch.compile(lambda x: F.gelu(x) * 2, backend="aot_eager")
    model = check(lambda: Mlp(lambda _m, x: act(x)), rows, tensor_parallel_degree=2)
    assert model.engine.division.in_pairs() in (({"up"}, {"down"}), (set(), set()))


@case(ranks=2)
def halves() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        trains(lambda: Mlp(lambda m, x: F.gelu(x) * m.scale), "up", "down", tolerance=3e-2)
    trains(lambda: Mlp(lambda m, x: F.gelu(x) * m.scale).double(), "up", "down", batches=_doubles, tolerance=1e-9)


def _doubles(number: int, replica: int) -> tuple[torch.Tensor, ...]:
    return tuple(one.double() for one in rows(number, replica))


@case(ranks=2)
def optimizers_and_frozen_parameters() -> None:
    trains(lambda: Mlp(lambda m, x: x * m.scale), "up", "down", optimizer=adam, tolerance=1e-4)

    def thaw(number: int, module: Any) -> None:
        module.up.requires_grad_(number > 0)
        module.scale.requires_grad_(number != 1)

    trains(
        lambda: Mlp(lambda m, x: x.tanh() * m.scale), "up", "down", between=thaw, optimizer=partial(torch.optim.SGD, lr=0.1)
    )


# Rules that are wrong are found in the first step.


def _planted(name: str, wrong: Any, between: Between) -> None:
    with patch.object(part, name, wrong):
        model, _, _ = begun(lambda: Mlp(between), sgd)
        refused(lambda: pipe.step(squared)(model, *rows(0, pipe.rank())), "is not right, no parameter was changed")
    pipe.shutdown()


@case(ranks=2)
def gradients_that_are_not_summed_are_found() -> None:
    _planted("summed_later", lambda x, _mesh, _is_later: x, lambda m, x: x.tanh() * m.scale)
    _planted("entering", lambda x, _mesh: x, lambda m, x: x.tanh() * m.one.exp())

    def own_alone(x: torch.Tensor, mesh: Any, axis: int) -> torch.Tensor:
        return x.chunk(mesh.size(), axis)[mesh.get_local_rank()]

    _planted("part_of", own_alone, lambda m, x: x.tanh() * m.scale.exp())


@case(ranks=2)
def rules_that_are_wrong_make_no_pair() -> None:
    rules = {**part_rules._RULES, torch.Tensor.softmax: part_rules._alone}
    with patch.object(part_rules, "_RULES", rules):
        whole(lambda _m, x: x.softmax(-1))


@case(ranks=2)
def biases_are_added_once() -> None:
    with patch.object(kinds, "_with_bias", lambda found, bias, mesh: found + kinds.gathered(bias.to_local(), mesh, 8, 0)):
        model, _, _ = begun(lambda: Mlp(lambda _m, x: x.tanh()), sgd)
        refused(lambda: pipe.step(squared)(model, *rows(0, pipe.rank())), "module 'down'", "gave another output")


@case(ranks=2)
def another_dtype_of_a_result_is_found() -> None:
    added = kinds._with_bias
    with patch.object(kinds, "_with_bias", lambda *args: added(*args).float()), torch.autocast("cpu", torch.bfloat16):
        model, _, _ = begun(lambda: Mlp(lambda _m, x: x.tanh()), sgd)
        refused(lambda: pipe.step(squared)(model, *rows(0, pipe.rank())), "module 'down'", "it has another dtype")


class Worded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.mlp = nn.Embedding(WORDS, 8), Mlp(lambda m, x: F.gelu(x) * m.scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mlp(self.table(x))


@case(ranks=2)
def checkpoints_of_pairs() -> None:
    goes_on(Worded, 2, 1, 2)


@case(ranks=4, heavy=True)
def checkpoints_of_pairs_among_four() -> None:
    goes_on(Worded, 4, 2, 1, 4)


@case(ranks=4)
def optimizer_states_of_pairs_that_are_shared_out() -> None:
    build = partial(Mlp, lambda m, x: F.gelu(x) * m.scale)
    trains(build, "up", "down", optimizer=adam, tolerance=1e-4, shard_optimizer_state=True)
    trains(build, "up", "down", optimizer=partial(torch.optim.AdamW, lr=0.05, foreach=True), tolerance=1e-4, degree=4)


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=53, n_positions=8, n_embd=24, n_layer=2, n_head=4))


def _t5(how: str = "eager") -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 24, "d_kv": 6, "d_ff": 31, "num_layers": 2, "num_heads": 4}
    config = T5Config(vocab_size=53, decoder_start_token_id=0, attn_implementation=how, **sizes)
    return T5ForConditionalGeneration(config)


def _llama(how: str = "eager") -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 31, "num_attention_heads": 8, "num_key_value_heads": 4}
    config = LlamaConfig(vocab_size=53, num_hidden_layers=2, attention_dropout=0.1, attn_implementation=how, **sizes)
    return LlamaForCausalLM(config)


def _bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    sizes = {"hidden_size": 24, "intermediate_size": 31, "num_attention_heads": 4, "max_position_embeddings": 8}
    return BertForMaskedLM(BertConfig(vocab_size=53, num_hidden_layers=2, attn_implementation="eager", **sizes))


def _models(degree: int, *cases: tuple[Build, bool, set[str], str]) -> None:
    """Args:
    cases: the model, whether all ranks have one batch, last names of modules in pairs, and what is in no name of theirs.
    """
    for build, prescaled, names, kept in cases:
        model = with_dropout(build, 0.9, degree, prescaled_batch=prescaled)
        opened, closed = model.engine.division.in_pairs()
        assert {name.rpartition(".")[2] for name in opened | closed} == names, (opened, closed)
        assert not kept or not any(kept in name for name in opened | closed), (opened, closed)
        assert model.engine.division.along_tokens()


_MLP, _ATTENTION = {"gate_proj", "up_proj", "down_proj"}, {"q_proj", "k_proj", "v_proj", "o_proj"}
_MODELS: tuple[tuple[Build, bool, set[str], str], ...] = (
    (_llama, True, _MLP | _ATTENTION, ""),
    (_gpt2, True, {"c_fc", "c_proj"}, ".attn."),  # whose q, k and v are one Linear
    (_t5, True, {"q", "k", "v", "o", "wi", "wo"}, ""),
    (_bert, True, {"query", "key", "value", "dense"}, "cls"),
)


@case(ranks=2, heavy=True)
def models_of_transformers_with_dropout() -> None:
    _models(2, *_MODELS)
    _models(2, *((build, False, names, kept) for build, _, names, kept in _MODELS[:2]))
    _models(2, (partial(_t5, "sdpa"), True, {"wi", "wo"}, "Attention"))  # whose dropout is torch's own


@case(ranks=4, heavy=True)
def models_of_transformers_with_dropout_among_four() -> None:
    _models(4, *_MODELS)


@case(ranks=4, heavy=True)
def heads_among_four_ranks() -> None:
    options: Any = {"between": drawn, "parts": 1, "prescaled_batch": True, "optimizer": slow_sgd, "degree": 4}
    trains(Heads, "k q v", "out", **options)
    trains(lambda: Heads(4, 2), "q", "out", **options)
    trains(lambda: Heads(6), "", "", **options)
    trains(lambda: Mlp(lambda m, x: x.tanh() * m.scale, 13), "up", "down", **options)
    trains(lambda: Mlp(lambda m, x: x.tanh() * m.scale, 12), "up", "down", **{**options, "degree": 2})


def generated(build: Build) -> None:
    """`generate` and `model(x)` between steps, with caches of keys."""
    model, update, _ = begun(build, adam, prescaled_batch=True)
    x = torch.randint(1, 53, (2, 6), generator=torch.Generator().manual_seed(5))

    pipe.step(language)(model, x)
    update.step()
    alone = build()
    alone.load_state_dict(model.state_dict())
    model.eval()
    alone.eval()
    options: Any = {"max_new_tokens": 2, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(model.generate(x, **options), alone.generate(x, **options))
    with torch.no_grad():
        found = model(input_ids=x, output_attentions=True, output_hidden_states=True, use_cache=True)
        expected = alone(input_ids=x, output_attentions=True, output_hidden_states=True, use_cache=True)
    assert not any(isinstance(one, Part) and one.whole is None for one in (*found.attentions, *found.hidden_states))
    torch.testing.assert_close(list(found.attentions), list(expected.attentions), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-5, atol=1e-6)
    pipe.shutdown()


@case(ranks=2)
def caches_of_keys_and_attention_weights() -> None:
    generated(_llama)
