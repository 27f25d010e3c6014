"""The language model: real jobs as processes, and what a job is made of within this process."""

from __future__ import annotations

import json
import math
import os
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
from support.programs import Options, Train
from support.runner_project import Project
from trainshed.checkpoint import guard

needs("transformers", "accelerate")
pytestmark = pytest.mark.torch
torch: Any = Lazy("torch")
transformers: Any = Lazy("transformers")

PROGRAM = "language_model.py"
SMALL = {"block_size": 16, "n_layer": 1, "n_embd": 16, "n_head": 2, "batch_size": 4, "max_steps": 6, "log_interval": 2}
TINY = ("--n_embd", "32", "--n_layer", "1", "--block_size", "32")

NO_NETWORK = """
import socket
def refuse(*arguments, **keywords):
    with open({log!r}, "a") as file:
        file.write(repr(arguments))
    raise OSError("no network")
socket.getaddrinfo = socket.create_connection = socket.socket.connect = refuse
"""


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, job: Path) -> tuple[Path, dict[str, str], str]:
    """A job on two ranks, of which one got SIGTERM: its folder, variables and rank 0's stderr. It had no network."""
    root = tmp_path_factory.mktemp("job")
    (root / "modules").mkdir()
    (root / "modules" / "sitecustomize.py").write_text(NO_NETWORK.format(log=str(root / "connections")))
    variables = {
        **programs.job_folder(root / "job", job / "text", "train", "validation"),
        "PYTHONPATH": f"{root / 'modules'}:{programs.TOOLKIT}",
    }
    arguments = (*TINY, "--max_steps", "2000", "--log_interval", "10")
    with programs.started(PROGRAM, *arguments, cwd=root, ranks=2, **variables) as run:
        run.wait_for("^metric train_loss=.* step=20$")
        run.processes[1].send_signal(signal.SIGTERM)
        run.succeed()
        return root, variables, run.errors[0]


def test_one_sigterm_stops_all_ranks_at_a_step_with_a_checkpoint(stopped: tuple[Path, dict[str, str], str]) -> None:
    root, _, errors = stopped
    summary = json.loads((root / "job" / "output" / "data" / "metrics.json").read_text())
    assert not summary["finished"] and 20 <= summary["steps"] < 2000
    [checkpoint] = (root / "job" / "checkpoints").iterdir()
    assert checkpoint.name == f"checkpoint-{summary['steps']}"
    assert f"stopping after step {summary['steps']}: SIGTERM received; saved in {checkpoint}\n" in errors
    assert "validation_loss" not in summary
    assert not (root / "connections").exists()


def test_the_next_run_goes_on_learns_and_its_model_loads_and_measures_the_same(
    stopped: tuple[Path, dict[str, str], str], program: ModuleType, job: Path
) -> None:
    root, variables, _ = stopped
    step = json.loads((root / "job" / "output" / "data" / "metrics.json").read_text())["steps"]
    half = root / "job" / "checkpoints" / f"checkpoint-{step + 1}"  # as a run that was killed leaves it
    shutil.copytree(root / "job" / "checkpoints" / f"checkpoint-{step}", half)
    (half / "optimizer.pt").write_bytes((half / "optimizer.pt").read_bytes()[:-100])
    for manifest in half.glob("*.manifest"):  # the last file to be written
        manifest.unlink()
    end = step + 40
    arguments = (*TINY, "--max_steps", str(end), "--log_interval", "10", "--learning_rate", "0.01")
    with programs.started(PROGRAM, *arguments, cwd=root, ranks=2, **variables) as run:
        output = run.succeed()
    assert f"{half.name} passed over: it was not finished" in run.errors[0]
    assert f"resuming from {root}/job/checkpoints/checkpoint-{step} (verified)\n" in run.errors[0]
    losses = programs.metrics(output, "train_loss")
    assert losses[0][1] > step and losses[-1][1] == end - end % 10
    assert losses[-1][0] < 4.5 < math.log(257)

    [(loss, at)] = programs.metrics(output, "validation_loss")
    [(perplexity, _)] = programs.metrics(output, "validation_perplexity")
    assert at == end and perplexity == pytest.approx(math.exp(loss), rel=1e-3)
    model = transformers.AutoModelForCausalLM.from_pretrained(root / "job" / "model").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(root / "job" / "model")
    texts = program.texts_below(job / "text" / "validation", "validation")
    blocks = program.Blocks(program.tokens_of(texts, program.encode_with(tokenizer)), 32)
    batch = torch.stack([blocks[position]["input_ids"] for position in range(len(blocks))])
    with torch.no_grad():
        # The Trainer weighs the batches of ranks alike, full or not.
        assert model(input_ids=batch, labels=batch).loss.item() == pytest.approx(loss, rel=2e-3)
    assert all((path.stat().st_mode & 0o444) == 0o444 for path in (root / "job" / "model").iterdir())


# --- within this process ----------------------------------------------------------------------------------------------


@pytest.fixture
def options(options: Options, tmp_path: Path) -> Options:
    """Hyperparameters for a job of a few steps on a text below tmp_path."""
    programs.channel(tmp_path / "train" / "deep", "the train stands under a roof. " * 200, "a.txt")
    return options


@pytest.fixture
def train(program: ModuleType, capsys: pytest.CaptureFixture[str]) -> Train:
    """Runs a job in this process; gives what it printed."""

    def run(hp: Namespace) -> str:
        program.train(hp, program.World(0, 1, 0, torch.device("cpu")))
        return capsys.readouterr().out

    return run


def test_two_ranks_train_on_a_pipe_of_text(project: Project, job: Path) -> None:
    (project.folder / "job.yaml").write_text(
        f"program: {programs.ENTRYPOINTS / PROGRAM}\n"
        "hyperparameters: {max_steps: 2, n_embd: 32, n_layer: 1, block_size: 32}\n"
        "distribution: {kind: torchrun, processes_per_host: 2}\n"
        f"channels: {{train: {{path: {job / 'text' / 'train'}, input_mode: Pipe, content_type: text/plain}}}}\n"
    )
    done = project.trainshed("run", "job.yaml")
    count = sum(len(path.read_bytes()) for path in (job / "text" / "train").rglob("*.txt"))

    assert done.status == 0, done.output
    assert f"training on {int((count + 1) * 0.9) // 32} sequences" in done.output
    assert json.loads((project.run / "algo-1/output/data/metrics.json").read_text())["steps"] == 2


def test_a_tokenizer_of_ones_own_is_used_and_saved_with_the_model(options: Options, train: Train, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    mine = tokenizers.ByteLevelBPETokenizer()
    mine.train_from_iterator(["the train stands under a roof. "] * 3, vocab_size=280, min_frequency=1)
    transformers.PreTrainedTokenizerFast(tokenizer_object=mine._tokenizer).save_pretrained(tmp_path / "tokenizer")
    output = train(options(tokenizer=tmp_path / "tokenizer"))
    assert programs.metrics(output, "validation_loss")
    saved = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert len(saved) == model.config.vocab_size == mine.get_vocab_size()
    assert len(saved("the train stands")["input_ids"]) < 10


@pytest.mark.parametrize(
    "changed",
    [
        {"gradient_accumulation_steps": 2, "amp": True, "lr_schedule": "linear"},
        {"optimizer": "adafactor", "lr_schedule": "constant", "dropout": 0.1},
        {"optimizer": "sgd", "validation_fraction": 0, "max_grad_norm": 0},
    ],
)
def test_every_way_to_train_comes_to_its_end(
    options: Options, train: Train, tmp_path: Path, changed: dict[str, object]
) -> None:
    output = train(options(**changed))
    assert [step for _, step in programs.metrics(output, "train_loss")] == [2, 4, 6]
    assert bool(programs.metrics(output, "validation_loss")) == (changed.get("validation_fraction") != 0)
    assert json.loads((tmp_path / "output" / "metrics.json").read_text())["finished"] is True
    assert "{" not in output  # the Trainer's own lines


def test_epochs_count_whole_passes_over_the_text(program: ModuleType, options: Options, train: Train) -> None:
    data, _ = program.load_data(options(), program.encode_bytes, program.World(0, 1, 0, torch.device("cpu")))
    output = train(options(max_steps="", epochs=2, batch_size=64))
    assert f"for {2 * math.ceil(len(data) / 64)} steps" in output
    assert [step for _, step in programs.metrics(output, "validation_loss")] == [6, 12]


def stop_at(step: int, program: ModuleType, patch: pytest.MonkeyPatch) -> None:
    """Sends this process SIGTERM at the end of a step; the guard handles it."""
    own = program.Reporter.on_log

    def interrupted(reporter: Any, args: Any, state: Any, *others: Any, **named: Any) -> None:
        own(reporter, args, state, *others, **named)
        if state.global_step == step:
            signal.raise_signal(signal.SIGTERM)

    patch.setattr(program.Reporter, "on_log", interrupted)


@pytest.mark.exact
def test_a_job_interrupted_twice_ends_with_the_loss_of_one_that_never_was(
    program: ModuleType, options: Options, train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hp = options(max_steps=30, log_interval=1, dropout=0.1)
    straight = train(hp)
    hp = Namespace(**{**vars(hp), "checkpoint_dir": tmp_path / "checkpoints"})
    pieces = []
    for step in (7, 21):
        with monkeypatch.context() as patch:
            stop_at(step, program, patch)
            pieces += programs.metrics(train(hp), "train_loss")
        summary = json.loads((tmp_path / "output/metrics.json").read_text())
        assert step <= summary["steps"] == pieces[-1][1] <= step + 1 and not summary["finished"]
    last = train(hp)
    assert pieces + programs.metrics(last, "train_loss") == programs.metrics(straight, "train_loss")
    assert programs.metrics(last, "validation_loss") == programs.metrics(straight, "validation_loss")


def test_a_finished_training_is_not_repeated_but_evaluated(options: Options, train: Train, tmp_path: Path) -> None:
    hp = options(checkpoint_dir=tmp_path / "checkpoints")
    first, again = train(hp), train(hp)
    assert not programs.metrics(again, "train_loss")
    assert programs.metrics(again, "validation_loss") == programs.metrics(first, "validation_loss")


@pytest.mark.safety
def test_a_checkpoint_of_another_model_is_named(program: ModuleType, options: Options, train: Train, tmp_path: Path) -> None:
    train(options(checkpoint_dir=tmp_path / "checkpoints"))
    with pytest.raises(program.Problem, match=r"checkpoint-6 is of another model \(n_embd differ\): remove it, or use"):
        train(options(checkpoint_dir=tmp_path / "checkpoints", n_embd=32))


@pytest.mark.safety
def test_a_checkpoint_with_a_missing_or_shorter_file_is_passed_over(
    options: Options, train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(guard, "say", said.append)
    hp = options(checkpoint_dir=tmp_path / "checkpoints", max_steps=1)
    train(hp)
    for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json"):
        for number, damage in enumerate((lambda file: os.truncate(file, file.stat().st_size - 30), Path.unlink)):
            folder = tmp_path / f"{name}-{number}"
            shutil.copytree(tmp_path / "checkpoints", folder)
            damage(folder / "checkpoint-1" / name)
            said.clear()
            assert guard.Guard(str(folder), "").newest() is None
            assert f"checkpoint-1 passed over: {name} {('has ', 'is missing')[number]}" in "\n".join(said)
    said.clear()
    train(Namespace(**{**vars(hp), "checkpoint_dir": tmp_path / "optimizer.pt-0"}))
    assert "checkpoint-1 passed over: optimizer.pt has " in "\n".join(said)


@pytest.mark.spine
def test_it_goes_on_from_the_model_of_the_channel_model(
    program: ModuleType, options: Options, train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = train(options(model_dir=tmp_path / "first", learning_rate=0.05))
    programs.as_previous_model(tmp_path / "first", monkeypatch, tmp_path)

    still = train(options(max_steps=1, learning_rate=1e-12, n_embd=32, n_layer=2))

    losses = [programs.metrics(output, "validation_loss")[-1][0] for output in (first, still)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert ": n_layer 1, n_head 2, n_embd 16, n_positions 16, vocab_size 257\n" in still
    for changed, message in (
        ({"block_size": 32}, "block_size is 32, but the previous model takes 16 tokens"),
        ({"previous_model": tmp_path / "train"}, "holds no tokenizer that Transformers loads: "),
    ):
        with pytest.raises(program.Problem, match=message):
            train(options(**changed))


def test_a_model_whose_answers_are_no_numbers_is_not_called_trained(
    program: ModuleType, options: Options, train: Train, tmp_path: Path
) -> None:
    ruined = options(max_steps=3, weight_decay=1e30, validation_fraction=0, warmup_ratio=0, log_interval=50)
    with pytest.raises(program.Problem, match=r"is not a finite number (at|after) step 3: lower learning_rate"):
        train(ruined)
    assert not list((tmp_path / "model").glob("*.safetensors"))


@pytest.mark.safety
def test_weights_that_a_step_has_ruined_are_in_no_checkpoint(
    program: ModuleType, options: Options, train: Train, tmp_path: Path
) -> None:
    ruined = {"learning_rate": 1e10, "weight_decay": 1e30, "warmup_ratio": 0.5, "max_steps": 4, "log_interval": 50}
    with pytest.raises(program.Problem, match=r"is not a finite number after step 2: lower learning_rate"):
        train(options(checkpoint_dir=tmp_path / "checkpoints", save_steps=1, **ruined))  # the first step has a rate of 0
    assert [path.name for path in (tmp_path / "checkpoints").glob("checkpoint-*")] == ["checkpoint-1"]


def test_a_learning_rate_that_is_too_high_is_named(program: ModuleType, options: Options, train: Train) -> None:
    with pytest.raises(program.Problem, match=r"^train_loss is not a finite number at step \d+: lower learning_rate"):
        train(options(optimizer="sgd", learning_rate=1e30, max_grad_norm=0, lr_schedule="constant", max_steps=20))
