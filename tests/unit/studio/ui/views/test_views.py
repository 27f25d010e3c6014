"""What further pages tell: the command line's numbers, of the runs that are shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.run_folders import lay_run
from trainshed.studio.steps.steps_folder import StepsFolder, StepState
from trainshed.studio.ui.catalog import Catalog, key_of
from trainshed.studio.ui.views.every import KINDS, Views
from trainshed.studio.ui.views.known import Known
from trainshed.studio.ui.views.parts import words

HOSTILE = "<img src=x onerror=alert(1)>\x1b[2J"


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def shown(tmp_path: Path, chosen: list[str] | None = None) -> Views:
    environ = {"XDG_STATE_HOME": str(tmp_path / "state"), "TRAINSHED_MODEL_STORE": str(tmp_path / "store")}
    catalog = Catalog({**environ, "HOME": str(tmp_path)}, (str(tmp_path / "pipelines"),))
    return Views(Known(catalog.folders, key_of, chosen), {**environ, "HOME": str(tmp_path)})


def lay_pipeline(tmp_path: Path) -> Path:
    top = tmp_path / "pipelines/digits"
    folder = StepsFolder(str(top))
    folder.claim()
    steps = [("a", "run", []), ("b", "run", ["a"]), ("c", "condition", ["b"])]
    told = [{"name": name, "kind": kind, "needs": needs} for name, kind, needs in steps]
    about = {"format": 1, "name": HOSTILE, "file": "/x.yaml", "params": {"n": HOSTILE}, "steps": told, "began": 5.0}
    folder.write("pipeline.json", json.dumps(about))
    folder.save(StepState("a", number=1, state="Completed", began=1.0, ended=2.0, session=5.0, cached=True))
    folder.save(StepState("b", number=1, state="Failed", began=2.0, ended=4.0, session=5.0, reason="no luck"))
    folder.release()
    for name in ("a-1", "b-1"):
        lay_run(top / "runs" / name)
    return top


def part(page: Any, kind: str) -> Any:
    return next(one for one in page["parts"] if one["kind"] == kind)


def test_a_pipeline_is_a_graph_with_what_was_reused(tmp_path: Path) -> None:
    top = lay_pipeline(tmp_path)
    views = shown(tmp_path)
    ((name, state, how, *_),) = part(views.get("pipelines", ""), "table")["rows"]
    assert (state, how) == ({"state": "Failed"}, "1 of 3 over, 1 reused") and name[
        "link"
    ] == f"#/pipelines/{key_of(str(top))}"

    page = views.get("pipelines", key_of(str(top)))
    assert page is not None and "\x1b" not in page["title"] and page["can"] == {"stop": False}
    graph = part(page, "graph")
    assert graph["edges"] == [["a", "b", ""], ["b", "c", ""]]
    a, b, c = graph["boxes"]
    assert a["lines"] == ["run", "completed 1 s, reused"] and a["link"] == f"#/run/{key_of(str(top / 'runs/a-1'))}"
    assert b["lines"] == ["run", "failed 2 s", "no luck"] and c["lines"] == ["condition", "waiting"] and c["link"] == ""


def test_a_copy_tells_of_what_belongs_to_its_runs_alone(tmp_path: Path) -> None:
    top = lay_pipeline(tmp_path)
    a, b = (key_of(str(top / "runs" / name)) for name in ("a-1", "b-1"))
    assert [one for one in shown(tmp_path, [a, b]).addresses() if one[0] == "pipelines"][1:] == [
        ("pipelines", key_of(str(top)))
    ]
    part_of_it = shown(tmp_path, [a])
    assert [one for one in part_of_it.addresses() if one[0] == "pipelines"] == [("pipelines", "")]
    assert part_of_it.get("lineage", b) is None and part_of_it.get("storage", "") == {
        "title": "Storage", "state": "", "facts": [], "parts": [],
    }  # fmt: skip


def test_an_address_of_nothing_is_none(tmp_path: Path) -> None:
    views = shown(tmp_path)
    for kind in (*KINDS, "nope", "..", ""):
        for key in ("../x", "a:b", "a:", ":1", "a:99999999999", "x" * 5000, "\0", "@a", "a@b"):
            assert views.get(kind, key) is None and views.chart(kind, key) is None and views.end(kind, key) is None
    assert all(views.get(kind, "") for kind in KINDS if kind != "lineage"), "each says that there is nothing yet"


def test_words_are_on_one_line_and_hold_no_secret() -> None:
    assert words("a\nb\x1b") == words("a\nb\x1b").splitlines()[0] and "\x1b" not in words("\x1b")
    assert len(words("x" * 9000)) == 500 and "hunter2" not in words("password=hunter2-secret-value")
