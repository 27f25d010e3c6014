"""What comes home from containers of another machine: everything, or it is said what did not. The engine is a script."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from support.obstacles import small_disk
from trainshed.places.container_command import container_name
from trainshed.places.container_engine import Engine
from trainshed.places.copying import fetch_all
from trainshed.runner.files import layout
from trainshed.runner.files.run import Run
from trainshed.runner.job.job import Job

# `cp CONTAINER:PATH -` packs a folder below this one, as an engine does; what it says otherwise is Docker's.
CP = """\
#!/bin/sh
folder=$2
container=${folder%%:*}
[ -d "$HERE/$container" ] || { echo "Error response from daemon: No such container: $container" >&2; exit 1; }
inside=$HERE/$container/${folder#*:/opt/ml/}
[ -d "$inside" ] || { echo "Error response from daemon: Could not find the file $folder in it" >&2; exit 1; }
if [ -e "$HERE/$container/cut" ]; then tar -C "$inside" -cf - . | head -c 10240 | head -c 5120; exit 0; fi
exec tar -C "$inside" -cf - .
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    made = layout.plan(Job(name="x", instances=2, image="image"), in_containers=True, now=0)
    layout.place(layout.claim(made), interface="lo")
    return made


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    (tmp_path / "docker").write_text(CP.replace("$HERE", shlex.quote(str(tmp_path / "containers"))))
    (tmp_path / "docker").chmod(0o755)
    return Engine((str(tmp_path / "docker"),))


def left(tmp_path: Path, run: Run, files: dict[str, str]) -> None:
    """Files below /opt/ml of the hosts' containers: `algo-1/model/a`."""
    for host in run.hosts:
        for folder in ("model", "output/data", "checkpoints"):
            (tmp_path / "containers" / container_name(run, host) / folder).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        host, _, rest = name.partition("/")
        (named,) = [one for one in run.hosts if one.name == host]
        path = tmp_path / "containers" / container_name(run, named) / rest
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def content(folder: str) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in Path(folder).rglob("*") if path.is_file()}


def test_shards_of_all_hosts_come_home_and_the_same_file_comes_once(engine: Engine, run: Run, tmp_path: Path) -> None:
    left(
        tmp_path, run, {f"algo-{n}/model/{name}": text for n in (1, 2) for name, text in ((f"s{n}", str(n)), ("same", "s"))}
    )
    assert fetch_all(engine, run, run.hosts) == ((), ())
    assert content(run.model) == {"s1": "1", "s2": "2", "same": "s"}


def test_a_file_that_differs_between_hosts_is_kept_twice_and_named(engine: Engine, run: Run, tmp_path: Path) -> None:
    left(tmp_path, run, {"algo-1/model/deep/w": "first", "algo-2/model/deep/w": "other"})
    lost, notes = fetch_all(engine, run, run.hosts)
    assert content(run.model) == {"deep/w": "first", "algo-2/deep/w": "other"}
    assert (lost, notes) == ((), ("model/deep/w differs between algo-1 and algo-2: that of algo-2 is algo-2/deep/w",))


def test_a_checkpoint_that_one_host_renews_is_not_undone_by_the_copy_of_another(
    engine: Engine, run: Run, tmp_path: Path
) -> None:
    Path(run.checkpoints, "latest").write_text("1")
    os.utime(f"{run.checkpoints}/latest", (1000, 1000))
    left(tmp_path, run, {"algo-1/checkpoints/latest": "2", "algo-2/checkpoints/latest": "1"})
    os.utime(tmp_path / "containers" / container_name(run, run.hosts[1]) / "checkpoints/latest", (1000, 1000))
    assert fetch_all(engine, run, run.hosts) == ((), ())
    assert content(run.checkpoints) == {"latest": "2"}


def test_a_container_that_is_gone_is_named_and_the_others_are_brought_home(engine: Engine, run: Run, tmp_path: Path) -> None:
    left(tmp_path, run, {"algo-2/model/w": "w"})
    (tmp_path / "containers" / container_name(run, run.hosts[0])).rename(tmp_path / "containers/elsewhere")
    lost, _ = fetch_all(engine, run, run.hosts)
    assert len(lost) == 1 and "the results of algo-1 are not all here" in lost[0] and "No such container" in lost[0]
    assert content(run.model) == {"w": "w"}


@pytest.mark.safety
def test_a_copy_that_is_cut_off_is_not_taken_for_whole(engine: Engine, run: Run, tmp_path: Path) -> None:
    left(tmp_path, run, {"algo-1/model/a": "x" * 4000, "algo-1/model/b": "y" * 4000, "algo-1/cut": ""})
    (lost,), _ = fetch_all(engine, run, run.hosts[:1])
    assert "was cut off" in lost or "cannot be unpacked" in lost
    assert f"its container {container_name(run, run.hosts[0])} is kept" in lost


def test_a_model_folder_that_never_arrived_is_named(engine: Engine, run: Run, tmp_path: Path) -> None:
    left(tmp_path, run, {"algo-1/model/w": "w"})
    (tmp_path / "containers" / container_name(run, run.hosts[1]) / "model").rmdir()
    assert fetch_all(engine, run, run.hosts) == ((), ("algo-2 left no /opt/ml/model: its script removed the folder",))


def test_pipes_and_links_that_lead_out_do_not_cost_the_rest(engine: Engine, run: Run, tmp_path: Path) -> None:
    left(tmp_path, run, {"algo-1/model/w": "w"})
    model = tmp_path / "containers" / container_name(run, run.hosts[0]) / "model"
    os.mkfifo(model / "pipe")
    os.symlink("/etc/passwd", model / "out")
    os.symlink("w", model / "in")
    lost, (note,) = fetch_all(engine, run, run.hosts[:1])
    assert not lost and "./pipe, a pipe" in note and "out, a link to /etc/passwd" in note
    assert sorted(os.listdir(run.model)) == ["in", "w"]


def test_a_disk_that_is_full_here_keeps_the_container(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk", 1) as disk:
        monkeypatch.chdir(disk)
        run = layout.plan(Job(name="x", image="image"), in_containers=True, now=0)
        layout.place(layout.claim(run), interface="lo")
        left(tmp_path, run, {"algo-1/model/w": "w" * (2 << 20)})
        (lost,), _ = fetch_all(engine, run, run.hosts)
        assert "is kept" in lost and "trainshed rm" in lost
        monkeypatch.chdir(tmp_path)
