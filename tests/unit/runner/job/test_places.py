"""The table of places: what each can, and how a package adds one."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.paths import TOOLKIT
from trainshed.base import entry_points
from trainshed.base.errors import JobError
from trainshed.cli import main
from trainshed.runner.acting import acting
from trainshed.runner.job import places
from trainshed.runner.job.job import ChannelSpec, DistributionSpec, InstanceGroupSpec, Job
from trainshed.runner.state.stored import Stored

PIPED = Job("job", channels=(ChannelSpec("train", "/data", input_mode="Pipe"),))


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where installed packages lie; `a_place` and `no_place` are added by one of them."""
    info = tmp_path / "adds-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: adds\nVersion: 1\n")
    points = "a_place = adds:A_PLACE\nno_place = adds:NO_PLACE\nbroken = adds:MISSING\n"
    (info / "entry_points.txt").write_text(f"[{places.GROUP}]\n{points}")
    (tmp_path / "adds.py").write_text(
        "from trainshed.runner.job.places import Place\n"
        "A_PLACE = Place('a_place', 'trainshed.places.here:Here', 'A', 'at A', options='options', key='AJob')\n"
        "NO_PLACE = 7\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    _forget()
    yield tmp_path
    _forget()


def _forget() -> None:
    entry_points.load.cache_clear()
    entry_points.points.cache_clear()


def test_every_place_of_the_table_can_act() -> None:
    for place in places.BUILT_IN.values():
        assert (acting(place).place is place) if place.acts else place.options


def test_a_plain_run_asks_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: pytest.fail("asked"))

    assert places.find("here").here and places.of_engine("") is None
    assert places.of_engine("unix:///run/docker.sock") is None and places.of_engine("podman") is None


def test_a_run_here_loads_nothing_of_other_places(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    code = (
        "import sys; from trainshed.cli import main; assert not main(['run', 'train.py', '--dry-run']);"
        "print('LOADED', *(name for name in sys.modules if name.startswith('trainshed.places.')))"
    )
    environ = {**os.environ, "PYTHONPATH": str(TOOLKIT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True)
    loaded = {name.split(".")[2] for name in done.stdout.partition("LOADED")[2].split()}

    assert {"here", "processes"} <= loaded, done.stderr
    assert not loaded & {"ssh", "ray", "slurm", "kubernetes", "sagemaker", "containers"}


@pytest.mark.parametrize("place", [places.SLURM, places.RAY, places.SSH, places.KUBERNETES], ids=lambda one: one.name)
def test_pipe_mode_is_refused_in_the_same_words_by_every_place(place: places.Place) -> None:
    with pytest.raises(JobError, match=rf"channels.train.input_mode: Pipe mode does not work {place.where} \(use File\)"):
        places.refuse(place, PIPED)

    assert not places.refused(place, PIPED, apart=["train"])


def test_what_a_place_cannot_is_refused_all_at_once() -> None:
    groups = (InstanceGroupSpec("a"), InstanceGroupSpec("b"))
    job = Job("job", instances=2, instance_groups=groups, network_isolation=True, distribution=DistributionSpec("mpi"))
    nothing = places.Place("x", where="at X", can=places.Can(mpi=False, groups=False, isolation=False))

    assert {one.field for one in places.refused(nothing, job)} == {"instance_groups", "network_isolation", "distribution"}
    assert not places.refused(places.HERE, job)


def test_channels_that_a_job_writes_to_are_refused_where_it_has_copies() -> None:
    job = Job("job", channels=(ChannelSpec("train", "/data", access="rw"),))

    (problem,) = places.refused(places.SSH, job)
    assert (problem.field, problem.message) == ("channels.train.access", "rw does not work over ssh")
    assert not places.refused(places.SSH, job, apart=["train"]) and not places.refused(places.HERE, job)


def test_what_a_place_does_without_is_told() -> None:
    job = Job("job", image="an-image", retries=2)

    assert places.gone_without(places.RAY, job) == [
        "an-image is not used: on Ray a job runs with what its hosts have installed"
    ]
    (words,) = places.gone_without(places.SLURM, job)
    assert words.startswith("retries: a job that fails is not started again on Slurm")
    assert not places.gone_without(places.KUBERNETES, job)


def test_a_package_adds_a_place(added: Path) -> None:
    assert places.find("a_place").title == "A" and "a_place" in places.names()
    assert places.has_options("a_place") and not places.has_options("here")


@pytest.mark.parametrize(
    "name, words", [("no_place", "leads to no place"), ("broken", "cannot be loaded"), ("other", "no place")]
)
def test_a_place_that_is_none_is_told(added: Path, name: str, words: str) -> None:
    with pytest.raises(places.UnknownPlace, match=words):
        places.find(name)


@pytest.mark.parametrize("acts", ["adds:MISSING", "missing:Place", "builtins:id", "builtins:sorted"])
def test_what_acts_at_an_added_place_is_looked_at(added: Path, acts: str) -> None:
    with pytest.raises(places.UnknownPlace, match=r"cannot be loaded|neither Hosts nor a Queue"):
        acting(places.find("a_place").replace(acts=acts))


def test_a_run_of_an_added_place_is_known_by_its_files(added: Path) -> None:
    run = Stored("/nowhere", {"Trainshed": {"AJob": "7"}}, {"engine": "a_place"})

    assert run.place.name == "a_place" and run.submitted == "job 7 of A"


@pytest.mark.parametrize("name", ["gone", "broken"])
def test_a_run_is_not_lost_where_its_place_is_no_longer_installed(added: Path, name: str) -> None:
    run = Stored("/nowhere", {}, {"engine": name})

    assert run.submitted == f"on {name}, which no package here adds" and not run.lost
    with pytest.raises(places.UnknownPlace, match=f"nothing runs jobs at {name}"):
        acting(run.place)


def test_on_names_the_places_that_there_are(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    with pytest.raises(SystemExit):
        main(["run", "train.py", "--on", "slurn"])

    assert "'slurn' must be one of here, kubernetes, ray, slurm, ssh (" in capfd.readouterr().err
