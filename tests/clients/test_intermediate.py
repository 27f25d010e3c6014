"""Intermediate output: which files are uploaded, and when. Uploads to a server of S3's kind are in test_sdk2."""

from __future__ import annotations

import os
import select
from pathlib import Path
from typing import Any

import pytest

from support.own_s3 import BUCKET, client, keys, own_s3
from trainshed.container import intermediate
from trainshed.container.intermediate.inotify import InotifyWatch
from trainshed.container.intermediate.uploader import Uploader, UploadQueue, check


@pytest.fixture
def watched(tmp_path: Path) -> Path:
    folder = tmp_path / "intermediate"
    folder.mkdir()
    return folder


def taken(watch: InotifyWatch, folder: Path) -> list[str]:
    return [os.path.relpath(path, folder) for path in watch.take()]


def test_a_file_counts_when_it_is_closed_and_not_before(watched: Path) -> None:
    watch = InotifyWatch(str(watched))
    with (watched / "a").open("w") as file:
        file.write("half")
        file.flush()
        assert taken(watch, watched) == []
    assert taken(watch, watched) == ["a"]
    assert taken(watch, watched) == []
    (watched / "a").write_text("again")
    (watched / "a").write_text("and again")
    assert taken(watch, watched) == ["a"]


def test_a_file_that_is_renamed_or_linked_into_place_counts(watched: Path, tmp_path: Path) -> None:
    watch = InotifyWatch(str(watched))
    (tmp_path / "outside").write_text("1")
    os.rename(tmp_path / "outside", watched / "renamed")
    (tmp_path / "other").write_text("2")
    os.link(tmp_path / "other", watched / "linked")
    assert taken(watch, watched) == ["renamed", "linked"]


def test_folders_count_with_what_was_in_them_before_they_were_seen(watched: Path, tmp_path: Path) -> None:
    (watched / "early").write_text("0")
    watch = InotifyWatch(str(watched))
    (watched / "deep/er").mkdir(parents=True)
    (watched / "deep/er/a").write_text("1")
    (tmp_path / "whole/sub").mkdir(parents=True)
    (tmp_path / "whole/sub/b").write_text("2")
    os.rename(tmp_path / "whole", watched / "whole")
    assert set(taken(watch, watched)) == {"early", "deep/er/a", "whole/sub/b"}
    (watched / "whole/sub/c").write_text("3")
    assert taken(watch, watched) == ["whole/sub/c"]


def test_what_is_gone_again_is_no_matter(watched: Path) -> None:
    watch = InotifyWatch(str(watched))
    (watched / "folder").mkdir()
    (watched / "folder/a").write_text("1")
    (watched / "folder/a").unlink()
    (watched / "folder").rmdir()
    put: list[str] = []
    uploader = Uploader(str(watched), "s3://b/p/", lambda path, bucket, key: put.append(key), lambda line: None)
    assert all(uploader.upload(path) for path in watch.take())
    assert put == []


def test_a_file_that_is_deleted_after_its_close_is_uploaded_as_it_was(watched: Path) -> None:
    watch, held, put = InotifyWatch(str(watched)), UploadQueue(), {}
    attempts: list[str] = []

    def second_time(path: str, bucket: str, key: str) -> None:
        attempts.append(key)
        if attempts.count("flaky") == 1 and key == "flaky":
            raise OSError("down")
        put[key] = Path(path).read_text()

    uploader = Uploader(str(watched), "s3://b/", second_time, lambda line: None)
    (watched / "sub").mkdir()
    held.add(watch.take())
    for name in ("a", "sub/b", "flaky", "replaced"):
        (watched / name).write_text(f"first of {name}")
    os.mkfifo(watched / "pipe")
    held.add(watch.take())
    (watched / "new").write_text("second")
    os.rename(watched / "new", watched / "replaced")
    held.add(watch.take())
    for path in ("a", "sub/b", "flaky", "pipe"):
        (watched / path).unlink()
    (watched / "sub").rmdir()
    held.end()
    while (file := held.take()) is not None:
        uploader.upload_held(*file)

    assert uploader.rest() == 0
    assert put == {**{name: f"first of {name}" for name in ("a", "sub/b", "flaky")}, "replaced": "second"}


def test_what_waits_is_held_by_few_descriptors_and_goes_by_its_path_beyond_those(watched: Path) -> None:
    held = UploadQueue()
    held._most = 0  # as where the limit on descriptors is reached
    (watched / "a").write_text("1")
    held.add([f"{watched}/a", f"{watched}/gone"])
    held.end()
    assert [held.take(), held.take()] == [(f"{watched}/a", -1), None]


def test_waiting_ends_with_a_file_or_with_the_job(watched: Path) -> None:
    watch = InotifyWatch(str(watched))
    read, write = os.pipe()
    (watched / "a").write_text("1")
    assert watch.wait(read) is False
    assert taken(watch, watched) == ["a"]
    os.close(write)
    assert watch.wait(read) is True
    assert not select.select([watch.fd], [], [], 0)[0]
    os.close(read)


def test_a_file_is_uploaded_once_as_it_is_and_again_when_it_has_changed(watched: Path) -> None:
    put: list[tuple[str, str, str]] = []

    def remember(path: str, bucket: str, key: str) -> None:
        put.append((Path(path).read_text(), bucket, key))

    uploader = Uploader(str(watched), "s3://bucket/prefix/job/output/intermediate/", remember, print)
    (watched / "sub").mkdir()
    path = watched / "sub/a"
    path.write_text("one")
    uploader.upload(str(path))
    uploader.upload(str(path))
    path.write_text("longer")
    uploader.rest()
    assert put == [(text, "bucket", "prefix/job/output/intermediate/sub/a") for text in ("one", "longer")]


def test_an_upload_that_fails_is_said_and_tried_again_at_the_end(watched: Path) -> None:
    said: list[str] = []
    put: list[str] = []
    broken = True

    def unsteady(path: str, bucket: str, key: str) -> None:
        if broken:
            raise OSError("https://user:hunter2@host is down")
        put.append(key)

    uploader = Uploader(str(watched), "s3://b/", unsteady, said.append)
    (watched / "a").write_text("1")
    assert uploader.upload(f"{watched}/a") is False
    assert "tried again at the end" in said[0] and "is down" in said[0] and "hunter2" not in said[0]
    broken = False
    uploader.rest()
    assert put == ["a"]


@pytest.mark.parametrize(
    ("uri", "name", "to"),
    [
        ("s3://b/out/", "job-1", "s3://b/out/job-1/output/intermediate/"),
        ("s3://b", "", "s3://b/output/intermediate/"),
        ("file:///out", "job-1", ""),
        (None, "job-1", ""),
        (3, "job-1", ""),
    ],
)
def test_the_place_is_the_peers(uri: Any, name: str, to: str, job_tree: Any) -> None:
    job_tree.configure(hyperparameters={"sagemaker_s3_output": uri} if uri is not None else {})
    assert intermediate.destination(job_tree.read(TRAINING_JOB_NAME=name)) == to


def test_a_folder_that_is_there_is_somebody_elses(job_tree: Any) -> None:
    job_tree.configure(hyperparameters={"sagemaker_s3_output": "s3://b/out"})
    (job_tree.base / "output/intermediate").mkdir(parents=True)
    assert intermediate.destination(job_tree.read()) == ""


WRITES = """\
import os
folder = os.environ["SM_OUTPUT_INTERMEDIATE_DIR"]
open(folder + "/first", "w").write("1")
os.makedirs(folder + "/deep")
open(folder + "/deep/second", "w").write("22")
"""
# Deleted when the uploader holds it, which is an event: its descriptor. S3's client may not even be there by then.
DELETES = """\
import glob, os, time
path = os.environ["SM_OUTPUT_INTERMEDIATE_DIR"] + "/short"
open(path, "w").write("lived")
def held():
    for link in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            if os.readlink(link) == path:
                return True
        except OSError:
            pass
end = time.monotonic() + 60
while not held() and time.monotonic() < end:
    time.sleep(0.005)
os.unlink(path)
"""


def test_a_job_whose_intermediate_output_does_not_arrive_says_so_at_its_end_and_keeps_its_model(job_tree: Any) -> None:
    job_tree.code("train.py", WRITES)
    job_tree.configure(hyperparameters={"sagemaker_s3_output": f"s3://{BUCKET}/out"})
    nowhere = {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1", "AWS_MAX_ATTEMPTS": "1", "AWS_DEFAULT_REGION": "us-east-1"}
    keys_of_nobody = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing-secret"}
    done = job_tree.train(SAGEMAKER_PROGRAM="train.py", TRAINING_JOB_NAME="job", **nowhere, **keys_of_nobody)

    assert done.status == 0, done.output
    assert "first cannot be uploaded" in done.stderr
    assert "WARNING: files of the intermediate output" in done.stderr
    assert "Reporting training SUCCESS" in done.stderr


def test_a_place_that_cannot_be_written_to_is_told_at_the_start(capfd: pytest.CaptureFixture[str]) -> None:
    with own_s3() as environment:
        check(client(environment), f"s3://{BUCKET}/out/")
        assert "warning" not in capfd.readouterr().err
        check(client(environment), "s3://no-such-bucket/out/")
    told = capfd.readouterr().err
    assert "warning: intermediate output cannot be uploaded to s3://no-such-bucket/out/: " in told and "NoSuchBucket" in told


@pytest.mark.safety
def test_a_file_that_the_script_deletes_arrives(job_tree: Any) -> None:
    job_tree.code("train.py", DELETES)
    job_tree.configure(hyperparameters={"sagemaker_s3_output": f"s3://{BUCKET}/out"})
    with own_s3() as environment:
        done = job_tree.train(SAGEMAKER_PROGRAM="train.py", TRAINING_JOB_NAME="short", **environment)
        assert done.status == 0, done.output
        assert keys(environment, "out/short/output/intermediate/") == ["short"]


def test_a_job_whose_intermediate_output_arrives_succeeds(job_tree: Any) -> None:
    job_tree.code("train.py", WRITES)
    job_tree.configure(hyperparameters={"sagemaker_s3_output": f"s3://{BUCKET}/out"})
    with own_s3() as environment:
        done = job_tree.train(SAGEMAKER_PROGRAM="train.py", TRAINING_JOB_NAME="job", **environment)
        assert done.status == 0, done.output
        assert keys(environment, "out/job/output/intermediate/") == ["deep/second", "first"]
