"""Models of many shapes, small enough for a test: `ZOO[name]()` gives (model, step inputs, step function).

A step function takes the model and the inputs of one microbatch, and calls `model.backward(loss)`, as a user's does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import zoo_names
from torch import nn
from torch.utils.checkpoint import checkpoint

BATCH = 8
Case = tuple[nn.Module, tuple[Any, ...], Any]


def classify(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The commonest step: logits, cross entropy."""
    loss = F.cross_entropy(model(x), y)
    model.backward(loss)
    return loss


def _labels(classes: int = 5) -> torch.Tensor:
    return torch.randint(0, classes, (BATCH,))


class Residual(nn.Module):
    def __init__(self, width: int, drop: float = 0.0) -> None:
        super().__init__()
        self.a, self.b, self.norm, self.drop = (
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
            nn.LayerNorm(width),
            nn.Dropout(drop),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.b(torch.relu(self.a(self.norm(x)))))


def mlp() -> Case:
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(16, 16), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Linear(16, 5)), (torch.randn(BATCH, 16), _labels()), classify


class CutOff(nn.Module):
    """What stands before a `detach` has no gradient, also on earlier stages."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.b(torch.tanh(self.a(x))))
        return self.d(torch.tanh(self.c(x.detach())))


def cut_off() -> Case:
    return CutOff(), (torch.randn(BATCH, 16), _labels()), classify


class BasicBlock(nn.Module):
    def __init__(self, cin: int, cout: int, stride: int) -> None:
        super().__init__()
        self.c1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.b1, self.b2 = nn.BatchNorm2d(cout), nn.BatchNorm2d(cout)
        self.c2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.short = nn.Conv2d(cin, cout, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.relu(self.b1(self.c1(x)), inplace=True)
        out = self.b2(self.c2(out))
        out += self.short(x)
        return F.relu(out)


def cnn() -> Case:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.ReLU(), BasicBlock(8, 8, 1), BasicBlock(8, 16, 2),
        BasicBlock(16, 16, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5),
    )  # fmt: skip
    return model, (torch.randn(BATCH, 3, 8, 8), _labels()), classify


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(c, 2 * c, 3, 2, 1) for c in (4, 8)])
        self.stem, self.mid = nn.Conv2d(3, 4, 3, 1, 1), nn.Conv2d(16, 16, 3, 1, 1)
        self.up = nn.ModuleList([nn.ConvTranspose2d(2 * c, c, 2, 2) for c in (8, 4)])
        self.fuse = nn.ModuleList([nn.Conv2d(2 * c, c, 3, 1, 1) for c in (8, 4)])
        self.head = nn.Conv2d(4, 5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        skips = []
        for down in self.down:
            skips.append(x)
            x = torch.relu(down(x))
        x = self.mid(x)
        for up, fuse in zip(self.up, self.fuse, strict=True):
            x = torch.relu(fuse(torch.cat([up(x), skips.pop()], 1)))
        return self.head(x).mean((2, 3))


def unet() -> Case:
    return UNet(), (torch.randn(BATCH, 3, 8, 8), _labels()), classify


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 12)
        self.layers = nn.ModuleList([nn.LSTM(12, 12, batch_first=True) for _ in range(6)])
        self.last, self.head = nn.LSTM(12, 12, batch_first=True), nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, state = self.embed(x), None
        for layer in self.layers:
            out, state = layer(out.flip(1), state)
        out, (hidden, _) = self.last(out, state)
        return self.head(hidden[-1] + out[:, -1])


def lstm() -> Case:
    return Recurrent(), (torch.randint(0, 20, (BATCH, 6)), _labels()), classify


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 12)
        self.blocks = nn.ModuleList([Residual(12) for _ in range(4)])
        self.head = nn.Linear(12, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x).mean(1)


def tied() -> Case:
    return Tied(), (torch.randint(0, 20, (BATCH, 6)), _labels(20)), classify


class TiedFunctional(Tied):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.embedding(x, self.embed.weight)
        for block in self.blocks:
            x = block(x)
        return F.linear(x, self.embed.weight * 0.5).mean(1)


def tied_in_glue() -> Case:
    return TiedFunctional(), (torch.randint(0, 20, (BATCH, 6)), _labels(20)), classify


class Reused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inward, self.block, self.out = nn.Linear(10, 12), Residual(12), nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inward(x)
        for _ in range(6):
            x = self.block(x)
        return self.out(x)


def reused() -> Case:
    return Reused(), (torch.randn(BATCH, 10), _labels()), classify


@dataclass
class State:
    x: torch.Tensor
    extras: dict[str, Any]


class DictBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(12, 12)

    def forward(self, state: State, mask: torch.Tensor | None = None) -> State:
        x = self.line(state.x) * mask
        return State(
            x, {"sum": state.extras["sum"] + x.t(), "depth": state.extras["depth"] + 1, "first": state.extras["first"]}
        )


class DictState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inward, self.blocks = nn.Linear(10, 12), nn.ModuleList([DictBlock() for _ in range(7)])
        self.out = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        x = self.inward(x)
        state = State(x, {"sum": torch.zeros(12, x.shape[0]), "depth": 0, "first": x})
        for block in self.blocks:
            state = block(state, mask=mask)
        return {
            "logits": self.out(torch.tanh(state.x) + state.extras["sum"].t() / state.extras["depth"] + state.extras["first"])
        }


def dict_state() -> Case:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        mask = (x.sum(1, keepdim=True) > 0).float() + 0.5
        out = model(x, mask=mask)
        loss = F.cross_entropy(out["logits"], y)
        model.backward(loss)
        return {"loss": loss, "logits": out["logits"]}

    return DictState(), (torch.randn(BATCH, 10), _labels()), step


class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(10, 12), Residual(12), Residual(12))
        self.right = nn.Sequential(nn.Linear(10, 12), Residual(12), Residual(12))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = self.left(x), self.right(x.flip(0))
        return self.scale * left @ right.t()


def two_towers() -> Case:
    def step(model: Any, x: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(x), torch.arange(x.shape[0]))
        model.backward(loss)
        return loss

    return TwoTowers(), (torch.randn(BATCH, 10),), step


class SharedTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 12)
        self.encoder = nn.ModuleList([nn.TransformerEncoderLayer(12, 2, 24, 0.0, batch_first=True) for _ in range(3)])
        self.decoder = nn.ModuleList([nn.TransformerDecoderLayer(12, 2, 24, 0.0, batch_first=True) for _ in range(3)])

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        memory = self.table(source)
        for layer in self.encoder:
            memory = layer(memory)
        x = self.table(target)
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        for layer in self.decoder:
            x = layer(x, memory, tgt_mask=mask)
        return x @ self.table.weight.t()


def shared_table() -> Case:
    def step(model: Any, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(source, target).flatten(0, 1), target.flatten())
        model.backward(loss)
        return loss

    return SharedTable(), (torch.randint(0, 20, (BATCH, 5)), torch.randint(0, 20, (BATCH, 4))), step


class Experts(nn.Module):
    """Top-1 mixture with `nonzero`: values decide shapes, inside one module."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(width, 3), nn.ModuleList([nn.Linear(width, width) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, choice = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            rows = (choice == index).nonzero().flatten()
            if rows.numel():
                out = out.index_add(0, rows, expert(x[rows]) * weight[rows, None])
        return x + out


def experts() -> Case:
    model = nn.Sequential(nn.Linear(10, 12), Experts(12), Residual(12), Experts(12), Residual(12), nn.Linear(12, 5))
    return model, (torch.randn(BATCH, 10), _labels()), classify


class Deciding(nn.Module):
    """Glue that branches on values, in a container that has modules inside."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(12, 12), nn.Linear(12, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        return torch.tanh(x) if x.mean() > 0 else self.b(x)


def data_dependent() -> Case:
    model = nn.Sequential(nn.Linear(10, 12), Deciding(), Residual(12), Deciding(), Residual(12), nn.Linear(12, 5))
    return model, (torch.randn(BATCH, 10), _labels()), classify


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lines = nn.ModuleList([nn.Linear(12, 12) for _ in range(9)])
        self.position = nn.Parameter(torch.randn(1, 12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.lines[0](x) + self.position
        kept = x * 2
        for line in self.lines[1:]:
            x = line(x)
            x.mul_(0.5)
            x += kept
            x[:, 0] = x[:, 1]
        part = x[:, :6]
        part.add_(1.0)
        return x


def in_place() -> Case:
    return InPlace(), (torch.randn(BATCH, 12), _labels()), classify


def dropout() -> Case:
    blocks = [Residual(12, 0.3) for _ in range(4)]
    return nn.Sequential(nn.Linear(10, 12), *blocks, nn.Linear(12, 5)), (torch.randn(BATCH, 10), _labels()), classify


def _language(model: nn.Module, vocabulary: int = 64, length: int = 10, **extra: Any) -> Case:
    ids = torch.randint(0, vocabulary, (BATCH, length))
    mask = torch.ones_like(ids)
    mask[::2, -2:] = 0

    def step(model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        out = model(input_ids=input_ids, attention_mask=attention_mask, labels=input_ids, **extra)
        model.backward(out.loss)
        return out.loss

    return model, (ids, mask), step


def gpt2() -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=64, n_positions=16, n_embd=16, n_layer=4, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    return _language(GPT2LMHeadModel(config).train(), use_cache=False)


def bert() -> Case:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
    )  # fmt: skip
    return _language(BertForMaskedLM(config).train())


def vit() -> Case:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4,
        hidden_dropout_prob=0, attention_probs_dropout_prob=0, num_labels=5,
    )  # fmt: skip

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        out = model(pixel_values=x, labels=y)
        model.backward(out.loss)
        return out

    return ViTForImageClassification(config).train(), (torch.randn(BATCH, 3, 8, 8), _labels()), step


def t5() -> Case:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=3, num_heads=2, dropout_rate=0, decoder_start_token_id=0
    )
    return _language(T5ForConditionalGeneration(config).train())


def llama() -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=4, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=32,
    )  # fmt: skip
    return _language(LlamaForCausalLM(config).train(), use_cache=False)


def mixtral() -> Case:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, num_local_experts=3, max_position_embeddings=32,
    )  # fmt: skip
    return _language(MixtralForCausalLM(config).train(), use_cache=False)


ZOO = {name: globals()[name] for name in zoo_names.ZOO}


class FourParts(nn.Module):
    """Exactly four units, so that each is a stage of its own where there are four; the second one is special."""

    def __init__(self, odd: Odd) -> None:
        super().__init__()
        self.stem, self.odd, self.mid, self.head = nn.Linear(12, 12), odd, nn.Linear(12, 12), nn.Linear(12, 5)
        self.stem.requires_grad_(not odd.frozen_before)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, side = self.odd(torch.tanh(self.stem(x)))
        return self.head(torch.relu(self.mid(x)) + side)


class Odd(nn.Module):
    """A module without children: a unit. It gives two results."""

    frozen_before = False

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(12, 12) / 4), nn.Parameter(torch.randn(12))

    def line(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x, self.weight)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.line(x), x


class Apart(Odd):
    """The second result does not depend on what comes in."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, self.weight.sum(0) + self.bias


class PartlyApart(Odd):
    """The second result does not depend on what comes in, and is made from the parameters that the first one needs too."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.line(x), self.weight.sum(0) * self.bias


class Branches(Odd):
    """Parameters that are used several times side by side."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.line(x) + self.line(x.flip(0)), x @ self.weight[:, :6].repeat(1, 2)


class Again(Odd):
    """Parameters that are used again further down."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.line(torch.tanh(self.line(x))), x


class Hooked(Odd):
    """A hook that changes the gradient of a value."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = self.line(x)
        if made.requires_grad:
            made.register_hook(lambda gradient: gradient * 0.5)
        return made, x


class FrozenOdd(Odd):
    """Nothing is trained here."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


class FrozenBefore(Odd):
    """Nothing before it is trained."""

    frozen_before = True


class Checkpointed(Odd):
    reentrant = False

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return checkpoint(lambda x: torch.tanh(self.line(x)), x, use_reentrant=self.reentrant), x


class CheckpointedReentrant(Checkpointed):
    reentrant = True


class OnTheSide(Odd):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autograd.graph.save_on_cpu():
            return torch.tanh(self.line(x)), x


class ByHand(torch.autograd.Function):
    """A product whose backward is not torch's."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return gradients[0] @ weight.t(), x.t() @ gradients[0]


class OwnFunction(Odd):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return ByHand.apply(x, self.weight) + self.bias, x


class ModuleHooked(Odd):
    def __init__(self) -> None:
        super().__init__()
        self.register_full_backward_hook(lambda _module, inward, _outward: (inward[0] * 0.5,))


class Compiled(Odd):
    def __init__(self) -> None:
        super().__init__()
        self.product = torch.compile(torch.addmm, backend="aot_eager")

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.product(self.bias, x, self.weight).sin(), x


WHOLE: dict[str, type[Odd]] = {name: globals()[name] for name in zoo_names.WHOLE}
ODD: dict[str, type[Odd]] = {name: globals()[name] for name in zoo_names.ODD}


def build(name: str, seed: int = 0) -> Case:
    """The same model and inputs on every rank."""
    torch.manual_seed(seed)
    if name in ODD:
        return FourParts(ODD[name]()), (torch.randn(BATCH, 12), _labels()), classify
    return ZOO[name]()
