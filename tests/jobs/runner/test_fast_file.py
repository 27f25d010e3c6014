"""Channels on S3 in FastFile mode: real mounts of an S3 of this machine's own, and what happens when they break."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from support.faulty_s3 import FaultyS3
from support.own_s3 import BUCKET, client, own_s3, put
from support.paths import TOOLKIT
from support.runner_project import LIMIT, Project, wait_until
from trainshed.machine.mountpoints import mount_points, obstacle
from trainshed.runner.files import mounts as mounts_module
from trainshed.runner.files.fetching.rclone import program, reach_s3
from trainshed.runner.files.fetching.s3 import Bucket
from trainshed.runner.files.layout import claim, place, plan
from trainshed.runner.files.mounts import Mounts, NotMounted, clear_stale, ours_below
from trainshed.runner.files.staging import stage
from trainshed.runner.job.job import ChannelSpec, Job

pytestmark = pytest.mark.skipif(
    not program() or bool(obstacle()), reason=f"needs rclone and FUSE: {obstacle() or 'no rclone'}"
)

SECRET = "not-to-be-seen-4711"
ODD = ("sp ace", "quote'\"", "star*", "br[a]{b}", "back\\slash", "％2F", "über", "😀", "+plus", "#hash", "trail ", "~")
# Shows the channel, tries to write, tells that it is there, and reads on when it is told to.
SCRIPT = """\
import os, sys, time
folder = os.environ["SM_CHANNEL_TRAIN"]
print({os.path.relpath(f"{at}/{n}", folder): os.path.getsize(f"{at}/{n}") for at, _, ns in os.walk(folder) for n in ns})
try:
    open(f"{folder}/new", "w")
except OSError as error:
    print(error.strerror)
open("there", "w").close()
while "--wait" in sys.argv and not os.path.exists("go-on"):
    time.sleep(0.02)
print(len(open(f"{folder}/large", "rb").read()))
"""
JOB = "program: read.py\nchannels: {train: {path: %s, input_mode: FastFile}}\n"


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    """Variables that lead to it, with objects in its bucket."""
    objects = {f"odd/{name}": b"odd" for name in ODD} | {f"fast/part-{n}": b"%d" % n for n in range(3)}
    objects |= {"fast/deep/x": b"x", "fast/large": bytes(5_000_000), "tail/a": b"", "tail/a\tb": b"", "fast2/y": b"y"}
    objects["manifest"] = json.dumps([{"prefix": f"s3://{BUCKET}/fast/"}, "part-1", "large"]).encode()
    with own_s3() as environment:
        put(environment, objects)
        yield {**environment, "AWS_SECRET_ACCESS_KEY": SECRET}


@pytest.fixture
def files(project: Project) -> Iterator[Project]:
    """A project with the script; what a failed test leaves mounted is taken away."""
    yield project.write({"read.py": SCRIPT, "job.yaml": JOB % "s3://bucket/fast/"})
    project.end()
    for one in mount_points():
        if one.point.startswith(f"{project.folder}/"):
            subprocess.run(["fusermount3", "-u", "-z", one.point])


def mounted(project: Project) -> list[str]:
    return [one.point for one in mount_points() if one.point.startswith(f"{project.folder}/")]


def rclones(project: Project) -> list[int]:
    """PIDs of rclone for the project."""
    lines = {one.pid: " ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])}
    assert not [line for line in lines.values() if SECRET in line and "rclone" in line]
    return [pid for pid, line in lines.items() if "rclone mount" in line and str(project.folder) in line]


def waiting(files: Project, s3: dict[str, str]) -> tuple[subprocess.Popen[str], Path]:
    """A job whose script has seen its channel, and waits; and the script's folder."""
    process = files.start("run", "job.yaml", "--argv", "flags", "--hp", "wait=", **s3)
    code = files.folder / "runs"
    wait_until(lambda: list(code.glob("*/algo-1/code/there")) or process.poll() is not None, "the script")
    (there,) = code.glob("*/algo-1/code/there")
    return process, there.parent


@pytest.mark.safety
@pytest.mark.spine
def test_a_channel_is_read_where_it_is_and_gone_with_its_run(files: Project, s3: dict[str, str]) -> None:
    done = files.trainshed("run", "job.yaml", **s3)
    assert done.status == 0, done.output
    shown, refused, read = done.stdout.splitlines()
    assert eval(shown) == {"part-0": 1, "part-1": 1, "part-2": 1, "deep/x": 1, "large": 5_000_000}
    assert (refused, read) == ("Read-only file system", "5000000")
    assert "fetched" not in done.stderr and not list(files.run.glob("staged/train/*"))
    assert not mounted(files) and not rclones(files)
    held = [path for path in files.folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert not held, "a file holds the secret"
    seen = json.loads((files.run / "status.json").read_text())["Trainshed"]["Data"]["train"]
    assert str(seen).count("etags:") == 1, f"nothing is read for a fingerprint: {seen}"


def ctrl_c(process: subprocess.Popen[str], files: Project) -> None:
    process.send_signal(signal.SIGINT)


def stop(process: subprocess.Popen[str], files: Project) -> None:
    assert files.trainshed("stop").status == 0


def kill(process: subprocess.Popen[str], files: Project) -> None:
    process.kill()


@pytest.mark.safety
@pytest.mark.parametrize("end", [ctrl_c, stop, kill])
def test_however_a_run_ends_its_mount_ends(
    files: Project, s3: dict[str, str], end: Callable[[subprocess.Popen[str], Project], None]
) -> None:
    process, _ = waiting(files, s3)
    assert len(mounted(files)) == 1 and len(rclones(files)) == 1
    end(process, files)
    process.wait(LIMIT)
    wait_until(lambda: not mounted(files) and not rclones(files), "the mount's end")
    if end is kill:
        assert files.trainshed("rm", files.run.name).status == 0
        assert not (files.folder / "runs").exists()


def test_a_mount_that_dies_fails_the_run_with_the_cause(files: Project, s3: dict[str, str]) -> None:
    process, code = waiting(files, s3)
    (pid,) = rclones(files)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not rclones(files), "rclone's end")  # on a busy machine it reads on for a moment
    (code / "go-on").touch()
    process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    reason = json.loads((files.run / "status.json").read_text())["FailureReason"]
    first = "the channel train is gone: rclone, which reads s3://bucket/fast/, was killed by signal 9"
    assert reason.startswith(first), reason
    assert not mounted(files)


def test_objects_that_change_meanwhile_are_named(files: Project, s3: dict[str, str]) -> None:
    put(s3, {"new/large": b"1" * 100, "new/same": b"1"})
    files.write({"job.yaml": JOB % "s3://bucket/new/"})
    process, code = waiting(files, s3)
    put(s3, {"new/large": b"2" * 100, "new/later": b"3"})
    (code / "go-on").touch()
    _, said = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, said
    assert "warning: the channel train: changed in the storage while the job ran: 'large'\n" in said, said


def test_an_epoch_that_is_cut_off_is_an_error_with_its_reason(files: Project, faulty: FaultyS3) -> None:
    faulty.fault, faulty.of = "cut", "large"
    done = files.trainshed("run", "job.yaml", **faulty.environment)
    assert done.status == 1, done.output
    reason = json.loads((files.run / "status.json").read_text())["FailureReason"]
    assert reason.startswith("the channel train could not be read: ") and "unexpected EOF" in reason, reason
    assert "Input/output error" in reason
    assert not mounted(files)


@pytest.mark.parametrize(
    ("channel", "why", "seen"),
    [
        ("{path: s3://bucket/manifest, s3_type: ManifestFile, input_mode: FastFile}",
         "a manifest's objects are of no one folder", {"part-1": 1, "large": 5_000_000}),
        ("{path: s3://bucket/fast/, distribution: ShardedByS3Key, input_mode: FastFile}",
         "each host gets a part of it", None),
        ("{path: s3://bucket/tail/, input_mode: FastFile}",
         "rclone would show 'a\\tb' under another name", {"a": 0, "a\tb": 0}),
    ],
)  # fmt: skip
def test_what_cannot_be_mounted_is_fetched_and_said(
    files: Project, s3: dict[str, str], channel: str, why: str, seen: dict[str, int] | None
) -> None:
    files.write({"job.yaml": f"program: read.py\nchannels: {{train: {channel}}}\n"})
    done = files.trainshed("run", "job.yaml", **s3)
    assert f"the channel train is fetched first, not streamed: {why}\n" in done.stderr, done.output
    if seen is not None:
        assert eval(done.stdout.splitlines()[0]) == seen
    assert not rclones(files)


def test_without_rclone_a_channel_is_fetched_and_said(files: Project, s3: dict[str, str]) -> None:
    done = files.trainshed("run", "job.yaml", PATH="/nowhere", **s3)
    why = "the channel train is fetched first, not streamed: rclone is not installed (Debian's packages rclone and fuse3)"
    assert why in done.stderr, done.output
    assert done.status == 0 and "'large': 5000000" in done.stdout


def test_an_empty_prefix_is_one_line(files: Project, s3: dict[str, str]) -> None:
    files.write({"job.yaml": JOB % "s3://bucket/nothing/"})
    done = files.command("run", "job.yaml", **s3)
    assert (done.status, "s3://bucket/nothing/: no object has this prefix" in done.stderr) == (1, True), done.output
    assert not (files.folder / "runs").exists() and not mounted(files)


# --- without a job ---------------------------------------------------------------------------------------------------


class Shown:
    """Channels mounted by this process."""

    def __init__(self, folder: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        self.folder, self.environment = folder, {**os.environ, **environment}
        self.job = Job(name="x", channels=(), output=str(folder / "run"))
        self.run = claim(plan(self.job, in_containers=False, now=0))
        place(self.run, interface="lo")
        self.mounts = Mounts(self.run, self.environment)

    def show(self, uri: str) -> Path:
        """The channel's folder."""
        channel = ChannelSpec(f"c{len(self.mounts.mounts)}", uri, "FastFile")
        bucket = Bucket(uri, self.environment)
        beginning = bucket.key.removeprefix(bucket.parent)
        items = bucket.objects("S3Prefix")
        self.mounts.show(channel, reach_s3(bucket, items), items, beginning)
        return Path(f"{self.run.folder}/staged/{channel.name}/all")


@pytest.fixture
def shown(tmp_path: Path, faulty: FaultyS3, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shown]:
    made = Shown(tmp_path, faulty.environment, monkeypatch)
    yield made
    faulty.over.set()
    made.mounts.close()
    assert not ours_below(made.run.folder)


def test_prefixes_mean_what_they_mean_when_they_are_fetched(shown: Shown) -> None:
    folder = shown.show("s3://bucket/fast/part")
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"part-0": "0", "part-1": "1", "part-2": "2"}
    folder = shown.show("s3://bucket/fast/part-1")
    assert [path.name for path in folder.iterdir()] == ["part-1"]
    folder = shown.show("s3://bucket/fast")  # names begin behind the prefix's last slash
    assert sorted(str(path.relative_to(folder)) for path in folder.glob("*/*")) == [
        *("fast/deep", "fast/large", "fast/part-0", "fast/part-1", "fast/part-2", "fast2/y")
    ]
    folder = shown.show("s3://bucket/odd/")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == dict.fromkeys(ODD, b"odd")


@pytest.mark.parametrize(("fault", "says"), [("503", "SlowDown"), ("stall", "timeout"), ("403", "AccessDenied")])
def test_what_s3_will_not_give_is_an_error_for_its_reader(
    shown: Shown, faulty: FaultyS3, fault: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts_module, "_OPTIONS", (*mounts_module._OPTIONS, "--timeout", "1s", "--low-level-retries", "1"))
    folder = shown.show("s3://bucket/fast/")
    faulty.fault, faulty.of = fault, "part-1"
    with pytest.raises(OSError) as caught:
        (folder / "part-1").read_bytes()
    assert caught.value.errno in (errno.EIO, errno.EACCES)
    wait_until(shown.mounts.errors, "the error")
    assert says in shown.mounts.errors() and "the channel c0 could not be read: " in shown.mounts.errors()
    assert shown.mounts.trouble() == ""
    assert (folder / "part-2").read_text() == "2", "the others are read"


def test_etags_of_kms_are_not_taken_for_checksums(shown: Shown, s3: dict[str, str]) -> None:
    client(s3).put_object(Bucket=BUCKET, Key="kms/a", Body=b"a", ServerSideEncryption="aws:kms")
    put(s3, {"kms-not/a": b"a"})
    for prefix, told in (("kms/", "aws:kms"), ("kms-not/", None)):
        bucket = Bucket(f"s3://bucket/{prefix}", shown.environment)
        variables = reach_s3(bucket, bucket.objects("S3Prefix")).variables
        assert variables.get("RCLONE_CONFIG_TRAINSHEDSTORE_SERVER_SIDE_ENCRYPTION") == told
    assert (shown.show("s3://bucket/kms/") / "a").read_bytes() == b"a"


def test_data_that_may_be_listed_and_not_read_is_not_mounted(shown: Shown, faulty: FaultyS3) -> None:
    faulty.fault = "403"
    with pytest.raises(NotMounted, match="AccessDenied"):
        shown.show("s3://bucket/fast/")
    assert not ours_below(shown.run.folder)


DIES = """\
import json, os, signal, sys
from trainshed.runner.files import mounts
from jobs.runner.test_fast_file import Shown
import pytest, pathlib
shown = Shown(pathlib.Path(sys.argv[1]), dict(os.environ), pytest.MonkeyPatch())
shown.show("s3://bucket/fast/")
os.kill(shown.mounts.mounts[0].guard.pid, signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.safety
def test_a_mount_whose_guard_is_killed_too_is_cleared_by_the_next_start(tmp_path: Path, s3: dict[str, str]) -> None:
    tests = str(TOOLKIT.parent / "tests")
    environment = {**os.environ, **s3, "PYTHONPATH": f"{TOOLKIT}:{tests}"}
    done = subprocess.run([sys.executable, "-c", DIES, str(tmp_path)], env=environment, timeout=LIMIT)
    assert done.returncode == -signal.SIGKILL
    assert len(ours_below(str(tmp_path / "run"))) == 1
    clear_stale()
    assert not ours_below(str(tmp_path / "run"))
    shutil.rmtree(tmp_path / "run")


def test_what_was_fetched_once_is_not_mounted_at_the_next_start(shown: Shown, tmp_path: Path) -> None:
    channel = ChannelSpec("train", "s3://bucket/fast/part", "FastFile")
    run = claim(plan(Job(name="x", channels=(channel,), output=str(tmp_path / "other")), in_containers=False, now=0))
    place(run, interface="lo")
    said: list[str] = []
    stage(run, shown.environment, said.append, mounts=shown.mounts, blind="it is dark")
    assert said[0] == "the channel train is fetched first, not streamed: it is dark"
    stage(run, shown.environment, said.append, mounts=shown.mounts)
    assert not shown.mounts.mounts
    assert sorted(os.listdir(run.data(run.hosts[0], channel))) == ["part-0", "part-1", "part-2"]
