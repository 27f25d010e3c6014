"""What the web page costs: 2,000 runs in the table, and a run with a million points of one metric.

    python benchmarks/ui.py [--runs 2000] [--points 1000000]

Seconds from opening the address to the first row, to the first pixels of the long curve, and to the whole of it; CPU of the
server for each, and while somebody looks at the table for ten seconds. Needs Chromium and chromedriver.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from _claims import claim

ROOT = Path(__file__).resolve().parent.parent
PHASES = ["Starting", "Training", "Uploading", "Completed"]


def lay(project: Path, runs: int, points: int) -> None:
    """Folders of runs as the runner leaves them."""
    for number in range(runs):
        folder = project / f"runs/run-{number:04d}"
        metrics = folder / "algo-1/output/metrics/trainshed"
        metrics.mkdir(parents=True)
        stamp = f"2026-01-{1 + number % 28:02d}T{number % 24:02d}:00:00.000+00:00"
        status = {
            "TrainingJobName": folder.name, "TrainingJobStatus": "Completed", "SecondaryStatus": "Completed",
            "CreationTime": stamp,
            "TrainingTimeInSeconds": 60, "BillableTimeInSeconds": 60, "ResourceConfig": {"InstanceCount": 1},
            "SecondaryStatusTransitions": [{"Status": name, "StartTime": stamp, "EndTime": stamp} for name in PHASES],
            "FinalMetricDataList": [{"MetricName": "loss", "Value": 0.1}],
            "HyperParameters": {f"p{n}": "1" for n in range(20)},
            "Trainshed": {"Tags": {"team": f"team-{number % 7}"}},
        }  # fmt: skip
        (folder / "status.json").write_text(json.dumps(status))
    with (project / "runs/run-0000/algo-1/output/metrics/trainshed/log.json").open("w") as file:
        for step in range(points):
            value = 2.0 / (1 + step / 1000) + (step * 7919 % 1000) / 20000
            point = {
                "MetricName": "loss",
                "Value": round(value, 6),
                "Timestamp": 1.79e9 + step / 10,
                "Step": step,
                "Rank": 0,
            }
            file.write(json.dumps(point) + "\n")


def main() -> int:
    """Measures; prints one line a number."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--points", type=int, default=1_000_000)
    asked = parser.parse_args()
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        print("needs Chromium and its driver")
        return 2
    folder = Path(tempfile.mkdtemp(prefix="ui-"))
    lay(folder, asked.runs, asked.points)
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "toolkit"), "XDG_STATE_HOME": str(folder / "state")}
    time.sleep(6)  # what was written a moment ago is read again
    since = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "trainshed.cli", "ls", "--limit", "1"], cwd=folder, env=environ, capture_output=True
    )
    print(f"index of {asked.runs:,} runs, made once: {time.monotonic() - since:.2f} s")
    serving = subprocess.Popen(
        [sys.executable, "-m", "trainshed.cli", "ui"], cwd=folder, env=environ, stderr=subprocess.PIPE, text=True
    )
    try:
        assert serving.stderr is not None
        address = re.search(r"http\S+", serving.stderr.readline())
        assert address is not None
        measure(address[0], psutil.Process(serving.pid), chromium, driver, folder, asked)
    finally:
        serving.terminate()
        serving.wait()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def measure(address: str, server: psutil.Process, chromium: str, driver: str, folder: Path, asked: Any) -> None:
    """Looks at the page."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        "headless=new",
        "no-sandbox",
        "disable-gpu",
        "window-size=1280,900",
        f"user-data-dir={folder / 'chromium'}",
    ):
        options.add_argument(f"--{flag}")
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))

    def cpu() -> float:
        times = server.cpu_times()
        return times.user + times.system

    def until(script: str) -> None:
        while not browser.execute_script(script):
            time.sleep(0.02)

    def told(what: str, since: tuple[float, float]) -> None:
        print(f"{what} after {time.monotonic() - since[0]:.2f} s, server {cpu() - since[1]:.2f} s of CPU")

    def idle() -> None:
        since = time.monotonic(), cpu()
        time.sleep(10)
        print(f"  looked at for 10 s: server {100 * (cpu() - since[1]) / (time.monotonic() - since[0]):.1f} % of a core")

    try:
        since = time.monotonic(), cpu()
        browser.get(address)
        until("return document.querySelectorAll('.rows .row').length > 5")
        told(f"table of {asked.runs:,} runs: first rows", since)
        claim(f"page: first rows of {asked.runs:,} runs", cpu() - since[1], "CPU s of the server", limit=0.3)
        paint = browser.execute_script("return performance.getEntriesByName('first-contentful-paint')[0].startTime")
        claim(f"page: first paint with {asked.runs:,} runs", paint / 1000, "s", limit=1.0)
        idle()
        key = browser.execute_script("return [...runs.rows.values()].find(row => row.name === 'run-0000').key")
        since = time.monotonic(), cpu()
        browser.execute_script(f"location.hash = '#/run/{key}'")
        until("return document.querySelector('[data-chart=loss] figure > svg') !== null")
        told(f"a series of {asked.points:,} points: first curve", since)
        until("return document.querySelector('.charts').parentElement.parentElement.lastChild.textContent === ''")
        told("  the whole of it", since)
        print(f"  memory of the server: {server.memory_info().rss / 1e6:.0f} MB")
        idle()
    finally:
        browser.quit()


if __name__ == "__main__":
    sys.exit(main())
