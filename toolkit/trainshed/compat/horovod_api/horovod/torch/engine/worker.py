"""This rank's side: submits operations, hears what is agreed on, and runs it.

Three threads: one sends what was submitted within a millisecond as one message, one receives, one runs. The receiving one is
never busy, so a rank that waits learns at once that another one is gone, even while a collective hangs.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ...common.exceptions import HorovodInternalError
from .agreement import Agreement, title
from .collectives import Collectives
from .coordinator import Coordinator
from .handle import Handle
from .place import Place
from .wire import Unpacker, keep_alive, packed

_START_SECONDS = 300.0
_CYCLE_SECONDS = 0.001
_BLOCKED_SECONDS = 1.0  # a wait that is longer is told to the coordinator, which looks for ranks that wait for each other
_DRAIN_SECONDS = 30.0
_FUSION_BYTES = 64 << 20
_COLLECTIVE_TIMEOUT = timedelta(minutes=30)


class Worker:
    """One rank's part in all operations, from `hvd.init` to `hvd.shutdown`.

    Args:
        place: which rank this is.
        environ: has MASTER_ADDR and MASTER_PORT where there are several ranks, and HOROVOD_* settings.
        generation: how often this process has started one before; the same on all ranks.

    Raises:
        ValueError: a HOROVOD_* variable is not a number.
        HorovodInternalError: not all ranks came.
    """

    def __init__(self, place: Place, environ: Mapping[str, str], generation: int) -> None:
        self.place = place
        store = dist.PrefixStore(f"horovod/{generation}", _store(place, environ))
        self._coordinator = _coordinate(place, store, environ) if place.rank == 0 else None
        self._failed = ""  # why nothing goes on
        self._pending: dict[tuple[int, str], Handle] = {}
        self._running: list[Handle] = []
        self._joining: Handle | None = None
        self._outbox: list[dict[str, Any]] = []
        self._lock = threading.Lock()  # of the above
        self._sending = threading.Lock()  # of the connection: messages go out whole and in order
        self._has_mail = threading.Event()
        self._agreed: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._closed = False
        try:
            self._connection = _connect(place, store, environ)
            self._unpacker = Unpacker()
            self._await_start()
            self._collectives = Collectives(store, place.rank, place.size, _COLLECTIVE_TIMEOUT)
        except (OSError, RuntimeError) as error:
            if isinstance(error, HorovodInternalError):
                raise
            raise HorovodInternalError(f"hvd.init: the ranks do not find each other: {error}") from error
        os.register_at_fork(after_in_child=self._forget)
        self._runner = self._thread(self._run_agreed, "run")
        self._thread(self._receive, "receive")
        self._thread(self._send_mail, "send")

    # --- what the API calls ---

    def submit(self, handle: Handle) -> Handle:
        """Announces an operation; it runs when all its ranks have announced it.

        Raises:
            ValueError: an operation of that name is going on.
            HorovodInternalError: a rank is gone, or the connection to rank 0.
        """
        with self._lock:
            if self._failed:
                raise HorovodInternalError(f"{title(handle.request)}: {self._failed}")
            if handle.key in self._pending:
                raise ValueError(
                    f"{title(handle.request)}: an operation of this name is going on; wait for it with hvd.synchronize(), "
                    "or give another name"
                )
            self._pending[handle.key] = handle
            self._outbox.append(handle.request)
        self._has_mail.set()
        return handle

    def wait(self, handle: Handle) -> Any:
        """The result of an operation.

        Raises:
            HorovodInternalError: it failed.
        """
        self._flush()
        if not handle.wait(_BLOCKED_SECONDS):
            self._tell({"blocked": handle.key})
            try:
                while not handle.wait(_DRAIN_SECONDS):
                    pass
            finally:
                self._tell({"blocked": None})
        return handle.result()

    def join(self, device: int = -1) -> int:
        """Takes part in the others' operations with zeros until all have joined; returns who joined last.

        Args:
            device: the GPU that has the zeros; -1 for the one of earlier operations.

        Raises:
            HorovodInternalError: a rank is gone, or ended without joining.
        """
        handle = Handle({"set": 0, "name": "join", "kind": "join"}, [], lambda outputs: None)
        with self._lock:
            if self._failed:
                raise HorovodInternalError(f"join: {self._failed}")
            self._joining = handle
        if device >= 0:
            self._collectives.cuda_device = device
        self._flush()
        self._tell({"join": True})
        while not handle.wait(_DRAIN_SECONDS):
            pass
        handle.result()
        return int(handle.extra)

    def close(self) -> None:
        """Leaves; what is agreed on is run first."""
        self.finish()
        self._fail("Horovod was shut down: call hvd.init() first")
        self._hang_up()

    def finish(self) -> None:
        """At the end of the process, whose end the others then take for no failure. Rank 0 stays while others need it."""
        self._flush()
        self._agreed.put(None)
        if not self._failed:  # else it may hang in a collective, for ever
            self._runner.join(_DRAIN_SECONDS)
        self._closed = True
        self._tell({"bye": True})
        self._has_mail.set()

    def wait_for_others(self) -> None:
        """Rank 0 stays for as long as others may need what it serves."""
        if self._coordinator is not None:
            self._coordinator.wait_for_others()

    # --- threads ---

    def _thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        def guarded() -> None:
            try:
                target()
            except Exception as error:  # a thread that ends without a word would have everybody wait
                self._fail(f"the thread {name!r} of rank {self.place.rank} ended with {type(error).__name__}: {error}")
                self._hang_up()

        thread = threading.Thread(target=guarded, name=f"horovod-{name}", daemon=True)
        thread.start()
        return thread

    def _send_mail(self) -> None:
        while not self._closed:
            self._has_mail.wait()
            time.sleep(_CYCLE_SECONDS)
            self._flush()

    def _receive(self) -> None:
        while True:
            try:
                received = self._connection.recv(1 << 16)
            except OSError:
                received = b""
            if not received:
                self._fail("rank 0 is gone: its process has ended, its host is lost, or it called hvd.shutdown()")
                return
            for message in self._unpacker.feed(received):
                if "fatal" in message:
                    self._fail(message["fatal"])
                else:
                    self._agreed.put(message)

    def _run_agreed(self) -> None:
        while (message := self._agreed.get()) is not None:
            if "batch" in message:
                self._run(message["batch"])
                if self._coordinator is not None:
                    self._coordinator.ran()
            elif "fail" in message:
                number, name, why = message["fail"]
                if handle := self._taken((number, name)):
                    handle.fail(why)
            elif handle := self._taken_join():
                if "joined" in message:
                    handle.extra = message["joined"]
                    handle.succeed([])
                else:
                    handle.fail(message["join_failed"])

    def _run(self, batch: list[dict[str, Any]]) -> None:
        handles = [self._taken((run["set"], run["name"])) for run in batch]
        with self._lock:
            self._running = [handle for handle in handles if handle is not None]
        try:
            self._collectives.run(batch, handles)
        except Exception as error:  # whatever the process group raises: this rank is out of step with the others
            here = next((handle for handle in handles if handle is not None), None)
            what = title(here.request) if here is not None else f"{batch[0]['kind']} of {batch[0]['name']!r}"
            why = f"{what} failed on rank {self.place.rank}: {str(error).splitlines()[0]}"
            self._fail(why)
            self._hang_up()
        finally:
            with self._lock:
                self._running = []

    # --- parts ---

    def _taken(self, key: tuple[int, str]) -> Handle | None:
        with self._lock:
            return self._pending.pop(key, None)

    def _taken_join(self) -> Handle | None:
        with self._lock:
            handle, self._joining = self._joining, None
            return handle

    def _flush(self) -> None:
        with self._sending:
            with self._lock:
                mail, self._outbox = self._outbox, []
                self._has_mail.clear()
            if mail:
                self._send({"announce": mail})

    def _tell(self, message: dict[str, Any]) -> None:
        with self._sending:
            self._send(message)

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._connection.sendall(packed(message))
        except OSError:
            pass  # the receiving thread hears of it, too, and says so

    def _fail(self, why: str) -> None:
        """Nothing goes on: all that wait are told."""
        with self._lock:
            self._failed = self._failed or why
            handles = [*self._running, *self._pending.values(), *([self._joining] if self._joining else [])]
            self._pending, self._running, self._joining = {}, [], None
        for handle in handles:
            name = title(handle.request)
            handle.fail(self._failed if self._failed.startswith(name) else f"{name}: {self._failed}")

    def _hang_up(self) -> None:
        """Has the others learn that this rank is out of step."""
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def _forget(self) -> None:
        """In a forked child, say a DataLoader's worker: its copies would hide that this process has ended."""
        self._connection.close()
        if self._coordinator is not None:
            self._coordinator.forget()

    def _await_start(self) -> None:
        """Waits until all ranks have come."""
        self._connection.settimeout(_START_SECONDS + 30)
        while True:
            received = self._connection.recv(1 << 16)
            if not received:
                raise HorovodInternalError("hvd.init: rank 0 is gone before all ranks have called hvd.init()")
            for message in self._unpacker.feed(received):
                if "fatal" in message:
                    raise HorovodInternalError(f"hvd.init: {message['fatal']}")
                self._connection.settimeout(None)
                return  # "start": nobody has announced anything yet, so nothing follows it


def _store(place: Place, environ: Mapping[str, str]) -> dist.Store:
    """Where the ranks find each other; torchrun's, by its variables."""
    if place.size == 1:
        return dist.HashStore()
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not environ.get(name):
            raise ValueError(f"{name} is not set: {place.size} ranks do not find each other")
    from torch.distributed.rendezvous import rendezvous

    timeout = timedelta(seconds=_START_SECONDS)
    store, _, _ = next(rendezvous("env://", place.rank, place.size, timeout=timeout))
    return store


def _on_one_host(place: Place) -> bool:
    return place.local_size == place.size


def _coordinate(place: Place, store: dist.Store, environ: Mapping[str, str]) -> Coordinator:
    if _on_one_host(place):
        listener = socket.create_server(("127.0.0.1", 0), backlog=place.size)
    elif socket.has_dualstack_ipv6():
        listener = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=place.size)
    else:
        listener = socket.create_server(("", 0), backlog=place.size)
    checks = environ.get("HOROVOD_STALL_CHECK_DISABLE", "0") in ("", "0")
    agreement = Agreement(
        place.size,
        fusion_bytes=int(_number(environ, "HOROVOD_FUSION_THRESHOLD", _FUSION_BYTES)),
        warn_seconds=_number(environ, "HOROVOD_STALL_CHECK_TIME_SECONDS", 60) if checks else 0,
        fail_seconds=_number(environ, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0) or _COLLECTIVE_TIMEOUT.total_seconds(),
    )
    token = secrets.token_hex(16)
    store.set("coordinator", json.dumps({"port": listener.getsockname()[1], "token": token}))
    return Coordinator(listener, token, place.size, agreement, _START_SECONDS)


def _connect(place: Place, store: dist.Store, environ: Mapping[str, str]) -> socket.socket:
    where = json.loads(store.get("coordinator"))
    host = "127.0.0.1" if _on_one_host(place) else environ["MASTER_ADDR"]
    connection = socket.create_connection((host, where["port"]), timeout=_START_SECONDS)
    keep_alive(connection)
    connection.sendall(packed({"rank": place.rank, "token": where["token"]}))
    return connection


def _number(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name, "")
    try:
        return float(text) if text else default
    except ValueError:
        raise ValueError(f"{name} must be a number, not {text!r}") from None
