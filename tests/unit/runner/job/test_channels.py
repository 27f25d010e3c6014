"""Channels that are more than a folder: globs, shards, Pipe mode. Those on S3 are in `test_s3`."""

from __future__ import annotations

import gzip
import json
import os
import random
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from support.runner_project import Project
from trainshed.runner.files import layout, pipes, staging
from trainshed.runner.files.run import Run
from trainshed.runner.job.job import ChannelSpec, Job

SHOW = """\
import json, os
folder = os.environ["SM_CHANNEL_TRAIN"]
print(json.dumps([os.environ["SM_CURRENT_HOST"], {
    os.path.relpath(f"{at}/{name}", folder): open(f"{at}/{name}").read()
    for at, _, names in os.walk(folder) for name in names
}]))
"""
READ_EPOCHS = """\
import os, time
def epoch(number):
    path = os.environ["SM_CHANNEL_TRAIN"] + f"_{number}"
    while not os.path.exists(path):
        time.sleep(0.01)
    return open(path, "rb")
for number in range(3):
    with epoch(number) as pipe:
        print(number, pipe.read(2 if number == 1 else -1), flush=True)
"""


@pytest.fixture
def files(project: Project) -> Project:
    """A project with seven small files."""
    names = [f"data/{number}.csv" for number in range(5)] + ["data/deep/5.csv", "data/notes.txt"]
    return project.write({"show.py": SHOW, "epochs.py": READ_EPOCHS, **{name: Path(name).stem for name in names}})


def shown(done: Any) -> dict[str, dict[str, str]]:
    """Host -> what it saw in the channel."""
    assert done.status == 0, done.output
    return dict(json.loads(line[line.index('["') :]) for line in done.stdout.splitlines() if '["algo-' in line)


def test_a_glob_is_a_channel_of_the_files_it_finds(files: Project) -> None:
    done = files.trainshed("run", "show.py", "--channel", "train=data/**/*.csv")
    assert shown(done) == {"algo-1": {**{f"{n}.csv": str(n) for n in range(5)}, "deep/5.csv": "5"}}
    assert os.path.islink(files.run / "staged/train/all/0.csv"), "nothing was copied"


def test_shards_are_disjoint_and_together_everything(files: Project) -> None:
    files.write(
        {"job.yaml": "program: show.py\ninstances: 2\nchannels: {train: {path: data, distribution: ShardedByS3Key}}\n"}
    )
    seen = shown(files.trainshed("run", "job.yaml"))
    assert set(seen["algo-1"]) | set(seen["algo-2"]) == {*(f"{n}.csv" for n in range(5)), "deep/5.csv", "notes.txt"}
    assert not set(seen["algo-1"]) & set(seen["algo-2"])
    assert abs(len(seen["algo-1"]) - len(seen["algo-2"])) <= 1
    config = json.loads((files.run / "algo-2/input/config/inputdataconfig.json").read_text())
    assert config["train"]["S3DistributionType"] == "ShardedByS3Key"


def test_containers_get_files_instead_of_links_that_lead_out_of_what_they_see(files: Project) -> None:
    channel = ChannelSpec("train", f"{files.folder}/data/*.csv", files=(f"{files.folder}/data/0.csv",))
    job = Job(name="x", image="i", channels=(channel,), output=f"{files.folder}/out")
    run = layout.claim(layout.plan(job, in_containers=True, now=0))
    staging.stage(run, {}, print)
    staged = Path(run.staged(run.hosts[0], channel))
    assert (staged / "0.csv").read_text() == "0"
    assert not (staged / "0.csv").is_symlink()


# --- Pipe mode -------------------------------------------------------------------------------------------------------


def test_each_epoch_comes_through_a_pipe_of_its_own(files: Project) -> None:
    files.write({"job.yaml": "program: epochs.py\nchannels: {train: {path: 'data/?.csv', input_mode: Pipe}}\n"})
    done = files.trainshed("run", "job.yaml")
    assert done.status == 0, done.output
    assert done.stdout.splitlines() == ["0 b'01234'", "1 b'01'", "2 b'01234'"]
    assert not list(files.run.glob("algo-1/input/data/*"))


def fed(tmp_path: Path, channel: ChannelSpec) -> tuple[Run, pipes.Feeders]:
    job = Job(name="x", channels=(channel,), output=str(tmp_path / "run"))
    run = layout.claim(layout.plan(job, in_containers=False, now=0))
    layout.place(run, interface="lo")
    return run, pipes.Feeders(run, pipes.survey(run, print), {})


def epoch(run: Run, number: int) -> bytes:
    with open(f"{run.hosts[0].folder}/input/data/train_{number}", "rb") as pipe:
        return pipe.read()


def test_the_next_pipe_is_there_before_the_last_one_goes(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a").write_bytes(random.Random(0).randbytes(3_000_000))
    run, feeders = fed(tmp_path, ChannelSpec("train", str(tmp_path / "data"), "Pipe"))
    try:
        for number in range(4):
            path = f"{run.hosts[0].folder}/input/data/train_{number}"
            with open(path, "rb") as pipe:
                first = pipe.read(1)
                assert os.path.exists(f"{run.hosts[0].folder}/input/data/train_{number + 1}")
                assert first + pipe.read() == (tmp_path / "data/a").read_bytes()
    finally:
        feeders.close()
    assert os.listdir(f"{run.hosts[0].folder}/input/data") == []
    assert feeders.problem == ""
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("pipe-algo")]


def test_files_are_shuffled_anew_in_each_epoch_and_alike_in_each_run(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for number in range(9):
        (tmp_path / f"data/{number}").write_text(str(number))
    channel = ChannelSpec("train", str(tmp_path / "data"), "Pipe", shuffle_seed=7)
    files = [str(tmp_path / f"data/{number}") for number in range(9)]
    epochs = [b"".join(pipes.content(files, channel, number, {})) for number in range(3)]
    assert len(set(epochs)) == 3
    assert {bytes(sorted(one)) for one in epochs} == {b"012345678"}
    assert epochs == [b"".join(pipes.content(files, channel, number, {})) for number in range(3)]


def test_records_are_framed_and_compressed_files_unpacked(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.gz").write_bytes(gzip.compress(b"hello"))
    (tmp_path / "data/b.gz").write_bytes(gzip.compress(b""))
    channel = ChannelSpec("train", str(tmp_path / "data"), "Pipe", compression="Gzip", record_wrapper="RecordIO")
    run, feeders = fed(tmp_path, channel)
    try:
        data = epoch(run, 0)
    finally:
        feeders.close()
    assert data == struct.pack("<II", 0xCED7230A, 5) + b"hello\0\0\0" + struct.pack("<II", 0xCED7230A, 0)


def test_a_long_record_comes_in_parts_that_say_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes, "LONGEST_PART", 4)
    flags = [struct.unpack("<II", frame[:8])[1] >> 29 for frame in pipes.frames(b"0123456789")]
    assert flags == [1, 2, 3]
    assert (
        b"".join(frame[8 : 8 + (struct.unpack("<II", frame[:8])[1] & 0x1FFFFFFF)] for frame in pipes.frames(b"0123456789"))
        == b"0123456789"
    )


def test_data_that_cannot_be_read_ends_the_job_with_the_reason(files: Project) -> None:
    files.write(
        {"job.yaml": "program: epochs.py\nchannels: {train: {path: data/notes.txt, input_mode: Pipe, compression: Gzip}}\n"}
    )
    done = files.trainshed("run", "job.yaml")
    assert done.status == 1, done.output
    assert "cannot feed the channel train: Not a gzipped file" in done.stderr
    found = json.loads((files.run / "status.json").read_text())
    assert "cannot feed" in found["FailureReason"]


# --- bad ground ------------------------------------------------------------------------------------------------------

READ_ONE = "import os\nprint(sorted(open(os.environ['SM_CHANNEL_TRAIN'] + '_0').read()))\n"


def hostile(project: Project) -> None:
    """A channel's folder with circles, pipes, sockets, devices and links to nothing."""
    project.write({"data/a.csv": "a", "data/in/b.csv": "b", "one.py": READ_ONE, "show.py": SHOW})
    data = project.folder / "data"
    (data / "x").symlink_to(".")
    (data / "y").symlink_to(".")
    (data / "in/up").symlink_to("..")
    (data / "zero").symlink_to("/dev/zero")
    (data / "nothing").symlink_to("nowhere")
    os.mkfifo(data / "pipe")


@pytest.mark.safety
def test_a_pipe_channel_over_circles_and_pipes_is_fed_and_ends(project: Project) -> None:
    hostile(project)
    project.write({"job.yaml": "program: one.py\nchannels: {train: {path: data, input_mode: Pipe}}\n"})
    done = project.trainshed("run", "job.yaml")
    assert (done.status, done.stdout) == (0, "['a', 'b']\n"), done.output
    assert "the channel train: nothing, pipe, zero: left out, not files" in done.stderr


def test_a_glob_and_shards_over_circles_end(project: Project) -> None:
    hostile(project)
    done = project.trainshed("run", "show.py", "--channel", "train=data/**/*.csv")
    assert shown(done) == {"algo-1": {"a.csv": "a", "in/b.csv": "b"}}
    shards = "program: show.py\nchannels: {train: {path: data, distribution: ShardedByS3Key}}\n"
    project.write({"job.yaml": shards})
    assert shown(project.trainshed("run", "job.yaml")) == {"algo-1": {"a.csv": "a", "in/b.csv": "b"}}


@pytest.mark.parametrize("path", ["pipe", "/dev/zero", "/dev/null"])
def test_a_channel_that_is_not_a_file_or_folder_is_refused(project: Project, path: str) -> None:
    project.write({"show.py": SHOW})
    os.mkfifo(project.folder / "pipe")
    done = project.trainshed("run", "show.py", "--channel", f"train={path}")
    assert (done.status, "is a pipe, a socket or a device" in done.stderr) == (2, True), done.output


def test_a_file_that_grows_is_fed_as_far_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of a job below its own channel, for example: each line that is fed makes it longer."""
    (tmp_path / "log").write_text("12345678")
    monkeypatch.setattr(pipes, "BLOCK", 4)
    blocks = []
    for block in pipes.content([str(tmp_path / "log")], ChannelSpec("train", "", "Pipe"), 0, {}):
        blocks.append(block)
        with open(tmp_path / "log", "a") as file:
            file.write("more")
    assert b"".join(blocks) == b"12345678"


def ends(run: Any, feeders: Any) -> bool:
    """Whether a reader of the first epoch sees its end when the feeders have failed: it would take it for a short one."""
    pipe = os.open(f"{run.hosts[0].folder}/input/data/train_0", os.O_RDONLY | os.O_NONBLOCK)
    try:
        while not feeders.trouble():
            time.sleep(0.01)
        return os.read(pipe, 1) == b""
    except BlockingIOError:  # open still, and nothing in it
        return False
    finally:
        os.close(pipe)


@pytest.mark.parametrize("becomes", ["gone", "pipe", "folder"])
def test_data_that_is_not_there_any_more_is_named_and_ends_the_job(tmp_path: Path, becomes: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a").write_text("1")
    run, feeders = fed(tmp_path, ChannelSpec("train", str(tmp_path / "data"), "Pipe"))
    try:
        (tmp_path / "data/a").unlink()
        {"gone": lambda _: None, "pipe": os.mkfifo, "folder": os.mkdir}[becomes](tmp_path / "data/a")
        assert not ends(run, feeders)
    finally:
        feeders.close()
    assert feeders.trouble().startswith(f"cannot feed the channel train: {tmp_path}/data/a: "), feeders.trouble()


def test_a_record_that_does_not_fit_into_memory_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: bytes) -> None:
        raise MemoryError

    monkeypatch.setattr(pipes, "frames", full)
    (tmp_path / "data").write_text("1")
    run, feeders = fed(tmp_path, ChannelSpec("train", str(tmp_path / "data"), "Pipe", record_wrapper="RecordIO"))
    try:
        assert not ends(run, feeders)
    finally:
        feeders.close()
    assert feeders.trouble() == "cannot feed the channel train: a file does not fit into memory, as one record must"


@pytest.mark.parametrize("path", ["data/*.csv", "s3://bucket/x/", "data/a.csv"])
def test_only_a_folder_of_this_machine_can_be_written_to(project: Project, path: str) -> None:
    project.write({"show.py": SHOW, "data/a.csv": "a"})
    project.write({"job.yaml": f"program: show.py\nchannels: {{train: {{path: '{path}', access: rw}}}}\n"})
    done = project.trainshed("run", "job.yaml", "--dry-run")
    assert (done.status, "rw is for a folder of this machine" in done.stderr) == (2, True), done.output


def test_processes_write_to_a_channels_own_folder_and_ro_is_said_not_to_hold(project: Project) -> None:
    project.write({"write.py": "import os\nopen(os.environ['SM_CHANNEL_TRAIN'] + '/new', 'w')", "data/a.csv": "a"})
    for access in ("rw", "ro"):
        project.write({"job.yaml": f"program: write.py\nchannels: {{train: {{path: data, access: {access}}}}}\n"})
        done = project.trainshed("run", "job.yaml")
        assert done.status == 0, done.output
        assert (project.folder / "data/new").exists()
        assert ("access: ro: only containers are kept from writing" in done.stderr) == (access == "ro")


@pytest.mark.parametrize("channel", ["{train: ''}", "{train: {path: ''}}"])
def test_a_channel_with_an_empty_path_is_refused(project: Project, channel: str) -> None:
    project.write({"show.py": SHOW, "job.yaml": f"program: show.py\nchannels: {channel}\n"})
    done = project.trainshed("run", "job.yaml", "--dry-run")
    assert (done.status, "has no path" in done.stderr) == (2, True), done.output
