"""The training script of `benchmarks/compiler.py`: plain PyTorch on random data; prints its speed, memory and loss."""

from __future__ import annotations

import argparse
import json
import math
import resource
import time

import torch
from torch import nn
from torch.nn import functional

# layers, heads, width, vocabulary, tokens, batch
GPT2 = {"full": (12, 12, 768, 50257, 512, 32), "small": (6, 4, 256, 4096, 128, 4)}
# layers, heads, width, inner width, vocabulary, tokens, batch
LLAMA = {"full": (24, 16, 1024, 2816, 32000, 1024, 16), "small": (2, 4, 64, 128, 512, 64, 4)}
BERT = {"full": (24, 16, 1024, 4096, 30522, 512, 16), "small": (2, 4, 64, 128, 512, 64, 4)}
# blocks in each stage, width, classes, pixels, batch
RESNET = {"full": ((3, 4, 6, 3), 64, 1000, 224, 128), "small": ((2, 2, 2, 2), 16, 100, 32, 32)}


class Block(nn.Module):
    """GPT-2's block: attention and an MLP, each after a norm and beside a skip."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.second(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """A language model of GPT-2's shape; its loss is part of it."""

    def __init__(self, layers: int, heads: int, width: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        for value in self.parameters():
            if value.dim() > 1:
                nn.init.normal_(value, std=0.02 / math.sqrt(2 * layers))
        self.head.weight = self.tokens.weight

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            hidden = block(hidden)
        return functional.cross_entropy(self.head(self.norm(hidden)).float().flatten(0, 1), y.flatten())


class Bottleneck(nn.Module):
    """ResNet-50's block."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        outside = 4 * width
        self.a, self.b = nn.Conv2d(inside, width, 1, bias=False), nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.c = nn.Conv2d(width, outside, 1, bias=False)
        self.x, self.y, self.z = nn.BatchNorm2d(width), nn.BatchNorm2d(width), nn.BatchNorm2d(outside)
        self.skip: nn.Module = nn.Identity()
        if inside != outside or stride > 1:
            self.skip = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.y(self.b(torch.relu(self.x(self.a(x))))))
        return torch.relu(self.z(self.c(hidden)) + self.skip(x))


class ResNet(nn.Module):
    """A ResNet of bottlenecks; its loss is part of it."""

    def __init__(self, stages: tuple[int, ...], width: int, classes: int) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        blocks, inside = [], width
        for stage, count in enumerate(stages):
            for index in range(count):
                blocks.append(Bottleneck(inside, width << stage, 2 if stage and not index else 1))
                inside = 4 * (width << stage)
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(inside, classes)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(torch.relu(self.norm(self.stem(x))), 3, 2, 1)
        return functional.cross_entropy(self.head(self.blocks(x).mean((2, 3))).float(), y)


class OfTransformers(nn.Module):
    """A model of transformers by its configuration, random weights; its loss is part of it."""

    def __init__(self, kind: str, layers: int, heads: int, width: int, inner: int, vocabulary: int, length: int) -> None:
        super().__init__()
        import transformers

        sizes = {
            "num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": width, "intermediate_size": inner,
            "vocab_size": vocabulary, "max_position_embeddings": length,
        }  # fmt: skip
        if kind == "llama":
            self.model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
        else:
            self.model = transformers.BertForMaskedLM(transformers.BertConfig(**sizes))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits = self.model(input_ids=x).logits
        return functional.cross_entropy(logits.float().flatten(0, 1), y.flatten())


def main() -> None:
    """One job."""
    parser = argparse.ArgumentParser()
    for name, kind in (("model", str), ("shape", str), ("batch", str), ("steps", int), ("precision", str), ("largest", int)):
        parser.add_argument(f"--{name}", type=kind)
    options = parser.parse_args()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    model: nn.Module
    if options.model == "gpt2":
        layers, heads, width, vocabulary, length, batch = GPT2[options.shape]
        model, items = Gpt2(layers, heads, width, vocabulary, length), length
    elif options.model in ("llama", "bert"):
        *sizes, vocabulary, length, batch = {"llama": LLAMA, "bert": BERT}[options.model][options.shape]
        model, items = OfTransformers(options.model, *sizes, vocabulary, length), length
    else:
        stages, width, classes, pixels, batch = RESNET[options.shape]
        model, items = ResNet(stages, width, classes), 1
    batch = int(options.batch or batch)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=cuda or None)
    generator = torch.Generator().manual_seed(1)

    def step(batch: int) -> torch.Tensor:
        if options.model != "resnet":
            tokens = torch.randint(0, vocabulary, (batch, length + 1), generator=generator).to(device)
            x, y = tokens[:, :-1], tokens[:, 1:]
        else:
            x = torch.randn(batch, 3, pixels, pixels, generator=generator).to(device)
            y = torch.randint(0, classes, (batch,), generator=generator).to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=options.precision == "bf16"):
            loss = model(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    for _ in range(4):  # the second one is compiled; the others find out what else changes
        step(batch)
    seconds = []
    for _ in range(options.steps):
        if cuda:
            torch.cuda.synchronize()
        began = time.perf_counter()
        loss = step(batch)
        if cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    middle = sorted(seconds)[len(seconds) // 2]
    peak = torch.cuda.max_memory_allocated() if cuda else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    result = {
        "batch": batch,
        "ms": round(1000 * middle, 1),
        "items_per_s": round(batch * items / middle),
        "peak_mib": round(peak / 2**20),
        "loss": round(loss.item(), 5),
        "parameters": sum(value.numel() for value in model.parameters()),
    }
    if options.largest:
        from trainshed.compiler import find_batch_size

        result["largest"] = find_batch_size(step, start=batch, multiple_of=2).batch
    print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
