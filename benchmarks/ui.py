"""What the web page costs: 2,000 runs in the table, and a million points of one metric; and what other tools' pages cost.

    python benchmarks/ui.py [--runs 2000] [--points 1000000] [--peer trackio=PYTHON ...]

Seconds from opening the address to the first row, and to the curve; CPU of the server for each, and while somebody looks at
the table for ten seconds; its memory. Needs Chromium and chromedriver. A peer is measured with the Python that has it, over
the same runs (`_ui_peers.py`), in the same browser, one after the other.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import _ui_peers
import psutil
from _claims import claim, number

ROOT = Path(__file__).resolve().parent.parent
MOST = 300.0  # seconds, after which a page is given up
OURS = _ui_peers.Peer(("PYTHON", "-m", "trainshed.cli", "ui"), "", "", "[data-chart=loss] figure > svg path")
PAINT = "return performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000"
LISTED = "return /run-[01]\\d{3}/.test(document.body.innerText)"
DRAWN = "return [...document.querySelectorAll(arguments[0])].some(one => one.getBoundingClientRect().height > 0)"
OPEN = "location.hash = '#/run/' + [...runs.rows.values()].find(row => row.name === 'run-0000').key"
WHOLE = "return document.querySelector('.charts').parentElement.parentElement.lastChild.textContent === ''"


class Costs(NamedTuple):
    """Of one page. Seconds of the clock, seconds of CPU of its server, % of a core, MB."""

    paint: float
    rows: float
    rows_cpu: float
    idle: float
    curve: float
    curve_cpu: float
    memory: float


def main() -> int:
    """Measures; prints a table, a row a number."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--peer", action="append", default=[], help=f"NAME=PYTHON of {', '.join(_ui_peers.PEERS)}")
    asked = parser.parse_args()
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        print("needs Chromium and its driver")
        return 2
    found = {"trainshed": costs("trainshed", OURS, sys.executable, asked.runs, asked.points)}
    claim(f"page: first rows of {asked.runs:,} runs", found["trainshed"].rows_cpu, "CPU s of the server", limit=0.3)
    claim(f"page: first paint with {asked.runs:,} runs", found["trainshed"].paint, "s", limit=1.0)
    for one in asked.peer:
        name, _, python = one.partition("=")
        found[name] = costs(name, _ui_peers.PEERS[name], python, asked.runs, asked.points)
    table(found)
    return 0


def table(found: dict[str, Costs]) -> None:
    """Each number of each page, and how many times ours it is."""
    for field in Costs._fields:
        own = getattr(found["trainshed"], field)
        row = [
            f"{name} {number(value := getattr(one, field))} ({number(value / own if own else float('nan'))} x)"
            for name, one in found.items()
        ]
        print(f"{field}: {', '.join(row)}", flush=True)


def costs(name: str, peer: _ui_peers.Peer, python: str, runs: int, points: int) -> Costs:
    """Lays the runs, serves them, looks at them."""
    with tempfile.TemporaryDirectory(prefix="ui-") as made:
        folder = Path(os.environ.get("UI_DATA", made)) / name
        environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "toolkit"),
            "XDG_STATE_HOME": f"{made}/state",
            "TRACKIO_DIR": str(folder),
        }
        if not folder.exists():
            lay = [python, str(ROOT / "benchmarks/_ui_peers.py"), name, str(folder), str(runs), str(points)]
            subprocess.run(lay, env=environ, check=True, stdout=subprocess.DEVNULL)
        time.sleep(6)  # what was written a moment ago is read again
        if peer is OURS:
            since = time.monotonic()
            subprocess.run(
                [python, "-m", "trainshed.cli", "ls", "--limit", "1"], cwd=folder, env=environ, stdout=subprocess.DEVNULL
            )
            print(f"trainshed: index of {runs:,} runs, made once: {time.monotonic() - since:.1f} s", flush=True)
        with served(name, peer, python, folder, environ) as (address, server), browsing(Path(made)) as browser:
            found = look(browser, address, peer, server, folder)
            print(f"{name}: {found}", flush=True)
            return found


@contextmanager
def served(
    name: str, peer: _ui_peers.Peer, python: str, folder: Path, environ: dict[str, str]
) -> Iterator[tuple[str, psutil.Process]]:
    """(address, process) of a page that answers and has read what it reads at its start."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    held = {"PYTHON": python, "FOLDER": str(folder), "PORT": port}
    command = [re.sub("|".join(held), lambda found: held[found[0]], word) for word in peer.command]
    since = time.monotonic()
    told = subprocess.PIPE if peer is OURS else subprocess.DEVNULL
    with subprocess.Popen(command, cwd=folder, env=environ, stderr=told, stdout=subprocess.DEVNULL, text=True) as process:
        server = psutil.Process(process.pid)
        try:
            if peer is OURS:
                assert process.stderr is not None
                yield re.findall(r"http\S+", process.stderr.readline())[0], server
            else:
                settle(server, int(port))
                print(f"{name}: served after {time.monotonic() - since:.1f} s", flush=True)
                yield f"http://127.0.0.1:{port}", server
        finally:
            for one in (*server.children(recursive=True), server):
                with suppress(psutil.Error):
                    one.kill()


def settle(server: psutil.Process, port: int) -> None:
    """Until it listens, and has done nothing for three seconds."""
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            before = cpu(server)
            time.sleep(3)
            if cpu(server) - before < 0.15:
                return
        time.sleep(0.2)


def family(server: psutil.Process) -> list[psutil.Process]:
    """It and its children."""
    return [server, *server.children(recursive=True)]


def cpu(server: psutil.Process) -> float:
    """Seconds that it and its children have had."""
    return sum(sum(one.cpu_times()[:2]) for one in family(server))


@contextmanager
def browsing(folder: Path) -> Iterator[Any]:
    """A new Chromium."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in (
        "headless=new",
        "no-sandbox",
        "disable-gpu",
        "window-size=1280,900",
        f"user-data-dir={folder / 'chromium'}",
    ):
        options.add_argument(f"--{flag}")
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    browser.set_script_timeout(MOST)
    try:
        yield browser
    finally:
        browser.quit()


def look(browser: Any, address: str, peer: _ui_peers.Peer, server: psutil.Process, folder: Path) -> Costs:
    """At the table of runs for ten seconds, then at the long curve."""
    rows = Watch(browser, server, lambda: browser.get(address + peer.listed)).until(LISTED)
    paint = browser.execute_script(PAINT)
    since, before = time.monotonic(), cpu(server)
    time.sleep(10)
    idle = 100 * (cpu(server) - before) / (time.monotonic() - since)
    if peer is OURS:
        watch = Watch(browser, server, lambda: browser.execute_script(OPEN))
        print(f"trainshed: first curve after {watch.until(DRAWN, peer.chart)[0]:.2f} s", flush=True)
        curve = watch.until(WHOLE)
    else:
        long = folder / "long"
        browser.get("about:blank")
        there = address + peer.curve.replace("RUN", long.read_text() if long.exists() else "")
        watch = Watch(browser, server, lambda: browser.get(there))
        if peer.tick:
            watch.until(DRAWN, peer.tick)
            time.sleep(1)  # it is drawn anew
            browser.find_elements("css selector", peer.tick)[-1].click()
        curve = watch.until(DRAWN, peer.chart)
    return Costs(paint, *rows, idle, *curve, sum(one.memory_info().rss for one in family(server)) / 1e6)


class Watch:
    """What it takes from an act on, in seconds and in seconds of CPU of a server, until a page shows something."""

    def __init__(self, browser: Any, server: psutil.Process, act: Callable[[], object]) -> None:
        self.browser, self.server = browser, server
        self.since, self.before = time.monotonic(), cpu(server)
        act()

    def until(self, script: str, *words: str) -> tuple[float, float]:
        """Both; infinite where it never comes."""
        while not self.browser.execute_script(script, *words):
            if time.monotonic() > self.since + MOST:
                return float("inf"), float("inf")
            time.sleep(0.02)
        return time.monotonic() - self.since, cpu(self.server) - self.before


if __name__ == "__main__":
    sys.exit(main())
