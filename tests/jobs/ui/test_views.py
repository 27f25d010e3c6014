"""Further pages in a real browser: tunings, pipelines, models, lineage, data, storage; shared, and behind a proxy."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from support.run_folders import lay_run
from support.runner_project import Project, wait_until

from .conftest import Site, end, environment, served
from .test_page import Page


def link(page: Page, words: str) -> str:
    """The address of the link with these words."""
    found: list[str] = []
    page.see("main a", lambda one: one.text.startswith(words) and (found.append(one.get_attribute("href")) or True))
    return found[-1]


def write(page: Page, field: str, words: str) -> None:
    """Writes into a field, which may be drawn anew at any moment."""
    from selenium.common.exceptions import ElementNotInteractableException

    def taken(one: Any) -> bool:
        with suppress(ElementNotInteractableException):
            one.send_keys(words)
            return True
        return False

    page.see(field, taken)


def test_a_pipeline_and_what_it_made_have_pages(filled: Project, browser: Any, mine: dict[str, str], tmp_path: Path) -> None:
    process = filled.start("ui", **environment(mine, tmp_path))
    site, page = served(process), Page(browser)
    browser.get(site.address)
    page.click("#pages a", "Pipelines")
    page.click("main a", "steps")
    page.see("h1", lambda title: title.text == "steps")
    assert browser.title == "steps · Pipelines · trainshed"
    page.see(".graph .node", lambda node: "keep" in node.text and "digits:1" in node.text)
    assert len(page.all(".graph path")) == 2
    page.click(".graph a", "second")
    page.click(".tabs a", "lineage")
    page.see(".graph .marked", lambda node: "steps-second-1" in node.text)
    page.see(".graph .node", lambda node: "steps-first-1" in node.text)
    said = filled.command("lineage", "steps-second-1", "--down", **environment(mine, tmp_path))
    page.see("pre", lambda text: text.text.strip() == said.stdout.strip())

    page.click("#pages a", "Models")
    page.see("main td", lambda cell: cell.text == "champion: 1")
    page.click("main a", "digits")
    page.click("main a", "digits:1")
    page.see("pre", lambda text: "# digits, version 1" in text.text)
    assert link(page, "where it comes from").endswith("/lineage")
    page.click("#pages a", "Data")
    page.see("main td", lambda cell: cell.text == "train")
    end(process)


@pytest.mark.spine
def test_a_tuning_is_watched_while_it_goes_on_and_stopped(
    filled: Project, browser: Any, mine: dict[str, str], tmp_path: Path
) -> None:
    variables = environment(mine, tmp_path)
    process, tuner = filled.start("ui", **variables), filled.start("tune", "tune.yaml", "--max-jobs", "3", **variables)
    site, page = served(process), Page(browser)
    browser.get(site.address)
    page.click("#pages a", "Tunings")
    page.click("main a", "tune")
    page.see("dd", lambda value: value.text == "0.1")
    page.see('[data-chart="loss"] .legend', lambda legend: "the best so far" in legend.text)
    page.see("td", lambda cell: cell.text == "0.9 so far")
    page.see("td a", lambda cell: cell.text == "2 ★")
    page.click("#stop")
    page.see("dialog h2", lambda title: title.text == "Stop tune?")
    page.click("dialog button", "Close")
    assert tuner.poll() is None, "a click by mistake stops nothing"
    page.click("#stop")
    page.click("dialog button", "Stop it")
    page.see(".state", lambda state: state.text == "Stopped")
    tuner.communicate(timeout=60)
    end(process)


def test_a_tuning_that_is_over_shows_what_mattered(site: Site, project: Project, browser: Any, mine: dict[str, str]) -> None:
    project.write(
        {
            "quick.py": "import sys\nprint('metric loss=' + sys.argv[sys.argv.index('--rate') + 1])\n",
            "quick.yaml": "job: {program: quick.py}\nsearch: {rate: {low: 0.1, high: 1.0}, width: {low: 1, high: 64}}\n"
            "objective: minimize loss\nstrategy: random\nmax_jobs: 8\nmax_parallel_jobs: 4\n",
        }
    )
    done = project.trainshed("tune", "quick.yaml", **mine)
    assert done.status == 0, done.output
    page = Page(browser)
    browser.get(site.address)
    page.click("#pages a", "Tunings")
    page.click("main a", "quick")
    page.see("main h2", lambda title: title.text == "Importance")
    page.see("main figure svg text", lambda name: name.text == "rate")
    page.see("main td .state")
    assert page.text("#trouble") == ""


def test_tags_notes_and_removal(site: Site, project: Project, browser: Any) -> None:
    lay_run(project.folder / "runs/one", tags={"draft": ""}, metrics={"loss": [1.0, 0.5]})
    page = Page(browser)
    browser.get(site.address)
    page.click(".rows a", "one")
    write(page, "#new-tag", "stage=final\n")
    page.see(".tag", lambda tag: "stage=final" in tag.text)
    page.click(".tag button")
    write(page, "#new-note", "the best one\n")
    page.see("#labels p", lambda note: "the best one" in note.text)
    write(page, "#new-tag", "-bad tag-\n")
    page.see("#trouble", lambda told: "is not a valid tag" in told.text)
    said = project.command("tag", "one", XDG_STATE_HOME=str(project.folder.parent / "state"))
    assert said.stdout == "one: stage=final\n"
    assert not page.see("#resume").is_enabled(), "what has completed is not resumed"

    # By the keyboard alone: the question has the run's name, and its first answer is the harmless one.
    page.see("#remove", lambda one: one.is_enabled() and (one.send_keys("\n") or True))
    page.see("dialog h2", lambda title: title.text == "Remove one?")
    browser.switch_to.active_element.send_keys("\n")
    wait_until(lambda: not page.all("dialog"), "the question has gone")
    assert (project.folder / "runs/one").is_dir()
    page.click("#remove")
    page.click("dialog button", "Remove it")
    page.see("#count", lambda count: count.text == "0 runs")
    assert not (project.folder / "runs/one").exists()


def test_a_copy_opens_without_a_server(filled: Project, browser: Any, mine: dict[str, str], tmp_path: Path) -> None:
    variables = environment(mine, tmp_path)
    assert filled.trainshed("run", "train.py", "--name", "other", "--env", "HOLD=/none", **variables).status == 0
    target = tmp_path / "a copy"
    done = filled.trainshed("ui", "--export", str(target), "--where", 'name ~ "second"', **variables)
    assert done.status == 0 and done.stdout == f"{target}/index.html\n", done.output
    told = "".join(path.read_text() for path in target.glob("data/*.js"))
    assert "steps-second-1" in told and '"other"' not in told, "only what was chosen"
    page = Page(browser)
    browser.get((target / "index.html").as_uri())
    page.see("#count", lambda count: count.text == "1 runs")
    page.click(".rows a", "steps-second-1")
    page.see(".card h3", lambda title: title.text == "loss")
    page.click(".tabs a", "logs")
    page.see("#lines div", lambda line: "metric loss=0.5" in line.text)
    page.click(".tabs a", "lineage")
    page.see(".graph .marked")
    assert not any(page.see(f"#{name}").is_enabled() for name in ("stop", "resume", "remove")) and not page.all("#new-tag")
    wrong = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert wrong == [], "the policy of the copy lets it load what it needs"

    again = filled.trainshed("ui", "--export", str(target), **variables)
    assert again.status == 0 and len([*target.glob("data/run-*.js")]) == 3, "an earlier copy is replaced"
    refused = filled.trainshed("ui", "--export", str(filled.folder), **variables)
    assert refused.status != 0 and "holds other things" in refused.output and (filled.folder / "notes.txt").exists()


class _Proxy(BaseHTTPRequestHandler):
    """What nginx does with `location /team/ { proxy_pass http://127.0.0.1:PORT/; proxy_set_header Host $http_host; }`."""

    port = 0

    def do_GET(self) -> None:
        if not self.path.startswith("/team/"):
            self.send_error(404)
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        asked = HTTPConnection("127.0.0.1", self.port, timeout=60)
        asked.request(self.command, self.path.removeprefix("/team"), body, dict(self.headers))
        answer = asked.getresponse()
        content = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection"):
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def proxy() -> Iterator[ThreadingHTTPServer]:
    """A reverse proxy that shows the page below /team/."""
    made = ThreadingHTTPServer(("127.0.0.1", 0), _Proxy)
    threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


@pytest.mark.safety
def test_behind_a_proxy_others_look_and_do_nothing(
    project: Project, browser: Any, mine: dict[str, str], proxy: ThreadingHTTPServer
) -> None:
    lay_run(project.folder / "runs/one", metrics={"loss": [1.0, 0.5]})
    public = f"http://127.0.0.1:{proxy.server_address[1]}/team/"
    process = project.start("ui", "--behind", public, **mine)
    own, others, inside = read_lines(process, 3)
    _Proxy.port = int(re.findall(r":(\d+)/", inside)[0])
    assert own.startswith(f"trainshed: {public}#token=")
    page = Page(browser)
    browser.get(others.rpartition(" ")[2])
    page.click(".rows a", "one")
    page.see('[data-chart="loss"] figure > svg')
    assert not page.see("#remove").is_enabled() and not page.all("#new-tag")
    site = Site(_Proxy.port, others.rpartition("=")[2])
    key = site.row("one")["key"]
    for act in ("stop", "resume", "again", "remove", "labels"):
        assert "may look" in site.ask(f"/api/runs/{key}/{act}", {}, 403)["error"]
    assert "may look" in site.ask("/api/page/tunings/x/stop", {}, 403)["error"]
    right = {"Authorization": f"Bearer {site.token}"}
    assert site.send("GET", "/api/runs", {**right, "Origin": public.removesuffix("/team/")})[0] == 200
    assert site.send("GET", "/api/runs", {**right, "Origin": "https://evil.example"})[0] == 403

    # The owner's address may act.
    browser.get("about:blank")
    browser.get(own.split()[-1])
    page.click(".rows a", "one")
    write(page, "#new-note", "seen\n")
    page.see("#labels p", lambda note: "seen" in note.text)
    end(process)


def read_lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stderr is not None
    return [process.stderr.readline().strip() for _ in range(count)]
