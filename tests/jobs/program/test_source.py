"""Bringing the user's code to this host."""

from __future__ import annotations

import importlib.util
import io
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import types
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from trainshed.base import archive
from trainshed.base.errors import ProgramError
from trainshed.container.program.source import fetch_source, has_entries
from trainshed.machine.signals import Interrupted

SCRIPT = "print('ran')\n"


def make_archive(path: Path, **files: str) -> str:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in (files or {"train": SCRIPT}).items():
            member = tarfile.TarInfo(f"{name}.py")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return str(path)


@pytest.fixture(autouse=True)
def temporary_folder(job_tree: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(job_tree.tmp))


def fetched(tree: Any, source: str = "", said: Any = None, **environ: str) -> str:
    """The code folder of a job with this `sagemaker_submit_directory`."""
    tree.configure(hyperparameters={"sagemaker_submit_directory": source} if source else {})
    return fetch_source(tree.read(**environ), environ, said or (lambda line: None))


def error_of(tree: Any, source: str, **environ: str) -> str:
    with pytest.raises(ProgramError) as raised:
        fetched(tree, source, **environ)
    assert "\n" not in raised.value.message
    return f"{raised.value.message} ({raised.value.hint})"


def names(folder: str | Path) -> list[str]:
    """Its entries, but for the note of where they came from."""
    return sorted(name for name in os.listdir(folder) if name != ".trainshed-source")


# --- where the code is -----------------------------------------------------------------------------------------------


def test_code_that_is_there_is_used_as_it_is(job_tree: Any) -> None:
    job_tree.code("train.py")

    assert fetched(job_tree, "/nowhere.tar.gz") == f"{job_tree.base}/code"


def test_code_that_hides_the_source_which_the_job_names_is_told(job_tree: Any, tmp_path: Path) -> None:
    job_tree.code("train.py", "print('baked')")
    job_tree.configure(hyperparameters={"sagemaker_submit_directory": f"s3://user:hunter2@bucket/{'x' * 500}"})
    done = job_tree.train()
    assert (done.status, done.stdout) == (0, "baked\n")
    assert f"{job_tree.base}/code is not empty and runs as it is: the job's source s3://" in done.stderr
    assert "hunter2" not in done.stderr and "x" * 300 not in done.stderr

    for same in (f"{job_tree.base}/code", f"file://{job_tree.base}/code/"):
        job_tree.configure(hyperparameters={"sagemaker_submit_directory": same})
        assert "not empty" not in job_tree.train().stderr


def test_a_folder_is_used_where_it_lies(job_tree: Any, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()

    assert fetched(job_tree, f"{tmp_path}/src/") == f"{tmp_path}/src"
    assert fetched(job_tree, f"file://{tmp_path}/src") == f"{tmp_path}/src"
    assert not (job_tree.base / "code").exists()


@pytest.mark.spine
@pytest.mark.parametrize("prefix", ["", "file://"])
def test_an_archive_is_unpacked_into_the_code_folder_and_nothing_else_is_left(
    prefix: str, job_tree: Any, tmp_path: Path
) -> None:
    folder = fetched(job_tree, prefix + make_archive(tmp_path / "source.tar.gz"))

    assert folder == f"{job_tree.base}/code" and names(folder) == ["train.py"]
    assert job_tree.train().stdout == "ran\n"


@pytest.mark.parametrize("name", ["train.py", "run.sh"])
def test_a_script_as_the_source_means_its_folder(name: str, job_tree: Any, tmp_path: Path) -> None:
    (tmp_path / name).touch()

    assert fetched(job_tree, str(tmp_path / name)) == str(tmp_path)


def test_the_variable_names_a_source_as_well(job_tree: Any, tmp_path: Path) -> None:
    assert fetched(job_tree, SAGEMAKER_SUBMIT_DIRECTORY=str(tmp_path)) == str(tmp_path)
    assert fetched(job_tree, SM_SOURCE_DIR=str(tmp_path)) == str(tmp_path)


def test_the_code_channel_is_used_where_it_lies(job_tree: Any) -> None:
    job_tree.write("input/data/code/train.py", SCRIPT)
    job_tree.configure(channels={"code": {}})

    assert fetched(job_tree) == f"{job_tree.base}/input/data/code"
    assert job_tree.train().stdout == "ran\n"


def test_an_archive_as_the_code_channel_is_unpacked(job_tree: Any) -> None:
    job_tree.write("input/data/code/.hidden", "")
    make_archive(job_tree.base / "input/data/code/sourcedir.tar.gz")
    job_tree.configure(channels={"code": {}})

    assert fetched(job_tree) == f"{job_tree.base}/code" and names(f"{job_tree.base}/code") == ["train.py"]


def test_an_archive_among_other_files_of_the_code_channel_is_a_file_like_them(job_tree: Any) -> None:
    job_tree.write("input/data/code/train.py", SCRIPT)
    make_archive(job_tree.base / "input/data/code/data.tar.gz")
    job_tree.configure(channels={"code": {}})

    assert fetched(job_tree) == f"{job_tree.base}/input/data/code"


def test_without_any_code_there_is_no_folder(job_tree: Any) -> None:
    assert fetched(job_tree) == ""
    (job_tree.base / "code").mkdir()
    assert fetched(job_tree) == f"{job_tree.base}/code"
    assert fetched(job_tree, f"{job_tree.base}/code/") == f"{job_tree.base}/code"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("/no/such/place", "the source directory /no/such/place does not exist"),
        ("https://host/a.tar.gz", "https:// is not supported (use a folder"),
        ("git+ssh://host/a", "git+ssh:// is not supported"),
        ("s3://", "s3:// is not a valid S3 URI (it must look like s3://bucket/key.tar.gz"),
        ("s3://bucket", "s3://bucket is not a valid S3 URI"),
        ("s3://bucket/", "s3://bucket/ is not a valid S3 URI"),
    ],
)
def test_a_source_that_cannot_be_used_is_told_with_what_can(source: str, message: str, job_tree: Any) -> None:
    assert message in error_of(job_tree, source)


@pytest.mark.safety
def test_a_login_in_the_sources_address_is_not_shown(job_tree: Any) -> None:
    job_tree.configure(hyperparameters={"sagemaker_submit_directory": "https://user:hunter2@host/a.tar.gz"})

    done = job_tree.train()

    assert done.status == 1 and "https:// is not supported" in job_tree.failure
    assert "hunter2" not in done.output + job_tree.failure


@pytest.mark.parametrize("kind", ["fifo", "socket"])
def test_a_source_that_is_no_file_is_not_waited_for(kind: str, job_tree: Any, tmp_path: Path) -> None:
    if kind == "fifo":
        os.mkfifo(tmp_path / "source")
    else:
        import socket

        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(tmp_path / "source"))

    assert "is neither a folder nor a file" in error_of(job_tree, str(tmp_path / "source"))


def test_a_damaged_archive_leaves_no_code(job_tree: Any, tmp_path: Path) -> None:
    path = Path(make_archive(tmp_path / "a.tar.gz", a="x" * 1000))
    path.write_bytes(path.read_bytes()[:60])

    assert "cannot be unpacked" in error_of(job_tree, str(path))
    assert names(job_tree.base / "code") == []


def test_a_code_folder_that_cannot_be_written_is_replaced_by_a_temporary_one(job_tree: Any, tmp_path: Path) -> None:
    job_tree.configure(hyperparameters={"sagemaker_submit_directory": make_archive(tmp_path / "a.tar.gz")})
    (job_tree.base / "code").mkdir()
    (job_tree.base / "code").chmod(0o555)

    done = job_tree.train(powerless=True)

    assert (done.status, done.stdout) == (0, "ran\n")
    assert names(job_tree.base / "code") == []


def test_a_full_disk_is_told_with_the_remedy(job_tree: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive, "unpack", full)

    message = error_of(job_tree, make_archive(tmp_path / "a.tar.gz"))
    assert "could not be unpacked to" in message and "No space left on device" in message and "free some space" in message


# --- cut off ---------------------------------------------------------------------------------------------------------

MANY = {f"file{number}": "x = 1\n" for number in range(8)} | {"train": SCRIPT}
WHOLE = sorted(f"{name}.py" for name in MANY)


def test_the_rest_of_an_unpacking_that_was_cut_off_is_no_code(job_tree: Any, tmp_path: Path) -> None:
    job_tree.write("code/.unpacking-abc/train.py", "print('half')")

    assert not has_entries(f"{job_tree.base}/code")
    folder = fetched(job_tree, make_archive(tmp_path / "a.tar.gz"))
    assert [name for name in names(folder) if not name.startswith(".")] == ["train.py"]
    assert job_tree.train().stdout == "ran\n"


# Kills the process at the n-th call of one of the functions that change something on the way.
KILLED = """
import os, signal, sys
from trainshed.container.program import source
from trainshed.base import archive
from trainshed.contract.reading import read_job

def killing(function, countdown=[int(sys.argv[2])]):
    def call(*arguments, **options):
        countdown[0] -= 1
        if countdown[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    return call

if sys.argv[1] == "rename":
    os.rename = killing(os.rename)
else:
    archive.tarfile.TarFile.makefile = killing(archive.tarfile.TarFile.makefile)
source.fetch_source(read_job(os.environ), os.environ, print)
"""


@pytest.mark.parametrize(("step", "call"), [("makefile", 1), ("makefile", 5), *(("rename", n) for n in (1, 2, 5, 10))])
def test_whenever_unpacking_is_killed_the_next_run_has_the_whole_code(
    step: str, call: int, job_tree: Any, tmp_path: Path
) -> None:
    job_tree.configure(hyperparameters={"sagemaker_submit_directory": make_archive(tmp_path / "a.tar.gz", **MANY)})

    killed = subprocess.run([sys.executable, "-c", KILLED, step, str(call)], env=job_tree.environ())
    assert killed.returncode == -signal.SIGKILL
    assert [name for name in names(job_tree.base / "code") if not name.startswith(".")] != WHOLE or call == 10

    done = job_tree.train()
    assert (done.status, done.stdout) == (0, "ran\n")
    visible = [name for name in names(job_tree.base / "code") if not name.startswith(".unpacking-")]
    assert visible == WHOLE


def test_a_stop_signal_while_unpacking_leaves_no_code(
    job_tree: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise Interrupted(signal.SIGTERM, "before the script was started")

    monkeypatch.setattr(archive, "unpack", stop)
    with pytest.raises(Interrupted):
        fetched(job_tree, make_archive(tmp_path / "a.tar.gz"))

    assert names(job_tree.base / "code") == []


def test_hosts_that_share_a_code_folder_unpack_it_once_and_all_have_it_whole(job_tree: Any, tmp_path: Path) -> None:
    job_tree.configure(hyperparameters={"sagemaker_submit_directory": make_archive(tmp_path / "a.tar.gz", **MANY)})
    program = (
        "import os\n"
        "from trainshed.container.program.source import fetch_source\n"
        "from trainshed.contract.reading import read_job\n"
        "folder = fetch_source(read_job(os.environ), os.environ, print)\n"
        # Another host may be finding out just now whether it can write there.
        "print(*sorted(name for name in os.listdir(folder) if not name.startswith('.')))\n"
    )
    hosts = [
        subprocess.Popen([sys.executable, "-c", program], env=job_tree.environ(), stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    answers = [host.communicate(timeout=300)[0].split() for host in hosts]

    assert [host.returncode for host in hosts] == [0] * 4
    assert answers == [WHOLE] * 4


def test_a_host_that_comes_while_another_unpacks_waits_for_the_whole_code(job_tree: Any, tmp_path: Path) -> None:
    source = make_archive(tmp_path / "a.tar.gz", **MANY)
    said: list[str] = []
    late: list[str] = []
    comes = threading.Thread(target=lambda: late.extend(names(fetched(job_tree, source, said.append))))
    rename, moved = os.rename, 0

    def slow_rename(old: str, new: str) -> None:
        nonlocal moved
        rename(old, new)
        moved += 1
        if moved == 3:  # the folder and two of its entries: half the code is in place
            comes.start()
            comes.join(timeout=1)  # time enough for a host that does not wait

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rename", slow_rename)
        assert names(fetched(job_tree, source)) == WHOLE
    comes.join()
    assert late == WHOLE and said == []


def test_code_that_an_earlier_run_unpacked_from_the_same_source_is_known(job_tree: Any, tmp_path: Path) -> None:
    said: list[str] = []
    first, other = make_archive(tmp_path / "a.tar.gz"), make_archive(tmp_path / "b.tar.gz")
    fetched(job_tree, first, said.append)
    fetched(job_tree, first, said.append)
    assert said == []

    fetched(job_tree, other, said.append)
    assert [line.partition(":")[0] for line in said] == [f"{job_tree.base}/code is not empty and runs as it is"]


def test_a_source_of_bytes_that_are_no_text_is_compared_like_any_other(job_tree: Any) -> None:
    said: list[str] = []
    job_tree.code("train.py")
    fetched(job_tree, said=said.append, SAGEMAKER_SUBMIT_DIRECTORY="/elsewhere/\udcff.tar.gz")
    assert len(said) == 1


@pytest.mark.safety
def test_an_archive_cannot_have_the_note_of_its_origin_written_elsewhere(job_tree: Any, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        for name, text in (("kept.txt", b"kept"), ("train.py", SCRIPT.encode())):
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
        link = tarfile.TarInfo(".trainshed-source")
        link.type, link.linkname = tarfile.SYMTYPE, "kept.txt"
        tar.addfile(link)

    folder = fetched(job_tree, str(tmp_path / "a.tar.gz"))
    assert Path(folder, "kept.txt").read_text() == "kept"


def test_what_cannot_be_moved_into_place_is_told(job_tree: Any) -> None:
    job_tree.write("code/.unpacked-x/pkg/a.py", "")
    job_tree.write("code/pkg/b.py", "")

    assert "could not be moved from" in error_of(job_tree, "/nowhere")


# --- S3 --------------------------------------------------------------------------------------------------------------


class FakeS3(types.ModuleType):
    """A module that answers like boto3 as far as it is used; `objects` is what the bucket holds."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        super().__init__("boto3")
        self.objects, self.asked = objects, {}

    def client(self, service: str, **options: Any) -> FakeS3:
        assert service == "s3"
        self.asked = options
        return self

    def download_file(self, bucket: str, key: str, path: str) -> None:
        if key not in self.objects:
            raise RuntimeError(f"An error occurred (404) when calling HeadObject: {bucket}/{key} https://u:hunter2@h/")
        Path(path).write_bytes(self.objects[key])

    def get_paginator(self, operation: str) -> FakeS3:
        assert operation == "list_objects_v2"
        return self

    def paginate(self, Bucket: str, Prefix: str) -> list[dict[str, Any]]:
        keys = [key for key in self.objects if key.startswith(Prefix)]
        return [{"Contents": [{"Key": key}]} for key in keys] or [{}]


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> FakeS3:
    module = FakeS3({})
    monkeypatch.setitem(sys.modules, "boto3", module)
    return module


def test_an_archive_in_s3_is_downloaded_and_unpacked(s3: FakeS3, job_tree: Any, tmp_path: Path, said: Any) -> None:
    # The archive holds a member of its own name, too.
    make_archive(tmp_path / "inner.tar.gz")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "inner.tar.gz", arcname="source.tar.gz")
        member = tarfile.TarInfo("train.py")
        tar.addfile(member)
    s3.objects["job/source.tar.gz"] = (tmp_path / "a.tar.gz").read_bytes()

    folder = fetched(
        job_tree, "s3://bucket/job/source.tar.gz", said, S3_ENDPOINT_URL="http://localhost:9", AWS_DEFAULT_REGION="r"
    )

    assert names(folder) == ["source.tar.gz", "train.py"]
    assert (Path(folder) / "source.tar.gz").read_bytes() == (tmp_path / "inner.tar.gz").read_bytes()
    assert s3.asked == {"endpoint_url": "http://localhost:9", "region_name": "r"}
    assert said.lines == ["downloading s3://bucket/job/source.tar.gz"]


def test_a_script_in_s3_is_downloaded_as_it_is(s3: FakeS3, job_tree: Any) -> None:
    s3.objects["job/train.py"] = SCRIPT.encode()

    assert names(fetched(job_tree, "s3://bucket/job/train.py")) == ["train.py"]
    assert s3.asked == {"endpoint_url": None, "region_name": None}, "boto3 finds them itself"
    assert job_tree.train().stdout == "ran\n"


def test_a_prefix_in_s3_is_downloaded_as_a_tree(s3: FakeS3, job_tree: Any) -> None:
    s3.objects |= {"job/src/train.py": b"", "job/src/pkg/a.py": b"", "job/src/pkg/": b"", "job/other.py": b""}

    folder = fetched(job_tree, "s3://bucket/job/src/")

    assert names(folder) == ["pkg", "train.py"] and names(f"{folder}/pkg") == ["a.py"]


def test_a_prefix_with_nothing_below_it_is_told(s3: FakeS3, job_tree: Any) -> None:
    assert "s3://bucket/no/: no objects under this prefix" in error_of(job_tree, "s3://bucket/no/")


@pytest.mark.safety
@pytest.mark.parametrize("key", ["job/../../evil.py", "job//../../evil.py"])
def test_an_object_that_would_land_outside_is_refused(key: str, s3: FakeS3, job_tree: Any) -> None:
    s3.objects[key] = b""

    assert "would be written outside the code folder" in error_of(job_tree, "s3://bucket/job/")
    assert not list(job_tree.base.rglob("evil.py"))


def test_what_s3_says_is_passed_on_without_logins(s3: FakeS3, job_tree: Any) -> None:
    message = error_of(job_tree, "s3://bucket/no.tar.gz")

    assert "s3://bucket/no.tar.gz cannot be fetched: An error occurred (404)" in message and "hunter2" not in message
    assert "check the URI, the credentials" in message
    assert names(job_tree.base / "code") == []


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[str]:
    """A server that answers one object over S3's protocol, as far as a download needs."""
    data = Path(make_archive(tmp_path / "remote.tar.gz")).read_bytes()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self, body: bool = True) -> None:
            found = self.path.split("?")[0] == "/bucket/job/source.tar.gz"
            self.send_response(200 if found else 404)
            self.send_header("Content-Length", str(len(data) if found else 0))
            self.send_header("ETag", '"0"')
            self.send_header("Last-Modified", "Sat, 21 Nov 2026 00:00:00 GMT")
            self.end_headers()
            if found and body:
                self.wfile.write(data)

        def do_HEAD(self) -> None:
            self.do_GET(body=False)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.spine
def test_s3_for_real_where_boto3_is_installed_else_the_way_to_get_it(bucket: str, job_tree: Any) -> None:
    job_tree.configure(hyperparameters={"sagemaker_submit_directory": "s3://bucket/job/source.tar.gz"})

    done = job_tree.train(
        AWS_ENDPOINT_URL_S3=bucket,
        AWS_ACCESS_KEY_ID="test",
        AWS_SECRET_ACCESS_KEY="test",
        AWS_DEFAULT_REGION="us-east-1",
        AWS_EC2_METADATA_DISABLED="true",
    )

    if importlib.util.find_spec("boto3"):
        assert (done.status, done.stdout) == (0, "ran\n")
        assert "downloading s3://bucket/job/source.tar.gz" in done.stderr
    else:
        assert done.status == 1 and "boto3 is not installed" in job_tree.failure
        assert "pip install 'trainshed[s3]' in the image" in job_tree.failure
