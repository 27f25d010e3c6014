"""Notices in the form of each receiver, and what is said where one cannot be sent."""

from __future__ import annotations

import json
import smtplib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from trainshed.runner.job.fields import NOTICES
from trainshed.runner.notify.__main__ import send
from trainshed.runner.notify.senders import SENDERS

NOTICE = {
    "name": "run-1", "event": "failure", "state": "Failed", "title": "run-1: has failed", "reason": 'no "split" <b>',
    "text": 'run-1: has failed\nno "split" <b>',
}  # fmt: skip


class Receiver:
    """A web server that keeps what it is sent. answer: its status."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.answer = 200
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.got.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(receiver.answer)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_port}/services/T0KEN"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


def way(kind: str, to: str = "", **more: str) -> dict[str, Any]:
    empty = dict.fromkeys(("to_env", "template", "server", "sender", "login_env"), "")
    return {"name": "me", "kind": kind, "to": to, "on": [], **empty, **more}


def test_every_kind_has_a_sender() -> None:
    assert tuple(SENDERS) == NOTICES


def test_each_receiver_gets_its_form(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", receiver.address)
    ways = [
        way("webhook", receiver.address),
        way("webhook", receiver.address, template='{"content": "$title: $reason ($nothing)"}'),
        way("slack", to_env="HOOK"),
        way("teams", receiver.address),
    ]
    assert [send(one, NOTICE) for one in ways] == [""] * 4
    plain, templated, slack, teams = map(json.loads, receiver.got)

    assert plain == NOTICE
    assert templated == {"content": 'run-1: has failed: no "split" <b> ($nothing)'}
    assert slack == {"text": 'run-1: has failed\nno "split" &lt;b&gt;'}
    (card,) = teams["attachments"]
    assert [block["text"] for block in card["content"]["body"]] == NOTICE["text"].splitlines()


def test_a_letter_is_sent_and_a_login_over_tls_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    letters: list[Any] = []

    class Server:
        def __init__(self, host: str, port: int, timeout: float) -> None:
            letters.append((host, port))

        def __enter__(self) -> Server:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def ehlo(self) -> None:
            pass

        def has_extn(self, _: str) -> bool:
            return False

        def send_message(self, letter: Any) -> None:
            letters.append((letter["To"], letter["Subject"], letter.get_content()))

    monkeypatch.setattr(smtplib, "SMTP", Server)
    monkeypatch.setenv("LOGIN", "anna:tigerpass1")
    assert send(way("email", "a@example.com", server="mail.example.com:587"), NOTICE) == ""
    refused = send(way("email", "a@example.com", login_env="LOGIN"), NOTICE, ())

    assert letters[0] == ("mail.example.com", 587)
    assert letters[1] == ("a@example.com", "run-1: has failed", NOTICE["text"] + "\n")
    assert "offers no TLS" in refused and "tigerpass1" not in refused and len(letters) == 3


def test_a_command_gets_variables_and_json(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert send(way("command", f'cat > {out}; echo "$NOTICE_EVENT" >> {out}'), NOTICE) == ""
    assert out.read_text() == json.dumps(NOTICE) + "failure\n"
    assert send(way("command", "exit 3"), NOTICE, ()) == "OSError: the command exited with 3"


def test_what_cannot_be_sent_is_said_without_the_address(receiver: Receiver) -> None:
    receiver.answer = 403
    assert send(way("slack", receiver.address), NOTICE, (0.0,)) == "HTTPError: HTTP Error 403: Forbidden"
    assert len(receiver.got) == 2, "it is tried again"
    for to in ("hooks.example.com/T0KEN", "http://[T0KEN", "file:///etc/passwd"):
        problem = send(way("webhook", to), NOTICE, ())
        assert problem and "T0KEN" not in problem and "passwd" not in problem
    assert send(way("slack", to_env="NOT_THERE"), NOTICE, ()) == "the variable NOT_THERE is not set"
