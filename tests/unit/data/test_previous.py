"""The previous model: found however the channel comes, unpacked once, and refused with words where it would do harm."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from trainshed.contract.wire.variables import NOTICE_FILE
from trainshed.data import DataError, has_previous_model, previous_model

Files = dict[str, bytes]


@pytest.fixture
def job(tmp_path: Path) -> dict[str, str]:
    """The variables of a rank whose job has a channel `model`, still empty."""
    (tmp_path / "input/data/model").mkdir(parents=True)
    return {
        "SM_INPUT_DATA_CONFIG": json.dumps({"model": {"TrainingInputMode": "File"}}),
        "SM_CHANNEL_MODEL": str(tmp_path / "input/data/model"),
        NOTICE_FILE: str(tmp_path / "scratch/notice.json"),
    }


def channel(job: dict[str, str]) -> Path:
    return Path(job["SM_CHANNEL_MODEL"])


def archive(path: Path, files: Files, *members: tarfile.TarInfo) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for member in members:
            tar.addfile(member)


def test_an_archive_is_unpacked_into_the_jobs_own_folder(job: dict[str, str], tmp_path: Path) -> None:
    archive(channel(job) / "model.tar.gz", {"model.pt": b"weights", "in/config.json": b"{}"})

    folder = Path(previous_model(job))

    assert (folder / "model.pt").read_bytes() == b"weights" and (folder / "in/config.json").exists()
    assert folder.is_relative_to(tmp_path / "scratch"), "train removes it when the job is over"
    assert (tmp_path / "scratch").stat().st_mode & 0o777 == 0o700
    assert sorted(os.listdir(channel(job))) == ["model.tar.gz"]
    before = folder.stat().st_ino
    assert (previous_model(job), folder.stat().st_ino) == (str(folder), before), "once a host"


@pytest.mark.parametrize(
    "files", [{"model.pt": b"w"}, {"in/model.pt": b"w", "config.json": b"{}"}, {"data.tar.gz": b"", "model.pt": b"w"}]
)
def test_a_folder_that_is_unpacked_already_is_taken_as_it_is(files: Files, job: dict[str, str]) -> None:
    for name, content in files.items():
        (channel(job) / name).parent.mkdir(exist_ok=True)
        (channel(job) / name).write_bytes(content)
    assert previous_model(job) == str(channel(job))


@pytest.mark.parametrize("where", ["model.tar.gz", "digits-1/output/model.tar.gz", "another.tgz"])
def test_the_archive_is_found_where_a_prefix_puts_it(where: str, job: dict[str, str]) -> None:
    archive(channel(job) / where, {"model.pt": b"w"})
    if "/" in where:
        (channel(job) / "digits-1/debug").mkdir()
        (channel(job) / "digits-1/debug/log").touch()
    assert os.listdir(previous_model(job)) == ["model.pt"]


def test_a_link_to_the_archive_will_do(job: dict[str, str], tmp_path: Path) -> None:
    archive(tmp_path / "elsewhere.tar.gz", {"model.pt": b"w"})
    (channel(job) / "model.tar.gz").symlink_to(tmp_path / "elsewhere.tar.gz")
    assert os.listdir(previous_model(job)) == ["model.pt"]


def _two(job: dict[str, str]) -> None:
    for name in "ab":
        archive(channel(job) / name / "output/model.tar.gz", {"model.pt": b"w"})


MISSING: dict[str, tuple[Callable[[dict[str, str]], object], str]] = {
    "no channel": (lambda job: job.clear(), "there is no previous model: the job has no channel 'model'"),
    "another channel": (
        lambda job: [job.clear(), job.update(SM_CHANNELS='["train"]')],
        "there is no previous model: the job has no channel 'model'",
    ),
    "an empty channel": (lambda job: None, "the channel model is empty"),
    "no folder": (lambda job: channel(job).rmdir(), "cannot be listed: No such file or directory"),
    "a pipe": (
        lambda job: job.update(SM_INPUT_DATA_CONFIG='{"model": {"TrainingInputMode": "Pipe"}}'),
        "the channel model is a pipe",
    ),
    "two models": (_two, "the channel model has 2 models: a/output/model.tar.gz, b/output/model.tar.gz"),
    "not an archive": (
        lambda job: (channel(job) / "model.tar.gz").write_bytes(b"no"),
        "the previous model: ",
    ),
    "a link to nothing": (
        lambda job: (channel(job) / "model.tar.gz").symlink_to("gone"),
        "cannot be unpacked: No such file or directory",
    ),
}


@pytest.mark.parametrize(("make", "words"), MISSING.values(), ids=MISSING.keys())
def test_what_is_not_there_is_an_error_with_words(
    make: Callable[[dict[str, str]], object], words: str, job: dict[str, str]
) -> None:
    make(job)
    with pytest.raises(DataError) as caught:
        previous_model(job)
    assert words in caught.value.message
    assert caught.value.hint or "unpacked" in caught.value.message


def _member(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


HARMFUL = {
    "a path above": ({"../evil": b"x"}, ()),
    "an absolute path": ({"/evil": b"x"}, ()),
    "a link outside": ({}, (_member("out", tarfile.SYMTYPE, "/etc"),)),
    "a file below a link": ({"out/evil": b"x"}, (_member("out", tarfile.SYMTYPE, ".."),)),
    "a hard link outside": ({}, (_member("out", tarfile.LNKTYPE, "/etc/passwd"),)),
    "a device": ({}, (_member("null", tarfile.CHRTYPE),)),
    "a pipe": ({}, (_member("pipe", tarfile.FIFOTYPE),)),
}


@pytest.mark.safety
@pytest.mark.parametrize(("files", "members"), HARMFUL.values(), ids=HARMFUL.keys())
def test_an_archive_that_would_do_harm_is_refused_as_a_whole(
    files: Files, members: tuple[tarfile.TarInfo, ...], job: dict[str, str], tmp_path: Path
) -> None:
    archive(channel(job) / "model.tar.gz", {"good": b"x", **files}, *members)
    with pytest.raises(DataError, match="refused"):
        previous_model(job)
    left = [path.name for path in (tmp_path / "scratch").rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert left == [] and not (tmp_path / "evil").exists()


@pytest.mark.safety
def test_one_that_is_larger_than_the_free_space_is_refused(job: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    from trainshed.base import archive as unpacking

    archive(channel(job) / "model.tar.gz", {"zeros": bytes(100_000)})
    monkeypatch.setattr(unpacking, "_free_bytes", lambda folder: 1000)
    with pytest.raises(DataError, match="free") as caught:
        previous_model(job)
    assert "TMPDIR" in (caught.value.hint or "")


def _ask(job: dict[str, str], answers: multiprocessing.Queue[tuple[str, int]]) -> None:
    folder = previous_model(job)
    answers.put((folder, len(os.listdir(folder))))


@pytest.mark.safety
def test_ranks_that_ask_at_once_get_the_same_whole_folder(job: dict[str, str], tmp_path: Path) -> None:
    archive(channel(job) / "model.tar.gz", {str(number): b"x" for number in range(500)})
    fork = multiprocessing.get_context("fork")
    answers: multiprocessing.Queue[tuple[str, int]] = fork.Queue()
    ranks = [fork.Process(target=_ask, args=(job, answers)) for _ in range(6)]
    for rank in ranks:
        rank.start()
    got = {answers.get(timeout=60) for _ in ranks}
    for rank in ranks:
        rank.join()
    assert len(got) == 1 and got.pop()[1] == 500


@pytest.mark.safety
def test_what_a_killed_rank_has_left_is_made_anew(job: dict[str, str], tmp_path: Path) -> None:
    archive(channel(job) / "model.tar.gz", {"model.pt": b"whole"})
    folder = Path(previous_model(job))
    folder.rename(f"{folder}.part")
    (Path(f"{folder}.part") / "model.pt").write_bytes(b"ha")
    assert (Path(previous_model(job)) / "model.pt").read_bytes() == b"whole"


def test_outside_of_a_job_it_lies_among_temporary_files(
    job: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tempfile

    del job[NOTICE_FILE]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    archive(channel(job) / "model.tar.gz", {"model.pt": b"w"})
    assert previous_model(job).startswith(str(tmp_path / "trainshed-data-"))


def test_a_job_without_one_says_so(job: dict[str, str]) -> None:
    assert has_previous_model(job) and not has_previous_model({})


@pytest.mark.parametrize("how", ["writable for others", "a link"])
def test_a_scratch_folder_that_others_may_write_to_is_not_used(
    how: str, job: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "else").mkdir()
    if how == "a link":
        (tmp_path / "scratch").symlink_to("else")
    else:
        (tmp_path / "scratch").mkdir()
        (tmp_path / "scratch").chmod(0o777)
    archive(channel(job) / "model.tar.gz", {"model.pt": b"w"})

    assert previous_model(job).startswith(str(tmp_path / "tmp"))
    assert not any((tmp_path / "else").iterdir())
