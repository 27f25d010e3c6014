"""A script of trainshed's (`plan`) and one of plain torch that cannot import trainshed (`train`), with the same models."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import torch
from torch import nn

WORDS, TOKENS, ROWS, STEPS = 64, 12, 8, 4
SMALL = {"vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": TOKENS}


class Tied(nn.Module):
    """Blocks with a skip, between a table and a head that is the table."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(WORDS, 16), nn.LayerNorm(16)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Linear(48, 16)) for _ in range(4))
        self.head = nn.Linear(16, WORDS, bias=False)
        self.head.weight = self.table.weight

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
        first = x = self.table(input_ids)
        for block in self.blocks:
            x = block(x) + first
        scores = self.head(self.norm(x))
        return Output(nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten()), scores)


class Output(dict[str, torch.Tensor]):
    """As those of transformers."""

    def __init__(self, loss: torch.Tensor, scores: torch.Tensor) -> None:
        super().__init__(loss=loss, scores=scores)
        self.loss = loss


def build(name: str) -> nn.Module:
    """The same values in each process."""
    torch.manual_seed(0)
    if name in ("tied", "frozen"):
        model = Tied()
        model.table.requires_grad_(name == "tied")
        return model
    import transformers as hf

    if name == "gpt2":
        none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
        return hf.GPT2LMHeadModel(
            hf.GPT2Config(vocab_size=WORDS, n_positions=TOKENS, n_embd=32, n_layer=4, n_head=4, **none)
        )
    if name == "llama":
        return hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL, **HEADS))
    if name == "mixtral":
        return hf.MixtralForCausalLM(hf.MixtralConfig(**SMALL, **HEADS, num_local_experts=4))
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
    return hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=WORDS, **sizes, decoder_start_token_id=0))


def batch(step: int) -> dict[str, torch.Tensor]:
    """Rows of words, which are the labels too."""
    words = torch.randint(1, WORDS, (ROWS, TOKENS), generator=torch.Generator().manual_seed(step))
    return {"input_ids": words, "labels": words.clone()}


def adam(parameters: Any) -> torch.optim.Optimizer:
    """Large steps, so that a wrong gradient is seen in the next loss."""
    return torch.optim.AdamW(parameters, lr=1e-2)


def plan(name: str) -> None:
    """Comes to its first step."""
    import trainshed.parallel as pipe

    pipe.init()
    model = pipe.ParallelModel(build(name))

    @pipe.step
    def step(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss = model(**batch).loss
        model.backward(loss)
        return loss

    step(model, batch(0))


def alone(name: str) -> list[float]:
    """The losses of one process that has all rows."""
    model = build(name)
    optimizer, losses = adam(model.parameters()), []
    for number in range(STEPS):
        loss = model(**batch(number)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def train(name: str, file: str) -> None:
    """Prints how far the losses of the emitted file are from those of one process, relative."""
    sys.modules["trainshed"] = None  # type: ignore[assignment]
    import torch.distributed as dist

    spec = importlib.util.spec_from_file_location("parallel", file)
    assert spec is not None and spec.loader is not None
    emitted = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(emitted)
    model, optimizer, *staged = emitted.parallelize(build(name), adam)
    apart = 0.0
    for number, expected in enumerate(alone(name)):
        own = emitted.own_rows(batch(number))
        if staged:
            loss = staged[0](own)
        else:
            optimizer.zero_grad()
            loss = model(**own).loss
            loss.backward()
            loss = loss.detach()
        optimizer.step()
        dist.all_reduce(loss)
        apart = max(apart, abs(loss.item() / dist.get_world_size() - expected) / expected)
    if dist.get_rank() == 0:
        print(f"APART {apart:.1e}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(*sys.argv[1:]) if len(sys.argv) > 2 else plan(sys.argv[1])
