"""The page tells nothing without the token, to other sites' pages, under other names, and nothing beyond the runs."""

from __future__ import annotations

import itertools
import json
import os
import resource
import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from support.runner_project import Project

from .conftest import Site, end, served

pytestmark = pytest.mark.safety


@pytest.fixture
def run(project: Project, site: Site, mine: dict[str, str]) -> Path:
    """A run that is over."""
    project.write(
        {"train.sh": "echo metric loss=0.5 step=1\necho metric loss=0.25 step=2\n", "secret.txt": "not of the run"}
    )
    done = project.trainshed("run", "train.sh", "--hp", "api_key=hunter2-secret", **mine)
    assert done.status == 0, done.output
    return project.run


@pytest.mark.spine
def test_without_the_token_nothing_is_told(site: Site, run: Path) -> None:
    path = site.path(run.name)
    right = f"Bearer {site.token}"
    for wrong in ({}, {"Authorization": "Bearer " + "0" * 48}, {"Authorization": f"Basic {site.token}"}, {"Cookie": right}):
        for where in ("/api/runs", path, f"{path}/log?log=algo-1", f"{path}/files", f"/api/runs?token={site.token}"):
            status, _, content = site.send("GET", where, wrong)
            assert status == 401 and run.name.encode() not in content, (where, wrong)
        json_ = {"Content-Type": "application/json", **wrong}
        assert site.send("POST", f"{path}/stop", json_, b"{}")[0] == 401
    assert site.send("GET", "/api/runs", {"Authorization": right})[0] == 200
    for public in ("/", "/static/app.js"):
        status, headers, content = site.send("GET", public, {})
        assert status == 200 and run.name.encode() not in content
        assert "script-src 'self'" in headers["Content-Security-Policy"] and headers["X-Frame-Options"] == "DENY"
        assert headers["X-Content-Type-Options"] == "nosniff" and "unsafe" not in headers["Content-Security-Policy"]


NAMES = ("evil.example", "127.0.0.1.evil.example", "127.0.0.2:{port}", "", "localhost.:{port}", "[::1", "a@127.0.0.1")


def test_another_name_is_refused_even_with_the_token(site: Site) -> None:
    headers = {"Authorization": f"Bearer {site.token}"}
    for name in NAMES:
        for path in ("/", "/api/runs", "/static/app.js"):
            status = site.send("GET", path, {**headers, "Host": name.format(port=site.port)})[0]
            assert status in (400, 421), name
    for good in ("127.0.0.1", "localhost", "[::1]"):
        assert site.send("GET", "/api/runs", {**headers, "Host": f"{good}:{site.port}"})[0] == 200


def test_a_page_of_another_site_may_not_ask_nor_act(site: Site, run: Path) -> None:
    path, right = site.path(run.name), {"Authorization": f"Bearer {site.token}"}
    origins = ("https://evil.example", "http://127.0.0.1:1", "null", f"https://127.0.0.1.evil.example:{site.port}")
    for origin in origins:
        assert site.send("GET", "/api/runs", {**right, "Origin": origin})[0] == 403
        assert (
            site.send("POST", f"{path}/again", {**right, "Origin": origin, "Content-Type": "application/json"}, b"{}")[0]
            == 403
        )
    assert site.send("GET", "/api/runs", {**right, "Sec-Fetch-Site": "cross-site"})[0] == 403
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        assert site.send("POST", f"{path}/again", {**right, "Content-Type": kind}, b"{}")[0] == 415
    assert site.send("GET", f"{path}/again", right)[0] == 405
    huge = {**right, "Content-Type": "application/json", "Content-Length": str(1 << 30)}
    assert site.send("POST", f"{path}/charts", huge)[0] == 413
    assert len(site.ask("/api/runs")["rows"]) == 1, "nothing was started"


def test_it_listens_on_one_address_alone(site: Site) -> None:
    with socket.socket() as other:
        assert other.connect_ex(("127.0.0.2", site.port)) != 0


OUTSIDE = (
    "..", "../secret.txt", "a/../../x", "/etc/passwd", "logs//algo-1.log", ".", "logs/..", "x\0y", "~", "link",
    "link/passwd", "algo-1/model", "algo-1/model/x", "pipe", "algo-1/input/config/hyperparameters.json",
)  # fmt: skip


def test_no_path_leaves_the_run(site: Site, run: Path) -> None:
    (run / "link").symlink_to("/etc")
    os.mkfifo(run / "pipe")
    address = site.path(run.name)
    for path in OUTSIDE:
        told = site.ask(f"{address}/ticket", {"path": path}, 404)
        assert "no such file" in told["error"] or "not shown" in told["error"] or "is not a file" in told["error"], path
        quoted = path.replace("/", "%2F").replace("\0", "%00")
        assert "error" in site.ask(f"{address}/files?path={quoted}", status=404), path
    for raw in ("/static/..%2f..%2fapp.py", "/static/../app.py", "/static/%2e%2e/app.py", "/..%2f..%2fetc/passwd"):
        status, _, content = site.send("GET", raw, {})
        assert status == 404 and b"import" not in content and b"root:" not in content


def test_a_ticket_is_good_once_and_a_file_is_saved_never_shown(site: Site, run: Path) -> None:
    (run / "algo-1/output/data/evil.html").write_text("<script>alert(1)</script>")
    address = site.path(run.name)
    names = [entry["name"] for entry in site.ask(f"{address}/files?path=algo-1/output/data")["entries"]]
    assert "evil.html" in names and "report.html" in names
    word = site.ask(f"{address}/ticket", {"path": "algo-1/output/data/evil.html"})["word"]
    status, headers, content = site.send("GET", f"/ticket/{word}/evil.html", {})

    assert (status, content) == (200, b"<script>alert(1)</script>")
    assert headers["Content-Disposition"] == "attachment" and headers["Content-Type"] == "application/octet-stream"
    assert headers["Content-Security-Policy"] == "sandbox"
    assert site.send("GET", f"/ticket/{word}/evil.html", {})[0] == 404
    assert site.send("GET", "/ticket/x/report.html", {})[0] == 404
    report = site.send("GET", f"/ticket/{site.ask(f'{address}/ticket', {})['word']}/report.html", {})
    assert report[0] == 200 and b"loss" in report[2] and b"hunter2" not in report[2]
    policy = report[1]["Content-Security-Policy"]
    assert (
        policy.startswith("sandbox allow-scripts; default-src 'none'; script-src 'sha256-")
        and "script-src 'unsafe" not in policy
    )


def test_a_request_of_any_other_form_is_refused_in_words(site: Site, run: Path) -> None:
    headers = {"Authorization": f"Bearer {site.token}", "Content-Type": "application/json"}
    paths = (f"{site.path(run.name)}/charts", f"{site.path(run.name)}/machine", "/api/overlay")
    bodies = (b"", b"[]", b"{", b'{"a":' * 5000, b"\xff")
    for path, body in itertools.product(paths, bodies):
        status, _, content = site.send("POST", path, headers, body)
        assert status == 400 and "object in JSON" in json.loads(content)["error"]


def test_odd_values_in_a_request_cost_the_request(site: Site, run: Path) -> None:
    address = site.path(run.name)
    odd: list[Any] = [None, [], {}, -1, 1e300, "x" * 5000, True, "\0"]
    for value in odd:
        asked = dict.fromkeys(("known", "axis", "parts", "title", "low", "high"), value)
        assert "charts" in site.ask(f"{address}/charts", asked)
        assert "charts" in site.ask(f"{address}/machine", asked)
    assert "error" in site.ask("/api/overlay", {"runs": []}, 400) and "error" in site.ask("/api/overlay", {"runs": "x"}, 400)
    assert site.ask("/api/overlay", {"runs": [None, {}, "../x"]})["charts"] == []
    for query in (
        "log?log=algo-1&place=x",
        "log?log=../../secret",
        "search?log=algo-1&text=a&place=1e9",
        "log?log=algo-1&place=" + "9" * 30,
    ):
        site.send("GET", f"{address}/{query}", {"Authorization": f"Bearer {site.token}"})
    assert site.send("GET", "/api/runs/..%2f..%2fetc", {"Authorization": f"Bearer {site.token}"})[0] == 404
    assert site.ask("/api/runs/0123", status=404)["error"].startswith("there is no such run")
    assert site.ask(f"{address}/log?log=algo-1&place=999999999")["lines"] == []


REQUEST = "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
# What is sent and then nothing more: no byte, half of a head, a whole request, half of a body.
BEGUN = [
    "", "GET / HT", REQUEST.format(path="/", port="{port}"), REQUEST.format(path="/static/app.js", port="{port}") + "\r\n",
    "POST /api/overlay HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{{",
]  # fmt: skip


def test_the_page_answers_its_owner_while_others_hold_1300_connections(project: Project, mine: dict[str, str]) -> None:
    """By the usual limit of open files, 1,024, the server could not even hold them."""
    usual, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < 3000:
        pytest.skip("needs 3,000 open files")
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, most))
        process = project.start("ui", **mine)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3000, most))
        site = served(process)
        with ExitStack() as held:
            for number in range(1300):
                one = held.enter_context(socket.create_connection(("127.0.0.1", site.port)))
                with suppress(OSError):
                    one.sendall(BEGUN[number % len(BEGUN)].format(port=site.port).encode())
                if number % 100 == 99:
                    assert site.ask("/api/runs")["rows"] == []
                    assert site.send("GET", "/", {})[0] == 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (usual, most))
        end(process)


def test_connections_that_ask_for_nothing_are_ended(site: Site) -> None:
    with ExitStack() as held:
        for begun in (*BEGUN, BEGUN[-1].replace("Content-Type", f"Authorization: Bearer {site.token}\r\nContent-Type")):
            one = held.enter_context(socket.create_connection(("127.0.0.1", site.port), timeout=120))
            one.sendall(begun.format(port=site.port).encode())
            with suppress(ConnectionResetError):
                while one.recv(1 << 16):  # the limit above is reached by a hang alone
                    pass


def test_nobody_is_told_of_a_client_that_left_in_the_middle(project: Project, mine: dict[str, str]) -> None:
    process = project.start("ui", **mine)
    site = served(process)
    half = BEGUN[-1].replace("Content-Type", f"Authorization: Bearer {site.token}\r\nContent-Type").format(port=site.port)
    for begun in (half, half.replace("/overlay", "/runs/0123/charts"), half.replace("/overlay", "/runs/0123/stop")):
        with socket.create_connection(("127.0.0.1", site.port)) as one:
            one.sendall(begun.encode())
        assert site.ask("/api/runs")["rows"] == []
    process.terminate()
    said = process.communicate(timeout=60)
    assert "Traceback" not in "".join(said) and "Exception" not in "".join(said)
