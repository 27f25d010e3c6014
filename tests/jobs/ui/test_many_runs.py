"""Many runs in a real browser: over one another, in groups, by what differs; on the page and in the file of a comparison."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from support.axe import findings
from support.run_folders import STARTED, lay_run
from support.runner_project import Project

from .conftest import Site
from .test_page import Page

HOSTILE = "<img src=x onerror=window.hacked=1>"
RUNS = 25
LOOKS = """
const lines = [...document.querySelectorAll(arguments[0])];
return lines.map(line => getComputedStyle(line).stroke + line.getAttribute("stroke-dasharray"));
"""
AXIS = """
const [low, high, kind] = arguments, made = charts.axis(low, high, 0, 100, kind), { marks } = made;
return [marks.map(([mark]) => made.place(mark)), marks.map(([, text]) => text), [made.place(low), made.place(high)]];
"""
SMOOTH = """
const even = charts.smoothed(Array(100).fill(3), 3), line = charts.smoothed(Array.from({length: 600}, (_, at) => at), 3);
return [even.every(value => Math.abs(value - 3) < 1e-9), line[300], charts.smoothed([1, null, 1], 3)];
"""
GROUPS = """
const line = (name, x, y) => ({name, x, y, odd: []});
const lines = [line("a", [0, 1, 2], [1, 2, 3]), line("b", [0, 2], [3, 5]), line("c", [0, 1], [7, 7])];
return charts.grouped(lines, name => name === "c" ? "z" : "g", false);
"""
LINES = '[data-chart="loss"] figure > svg path.ln'


@pytest.fixture
def runs(project: Project) -> list[Path]:
    """25 runs: the loss depends on the learning rate alone."""
    made = []
    for number in range(RUNS):
        rate = 10.0 ** -(1 + number % 5)
        losses = [rate + 1.0 / (step + 1) for step in range(12)]
        hps = {"lr": str(rate), "optimizer": ("adam", "sgd")[number % 2], "seed": str(number), "same": "1", HOSTILE: HOSTILE}
        made.append(
            lay_run(
                project.folder / f"runs/run-{number:02d}", hps=hps, metrics={"loss": losses, "acc": [0.5, 0.9]},
                tags={"kind": "ab"[number % 2]}, started=STARTED + number,
            )
        )  # fmt: skip
    return made


def count(browser: Any, selector: str) -> int:
    return len(browser.find_elements("css selector", selector))


@pytest.mark.spine
def test_25_runs_are_laid_over_one_another_grouped_and_told_apart(runs: list[Path], site: Site, browser: Any) -> None:
    page = Page(browser)
    browser.get(site.address)
    page.see("#count", lambda told: told.text == "25 runs")
    page.click("#all")
    page.click("#overlay", "25")
    page.see(LINES, lambda _: count(browser, LINES) == RUNS)
    looks = browser.execute_script(LOOKS, LINES)
    assert len({*looks}) == RUNS

    # Some are switched off; a group is a line with a band.
    page.click('[data-run="3"]')
    page.see(LINES, lambda _: count(browser, LINES) == RUNS - 1)
    page.click('#group [value="hp.optimizer"]')
    page.see(
        '[data-chart="loss"] .legend', lambda legend: "adam (13 runs)" in legend.text and "sgd (11 runs)" in legend.text
    )
    assert count(browser, '[data-chart="loss"] .band') == 2 == count(browser, LINES)
    for box in ("#with-log", "#with-logx"):
        page.click(box)
    page.click('#axis [value="time"]')
    page.see('[data-chart="loss"] figure > svg', lambda chart: "over time" in chart.get_attribute("aria-label"))
    assert findings(browser) == []

    # The address holds all of it.
    kept = browser.current_url
    assert "group=hp.optimizer" in kept and "off=3" in kept
    browser.get("about:blank")
    browser.get(kept)
    page.see('[data-chart="loss"] .legend', lambda legend: "adam (13 runs)" in legend.text)
    assert page.see("#with-logx").is_selected()


def test_what_differs_between_runs_and_what_a_metric_depends_on(runs: list[Path], site: Site, browser: Any) -> None:
    page = Page(browser)
    browser.get(site.address)
    page.see("#count", lambda told: told.text == "25 runs")
    keys = {row["name"]: row["key"] for row in site.ask("/api/runs")["rows"]}
    chosen = ",".join(keys[run.name] for run in runs)
    browser.get(f"{site.address.partition('#')[0]}#/overlay/{chosen}?off=3&view=differences")

    # The run that is off is not counted.
    page.see("#differs", lambda table: "optimizer" in table.text and "same" not in table.text)
    assert "run-03" not in page.text("#differs thead") and "run-04" in page.text("#differs thead")
    assert findings(browser) == []

    # Parameters: what the loss depends on.
    page.click(".tabs button", "Parameters")
    page.see("svg[aria-label^='parallel']", lambda chart: chart.find_elements("css selector", '[data-axis="lr"]'))
    assert count(browser, "svg[aria-label^='parallel'] .run") == RUNS - 1
    page.click('#across [value="hp.seed"]')
    page.see("svg[aria-label*='loss against hp.seed, 24 points']")
    assert (
        browser.find_element("css selector", "svg[aria-label^='shares']")
        .get_attribute("aria-label")
        .startswith("shares: lr")
    )
    assert findings(browser) == []

    assert "x=hp.seed" in browser.current_url and "view=parameters" in browser.current_url
    assert browser.execute_script("return window.hacked") is None


def test_the_list_groups_runs_with_mean_and_spread(runs: list[Path], site: Site, browser: Any) -> None:
    page = Page(browser)
    browser.get(f"{site.address.partition('#')[0]}#token={site.token}")
    page.see("#count", lambda told: told.text == "25 runs")
    browser.get(f"{site.address.partition('#')[0]}#/runs?columns=name,hp.optimizer,metric.acc,hp.seed&group=hp.optimizer")
    page.see("#count", lambda told: told.text == "25 runs in 2 groups")
    row = page.see(".rows .row", lambda row: "adam" in row.text)

    assert row.text.splitlines() == ["13 runs", "adam", "0.9 ± 0", "12 ± 7.789"]
    row.find_element("css selector", "input").click()
    page.see("#overlay", lambda button: button.text == "Overlay 13")


def test_a_comparison_is_the_same_in_a_file(runs: list[Path], project: Project, browser: Any, mine: dict[str, str]) -> None:
    file = project.folder / "page.html"
    done = project.trainshed("compare", *(f"runs/{run.name}" for run in runs), "--html", str(file), **mine)
    assert done.status == 0, done.output
    page = Page(browser)
    browser.get(f"{file.as_uri()}#group=tag.kind&find=loss")
    page.see('[data-chart="loss"] .legend', lambda legend: "kind = a (13 runs)" in legend.text)
    page.see("#charts-count", lambda told: told.text == "1 of 2 charts")
    page.click('#group [value=""]')
    page.see(LINES, lambda _: count(browser, LINES) == RUNS)
    page.click(".tabs button", "Parameters")
    page.see("svg[aria-label^='shares: lr']")

    assert "view=parameters" in browser.current_url
    assert findings(browser) == []
    wrong = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert wrong == [] and browser.execute_script("return window.hacked") is None


def test_what_happened_to_a_run_is_marked_on_its_curves(project: Project, site: Site, browser: Any) -> None:
    run = lay_run(project.folder / "runs/one", metrics={"loss": [float(step) for step in range(100)]})
    saved = run / "checkpoints/step-60"
    saved.mkdir(parents=True)
    os.utime(saved, (STARTED + 60, STARTED + 60))
    record = run / "algo-1/output/data/run"
    record.mkdir(parents=True)
    (record / "algo-1.json").write_text(f'{{"restarts": [{{"at": {STARTED + 40}, "reason": "rank 1 {HOSTILE}"}}]}}')
    page = Page(browser)
    browser.get(site.address)
    page.click(".rows a", "one")
    page.see('[data-chart="loss"] [data-event="restart"]')
    page.see('[data-chart="loss"] .legend', lambda legend: "1 restart" in legend.text and "1 checkpoint" in legend.text)
    told = browser.execute_script(
        "return [...document.querySelectorAll('[data-event] > title')].map(one => one.textContent)"
    )

    assert told == [f"restart: rank 1 {HOSTILE}", "checkpoint: step-60"]
    assert findings(browser) == []


def test_the_keys_move_along_a_curve_and_look_closer(project: Project, site: Site, browser: Any) -> None:
    lay_run(project.folder / "runs/one", metrics={"loss": [float(step) for step in range(100)]})
    page = Page(browser)
    browser.get(site.address)
    page.click(".rows a", "one")
    chart = page.see('[data-chart="loss"] figure > svg')
    assert page.text('[data-chart="loss"] .legend b') == "99"
    browser.execute_script("arguments[0].focus()", chart)
    browser.switch_to.active_element.send_keys("\ue014")  # the arrow to the right
    page.see('[data-chart="loss"] .legend b', lambda value: value.text == "0")
    browser.switch_to.active_element.send_keys("+")
    page.see(
        '[data-chart="loss"] figure > svg',
        lambda chart: "80" not in [one.text for one in chart.find_elements("css selector", "text")],
    )
    browser.switch_to.active_element.send_keys("-")
    page.see(
        '[data-chart="loss"] figure > svg',
        lambda chart: "80" in [one.text for one in chart.find_elements("css selector", "text")],
    )


SPANS: list[list[float]] = [
    [0, 1], [0.0799, 2.31], [1e-9, 5e-5], [-3, 4], [0, 0], [5, 5], [-1e308, 1e308], [1e-320, 2e-320], [99999, 100001],
    [0, 3000], [0, 1.6e6], [123456, 162000], [1e20, 3e20], [0.1234567, 0.1234568],
]  # fmt: skip
LOGS: list[list[float]] = [[1e-9, 10], [0.05, 2.5], [0.9, 1.1], [1e-300, 1e300], [3, 3.5], [1, 1000]]


def test_the_engine_marks_axes_and_smooths_as_a_person_would(project: Project, site: Site, browser: Any) -> None:
    browser.get(site.address)
    Page(browser).see("#count")
    kinds: list[tuple[str, list[list[float]]]] = [("linear", SPANS), ("log", LOGS)]
    for kind, spans in kinds:
        for low, high in spans:
            places, texts, ends = browser.execute_script(AXIS, low, high, kind)
            assert 2 <= len(texts) <= 14 and len({*texts}) == len(texts), (kind, low, high, texts)
            assert all(-0.01 <= place <= 100.01 for place in places) and ends[0] <= ends[1] + 1e-9, (kind, low, high)
    _, texts, _ = browser.execute_script(AXIS, 0, 1600, "clock")
    assert texts == ["0", "10 min", "20 min", "30 min"]
    even, middle, broken = browser.execute_script(SMOOTH)
    assert even and abs(middle - 300) < 1, "it lags behind nothing"
    assert broken == [1, None, 1]
    grouped = browser.execute_script(GROUPS)
    assert [one["name"] for one in grouped] == ["g (2 runs)", "z (1 run)"]
    assert grouped[0]["y"] == [2, 3, 4] and round(grouped[0]["high"][0] - grouped[0]["y"][0], 4) == 1.4142
