"""Trains a GPT-2 language model from scratch, from hyperparameters alone, with the Trainer of Transformers.

    python language_model.py --max_steps 100                        # no job, no data: Python's help topics, ./model
    python language_model.py --train DIR --n_layer 4 --n_embd 256   # every *.txt below DIR
    torchrun --nproc-per-node 2 language_model.py --demo_data topics
    python language_model.py --predict texts.txt --model_dir model  # goes on with each text

In a training job the hyperparameters come as `--key value` and the folders from SM_CHANNEL_TRAIN, SM_CHANNEL_TOKENIZER,
SM_CHANNEL_VALIDATION, SM_MODEL_DIR and SM_OUTPUT_DATA_DIR. docs/programs/language_model.md has the table of hyperparameters.

The model folder is one that `from_pretrained` loads: GPT2LMHeadModel and its tokenizer. Without a tokenizer of yours a
token is a byte. Nothing is looked up on the network.
"""

from __future__ import annotations

from _common import (
    Parser,
    Problem,
    World,
    checkpoint_folder,
    folder,
    in_job,
    looked,
    piped,
    previous_model,
    run,
    write_json,
)

from trainshed.checkpoint import listen

if __name__ == "__main__":
    listen()  # before torch is imported: that takes seconds, and a stop in that time shall end with status 0 too

import math
import os
import sys
import zlib
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import _told
import numpy
import torch
from _labelled import texts_of
from _predicting import Answers
from _trainer import FiniteTrainer, Reporter, require_finite, require_number, save, settings
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.utils.data import Dataset, Subset
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    default_data_collator,
    set_seed,
)
from transformers.trainer_utils import IntervalStrategy
from transformers.utils import logging

import trainshed
from trainshed.checkpoint.hf_trainer import attach

PROGRAM = "language_model"
END_OF_TEXT = "<|endoftext|>"
PIECE = 1 << 16  # characters that are given to the tokenizer at a time
ARCHITECTURE = ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size")


def hyperparameters(argv: Sequence[str]) -> Namespace:
    """Reads the command line; raises Problem."""
    hp = Parser.declared(__file__).read(argv)
    if hp.n_embd % hp.n_head:
        raise Problem(f"n_embd {hp.n_embd} does not divide by n_head {hp.n_head}")
    return hp


# --- tokens -----------------------------------------------------------------------------------------------------------


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens 0 to 255 are the bytes of UTF-8, and 256 the end of a text."""
    printable = pre_tokenizers.ByteLevel.alphabet()
    # GPT-2's way to write bytes as characters: printable ones stand for themselves, the others follow from U+0100 on.
    others = iter(range(256, 512))
    spelled = [chr(byte) if chr(byte) in printable else chr(next(others)) for byte in range(256)]
    vocabulary = {character: byte for byte, character in enumerate(spelled)} | {END_OF_TEXT: 256}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
    )


def load_tokenizer(path: str | None) -> PreTrainedTokenizerBase:
    """The tokenizer in the folder `path`, else one of bytes."""
    if not path:
        return byte_tokenizer()
    try:
        root = folder(path, "the tokenizer folder")
        # Whether to run code that comes with it would be asked on a terminal otherwise.
        return AutoTokenizer.from_pretrained(root, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError, TypeError) as error:
        raise Problem(f"{path} holds no tokenizer that Transformers loads: {str(error).splitlines()[0]}") from error


class Blocks(Dataset):
    """Sequences of `size` tokens, one behind the other; tokens that do not fill the last one are left out."""

    def __init__(self, tokens: numpy.ndarray, size: int) -> None:
        self.tokens = tokens
        self.size = size

    def __len__(self) -> int:
        return len(self.tokens) // self.size

    def __getitem__(self, position: int) -> dict[str, torch.Tensor]:
        block = torch.from_numpy(self.tokens[position * self.size : (position + 1) * self.size].astype(numpy.int64))
        return {"input_ids": block, "attention_mask": torch.ones_like(block), "labels": block}


Text = Iterable[str]
"""A text, in pieces that end with a line's end where there is one."""

Encode = Callable[[Text], Iterator[Any]]
"""Gives the tokens of a text, as some arrays one after the other."""


def encode_bytes(text: Text) -> Iterator[Any]:
    """What `byte_tokenizer` makes of a text, a thousand times as fast."""
    for piece in text:
        yield numpy.frombuffer(piece.encode("utf-8"), numpy.uint8)
    yield [256]


def encode_with(tokenizer: PreTrainedTokenizerBase) -> Encode:
    """The tokens that a tokenizer makes of a text, given to it in pieces, and its end-of-text token if it has one."""

    def encode(text: Text) -> Iterator[Any]:
        for piece in text:
            yield tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"]
        yield [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]

    return encode


def pieces(text: str) -> Iterator[str]:
    """The text in pieces of about PIECE characters that end with a line's end where there is one."""
    start = 0
    while start < len(text):
        end = start + PIECE
        end = len(text) if end >= len(text) else text.rfind("\n", start, end) + 1 or end
        yield text[start:end]
        start = end


def tokens_of(texts: Iterable[Text], encode: Encode) -> numpy.ndarray:
    """All the texts as one row of int32 tokens."""
    return numpy.concatenate([numpy.asarray(part, numpy.int32) for text in texts for part in encode(text)])


def tokens_of_channel(path: str, names: Sequence[str], encode: Encode, world: World) -> numpy.ndarray:
    """The tokens of a channel, which comes as a folder or through a pipe; raises Problem."""
    pipe = piped(path, *names)
    if pipe is None:
        what = f"the channel {names[0]}"
        return tokens_of(texts_below(folder(path, what), what), encode)
    if pipe.sharded and world.size > 1:
        raise Problem(f"the channel {pipe.name} is ShardedByS3Key: every rank needs the whole text (FullyReplicated)")

    def read() -> numpy.ndarray:
        from trainshed.data import DataError

        try:
            return tokens_of(texts_of_pipe(pipe.name, pipe.record_wrapper == "RecordIO"), encode)
        except DataError as error:
            raise Problem(f"{error}") from error

    return world.array_from_first(read)  # a pipe can be read once


def texts_of_pipe(name: str, wrapped: bool) -> Iterator[Text]:
    """The texts of the next epoch's pipe of a channel: a record is a text, or all the lines are one."""
    from trainshed.data import channel

    alone = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    samples: Iterator[Any] = iter(channel(name, format="recordio" if wrapped else "lines", environ=alone))
    if not wrapped:
        yield joined(samples)
        return
    for record in samples:
        yield pieces(record.decode("utf-8", errors="replace"))


def joined(lines: Iterator[str]) -> Iterator[str]:
    """Lines without their ends as pieces of about PIECE characters."""
    kept: list[str] = []
    size = 0
    for line in lines:
        kept.append(f"{line}\n")
        size += len(line) + 1
        if size >= PIECE:
            yield "".join(kept)
            kept, size = [], 0
    yield "".join(kept)


def texts_below(root: Path, what: str) -> Iterator[Text]:
    """The texts of all *.txt files below `root`, in order of their names; raises Problem if there is none."""
    paths = sorted(path for path in root.rglob("*.txt") if path.is_file() and not path.name.startswith("."))
    if not paths:
        raise Problem(f"{what} {root} holds no *.txt files")
    for path in paths:
        try:
            yield pieces(path.read_text(encoding="utf-8", errors="replace"))
        except OSError as error:
            raise Problem(f"{path} cannot be read: {error.strerror}") from error


def load_data(hp: Namespace, encode: Encode, world: World) -> tuple[Blocks, Blocks | None]:
    """Training and validation sequences; without a channel, validation is the end of the training text."""
    held_out: numpy.ndarray | None
    if hp.demo_data or not (hp.train or in_job()):
        if hp.train:
            raise Problem(f"demo_data is {hp.demo_data}, but there is a training folder too ({hp.train}): leave out one")
        import demo_data

        if not hp.demo_data:
            print("no job and no --train: using the demo data, the topics of Python's help()", flush=True)
        topics = demo_data.text()
        tokens, held_out = (tokens_of(map(pieces, topics[part].values()), encode) for part in ("train", "validation"))
    elif not hp.train:
        raise Problem("the job has no channel train; add it, or set the hyperparameter demo_data to topics")
    else:
        tokens = tokens_of_channel(hp.train, ("train", "training"), encode, world)
        if hp.validation:
            held_out = tokens_of_channel(hp.validation, ("validation",), encode, world)
        elif not hp.validation_fraction:
            held_out = None
        else:
            kept = len(tokens) - round(len(tokens) * hp.validation_fraction)
            tokens, held_out = tokens[:kept], tokens[kept:]
    for what, row in (("training", tokens), ("validation", held_out)):
        if row is not None and len(row) < hp.block_size:
            raise Problem(f"the {what} text has {len(row)} tokens, less than one sequence of {hp.block_size} (block_size)")
    return Blocks(tokens, hp.block_size), None if held_out is None else Blocks(held_out, hp.block_size)


# --- training ---------------------------------------------------------------------------------------------------------


def train(hp: Namespace, world: World) -> None:
    """The whole job: data, training, evaluation, model."""
    if not hp.progress_bars:
        logging.disable_progress_bar()
    previous = previous_model(hp.previous_model)
    tokenizer = load_tokenizer(hp.tokenizer or (str(previous) if previous else None))
    bytewise = tokenizer.get_vocab() == byte_tokenizer().get_vocab()
    data, held_out = load_data(hp, encode_bytes if bytewise else encode_with(tokenizer), world)
    tokens = _told.Field("text", "tokens", len(data.tokens), -1, 0, "", f"{len(data)} sequences of {hp.block_size}")
    _told.say(hp, "the training text", len(data), [tokens])
    looked(hp)
    fingerprint = f"{zlib.crc32(data.tokens.tobytes()):08x}"
    world.require_same("the ranks see different data", {"sequences": len(data), "tokens": fingerprint})
    share = world.share_of_batch(hp.batch_size, hp.gradient_accumulation_steps)
    batch = share * world.size * hp.gradient_accumulation_steps
    steps = hp.max_steps or math.ceil(hp.epochs * math.ceil(len(data) / batch))

    set_seed(hp.seed)
    model = new_model(hp, tokenizer) if previous is None else load_model(hp, tokenizer, previous)
    if previous is not None:
        size = ", ".join(f"{name} {getattr(model.config, name)}" for name in ARCHITECTURE)
        world.say(f"going on from the model in {previous}: {size}")
    model.loss_type = "ForCausalLM"  # what Transformers falls back to, but with a warning
    checkpoints = checkpoint_folder(hp.checkpoint_dir)
    reporter = Reporter(world, batch, hp.block_size)
    args = settings(
        hp,
        world,
        share,
        steps,
        checkpoints,
        optim={"adamw": "adamw_torch", "adafactor": "adafactor", "sgd": "sgd"}[hp.optimizer],
        bf16=world.bfloat16(hp.amp),
        report_to=[name.strip() for name in hp.report_to.split(",")],
        disable_tqdm=not hp.progress_bars,
        prediction_loss_only=True,
    )
    if held_out is None:
        args.eval_strategy = IntervalStrategy.NO
    trainer = FiniteTrainer(
        world,
        model=model,
        args=args,
        train_dataset=data,
        eval_dataset=held_out,
        data_collator=default_data_collator,
        callbacks=[reporter],
    )
    guard = attach(trainer, checkpoints)  # saves and stops on notice
    resume = guard.newest()
    if resume:
        require_same_model(resume, model.config)
    world.say(
        f"training on {len(data)} sequences of {hp.block_size} tokens for {steps} steps; {model.num_parameters()} "
        f"parameters; {world.size} rank{'s' * (world.size > 1)} on {args.device.type}, {batch} sequences a step"
    )
    trainer.train(resume_from_checkpoint=resume)
    require_finite(model, trainer.state.global_step, world)
    seen = Subset(data, range(min(len(data), world.size * share)))
    require_number("the loss", trainer.predict(seen).metrics["test_loss"], args, trainer.state)
    if not guard.stopping and held_out is not None and "validation_loss" not in reporter.results:
        trainer.evaluate()
    if model.device.type == "xla":
        model.to("cpu").tie_weights()  # XLA's tensors have no memory to save from, and lose their ties on the way
    if world.rank == 0:
        save(Path(hp.model_dir), model, tokenizer)
        made = {"program": PROGRAM, "trainshed": trainshed.__version__, "metrics": reporter.results}
        write_json(Path(hp.model_dir) / "model.json", made)
        facts = {"steps": trainer.state.global_step, "finished": not guard.stopping, "world_size": world.size}
        write_json(Path(hp.output_data_dir) / "metrics.json", {**facts, **reporter.results})
    world.say(f"model: {hp.model_dir}")


def new_model(hp: Namespace, tokenizer: PreTrainedTokenizerBase) -> GPT2LMHeadModel:
    """A model with random weights."""
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=hp.block_size,
        n_layer=hp.n_layer,
        n_head=hp.n_head,
        n_embd=hp.n_embd,
        activation_function="gelu_pytorch_tanh",  # GPT-2's own, gelu_new, by another name and a quarter faster a step
        **dropout(hp),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return GPT2LMHeadModel(config)


def load_model(hp: Namespace, tokenizer: PreTrainedTokenizerBase, folder: Path) -> GPT2LMHeadModel:
    """A trained model to train on; raises Problem where it is not one for these texts."""
    model = saved_model(hp, folder)
    if model.config.vocab_size != len(tokenizer):
        tokens = f"{model.config.vocab_size} tokens, the tokenizer {len(tokenizer)}"
        raise Problem(f"the previous model has {tokens}: leave out the channel tokenizer")
    if model.config.n_positions < hp.block_size:
        raise Problem(f"block_size is {hp.block_size}, but the previous model takes {model.config.n_positions} tokens")
    return model


def saved_model(hp: Namespace, folder: Path) -> GPT2LMHeadModel:
    """The model in a folder. Raises Problem."""
    try:
        return GPT2LMHeadModel.from_pretrained(folder, local_files_only=True, **dropout(hp)).float()
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise Problem(f"{folder} holds no model of language_model: {str(error).splitlines()[0]}") from error


def dropout(hp: Namespace) -> dict[str, float]:
    """The three dropouts of GPT-2's configuration, all alike."""
    return dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), hp.dropout)


def require_same_model(checkpoint: str, config: GPT2Config) -> None:
    """Raises Problem if the checkpoint is of a model of another size."""
    other = GPT2Config.from_pretrained(checkpoint, local_files_only=True)
    differing = [name for name in ARCHITECTURE if getattr(other, name) != getattr(config, name)]
    if differing:
        raise Problem(f"{checkpoint} is of another model ({', '.join(differing)} differ): remove it, or use another folder")


@torch.no_grad()
def predict(hp: Namespace) -> None:
    """Prints one JSON line a text of the file `predict`, with what the model in model_dir goes on with."""
    answers = Answers()
    told = texts_of(hp.predict, "", answers)
    tokenizer, model = load_tokenizer(hp.model_dir), saved_model(hp, Path(hp.model_dir)).eval()
    for kept, text in told:
        tokens = tokenizer(text or END_OF_TEXT, return_tensors="pt")["input_ids"]
        tokens = tokens[:, -max(1, model.config.n_positions // 2) :]  # what follows needs room, too
        room = min(hp.max_new_tokens, model.config.n_positions - tokens.shape[1])
        end = tokenizer.eos_token_id
        config = GenerationConfig(max_new_tokens=room, eos_token_id=end, pad_token_id=end)
        made = model.generate(tokens, attention_mask=torch.ones_like(tokens), generation_config=config)
        words = tokenizer.decode(made[0, tokens.shape[1] :], skip_special_tokens=True)
        answers.say(kept, {"text": text, "continuation": words})
    answers.end()


def main() -> None:
    """The command line."""
    hp = hyperparameters(sys.argv[1:])
    if hp.predict:
        logging.disable_progress_bar()
        predict(hp)
        return
    world = World.join(hp.device)
    train(hp, world)
    world.leave()


if __name__ == "__main__":
    run(main)
