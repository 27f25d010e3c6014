"""Models that `from_pretrained` reads from several safetensors files, in divided stages.

The files are mapped into memory, so that parameters have values also where the block for models without values is around.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ranks
import torch
import torch.distributed as dist
from torch import nn

import trainshed.parallel as pipe
from trainshed.parallel.ground.shards import local

from .divided_without_values import ALONE, STAGES, nothing_is_gathered
from .table import begin, case, same
from .training import language

WORDS = 331


def saved() -> Path:
    """A folder with a small model in several files, the same for all ranks."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = ranks.folder() / "pretrained"
    if dist.get_rank() == 0 and not folder.exists():
        torch.manual_seed(5)
        sizes = {"hidden_size": 96, "intermediate_size": 192, "num_attention_heads": 4, "num_key_value_heads": 2}
        model = LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, num_hidden_layers=4, tie_word_embeddings=True, **sizes))
        model.save_pretrained(folder, max_shard_size="200KB")
    dist.barrier()
    assert len(list(folder.glob("*.safetensors"))) > 3
    return folder


def read(folder: Path, **options: Any) -> nn.Module:
    from transformers import AutoModelForCausalLM

    model: nn.Module = AutoModelForCausalLM.from_pretrained(folder, **options)
    return model.train()


def batch(number: int) -> torch.Tensor:
    return torch.randint(0, WORDS, (4, 8), generator=torch.Generator().manual_seed(number))


def trained_alone(module: nn.Module) -> list[float]:
    update = torch.optim.AdamW(module.parameters(), lr=1e-3)
    losses = []
    for number in range(4):
        update.zero_grad()
        parts = [module(input_ids=part, labels=part).loss for part in batch(number).chunk(2)]
        (sum(parts) / 2).backward()  # type: ignore[union-attr]
        losses.append(sum(part.item() for part in parts) / 2)
        update.step()
    return losses


def trained(model: Any) -> list[float]:
    update = pipe.PipelineOptimizer(torch.optim.AdamW(model.parameters(), lr=1e-3))
    step, losses = pipe.step(language), []
    for number in range(4):
        update.zero_grad()
        losses.append(float(step(model, batch(number)).reduce_mean()))
        update.step()
    return losses


@case(ranks=4, heavy=True)
def pretrained_models_train_in_divided_stages_as_in_one_process() -> None:
    folder = saved()
    alone = read(folder)
    expected = torch.tensor(trained_alone(alone))
    for settings in (STAGES, ALONE):
        begin(microbatches=2, memory_weight=1.0, **settings)
        with nothing_is_gathered():
            with pipe.delayed_initialization():
                module = read(folder)
            model = pipe.PipelineModel(module)
            found = trained(model)
        torch.testing.assert_close(torch.tensor(found), expected, rtol=1e-5, atol=0)
        same(model.state_dict(), alone.state_dict(), 1e-4)
        parts = [local(one.detach()).untyped_storage() for one in model.local_parameters()]
        held = sum({one.data_ptr(): one.nbytes() for one in parts}.values())
        whole = sum(one.untyped_storage().nbytes() for one in alone.parameters())
        assert held < 0.3 * whole, (held, whole)
        pipe.shutdown()


@case(ranks=4, heavy=True)
def pretrained_models_without_the_block_train_in_divided_stages_too() -> None:
    folder = saved()
    expected = torch.tensor(trained_alone(read(folder)))
    for settings in (STAGES, {"partitions": 4}):
        begin(microbatches=2, **settings)
        found = trained(pipe.PipelineModel(read(folder)))
        torch.testing.assert_close(torch.tensor(found), expected, rtol=1e-5, atol=0)
        pipe.shutdown()


@case(ranks=4, heavy=True)
def what_was_trained_in_divided_stages_is_read_by_from_pretrained() -> None:
    folder, out = saved(), ranks.folder() / "pretrained-out"
    begin(microbatches=2, **STAGES)
    with pipe.delayed_initialization():
        module = read(folder)
    model = pipe.PipelineModel(module)
    trained(model)
    model.save_pretrained(out, shard_bytes=200_000)
    state = model.state_dict()
    pipe.shutdown()
    same(read(out).state_dict(), state, 0.0)
