"""Folders of pictures that nobody has made by hand, some of them damaged; and the loop that tries programs on mutants.

`TRAINSHED_MUTANTS=1000` tries as many; a failure names its seed. Mutants have a process of their own: what they do to native
libraries is no other test's business.
"""

from __future__ import annotations

import io
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support import programs
from support.paths import ROOT

COUNT = int(os.environ.get("TRAINSHED_MUTANTS") or 60)
GROUPS = 2
Files = dict[str, bytes]


def start(test_module: str, group: int | str, folder: Path) -> None:
    """Runs `work(group)` of a test module in a process of its own, which must succeed."""
    paths = os.pathsep.join([str(programs.TOOLKIT), str(ROOT / "tests")])
    code = f"from jobs.entrypoints.{test_module} import work; work({group!r})"
    variables = programs.environment(PYTHONPATH=paths, SM_CHECKPOINT_DIR=str(folder / "absent"), HF_HUB_OFFLINE="1")
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=variables, capture_output=True, text=True)
    last = [line for line in done.stdout.splitlines() if line.startswith("seed ")][-1:]
    assert done.returncode == 0, f"{last}\n{done.stderr[-3000:]}"


def each(
    program: str, group: int, make: Callable[[random.Random], tuple[Files, list[str]]], finite: Callable[[], bool]
) -> None:
    """Trains on each mutant of a group below this folder, with the model in ./model."""
    every(program, make, finite, "model", range(group, COUNT, GROUPS))


def every(
    program: str,
    make: Callable[[random.Random], tuple[Files, list[str]]],
    finite: Callable[[], bool],
    model: str,
    seeds: range = range(COUNT),
    drawn: str = "",
) -> None:
    """Trains on each mutant below this folder: to a usable model, or to a refusal in one line, without one.

    make: files by path, and arguments; called in the mutant's folder.   finite: whether the model in the folder is one.
    drawn: the word with which chance begins, if it is not the program.
    """
    sys.path.insert(0, str(programs.ENTRYPOINTS))
    module: Any = __import__(program)
    from _common import Problem  # type: ignore[import-not-found]

    top, trained = Path.cwd(), 0
    for seed in seeds:
        draw = random.Random(f"{drawn or program} {seed}")
        folder = top / str(seed)
        folder.mkdir()
        os.chdir(folder)
        files, given = make(draw)
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        sys.argv = [program, *given]
        print(f"seed {seed}: {given}: {sorted(files)[:4]}", flush=True)
        try:
            module.main()
        except Problem as problem:
            assert str(problem).strip() and "\n" not in str(problem).strip(), problem
            assert "Traceback" not in str(problem) and "[bt]" not in str(problem) and len(str(problem)) < 1000, problem
            assert not list((folder / model).glob("*"))
            print(f"    {problem}")
            continue
        trained += 1
        about = folder / model / "model.json"
        metrics = json.loads(about.read_text())["metrics"] if about.exists() else {}
        assert all(math.isfinite(value) for value in metrics.values()), metrics
        assert finite(), "its predictions are not numbers"
    print(f"{trained} of {len(seeds)} trained")
    assert trained >= len(seeds) // 8, f"most mutants should not be so bad: {trained} trained"


def picture(draw: random.Random, size: tuple[int, int], mode: str = "RGB", form: str = "PNG") -> bytes:
    """An image file of one colour with a brighter corner."""
    from PIL import Image

    dark = tuple(draw.randrange(200) for _ in mode)
    image = Image.new(mode, size, dark[0] if len(mode) == 1 else dark)
    image.paste(255 if len(mode) == 1 else (255,) * len(mode), (0, 0, size[0] // 2, size[1] // 2))
    held = io.BytesIO()
    image.save(held, form)
    return held.getvalue()


def damaged(data: bytes, draw: random.Random) -> bytes:
    """The bytes, cut, spoilt or replaced."""
    what = draw.randrange(4)
    if what == 0:
        return data[: draw.randrange(len(data) + 1)]
    if what == 1:
        return draw.choice([b"", b"no picture", b"\x00" * 40, data[::-1]])
    spoilt = bytearray(data)
    for _ in range(draw.choice([1, 3, 20])):
        if spoilt:
            spoilt[draw.randrange(len(spoilt))] = draw.randrange(256)
    return bytes(spoilt)


def spoil(files: Files, draw: random.Random) -> Files:
    """Some of the files damaged, lost, or under another name."""
    files = dict(files)
    for _ in range(draw.choice([0, 0, 0, 1, 2])):
        if not files:
            break
        name = draw.choice(sorted(files))
        what = draw.randrange(5)
        if what == 0:
            del files[name]
        elif what == 1:
            files[draw.choice([f"{name}.bak", name.upper(), f"train/{draw.randrange(99)}.txt"])] = files.pop(name)
        else:
            files[name] = damaged(files[name], draw)
    return files


def chosen(values: dict[str, list[str]], draw: random.Random) -> list[str]:
    """Some hyperparameters with some of their values."""
    names = draw.sample(sorted(values), min(len(values), draw.choice([0, 1, 2, 3, 5])))
    return [part for name in names for part in (f"--{name}", draw.choice(values[name]))]
