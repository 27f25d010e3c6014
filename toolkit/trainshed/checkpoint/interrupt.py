"""What tells a rank to stop: the supervisor's notice file, or a SIGTERM of its own where nobody supervises."""

from __future__ import annotations

import os
import signal
import threading
import time

from trainshed.contract.notice import NOTICE_FILE, Notice, Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType


class Interrupts:
    """Notices of this rank; `look` is cheap enough for every step.

    A SIGTERM that nobody handles would end the script before it can save: from construction on it only leaves a note,
    which the next `look` finds; a second one ends it as ever. A handler of the user's own is left alone (the notice
    file still works).
    """

    def __init__(self) -> None:
        self._watch = Watch(os.environ.get(NOTICE_FILE, ""))
        self._signalled = 0
        self._reported = False
        main = threading.current_thread() is threading.main_thread()
        self._handles = main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        if self._handles:
            signal.signal(signal.SIGTERM, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._signalled:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._signalled = number

    def look(self) -> Notice | None:
        """A notice that has not been returned before."""
        notice = self._watch.look()
        if notice is not None:
            self._reported = self._reported or notice.stop
            return notice
        if self._signalled and not self._reported:
            self._reported = True
            return Notice(number=0, source="SIGTERM", reason="SIGTERM received", stop=True, received=time.time())
        return None

    def close(self) -> None:
        """SIGTERM ends the process again."""
        if self._handles and signal.getsignal(signal.SIGTERM) == self._note:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._handles = False
