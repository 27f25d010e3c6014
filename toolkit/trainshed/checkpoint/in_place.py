"""A training function that is called again in the ranks that live on when another one is lost.

`train` starts the lost rank anew (`container/replacements`) and tells the others (`contract/wire/in_place`). These leave the
function, by the error with which their collectives end, drop its process groups, and call it again: it builds everything
anew, and takes its state from copies in memory or a checkpoint.

Who owns what: the thread that calls the function does all of it. `Listening` has a second one, which waits for the word, and
then ends what the first one may be waiting for.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import os
import re
import socket
import sys
import threading
import time
import traceback

from trainshed.base.files import listed, read_bytes, remove
from trainshed.base.voice import tell
from trainshed.contract.wire.in_place import BEGUN, FAILED, fifo_of, life_of, read_word
from trainshed.contract.wire.variables import IN_PLACE, TRAIN_ID

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, ParamSpec, TypeVar

    from trainshed.contract.wire.in_place import Word

    P = ParamSpec("P")
    R = TypeVar("R")

__all__ = ["resumable"]

WORD_SECONDS = 10.0  # after an error that may come from a lost rank, until `train` has told of it
ENDING_SECONDS = 120.0  # the same while a rank that has failed is on its way out, and its connections are closed already
_LOOK = 0.1  # seconds between two looks for these
PERSUASION = 2.0  # seconds between two attempts to end what the function waits for
WRITERS = frozenset(("trainshed-checkpoint", "trainshed-copies"))  # threads that write what the function has saved
# What collectives, stores and savers say when another rank is gone.
_OF_A_PEER = re.compile(
    r"gloo|nccl|c10d|connection|socket|broken pipe|peer|recv|store|process group|abort|rank \d+|another rank", re.IGNORECASE
)
_NEEDS = "one host, several ranks of torchrun, trainshed_engine=trainshed (not torch's agent), and trainshed_max_restarts"


def resumable(function: Callable[P, R]) -> Callable[P, R]:
    """A decorator: when another rank is lost, the function is called again here, in the same process.

        @trainshed.resumable
        def train():
            torch.distributed.init_process_group()
            ...
            checkpointer = Checkpointer.for_job(model=model, memory={"every_steps": 1})
            step = checkpointer.restore()

        train()

    Everything that knows the other ranks, and all state of the training, has to be made inside of the function, and nothing
    may use the process group before or after it. Only the first call in a process counts. Where `train` cannot start a
    single rank again, all ranks are, as without the decorator.

    Args:
        function: what trains; it is called with the same arguments again.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        listening = _listen(_outside(function, (*args, *kwargs.values())))
        return function(*args, **kwargs) if listening is None else _live(listening, lambda: function(*args, **kwargs))

    return call


def _outside(function: Callable[..., Any], arguments: Iterable[Any]) -> str:
    """The kind of a model, optimizer or the like that the function is given, since it would keep its state; "" for none."""
    try:
        known = inspect.getclosurevars(function)
    except (TypeError, ValueError):  # no Python function, or one that uses what is not there yet
        held = list(arguments)
    else:
        held = [*arguments, *known.nonlocals.values(), *known.globals.values()]
    return next((type(one).__name__ for one in held if hasattr(type(one), "load_state_dict")), "")


def _listen(outside: str) -> Listening | None:
    """Tells `train` that this rank can live on; None where it cannot, which is said once."""
    rank = os.environ.get("RANK", "0")
    if not (folder := os.environ.get(IN_PLACE, "")):
        if os.environ.get(TRAIN_ID) and rank == "0":
            tell(f"resumable: a lost rank is not replaced in place here: that needs {_NEEDS}")
        return None
    try:
        import torch.distributed

        if torch.distributed.is_available() and torch.distributed.is_initialized():
            why = "the process group was made before the resumable function"
        elif outside:
            why = f"the resumable function is given a {outside}, which it has to make itself"
        else:
            return Listening(folder, rank)
    except FileExistsError:
        why = "only the first call of a resumable function counts"
    except (OSError, ImportError) as error:
        why = str(error)
    tell(f"resumable: rank {rank} does not live on when another one is lost: {why}")
    return None


def _live(listening: Listening, function: Callable[[], R]) -> R:
    """Calls the function until it has come to its end in a life in which no rank was lost."""
    import torch

    from .state import RandomState

    random, seed = RandomState(), torch.initial_seed()
    begun = random.capture({})
    while True:
        try:
            result = function()
        except Exception as error:
            if _may_come_from_a_peer(error):
                listening.wait()
            word = listening.end()
            if word is None:
                listening.fail()
                raise
            if not _may_come_from_a_peer(error):
                tell(f"resumable: a rank was lost, and the function ended by {type(error).__name__}: {error}")
            traceback.clear_frames(error.__traceback__)
        except BaseException:
            listening.fail()
            raise
        else:
            word = listening.end()
            if word is None:
                return result
            del result
        _forget(word)
        random.restore({}, begun)
        if torch.cuda.is_initialized() and "cuda" not in begun:  # by the function
            torch.cuda.manual_seed_all(seed)
        listening = Listening(os.environ[IN_PLACE], os.environ["RANK"])


def _forget(word: Word) -> None:
    """Drops what belongs to the life that is over; nothing of it may reach the next one."""
    from .interrupt import stop_listening
    from .ranks import Group

    os.environ.update(word.environ)  # from here on what the function has made is stale, see `Ranks.stale`
    for thread in threading.enumerate():
        if thread.name in WRITERS:
            thread.join()
    for one in gc.get_objects():  # which hold their groups until the process ends
        if type(one) is Group:
            one.close()
    dist = sys.modules["torch.distributed"]
    if dist.is_initialized():
        dist.destroy_process_group()
    # Names of groups count from here, and an initialization that was broken off has counted, too.
    dist.distributed_c10d._world.group_count = 0
    stop_listening()
    gc.collect()
    if hooks := sys.modules.get("trainshed.observe.stepping.hooks"):
        hooks.live_on()


def _may_come_from_a_peer(error: BaseException | None) -> bool:
    """Whether an error is one that collectives and savers raise when another rank is gone."""
    from .errors import CheckpointError

    seen = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, (RuntimeError, ConnectionError, CheckpointError)) and _OF_A_PEER.search(str(error)):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


class Listening:
    """That this rank can live on, until `end`. Raises OSError; FileExistsError where this rank has been here already."""

    def __init__(self, folder: str, rank: str) -> None:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self._folder, self._life = folder, life_of(os.environ)
        self._path = fifo_of(folder, rank, self._life)
        self._note(BEGUN)
        os.mkfifo(self._path, 0o600)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        self._word: Word | None = None
        self._told, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._listen, name="trainshed-in-place", daemon=True)
        self._thread.start()

    def _note(self, what: str) -> None:
        with open(f"{self._path}{what}", "x") as file:
            file.write(str(os.getpid()))

    def fail(self) -> None:
        """The same as `end` where this rank fails, for which the others wait."""
        self.end()
        with contextlib.suppress(OSError):  # `train` is gone, perhaps
            self._note(FAILED)

    def wait(self) -> None:
        """Waits for the word, while it may still come."""
        from .interrupt import stop_has_come

        now = time.monotonic()
        until, last = now + WORD_SECONDS, now + ENDING_SECONDS
        while not (self._told.wait(_LOOK) or stop_has_come()):
            if any(os.path.exists(f"/proc/{pid}") for pid in _noted(self._folder, self._life, FAILED)):
                until = min(time.monotonic() + WORD_SECONDS, last)
            if time.monotonic() >= until:
                return

    def end(self) -> Word | None:
        """This rank can live on no more; the word that came before. May be called again."""
        if not self._over.is_set():
            remove(self._path)  # nobody else opens it from now on
            self._over.set()
            os.write(self._fd, b"\n")  # after all that was written
            self._thread.join()
            os.close(self._fd)
        return self._word

    def _listen(self) -> None:
        read = b""
        while not read.endswith(b"\n"):
            read += os.read(self._fd, 1 << 16)
        self._word = read_word(read.partition(b"\n")[0])
        self._told.set()
        if self._word is None:
            return
        while True:
            _abort_groups()
            _hang_up(self._folder, self._life)
            if self._over.wait(PERSUASION):
                break


def _abort_groups() -> None:
    """Ends the collectives of backends that do not notice by themselves that a rank is gone, as NCCL."""
    dist = sys.modules.get("torch.distributed.distributed_c10d")
    for group in list(dist._world.pg_names) if dist else []:
        try:
            group.abort()
        except Exception:  # an older torch, or a backend that cannot
            pass


def _hang_up(folder: str, life: str) -> None:
    """Cuts the connections among the ranks of a life: gloo's, and those to the store at which they met.

    Who waits for the rank that is lost, or for one that has left, gets an error; and a group of that life, whoever still
    holds it, can never be used again.
    """
    import psutil

    ends = {_end(one.laddr) for pid in _noted(folder, life, BEGUN) for one in _connections(psutil, pid)}
    for one in _connections(psutil, os.getpid()):
        if one.raddr and _end(one.raddr) in ends:
            try:
                with socket.socket(fileno=os.dup(one.fd)) as mine:
                    mine.shutdown(socket.SHUT_RDWR)
            except OSError:  # it was closed meanwhile
                pass


def _noted(folder: str, life: str, what: str) -> list[int]:
    """The processes that have noted something in a life."""
    names = [name for name in listed(folder) if name.endswith(f".{life}{what}")]
    return [int(pid) for name in names if (pid := read_bytes(f"{folder}/{name}", 32))]


def _connections(psutil: Any, pid: int) -> list[Any]:
    try:
        process = psutil.Process(pid)
        every = process.net_connections if hasattr(process, "net_connections") else process.connections  # before psutil 6
        return list(every("tcp"))
    except psutil.Error:  # the one that is lost
        return []


def _end(address: Any) -> tuple[str, int]:
    return address.ip.removeprefix("::ffff:"), address.port
