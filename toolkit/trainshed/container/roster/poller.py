"""Which of many connections have something to read: one epoll, which is itself one descriptor for the supervisor's loop.

A turn costs what the connections that are ready cost, not what all of them do.
"""

from __future__ import annotations

import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .link import Link


class Poller:
    """Descriptors and what to call with the time when one of them is ready."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[float], None]] = {}
        self._events: dict[int, int] = {}

    def descriptor(self) -> dict[int, int]:
        """For the poll of the loop that this one is part of."""
        return {self._epoll.fileno(): select.POLLIN}

    def watch(self, fd: int, handler: Callable[[float], None]) -> None:
        """Calls the handler when there is something to read; another one takes the place of the first."""
        if fd not in self._handlers:
            self._epoll.register(fd, select.EPOLLIN)
            self._events[fd] = select.EPOLLIN
        self._handlers[fd] = handler

    def watch_link(self, link: Link, handler: Callable[[float], None]) -> None:
        """The same for a link, until it is closed."""
        self.watch(link.fd, handler)
        link.on_close = lambda: self.forget(link.fd)
        self.note_output(link)

    def note_output(self, link: Link) -> None:
        """Has a link's handler called, too, when it can go on with what it has to send."""
        wanted = select.EPOLLIN | (select.EPOLLOUT if link.waiting else 0)
        if link.fd in self._events and self._events[link.fd] != wanted:
            self._events[link.fd] = wanted
            self._epoll.modify(link.fd, wanted)

    def forget(self, fd: int) -> None:
        """Watches a descriptor no more; has to be called before it is closed."""
        if self._handlers.pop(fd, None) is not None:
            del self._events[fd]
            self._epoll.unregister(fd)

    def ready(self) -> Iterator[Callable[[float], None]]:
        """The handlers of the descriptors that are ready, each as it is at its turn."""
        for fd, _ in self._epoll.poll(0):
            handler = self._handlers.get(fd)
            if handler is not None:
                yield handler

    def close(self) -> None:
        """Watches nothing any more."""
        self._handlers.clear()
        self._events.clear()
        self._epoll.close()
