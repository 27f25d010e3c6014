"""Channels that are fetched from S3: kept, gone on with, verified, tried again; and `trainshed cache`."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.faulty_s3 import FaultyS3
from support.own_s3 import BUCKET, client, own_s3, put
from support.runner_project import LIMIT, Project, wait_until
from trainshed.base.errors import TrainshedError
from trainshed.runner.files.fetching import from_s3, ranges
from trainshed.runner.files.fetching.file_cache import key_of
from trainshed.runner.files.fetching.from_s3 import Objects
from trainshed.runner.files.fetching.s3 import Bucket
from unit.runner.files.fetching.storages import Place
from unit.runner.job.test_channels import SHOW, shown

BODY = random.Random(1).randbytes(20 << 20)
SIZES = """\
import os
folder = os.environ["SM_CHANNEL_TRAIN"]
print({name: os.path.getsize(f"{folder}/{name}") for name in sorted(os.listdir(folder))})
"""


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    with own_s3() as environment:
        put(environment, {"fetch/a": b"1", "fetch/b": b"2", "big/large": BODY})
        yield environment


@pytest.fixture
def files(project: Project) -> Project:
    return project.write({"show.py": SHOW, "sizes.py": SIZES})


@pytest.mark.spine
def test_a_second_run_fetches_nothing_and_a_changed_object_is_fetched(
    files: Project, s3: dict[str, str], faulty: FaultyS3
) -> None:
    arguments = ("run", "show.py", "--channel", "train=s3://bucket/fetch/")
    assert shown(files.trainshed(*arguments, **faulty.environment)) == {"algo-1": {"a": "1", "b": "2"}}
    assert faulty.gets == {"/bucket/fetch/a": 1, "/bucket/fetch/b": 1}
    put(s3, {"fetch/b": b"3"})
    try:
        assert shown(files.trainshed(*arguments, **faulty.environment)) == {"algo-1": {"a": "1", "b": "3"}}
    finally:
        put(s3, {"fetch/b": b"2"})
    assert faulty.gets == {"/bucket/fetch/a": 1, "/bucket/fetch/b": 2}
    listed = files.command("cache", "ls")
    assert listed.status == 0 and "3 B        3" in listed.stdout and "s3://bucket/fetch/" in listed.stdout, listed.output
    assert files.command("cache", "ls", "--files").stdout.count("s3://bucket/fetch/") == 2
    assert files.command("cache", "rm", "s3://bucket/fetch/b").stdout == "2 files removed, 2 B\n"
    assert files.command("cache", "prune", "--to", "0m").stdout == "1 file removed, 1 B\n"
    assert files.command("cache", "rm").status == 1
    off = files.command("cache", "ls", TRAINSHED_CHANNEL_CACHE="off")
    assert (off.status, off.stderr) == (1, "trainshed: TRAINSHED_CHANNEL_CACHE is off: nothing is kept\n")


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_ends_meanwhile_is_gone_on_with_by_the_next(files: Project, faulty: FaultyS3, end: int) -> None:
    faulty.fault, faulty.of = "stall", "bytes=16777216-"
    arguments = ("run", "sizes.py", "--channel", "train=s3://bucket/big/")
    process = files.start(*arguments, **faulty.environment)
    cache = files.folder.parent / "cache"
    wait_until(lambda: [1 for part in cache.glob("*/part") if part.stat().st_size == 16 << 20], "two ranges")
    process.send_signal(end)
    _, said = process.communicate(timeout=LIMIT)
    if end == signal.SIGINT:
        assert process.returncode == 130 and "stopped by SIGINT before the job was started" in said, said
        assert not (files.folder / "runs").exists()
    faulty.fault = ""
    faulty.ranges.clear()
    done = files.trainshed(*arguments, **faulty.environment)
    assert done.stdout == f"{{'large': {len(BODY)}}}\n", done.output
    assert [asked for _, asked in faulty.ranges] == ["bytes=16777216-20971519"]


def test_what_s3_does_not_give_ends_the_run_with_one_line(files: Project, faulty: FaultyS3) -> None:
    faulty.fault, faulty.of = "403", "fetch/b"
    done = files.command("run", "show.py", "--channel", "train=s3://bucket/fetch/", **faulty.environment)
    assert done.status == 1
    (line,) = [line for line in done.stderr.splitlines() if "s3://bucket/fetch/b: " in line]
    assert "AccessDenied" in line and "Traceback" not in done.stderr
    assert not (files.folder / "runs").exists()


# --- without a job ---------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, faulty: FaultyS3, monkeypatch: pytest.MonkeyPatch) -> Place:
    for name, value in faulty.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ranges, "PAUSES", (0.0, 0.0))
    monkeypatch.setattr(from_s3, "PATIENCE", {"connect_timeout": 5, "read_timeout": 1})
    return Place(tmp_path)


def fetched(place: Place, faulty: FaultyS3, uri: str) -> Path:
    items = Bucket(uri, faulty.environment).objects("S3Prefix")
    return place.bring(Objects(faulty.environment), items)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fault", "says"), [("503", "SlowDown"), ("stall", "nothing came for 1 s"), ("cut", "IncompleteRead|Connection broken")]
)
def test_faults_that_pass_are_passed_and_others_end(place: Place, faulty: FaultyS3, fault: str, says: str) -> None:
    faulty.fault, faulty.of, faulty.times = fault, "large", 2
    assert (fetched(place, faulty, "s3://bucket/big/") / "large").read_bytes() == BODY
    place.cache.prune(0)
    faulty.times = -1
    with pytest.raises(TrainshedError, match=f"s3://bucket/big/large: .*({says}).*, 3 times in a row"):
        fetched(place, faulty, "s3://bucket/big/")


def test_uploads_in_parts_are_compared_by_their_parts(place: Place, s3: dict[str, str], faulty: FaultyS3) -> None:
    there = client(s3)
    upload = there.create_multipart_upload(Bucket=BUCKET, Key="parts/x")["UploadId"]
    bodies = [BODY[: 5 << 20], BODY[5 << 20 : 11 << 20], b"end"]
    made = []
    for number, body in enumerate(bodies, 1):
        words = {"Bucket": BUCKET, "Key": "parts/x", "UploadId": upload, "PartNumber": number}
        made.append({"PartNumber": number, "ETag": there.upload_part(**words, Body=body)["ETag"]})
    there.complete_multipart_upload(Bucket=BUCKET, Key="parts/x", UploadId=upload, MultipartUpload={"Parts": made})
    (item,) = Bucket("s3://bucket/parts/", faulty.environment).objects("S3Prefix")
    assert item.etag.endswith("-3") and item.size == (11 << 20) + 3
    folder = Path(place.cache.folder) / key_of(item)
    folder.mkdir(parents=True)
    (folder / "part").write_bytes(bytes(6 << 20))  # damaged
    assert Objects(faulty.environment).parts(item) == [5 << 20, 6 << 20, 3]
    assert (fetched(place, faulty, "s3://bucket/parts/") / "x").read_bytes() == b"".join(bodies)
