"""Fine-tuning of models of which each rank holds a part: what is learnt, saved and gone on from is as with whole ones."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from support import programs
from support.extras import needs
from support.lazy import Lazy
from support.programs import Module, Options, Train
from support.tuning import lines

needs("transformers", "accelerate", "peft")
pytestmark = pytest.mark.torch
torch: Any = Lazy("torch")
transformers: Any = Lazy("transformers")
peft: Any = Lazy("peft")

PROGRAM = "fine_tune.py"
SETTINGS = ("--batch_size", "4", "--learning_rate", "0.005", "--log_interval", "1", "--device", "cpu", "--lora_dropout", "0")


def two_ranks(folder: Path, data: Path, name: str, *arguments: str) -> str:
    """A job of two ranks to its end, with its model in `folder/name`; gives what it printed."""
    folders = ("--train", str(data / "train"), "--model", str(data / "model"), "--model_dir", str(folder / name))
    return programs.run(PROGRAM, *SETTINGS, *folders, *arguments, cwd=folder, ranks=2)


def tensors(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    [path] = folder.glob("*model.safetensors")
    return load_file(path)


def furthest(one: Path, other: Path) -> float:
    """The largest difference of two models' weights, which must have the same names, shapes and types."""
    first, second = tensors(one), tensors(other)
    assert {name: (each.shape, each.dtype) for name, each in first.items()} == {
        name: (each.shape, each.dtype) for name, each in second.items()
    }
    return max((first[name].float() - second[name].float()).abs().max().item() for name in first)


@pytest.mark.exact
@pytest.mark.heavy
def test_parts_learn_what_wholes_do_and_go_on_exactly_after_a_kill(tmp_path: Path, data: Path) -> None:
    settings = ("--method", "full", "--max_steps", "8", "--packing", "true", "--max_length", "64")
    settings += ("--gradient_checkpointing", "true")
    whole = two_ranks(tmp_path, data, "whole", *settings, "--sharding", "replicate")
    straight = two_ranks(tmp_path, data, "straight", *settings, "--sharding", "shard")

    (tmp_path / "checkpoints").mkdir()
    going = (*settings, "--sharding", "shard", "--save_steps", "2", "--checkpoint_dir", str(tmp_path / "checkpoints"))
    folders = ("--train", str(data / "train"), "--model", str(data / "model"), "--model_dir", str(tmp_path / "resumed"))
    with programs.started(PROGRAM, *SETTINGS, *folders, *going, cwd=tmp_path, ranks=2) as run:
        run.wait_for("^metric train_loss=.* step=5$")
        for process in run.processes:
            process.send_signal(signal.SIGKILL)
        assert run.finish() == [-signal.SIGKILL] * 2
    resumed = two_ranks(tmp_path, data, "resumed", *going)
    again = two_ranks(tmp_path, data, "again", *going)

    assert "each with a part of every weight" in straight and "each with" not in whole
    losses = programs.metrics(straight, "train_loss")
    assert [loss for loss, _ in losses] == pytest.approx(
        [loss for loss, _ in programs.metrics(whole, "train_loss")], rel=1e-4
    )
    later = programs.metrics(resumed, "train_loss")
    assert 1 <= len(later) < 8 and later == losses[-len(later) :]
    assert programs.metrics(resumed, "validation_loss") == programs.metrics(straight, "validation_loss")
    assert furthest(tmp_path / "resumed", tmp_path / "straight") == 0
    assert furthest(tmp_path / "whole", tmp_path / "straight") < 1e-3
    assert not programs.metrics(again, "train_loss") and furthest(tmp_path / "again", tmp_path / "straight") == 0
    assert programs.metrics(again, "validation_loss") == programs.metrics(straight, "validation_loss")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "straight")
    assert loaded.config.use_cache == transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "whole").config.use_cache

    with programs.started(PROGRAM, *SETTINGS, *folders, *going, "--sharding", "replicate", cwd=tmp_path, ranks=2) as other:
        assert 1 in other.finish()
    assert "sharding was shard, is replicate" in "".join(other.errors)


@pytest.mark.heavy
@pytest.mark.parametrize("merge", ["false", "true"])
def test_adapters_of_a_sharded_model_are_those_of_a_whole_one(merge: str, tmp_path: Path, data: Path) -> None:
    channel = lines(tmp_path / "odd", *({"prompt": f"{n} and", "completion": f"{n + 1}"} for n in range(7)))
    settings = ("--max_steps", "4", "--merge", merge, "--test", str(channel))  # seven: the ranks have unequally many
    outputs = {way: two_ranks(tmp_path, data, way, *settings, "--sharding", way) for way in ("replicate", "shard")}
    for name in ("train_loss", "validation_loss", "test_loss"):
        one, other = (programs.metrics(output, name) for output in outputs.values())
        assert one and [value for value, _ in one] == pytest.approx([value for value, _ in other], rel=1e-4)
    assert furthest(tmp_path / "replicate", tmp_path / "shard") < 1e-3
    kind = transformers.AutoModelForCausalLM if merge == "true" else peft.AutoPeftModelForCausalLM
    assert kind.from_pretrained(tmp_path / "shard").get_input_embeddings()


@pytest.mark.exact
@pytest.mark.heavy
def test_preferences_are_learnt_alike_and_measured_from_the_same_start(tmp_path: Path, data: Path, module: Module) -> None:
    module("demo_data").write_instructions(tmp_path / "pairs", preferences=True)
    settings = ("--train", str(tmp_path / "pairs/train"), "--objective", "dpo", "--prompt_format", "chat")
    settings += ("--lr_schedule", "constant", "--warmup_ratio", "0")
    for way in ("replicate", "shard"):
        (tmp_path / way).mkdir()
        two_ranks(tmp_path, data, f"{way}-model", *settings, "--max_steps", "4", "--sharding", way)
    (tmp_path / "checkpoints").mkdir()
    kept = ("--checkpoint_dir", str(tmp_path / "checkpoints"), "--sharding", "shard")
    for steps in ("2", "4"):
        two_ranks(tmp_path, data, "resumed", *settings, *kept, "--save_steps", "2", "--max_steps", steps)
    assert furthest(tmp_path / "resumed", tmp_path / "shard-model") == 0
    assert furthest(tmp_path / "replicate-model", tmp_path / "shard-model") < 1e-3


def test_one_rank_trains_the_whole_model_and_says_so(tuning: Options, tune: Train, tmp_path: Path) -> None:
    output = tune(tuning(max_steps=1, validation_fraction=0, sharding="shard"))
    assert "sharding: one rank holds the whole model; start more to share it" in output
    assert json.loads((tmp_path / "model/model.json").read_text())["finished"] is True
