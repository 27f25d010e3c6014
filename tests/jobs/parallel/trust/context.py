"""Context parallelism: models train as in one process, whatever is around their blocks; blocks that mix positions in another
way than by attention are refused in the first step, and wrong exchanges are found in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from copy import deepcopy
from io import StringIO
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import trainshed.parallel as pipe
from trainshed.compat.smdistributed.modelparallel import torch as smp
from trainshed.parallel.engine.context import crossing
from trainshed.parallel.engine.context import op_handlers as inside
from trainshed.parallel.engine.context.slices import Slices

from .table import SECONDS, begin, case, long_case, refused, same

WORDS = 53
Build = Callable[[], nn.Module]


class Block(nn.Module):
    """A block of a GPT, with dropout; `mix` is what others add to it."""

    def __init__(self, width: int = 12, heads: int = 3, drop: float = 0.1) -> None:
        super().__init__()
        self.before, self.after, self.heads = nn.LayerNorm(width), nn.LayerNorm(width), heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.drop = nn.Dropout(drop)

    def attention(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        q, k, v = (one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        found = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)
        return self.out(found.transpose(1, 2).flatten(-2))

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = x + self.drop(self.attention(self.before(self.mix(x)), mask))
        return x + self.drop(self.mlp(self.after(x)))


class Gpt(nn.Module):
    """A language model by hand whose head is its table."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 12), nn.Embedding(64, 12)
        self.blocks, self.norm = nn.ModuleList(blocks or (Block(), Block())), nn.LayerNorm(12)
        self.head = nn.Linear(12, WORDS, bias=False)
        self.head.weight = self.words.weight
        self.drop = nn.Dropout(0.1)

    def run(self, block: nn.Module, x: torch.Tensor) -> Any:
        return block(x)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        x = self.drop(self.words(input_ids) + self.places(torch.arange(input_ids.size(1))))
        for block in self.blocks:
            x = self.run(block, x)
        found = self.head(self.norm(x))
        if labels is None:
            return found
        loss = F.cross_entropy(found[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=0)
        return SimpleNamespace(loss=loss + getattr(self.blocks[-1], "loss", 0.0))


def numbers(step: int, replica: int, length: int = 13, rows: int = 2, first: int | None = None) -> dict[str, torch.Tensor]:
    found = torch.randint(1, WORDS, (rows, length), generator=torch.Generator().manual_seed(100 * step + replica))
    if first is not None:
        found[0, 0] = first
    return {"input_ids": found, "labels": found}


def with_padding(step: int, replica: int) -> dict[str, torch.Tensor]:
    given = numbers(step, replica)
    mask = torch.ones_like(given["input_ids"])
    mask[1, 9 - step % 3 :] = 0
    return {**given, "attention_mask": mask, "labels": given["labels"] * mask}


def adam_w(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    """That does not magnify what rounding leaves of a gradient of zero."""
    return torch.optim.AdamW(parameters, lr=1e-3, eps=1e-4)


def trains(
    build: Build,
    batches: Any = numbers,
    *,
    degree: int = 2,
    steps: int = 3,
    parts: int = 1,
    optimizer: Any = adam_w,
    **settings: Any,
) -> pipe.PipelineModel:
    """Losses, norms of gradients and parameters are those of one process, each batch with its replica's random numbers."""
    begin(context_parallel_degree=degree, microbatches=parts, **settings)
    count, mine = pipe.rdp_size(), pipe.rdp_rank()

    def made() -> tuple[nn.Module, Any]:
        torch.manual_seed(3)
        module = build().train()
        return module, optimizer(module.parameters())

    alone, update = made()
    generators = [torch.Generator().manual_seed(7 + replica).get_state() for replica in range(count)]
    expected = []
    for number in range(steps):
        update.zero_grad()
        losses = []
        for replica in range(count):
            torch.set_rng_state(generators[replica])
            given = {name: one.chunk(parts) for name, one in batches(number, replica).items()}
            every = [alone(**{name: one[part] for name, one in given.items()}).loss for part in range(parts)]
            (sum(every) / parts / count).backward()  # type: ignore[union-attr]
            losses.append(float(sum(every)) / parts)
            generators[replica] = torch.get_rng_state()
        expected.append([losses[mine], float(nn.utils.clip_grad_norm_(alone.parameters(), 0.5))])
        update.step()

    module, update = made()
    model, update = pipe.PipelineModel(module), pipe.PipelineOptimizer(update)
    torch.manual_seed(7 + mine)

    @pipe.step
    def train(model: Any, **given: torch.Tensor) -> torch.Tensor:
        loss = model(**given).loss
        model.backward(loss)
        return loss

    found = []
    for number in range(steps):
        update.zero_grad()
        loss = train(model, **batches(number, mine)).reduce_mean()
        found.append([float(loss), float(nn.utils.clip_grad_norm_(model.parameters(), 0.5))])
        update.step()
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-6, atol=0)
    same(model.state_dict(), dict(alone.state_dict()), 2e-5)
    return model


def divided(model: pipe.PipelineModel) -> set[str]:
    """Names of the blocks that were divided."""
    return set(model.engine.region.divided())  # type: ignore[union-attr]


def gpt2(**options: Any) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=WORDS, n_positions=64, n_embd=24, n_layer=2, n_head=4, attn_pdrop=0.0, **options)
    return GPT2LMHeadModel(config)


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 24, "intermediate_size": 31, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, num_hidden_layers=2, **sizes))


def _bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    sizes = {"hidden_size": 24, "intermediate_size": 31, "num_attention_heads": 4, "max_position_embeddings": 64}
    return BertForMaskedLM(BertConfig(vocab_size=WORDS, num_hidden_layers=2, attention_probs_dropout_prob=0.0, **sizes))


@long_case(ranks=2)
def models_of_transformers(steps: int) -> None:
    for build, batches in ((gpt2, numbers), (llama, numbers), (llama, with_padding), (_bert, with_padding)):
        model = trains(build, batches, steps=steps)
        assert len(divided(model)) == 2, divided(model)
        pipe.shutdown()


@long_case(ranks=2)
def a_model_by_hand(steps: int) -> None:
    assert divided(trains(Gpt, steps=steps, parts=2)) == {"blocks.0", "blocks.1"}


@case(ranks=4)
def context_groups_and_replicas() -> None:
    for build, batches, degree in ((Gpt, numbers, 2), (llama, with_padding, 4)):
        trains(build, batches, degree=degree)
        pipe.shutdown()


@case(ranks=4, heavy=True)
def context_groups_and_replicas_for_twenty_steps() -> None:
    for degree in (2, 4):
        for build, batches in ((Gpt, numbers), (gpt2, numbers), (llama, with_padding), (_bert, with_padding)):
            trains(build, batches, degree=degree, steps=20)
            pipe.shutdown()


class Around(Gpt):
    """Activation checkpoints around blocks, or around their insides."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant

    def run(self, block: nn.Module, x: torch.Tensor) -> Any:
        return checkpoint(block, x, use_reentrant=self.reentrant)


class Inner(Block):
    reentrant = False

    def attention(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        return checkpoint(super().attention, x, mask, use_reentrant=self.reentrant)


class InnerReentrant(Inner):
    reentrant = True


def _checkpointed(build: Build, reentrant: bool) -> nn.Module:
    model: Any = build()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    return model


@case(ranks=2)
def blocks_that_run_again_in_the_backward() -> None:
    for reentrant in (False, True):
        inner = InnerReentrant if reentrant else Inner
        for build in (
            lambda reentrant=reentrant: Around(reentrant),
            lambda inner=inner: Gpt(inner(), inner()),
            lambda reentrant=reentrant: _checkpointed(gpt2, reentrant),
        ):
            assert len(divided(trains(build))) == 2
            pipe.shutdown()


@case(ranks=2)
def lengths_that_change_and_make_no_equal_parts() -> None:
    def changing(step: int, replica: int) -> dict[str, torch.Tensor]:
        return numbers(step, replica, (4, 13, 5, 3, 30, 2)[step])

    trains(Gpt, changing, steps=6)


@case(ranks=4)
def lengths_on_four_ranks() -> None:
    def changing(step: int, replica: int) -> dict[str, torch.Tensor]:
        return numbers(step, replica, (9, 7, 13, 8)[step], rows=3)

    trains(Gpt, changing, steps=4, degree=4)


@case(ranks=2)
def sequences_that_are_too_short() -> None:
    said = StringIO()
    with redirect_stdout(said):
        trains(Gpt, lambda step, replica: numbers(step, replica, 3))
    assert pipe.rank() or "too short to be divided" in said.getvalue(), said.getvalue()


class First(nn.Module):
    """torch's own layers, positions first, with a mask of keys and one of pairs."""

    def __init__(self, rows_first: bool = False) -> None:
        super().__init__()
        self.words, self.rows_first = nn.Embedding(WORDS, 12), rows_first
        layer = nn.TransformerEncoderLayer(12, 3, 20, dropout=0.0, batch_first=rows_first)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(12, WORDS)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        x = self.words(input_ids)
        x = x if self.rows_first else x.transpose(0, 1)
        causal = nn.Transformer.generate_square_subsequent_mask(input_ids.size(1))
        x = self.encoder(x, causal, src_key_padding_mask=(attention_mask == 0).float() * -1e9)
        found = self.head(x if self.rows_first else x.transpose(0, 1))
        return SimpleNamespace(loss=F.cross_entropy(found.flatten(0, 1), labels.flatten(), ignore_index=0))


@case(ranks=2)
def layers_of_torch_and_positions_first() -> None:
    for rows_first in (False, True):
        model = trains(lambda rows_first=rows_first: First(rows_first), with_padding)
        assert divided(model) == {"encoder.layers.0", "encoder.layers.1"}
        assert {rule.axis for rule in model.engine.region.divided().values()} == {int(rows_first)}  # type: ignore[union-attr]
        pipe.shutdown()


class Cross(Block):
    """Reads another sequence as well, and returns more than one thing."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(12, 12), nn.Linear(12, 24)

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> Any:  # type: ignore[override]
        x = super().forward(x)
        q, k, v = (one.unflatten(-1, (3, -1)).transpose(1, 2) for one in (self.q(x), *self.kv(other).chunk(2, -1)))
        return x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2), other.mean()


class Crossed(Gpt):
    """Blocks that read the words of another sequence; some lengths are as long as this rank's part, or as the whole."""

    def __init__(self) -> None:
        super().__init__(Cross(), Cross())

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:  # type: ignore[override]
        self.other = self.words(input_ids[:, : labels[0, 0] % 3 * 6 + 1])
        return super().forward(input_ids, labels)

    def run(self, block: nn.Module, x: torch.Tensor) -> Any:
        x, mean = block(x, self.other)
        return x + mean


@case(ranks=2)
def blocks_that_read_another_sequence() -> None:
    def given(step: int, replica: int) -> dict[str, torch.Tensor]:
        found = numbers(step, replica, 12 + step % 2)
        found["input_ids"][0, 0] = 1 + step
        return found

    trains(Crossed, given, steps=7)


class Often(Gpt):
    """One block that is called several times, its weight outside as well, and what the blocks have returned in between."""

    def __init__(self) -> None:
        super().__init__(Block(drop=0.0))

    def run(self, block: Any, x: torch.Tensor) -> Any:
        found = [x]
        for _ in range(3):
            found.append(block(found[-1]))
        return torch.stack(found).mean(0) + F.linear(found[1].cumsum(1) / 9, block.out.weight)


@case(ranks=2)
def code_between_blocks_sees_what_is_whole() -> None:
    assert divided(trains(Often)) == {"blocks.0"}
    pipe.shutdown()
    seen: list[torch.Size] = []

    def hooked() -> nn.Module:
        model = Gpt()
        model.blocks[0].register_forward_pre_hook(lambda _module, args: (args[0] + args[0].mean(1, keepdim=True),))
        model.blocks[1].register_forward_hook(
            lambda _module, args, output: seen.append(args[0].shape) or output.cumsum(1) / 5
        )
        model.blocks[0].out.weight.register_hook(lambda gradient: gradient * 1.0)
        return model

    trains(hooked)
    assert set(seen) == {torch.Size([2, 13, 12])}


@case(ranks=2)
def frozen_blocks_and_frozen_words() -> None:
    for name in ("blocks.0", "blocks", "words"):

        def frozen(name: str = name) -> nn.Module:
            model = Gpt()
            model.get_submodule(name).requires_grad_(False)
            return model

        trains(frozen)
        pipe.shutdown()


class Lists(Block):
    """What the script has named to be whole mixes positions as it likes."""

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        return x + x.mean(1, keepdim=True)


@case(ranks=2)
def blocks_that_the_script_names_or_excludes() -> None:
    def excluding() -> nn.Module:
        model = Gpt(Block(), Lists(), Block())
        pipe.set_context_parallelism(model.blocks[1], False)
        return model

    def naming() -> nn.Module:
        model = Gpt(Block(), Lists(), Block())
        pipe.set_context_parallelism(model.blocks[2].mlp)
        return model

    assert divided(trains(excluding)) == {"blocks.0", "blocks.2"}
    pipe.shutdown()
    assert divided(trains(naming)) == {"blocks.2.mlp"}
    pipe.shutdown()
    assert divided(trains(lambda: Gpt(Block(), Lists()), atomic=("blocks.1",))) == {"blocks.0"}
    refused(lambda: pipe.set_context_parallelism(nn.Identity()), "the first step has run")


@case(ranks=2)
def optimizer_states_that_are_shared_out() -> None:
    trains(Gpt, shard_optimizer_state=True)


@case(ranks=2)
def evaluation_between_steps() -> None:
    model = trains(Gpt)
    alone = Gpt().eval()
    alone.load_state_dict(model.state_dict())
    model.eval()
    x = numbers(50, 0)["input_ids"]
    with torch.no_grad():
        expected = alone(x)
        torch.testing.assert_close(model(x), expected)
        torch.testing.assert_close(deepcopy(model.module)(x), expected)
        with patch.object(crossing.Crossing, "gathered", autospec=True, side_effect=crossing.Crossing.gathered) as gathered:
            found = pipe.step(lambda model, x: model(x))(model, x).concat()
        torch.testing.assert_close(found, expected)
    assert gathered.call_count >= 4, "each block gathers keys and its result"
    refused(lambda: model.module(x), "outside a step")
    assert "forward" not in model.module.blocks[0].__dict__


@case(ranks=2)
def a_cache_that_a_model_makes_stays_empty() -> None:
    begin(context_parallel_degree=2)
    torch.manual_seed(3)
    model = pipe.PipelineModel(gpt2(use_cache=True).eval())

    @pipe.step
    def look(model: Any, x: torch.Tensor, cache: Any = None) -> Any:
        found = model(input_ids=x, past_key_values=cache, use_cache=True)
        return found.logits, found.past_key_values

    x = numbers(0, 0)["input_ids"]
    with torch.no_grad():
        logits, (cache,) = look(model, x)
        torch.testing.assert_close(logits.concat(), model(input_ids=x).logits)
        assert cache.get_seq_length() == 0
        full = model(input_ids=x, use_cache=True).past_key_values
        assert full.get_seq_length() == 13
        assert model.generate(x[:1], max_new_tokens=3, do_sample=False).shape == (1, 16)
        refused(lambda: look(model, x, full), "keys and values of an earlier call", "generate()")


def curve(path: str, degree: int, first: int, last: int, **settings: Any) -> Iterator[float]:
    """Losses of all ranks' one batch, clipped, from a checkpoint and to one."""
    begin(context_parallel_degree=degree, **settings)
    torch.manual_seed(3)
    model = pipe.PipelineModel(Gpt(Block(drop=0.0), Block(drop=0.0)))
    model.module.drop.p = 0.0
    update = pipe.PipelineOptimizer(torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4))

    @pipe.step
    def train(model: Any, **given: torch.Tensor) -> torch.Tensor:
        loss = model(**given).loss
        model.backward(loss)
        return loss

    if first:
        assert pipe.load_checkpoint(path, model, update) == {"step": first}
    for number in range(first, last):
        update.zero_grad()
        yield float(train(model, **numbers(number, 0)).reduce_mean())
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        update.step()
    pipe.save_checkpoint(path, model, update, {"step": last})
    pipe.shutdown()


@case(ranks=4)
def a_checkpoint_goes_on_with_another_degree() -> None:
    import ranks

    path = str(ranks.folder() / "context")
    expected = list(curve(path + "-whole", 1, 0, 8))
    found = list(curve(path, 2, 0, 2))
    found += curve(path, 4, 2, 4)
    found += curve(path, 1, 4, 6, tensor_parallel_degree=2)
    found += curve(path, 2, 6, 8, shard_optimizer_state=True)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-5, atol=0)


@case(ranks=4)
def places_in_groups() -> None:
    begin(context_parallel_degree=2)
    rank = pipe.rank()
    assert (pipe.cp_rank(), pipe.cp_size(), pipe.dp_rank(), pipe.dp_size()) == (rank % 2, 2, rank // 2, 2)
    assert (pipe.rdp_rank(), pipe.rdp_size(), pipe.tp_size()) == (rank // 2, 2, 1)
    assert dist.get_process_group_ranks(pipe.cp_group()) == [rank // 2 * 2, rank // 2 * 2 + 1]
    assert dist.get_process_group_ranks(pipe.dp_group()) == [rank % 2, rank % 2 + 2]
    pipe.shutdown()
    begin(context_parallel_degree=2, placement_strategy="spread")
    assert (pipe.cp_rank(), pipe.dp_rank()) == (rank // 2, rank % 2)
    pipe.shutdown()
    refused(lambda: begin(context_parallel_degree=3), "context_parallel_degree = 3 does not divide 4 ranks")
    refused(lambda: begin(context_parallel_degree=4, partitions=2), "does not divide 4 ranks in pipelines of 2")
    refused(lambda: begin(context_parallel_degree=2, ddp=False), "make 2 replicas, but ddp is off")
    smp.init({"partitions": 1, "context_parallel_degree": 2, "timeout_seconds": SECONDS})
    assert (smp.dp_rank(), smp.dp_size(), smp.get_dp_group()) == (rank // 2, 2, [rank % 2, rank % 2 + 2])


class Fails(Block):
    """On one rank, with a sequence of one length."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        if self.training and x.size(1) == 12 and pipe.rank() == 1:
            raise ValueError("the disk is full")
        return super().forward(x, mask)


class Chosen(Gpt):
    """Leaves out a block for some batches."""

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        x = self.words(input_ids)
        for block in self.blocks if int(input_ids[0, 0]) % 2 else self.blocks[:1]:
            x = block(x)
        return SimpleNamespace(loss=self.head(self.norm(x)).square().mean())


# What is refused: all ranks say so, before a parameter has moved.


class Convolved(Block):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(12, 12, 3, groups=12)

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(F.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2)


class Normed(Block):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(12)

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


class Scanned(Block):
    """A state space: what has been so far counts."""

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        decay = 0.9 ** torch.arange(x.size(1))[:, None]
        return (x / decay).cumsum(1) * decay


class Shifted(Block):
    def mix(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([F.pad(x[:, :-1, :6], (0, 0, 1, 0)), x[..., 6:]], -1)


class Noisy(Block):
    def mix(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * torch.randn_like(x)


class Placed(Block):
    """Makes its positions itself."""

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        return x + (torch.arange(x.size(1))[:, None] * torch.arange(12)).sin()


class Masked(Block):
    """Makes its mask itself."""

    def attention(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        return super().attention(x, torch.ones(x.size(1), x.size(1), dtype=torch.bool).tril())


class Routed(Block):
    """An expert that has room for some of the tokens."""

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        wanted = x[..., 0] > 0
        return torch.where((wanted & (wanted.cumsum(1) <= 3))[..., None], x.flip(-1), x)


class Balanced(Block):
    """Keeps the loss of its router for the model's."""

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        self.loss = x.softmax(-1).mean((0, 1)).square().sum()
        return x


class Flat(Block):
    def mix(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x.flatten(0, 1), 0.1, self.training).view_as(x)


class InPlace(Block):
    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x.mul_(0.5), mask)


class Forgetful(Block):
    """Dropout within attention."""

    def attention(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        q, k, v = (one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.1).transpose(1, 2).flatten(-2)


class Partly(Block):
    """An own product of all scores beside that of torch."""

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ x.transpose(1, 2)).softmax(-1) @ x


REFUSED = {
    Convolved: "its result is not that of the whole sequence",
    Lists: "its result is not that of the whole sequence",
    Normed: "its result is not that of the whole sequence",
    Scanned: "its result is not that of the whole sequence",
    Shifted: "its result is not that of the whole sequence",
    Noisy: "it draws random numbers in another way than by dropout",
    Placed: "its result is not that of the whole sequence",
    Masked: "it makes a mask for",
    Routed: "its result is not that of the whole sequence",
    Balanced: "its forward keeps 'loss' for others to read",
    Flat: "where positions are not an axis of their own",
    InPlace: "it changes its input in place",
    Partly: "its result is not that of the whole sequence",
}


def begun(build: Build, **settings: Any) -> tuple[pipe.PipelineModel, Any]:
    """A model and its step function; two ranks divide sequences where the settings say nothing else."""
    begin(**{"context_parallel_degree": 2, **settings})
    torch.manual_seed(3)
    model = pipe.PipelineModel(build())

    @pipe.step
    def train(model: Any, **given: torch.Tensor) -> torch.Tensor:
        loss = model(**given).loss
        model.backward(loss)
        return loss

    return model, train


@case(ranks=2)
def blocks_that_mix_positions_in_another_way_are_refused() -> None:
    for verify in ("first", "off"):
        for kind, why in REFUSED.items():
            model, train = begun(lambda kind=kind: Gpt(Block(), kind()), verify=verify)
            words = f"'blocks.1' ({kind.__name__}) cannot be divided along the sequence: "
            try:
                refused(
                    lambda train=train, model=model: train(model, **numbers(0, 0, 12)),
                    words,
                    why,
                    "set_context_parallelism(",
                )
            except Exception as error:
                raise AssertionError(f"{kind.__name__}, verify = {verify}") from error
            assert all(parameter.grad is None for parameter in model.parameters())
            pipe.shutdown()


@case(ranks=2)
def attention_that_torch_does_not_compute_is_refused() -> None:
    _, train = begun(lambda: Gpt(Forgetful(), Forgetful()))
    refused(lambda: train(pipe.session.session.model, **numbers(0, 0)), "'blocks.0' (Forgetful)", "dropout within attention")
    pipe.shutdown()
    model, train = begun(lambda: gpt2(attn_implementation="eager"))
    refused(lambda: train(model, **numbers(0, 0)), "divides nothing: 'transformer.h.0' calls no attention of torch", "sdpa")
    pipe.shutdown()
    model, train = begun(lambda: Often().requires_grad_(True).blocks[0])
    refused(
        lambda: pipe.step(_summed)(model, torch.randn(2, 8, 12)), "divides nothing: 'mlp.", "calls no attention of torch"
    )


def _summed(model: Any, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().mean()
    model.backward(loss)
    return loss


@case(ranks=2)
def blocks_that_are_compiled_are_refused() -> None:
    model, train = begun(lambda: Gpt(Block(), torch.compile(Block(), backend="eager")))
    refused(lambda: train(model, **numbers(0, 0)), "'blocks.1' is compiled")


@case(ranks=2)
def another_batch_on_each_rank_is_refused() -> None:
    model, train = begun(Gpt)
    refused(lambda: train(model, **numbers(0, pipe.rank())), "was given another batch", "dp_rank() of dp_size()")
    pipe.shutdown()
    model, _ = begun(Gpt, verify="off")
    given = numbers(0, pipe.rank())

    @pipe.step
    def train_on_it(model: Any) -> torch.Tensor:
        loss = model(**given).loss
        model.backward(loss)
        return loss

    refused(lambda: train_on_it(model), "had another input on rank 1", "the same context group", "give it as an argument")


class Later(Block):
    """Mixes positions of long sequences alone."""

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.size(1) < 12 else x + x.mean(1, keepdim=True)


@case(ranks=2)
def blocks_that_do_something_else_later_are_refused() -> None:
    model, train = begun(lambda: Gpt(Later(), Later()))
    train(model, **numbers(0, 0, 10))
    train(model, **numbers(0, 0, 14))
    refused(lambda: train(model, **numbers(0, 0, 40)), "'blocks.0' (Later) cannot be divided")


# Defects that are planted one at a time: each is found in the first step, with and without the undivided model.


def _found(change: Any, *words: str, **settings: Any) -> None:
    model, train = begun(Gpt, **settings)
    with change:
        refused(lambda: train(model, **numbers(0, 0)), *words)
    assert all(parameter.grad is None for parameter in model.parameters())
    pipe.shutdown()


@case(ranks=2)
def positions_in_another_order_are_found() -> None:
    native = Slices.joined
    swapped = lambda slices, parts, axis: native(slices, parts, axis).roll(1, axis)  # noqa: E731
    _found(patch.object(Slices, "joined", swapped), "'blocks.0' (Block) cannot be divided")


@case(ranks=2)
def gradients_of_keys_that_are_not_summed_are_found() -> None:
    def own(one: crossing.Crossing, whole: torch.Tensor, axis: int, slices: Slices) -> torch.Tensor:
        return slices.of(whole, axis, one.rank)

    _found(patch.object(crossing.Crossing, "scattered", own), "the gradient of", "is not that of the whole sequence")


@case(ranks=2)
def random_numbers_of_parts_are_found() -> None:
    native = F.dropout
    drawn = patch.object(inside.Inside, "_dropout", lambda _inside, *args, **kwargs: native(*args, **kwargs))
    _found(drawn, "it draws random numbers in another way than by dropout")


@case(ranks=2)
def what_the_proof_lets_pass_is_found_by_the_undivided_model() -> None:
    """Within what rounding may make of a single block, but not of the model's steps."""
    native = crossing._Join.backward

    def more(ctx: Any, gradient: torch.Tensor) -> Any:
        found, *rest = native(ctx, gradient)
        return found * 1.0002, *rest

    _found(patch.object(crossing._Join, "backward", staticmethod(more)), "is not right, no parameter was changed")
