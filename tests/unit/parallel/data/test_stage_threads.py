"""Messages through stages: each in order, and none that waits for ever after an error."""

from __future__ import annotations

import threading

from trainshed.parallel.data.stage_threads import StageThreads

LIMIT = 60.0  # seconds that only a hang takes


class Gathered:
    """What was called back, and a wait for so many."""

    def __init__(self, count: int) -> None:
        self.errors: list[str] = []
        self._left = count
        self._over = threading.Event()

    def __call__(self, error: BaseException | None) -> None:
        self.errors.append(str(error) if error else "")
        self._left -= 1
        if not self._left:
            self._over.set()

    def wait(self) -> list[str]:
        assert self._over.wait(LIMIT)
        return self.errors


def test_messages_keep_their_order_in_every_stage() -> None:
    passed: list[list[int]] = [[], []]
    threads = StageThreads[int]([passed[0].append, passed[1].append])
    gathered = Gathered(50)
    for number in range(50):
        threads.give(number, gathered)

    assert gathered.wait() == [""] * 50 and passed == [list(range(50))] * 2
    threads.close()


def test_two_messages_are_in_two_stages_at_once() -> None:
    both = threading.Barrier(2, timeout=LIMIT)
    seen: list[int] = []

    def first(message: int) -> None:
        if message == 1:
            both.wait()

    def second(message: int) -> None:
        if message == 0:
            both.wait()
        seen.append(message)

    threads = StageThreads[int]([first, second])
    gathered = Gathered(2)
    threads.give(0, gathered)
    threads.give(1, gathered)

    assert gathered.wait() == ["", ""] and seen == [0, 1]
    threads.close()


def test_after_an_error_all_later_messages_have_it() -> None:
    passed: list[int] = []

    def fails(message: int) -> None:
        if message == 1:
            raise OSError("connection lost")
        passed.append(message)

    threads = StageThreads[int]([fails, lambda _: None])
    for number, expected in ((0, ""), (1, "connection lost"), (2, "connection lost")):
        gathered = Gathered(1)
        threads.give(number, gathered)
        assert gathered.wait() == [expected]

    assert passed == [0]
    threads.close()


def test_threads_that_never_had_a_message_are_never_started() -> None:
    before = threading.active_count()
    threads = StageThreads[int]([lambda _: None])
    threads.close()

    assert threading.active_count() == before
