"""Fine-tunes a causal language model on instructions, preferences or rewards, from hyperparameters alone.

    python demo_data.py instructions data                                # a small data set, and a small model
    python fine_tune.py --train data/train --model data/model --epochs 3
    torchrun --nproc-per-node 2 fine_tune.py --train data/train --model data/model --method full
    python fine_tune.py --predict questions.jsonl --model_dir model      # answers, one JSON line each

In a training job the hyperparameters come as `--key value` and the folders from SM_CHANNEL_TRAIN, SM_CHANNEL_VALIDATION,
SM_CHANNEL_TEST, SM_CHANNEL_MODEL, SM_MODEL_DIR and SM_OUTPUT_DATA_DIR. docs/programs/fine_tune.md has the table of
hyperparameters, and the fields that a line of data may have.

The model folder is one that `from_pretrained` of Transformers or PEFT loads. Code that comes with a model is never run.
Hyperparameters and data are checked before torch is loaded.
"""

from __future__ import annotations

from _common import Parser, Problem, World, in_job, looked, note, previous_model, require_libraries, run

from trainshed.checkpoint import listen

if __name__ == "__main__":
    listen()  # before torch is imported: that takes seconds, and a stop in that time shall end with status 0 too

import os
import signal
import sys
from argparse import Namespace
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import _instructions
import _rewards
import _told

RATES = {"lora": 2e-4, "full": 2e-5}  # of sft and reward; a tenth for the rest, which start from what can answer
BETAS = {"grpo": 0.0}  # 0.1 for the rest
PARTS = ("train", "validation", "test")


def hyperparameters(argv: Sequence[str]) -> Namespace:
    """Reads the command line; raises Problem."""
    hp = Parser.declared(__file__).read(argv)
    if hp.learning_rate is None:
        hp.learning_rate = RATES[hp.method] * (1 if hp.objective in ("sft", "reward") else 0.1)
    if hp.beta is None:
        hp.beta = BETAS.get(hp.objective, 0.1)
    if hp.lora_alpha is None:
        hp.lora_alpha = 2.0 * hp.lora_rank
    if hp.merge and hp.method == "full":
        raise Problem("merge is true, but there is no adapter to merge: set method to lora, or leave merge out")
    if hp.packing and hp.objective != "sft":
        raise Problem(f"packing is true, but pairs are not packed: leave it out for {hp.objective}")
    if hp.too_long == "split" and hp.objective != "sft":
        raise Problem(f"too_long is split, but half an answer is not judged: cut, skip or refuse for {hp.objective}")
    if hp.loss_on == "all" and hp.objective != "sft":
        raise Problem(f"loss_on is all, but {hp.objective} judges answers, not their prompts: leave it out")
    if hp.beta == 0 and hp.objective in ("dpo", "kto"):
        raise Problem(f"beta is 0, with which {hp.objective} learns nothing: give more, or leave it out")
    if hp.objective == "grpo" and not (hp.predict or hp.merge_to):
        require_groups(hp)
    return hp


def require_groups(hp: Namespace) -> None:
    """Raises Problem where a job of grpo could not compare the answers to one prompt."""
    if hp.sharding == "shard":
        raise Problem("sharding is shard, but grpo answers with the whole model: leave it out")
    if hp.temperature == 0:
        raise Problem("temperature is 0, with which all answers to a prompt are the same: grpo compares different ones")
    if hp.batch_size % (hp.generations * hp.gradient_accumulation_steps):
        parts = f" times {hp.gradient_accumulation_steps} parts" * (hp.gradient_accumulation_steps > 1)
        raise Problem(f"batch_size is {hp.batch_size}, not a multiple of generations ({hp.generations}){parts}")
    _rewards.functions_in(hp.rewards)


def starting_model(hp: Namespace) -> str | None:
    """Folder of the model to start from, or its name on the hub; None if the job has neither. Raises Problem.

    A folder keeps the hub's library off the network.
    """
    if hp.model and not os.path.isdir(hp.model):
        if os.path.isabs(hp.model) or hp.model.startswith(".") or hp.model.count("/") > 1:
            raise Problem(f"model: {hp.model} is not a folder")
        return str(hp.model)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    found = previous_model(hp.model)
    return None if found is None else str(found)


def load_data(hp: Namespace) -> dict[str, list[Any]]:
    """The examples to train on, to validate with and to test with; the latter two may be none. Raises Problem."""
    if not hp.train:
        raise Problem("the job has no channel train" if in_job() else "there is nothing to train on: give --train DIR")
    data = {
        part: _instructions.load(path, f"the channel {part}", hp.objective, hp.prompt_format) if path else []
        for part, path in ((part, getattr(hp, part)) for part in PARTS)
    }
    for part, examples in data.items() if hp.objective == "grpo" else ():
        if examples:
            fields = {name for one in examples for name in one.columns}
            _rewards.require_fields(hp.rewards, fields, f"the channel {part}")
    _told.say(hp, "the channel train", len(data["train"]), _instructions.fields_of(data["train"]))
    if hp.objective == "kto" and len(labels := {one.good for one in data["train"]}) == 1:
        note(f"the channel train: every label is {str(*labels).lower()}: kto learns more where it has both kinds")
    if not data["validation"]:
        data["train"], data["validation"] = _instructions.split(data["train"], hp.validation_fraction, hp.seed)
    if hp.mixture:
        data["train"] = _instructions.mixed(data["train"], shares(hp.mixture), hp.seed)
    return data


def shares(mixture: Sequence[str]) -> dict[str, float]:
    """How often what is named is taken. Raises Problem."""
    found = {}
    for word in mixture:
        name, _, value = word.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            found[name] = -1.0
        if not 0 <= found[name] <= 1000:
            raise Problem(f"mixture {word!r} is not a name and a number from 0 to 1000, as chat=2")
    return found


def main() -> None:
    """The command line."""
    hp = hyperparameters(sys.argv[1:])
    require_libraries(__file__)
    if hp.objective == "grpo" and find_spec("trl") is None:
        raise Problem("objective grpo needs trl, not installed here: pip install 'trainshed[finetune]'")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # TRL's
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # ranks are as many as cores
    model = starting_model(hp)
    if hp.predict or hp.merge_to:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # there is nothing to save
        import _answers

        (_answers.answer if hp.predict else _answers.merge)(hp, model)
        return
    if model is None and not hp.check_data:
        raise Problem("there is no model to start from: add a channel model, or give --model, a folder or a name on the hub")
    data = load_data(hp)
    looked(hp)
    assert model is not None
    import _tuning

    world = World.join(hp.device)
    _tuning.train(hp, model, data, world)
    world.leave()


if __name__ == "__main__":
    run(main)
