"""The training of text_classification.py: a transformer with one output a class, in the loop of `_epochs`."""

from __future__ import annotations

import zlib
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import _pictures
import _told
import numpy
import torch
import transformers
from _common import Problem, World
from _epochs import Epochs, Task, about_model, freeze_unused
from _labelled import Labelled, texts_of
from _predicting import Answers
from _pretrained import NO_CODE, context, fingerprint, load_tokenizer, unloadable
from _tokens import new_tokenizer
from _trainer import save
from _turns import first_line
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedTokenizerBase, set_seed
from transformers.utils import logging

if TYPE_CHECKING:
    from text_classification import Data

PROGRAM = "text_classification"


class Rows:
    """Texts as tokens, and what is to be learnt of each: its class, or 0 and 1 for each class."""

    def __init__(self, texts: Sequence[Labelled], data: Data, tokenizer: PreTrainedTokenizerBase, length: int) -> None:
        self.tokens = tokens_of([row.text for row in texts], tokenizer, length)
        index = {label: at for at, label in enumerate(data.classes)}
        if data.many:
            self.wanted = torch.zeros(len(texts), len(index))
            for at, row in enumerate(texts):
                self.wanted[at, [index[label] for label in row.labels]] = 1
        else:
            self.wanted = torch.tensor([index[row.labels[0]] for row in texts], dtype=torch.int64)

    def digest(self) -> str:
        """Differs where the texts or their labels do."""
        value = zlib.crc32(self.wanted.numpy().tobytes())
        for row in self.tokens:
            value = zlib.crc32(numpy.asarray(row, numpy.int32).tobytes(), value)
        return f"{len(self.tokens)} texts, {value:08x}"


def tokens_of(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, length: int) -> list[list[int]]:
    """The tokens of each text, no more than `length`, with those that the tokenizer puts around them."""
    if not texts:
        return []
    return [list(row) for row in tokenizer(list(texts), truncation=True, max_length=length)["input_ids"]]


def batch_of(rows: Sequence[list[int]], pad: int, device: torch.device) -> dict[str, Tensor]:
    """Rows of tokens as what a model takes, filled up to the longest. [rows, tokens]"""
    width = max(map(len, rows))
    tokens = torch.tensor([row + [pad] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return {"input_ids": tokens.to(device), "attention_mask": mask.to(device)}


class Classifying(Task):
    """Learns the classes of texts."""

    program = PROGRAM
    watched, higher = "f1", True

    def __init__(self, hp: Namespace, model: Any, tokenizer: Any, data: Data, length: int, world: World, start: str) -> None:
        self.hp, self.network, self.tokenizer, self.data, self.world = hp, model, tokenizer, data, world
        self.rows = {part: Rows(texts, data, tokenizer, length) for part, texts in data.parts.items()}
        self.count = len(self.rows["train"].tokens)
        self.parts = {part: len(rows.tokens) for part, rows in self.rows.items()}
        self.pad = tokenizer.pad_token_id
        known = model.get_input_embeddings().num_embeddings
        highest = max(max(row) for rows in self.rows.values() for row in rows.tokens)
        if highest >= known:
            raise Problem(f"the tokenizer makes token {highest}, but the model knows {known}: they do not belong together")
        self.weights: Tensor | None = None
        if hp.class_weights == "balanced":
            wanted = self.rows["train"].wanted
            counts = wanted.sum(0) if data.many else torch.bincount(wanted, minlength=len(data.classes))
            self.weights = (self.count / counts.clamp(min=1) / len(data.classes)).float().to(world.device)
        digests = {part: rows.digest() for part, rows in self.rows.items() if part != "test"}
        self.facts = {"classes": list(data.classes), "max_length": length, "start": start, "texts": digests}
        self.facts["class_weights"] = hp.class_weights

    def logits(self, model: nn.Module, part: str, positions: Sequence[int]) -> Tensor:
        """What the model makes of texts. [texts, classes]"""
        rows = [self.rows[part].tokens[at] for at in positions]
        logits: Tensor = model(**batch_of(rows, self.pad, self.world.device)).logits.float()
        return logits

    def each(self, logits: Tensor, wanted: Tensor) -> Tensor:
        """The loss of each text."""
        if self.data.many:
            return functional.binary_cross_entropy_with_logits(
                logits, wanted, pos_weight=self.weights, reduction="none"
            ).mean(1)  # fmt: skip
        return functional.cross_entropy(logits, wanted, self.weights, reduction="none")

    def loss(self, model: nn.Module, whole: Sequence[int], mine: slice, place: tuple[int, int]) -> tuple[Tensor, float]:
        wanted = self.rows["train"].wanted.to(self.world.device)
        own = list(whole)[mine]
        divisor = float(len(whole))
        if self.weights is not None and not self.data.many:
            divisor = self.weights[wanted[list(whole)]].sum().item()
        return self.each(self.logits(model, "train", own), wanted[own]).sum(), divisor

    def outputs(self, part: str, positions: Sequence[int]) -> list[Any]:
        return list(self.logits(self.network, part, positions).cpu().numpy())

    def scores(self, part: str, outputs: list[Any]) -> dict[str, float]:
        logits, wanted = torch.from_numpy(numpy.stack(outputs)), self.rows[part].wanted
        if self.data.many:
            loss = functional.binary_cross_entropy_with_logits(logits, wanted).item()
            hit, wanted = logits > 0, wanted > 0
            right = (hit == wanted).all(1)
        else:
            loss = functional.cross_entropy(logits, wanted).item()
            right = logits.argmax(1) == wanted
            hit, wanted = (functional.one_hot(one, len(self.data.classes)) > 0 for one in (logits.argmax(1), wanted))
        both, either = (hit & wanted).sum(0), hit.sum(0) + wanted.sum(0)
        f1 = (2 * both / either.clamp(min=1))[either > 0].mean() if either.any() else torch.zeros(())
        return {"loss": loss, "accuracy": right.double().mean().item(), "f1": f1.item()}

    def draw(self, part: str, outputs: list[Any]) -> None:
        logits, wanted = torch.from_numpy(numpy.stack(outputs)), self.rows[part].wanted[: len(outputs)]
        if self.data.many:
            hit, there = (logits > 0).numpy(), (wanted > 0).numpy()
            rows = [
                _pictures.class_row(name, (hit & there)[:, at].sum(), hit[:, at].sum(), there[:, at].sum())
                for at, name in enumerate(self.data.classes)
            ]
            _told.keep(self.hp, "classes", f"Classes on {part}", _pictures.CLASS_HEADS, rows)
            return
        likely, truth = logits.softmax(1).numpy(), wanted.numpy()
        _pictures.of_classes(self.hp, part, self.data.classes, truth, likely)
        rows = [
            (self.data.parts[part][at].text[:200], *_pictures.said_of(self.data.classes, truth, likely, at))
            for at in _pictures.mistakes(truth, likely)
        ]
        _told.keep(self.hp, "mistakes", f"Surest mistakes on {part}", ("text", "is", "said", "how sure"), rows)

    def save(self, target: Path) -> dict[str, Any]:
        save(target, self.network, self.tokenizer)
        return {
            "classes": list(self.data.classes),
            "multi_label": self.data.many,
            "max_length": self.facts["max_length"],
            "versions": {"transformers": transformers.__version__},
        }


# --- models -----------------------------------------------------------------------------------------------------------


def new_model(hp: Namespace, tokenizer: PreTrainedTokenizerBase, labels: dict[str, Any]) -> Any:
    """A small model with random weights. Raises Problem for sizes that its kind does not have."""
    config = AutoConfig.for_model(
        hp.architecture,
        vocab_size=len(tokenizer),
        hidden_size=hp.hidden_size,
        num_hidden_layers=hp.num_hidden_layers,
        num_attention_heads=hp.num_attention_heads,
        intermediate_size=4 * hp.hidden_size,
        max_position_embeddings=hp.max_length + 2,  # RoBERTa counts from the padding token's number + 1
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
        **labels,
    )
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout", "mlp_dropout"):
        if hasattr(config, name):
            setattr(config, name, hp.dropout)
    if hasattr(config, "embedding_size"):
        config.embedding_size = hp.hidden_size
    try:
        return AutoModelForSequenceClassification.from_config(config)
    except (ValueError, RuntimeError, TypeError) as error:
        raise Problem(f"there is no {hp.architecture} of these sizes: {first_line(error)}") from error


def load_model(source: str, labels: dict[str, Any], world: World) -> Any:
    """A trained model to go on from; its classes are replaced where they are others. Raises Problem."""
    try:
        config = AutoConfig.from_pretrained(source, local_files_only=True, **NO_CODE)
        same = list((config.id2label or {}).values()) == list(labels["id2label"].values())
        model, facts = AutoModelForSequenceClassification.from_pretrained(
            source, local_files_only=True, output_loading_info=True, dtype=torch.float32, ignore_mismatched_sizes=not same,
            **labels, **NO_CODE,
        )  # fmt: skip
    except Exception as error:  # of any library, about files that are not ours
        raise unloadable(source, "classifier of texts", error) from error
    if wrong := [name for name, weight in model.named_parameters() if not torch.isfinite(weight).all()]:
        raise Problem(f"{source} has weights that are not finite numbers: {wrong[0]}")
    new = {str(name) for name in facts["missing_keys"]} | {str(one[0]) for one in facts["mismatched_keys"] or ()}
    if strange := sorted(name for name in new if name.startswith(f"{model.base_model_prefix}.") and "pooler" not in name):
        raise Problem(f"{source} lacks weights of its {type(model).__name__}: {strange[0]}")
    if new:
        world.say(f"going on from {source}; new weights for these classes: {', '.join(sorted(new))}")
    return model


def train(hp: Namespace, source: str | None, data: Data, world: World) -> None:
    """The whole job. Raises Problem."""
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # new weights of a pretrained model are ours to say
    labels: dict[str, Any] = {
        "id2label": dict(enumerate(data.classes)),
        "label2id": {label: at for at, label in enumerate(data.classes)},
        "problem_type": "multi_label_classification" if data.many else "single_label_classification",
    }
    set_seed(hp.seed)
    if source is None:
        texts = [row.text for row in data.parts["train"]]
        tokenizer = new_tokenizer(texts, hp.vocab_size, hp.max_length, world)
        model, length = new_model(hp, tokenizer, labels), hp.max_length
    else:
        tokenizer, model = load_tokenizer(source), load_model(source, labels, world)
        length = min(hp.max_length, context(model) or hp.max_length, tokenizer.model_max_length)
        if tokenizer.pad_token_id is None:
            raise Problem(f"the tokenizer in {source} names no pad_token")
        model.config.pad_token_id = tokenizer.pad_token_id
    model.to(world.device)
    task = Classifying(hp, model, tokenizer, data, length, world, fingerprint(model))
    freeze_unused(model, lambda: task.logits(model, "train", [0]))
    Epochs(hp, world, task).run(f"{task.count} texts, {len(data.classes)} classes")


def predict(hp: Namespace) -> None:
    """Prints one JSON line a text of the file `predict`: its class and how likely it is, or all its classes."""
    logging.disable_progress_bar()
    facts = about_model(hp.model_dir, PROGRAM)
    answers = Answers()
    told = texts_of(hp.predict, hp.text_column or "", answers)
    texts = [text for _, text in told]
    device = torch.device("cuda" if hp.device != "cpu" and torch.cuda.is_available() else "cpu")
    if hp.device == "cuda" and device.type != "cuda":
        raise Problem("device is cuda, but torch sees no GPU here; use device cpu or auto")
    tokenizer = load_tokenizer(hp.model_dir)
    try:
        model = AutoModelForSequenceClassification.from_pretrained(hp.model_dir, local_files_only=True, **NO_CODE)
    except Exception as error:
        raise unloadable(hp.model_dir, "classifier of texts", error) from error
    model.to(device).eval()
    rows = tokens_of(texts, tokenizer, facts["max_length"])
    classes = facts["classes"]
    for start in range(0, len(rows), hp.batch_size):
        with torch.no_grad():
            logits = model(**batch_of(rows[start : start + hp.batch_size], tokenizer.pad_token_id, device)).logits.float()
        for (kept, text), scores in zip(
            told[start:], logits.sigmoid() if facts["multi_label"] else logits.softmax(1), strict=False
        ):
            likely = {label: round(score, 6) for label, score in zip(classes, scores.tolist(), strict=True)}
            best = max(likely, key=lambda label: likely[label])
            said: dict[str, Any] = {"classes": [one for one in classes if likely[one] > 0.5], "probabilities": likely}
            if not facts["multi_label"]:
                said = {"class": best, "probability": likely[best]}
            answers.say(kept, {"text": text, **said})
    answers.end()
