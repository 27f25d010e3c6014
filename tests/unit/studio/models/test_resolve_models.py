"""Channels that name a model of the store get one version of it, wherever a job is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainshed.base.errors import TrainshedError
from trainshed.runner.control.resolve_models import with_pinned_models
from trainshed.runner.job.job import ChannelSpec, Job
from trainshed.studio.models.storage import storage_at
from trainshed.studio.models.store import ModelStore
from trainshed.studio.models.version import VersionMetadata


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Of a store with digits:1, the champion, and digits:2."""
    store = ModelStore(storage_at(str(tmp_path / "store"), {}))
    for text in ("one", "two"):
        (tmp_path / "weights").write_text(text)
        version = store.add("digits", [("weights", str(tmp_path / "weights"))], VersionMetadata()).version
        if text == "one":
            store.set_stage(version, "champion")
    return {"TRAINSHED_MODEL_STORE": str(tmp_path / "store")}


def job(*paths: str) -> Job:
    return Job("train", channels=tuple(ChannelSpec(f"c{number}", path) for number, path in enumerate(paths)))


def test_stages_and_the_newest_version_become_numbers_and_it_is_said(environ: dict[str, str]) -> None:
    made = with_pinned_models(job("model://digits@champion", "model://digits", "model://digits:1", "/data"), environ)

    assert [channel.path for channel in made.channels] == [
        "model://digits:1",
        "model://digits:2",
        "model://digits:1",
        "/data",
    ]
    assert made.notes == ("the channel c0: digits@champion is digits:1", "the channel c1: digits is digits:2")
    assert with_pinned_models(made, environ) is made, "once is enough"


@pytest.mark.parametrize("path", ["model://digits@other", "model://other", "model://../x"])
def test_what_is_not_there_is_an_error_and_no_job(environ: dict[str, str], path: str) -> None:
    with pytest.raises(TrainshedError):
        with_pinned_models(job(path), environ)
