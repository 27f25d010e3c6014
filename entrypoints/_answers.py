"""`fine_tune.py --predict FILE`: answers prompts with a model folder of that program; a reward model scores."""

from __future__ import annotations

import json
import shutil
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _common import Problem, World, write_json, writing_to
from _forms import tools_of
from _instructions import Example, prompts, to_score
from _predicting import Answers
from _preferences import scores_of
from _pretrained import HEADS, context, fingerprint, load_adapter, load_model, load_tokenizer, merged
from _trainer import save
from _turns import Encoder, collate
from transformers import GenerationConfig, set_seed
from transformers.utils import logging


def answer(hp: Namespace, base: str | None) -> None:
    """Prints each line of the file `predict` as a JSON line with `answer` added; raises Problem.

    base: the model that an adapter belongs to; None for the one that it was trained on, if that is still there.
    """
    logging.disable_progress_bar()
    folder = Path(hp.model_dir)
    facts = facts_of(folder)
    answers = Answers()
    scores = facts["hyperparameters"]["objective"] == "reward"
    given: list[Any] = (to_score if scores else prompts)(hp.predict, facts["chat"], answers)
    world = World(0, 1, 0, torch.device("cuda" if hp.device != "cpu" and torch.cuda.is_available() else "cpu"))
    if hp.device == "cuda" and world.device.type != "cuda":
        raise Problem("device is cuda, but torch sees no GPU here; use device cpu or auto")
    tokenizer = load_tokenizer(str(folder))
    encoder = Encoder(tokenizer, "completion")
    model = tuned(folder, facts, base, torch.bfloat16 if world.bfloat16(hp.bf16) else torch.float32, scores)
    model.to(world.device).eval()
    set_seed(hp.seed)
    most = context(model)
    for where, line, one in given:
        work: Callable[[], Any] = (
            partial(_score, model, encoder, most, one)
            if scores
            else partial(_answer, hp, model, encoder, facts["stops"], most, one, where, tools_of(line))
        )
        said = answers.tried(line, work)
        if said is not None:
            answers.say(line, {"reward" if scores else "answer": said})
    answers.end()


def facts_of(folder: Path) -> dict[str, Any]:
    """What model.json says. Raises Problem."""
    try:
        found: dict[str, Any] = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Problem(f"model_dir {folder} holds no model of fine_tune (model.json): {error}") from error
    return found


def merge(hp: Namespace, base: str | None) -> None:
    """Writes the adapter in model_dir, in the model it belongs to, to the folder `merge_to`. Raises Problem."""
    logging.disable_progress_bar()
    folder, target = Path(hp.model_dir), Path(hp.merge_to)
    facts = facts_of(folder)
    if not (folder / "adapter_config.json").is_file():
        raise Problem(f"{folder} holds a whole model, not an adapter: there is nothing to merge")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise Problem(f"merge_to: {target} is there, and is not an empty folder")
    with _whole_or_nothing(target):
        model = merged(tuned(folder, facts, base, "auto", facts["hyperparameters"]["objective"] == "reward"))
        if facts["stops"]:
            model.generation_config.eos_token_id = facts["stops"]
        save(target, model, load_tokenizer(str(folder)))
        write_json(target / "model.json", {**facts, "merged": True})
    print(f"model: {target}")


@contextmanager
def _whole_or_nothing(target: Path) -> Iterator[None]:
    """Makes a folder, where it is not there; if the block fails, nothing of what it has written stays. Raises Problem."""
    made = [one for one in (target, *target.parents) if not one.exists()]
    try:
        with writing_to(target):  # before a model is loaded, which takes minutes
            target.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=target).close()
        yield
    except BaseException:
        for path in target.glob("*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        with suppress(OSError):  # others may have put something there
            for path in made:
                path.rmdir()
        raise


def _score(model: Any, encoder: Encoder, most: int | None, example: Example) -> float:
    """What a reward model says of an answer. Raises Problem."""
    [row] = encoder.rows([example])
    if most is not None and len(row) > most:
        raise Problem(f"{example.where} has {len(row)} tokens, and the model takes {most}")
    batch = {name: value.to(model.device) for name, value in collate([row]).items()}
    with torch.no_grad():
        return float(scores_of(model, batch))


def _answer(
    hp: Namespace,
    model: Any,
    encoder: Encoder,
    stops: list[int],
    most: int | None,
    prompt: Any,
    where: str,
    tools: Any,
) -> str:
    """What the model says to a prompt. Raises Problem."""
    chat = not isinstance(prompt, str)
    text = encoder.render(prompt, True, where, tools) if chat else prompt
    tokenizer = encoder.tokenizer
    tokens = tokenizer(text, add_special_tokens=not chat, return_tensors="pt")["input_ids"].to(model.device)
    room = hp.max_new_tokens if most is None else min(hp.max_new_tokens, most - tokens.shape[1])
    if room < 1:
        raise Problem(f"{where} has {tokens.shape[1]} tokens, and the model takes {most} with the answer")
    config = GenerationConfig(
        max_new_tokens=room,
        do_sample=bool(hp.temperature),
        temperature=hp.temperature or None,
        eos_token_id=stops,
        pad_token_id=stops[0],
    )
    with torch.no_grad():
        made = model.generate(input_ids=tokens, attention_mask=torch.ones_like(tokens), generation_config=config)
    return str(tokenizer.decode(made[0, tokens.shape[1] :], skip_special_tokens=True))


def tuned(folder: Path, facts: dict[str, Any], base: str | None, dtype: Any, scores: bool = False) -> Any:
    """The model of a folder, whole or as an adapter of `base`; raises Problem."""
    if not (folder / "adapter_config.json").is_file():
        return load_model(str(folder), dtype, scores)
    source = base or facts["base"]
    if base is None and Path(source).is_absolute() and not Path(source).exists():
        raise Problem(
            f"{folder} holds an adapter, and the model it was trained on ({source}) is not there: give it as --model"
        )
    model = load_model(source, dtype, scores)
    model.config.get_text_config().pad_token_id = facts.get("pad", model.config.get_text_config().pad_token_id)
    if fingerprint(model, HEADS * scores) != facts["start"]:
        raise Problem(f"the adapter in {folder} was trained on another model than {source}")
    return load_adapter(str(folder), model)
