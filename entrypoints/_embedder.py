"""The training of embeddings.py: a model of sentence-transformers, in the loop of `_epochs`."""

from __future__ import annotations

import tempfile
import zlib
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import sentence_transformers
import torch
import transformers
from _classifier import batch_of, tokens_of
from _common import Problem, World
from _epochs import Epochs, Task, about_model, freeze_unused
from _labelled import texts_of
from _pairs import Related, form
from _predicting import Answers
from _pretrained import fingerprint, unloadable
from _tokens import new_tokenizer
from _trainer import save
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertConfig, BertModel, set_seed
from transformers.utils import logging

PROGRAM = "embeddings"
BLOCK = 1024  # anchors that are compared with all others at a time


class Embedding(nn.Module):
    """A model of sentence-transformers that takes tokens and gives embeddings, each of length 1. [texts, width]"""

    def __init__(self, model: SentenceTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: dict[str, Tensor]) -> Tensor:
        made: Tensor = self.model(dict(tokens))["sentence_embedding"]
        return functional.normalize(made.float(), dim=1)


class Relating(Task):
    """Learns which texts belong together.

    Of pairs and triplets, each anchor shall be nearest to its own text among all of the batch, of all ranks (the loss of
    sentence-transformers' MultipleNegativesRankingLoss). Of scores, the cosine shall be the score (CosineSimilarityLoss).
    """

    program = PROGRAM
    higher = True

    def __init__(self, hp: Namespace, model: SentenceTransformer, parts: dict[str, list[Related]], world: World) -> None:
        self.world, self.scale, self.rows = world, hp.scale, parts
        self.kind = form(parts["train"][0])
        self.watched = "correlation" if self.kind == "scores" else "accuracy"
        self.network, self.tokenizer = Embedding(model).to(world.device), model.tokenizer
        self.length = model.max_seq_length
        self.batch = hp.batch_size // world.size * world.size
        self.tokens = {
            part: [tokens_of(row.texts, self.tokenizer, self.length) for row in rows] for part, rows in parts.items()
        }
        self.count = len(parts["train"])
        self.parts = {part: len(rows) for part, rows in parts.items()}
        if self.count < world.size:
            raise Problem(f"the channel train has {self.count} examples, less than the {world.size} ranks")
        self.facts = {
            "max_length": self.length,
            "scale": hp.scale,
            "start": fingerprint(model),
            "texts": {part: digest(parts[part], self.tokens[part]) for part in ("train", "validation")},
        }

    def positions(self, seed: int, epoch: int) -> Sequence[int]:
        """Whole batches alone: what an anchor is compared with is the batch. A lone short one has as many for each rank."""
        order = super().positions(seed, epoch)
        return order[: len(order) // self.batch * self.batch or len(order) // self.world.size * self.world.size]

    def embed(self, model: nn.Module, part: str, positions: Sequence[int]) -> Tensor:
        """Embeddings of the texts of examples. [texts of an example, examples, width]"""
        rows = [self.tokens[part][at] for at in positions]
        every = [row[which] for which in range(len(rows[0])) for row in rows]
        made: Tensor = model(batch_of(every, self.tokenizer.pad_token_id, self.world.device))
        return made.reshape(len(rows[0]), len(rows), -1)

    def scores_of(self, part: str, positions: Sequence[int]) -> Tensor:
        """The scores of examples."""
        return torch.tensor([self.rows[part][at].score for at in positions], device=self.world.device)

    def loss(self, model: nn.Module, whole: Sequence[int], mine: slice, place: tuple[int, int]) -> tuple[Tensor, float]:
        own = list(whole)[mine]
        made = self.embed(model, "train", own)
        if self.kind == "scores":
            return ((made[0] * made[1]).sum(1) - self.scores_of("train", own)).square().sum(), float(len(whole))
        # Texts of all ranks one after the other; those of this one begin where its part does.
        others, first = made[1:].reshape(-1, made.shape[-1]), 0
        if self.world.size > 1:
            from torch.distributed.nn.functional import all_gather

            first = self.world.rank * len(others)
            others = torch.cat(all_gather(others.contiguous()))
        wanted = torch.arange(first, first + len(own), device=others.device)
        return functional.cross_entropy(self.scale * made[0] @ others.T, wanted, reduction="sum"), float(len(whole))

    def outputs(self, part: str, positions: Sequence[int]) -> list[Any]:
        return list(self.embed(self.network, part, positions).transpose(0, 1).cpu().numpy())

    def scores(self, part: str, outputs: list[Any]) -> dict[str, float]:
        made = torch.from_numpy(numpy.stack(outputs)).transpose(0, 1)  # [texts, examples, width]
        if self.kind == "scores":
            alike, wanted = (made[0] * made[1]).sum(1), self.scores_of(part, range(len(outputs))).cpu()
            return {"loss": (alike - wanted).square().mean().item(), "correlation": correlation(alike, wanted)}
        others = made[1:].reshape(-1, made.shape[-1])
        loss = right = reciprocal = 0.0
        for start in range(0, len(outputs), BLOCK):
            near = made[0, start : start + BLOCK] @ others.T
            wanted = torch.arange(start, start + len(near))
            loss += functional.cross_entropy(self.scale * near, wanted, reduction="sum").item()
            ranks = (near > near.gather(1, wanted[:, None])).sum(1) + 1  # of the own text; the same text twice is no mistake
            right += (ranks == 1).sum().item()
            reciprocal += (1 / ranks).sum().item()
        count = len(outputs)
        return {"loss": loss / count, "accuracy": right / count, "reciprocal_rank": reciprocal / count}

    def save(self, target: Path) -> dict[str, Any]:
        save(target, self.network.model)  # type: ignore[arg-type]
        versions = {one.__name__: one.__version__ for one in (transformers, sentence_transformers)}
        width = self.network(batch_of([self.tokens["train"][0][0]], 0, self.world.device)).shape[1]
        return {"versions": versions, "max_length": self.length, "width": width, "trained_on": self.kind}


def correlation(first: Tensor, second: Tensor) -> float:
    """Pearson's; 0 where one side is all the same."""
    first, second = first.double() - first.double().mean(), second.double() - second.double().mean()
    size = (first.norm() * second.norm()).item()
    return (first @ second).item() / size if size else 0.0


def digest(rows: Sequence[Related], tokens: Sequence[Any]) -> str:
    """Differs where the texts or their scores do."""
    value = 0
    for row, each in zip(rows, tokens, strict=True):
        value = zlib.crc32(f"{each} {row.score}".encode(), value)
    return f"{len(rows)} examples, {value:08x}"


# --- models -----------------------------------------------------------------------------------------------------------


def new_model(hp: Namespace, texts: Sequence[str], world: World) -> SentenceTransformer:
    """A small model with random weights: the mean of what a transformer makes of the tokens."""
    tokenizer = new_tokenizer(texts, hp.vocab_size, hp.max_length, world)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=hp.hidden_size,
        num_hidden_layers=hp.num_hidden_layers,
        num_attention_heads=hp.num_attention_heads,
        intermediate_size=4 * hp.hidden_size,
        max_position_embeddings=hp.max_length + 2,
        pad_token_id=tokenizer.pad_token_id,
        hidden_dropout_prob=hp.dropout,
        attention_probs_dropout_prob=hp.dropout,
    )
    with tempfile.TemporaryDirectory() as place:
        # Not by save_pretrained, which writes on rank 0 alone.
        config.save_pretrained(place)
        save_file(
            BertModel(config, add_pooling_layer=False).state_dict(), Path(place) / "model.safetensors", {"format": "pt"}
        )
        tokenizer.save_pretrained(place)
        return SentenceTransformer(modules=[Transformer(place), Pooling(hp.hidden_size, "mean")], device="cpu")


def load_model(source: str) -> SentenceTransformer:
    """The model of a folder: of sentence-transformers, or of Transformers, whose outputs' mean is taken. Raises Problem."""
    try:
        model = SentenceTransformer(source, device="cpu", local_files_only=True, trust_remote_code=False)
        model.tokenizer("a", truncation=True, max_length=4)
    except Exception as error:  # of any library, about files that are not ours
        raise unloadable(source, "embedding of texts", error) from error
    if wrong := [name for name, weight in model.named_parameters() if not torch.isfinite(weight).all()]:
        raise Problem(f"{source} has weights that are not finite numbers: {wrong[0]}")
    if getattr(model.tokenizer, "pad_token_id", None) is None:
        raise Problem(f"the tokenizer in {source} names no pad_token")
    return model.float()


def train(hp: Namespace, source: str | None, parts: dict[str, list[Related]], world: World) -> None:
    """The whole job. Raises Problem."""
    logging.disable_progress_bar()
    set_seed(hp.seed)
    if source is None:
        model = new_model(hp, [text for row in parts["train"] for text in row.texts], world)
    else:
        model = load_model(source)
    model.max_seq_length = min(hp.max_length, model.max_seq_length or hp.max_length)
    task = Relating(hp, model, parts, world)
    freeze_unused(task.network, lambda: task.embed(task.network, "train", [0]))
    Epochs(hp, world, task).run(f"{task.count} {task.kind}")


def predict(hp: Namespace) -> None:
    """Prints one JSON line a text of the file `predict`, with its embedding."""
    logging.disable_progress_bar()
    about_model(hp.model_dir, PROGRAM)
    answers = Answers()
    told = texts_of(hp.predict, hp.text_column or "", answers)
    texts = [text for _, text in told]
    if hp.device == "cuda" and not torch.cuda.is_available():
        raise Problem("device is cuda, but torch sees no GPU here; use device cpu or auto")
    model = load_model(hp.model_dir)
    model.to("cuda" if hp.device != "cpu" and torch.cuda.is_available() else "cpu")
    made = model.encode(texts, batch_size=hp.batch_size, normalize_embeddings=True, show_progress_bar=False)
    for (kept, text), numbers in zip(told, made.tolist(), strict=True):
        answers.say(kept, {"text": text, "embedding": [round(number, 7) for number in numbers]})
    answers.end()
