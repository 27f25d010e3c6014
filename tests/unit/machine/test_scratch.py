"""Folders of one run: where they are made, and that they are gone afterwards."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trainshed.base.errors import TrainshedError
from trainshed.contract.paths import Paths
from trainshed.contract.wire.variables import TRAIN_ID
from trainshed.machine import scratch
from trainshed.machine.scratch import Scratch, memory_folder, own_folder


@pytest.fixture
def places(tmp_path: Path) -> tuple[dict[str, str], Paths]:
    """An environment and paths whose temporary folder, base and output exist below `tmp_path`."""
    environ = {"TMPDIR": str(tmp_path / "tmp"), "SAGEMAKER_BASE_DIR": str(tmp_path / "ml")}
    (tmp_path / "tmp").mkdir()
    (tmp_path / "ml/output").mkdir(parents=True)
    return environ, Paths.from_environment(environ)


@pytest.mark.safety
def test_a_folder_is_made_in_the_temporary_folder_and_removed_at_the_end(places: tuple[dict[str, str], Paths]) -> None:
    environ, paths = places
    with Scratch(environ, paths.output):
        folder = own_folder("packages", environ, paths)
        assert os.path.dirname(folder) == environ["TMPDIR"]
        assert re.match(rf"trainshed-{os.getpid()}-[0-9a-f]+-packages-", os.path.basename(folder))

    assert not os.path.exists(folder)


def test_a_folder_is_made_where_programs_can_be_executed(
    places: tuple[dict[str, str], Paths], monkeypatch: pytest.MonkeyPatch
) -> None:
    environ, paths = places
    monkeypatch.setattr(scratch, "can_execute", lambda folder: folder == paths.base)
    with Scratch(environ, paths.output):
        assert os.path.dirname(own_folder("packages", environ, paths)) == paths.base


def test_where_nothing_can_be_executed_a_writable_folder_has_to_do(
    places: tuple[dict[str, str], Paths], monkeypatch: pytest.MonkeyPatch
) -> None:
    environ, paths = places
    monkeypatch.setattr(scratch, "can_execute", lambda folder: False)
    with Scratch(environ, paths.output):
        assert os.path.dirname(own_folder("packages", environ, paths)) == environ["TMPDIR"]


def test_without_any_writable_folder_the_error_says_what_to_mount(
    places: tuple[dict[str, str], Paths], monkeypatch: pytest.MonkeyPatch
) -> None:
    environ, paths = places
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(TrainshedError) as raised:
        own_folder("packages", environ, paths)

    assert "a folder for packages cannot be made" in raised.value.message and paths.base in raised.value.message
    assert "docker run --tmpfs /tmp:exec" in raised.value.hint


@pytest.mark.safety
def test_what_a_killed_train_has_left_is_removed_by_the_next_one(places: tuple[dict[str, str], Paths]) -> None:
    environ, paths = places
    place = Path(environ["TMPDIR"])
    code = (
        "import os, signal, sys\\n"
        "from trainshed.machine.scratch import Scratch\\n"
        "Scratch(dict(os.environ), '/nonexistent').make()\\n"
        "print('made', flush=True); sys.stdin.read(); os.kill(os.getpid(), signal.SIGKILL)\\n"
    ).replace("\\n", "\n")
    start = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    with (
        subprocess.Popen(start, env={**os.environ, **environ}, stdin=pipe, stdout=pipe) as killed,
        subprocess.Popen(start, env={**os.environ, **environ}, stdin=pipe, stdout=pipe) as alive,
    ):
        assert killed.stdout and alive.stdout and killed.stdin and killed.stdout.readline() == alive.stdout.readline()
        (left,) = place.glob(f"trainshed-{killed.pid}-*-run")
        (used,) = place.glob(f"trainshed-{alive.pid}-*-run")
        (left / "below").mkdir()
        Path(str(left).removesuffix("run") + "packages-x1").mkdir()
        memory, kept = (
            Path(memory_folder({TRAIN_ID: path.name.removeprefix("trainshed-").removesuffix("-run")}))
            for path in (left, used)
        )
        memory.mkdir()
        kept.mkdir()
        names = ("trainshed-run", "trainshed-1-run", "trainshed-12-ab-run", "trainshed-x-ab-run", "mine")
        others = [place / name for name in names]
        for other in others:
            other.mkdir()
        (place / "trainshed-13-ab-run").symlink_to(tmp := place / "mine")
        (tmp / ".held").write_text("")
        (place / "trainshed-run/.held").write_text("")
        killed.stdin.close()
        killed.wait()
        with Scratch(environ, paths.output) as own:
            own.make()
            assert sorted(path.name for path in place.iterdir()) == sorted(
                [path.name for path in others] + ["trainshed-13-ab-run", used.name, os.path.basename(own.path)]
            )
            assert [memory.exists(), kept.exists()] == [False, True]
        kept.rmdir()
        alive.kill()


@pytest.mark.safety
def test_a_train_that_starts_at_the_same_time_does_not_take_the_folder_for_an_abandoned_one(
    places: tuple[dict[str, str], Paths], monkeypatch: pytest.MonkeyPatch
) -> None:
    environ, paths = places
    real = os.open

    def opened(path: str, flags: int, *more: int) -> int:
        fd = real(path, flags, *more)
        if flags & os.O_CREAT:  # another one looks just before this one holds its folder
            monkeypatch.setattr(os, "open", real)
            Scratch({**environ}, paths.output).make()
        return fd

    with Scratch(environ, paths.output) as mine:
        monkeypatch.setattr(scratch.time, "time_ns", lambda: 1)  # the other's name
        monkeypatch.setattr(os, "open", opened)
        mine.make()

        assert sorted(os.listdir(environ["TMPDIR"])) == sorted(
            [os.path.basename(mine.path), f"trainshed-{os.getpid()}-1-run"]
        )
        assert os.path.exists(f"{mine.path}/.held")
