"""Takes the pictures of these pages: the report of a run and the web page, in a real Chromium without a screen.

    python docs/pictures.py [NAME ...]    # writes docs/pictures/NAME.png, without a name all

It needs Chromium, chromedriver, and what `make setup` installs.

The runs are real: a small network in numpy learns the digits that scikit-learn brings along, with four learning rates, and
one in torch has to wait for its data.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs/pictures"
TRAIN = """\
import os, time
import numpy as np
from sklearn.datasets import load_digits
rate, pause = float(os.environ.get("SM_HP_RATE", 0.1)), float(os.environ.get("SM_HP_PAUSE", 0))
random = np.random.default_rng(0)
images, labels = load_digits(return_X_y=True)
order = random.permutation(len(images))
images, labels = images[order] / 16, labels[order]
x, y, vx, vy = images[:1400], labels[:1400], images[1400:], labels[1400:]
a, b = random.normal(0, 0.15, (64, 32)), random.normal(0, 0.15, (32, 10))

def forward(x, y):
    hidden = np.maximum(x @ a, 0)
    out = hidden @ b
    out = np.exp(out - out.max(1, keepdims=True))
    out /= out.sum(1, keepdims=True)
    return hidden, out, -np.log(out[range(len(y)), y] + 1e-12).mean(), (out.argmax(1) == y).mean()

for step in range(1, 1201):
    part = random.integers(0, len(x), 32)
    hidden, out, loss, _ = forward(x[part], y[part])
    out[range(32), y[part]] -= 1
    db = hidden.T @ out / 32
    da = x[part].T @ ((out @ b.T) * (hidden > 0)) / 32
    norm = float(np.sqrt((da**2).sum() + (db**2).sum()))
    a -= rate * da
    b -= rate * db
    print(f"metric loss={loss:.5f} grad_norm={norm:.5f} step={step}", flush=True)
    if step % 30 == 0:
        _, _, held, right = forward(vx, vy)
        print(f"metric eval_loss={held:.5f} eval_accuracy={right:.5f} step={step}", flush=True)
    time.sleep(pause)
    if os.environ.get("SM_HP_BREAK") and step == 700:
        raise ValueError("labels of shard 7 are out of range: 10 classes, label 10")
np.savez(os.path.join(os.environ["SM_MODEL_DIR"], "model.npz"), a=a, b=b)
"""
WAITS = """\
import os, time, torch
torch.distributed.init_process_group("gloo")
torch.set_num_threads(1)

class Slow(torch.utils.data.Dataset):
    def __len__(self): return 100000
    def __getitem__(self, at):
        time.sleep(0.0004)
        return torch.ones(128), at % 10

model = torch.nn.Sequential(torch.nn.Linear(128, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in torch.utils.data.DataLoader(Slow(), batch_size=32):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
TUNE = """\
job: {program: train.py}
search: {rate: {low: 0.005, high: 0.5}, pause: [0, 0.001]}
objective: maximize eval_accuracy
strategy: random
max_jobs: 12
"""
STEPS = """\
steps:
  prepare:
    run: {program: train.py}
  train:
    run:
      program: train.py
      channels: {model: "${steps.prepare.model}"}
  good:
    condition: ${steps.train.metrics.eval_accuracy} >= 0.5
  keep:
    when: good
    register: {model: digits, from: train, stage: champion}
"""


FILES = {"train.py": TRAIN, "waits.py": WAITS, "digits-rate.yaml": TUNE, "digits.yaml": STEPS}


def run(name: str, *words: str, script: str = "train.py") -> tuple[str, ...]:
    """The command that starts a run."""
    return ("run", script, "--name", name, *words)


RATES = ("0.02", "0.05", "0.1", "0.3")
# What there is to be seen, by the names that the pictures below use. What fails does so on purpose.
SIGHTS = {
    "rates": [run(f"digits-{rate.replace('.', '')}", "--hp", f"rate={rate}", "--tag", f"rate={rate}") for rate in RATES],
    "tuning": [("tune", "digits-rate.yaml")],
    "pipeline": [("steps", "run", "digits.yaml")],
    "broken": [run("broken", "--hp", "break=1", "--tag", "rate=0.1")],
    "live": [run("digits-live", "--hp", "pause=0.1", "--tag", "rate=0.1", "--detach")],
    "waits": [
        run(
            "waits", "--distribution", "torchrun", "--processes-per-host", "2", "--profile", "auto", "--tag", "rate=0.01",
            "--detach", script="waits.py",
        )
    ],
}  # fmt: skip
LIMIT = 600.0  # seconds, which only a hang reaches
# Whether all that the window shows has been drawn for the width that it has.
DRAWN = """
return [...document.querySelectorAll("figure")].every(one => {
  const box = one.getBoundingClientRect(), chart = one.querySelector(":scope > svg");
  if (!box.width || box.top > innerHeight || box.bottom < 0) return true;
  return Math.abs(chart.viewBox.baseVal.width - Math.max(240, box.width)) < 4;
}) && ![...document.querySelectorAll(".card.later")].some(one => one.getBoundingClientRect().top < innerHeight);
"""
PAINTED = "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"


class Window:
    """A browser's window, and what a person does in it."""

    def __init__(self, browser: Any, address: str, project: Path) -> None:
        self.browser, self.address, self.project = browser, address, project
        browser.set_window_size(1280, 900)

    def see(self, selector: str, words: str = "", act: Callable[[Any], object] = lambda element: None) -> None:
        """Waits for an element with these words, and does something with it."""
        from selenium.common.exceptions import StaleElementReferenceException

        def done() -> bool:
            for element in self.browser.find_elements("css selector", selector):
                with suppress(StaleElementReferenceException):  # it was drawn anew meanwhile
                    if words in (element.text or element.get_attribute("textContent")):
                        act(element)
                        return True
            return False

        wait(done, f"{selector} with {words!r}")

    def click(self, selector: str, words: str = "") -> None:
        """Clicks on it, when it has come."""
        self.see(selector, words, lambda element: element.click())

    def open(self, *path: tuple[str, str]) -> None:
        """From the table of runs on, click by click."""
        self.browser.get("about:blank")
        self.browser.get(self.address)
        for step in path:
            self.click(*step)

    def take(self, name: str, height: int) -> None:
        """Writes the picture, when all is drawn."""
        self.browser.set_window_size(1280, height + 139)  # the window has a frame, also without a screen
        wait(lambda: self.browser.execute_script(DRAWN), "the last chart")
        self.browser.execute_async_script(PAINTED)
        file = PICTURES / f"{name}.png"
        self.browser.save_screenshot(str(file))
        make_small(file)


def wait(good: Callable[[], object], what: str) -> None:
    """Until something is so."""
    until = time.monotonic() + LIMIT
    while not good():
        if time.monotonic() > until:
            raise AssertionError(f"{what} never came")
        time.sleep(0.1)


def make_small(file: Path) -> None:
    """256 colours are enough for a page."""
    from PIL import Image

    with Image.open(file) as picture:
        small = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(file, optimize=True)


def the_list(window: Window) -> None:
    """The table of runs."""
    window.open()
    for name in ("digits-live", "waits"):
        window.see(".rows .row", name)


def a_run(window: Window) -> None:
    """One run, with some of its curve."""
    window.open((".rows a", "digits-live"))
    window.see('[data-chart="loss"] figure > svg text', "300")


def a_machine(window: Window) -> None:
    """What a run does to its machine, for some time."""
    window.open((".rows a", "waits"), (".tabs a", "machine"))
    window.see("#steps", "input-bound")
    window.see('[data-chart="CPU, % of all cores"] figure > svg text', "30 s")


def an_overlay(window: Window) -> None:
    """Runs over one another."""
    window.open()
    for rate in RATES:
        window.see(
            ".rows .row", f"digits-{rate.replace('.', '')}-", lambda row: row.find_element("css selector", "input").click()
        )
    window.click("#overlay", str(len(RATES)))
    window.see('[data-chart="loss"] figure > svg')


def parameters(window: Window) -> None:
    """What their values depend on."""
    an_overlay(window)
    window.click(".tabs button", "Parameters")
    window.see("svg[aria-label^='parallel']")


def a_tuning(window: Window) -> None:
    """A tuning that is over."""
    window.open(("#pages a", "Tunings"), ("main td a", "digits-rate"))
    window.see("h2", "Trials")


def a_pipeline(window: Window) -> None:
    """A pipeline that is over."""
    window.open(("#pages a", "Pipelines"), ("main td a", "digits"))
    window.see("main td .state")


def a_lineage(window: Window) -> None:
    """Where its second run comes from."""
    a_pipeline(window)
    window.click("main td a", "train")
    window.click(".tabs a", "lineage")
    window.see(".graph .marked")


def a_report(window: Window) -> None:
    """The report of a run that has failed."""
    (file,) = window.project.glob("runs/broken-*/algo-1/output/data/report.html")
    window.browser.get(file.as_uri())


# The picture, what has to be there for it, how it comes, its height.
SHOTS: dict[str, tuple[tuple[str, ...], Callable[[Window], None], int]] = {
    "ui-list": (tuple(SIGHTS), the_list, 420),
    "ui-run": (("live",), a_run, 960),
    "ui-machine": (("waits",), a_machine, 1380),
    "ui-overlay": (("rates",), an_overlay, 820),
    "ui-parameters": (("rates",), parameters, 1000),
    "ui-tunings": (("tuning",), a_tuning, 1000),
    "ui-pipelines": (("pipeline",), a_pipeline, 700),
    "ui-lineage": (("pipeline",), a_lineage, 760),
    "report": (("broken",), a_report, 1240),
}


def main() -> int:
    """Makes the runs, looks at them, writes the pictures; returns the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", nargs="*", help=f"of a picture: {', '.join(SHOTS)}")
    names = parser.parse_args().name or [*SHOTS]
    if unknown := {*names} - {*SHOTS}:
        parser.error(f"no such picture: {', '.join(unknown)}")
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        print("needs Chromium and its driver (Debian: apt-get install chromium chromium-driver)")
        return 2
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pictures-", ignore_cleanup_errors=True)))
        project, environ = lay(folder)
        address = stack.enter_context(
            serving(project, environ, [one for one in SIGHTS if any(one in SHOTS[name][0] for name in names)])
        )
        window = Window(stack.enter_context(chromium(folder)), address, project)
        for name in names:
            _, show, height = SHOTS[name]
            show(window)
            window.take(name, height)
            print(name, flush=True)
    return 0


def lay(folder: Path) -> tuple[Path, dict[str, str]]:
    """The project, and the variables of a user who has nothing else."""
    project = folder / "project"
    project.mkdir()
    for name, content in FILES.items():
        (project / name).write_text(content)
    own = {"PYTHONPATH": str(ROOT / "toolkit"), "XDG_STATE_HOME": str(folder / "state"), "OMP_NUM_THREADS": "1"}
    return project, {**os.environ, **own, "TRAINSHED_MODEL_STORE": str(folder / "store")}


@contextmanager
def serving(project: Path, environ: dict[str, str], sights: list[str]) -> Iterator[str]:
    """The address of the page over what these commands leave."""
    command = [sys.executable, "-m", "trainshed.cli"]

    def trainshed(*words: str) -> None:
        subprocess.run([*command, *words], cwd=project, env=environ, check=False, capture_output=True)

    try:
        for sight in sights:
            for words in SIGHTS[sight]:
                trainshed(*words)
        with subprocess.Popen([*command, "ui"], cwd=project, env=environ, stderr=subprocess.PIPE, text=True) as server:
            assert server.stderr is not None
            found = re.search(r"http\S+", server.stderr.readline())
            assert found is not None
            try:
                yield found[0]
            finally:
                server.terminate()
    finally:
        for sight, name in (("live", "digits-live"), ("waits", "waits")):
            if sight in sights:
                trainshed("stop", name, "--kill")


@contextmanager
def chromium(folder: Path) -> Iterator[Any]:
    """A new Chromium."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in (
        "headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
        "disable-component-update", "disable-sync", "hide-scrollbars", f"user-data-dir={folder / 'chromium'}",
    ):  # fmt: skip
        options.add_argument(f"--{flag}")
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        yield browser
    finally:
        browser.quit()


if __name__ == "__main__":
    sys.exit(main())
