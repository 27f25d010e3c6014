"""Sources of notices: the supervisor's notice file, or SIGTERM to this process if it runs without `train`."""

from __future__ import annotations

import os
import signal
import threading
import time

from trainshed.contract.wire.notice import Notice, NoticeWatch
from trainshed.contract.wire.variables import NOTICE_FILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType


_signalled = 0  # number of the signal that has come; global, as signal handlers are


def listen() -> bool:
    """From now on SIGTERM is only noted for the next `Interrupts.look`; a second one ends the script.

    A Checkpointer calls this itself. A script that calls it on its first line also survives a stop that comes while torch
    is being imported. The script's own handler is left alone (the notice file still works).

    Returns:
        Whether the handler is installed now.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    handler = signal.getsignal(signal.SIGTERM)
    if handler is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _note)
    return handler in (signal.SIG_DFL, _note)


def _note(number: int, frame: FrameType | None) -> None:
    global _signalled
    if _signalled:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    _signalled = number


def stop_has_come() -> bool:
    """Tells whether a SIGTERM has come since `listen`."""
    return bool(_signalled)


def stop_listening() -> None:
    """SIGTERM ends the process again, also one that has come since `listen`."""
    global _signalled
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) is not _note:
        return
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if _signalled:
        os.kill(os.getpid(), signal.SIGTERM)
    _signalled = 0


class Interrupts:
    """Notices of this rank; `look` is cheap enough for every step."""

    def __init__(self) -> None:
        self._watch = NoticeWatch(os.environ.get(NOTICE_FILE, ""))
        self._reported = False
        self._handles = listen()

    def look(self) -> Notice | None:
        """Returns a notice that has not been returned before, None if there is none."""
        notice = self._watch.look()
        if notice is not None:
            self._reported = self._reported or notice.stop
            return notice
        if _signalled and self._handles and not self._reported:
            self._reported = True
            return Notice(number=0, source="SIGTERM", reason="SIGTERM received", stop=True, received=time.time())
        return None

    def close(self) -> None:
        """Restores the default: SIGTERM ends the process again."""
        global _signalled
        if self._handles and signal.getsignal(signal.SIGTERM) == _note:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _signalled = 0
        self._handles = False
