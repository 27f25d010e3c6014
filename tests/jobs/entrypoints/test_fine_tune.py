"""Fine-tuning: real jobs as processes, and what a job is made of within this process."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import signal
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support import programs
from support.extras import needs
from support.lazy import Lazy
from support.programs import Module, Options, Train
from support.runner_project import Project
from support.tuning import lines, turns

needs("transformers", "accelerate", "peft")
pytestmark = pytest.mark.torch
torch: Any = Lazy("torch")
transformers: Any = Lazy("transformers")
peft: Any = Lazy("peft")

PROGRAM = "fine_tune.py"


def weights(folder: Path) -> str:
    """A hash of what was trained."""
    [path] = folder.glob("*model.safetensors")
    return hashlib.sha256(path.read_bytes()).hexdigest()


# --- jobs -------------------------------------------------------------------------------------------------------------

SETTINGS = ("--max_steps", "24", "--batch_size", "4", "--learning_rate", "0.01", "--log_interval", "1", "--device", "cpu")


@pytest.mark.exact
def test_a_job_that_was_killed_goes_on_to_the_very_bytes_of_one_that_was_not(
    tuning: Options, tune: Train, data: Path, tmp_path: Path
) -> None:
    variables = {"SM_CHECKPOINT_DIR": str(tmp_path / "checkpoints")}
    (tmp_path / "checkpoints").mkdir()
    arguments = (*SETTINGS, "--train", str(data / "train"), "--model", str(data / "model"), "--save_steps", "5")
    with programs.started(PROGRAM, *arguments, cwd=tmp_path, **variables) as run:
        run.wait_for("^metric train_loss=.* step=17$")
        run.processes[0].send_signal(signal.SIGKILL)
        assert run.finish() == [-signal.SIGKILL]
    assert not (tmp_path / "model").exists()

    resumed = tune(tuning(max_steps=24, save_steps=5, checkpoint_dir=tmp_path / "checkpoints"))
    straight = tune(tuning(max_steps=24, model_dir=tmp_path / "straight"))

    losses = programs.metrics(resumed, "train_loss")
    assert losses[0][1] > 5 and losses == programs.metrics(straight, "train_loss")[-len(losses) :]
    assert programs.metrics(resumed, "validation_loss") == programs.metrics(straight, "validation_loss")
    assert weights(tmp_path / "model") == weights(tmp_path / "straight")


def test_a_job_needs_its_name_and_channels_alone(project: Project, data: Path) -> None:
    channels = [f"--channel={name}={data / name}" for name in ("train", "validation", "test", "model")]
    done = project.trainshed("run", "fine_tune", *channels, "--hp", "max_steps=3", OMP_NUM_THREADS="1")

    assert done.status == 0, done.output
    assert json.loads((project.run / "algo-1/model/model.json").read_text())["steps"] == 3
    assert "test_perplexity" in done.output and "Traceback" not in done.output


@pytest.mark.timeout(300)  # four programs that load torch, one after the other
@pytest.mark.parametrize("packed", [False, pytest.param(True, marks=pytest.mark.heavy)])
def test_an_adapter_names_its_model_and_is_merged_into_it(
    packed: bool, project: Project, data: Path, tmp_path: Path
) -> None:
    base = data / "model"
    if packed:
        (tmp_path / "packed").mkdir()
        shutil.make_archive(str(tmp_path / "packed/model"), "gztar", base)
        base = tmp_path / "packed"
    channels = (f"--channel=train={data / 'train'}", f"--channel=model={base}")
    settings = ("--hp", "max_steps=3", "--hp", "learning_rate=0.01")
    done = project.trainshed("run", "fine_tune", *channels, *settings, OMP_NUM_THREADS="1")
    assert done.status == 0, done.output
    folder = project.run / "algo-1/model"
    for file, name in (("adapter_config.json", "base_model_name_or_path"), ("model.json", "base")):
        assert json.loads((folder / file).read_text())[name] == str(base)

    whole = tmp_path / "whole"
    given = ("--base", str(data / "model")) if packed else ()
    merged = project.trainshed("models", "merge", str(project.run), str(whole), *given)

    assert merged.status == 0, merged.output
    tokens = torch.arange(1, 20)[None]
    own = peft.PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(data / "model"), folder)
    with torch.no_grad():
        one, other = own(tokens).logits, transformers.AutoModelForCausalLM.from_pretrained(whole)(tokens).logits
    assert torch.allclose(one, other, atol=1e-4)
    assert transformers.AutoTokenizer.from_pretrained(whole).chat_template
    again = project.trainshed("models", "merge", str(folder), str(whole), *given)
    assert again.status != 0 and "is there, and is not an empty folder" in again.output
    nothing = project.trainshed("models", "merge", str(whole), str(tmp_path / "more"))
    assert nothing.status != 0 and "holds a whole model, not an adapter" in nothing.output


def test_two_ranks_stop_on_notice_and_learn_what_one_does(tuning: Options, tune: Train, data: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    settings = {"method": "full", "packing": "true", "max_length": "64", "lr_schedule": "constant", "warmup_ratio": "0"}
    arguments = [
        *SETTINGS,
        *(part for name, value in settings.items() for part in (f"--{name}", value)),
        "--max_steps",
        "2000",
    ]
    folders = ("--train", str(data / "train"), "--model", str(data / "model"))
    variables = {"SM_CHECKPOINT_DIR": str(tmp_path / "checkpoints")}
    with programs.started(PROGRAM, *arguments, *folders, cwd=tmp_path, ranks=2, **variables) as run:
        run.wait_for("^metric train_loss=.* step=8$")
        run.processes[1].send_signal(signal.SIGTERM)
        two = run.succeed()
    stopped = json.loads((tmp_path / "output/metrics.json").read_text())
    assert not stopped["finished"] and 8 <= stopped["steps"] < 2000 and stopped["world_size"] == 2
    assert (tmp_path / f"checkpoints/checkpoint-{stopped['steps']}").is_dir()
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")

    one = tune(tuning(max_steps=8, **settings))

    first, second = (programs.metrics(output, "train_loss")[:8] for output in (one, two))
    assert [step for _, step in first] == [step for _, step in second] == list(range(1, 9))
    assert [loss for loss, _ in first] == pytest.approx([loss for loss, _ in second], rel=1e-4)
    assert "2 ranks on cpu" in two and "1 rank on cpu" in one


@pytest.mark.parametrize("merge", [pytest.param(False, marks=pytest.mark.spine), True])
def test_what_was_learnt_is_answered(
    merge: bool, tuning: Options, tune: Train, module: Module, tmp_path: Path, capsys: Any
) -> None:
    pairs = [("What is red?", "A colour."), ("What is a fox?", "An animal — 🦊."), ("What is ten?", "A number.")]
    channel = lines(tmp_path / "train", *(turns(*pair) for pair in pairs))
    output = tune(
        tuning(
            train=channel,
            max_steps=60,
            learning_rate=0.02,
            lora_dropout=0,
            merge=merge,
            validation_fraction=0,
            lora_rank=32,
            lora_targets="q_proj,v_proj,up_proj,down_proj,lm_head",
        )
    )
    assert programs.metrics(output, "train_loss")[-1][0] < 0.05
    loaded = (transformers.AutoModelForCausalLM if merge else peft.AutoPeftModelForCausalLM).from_pretrained(
        tmp_path / "model"
    )
    assert loaded.get_input_embeddings() and transformers.AutoTokenizer.from_pretrained(tmp_path / "model").chat_template
    facts = json.loads((tmp_path / "model/model.json").read_text())
    assert (facts["program"], facts["finished"], facts["steps"]) == ("fine_tune", True, 60)

    questions = lines(
        tmp_path / "q", *({"prompt": question, "id": n} for n, (question, _) in enumerate(pairs)), turns(*pairs[0])
    )
    hp = tuning(predict=questions / "data.jsonl", model="")
    module("_answers").answer(hp, None)

    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["answer"] for one in answers] == [answer for _, answer in (*pairs, pairs[0])]
    assert [one.get("id") for one in answers] == [0, 1, 2, None]


@pytest.mark.parametrize(
    "changed",
    [
        {"gradient_accumulation_steps": 2, "bf16": True, "lr_schedule": "linear"},
        {"method": "full", "gradient_checkpointing": True, "lr_schedule": "constant", "packing": True},
        {
            "lora_targets": "q_proj,v_proj",
            "loss_on": "all",
            "max_length": 32,
            "validation_fraction": 0,
            "bf16": True,
            "merge": True,
        },
    ],
)
def test_every_way_to_train_comes_to_its_end(tuning: Options, tune: Train, tmp_path: Path, changed: dict[str, Any]) -> None:
    output = tune(tuning(**changed))
    assert [step for _, step in programs.metrics(output, "train_loss")] == [1, 2, 3, 4, 5, 6]
    assert bool(programs.metrics(output, "validation_loss")) == (changed.get("validation_fraction") != 0)
    assert json.loads((tmp_path / "output/metrics.json").read_text())["finished"] is True
    assert (
        "{" not in output and (tmp_path / "model/model.json").is_file() and not list((tmp_path / "model").glob(".saving*"))
    )


def test_a_finished_training_is_not_repeated_and_another_one_does_not_go_on_from_it(
    program: ModuleType, tuning: Options, tune: Train, tmp_path: Path
) -> None:
    first, again = (tune(tuning(checkpoint_dir=tmp_path / "c")) for _ in range(2))
    assert not programs.metrics(again, "train_loss")
    assert programs.metrics(again, "validation_loss") == programs.metrics(first, "validation_loss")
    for changed, words in (
        ({"lora_rank": 8, "lora_alpha": 32}, r"\(lora_rank was 16, is 8\): remove it, or use another"),
        ({"method": "full"}, r"method was lora, is full"),
        ({"seed": 1}, r"seed was 0, is 1; data was \w+, is \w+"),
    ):
        with pytest.raises(program.Problem, match=words):
            tune(tuning(checkpoint_dir=tmp_path / "c", **changed))


def test_the_measure_of_a_part_is_that_of_its_tokens(tuning: Options, tune: Train, data: Path, tmp_path: Path) -> None:
    tune(tuning(test=data / "test", method="full", learning_rate=0.001))
    measured = json.loads((tmp_path / "output/metrics.json").read_text())
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    total, count = 0.0, 0
    for line in (data / "test/questions.jsonl").read_text().splitlines():
        messages = json.loads(line)["messages"]
        prompt = tokenizer.apply_chat_template(messages[:1], add_generation_prompt=True, tokenize=False)
        whole = tokenizer(tokenizer.apply_chat_template(messages, tokenize=False), return_tensors="pt")["input_ids"]
        start = len(tokenizer(prompt)["input_ids"])
        with torch.no_grad():
            scores = model(whole).logits[0, :-1].log_softmax(-1)
        total -= scores.gather(1, whole[0, 1:, None])[start - 1 :].sum().item()
        count += whole.shape[1] - start
    assert measured["test_loss"] == pytest.approx(total / count, rel=1e-4)
    assert measured["test_perplexity"] == pytest.approx(math.exp(total / count), rel=1e-3)


def test_an_adapter_answers_with_its_own_model_alone(
    program: ModuleType, tuning: Options, tune: Train, module: Module, data: Path, tmp_path: Path
) -> None:
    shutil.copytree(data / "model", tmp_path / "base")
    tune(tuning(model=tmp_path / "base", max_steps=1))
    question = lines(tmp_path / "q", {"prompt": "a"}) / "data.jsonl"
    answer = module("_answers").answer
    (tmp_path / "base").rename(tmp_path / "moved")
    with pytest.raises(
        program.Problem, match=r"holds an adapter, and the model it was trained on \(.*base\) is not there: give"
    ):
        answer(tuning(predict=question, model=""), None)
    answer(tuning(predict=question, model=tmp_path / "moved", max_new_tokens=2), str(tmp_path / "moved"))
    module("demo_data").write_model(tmp_path / "other", ["a b"] * 9, width=32)
    with pytest.raises(program.Problem, match=r"was trained on another model than .*other"):
        answer(tuning(predict=question), str(tmp_path / "other"))
    for line, words in (
        ({"prompt": "long " * 300}, r"data.jsonl:1 has \d+ tokens, and the model takes 256 with the answer"),
        ({"question": "a"}, r"data.jsonl:1: has neither prompt nor messages \(its fields: question\)"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "data.jsonl:1: messages: there is nothing to answer"),
    ):
        with pytest.raises(program.Problem, match=words):
            answer(tuning(predict=lines(tmp_path / "q", line) / "data.jsonl"), str(tmp_path / "moved"))
    with pytest.raises(program.Problem, match=r"holds no model of fine_tune \(model.json\)"):
        answer(tuning(predict=question, model_dir=tmp_path), None)
    with pytest.raises(program.Problem, match="predict: /nowhere is not a file"):
        answer(tuning(predict="/nowhere"), None)


# --- preferences ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def preferences(tmp_path_factory: pytest.TempPathFactory, module: Module) -> Path:
    """The demo data for objective dpo. Not to be written to."""
    root = tmp_path_factory.mktemp("preferences")
    module("demo_data").write_instructions(root, preferences=True)
    return root


@pytest.mark.exact
def test_preferences_are_learnt_and_an_interrupted_job_learns_the_same(
    tuning: Options, tune: Train, module: Module, preferences: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"train": preferences / "train", "objective": "dpo", "prompt_format": "chat", "learning_rate": 0.003}
    hp = tuning(**given, max_steps=20, batch_size=8, gradient_accumulation_steps=2, model_dir=tmp_path / "straight")
    straight = tune(hp)
    losses = programs.metrics(straight, "train_loss")
    assert losses[0][0] == pytest.approx(math.log(2), abs=0.02)  # but for dropout
    assert losses[-1][0] < 0.4 and programs.metrics(straight, "validation_accuracy")[-1][0] > 0.9
    assert programs.metrics(straight, "validation_margin")[-1][0] > 1
    assert not programs.metrics(straight, "validation_perplexity")

    hp = Namespace(**{**vars(hp), "checkpoint_dir": tmp_path / "checkpoints", "model_dir": tmp_path / "model"})
    with monkeypatch.context() as patch:
        reporter = module("_tuner").TuningReporter
        own = reporter.on_log

        def interrupted(self: Any, args: Any, state: Any, *others: Any, **named: Any) -> None:
            own(self, args, state, *others, **named)
            if state.global_step == 9:
                signal.raise_signal(signal.SIGTERM)

        patch.setattr(reporter, "on_log", interrupted)
        first = tune(hp)
    assert json.loads((tmp_path / "output/metrics.json").read_text())["finished"] is False
    assert programs.metrics(first, "train_loss") + programs.metrics(tune(hp), "train_loss") == losses
    assert weights(tmp_path / "model") == weights(tmp_path / "straight")


def test_all_weights_learn_preferences_and_a_first_step_has_no_margin(
    tuning: Options, tune: Train, preferences: Path
) -> None:
    given = {"train": preferences / "train", "test": preferences / "test", "objective": "dpo", "method": "full"}
    output = tune(tuning(**given, max_steps=1, learning_rate=0, validation_fraction=0))
    assert programs.metrics(output, "train_loss") == [(pytest.approx(math.log(2), abs=1e-3), 1)]  # older Trainers round
    assert programs.metrics(output, "test_loss") == [(pytest.approx(math.log(2), abs=1e-6), 1)]
    assert programs.metrics(output, "test_margin") == [(pytest.approx(0, abs=1e-6), 1)]


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, r"train_loss is not a finite number at step \d: lower learning_rate \(1e\+30\)"),
        ({"log_interval": 10}, r"the loss is not a finite number after step 6: lower"),
        (
            {"log_interval": 10, "validation_fraction": 0, "max_steps": 1},
            r"the loss is not a finite number after step 1: lower",
        ),
    ],
)
def test_a_model_that_is_ruined_is_not_called_trained(
    changed: dict[str, Any], words: str, program: ModuleType, tuning: Options, tune: Train, tmp_path: Path
) -> None:
    hp = tuning(method="full", max_grad_norm=0, warmup_ratio=0, **changed)
    hp.learning_rate = 1e30
    with pytest.raises(program.Problem, match=words):
        tune(hp)
    assert not list((tmp_path / "model").iterdir())


def test_a_name_on_the_hub_that_cannot_be_fetched_is_said(tmp_path: Path, data: Path) -> None:
    arguments = ("--train", str(data / "train"), "--model", "nobody/nothing")
    with programs.started(PROGRAM, *arguments, cwd=tmp_path, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path)) as run:
        assert run.finish() == [1]
    assert run.errors[0].splitlines()[-1] == (
        "fine_tune: error: model nobody/nothing is neither a folder nor in the hub's cache here, and HF_HUB_OFFLINE forbids "
        "to fetch it: give a channel model, or unset HF_HUB_OFFLINE"
    )
    assert "Traceback" not in run.errors[0]


def test_bad_data_is_said_before_torch_is_loaded(tmp_path: Path, data: Path) -> None:
    channel = lines(tmp_path / "train", {"mesages": []})
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/torch.py").write_text("raise SystemExit('torch was loaded')")
    variables = {"PYTHONPATH": f"{tmp_path / 'modules'}:{programs.TOOLKIT}"}
    with programs.started(
        PROGRAM, "--train", str(channel), "--model", str(data / "model"), cwd=tmp_path, **variables
    ) as run:
        assert run.finish() == [1]
    assert run.errors[0].startswith(f"fine_tune: error: the channel train {channel}: data.jsonl:1: has none of messages")


@pytest.mark.parametrize(
    ("too_long", "words"),
    [
        ("cut", r"train: 2 of 3 examples have more than max_length \(40\) tokens: 1 were cut, 1 had nothing left to learn"),
        ("split", r"train: 2 of 3 examples have more than max_length \(40\) tokens: 2 were split\n"),
        ("skip", r"train: 2 of 3 examples have more than max_length \(40\) tokens: 2 were left out"),
    ],
)
def test_long_examples_are_counted(too_long: str, words: str, tuning: Options, tune: Train, tmp_path: Path) -> None:
    channel = lines(tmp_path / "train", turns("a", "b"), turns("x y z " * 40, "b"), turns("a", "x y z " * 40))
    output = tune(tuning(train=channel, validation_fraction=0, max_length=40, too_long=too_long, max_steps=1))
    assert re.search(words, output)


def test_a_job_learns_as_many_tokens_as_the_data_leaves_in(tuning: Options, tune: Train, tmp_path: Path) -> None:
    def counted(name: str, **mark: object) -> int:
        chat = turns("a", "wrong " * 20, "again", "right")
        chat["messages"][1] |= mark
        output = tune(tuning(train=lines(tmp_path / name, chat), validation_fraction=0, max_steps=1, method="full"))
        found = re.search(r"(\d+) of \d+ tokens are learnt", output)
        assert found
        return int(found[1])

    assert counted("weighed", weight=0) == counted("marked", train=False) < counted("plain") / 5
