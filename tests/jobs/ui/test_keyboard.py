"""Every page by the keyboard alone, and read by axe: by day and by night, on a desk and on a phone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.axe import findings
from support.run_folders import lay_run
from support.runner_project import Project, wait_until
from trainshed.metrics import Text
from trainshed.metrics.media_files import Album

from .conftest import Site, end, environment, served
from .test_page import Page

PAGES = ("runs", "tunings", "pipelines", "models", "data", "storage")
TABS = ("curves", "media", "machine", "logs", "files", "lineage", "settings")
VIEWS = ("curves", "differences", "parameters")
TAB, ENTER, SPACE, ESCAPE = "\ue004", "\ue007", " ", "\ue00c"
# Controls, by what a person knows them by.
CONTROLS = """
const named = one => [one.localName, one.id, one.getAttribute("aria-label") || one.textContent, one.href].join(" ");
const held = [...document.querySelectorAll("a[href], button:not(:disabled), input, select, summary, [tabindex='0']")];
"""
ALL = f"{CONTROLS} return held.filter(one => one.checkVisibility() && one.getBoundingClientRect().width).map(named);"
# Who has the focus, whether that is nobody, and whether it is seen: outlined, not cut, not below the page's head.
FOCUSED = f"""{CONTROLS}
const one = document.activeElement, look = getComputedStyle(one), box = one.getBoundingClientRect(), cuts = [];
const grow = parseFloat(look.outlineOffset) + parseFloat(look.outlineWidth), head = document.querySelector("header");
for (let up = one.parentElement; up !== null && up !== document.body; up = up.parentElement) {{
  const hold = up.getBoundingClientRect(), cut = box.top - grow < hold.top - 1 || box.bottom + grow > hold.bottom + 1;
  cuts.push(getComputedStyle(up).overflowY !== "visible" && cut);
}}
if (head && !head.contains(one) && box.height < 200) cuts.push(box.top < head.getBoundingClientRect().bottom - 1);
const outlined = look.outlineStyle !== "none" && parseFloat(look.outlineWidth) >= 2;
return [named(one), one === document.body, outlined && !cuts.includes(true)];
"""


@pytest.fixture
def open_site(filled: Project, mine: dict[str, str], tmp_path: Path) -> Iterator[Site]:
    """The page over a pipeline, a tuning, two runs that differ, one with media."""
    lay_run(filled.folder / "runs/one", hps={"lr": "0.1"}, metrics={"loss": [1.0, 0.5], "grad/a": [1.0], "grad/b": [2.0]})
    two = lay_run(filled.folder / "runs/two", hps={"lr": "0.2"}, tags={"draft": ""}, metrics={"loss": [1.0, 0.25]})
    album = Album()
    for step in range(2):
        album.keep(
            f"{two}/algo-1/output/metrics/sagemaker", {"said": album.take("said", Text(f"at {step}"))}, (step, None, 0)
        )
    quick = {
        "quick.py": "import sys\nprint('metric loss=' + sys.argv[sys.argv.index('--rate') + 1])\n",
        "quick.yaml": "job: {program: quick.py}\nsearch: {rate: [0.1, 0.2]}\nobjective: minimize loss\nstrategy: grid\n",
    }
    filled.write(quick)
    done = filled.trainshed("tune", "quick.yaml", **environment(mine, tmp_path))
    assert done.status == 0, done.output
    process = filled.start("ui", **environment(mine, tmp_path))
    yield served(process)
    end(process)


def addresses(site: Site) -> list[str]:
    """Of every kind of page."""
    keys = {row["name"]: row["key"] for row in site.ask("/api/runs")["rows"]}
    pair = f"{keys['one']},{keys['two']}"
    one = [
        f"#/{kind}/{site.ask(f'/api/page/{kind}')['parts'][0]['rows'][0][0]['link'].split('/')[-1]}"
        for kind in ("tunings", "pipelines", "models", "data")
    ]
    tabs = [f"#/run/{keys['two']}/{tab}" for tab in TABS] + [f"#/run/{keys['steps-second-1']}/lineage"]
    return [*(f"#/{name}" for name in PAGES), *one, *tabs, *(f"#/overlay/{pair}?view={view}" for view in VIEWS)]


def go(page: Page, address: str) -> None:
    """Opens a page, and waits until it is all there."""
    page.browser.execute_script("location.hash = '#/storage'")
    page.see("h1", lambda title: title.text == "Storage")
    page.browser.execute_script("location.hash = arguments[0]", address)
    page.see("main", lambda main: main.text.strip() and (address == "#/storage" or "Warm pools" not in main.text))
    settled: list[Any] = []

    def quiet(_: Any) -> bool:
        settled.append(page.browser.execute_script(ALL))
        return settled[-5:] == settled[-1:] * 5

    page.see("main", quiet)


def emulate(browser: Any, *, dark: bool, width: int) -> None:
    """A screen of this width, by night or by day."""
    screen = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


@pytest.mark.heavy
@pytest.mark.parametrize("dark", [False, True], ids=["day", "night"])
def test_axe_finds_nothing_on_any_page_and_a_phone_shows_all(
    open_site: Site, filled: Project, browser: Any, dark: bool
) -> None:
    page, every, wrong = Page(browser), addresses(open_site), dict[Any, Any]()
    browser.get(open_site.address)
    for width in (1280, 390):
        emulate(browser, dark=dark, width=width)

        def look(what: str, width: int = width) -> None:
            wide = browser.execute_script("return document.documentElement.scrollWidth")
            if (found := findings(browser)) or wide > width:
                wrong[what, width] = (wide, found)

        for address in every:
            go(page, address)
            look(address)
        go(page, next(address for address in every if address.endswith("/curves")))
        for opener in ("#remove", "#clone"):
            page.click(opener)
            page.see("dialog h2")
            look(opener)
            browser.switch_to.active_element.send_keys(ESCAPE)
            wait_until(lambda: not page.all("dialog"), "the question has gone")
    report = next(filled.folder.glob("**/data/report.html"))
    browser.get(report.as_uri())
    look("report")
    assert wrong == {}


def test_every_control_is_reached_by_tab_and_seen_there(open_site: Site, filled: Project, browser: Any) -> None:
    page, wrong = Page(browser), dict[str, Any]()
    browser.get(open_site.address)
    report = next(filled.folder.glob("**/data/report.html"))
    for address in (*addresses(open_site), report.as_uri()):
        if address.startswith("#"):
            go(page, address)
        else:
            browser.get(address)
        wanted, reached, unseen = {*browser.execute_script(ALL)}, set[str](), set[str]()
        browser.execute_script("document.activeElement.blur(); window.getSelection().removeAllRanges()")
        browser.execute_script(
            "document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute('tabindex')"
        )
        for _ in range(2 * len(wanted) + 10):
            browser.switch_to.active_element.send_keys(TAB)
            name, outside, seen = browser.execute_script(FOCUSED)
            if outside:
                break
            reached.add(name)
            if not seen:
                unseen.add(name)
        if wanted - reached or unseen:
            wrong[address] = {"not reached": wanted - reached, "not seen": unseen}
    assert wrong == {}


def by_keys(browser: Any, selector: str, keys: str) -> None:
    """Gives an element the focus, as Tab would, and types."""
    browser.execute_script("document.querySelector(arguments[0]).focus()", selector)
    browser.switch_to.active_element.send_keys(keys)


def focused(browser: Any) -> str:
    """What a person knows the control by that has the focus."""
    name, _, _ = browser.execute_script(FOCUSED)
    return str(name)


def test_what_is_done_by_keys_leaves_the_focus_where_it_was(open_site: Site, browser: Any) -> None:
    page = Page(browser)
    browser.get(open_site.address)
    page.run_row("two")
    by_keys(browser, '[data-sort="name"]', ENTER)
    page.see('[data-sort="name"]', lambda sorter: "▴" in sorter.text)
    assert "sort-name" in focused(browser)
    for name in ("one", "two"):
        by_keys(browser, f'[aria-label="choose {name} for an overlay"]', SPACE)
    page.see("#overlay", lambda overlay: overlay.text == "Overlay 2")

    # A dialog keeps the focus, Escape closes it, and the focus is where it was.
    by_keys(browser, "#columns", ENTER)
    page.see("dialog h2")
    for _ in range(60):
        browser.switch_to.active_element.send_keys(TAB)
        held = "return [...document.querySelectorAll('dialog, body')].some(one => one.contains(document.activeElement) "
        assert browser.execute_script(held + "&& (one.localName === 'dialog' || document.activeElement === one))")
    browser.switch_to.active_element.send_keys(ESCAPE)
    wait_until(lambda: not page.all("dialog"), "the dialog has gone")
    assert "columns" in focused(browser)

    # Two runs over one another: views, and lines on and off in either legend.
    by_keys(browser, "#overlay", SPACE)
    page.see('[data-chart="loss"] figure > svg')
    by_keys(browser, '[data-chart="loss"] .legend button', SPACE)
    page.see('[data-chart="loss"] .legend [aria-pressed="false"]')
    assert "one 0.5" in focused(browser) or "two 0.25" in focused(browser)
    by_keys(browser, "[data-run]", SPACE)
    page.see('[data-chart="loss"] .legend', lambda legend: not legend.find_elements("css selector", "[aria-pressed=false]"))
    by_keys(browser, '[data-view="differences"]', ENTER)
    page.see("#differs")
    assert "What differs" in focused(browser)

    # A run: its tabs are links, its questions are asked while all of it is drawn anew, its folders are gone through.
    browser.execute_script("location.hash = '#/runs'")
    page.run_row("two")
    by_keys(browser, f'[data-key="{open_site.row("two")["key"]}"] a', ENTER)
    page.see(".tabs a")
    assert focused(browser).startswith("main ")
    by_keys(browser, "#remove", ENTER)
    page.see("dialog h2")
    open_site.ask(f"{open_site.path('two')}/labels", {"note": "drawn anew"})
    page.see("#labels p", lambda note: "drawn anew" in note.text)
    browser.switch_to.active_element.send_keys(ESCAPE)
    wait_until(lambda: not page.all("dialog"), "the question has gone")
    assert "remove" in focused(browser)
    by_keys(browser, '.tabs [href$="/files"]', ENTER)
    page.see("td a", lambda folder: folder.text == "algo-1/")
    assert "files" in focused(browser)
    browser.find_element("link text", "algo-1/").send_keys(ENTER)
    page.see("td a", lambda folder: folder.text == "output/")
    assert focused(browser).startswith("a  algo-1 ")
