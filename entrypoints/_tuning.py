"""The training of fine_tune.py: the Trainer of Transformers, with a measure of its own, exact checkpoints and PEFT.

TRL's trainer is used for grpo alone; docs/algorithms.md says why, and how the two compare.
"""

from __future__ import annotations

import json
import math
import zlib
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
import transformers
from _common import Problem, World, checkpoint_folder, write_json
from _instructions import PAIRED
from _preferences import Critic, DirectPreferrer, OddsPreferrer, Opinions, Pairs, Preferrer, Scorer, collate_pairs
from _pretrained import HEADS, add_adapter, fingerprint, length_of, load_model, load_tokenizer, merged, named
from _sharding import wanted, whole_state
from _trainer import LAST, Reporter, require_finite, save, settings
from _tuner import FACTS, Tuner, TuningReporter
from _turns import Encoder, Rows, collate, fit, pack
from transformers import set_seed
from transformers.utils import logging

import trainshed
from trainshed.checkpoint.hf_trainer import attach

WAYS: dict[str, tuple[type[Rows], type[Tuner]]] = {
    "sft": (Rows, Tuner),
    "dpo": (Pairs, DirectPreferrer),
    "orpo": (Pairs, OddsPreferrer),
    "kto": (Opinions, Critic),
    "reward": (Pairs, Scorer),
}
SAME = ("objective", "method", "lora_rank", "lora_alpha", "lora_targets", "packing", "gradient_accumulation_steps", "seed")


# --- the job ----------------------------------------------------------------------------------------------------------


def prepare(hp: Namespace, data: dict[str, list[Any]], encoder: Encoder, length: int, world: World) -> dict[str, Rows]:
    """The rows of each part of the data, fitted and, to train on, packed if asked; says what was cut. Raises Problem."""
    if hp.objective == "grpo":
        from _rewarded import Prompts  # TRL takes seconds to load

        return {part: Prompts(examples, encoder, hp, length) for part, examples in data.items()}
    made = {}
    kind, _ = WAYS[hp.objective]
    for part, examples in data.items():
        if not examples:
            made[part] = kind([])
            continue
        rows: Any
        if hp.objective in PAIRED:
            sides = encoder.rows([side for pair in examples for side in (pair.chosen, pair.rejected)])
            rows, wheres = zip(sides, sides, strict=True), [pair.chosen.where for pair in examples]
        else:
            rows, wheres = encoder.rows(examples), [example.where for example in examples]
        fitted = fit(rows, wheres, length, hp.too_long, part)
        if words := fitted.words(part, length):
            world.say(words)
        made[part] = kind(pack(fitted.rows, length) if hp.packing else fitted.rows)
    return made


def checksum(rows: Rows) -> str:
    """Of all tokens and of which are learnt."""
    value = 0
    for row in rows.rows:
        for part in row if isinstance(row, tuple) else (row,):
            value = zlib.crc32(part.learnt.tobytes(), zlib.crc32(part.tokens.tobytes(), value))
            value = value if part.good else zlib.crc32(b"bad", value)
    return f"{value:08x}"


def require_known_tokens(rows: Sequence[Any], model: Any) -> None:
    """Raises Problem if the tokenizer makes tokens that the model has no embedding for."""
    known = model.get_input_embeddings().num_embeddings
    highest = max(int(part.tokens.max()) for row in rows for part in (row if isinstance(row, tuple) else (row,)))
    if highest >= known:
        raise Problem(f"the tokenizer makes token {highest}, but the model knows {known}: they do not belong together")


def require_apart(model: Any, length: int) -> None:
    """Raises Problem if packed examples see each other in this model, though positions begin anew.

    Compares the second of two examples in three ways: packed, alone, and as the first one's continuation.
    """
    size = min(8, length // 2)
    tokens = torch.arange(1, 2 * size + 1, device=model.device)[None] % model.get_input_embeddings().num_embeddings
    training = model.training
    model.eval()

    def logits(first: int, *positions: torch.Tensor) -> torch.Tensor:
        at = torch.cat(positions).to(model.device)[None]
        with torch.no_grad():
            return model(input_ids=tokens[:, first:], position_ids=at).logits[:, -size:].float()

    once = torch.arange(size)
    packed, alone, continued = logits(0, once, once), logits(size, once), logits(0, once, once + size)
    model.train(training)
    rounding = 8 * torch.finfo(model.dtype).eps * alone.abs().max()
    if (packed - alone).abs().max() > max(rounding, 0.1 * (continued - alone).abs().max()):
        raise Problem(f"in {type(model).__name__} packed examples would see each other: set packing to false")


def require_same_job(checkpoint: str, facts: dict[str, Any]) -> None:
    """Raises Problem if a checkpoint is of another job, from which going on would not give what either would."""
    try:
        before = json.loads(Path(checkpoint, FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Problem(f"{checkpoint} is no checkpoint of fine_tune: remove it, or use another folder") from error
    before.setdefault("sharding", "replicate")  # it was not written when there was nothing else
    differing = [f"{name} was {before.get(name)}, is {value}" for name, value in facts.items() if before.get(name) != value]
    if differing:
        raise Problem(f"{checkpoint} is of another job ({'; '.join(differing)}): remove it, or use another folder")


def train(hp: Namespace, source: str, data: dict[str, list[Any]], world: World) -> None:
    """The whole job: tokens, model, training, measurements, model folder. Raises Problem."""
    logging.disable_progress_bar()
    tokenizer = load_tokenizer(source)
    bf16 = world.bfloat16(hp.bf16)
    set_seed(hp.seed)
    dtype = torch.bfloat16 if bf16 and hp.method == "lora" else torch.float32
    scores = hp.objective == "reward"
    model = load_model(source, dtype, scores)
    length = length_of(hp, model)
    encoder = Encoder(tokenizer, hp.loss_on)
    rows = prepare(hp, data, encoder, length, world)
    for part in rows.values():
        if part.rows:
            require_known_tokens(part.rows, model)
    world.require_same("the ranks see different data", {part: checksum(each) for part, each in rows.items()})
    start = fingerprint(model, HEADS * scores)
    world.require_same("the ranks start from different models", start)
    stops = [] if scores else encoder.stops(model.generation_config.eos_token_id)
    end_at(model, stops)
    if scores:  # what it scores by is the last token that is not this
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    caches = model.config.get_text_config().use_cache
    model.config.get_text_config().use_cache = (
        False  # a cache would be filled for nothing, and packed examples see each other
    )
    if hp.packing:
        require_apart(model, length)
    if hp.method == "lora":
        model = add_adapter(hp, model)

    share = world.share_of_batch(hp.batch_size, hp.gradient_accumulation_steps)
    batch = share * world.size * hp.gradient_accumulation_steps
    steps = hp.max_steps or math.ceil(hp.epochs * steps_of_epoch(hp, len(rows["train"]), batch))
    checkpoints = checkpoint_folder(None if hp.checkpoint_dir is None else str(hp.checkpoint_dir))
    facts = {name: getattr(hp, name) for name in SAME if hp.method == "lora" or not name.startswith("lora_")}
    facts = {name: list(value) if isinstance(value, tuple) else value for name, value in facts.items()}
    facts |= {"beta": hp.beta} if hp.objective not in ("sft", "reward") else {}
    sharded = wanted(hp, model, world)
    facts["sharding"] = "shard" if sharded else "replicate"
    facts |= {"max_length": length, "batch_size": batch, "start": start, "data": checksum(rows["train"])}
    reporter = TuningReporter(world, batch, rows["train"].tokens() / len(rows["train"]))
    if hp.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    given = {"steps": steps, "checkpoints": checkpoints, "optim": "adamw_torch", "bf16": bf16}
    given |= {"remove_unused_columns": False, "report_to": [], "disable_tqdm": True}
    given |= {} if rows["validation"].rows else {"eval_strategy": "no"}
    trainer = trainer_of(hp, world, facts, rows, share, given, model=model, encoder=encoder, callbacks=[reporter])
    guard = attach(trainer, checkpoints)  # saves and stops on notice
    resume = guard.newest()
    if resume:
        require_same_job(resume, facts)
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    every = sum(weight.numel() for weight in model.parameters())
    packed = f" packed into {len(rows['train'])} sequences" if hp.packing else ""
    world.say(
        f"training on {sum(len(row) if hp.packing else 1 for row in rows['train'].rows)} examples{packed}, "
        f"{rows['train'].said()}, for {steps} steps; "
        f"{trained} of {every} parameters; {world.size} rank{'s' * (world.size > 1)} on {world.device.type}"
        f"{', each with a part of every weight' * sharded}, {batch} a step"
    )
    trainer.train(resume_from_checkpoint=resume)
    require_finite(trainer.model, trainer.state.global_step, world)
    trainer.require_sound()
    if not guard.stopping:
        if rows["validation"].rows and "validation_loss" not in reporter.results:
            trainer.evaluate()
        if rows["test"].rows:
            trainer.evaluate(rows["test"], metric_key_prefix="test")
    state = whole_state(trainer.model) if sharded else {}
    if world.rank == 0:
        trained_model = assembled(hp, load_model(source, dtype, scores), state) if sharded else trainer.model
        end_at(trained_model, stops)
        trained_model.config.get_text_config().use_cache = caches
        finished = {"steps": trainer.state.global_step, "finished": not guard.stopping, "world_size": world.size}
        base = named(hp, source)
        made_of = {
            "base": base,
            "start": start,
            "stops": stops,
            "chat": encoder.saw_chat,
            **({"pad": tokenizer.pad_token_id} if scores else {}),
        }
        encoder.restore()
        for config in getattr(trained_model, "peft_config", {}).values():
            config.base_model_name_or_path = base
        write_model(hp, trained_model, tokenizer, {**made_of, **finished}, reporter)
        write_json(Path(hp.output_data_dir) / "metrics.json", {**finished, **reporter.results})
    world.say(f"model: {hp.model_dir}")


def trainer_of(
    hp: Namespace, world: World, facts: dict[str, Any], rows: dict[str, Any], share: int, given: dict[str, Any], **parts: Any
) -> Tuner:
    """The Trainer of the job's objective. given: for `settings`. parts: model, encoder and callbacks."""
    encoder = parts.pop("encoder")
    if hp.objective == "grpo":
        from _rewarded import Rewarded

        return Rewarded.of(hp, world, facts, rows, share, settings=given, processing_class=encoder.tokenizer, **parts)
    _, kind = WAYS[hp.objective]
    parts |= {"args": settings(hp, world, share, **given), "data_collator": collate}
    if issubclass(kind, Preferrer):
        parts |= {"beta": hp.beta, "pairs": list(rows.values()), "data_collator": collate_pairs}
    return kind(world, facts, share, train_dataset=rows["train"], eval_dataset=rows["validation"], **parts)


def steps_of_epoch(hp: Namespace, count: int, batch: int) -> int:
    """Steps in which all `count` examples are seen once; of grpo, all but those that fill no batch. Raises Problem."""
    if hp.objective != "grpo":
        return math.ceil(count / batch)
    if count < batch // hp.generations:
        needed = f"a step takes {batch // hp.generations} (batch_size by generations)"
        raise Problem(f"there are {count} prompts, and {needed}: lower batch_size")
    return count * hp.generations // batch


def end_at(model: Any, stops: list[int]) -> None:
    """Lets answers of a model end at these tokens, if it answers."""
    if stops:
        model.generation_config.eos_token_id = stops


def assembled(hp: Namespace, model: Any, state: dict[str, torch.Tensor]) -> Any:
    """The starting model, with an adapter if there is one, with the weights that the ranks have trained in parts."""
    model = add_adapter(hp, model) if hp.method == "lora" else model
    model.load_state_dict(state, assign=True)
    return model


def write_model(hp: Namespace, model: Any, tokenizer: Any, facts: dict[str, Any], reporter: Reporter) -> None:
    """The model folder: safetensors and tokenizer, as Transformers or PEFT load them, and then model.json."""
    target = Path(hp.model_dir)
    for name in (
        "model.json",
        *LAST,
    ):  # of what was there: an adapter would be taken for the model's
        (target / name).unlink(missing_ok=True)
    if hp.merge:
        model = merged(model)
    save(target, model, tokenizer)
    folders = ("train", "validation", "test", "predict", "model_dir", "output_data_dir", "checkpoint_dir")
    given = {name: value for name, value in vars(hp).items() if name not in folders}
    versions = {one.__name__: one.__version__ for one in (trainshed, torch, transformers, numpy)}
    write_json(
        target / "model.json",
        {"program": "fine_tune", "versions": versions, "hyperparameters": given, "metrics": reporter.results, **facts},
    )
