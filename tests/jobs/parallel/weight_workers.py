"""What ranks do to check weights in safetensors files: each function returns what its rank found."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import workers
import zoo
from torch import nn

import trainshed.parallel as pipe

SMALL = 1 << 12  # bytes of a file


class Normed(nn.Module):
    """Tied tables, a buffer that is saved and one that is not, a buffer of another type, a tensor without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.language = zoo.Tied()
        self.norm = nn.BatchNorm1d(6)
        self.scale = nn.Parameter(torch.tensor([1.5]))
        self.register_buffer("short", torch.ones(3, dtype=torch.bfloat16))
        self.register_buffer("none", torch.empty(0, 4))
        self.register_buffer("passing", torch.ones(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        odd = self.norm(x.float()).mean() + self.short.float().sum() + self.passing.sum()
        return self.language(x) * self.scale + odd


def wrapped(module: nn.Module) -> tuple[Any, Callable[[], float]]:
    """The model in a pipeline, and a step of training."""
    model = pipe.PipelineModel(module)
    optimizer = pipe.PipelineOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    @pipe.step
    def train_step(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        model.backward(loss)
        return loss

    def train() -> float:
        x, y = workers.batches(1)[0]
        optimizer.zero_grad()
        loss = float(train_step(model, x, y).reduce_mean())
        optimizer.step()
        return loss

    return model, train


def written(settings: dict[str, Any], path: str) -> dict[str, Any]:
    """Trains a step and saves; then another model of the same kind reads it, in another pipeline."""
    workers.begin(settings)
    torch.manual_seed(0)
    model, train = wrapped(Normed())
    train()
    model.save_weights(path, shard_bytes=SMALL)
    state = model.state_dict()
    names = sorted(os.listdir(path))
    after = train()
    workers.begin(settings)
    torch.manual_seed(9)
    other, train_other = wrapped(Normed())
    other.load_weights(path)
    again = train_other()
    model_names = set(json.loads(Path(path, "model.safetensors.index.json").read_text())["weight_map"])
    return {"state": state, "files": names, "losses": (after, again), "names": model_names}


def read_without_values(path: str) -> tuple[float, int]:
    """A model that was built without values reads weights of another; its next loss, and the bytes that this rank holds."""
    workers.begin({"partitions": 2, "microbatches": 2})
    torch.manual_seed(9)
    with pipe.delayed_initialization():
        module = Wide()
    model, train = wrapped(module)
    model.load_weights(path)
    return train(), sum(parameter.untyped_storage().nbytes() for parameter in model.local_parameters())


class Wide(nn.Module):
    """Large enough that its values wait."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 160)
        self.layers = nn.ModuleList(nn.Linear(160, 160) for _ in range(4))
        self.head = nn.Linear(160, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.table(x).mean(1)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(x)


def written_wide(path: str) -> list[Any]:
    """Saves a trained model, and reads it in a pipeline of models without values."""
    workers.begin({"partitions": 2, "microbatches": 2})
    torch.manual_seed(0)
    model, train = wrapped(Wide())
    train()
    model.save_weights(path)
    return [train(), *read_without_values(path)]


def full_disk(path: str) -> list[Any]:
    """Saves; saves again where rank 1 cannot write; what is said, what is there, and whether a third time it goes well."""
    workers.begin({"partitions": 2, "microbatches": 2})
    torch.manual_seed(0)
    model, train = wrapped(Wide())
    train()
    model.save_weights(path)
    before = {name: Path(path, name).read_bytes() for name in sorted(os.listdir(path))}
    dist.barrier()
    train()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    was = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if dist.get_rank() == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        said = failure(lambda: model.save_weights(path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, was)
    dist.barrier()  # each rank removes its own new files
    same = before == {name: Path(path, name).read_bytes() for name in sorted(os.listdir(path))}
    dist.barrier()
    model.save_weights(path)
    changed = before != {name: Path(path, name).read_bytes() for name in sorted(os.listdir(path))}
    return [said, same, changed]


def pretrained(path: str) -> dict[str, torch.Tensor]:
    """A tied Llama of transformers, saved by its stages."""
    from transformers import LlamaConfig, LlamaForCausalLM

    workers.begin({"partitions": 2, "microbatches": 2})
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=20, hidden_size=16, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=32, tie_word_embeddings=True, use_cache=False,
    )  # fmt: skip
    model = pipe.PipelineModel(LlamaForCausalLM(config))

    @pipe.step
    def train_step(model: Any, x: torch.Tensor) -> torch.Tensor:
        loss = model(input_ids=x, labels=x).loss
        model.backward(loss)
        return loss

    train_step(model, workers.batches(1)[0][0])
    model.save_pretrained(path)
    return model.state_dict()


def refused(path: str) -> dict[str, str]:
    """What is said where weights do not fit, or cannot be saved."""
    workers.begin({"partitions": 2, "microbatches": 2})
    torch.manual_seed(0)
    model = pipe.PipelineModel(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
    if dist.get_rank() == 0:
        from safetensors.torch import save_file

        whole = {name: value.clone() for name, value in model.module.state_dict().items()}
        for kind, state in {
            "missing": {name: value for name, value in whole.items() if name != "1.weight"},
            "unknown": {**whole, "2.weight": torch.zeros(1)},
            "shape": {**whole, "1.weight": torch.zeros(2, 3)},
        }.items():
            os.makedirs(f"{path}/{kind}")
            save_file(state, f"{path}/{kind}/model.safetensors")
        for kind, text in (("empty", ""), ("broken", "x" * 100)):
            os.makedirs(f"{path}/{kind}")
            Path(path, kind, "model.safetensors").write_text(text)
        os.makedirs(f"{path}/lost")
        index = {"metadata": {}, "weight_map": {"0.weight": "model-00001-of-00002.safetensors"}}
        Path(path, "lost", "model.safetensors.index.json").write_text(json.dumps(index))
        os.makedirs(f"{path}/nothing")
    dist.barrier()
    kinds = ("missing", "unknown", "shape", "empty", "broken", "lost", "nothing", "nowhere")
    said = {kind: failure(lambda kind=kind: model.load_weights(f"{path}/{kind}")) for kind in kinds}
    said["not transformers"] = failure(lambda: model.save_pretrained(f"{path}/p"))
    return said


def failure(action: Callable[[], Any]) -> str:
    """What a PipelineError says, "" without one."""
    try:
        action()
    except pipe.PipelineError as error:
        return error.message + (f" ({error.hint})" if error.hint else "")
    return ""
