"""Takes the pictures of docs/programs/pictures.md: what the report of each program shows of its model.

    python docs/program_pictures.py            # trains each with demo data, and writes docs/pictures/program-*.png
    python docs/program_pictures.py RUNS       # of runs of these names that lie in the folder RUNS

It needs Chromium, chromedriver and what `make setup` installs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pictures import PICTURES, ROOT, with_browser

SMALL = ["hidden_size=32", "num_attention_heads=2", "num_hidden_layers=1", "vocab_size=500", "max_length=48"]
# name: its demo data, its hyperparameters; channels are the folders of the data
PROGRAMS = {
    "tabular": ("table", ["objective=binary:logistic", "num_round=20"]),
    "image_classification": ("digits", ["epochs=2"]),
    "object_detection": ("boxes", ["epochs=2"]),
    "semantic_segmentation": ("shapes", ["epochs=2"]),
    "text_classification": ("topics", ["epochs=4", *SMALL]),
}


def main(words: list[str]) -> int:
    """Trains, and takes the pictures; returns the exit status."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        print("needs Chromium and its driver (Debian: apt-get install chromium chromium-driver)")
        return 2
    with tempfile.TemporaryDirectory(prefix="pictures-") as folder:
        runs = Path(words[0]).resolve() if words else Path(folder)
        for name in PROGRAMS:
            if not words:
                train(name, runs)
        with_browser(chromium, driver, Path(folder), lambda browser: take(browser, runs))
    return 0


def train(name: str, folder: Path) -> None:
    """A run of the program with its demo data."""
    data, given = PROGRAMS[name]
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "toolkit"), "XDG_STATE_HOME": str(folder / "state")}
    subprocess.run([sys.executable, str(ROOT / "entrypoints/demo_data.py"), data, str(folder / data)], check=True)
    channels = [word for one in sorted((folder / data).iterdir()) for word in ("--channel", f"{one.name}={one}")]
    hyperparameters = [word for one in given for word in ("--hp", one)]
    command = [
        sys.executable,
        "-m",
        "trainshed.cli",
        "run",
        name,
        *channels,
        *hyperparameters,
        "--output",
        str(folder / name),
    ]
    subprocess.run(command, cwd=folder, env=environ, check=True)


def take(browser: Any, runs: Path) -> None:
    """The part of each report that shows the model."""
    from PIL import Image

    for name in PROGRAMS:
        report = runs / name / "algo-1/output/data/report.html"
        if not report.is_file():
            continue
        browser.set_window_size(1100, 3000)
        browser.get(report.as_uri())
        part = browser.find_element("xpath", "//section[h2='What the model does']")
        path = PICTURES / f"program-{name}.png"
        part.screenshot(str(path))
        Image.open(path).convert("RGB").quantize(64).save(path, optimize=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
