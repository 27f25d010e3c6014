"""Fine-tuning from preferences, opinions and rewards: what is learnt, and that a job goes on exactly where it was."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from types import ModuleType, SimpleNamespace
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

PROGRAM = "fine_tune.py"
QUESTIONS = [f"What is {word}?" for word in ("red", "ten", "a fox", "rain", "bread", "music", "iron", "sleep")]
SETTINGS = {"method": "full", "learning_rate": 0.001, "max_steps": 8, "lr_schedule": "constant", "warmup_ratio": 0}


def examples(objective: str) -> list[dict[str, Any]]:
    """Rows in which the good answer is always the same."""
    if objective == "grpo":
        return [{"prompt": asked, "answer": "e"} for asked in QUESTIONS]
    if objective == "kto":
        return [
            {"prompt": asked, "completion": ("It is good.", "No idea at all.")[at % 2], "label": at % 2 == 0}
            for at, asked in enumerate(QUESTIONS)
        ]
    return [{"prompt": asked, "chosen": "It is good.", "rejected": "No idea at all."} for asked in QUESTIONS]


@pytest.fixture
def job(tuning: Options, tmp_path: Path) -> Options:
    """Hyperparameters of a small job of an objective."""
    (tmp_path / "rewards.py").write_text(
        "def has(completions, answer):\n    return [text.count(one) for text, one in zip(completions, answer)]\n"
    )

    def read(**changed: object) -> Namespace:
        objective = str(changed["objective"])
        given: dict[str, object] = {"batch_size": 8, "validation_fraction": 0}
        given |= {"rewards": tmp_path / "rewards.py", "generations": 4, "max_new_tokens": 6} if objective == "grpo" else {}
        train = lines(tmp_path / objective, *examples(objective))
        return tuning(**{"train": train, "validation": train, **SETTINGS, **given, **changed})

    return read


OBJECTIVES = ["orpo", "kto", "reward", "grpo"]


def weights(folder: Path) -> bytes:
    [path] = folder.glob("*model.safetensors")
    return path.read_bytes()


@pytest.mark.exact
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("method", ["full", pytest.param("lora", marks=pytest.mark.heavy)])
def test_a_job_goes_on_to_the_very_bytes_of_one_that_was_not_stopped(
    objective: str, method: str, job: Options, tune: Train, tmp_path: Path
) -> None:
    if objective == "grpo":
        needs("trl")
    wanted = {"objective": objective, "method": method, "batch_size": 4}
    straight = tune(job(**wanted))
    whole = weights(tmp_path / "model")
    tune(job(**wanted | {"max_steps": 3}, checkpoint_dir=tmp_path / "c"))

    resumed = tune(job(**wanted, checkpoint_dir=tmp_path / "c"))

    assert [step for _, step in programs.metrics(resumed, "train_loss")] == [4, 5, 6, 7, 8]
    assert programs.metrics(straight, "train_loss")[3:] == programs.metrics(resumed, "train_loss")
    assert weights(tmp_path / "model") == whole


@pytest.mark.parametrize("objective", [pytest.param("reward", marks=pytest.mark.spine), "orpo", "kto"])
def test_what_is_preferred_is_learnt(objective: str, job: Options, tune: Train) -> None:
    output = tune(job(objective=objective, max_steps=30))
    assert programs.metrics(output, "validation_accuracy")[-1][0] == 1
    assert programs.metrics(output, "validation_margin")[-1][0] > 0.1
    assert programs.metrics(output, "validation_loss")[-1][0] < programs.metrics(output, "validation_loss")[0][0]


def test_what_is_rewarded_is_learnt(job: Options, tune: Train) -> None:
    needs("trl")
    output = tune(job(objective="grpo", max_steps=30, batch_size=16, generations=8, learning_rate=0.005))
    rewards = [reward for reward, _ in programs.metrics(output, "train_reward")]
    assert sum(rewards[-5:]) > sum(rewards[:5]) + 1
    assert programs.metrics(output, "validation_reward")[-1][0] > rewards[0]


def test_a_reward_model_scores_what_it_is_asked(
    job: Options, tune: Train, module: Module, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for method in ("lora", "full"):
        tune(job(objective="reward", method=method, max_steps=30, learning_rate=0.005))
        asked = lines(
            tmp_path / "q",
            {"prompt": "What is red?", "completion": "It is good.", "id": 1},
            {"prompt": "What is red?", "completion": "No idea at all."},
            {"prompt": "What is red?"},
        )
        module("_answers").answer(job(objective="sft", train="", predict=asked / "data.jsonl", model=""), None)
        refused, *said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]  # it is looked at first
        assert said[0]["id"] == 1 and said[0]["reward"] > said[1]["reward"]
        assert "has no completion" in json.dumps(refused)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    texts = ["What is red?It is good.<|endoftext|>", "What is red?No idea at all.<|endoftext|>"]
    with torch.no_grad():
        scores = model(**tokenizer(texts, return_tensors="pt", padding=True)).logits.flatten().tolist()
    assert scores == pytest.approx([one["reward"] for one in said], rel=1e-4)


@pytest.mark.parametrize("objective", ["kto", "reward", "dpo"])
def test_the_losses_are_those_of_trl(objective: str, job: Options, tune: Train, data: Path, tmp_path: Path) -> None:
    """With one batch an epoch, which is the same whatever its order."""
    needs("trl")
    trl: Any = Lazy("trl")
    hp = job(objective=objective)
    losses = [loss for loss, _ in programs.metrics(tune(hp), "train_loss")]
    transformers.set_seed(hp.seed)
    kind = transformers.AutoModelForSequenceClassification if objective == "reward" else transformers.AutoModelForCausalLM
    model = kind.from_pretrained(data / "model", **({"num_labels": 1} if objective == "reward" else {}))
    name = {"kto": "KTO", "reward": "Reward", "dpo": "DPO"}[objective]
    args = getattr(trl, f"{name}Config")(
        output_dir=str(tmp_path / "theirs"), per_device_train_batch_size=8, max_steps=8, learning_rate=0.001,
        lr_scheduler_type="constant", logging_steps=1, report_to=[], disable_tqdm=True, use_cpu=True, bf16=False,
        gradient_checkpointing=False, optim="adamw_torch", save_strategy="no",
        **({"train_sampling_strategy": "sequential"} if objective == "kto" else {}),
    )  # fmt: skip
    from datasets import Dataset

    tokenizer = transformers.AutoTokenizer.from_pretrained(data / "model")
    rows = Dataset.from_list(examples(objective))
    trainer = getattr(trl, f"{name}Trainer")(model=model, args=args, train_dataset=rows, processing_class=tokenizer)
    trainer.train()

    theirs = [one["loss"] for one in trainer.state.log_history if "loss" in one]
    assert losses == pytest.approx(theirs, abs=1e-4)


def test_the_odds_are_those_of_trl(module: Module) -> None:
    needs("trl")
    from trl.experimental.orpo import ORPOTrainer

    logs = torch.tensor([[-0.1, -2.0, -1e-3], [-0.7, -0.5, -9.0]])
    odds = logs - torch.log(-torch.expm1(logs.clamp(max=-1e-6)))
    ours = module("_preferences")._told_apart(odds[0] - odds[1])["loss"]
    place = SimpleNamespace(beta=1.0, accelerator=SimpleNamespace(device="cpu"))
    assert ours.tolist() == pytest.approx((-ORPOTrainer.odds_ratio_loss(place, *logs)[0]).tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def good(completions):\n    return [1]", "good gave 1 numbers for 8 completions"),
        ("def good(completions):\n    return [0 / 0 for _ in completions]", r"good failed in bad.py:2: ZeroDivisionError"),
        ("def good(completions):\n    return [float('nan') for _ in completions]", "good gave a number that is not finite"),
        ("import nowhere\ndef good(completions): ...", r"the file failed in bad.py:1: ModuleNotFoundError"),
        ("def good(completions): ...", "good failed in bad.py: TypeError: it gave NoneType, not a list"),
        ("def good(completions):\n    return dict.fromkeys(range(8))", "TypeError: it gave dict, not a list of numbers"),
        ("import sys\ndef good(completions):\n    sys.exit()", "good failed in bad.py:3: SystemExit"),
        ("import sys\ndef good(completions): ...\nsys.exit()", "the file failed in bad.py:3: SystemExit"),
    ],
)
def test_rewards_that_fail_are_named(
    code: str, words: str, program: ModuleType, job: Options, tune: Train, tmp_path: Path
) -> None:
    needs("trl")
    (tmp_path / "bad.py").write_text(code)
    with pytest.raises(program.Problem, match=words):
        tune(job(objective="grpo", rewards=tmp_path / "bad.py"))
    assert not (tmp_path / "model/model.json").exists()


FIELDS = """from __future__ import annotations
from dataclasses import dataclass

@dataclass
class Seen:
    fields: list[object]

def seen(completions, prompts, **fields):
    named = [(name, fields[name][0]) for name in ("answer", "more", "image") if name in fields]
    print(Seen([prompts[0][0]["content"], *named]))
    return [None for _ in completions]

async def waited(completions):
    return [None for _ in completions]
"""


def test_rewards_are_given_what_the_data_says(job: Options, tune: Train, tmp_path: Path) -> None:
    """Rows may differ in fields, types and kinds of prompts. No reward at all is no error."""
    needs("trl")
    (tmp_path / "odd.py").write_text(FIELDS)
    asked = [{"role": "user", "content": "c"}]
    rows = [
        {"prompt": "a", "image": None},
        {"prompt": "b", "answer": {"x": 10**30}},
        {"messages": asked, "answer": "\ud800", "more": 1},
    ]
    train = lines(tmp_path / "odd", *rows)

    output = tune(job(objective="grpo", rewards=tmp_path / "odd.py", train=train, max_steps=3, batch_size=4))

    seen = {line for line in output.splitlines() if line.startswith("Seen(")}
    assert "Seen(fields=['a', ('answer', None), ('more', None)])" in seen
    assert f"Seen(fields=['b', ('answer', {{'x': {10**30}}}), ('more', None)])" in seen
    assert "Seen(fields=['c', ('answer', '\\ud800'), ('more', 1)])" in seen


def test_pairs_that_are_cut_to_the_same_are_left_out(job: Options, tune: Train, tmp_path: Path) -> None:
    same = {"prompt": "a", "chosen": "word " * 60 + "yes", "rejected": "word " * 60 + "no"}
    train = lines(tmp_path / "long", same, *examples("dpo"))
    output = tune(job(objective="dpo", train=train, max_length=32, max_steps=1))
    assert "train: 1 of 9 examples have more than max_length (32) tokens: 1 had nothing left to learn" in output
