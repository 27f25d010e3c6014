"""Channels at other addresses than S3: servers of HTTP with and without ranges, and rclone's remotes."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.extras import needs
from support.runner_project import Project
from trainshed.base.errors import TrainshedError
from trainshed.runner.files.fetching import from_web, ranges
from trainshed.runner.files.fetching.from_web import Web
from trainshed.runner.files.fetching.items import Passing
from trainshed.runner.files.fetching.rclone import program
from unit.runner.files.fetching.storages import Place, small_ranges
from unit.runner.job.test_channels import SHOW, shown

BODY = bytes(range(256)) * 5


class Site:
    """A server's files by path. ranged: whether it gives ranges. faults: status by path, "cut" for half of a body."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.faults: dict[str, list[int]] = {}
        self.ranged = self.sized = True
        self.asked: list[tuple[str, str, str]] = []  # path, Range, Authorization
        self.moved: dict[str, str] = {}
        handler = type("Handler", (_Handler,), {"site": self})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


class _Handler(http.server.BaseHTTPRequestHandler):
    site: Site

    def do_GET(self) -> None:
        site, path = self.site, self.path.partition("?")[0]
        asked = self.headers.get("Range", "")
        site.asked.append((path, asked, self.headers.get("Authorization", "")))
        if path in site.moved:
            self._answer(302, b"", Location=site.moved[path])
            return
        if path not in site.files:
            self._answer(404, b"")
            return
        if site.faults.get(path) and asked != "bytes=0-0":
            self._answer(site.faults[path].pop(), b"")
            return
        body = site.files[path]
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'  # looks like an MD5, and is none
        if not site.ranged or not asked or self.headers.get("If-Range", tag) != tag:
            self._answer(200, body, ETag=tag)
            return
        start, end = (int(text) for text in asked.removeprefix("bytes=").split("-"))
        if start >= len(body):
            self._answer(416, b"", **{"Content-Range": f"bytes */{len(body)}"}, ETag=tag)
            return
        part = body[start : end + 1]
        self._answer(206, part, **{"Content-Range": f"bytes {start}-{start + len(part) - 1}/{len(body)}"}, ETag=tag)

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.site.sized:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    made = Site()
    made.files = {"/data/a": BODY, "/data/b%20c": b"bc", "/data/empty": b""}
    thread = threading.Thread(target=made.server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    small_ranges(monkeypatch, 100)
    monkeypatch.setattr(from_web, "SECONDS", 1)
    return Place(tmp_path)


@pytest.mark.spine
def test_a_file_is_a_channel_and_is_kept(project: Project, site: Site) -> None:
    project.write({"show.py": SHOW})
    site.files["/data/words.txt"] = b"words"
    for _ in range(2):
        done = project.trainshed("run", "show.py", "--channel", f"train={site.url}/data/words.txt")
        assert shown(done) == {"algo-1": {"words.txt": "words"}}
    assert [asked for _, asked, _ in site.asked] == ["bytes=0-0", "bytes=0-4", "bytes=0-0"]


def test_a_manifest_names_files(project: Project, site: Site) -> None:
    names = [{"prefix": f"{site.url}/data/"}, "b c", "empty", "b c"]
    site.files["/list.json"] = json.dumps(names).encode()
    channel = f"{{path: '{site.url}/list.json', s3_type: ManifestFile, input_mode: FastFile}}"
    project.write({"show.py": SHOW, "job.yaml": f"program: show.py\nchannels: {{train: {channel}}}\n"})
    done = project.trainshed("run", "job.yaml")
    assert shown(done) == {"algo-1": {"b c": "bc", "empty": ""}}
    assert "fetched first, not streamed: rclone cannot list it" in done.stderr


@pytest.mark.parametrize(("ranged", "sized"), [(True, True), (False, True), (False, False)])
def test_servers_with_and_without_ranges_give_the_same(place: Place, site: Site, ranged: bool, sized: bool) -> None:
    site.ranged, site.sized = ranged, sized
    site.faults = {"/data/a": [503]}
    web = Web()
    assert (place.bring(web, web.items(f"{site.url}/data/a", manifest=False)) / "a").read_bytes() == BODY  # type: ignore[arg-type]


def test_a_file_that_changes_meanwhile_comes_as_it_is_then(place: Place, site: Site) -> None:
    web = Web()
    items = web.items(f"{site.url}/data/a", manifest=False)
    site.files["/data/a"] = BODY[::-1]
    assert (place.bring(web, items) / "a").read_bytes() == BODY[::-1]  # type: ignore[arg-type]


def test_what_is_not_there_is_one_line(project: Project, site: Site) -> None:
    project.write({"show.py": SHOW})
    done = project.command("run", "show.py", "--channel", f"train={site.url}/data/nothing")
    assert (done.status, f"trainshed: {site.url}/data/nothing: 404 Not Found" in done.stderr) == (1, True), done.output
    done = project.command("run", "show.py", "--channel", "train=htps://host/a", "--dry-run")
    assert (done.status, "did you mean 'https'?" in done.stderr) == (2, True), done.output
    done = project.command("run", "show.py", "--channel", "train=https://me:s3cret@host/a", "--dry-run")
    assert (done.status, "= https://host/a: holds a login" in done.stderr) == (2, True), done.output
    assert "s3cret" not in done.output


@pytest.mark.safety
def test_a_login_goes_to_its_host_alone(tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password pass\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    other = f"http://localhost:{site.server.server_address[1]}"
    site.moved = {"/moved": f"{other}/data/a"}
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    Web().items(f"{site.url}/moved", manifest=False)
    assert [(path, bool(login)) for path, _, login in site.asked] == [("/moved", True), ("/data/a", False)]


def test_a_server_that_is_not_there_is_tried_again_and_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(Passing, match="refused"):
        Web().items("http://127.0.0.1:9/x", manifest=False)
    monkeypatch.setattr(ranges, "PAUSES", (0.0,))


# --- the Hub ---------------------------------------------------------------------------------------------------------


def test_a_dataset_of_the_hub_is_fetched_at_one_commit(project: Project, site: Site) -> None:
    needs("huggingface_hub")
    commit = "0123456789012345678901234567890123456789"
    about = {"id": "me/words", "sha": commit, "siblings": []}
    site.files["/api/datasets/me/words/revision/v1"] = json.dumps(about).encode()
    tree = [
        {"type": "directory", "oid": "1", "path": "part", "size": 0},
        {"type": "file", "oid": "2", "path": "part/a.txt", "size": 1},
        {"type": "file", "oid": "3", "path": "part/b.txt", "size": 2, "lfs": {"oid": "4", "size": 2, "pointerSize": 1}},
        {"type": "file", "oid": "5", "path": "other.txt", "size": 3},
    ]
    site.files[f"/api/datasets/me/words/tree/{commit}"] = json.dumps(tree).encode()
    site.files[f"/datasets/me/words/resolve/{commit}/part/a.txt"] = b"a"
    site.moved[f"/datasets/me/words/resolve/{commit}/part/b.txt"] = f"{site.url.replace('127.0.0.1', 'localhost')}/blob"
    site.files["/blob"] = b"bb"
    project.write({"show.py": SHOW})
    hub = {
        "HF_ENDPOINT": site.url,
        "HF_TOKEN": "hf_secret",
        "HF_HUB_OFFLINE": "0",
        "NO_PROXY": "127.0.0.1,localhost",
        "HF_HOME": str(project.folder),
    }
    arguments = ("run", "show.py", "--channel", "train=hf://datasets/me/words@v1/part")
    done = project.trainshed(*arguments, **hub)
    assert shown(done) == {"algo-1": {"a.txt": "a", "b.txt": "bb"}}
    logins = {path: login for path, _, login in site.asked if path.startswith(("/datasets", "/blob"))}
    assert set(logins.values()) == {"Bearer hf_secret", ""} and logins["/blob"] == "", "the token is for the Hub alone"
    site.asked.clear()
    assert shown(project.trainshed(*arguments, **hub)) == {"algo-1": {"a.txt": "a", "b.txt": "bb"}}
    assert not [path for path, _, _ in site.asked if not path.startswith("/api")], "it was kept"
    done = project.command("run", "show.py", "--channel", "train=hf://datasets/me/nothing", **hub)
    assert (done.status, "hf://datasets/me/nothing: " in done.stderr, "Traceback" in done.stderr) == (1, True, False), (
        done.output
    )


# --- rclone's remotes ------------------------------------------------------------------------------------------------


@pytest.fixture
def remote(tmp_path: Path) -> dict[str, str]:
    """Variables that make a folder of this machine the remote `gs`."""
    if not program():
        pytest.skip("needs rclone")
    for name, text in {"part-1": "1", "part-2": "2", "deep/x": "x"}.items():
        path = tmp_path / "storage/bucket/data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {"RCLONE_CONFIG_GS_TYPE": "alias", "RCLONE_CONFIG_GS_REMOTE": f"{tmp_path}/storage"}


def test_a_remote_is_fetched_kept_and_streamed(project: Project, remote: dict[str, str]) -> None:
    project.write({"show.py": SHOW})
    done = project.trainshed("run", "show.py", "--channel", "train=gs://bucket/data/part", **remote)
    assert shown(done) == {"algo-1": {"part-1": "1", "part-2": "2"}}
    job = "program: show.py\nchannels: {train: {path: 'rclone://gs/bucket/data/', input_mode: FastFile}}\n"
    project.write({"job.yaml": job})
    done = project.trainshed("run", "job.yaml", **remote)
    assert shown(done) == {"algo-1": {"part-1": "1", "part-2": "2", "deep/x": "x"}}
    assert "gs://bucket/data/" in project.command("cache", "ls").stdout


def test_remotes_that_are_not_there_are_one_line(project: Project, remote: dict[str, str]) -> None:
    project.write({"show.py": SHOW})
    for address, says in (
        ("rclone://nobody/x/", "rclone://nobody/x/: rclone has no remote 'nobody'"),
        ("gs://bucket/nothing/", "gs://bucket/nothing/: "),
        ("gs://bucket/data/zzz", "gs://bucket/data/zzz: no file has this prefix"),
    ):
        done = project.command("run", "show.py", "--channel", f"train={address}", **remote)
        assert (done.status, says in done.stderr, "Traceback" in done.stderr) == (1, True, False), done.output


def test_without_rclone_that_is_said(project: Project) -> None:
    project.write({"show.py": SHOW})
    done = project.command("run", "show.py", "--channel", "train=gs://bucket/x", PATH="/nowhere")
    assert (done.status, "gs://bucket/x: rclone is not installed" in done.stderr) == (1, True), done.output


def test_an_error_names_the_address(place: Place, site: Site) -> None:
    site.faults = {"/data/a": [500] * 50}
    web = Web()
    with pytest.raises(TrainshedError, match="/data/a: 500 Internal Server Error, 4 times in a row"):
        place.bring(web, web.items(f"{site.url}/data/a", manifest=False))  # type: ignore[arg-type]
