"""language_model.py: texts as tokens, and what cannot be done."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support import programs
from support.data_files import frame
from support.extras import needs
from support.lazy import Lazy
from support.programs import Options

needs("transformers", "accelerate")
pytestmark = pytest.mark.torch
torch: Any = Lazy("torch")
transformers: Any = Lazy("transformers")

PROGRAM = "language_model.py"
SMALL = {"block_size": 16, "n_layer": 1, "n_embd": 16, "n_head": 2, "batch_size": 4, "max_steps": 6, "log_interval": 2}
AWKWARD = "Größe\t\x00<|endoftext|>\n  naïve — 🚂\r\n"


@pytest.fixture
def options(options: Options, tmp_path: Path) -> Options:
    """Hyperparameters for a job of a few steps on a text below tmp_path."""
    programs.channel(tmp_path / "train" / "deep", "the train stands under a roof. " * 200, "a.txt")
    return options


def alone(program: ModuleType) -> Any:
    """The world of one rank."""
    return program.World(0, 1, 0, torch.device("cpu"))


@pytest.fixture
def piped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, bytes], str]]:
    """Makes this process a job whose channel train is a pipe of that content; a call gives the channel's path."""
    path = tmp_path / "input/data/train"
    path.parent.mkdir(parents=True)
    os.mkfifo(f"{path}_0")
    feeders = []

    def feed(wrapper: str, content: bytes) -> str:
        config = {"train": {"TrainingInputMode": "Pipe", "RecordWrapperType": wrapper, "ContentType": "text/plain"}}
        monkeypatch.setenv("SM_INPUT_DATA_CONFIG", json.dumps(config))
        monkeypatch.setenv("SM_CHANNELS", '["train"]')
        monkeypatch.setenv("SM_CHANNEL_TRAIN", str(path))
        feeders.append(threading.Thread(target=Path(f"{path}_0").write_bytes, args=(content,)))
        feeders[0].start()
        return str(path)

    yield feed
    for feeder in feeders:
        feeder.join()


def test_a_byte_is_a_token_and_every_text_comes_back(program: ModuleType, tmp_path: Path) -> None:
    tokenizer = program.byte_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = AWKWARD.replace("<|endoftext|>", "")
    for either in (tokenizer, loaded):
        assert len(either) == 257
        assert either(text)["input_ids"] == list(text.encode())
        assert either.decode(either(text)["input_ids"]) == text
        assert either.decode(list(range(128))) == bytes(range(128)).decode()
        assert either("<|endoftext|>")["input_ids"] == [256]


def test_the_fast_way_to_bytes_gives_what_the_tokenizer_gives(program: ModuleType) -> None:
    texts = [AWKWARD.replace("<|endoftext|>", ""), "", "x" * 70_000 + "\n" + "line\n" * 30_000]
    fast = program.tokens_of(map(program.pieces, texts), program.encode_bytes)
    slow = program.tokens_of(map(program.pieces, texts), program.encode_with(program.byte_tokenizer()))
    assert fast.dtype == slow.dtype and fast.tolist() == slow.tolist()
    assert fast[-1] == 256 and (fast == 256).sum() == 3


def test_a_long_text_is_cut_where_lines_end(program: ModuleType) -> None:
    text = "".join(f"line {number}\n" for number in range(20_000)) + "z" * 100_000
    pieces = list(program.pieces(text))
    assert "".join(pieces) == text and max(map(len, pieces)) <= program.PIECE
    assert all(piece.endswith("\n") for piece in pieces[:3])


def test_bytes_that_are_no_utf_8_do_not_stop_a_job(program: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    assert list(map("".join, program.texts_below(tmp_path, "train"))) == ["caf\N{REPLACEMENT CHARACTER}"]


@pytest.mark.parametrize(
    ("wrapper", "content", "texts"),
    [
        ("None", "".join(f"line {number}\n" for number in range(20_000)).encode(), None),
        ("None", b"no end of the last line", ["no end of the last line\n"]),
        ("RecordIO", frame(b"one text\n") + frame("größer\n".encode()), ["one text\n", "größer\n"]),
    ],
)
def test_a_pipe_gives_the_tokens_of_its_texts(
    wrapper: str, content: bytes, texts: list[str] | None, program: ModuleType, piped: Callable[[str, bytes], str]
) -> None:
    found = program.tokens_of_channel(piped(wrapper, content), ("train",), program.encode_bytes, alone(program))
    wanted = program.tokens_of(map(program.pieces, texts or [content.decode()]), program.encode_bytes)

    assert found.tolist() == wanted.tolist()


def test_a_pipe_of_what_is_no_text_is_a_problem_in_one_line(program: ModuleType, piped: Callable[[str, bytes], str]) -> None:
    with pytest.raises(program.Problem, match="train_0: record 1"):
        program.tokens_of_channel(piped("None", b"text\n\xff\n"), ("train",), program.encode_bytes, alone(program))


def test_without_a_validation_channel_the_end_of_the_text_is_held_out(program: ModuleType, options: Options) -> None:
    every = program.tokens_of(program.texts_below(Path(options().train), "train"), program.encode_bytes)
    data, held_out = program.load_data(options(validation_fraction=0.25), program.encode_bytes, alone(program))
    kept = len(every) - round(len(every) / 4)
    assert data.tokens.tolist() + held_out.tokens.tolist() == every.tolist()
    assert (len(data), len(held_out)) == (kept // 16, (len(every) - kept) // 16)
    assert data[1]["labels"].tolist() == every[16:32].tolist()
    assert program.load_data(options(validation_fraction=0), program.encode_bytes, alone(program))[1] is None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"n_head": 3}, "n_embd 16 does not divide by n_head 3"),
        ({"optimizer": "lion"}, "hyperparameter optimizer: 'lion' is not one of adamw, adafactor, sgd"),
        ({"demo_data": "topics"}, "demo_data is topics, but there is a training folder too"),
        ({"train": "/nowhere"}, "the channel train /nowhere is not a folder"),
        ({"train": programs.ENTRYPOINTS}, "entrypoints holds no *.txt files"),
        ({"tokenizer": programs.ENTRYPOINTS}, "holds no tokenizer that Transformers loads: "),
        ({"block_size": 6000}, "the training text has 5581 tokens, less than one sequence of 6000 (block_size)"),
        ({"block_size": 1000}, "the validation text has 620 tokens, less than one sequence of 1000 (block_size)"),
        ({"batch_size": 4, "gradient_accumulation_steps": 5}, "batch_size 4 is smaller than the world size 1 times 5 parts"),
    ],
)
def test_what_cannot_be_done_is_said(
    program: ModuleType, options: Options, changed: dict[str, object], message: str
) -> None:
    with pytest.raises(program.Problem) as raised:
        program.train(options(**changed), alone(program))
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_a_missing_channel_is_named(
    program: ModuleType, outside_a_job: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in programs.job_variables(tmp_path, "validation").items():
        monkeypatch.setenv(name, value)
    message = "^the job has no channel train; add it, or set the hyperparameter demo_data to topics$"
    with pytest.raises(program.Problem, match=message):
        program.train(program.hyperparameters([]), alone(program))
