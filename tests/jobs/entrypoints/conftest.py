"""The programs as modules, and the demo data as channels."""

from __future__ import annotations

import importlib
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jobs.entrypoints import programs
from jobs.entrypoints.tuning import Options, Train
from support.lazy import Lazy

torch: Any = Lazy("torch")


@pytest.fixture(scope="session")
def module() -> Iterator[Callable[[str], ModuleType]]:
    """Imports a program of entrypoints/ by its name; leaves the import path, modules and environment as they were."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(programs.ENTRYPOINTS))
        yield _import
    for name in set(sys.modules) - before:
        if str(programs.ENTRYPOINTS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def _import(name: str) -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")  # language_model sets these two where they are not set, for the whole process
        patch.setenv("TOKENIZERS_PARALLELISM", "false")
        return importlib.import_module(name)


@pytest.fixture(scope="module")
def program(request: pytest.FixtureRequest, module: Callable[[str], ModuleType]) -> ModuleType:
    """The program that a test module names as its PROGRAM."""
    return module(request.module.PROGRAM.removesuffix(".py"))


@pytest.fixture
def outside_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of a job in this process, and no checkpoints of a job that this machine may have in /opt/ml."""
    for name in set(os.environ) - set(programs.environment()):
        monkeypatch.delenv(name)
    monkeypatch.setenv("SM_CHECKPOINT_DIR", str(tmp_path / "absent"))


@pytest.fixture(scope="session")
def job(tmp_path_factory: pytest.TempPathFactory, module: Callable[[str], ModuleType]) -> Path:
    """A folder with the channels train and test (digits), text/train and text/validation. Not to be written to."""
    root = tmp_path_factory.mktemp("channels")
    demo_data = module("demo_data")
    demo_data.write_digits(root / "digits", "npz")
    demo_data.write_text(root / "text")
    return root


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory, module: Callable[[str], ModuleType]) -> Path:
    """The demo data for fine-tuning: train, validation, test and model. Not to be written to."""
    root = tmp_path_factory.mktemp("instructions")
    module("demo_data").write_instructions(root, preferences=False)
    return root


@pytest.fixture
def options(program: ModuleType, outside_a_job: None, data: Path, tmp_path: Path) -> Options:
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
        return program.hyperparameters([part for name, value in given.items() for part in (f"--{name}", str(value))])

    return read


@pytest.fixture
def train(program: ModuleType, module: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]) -> Train:
    """Fine-tunes in this process; gives what was printed."""

    def run(hp: Namespace) -> str:
        source = program.starting_model(hp)
        module("_tuning").train(hp, source, program.load_data(hp), program.World(0, 1, 0, torch.device("cpu")))
        return capsys.readouterr().out

    return run
