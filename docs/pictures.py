"""Takes the pictures of these pages: the report of a run and the web page, in a real Chromium without a screen.

    python docs/pictures.py      # writes docs/pictures/*.png; needs Chromium, chromedriver, and what `make setup` installs

The runs are real: a small network in numpy learns the digits that scikit-learn brings along, with four learning rates, and
one in torch has to wait for its data.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
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


def main() -> int:
    """Makes the runs, looks at them, writes the pictures; returns the exit status."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        print("needs Chromium and its driver (Debian: apt-get install chromium chromium-driver)")
        return 2
    folder = Path(tempfile.mkdtemp(prefix="pictures-"))
    project = folder / "project"
    project.mkdir()
    (project / "train.py").write_text(TRAIN)
    (project / "waits.py").write_text(WAITS)
    (project / "digits-rate.yaml").write_text(TUNE)
    (project / "digits.yaml").write_text(STEPS)
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "toolkit"),
        "XDG_STATE_HOME": str(folder / "state"),
        "TRAINSHED_MODEL_STORE": str(folder / "store"),
        "OMP_NUM_THREADS": "1",
    }

    def trainshed(*words: str) -> None:
        command = [sys.executable, "-m", "trainshed.cli", *words]
        subprocess.run(command, cwd=project, env=environ, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    serving: subprocess.Popen[str] | None = None
    try:
        for rate in ("0.02", "0.05", "0.1", "0.3"):
            trainshed(
                "run",
                "train.py",
                "--name",
                f"digits-{rate.replace('.', '')}",
                "--hp",
                f"rate={rate}",
                "--tag",
                f"rate={rate}",
            )
        trainshed("tune", "digits-rate.yaml")
        trainshed("steps", "run", "digits.yaml")
        trainshed("run", "train.py", "--name", "broken", "--hp", "break=1", "--tag", "rate=0.1")
        trainshed("run", "train.py", "--name", "digits-live", "--hp", "pause=0.04", "--tag", "rate=0.1", "--detach")
        waits = ("--name", "waits", "--distribution", "torchrun", "--processes-per-host", "2", "--profile", "auto")
        trainshed("run", "waits.py", *waits, "--tag", "rate=0.01", "--detach")
        command = [sys.executable, "-m", "trainshed.cli", "ui"]
        serving = subprocess.Popen(command, cwd=project, env=environ, stderr=subprocess.PIPE, text=True)
        assert serving.stderr is not None
        address = re.search(r"http\S+", serving.stderr.readline())
        assert address is not None
        PICTURES.mkdir(exist_ok=True)
        with_browser(chromium, driver, folder, lambda browser: pictures(browser, address[0], project))
    finally:
        if serving is not None:
            serving.terminate()
            serving.wait()
        trainshed("stop", "digits-live", "--kill")
        trainshed("stop", "waits", "--kill")
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def with_browser(chromium: str, driver: str, folder: Path, act: Callable[[Any], None]) -> None:
    """Does something with a new Chromium."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        "headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
        "disable-component-update", "disable-sync", "hide-scrollbars", f"user-data-dir={folder / 'chromium'}",
    ):  # fmt: skip
        options.add_argument(f"--{flag}")
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        act(browser)
    finally:
        browser.quit()


def pictures(browser: Any, address: str, project: Path) -> None:
    """All of them."""
    from selenium.common.exceptions import StaleElementReferenceException

    def see(selector: str, words: str = "", act: Callable[[Any], None] = lambda element: None) -> None:
        for _ in range(600):
            for element in browser.find_elements("css selector", selector):
                with suppress(StaleElementReferenceException):  # it was drawn anew meanwhile
                    if words in element.text:
                        return act(element)
            time.sleep(0.1)
        raise AssertionError(f"{selector} with {words!r} never came")

    def click(selector: str, words: str = "") -> None:
        see(selector, words, lambda element: element.click())

    def take(name: str, height: int = 760) -> None:
        browser.set_window_size(1280, height + 139)  # the window has a frame, also without a screen
        time.sleep(1.5)  # charts are drawn anew for the new size
        browser.save_screenshot(str(PICTURES / f"{name}.png"))

    browser.set_window_size(1280, 900)
    browser.get(address)
    see(".rows .row", "digits-live")
    take("ui-list", 420)
    click(".rows a", "digits-live")
    see('[data-chart="loss"] figure > svg')
    time.sleep(8)  # some of its curve
    take("ui-run", 820)
    browser.find_element("css selector", ".brand").click()
    click(".rows a", "waits")
    click(".tabs a", "machine")
    see("#steps", "input-bound")
    time.sleep(20)  # some of its curves
    take("ui-machine", 1380)
    browser.find_element("css selector", ".brand").click()
    see(".rows .row", "digits-03")
    for row in browser.find_elements("css selector", ".rows .row"):
        if "digits-0" in row.text:
            row.find_element("css selector", "input").click()
    click("#overlay", "4")
    see('[data-chart="loss"] figure > svg')
    take("ui-overlay", 820)
    click(".tabs button", "Parameters")
    see("svg[aria-label^='parallel']")
    take("ui-parameters", 820)
    for page, name in (("Tunings", "digits-rate"), ("Pipelines", "digits")):
        click("#pages a", page)
        click("main td a", name)
        see("main td .state")
        take(f"ui-{page.lower()}", 760)
    click("main td a", "train")
    click(".tabs a", "lineage")
    see(".graph .marked")
    take("ui-lineage", 760)
    (report,) = project.glob("runs/broken-*/algo-1/output/data/report.html")
    browser.get(report.as_uri())
    take("report", 1240)


if __name__ == "__main__":
    sys.exit(main())
