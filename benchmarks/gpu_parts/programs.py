"""The ready programs, in bfloat16."""

from __future__ import annotations

import importlib.util
import json
import sysconfig
from pathlib import Path

from .kit import ENTRYPOINTS, Done, Machine, Row, run, skipped, succeeded

NEEDS = {"image_classification.py": ("numpy",), "language_model.py": ("numpy", "transformers", "accelerate")}


def rows(machine: Machine) -> list[Row]:
    """Both programs on data that is made here."""
    found = []
    for program, hyperparameters, make, measure, unit in (
        (
            "image_classification.py",
            {"epochs": machine.pick(5, 1), "batch_size": machine.pick(512, 64), "width": machine.pick(64, 4), "amp": "true"},
            _images,
            "validation_accuracy",
            "of 1",
        ),
        (
            "language_model.py",
            {
                "max_steps": machine.pick(300, 3), "batch_size": machine.pick(32, 2), "amp": "true",
                "n_layer": machine.pick(12, 1), "n_embd": machine.pick(768, 32), "n_head": machine.pick(12, 2),
                "block_size": machine.pick(512, 32),
            },
            _texts,
            "validation_loss",
            "nats",
        ),
    ):  # fmt: skip
        missing = [name for name in NEEDS[program] if importlib.util.find_spec(name) is None]
        if missing:
            found.append(skipped(program, f"without {', '.join(missing)}"))
            continue
        folder = machine.work / "data" / program
        folder.mkdir(parents=True)
        make(folder, machine)
        done = succeeded(
            run(machine, program.removesuffix(".py"), ENTRYPOINTS / program, hyperparameters, channels={"train": folder})
        )
        found += _of(machine, program, done, measure, unit)
    return found


def _of(machine: Machine, program: str, done: Done, measure: str, unit: str) -> list[Row]:
    name = program.removesuffix(".py")
    metrics = json.loads((done.folder / "output/data/metrics.json").read_text())
    if "metrics" in metrics:
        metrics = metrics["metrics"]
    good = {"validation_accuracy": lambda value: value > 0.5, "validation_loss": lambda value: value < 6}[measure]
    return [
        machine.judged(f"{name}: {measure}", metrics[measure], unit, "it learns", good(metrics[measure])),
        Row(f"{name}: examples a second", metrics["examples_per_second"], "1/s"),
        Row(f"{name}: whole job", done.seconds, "s"),
    ]


def _images(folder: Path, machine: Machine) -> None:
    """Noise around a pattern for each of ten classes."""
    import numpy

    draw = numpy.random.default_rng(0)
    count, size = machine.pick(20_000, 400), machine.pick(64, 16)
    patterns = draw.integers(0, 255, (10, size, size, 1))
    labels = draw.integers(0, 10, count)
    images = (patterns[labels] * 0.5 + draw.integers(0, 128, (count, size, size, 1))).astype(numpy.uint8)
    numpy.savez(folder / "data.npz", x=images, y=labels)


def _texts(folder: Path, machine: Machine) -> None:
    """The standard library's own source."""
    left = machine.pick(5_000_000, 20_000)
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text = path.read_text(errors="replace")
        (folder / f"{path.stem}.txt").write_text(text)
        left -= len(text)
        if left < 0:
            return
