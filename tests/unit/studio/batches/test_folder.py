"""The folder of a batch: one process works in it, and what goes wrong is said in the words of its kind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainshed.base.errors import TrainshedError
from trainshed.studio.batches import folder as batch_folder
from trainshed.studio.batches.folder import Folder, NoBatchError
from trainshed.studio.steps.steps_folder import StepsFolder
from trainshed.studio.tune.tuning_folder import TuningFolder

KINDS = pytest.mark.parametrize("kind", [TuningFolder, StepsFolder])


@pytest.mark.safety
@KINDS
def test_one_process_works_in_a_folder(kind: type[Folder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_folder, "PATIENCE", 0.0)
    first, second = kind(str(tmp_path / "b")), kind(str(tmp_path / "b"))
    first.claim()

    assert second.worker == os.getpid()
    with pytest.raises(TrainshedError, match=f"already, by process {os.getpid()}$"):
        second.claim()
    first.release()
    assert second.worker == 0
    second.claim()
    second.release()


@pytest.mark.safety
@KINDS
@pytest.mark.parametrize("text", [b"", b"-1\n", b"\xff\xfe", b"x"])
def test_a_pid_that_cannot_be_read_is_not_known(kind: type[Folder], tmp_path: Path, text: bytes) -> None:
    """A signal to another process than the one that works here would be worse than none."""
    folder = kind(str(tmp_path / "b"))
    folder.claim()
    (tmp_path / "b" / kind.lock_file).write_bytes(text)

    assert folder.worker == -1
    folder.release()


@pytest.mark.safety
@KINDS
def test_a_folder_of_other_things_is_left_as_it_is(kind: type[Folder], tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(TrainshedError, match=r"holds other things \(thesis.tex\)"):
        kind(str(tmp_path)).claim()

    assert os.listdir(tmp_path) == ["thesis.tex"]


@KINDS
def test_a_batch_is_found_by_its_name_the_beginning_of_that_or_its_folder(
    kind: type[Folder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NoBatchError, match=f"there are no {kind.noun}s in ./{kind.home}"):
        kind.find("")
    for age, name in enumerate(("digits", "dogs")):
        folder = kind(f"{kind.home}/{name}")
        folder.write(kind.about_file, "{}")
        os.utime(f"{folder.path}/{kind.about_file}", (age, age))

    found = [kind.find(text).path for text in ("", "do", "dogs", f"{kind.home}/dogs")]
    assert set(found) == {str(tmp_path / kind.home / "dogs")}
    for text, why in (("d", "2 .* begin with 'd': digits, dogs"), ("dog5", "did you mean"), ("a/b", "is not the folder")):
        with pytest.raises(NoBatchError, match=why):
            kind.find(text)


@pytest.mark.safety
@KINDS
def test_a_file_that_cannot_be_written_is_said_with_what_to_do(kind: type[Folder], tmp_path: Path) -> None:
    folder = kind(str(tmp_path))
    (tmp_path / "sub").touch()
    with pytest.raises(TrainshedError, match=f"cannot write in the {kind.noun}'s folder: .*sub") as caught:
        folder.write("sub/file", "text")

    assert kind.resume in caught.value.hint
