"""The page in a real browser: a run is started, seen, searched, laid over another, and stopped."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.run_folders import lay_run
from support.runner_project import LIMIT, Project, wait_until

from .conftest import Site, end, served

HOSTILE = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>"
SCRIPT = """\
import json, os, sys, time
rank = int(os.environ.get("RANK", "0"))
hostile = {hostile!r}
print("first words of rank", rank, hostile, flush=True)
with open(os.path.join(os.environ["SAGEMAKER_METRICS_DIRECTORY"], "1.json"), "w") as file:
    file.write(json.dumps({{"MetricName": hostile, "Value": 1.0, "Timestamp": time.time(), "Step": 1}}) + "\\n")
    file.write(json.dumps({{"MetricName": hostile, "Value": 2.0, "Timestamp": time.time(), "Step": 2}}) + "\\n")
for step in range(1, 30 if {steps} else 1000000):
    print(f"metric loss={{1 / step:.5f}} eval_loss={{2 / step:.5f}} step={{step}}", flush=True)
    time.sleep(0 if {steps} else 0.05)
if {fails}:
    raise ValueError(hostile)
"""


def script(*, steps: bool, fails: bool = False) -> str:
    """A training that ends by itself, or goes on until it is stopped."""
    made = SCRIPT.format(hostile=HOSTILE, steps=steps, fails=fails)
    return made.replace("import json", "import pathlib, json", 1).replace(
        "with open",
        'pathlib.Path(os.environ["SAGEMAKER_METRICS_DIRECTORY"]).mkdir(parents=True, exist_ok=True)\nwith open',
        1,
    )


class Page:
    """What a person does in the browser."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser

    def all(self, selector: str) -> list[Any]:
        """Elements by a CSS selector."""
        return list(self.browser.find_elements("css selector", selector))

    def see(self, selector: str, good: Callable[[Any], object] = lambda element: True) -> Any:
        """Waits for an element that is as it should be."""
        until = time.monotonic() + LIMIT
        while time.monotonic() < until:
            for element in self.all(selector):
                try:
                    if good(element):
                        return element
                except Exception as error:  # it was replaced meanwhile
                    if type(error).__name__ != "StaleElementReferenceException":
                        raise
            time.sleep(0.05)
        raise AssertionError(f"{selector} never came: {self.browser.page_source[:3000]}")

    def click(self, selector: str, words: str = "") -> None:
        """Clicks on an element, the one with these words."""

        def done(element: Any) -> bool:
            if words not in element.text or not element.is_enabled():
                return False
            # Not below the page's head, which stays where it is.
            self.browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
            element.click()
            return True

        self.see(selector, done)

    def run_row(self, name: str, state: str = "") -> None:
        """Waits for the row of a run."""
        self.see(".rows .row", lambda row: name in row.text and state in row.text)

    def tick(self, name: str) -> None:
        """Chooses a run for an overlay."""
        self.see(".rows .row", lambda row: name in row.text and (row.find_element("css selector", "input").click() or True))

    def text(self, selector: str) -> str:
        """The text of an element, which may be replaced at any moment."""
        found: list[str] = []

        def told(element: Any) -> bool:
            found.append(element.text)
            return True

        self.see(selector, told)
        return found[-1]


def points(site: Site, name: str) -> int:
    """How many values the run's charts stand for."""
    return int(sum(chart["count"] for chart in site.ask(f"{site.path(name)}/charts", {})["charts"]))


@pytest.mark.spine
def test_a_person_starts_sees_searches_overlays_and_stops_runs(
    project: Project, site: Site, browser: Any, mine: dict[str, str]
) -> None:
    project.write({"good.py": script(steps=True), "bad.py": script(steps=True, fails=True), "live.py": script(steps=False)})
    page = Page(browser)
    browser.get(site.address)
    page.see("#count", lambda count: "0 runs" in count.text)
    assert site.token not in browser.current_url, "the address forgets the token"

    # Runs come into the table while it is looked at.
    for name, status in (("good", 0), ("bad", 1)):
        assert project.trainshed("run", f"{name}.py", "--name", name, "--tag", f"kind={name}", **mine).status == status
    live = project.trainshed("run", "live.py", "--name", "live", "--detach", **mine)
    assert live.status == 0, live.output
    page.run_row("good", "Completed")
    page.run_row("bad", "Failed")
    page.run_row("live", "InProgress")
    page.see("#filter").send_keys("runs bad")
    page.see("#count", lambda count: "1 of 3 runs" in count.text)
    page.see("#filter").clear()
    page.see("#filter").send_keys('tag.kind = "good" and loss <')
    page.see("#wrong", lambda wrong: "filter: a name was expected where it ends, at its end" in wrong.text)
    page.see("#filter").send_keys(" 0.1")
    page.see("#count", lambda count: "1 of 3 runs" in count.text)
    page.see("#wrong", lambda wrong: not wrong.text)
    kept = browser.current_url
    page.see("#filter").clear()
    page.see("#filter").send_keys(" ")
    page.see("#count", lambda count: count.text == "3 runs")

    # Columns are chosen, the list is ordered by one of them, and the address holds all of it.
    page.click("#columns")
    for column in ("place", "tag.kind"):
        page.click(f'[data-column="{column}"]')
    page.click("dialog button", "Show")
    page.click('[data-sort="tag.kind"]')
    page.see(".rows .row:first-child", lambda row: "bad" in row.text)
    page.click('[data-sort="tag.kind"]')
    page.see(".rows .row:first-child", lambda row: "good" in row.text)
    assert "columns=" in browser.current_url and "sort=-tag.kind" in browser.current_url
    browser.get(kept)
    browser.refresh()
    page.see("#filter", lambda words: words.get_attribute("value") == 'tag.kind = "good" and loss < 0.1')
    page.see("#count", lambda count: "1 of 3 runs" in count.text)
    page.see("#filter").clear()
    page.see("#filter").send_keys(" ")

    # Two over one another.
    for name in ("good", "bad"):
        page.tick(name)
    page.click("#overlay", "2")
    page.see('[data-chart="loss"] .legend', lambda legend: "good" in legend.text and "bad" in legend.text)
    page.see('[data-chart="loss"] figure > svg')

    # The live one: its curve grows, its log is searched.
    page.click(".brand")
    page.click(".rows a", "live")
    page.see('[data-chart="loss"] .legend', lambda legend: "eval_loss" in legend.text)
    shown = page.text('[data-chart="loss"] .legend b')
    page.see('[data-chart="loss"] .legend b', lambda value: value.text != shown)
    page.click(".tabs a", "logs")
    page.see("#lines div", lambda line: "metric loss" in line.text)
    page.see("#search").send_keys("FIRST WORDS\n")
    page.click("#hits button", "first words of rank")
    page.see("#lines .hit", lambda line: HOSTILE in line.text)

    # Its machine is sampled while it runs.
    page.click(".tabs a", "machine")
    page.see('[data-chart="CPU, % of all cores"] figure')
    page.see('[data-chart="Memory, %"] .legend b', lambda value: float(value.text) > 0)

    # It is stopped, and the page says so.
    page.click("#stop")
    page.click("dialog button", "Close")
    assert site.row("live")["state"] == "InProgress", "a click by mistake stops nothing"
    page.click("#stop")
    page.click("dialog button", "Stop it")
    page.see(".state", lambda state: state.text == "Stopped")
    wait_until(lambda: site.row("live")["state"] == "Stopped", "the run is stopped")
    page.click(".tabs a", "files")
    page.see("td a", lambda link: link.text == "logs/")
    page.click("#clone")
    page.see("#job-file", lambda text: "live.py" in text.text)
    page.click("dialog button", "Close")

    # A failure, with a name that tries to be more than a name.
    page.click(".brand")
    page.click(".rows a", "bad")
    page.see("#failure", lambda card: f"ValueError: {HOSTILE}" in card.text)
    page.see(".charts h3", lambda title: title.text == HOSTILE)
    assert browser.execute_script("return window.hacked") is None
    wrong = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert wrong == [], "no script of others, nothing that the policy refuses, no error of ours"


def test_every_metric_of_a_run_has_a_chart_that_is_drawn_when_seen(site: Site, project: Project, browser: Any) -> None:
    names = [f"{group}/m{number}" for group in ("grad", "weight") for number in range(40)]
    lay_run(project.folder / "runs/many", metrics={name: [1.0, 0.5] for name in (*names, "loss", "lr")})
    page = Page(browser)
    browser.get(site.address)
    page.click(".rows a", "many")
    page.see("#charts-count", lambda count: count.text == "82 charts")
    page.see('[data-chart="loss"] figure > svg')
    assert page.all('[data-chart="weight/m39"]') and not page.all('[data-chart="weight/m39"] figure'), "nobody has seen it"

    page.see("#find-chart").send_keys("^weight/m3[89]$|(")
    page.see("#charts-count", lambda count: "not a regular expression" in count.text)
    page.see("#find-chart").send_keys("\b\b")
    page.see("#charts-count", lambda count: count.text == "2 of 82 charts")
    page.see('[data-chart="weight/m39"] figure')
    assert "find=" in browser.current_url
    page.see("#find-chart").clear()
    page.see("#find-chart").send_keys("m0")
    page.click('[data-group="grad"] summary', "grad (1)")
    page.see('[data-group="grad"]:not([open])')


def test_an_address_of_runs_that_are_gone_says_so(site: Site, browser: Any) -> None:
    page = Page(browser)
    browser.get(site.address)
    for address in ("#/run/ffff", "#/overlay/ffff"):
        page.click("#pages a", "Storage")
        page.see("h1", lambda title: title.text == "Storage")
        browser.execute_script("location.hash = arguments[0]", address)
        page.see("main .card", lambda card: "(any more)" in card.text)


@pytest.mark.safety
def test_the_page_asks_for_the_token_where_it_is_missing(site: Site, browser: Any) -> None:
    page = Page(browser)
    browser.get(f"http://127.0.0.1:{site.port}/")
    page.see("#token").send_keys(f"{site.token}\n")

    page.see("#count", lambda count: "0 runs" in count.text)


@pytest.mark.safety
def test_runs_of_a_shared_folder_are_shown_and_forged_ones_do_no_harm(
    project: Project, browser: Any, mine: dict[str, str], tmp_path: Path
) -> None:
    shared = tmp_path / "shared/anna/runs/one"
    shared.mkdir(parents=True)
    began = "2026-01-01T00:00:00+00:00"
    forged = {
        "TrainingJobName": HOSTILE, "TrainingJobStatus": HOSTILE, "SecondaryStatus": HOSTILE, "CreationTime": HOSTILE,
        "Trainshed": {"Tags": {HOSTILE: HOSTILE}}, "FinalMetricDataList": [{"MetricName": HOSTILE, "Value": HOSTILE}],
        "SecondaryStatusTransitions": [{"Status": HOSTILE, "StartTime": began, "StatusMessage": HOSTILE}],
        "FailureReason": HOSTILE, "HyperParameters": {HOSTILE: HOSTILE},
        "AlgorithmSpecification": {"TrainingImage": HOSTILE},
    }  # fmt: skip
    (shared / "status.json").write_text(json.dumps(forged))
    rules = shared / "algo-1/output/rules"
    rules.mkdir(parents=True)
    found = {"rule": HOSTILE, "action": "note", "text": HOSTILE, "time": 1.0, "step": 7, "rank": 0}
    (rules / "algo-1.json").write_text(json.dumps(found) + "\n")
    samples = shared / "algo-1/output/profiler/system/incremental/2026010100"
    samples.mkdir(parents=True)
    sample = {"Type": "gpu", "Name": HOSTILE, "Dimension": "GPUUtilization", "Value": 7.0, "NodeId": HOSTILE}
    (samples / "1.algo-1.json").write_text(json.dumps({**sample, "Timestamp": 1.0}) + "\n")
    os.mkfifo(samples / "61.algo-1.json")  # whoever opens it waits for ever
    steps = shared / "algo-1/output/profiler/steps"
    steps.mkdir()
    phases = {"data": 1.5, "forward": 0.5, HOSTILE: 9.0}
    window = {"Time": 2.0, "Step": 20, "Steps": 20, "Seconds": 2.0, "Phases": phases}
    (steps / "a.json").write_text(json.dumps({"Facts": {"Rank": 3, "Host": HOSTILE}}) + "\n" + json.dumps(window) + "\n")
    (shared / "logs").mkdir()
    os.mkfifo(shared / "logs/pipe.log")
    (shared / "algo-1/output/metrics/sagemaker").mkdir(parents=True)
    os.mkfifo(shared / "algo-1/output/metrics/sagemaker/1.json")
    (shared / "logs" / f"{HOSTILE.replace('/', '')}.log").write_text(HOSTILE)
    process = project.start("ui", "--runs", str(tmp_path / "shared"), **mine)
    page = Page(browser)
    browser.get(served(process).address)
    page.click(".rows a", HOSTILE)
    page.see("h1", lambda title: title.text == HOSTILE)
    page.see("#failure", lambda card: HOSTILE in card.text)
    page.see("#findings", lambda card: HOSTILE in card.text and "step 7, rank 0" in card.text)
    page.click(".tabs a", "machine")
    page.see("#steps", lambda card: "input-bound: 75 %" in card.text and "rank 3" in card.text and "100 ms" in card.text)
    page.see('[data-chart="GPU, %"] .legend', lambda legend: HOSTILE in legend.text)
    page.see('[data-chart="Milliseconds of a step"] figure')
    for tab in ("logs", "files", "settings"):
        page.click(".tabs a", tab)
    page.see("td", lambda cell: cell.text == HOSTILE)

    assert browser.execute_script("return window.hacked") is None
    end(process)
