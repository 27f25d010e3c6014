"""Pictures, tables and the like of a run in a real browser: by step with a slider, and nobody's text as more than text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.lazy import Lazy
from support.run_folders import lay_run
from support.runner_project import Project
from trainshed.metrics import Audio, Figure, Histogram, Image, Table, Text
from trainshed.metrics.media_files import Album

from .conftest import Site
from .test_page import HOSTILE, Page

numpy: Any = Lazy("numpy")


def log(album: Album, run: Path, step: int, **values: Any) -> None:
    """Logs values as the script of a run does."""
    taken = {name: album.take(name, value) for name, value in values.items()}
    album.keep(f"{run}/algo-1/output/metrics/sagemaker", taken, (step, None, 0))


@pytest.mark.safety
def test_a_person_looks_at_pictures_by_step(site: Site, project: Project, browser: Any) -> None:
    run, album = lay_run(project.folder / "runs/pictures", metrics={"loss": [1.0, 0.5]}), Album()
    for step in range(3):
        picture = numpy.full((4 + step, 4), 80 * step, "uint8")
        log(album, run, step, image=[Image(picture, f"at {step} {HOSTILE}"), Image(picture.T)])
    table, plotly = (
        Table([{"word": HOSTILE, "right": 3}]),
        {"data": [{"y": [1, 2], "name": HOSTILE}], "layout": {"title": HOSTILE}},
    )
    values = {"table": table, "histogram": Histogram(numpy.arange(9)), "text": Text(HOSTILE), "figure": Figure(plotly)}
    log(album, run, 2, **values, audio=Audio(numpy.zeros(4000), 8000), **{HOSTILE: Text("a")})
    page = Page(browser)
    browser.get(site.address)
    page.click(".rows a", "pictures")
    page.click(".tabs a", "media")

    page.see('[data-media="image"] img', lambda picture: int(picture.get_property("naturalHeight")) == 6)
    assert (
        f"at 2 {HOSTILE}" in page.text('[data-media="image"] figcaption') and len(page.all('[data-media="image"] img')) == 2
    )
    page.see('[data-media="image"] input').send_keys("\ue012")  # the left arrow
    page.see('[data-media="image"] .num', lambda said: said.text == "step 1")
    page.see('[data-media="image"] img', lambda picture: int(picture.get_property("naturalHeight")) == 5)
    page.see('[data-media="table"] td', lambda cell: cell.text == HOSTILE)
    page.see('[data-media="histogram"] figure > svg path.f', lambda bars: bars.get_attribute("d").count("Z") > 0)
    page.see('[data-media="figure"] figure > svg path.ln')
    page.see('[data-media="figure"] .legend', lambda legend: HOSTILE in legend.text)
    page.see('[data-media="figure"] figcaption', lambda words: words.text == HOSTILE)
    page.see('[data-media="text"] pre', lambda words: words.text == HOSTILE)
    page.see("#media h3", lambda title: title.text == HOSTILE)
    page.click('[data-media="audio"] button', "Play")
    page.see('[data-media="audio"] button', lambda button: button.text == "Play")

    log(album, run, 3, image=Image(numpy.zeros((7, 4))), text="after that")
    page.see('[data-media="text"] pre', lambda words: words.text == "after that")
    assert page.text('[data-media="image"] .num') == "step 1", "whoever looks at a step stays there"
    assert browser.execute_script("return window.hacked") is None
    wrong = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert wrong == [], "nothing that the policy refuses, no error of ours"


@pytest.mark.safety
def test_no_file_but_those_of_metrics_log_is_shown(site: Site, project: Project) -> None:
    run = lay_run(project.folder / "runs/one")
    log(Album(), run, 1, text="good")
    (run / "algo-1/output/secret.txt").write_text("secret")
    path = site.path("one")
    told = site.ask(f"{path}/media?had=")
    ((file, kind, _),) = told["names"][0]["steps"][0][3]
    assert site.ask(f"{path}/medium?file={file}&kind={kind}")["text"] == "good"
    assert site.ask(f"{path}/media?had={told['had']}")["names"] is None

    (run / file).unlink()
    (run / file).symlink_to(run / "algo-1/output/secret.txt")
    base = file.rpartition("/")[0]
    for name in (file, f"{base}/../../../secret.txt", "algo-1/output/secret.txt", f"{base}/%00.txt", "job.json", f"/{file}"):
        assert "no such file" in json.dumps(site.ask(f"{path}/medium?file={name}&kind=text", status=404))
    assert "no such file" in json.dumps(site.ask(f"{path}/medium?file={file}&kind=image", status=404))


def test_a_copy_without_a_server_shows_them(project: Project, browser: Any, mine: dict[str, str], tmp_path: Path) -> None:
    run, album = lay_run(project.folder / "runs/pictures"), Album()
    for step in range(30):
        log(album, run, step, text=Text(f"said at {step}"))
    done = project.trainshed("ui", "--export", str(tmp_path / "copy"), **mine)
    assert done.status == 0, done.output
    page = Page(browser)
    browser.get((tmp_path / "copy/index.html").as_uri())
    page.click(".rows a", "pictures")
    page.click(".tabs a", "media")
    page.see('[data-media="text"] pre', lambda words: words.text == "said at 29")
    page.see('[data-media="text"] input').send_keys("\ue012")
    page.see('[data-media="text"] pre', lambda words: words.text == "said at 28")
