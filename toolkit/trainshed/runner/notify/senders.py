"""How a notice is sent: one function a kind, in the table `SENDERS`. Each is called in a process of its own.

Sources: Slack's incoming webhooks (`{"text": ...}`); Teams' workflow webhooks (an Adaptive Card 1.4 in a message's
attachments); RFC 5322 and smtplib for e-mail.
"""

from __future__ import annotations

import json
import os
import string
import subprocess
from urllib.request import Request, build_opener

from trainshed.base.errors import one_line
from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SECONDS = 10.0  # for one try
COMMAND_SECONDS = 60.0
PREFIX = "NOTICE_"  # of the variables that a command gets
_SMTPS = 465  # the port of SMTP that begins with TLS


class NotificationChannel(Record):
    """One way, ready to be used. to: address or command. login: `user:password` of the mail server, "" for none.

    Other fields are those of `notify:` in a job file.
    """

    name: str
    kind: str
    to: str
    template: str = ""
    server: str = ""
    sender: str = ""
    login: str = ""


def webhook(way: NotificationChannel, notice: dict[str, str]) -> None:
    """The notice as a JSON object, or the way's template with the notice's fields in it, spelled for JSON."""
    if not way.template:
        _post(way.to, notice)
        return
    spelled = {name: json.dumps(text)[1:-1] for name, text in notice.items()}
    _send(way.to, string.Template(way.template).safe_substitute(spelled).encode())


def slack(way: NotificationChannel, notice: dict[str, str]) -> None:
    """One text; what would be markup is spelled out."""
    text = _text(way, notice)
    for sign, spelled in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(sign, spelled)
    _post(way.to, {"text": text})


def teams(way: NotificationChannel, notice: dict[str, str]) -> None:
    """An Adaptive Card."""
    lines = [{"type": "TextBlock", "text": line, "wrap": True} for line in _text(way, notice).splitlines()]
    lines[0]["weight"] = "Bolder"
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json", "type": "AdaptiveCard", "version": "1.4",
        "body": lines,
    }  # fmt: skip
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
    _post(way.to, {"type": "message", "attachments": [attachment]})


def email(way: NotificationChannel, notice: dict[str, str]) -> None:
    """A letter in plain text, over TLS where the server offers it; a login is given over TLS alone."""
    import smtplib
    import ssl
    from email.message import EmailMessage

    letter = EmailMessage()
    letter["Subject"] = one_line(notice["title"])
    letter["From"] = way.sender or f"trainshed@{os.uname().nodename}"
    letter["To"] = way.to
    letter.set_content(_text(way, notice))
    host, _, port = (way.server or "localhost").partition(":")
    kind = smtplib.SMTP_SSL if port == str(_SMTPS) else smtplib.SMTP
    with kind(host, int(port or 25), timeout=SECONDS) as server:
        server.ehlo()
        secure = kind is smtplib.SMTP_SSL or server.has_extn("starttls")
        if secure and kind is smtplib.SMTP:
            server.starttls(context=ssl.create_default_context())
        if way.login and not secure:
            raise OSError("the mail server offers no TLS: the login is not given")
        if way.login:
            user, _, password = way.login.partition(":")
            server.login(user, password)
        server.send_message(letter)


def command(way: NotificationChannel, notice: dict[str, str]) -> None:
    """A command of the shell: the notice's fields are variables, and one JSON object on its standard input."""
    variables = {f"{PREFIX}{name.upper()}": text.replace("\0", "") for name, text in notice.items()}
    done = subprocess.run(
        ["/bin/sh", "-c", way.to],
        input=json.dumps(notice).encode(),
        env={**os.environ, **variables},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    if done.returncode:
        raise OSError(f"the command exited with {done.returncode}")


SENDERS: dict[str, Callable[[NotificationChannel, dict[str, str]], None]] = {
    "webhook": webhook,
    "slack": slack,
    "teams": teams,
    "email": email,
    "command": command,
}


def _text(way: NotificationChannel, notice: dict[str, str]) -> str:
    return string.Template(way.template).safe_substitute(notice) if way.template else notice["text"]


def _post(address: str, value: Any) -> None:
    _send(address, json.dumps(value).encode())


def _send(address: str, body: bytes) -> None:
    """Posts JSON. Raises OSError."""
    if not address.startswith(("https://", "http://")):
        raise OSError("its address does not begin with https:// or http://")
    request = Request(address, body, {"Content-Type": "application/json", "User-Agent": "trainshed"})
    with build_opener().open(request, timeout=SECONDS) as answer:
        answer.read(1 << 16)
