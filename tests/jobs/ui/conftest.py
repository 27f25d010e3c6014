"""Fixtures for tests of the web page: a server over a project's runs, and Chromium where it is installed."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.runner_project import Project, project

__all__ = ["project"]
SCRIPT = """\
import os, sys, time
rate, hold = float(os.environ.get("SM_HP_RATE", 0.5)), os.environ["HOLD"]
print(f"metric loss={rate} step=1", flush=True)
with open(os.environ["SM_MODEL_DIR"] + "/rate", "w") as file:
    file.write(str(rate))
while rate == 0.9 and os.path.exists(hold):
    time.sleep(0.05)
"""
TUNE = """\
job: {program: train.py, environment: {HOLD: HOLD_FILE}}
search: {rate: [0.3, 0.1, 0.9]}
objective: minimize loss
strategy: grid
"""
STEPS = """\
steps:
  first:
    run: {program: train.py, environment: {HOLD: HOLD_FILE}, channels: {train: data}}
  second:
    run:
      program: train.py
      environment: {HOLD: HOLD_FILE}
      channels:
        model: ${steps.first.model}
  keep:
    register: {model: digits, from: second, stage: champion}
"""


@dataclass(frozen=True)
class Site:
    """A running `trainshed ui`."""

    port: int
    token: str

    @property
    def address(self) -> str:
        """Where a browser is sent."""
        return f"http://127.0.0.1:{self.port}/#token={self.token}"

    def send(self, method: str, path: str, headers: dict[str, str], body: bytes | None = None) -> tuple[int, Any, bytes]:
        """(status, headers, content) of a request that holds exactly these headers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in {"Host": f"127.0.0.1:{self.port}", **headers}.items():
                connection.putheader(name, value)
            if body is not None and "Content-Length" not in headers:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def ask(self, path: str, body: object = None, status: int = 200) -> Any:
        """What an address of the application says to somebody who has the token."""
        headers = {"Authorization": f"Bearer {self.token}"}
        data = None
        if body is not None:
            headers["Content-Type"], data = "application/json", json.dumps(body).encode()
        found, _, content = self.send("GET" if body is None else "POST", path, headers, data)
        assert found == status, (found, content)
        return json.loads(content)

    def row(self, name: str) -> dict[str, Any]:
        """The row of the run whose name begins so."""
        (found,) = [row for row in self.ask("/api/runs")["rows"] if row["name"].startswith(name)]
        return dict(found)

    def path(self, name: str) -> str:
        """The address of a run whose name begins so."""
        return f"/api/runs/{self.row(name)['key']}"


@pytest.fixture
def mine(tmp_path: Path) -> dict[str, str]:
    """Variables of a user without other runs."""
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def site(project: Project, mine: dict[str, str]) -> Iterator[Site]:
    """The page over a project's runs."""
    process = project.start("ui", **mine)
    yield served(process)
    end(process)


@pytest.fixture
def filled(project: Project, mine: dict[str, str], tmp_path: Path) -> Project:
    """A project with a pipeline that is over."""
    hold = tmp_path / "hold"
    hold.touch()
    project.write({"train.py": SCRIPT, "data/one": "1", "notes.txt": "x"})
    project.write(
        {name: text.replace("HOLD_FILE", str(hold)) for name, text in (("tune.yaml", TUNE), ("steps.yaml", STEPS))}
    )
    done = project.trainshed("steps", "run", "steps.yaml", **environment(mine, tmp_path))
    assert done.status == 0, done.output
    return project


def environment(mine: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Variables of that user, who has a model store."""
    return {**mine, "TRAINSHED_MODEL_STORE": str(tmp_path / "store")}


def served(process: subprocess.Popen[str]) -> Site:
    """The site that a process has begun to serve."""
    assert process.stderr is not None
    said = process.stderr.readline()
    match = re.search(r"http://127\.0\.0\.1:(\d+)/#token=([0-9a-f]+)", said)
    assert match, said + (process.stderr.read() if process.poll() is not None else "")
    return Site(int(match[1]), match[2])


def end(process: subprocess.Popen[str]) -> None:
    """Ends a server as a service manager does."""
    process.terminate()
    process.communicate(timeout=60)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    """Chromium without a screen."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("needs Chromium and its driver (Debian: apt-get install chromium chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        "headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
        "disable-component-update", "disable-sync", "window-size=1300,1000", f"user-data-dir={tmp_path / 'chromium'}",
    ):  # fmt: skip
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    made.set_page_load_timeout(180)
    yield made
    made.quit()
