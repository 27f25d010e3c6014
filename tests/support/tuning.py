"""Fine-tuning in a test's process: the demo data, data in its form, and a small job."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support import programs
from support.lazy import Lazy
from support.programs import Module, Options, Train

torch: Any = Lazy("torch")


def lines(folder: Path, *examples: object) -> Path:
    """A channel of one file with these objects, or texts as they are, as lines."""
    return programs.channel(folder, list(examples), "data.jsonl")


def turns(*contents: str) -> dict[str, Any]:
    return {"messages": [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]}


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory, module: Module) -> Path:
    """The demo data for fine-tuning: train, validation, test and model. Not to be written to."""
    root = tmp_path_factory.mktemp("instructions")
    module("demo_data").write_instructions(root, preferences=False)
    return root


@pytest.fixture
def tuning(program: ModuleType, outside_a_job: None, data: Path, tmp_path: Path) -> Options:
    """Hyperparameters of a small fine-tuning on this process, with changes."""

    def read(**changed: object) -> Namespace:
        given = {
            "train": data / "train",
            "model": data / "model",
            "model_dir": tmp_path / "model",
            "output_data_dir": tmp_path / "output",
            "max_steps": 6,
            "batch_size": 4,
            "log_interval": 1,
            "learning_rate": 0.01,
            "device": "cpu",
            **changed,
        }
        return program.hyperparameters(programs.arguments(**given))

    return read


@pytest.fixture
def tune(program: ModuleType, module: Module, capsys: pytest.CaptureFixture[str]) -> Train:
    """Fine-tunes in this process; gives what was printed."""

    def run(hp: Namespace) -> str:
        source = program.starting_model(hp)
        module("_tuning").train(hp, source, program.load_data(hp), program.World(0, 1, 0, torch.device("cpu")))
        return capsys.readouterr().out

    return run
