"""Sends one notice: `python -m trainshed.runner.notify LOG`, with ways and notice as JSON on standard input.

A way's address and login are looked up here, among the runner's variables. What cannot be sent after three tries is a line
in LOG, without them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from trainshed.base.errors import one_line
from trainshed.base.files import open_unfollowed
from trainshed.base.helper_process import stand_back

from .senders import SENDERS, NotificationChannel

PAUSES = (2.0, 10.0)  # seconds before the second try, and the third


def way_of(given: dict[str, Any]) -> NotificationChannel:
    """A way with what the runner's variables hold. Raises KeyError: the variable is not set."""
    to = os.environ[given["to_env"]] if given["to_env"] else given["to"]
    login = os.environ[given["login_env"]] if given["login_env"] else ""
    return NotificationChannel(given["name"], given["kind"], to, given["template"], given["server"], given["sender"], login)


def send(given: dict[str, Any], notice: dict[str, str], pauses: tuple[float, ...] = PAUSES) -> str:
    """Sends a notice by one way; what went wrong, "" where nothing did."""
    try:
        way = way_of(given)
    except KeyError as error:
        return f"the variable {error.args[0]} is not set"
    problem = ""
    for pause in (0.0, *pauses):
        time.sleep(pause)
        try:
            SENDERS[way.kind](way, notice)
            return ""
        except Exception as error:  # whatever a server answers
            problem = f"{type(error).__name__}: {error}"
    for secret in (way.to, way.login, way.login.partition(":")[2]):
        problem = problem.replace(secret, "***") if secret else problem
    return one_line(problem)[:300]


def main() -> None:
    """See above."""
    stand_back()
    asked = json.loads(sys.stdin.buffer.read())
    for given in asked["ways"]:
        problem = send(given, asked["notice"])
        if problem and sys.argv[1]:
            what = f"the notice of {asked['notice']['event']!r} to {given['name']} ({given['kind']}) was not sent"
            line = f"trainshed: warning: {what}: {problem}\n".encode("utf-8", "replace")
            with os.fdopen(open_unfollowed(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as file:
                file.write(line)


if __name__ == "__main__":
    main()
