"""Takes part in a run for the job's rules: starts the process that calls them, and does what they ask for."""

from __future__ import annotations

import json
import os
import select

from trainshed.machine.isolation import isolated
from trainshed.machine.signals import signal
from trainshed.machine.streams import read_block

from .supervisor.watcher import Watcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from trainshed.contract.wire.rules import WantedRule

    from .notices import Notices
    from .supervisor.watcher import Supervised

LAST_SECONDS = 10.0  # for what is left at the end of a run


class RulesWatch(Watcher):
    """The rules in one run.

    Args:
        folders: the job's: `output`, `profiler`, `code`.
        notices: hands the ranks the wish that they save.
        say: prints a message for the user.
    """

    def __init__(
        self,
        rules: Sequence[WantedRule],
        folders: Mapping[str, str],
        host: str,
        notices: Notices,
        say: Callable[[str], None],
    ) -> None:
        wanted = [rule.plain() for rule in rules]
        self._asked = json.dumps({"rules": wanted, **folders, "host": host}).encode() + b"\n"
        self._notices = notices
        self._say = say
        self._process: subprocess.Popen[bytes] | None = None
        self._started = False
        self._over = False
        self._said = b""  # by the process, without the lines that have been dealt with

    def descriptors(self) -> dict[int, int]:
        if self._process is None or self._over:
            return {}
        assert self._process.stdout is not None
        return {self._process.stdout.fileno(): select.POLLIN}

    def turn(self, run: Supervised) -> None:
        if not self._started:
            self._started = True
            self._start()
        if self._process is not None and not self._over and self._listen(acts=True):
            self._over = True
            self._say("warning: the rules no longer watch: their process is gone")

    def own_processes(self) -> tuple[int, ...]:
        return (self._process.pid,) if self._process is not None else ()

    def run_over(self) -> None:
        """Waits until the rules have seen all, for a while."""
        if self._process is None:
            return
        import subprocess

        process, self._process = self._process, None
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        try:
            process.wait(LAST_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            self._say("warning: the rules have not seen the end of the training: they were not done in time")
        while block := read_block(process.stdout.fileno()):
            self._take(block, acts=False)
        process.stdout.close()

    def _start(self) -> None:
        import subprocess

        try:
            process = subprocess.Popen(
                isolated("trainshed.studio.rules.watching"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # whoever interrupts `train` at a terminal does not mean this
                cwd="/",
            )
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(self._asked)
            process.stdin.flush()
        except OSError as error:
            self._say(f"warning: the rules do not watch: {error.strerror}")
            return
        os.set_blocking(process.stdout.fileno(), False)
        self._process = process

    def _listen(self, *, acts: bool) -> bool:
        """Deals with what the process has found; whether it has ended."""
        assert self._process is not None and self._process.stdout is not None
        while block := read_block(self._process.stdout.fileno()):
            self._take(block, acts=acts)
        return block is not None

    def _take(self, block: bytes, *, acts: bool) -> None:
        *lines, self._said = (self._said + block).split(b"\n")
        for line in lines:
            fields: dict[str, Any] = json.loads(line)
            if "problem" in fields:
                self._say(f"warning: {fields['problem']}")
            else:
                self._act(fields["rule"], fields["action"], fields["text"], acts)

    def _act(self, rule: str, action: str, text: str, acts: bool) -> None:
        if action == "note":
            return
        ends = {"checkpoint": "; the ranks are asked to save", "stop": "; the job is stopped"} if acts else {}
        self._say(f"warning: rule {rule}: {text}{ends.get(action, '')}")
        if acts and action == "checkpoint":
            self._notices.ask_to_save(f"rule {rule}: {text}")
        elif acts and action == "stop":
            os.kill(os.getpid(), signal.SIGTERM)  # as somebody would from outside: on all hosts, with the job's grace
