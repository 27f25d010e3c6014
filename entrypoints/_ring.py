"""The ranks of a job by XGBoost's own collective, started from torchrun's variables, without torch."""

from __future__ import annotations

import json
import os
import socket
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy
from _common import Problem

from trainshed.checkpoint.ranks import Ranks

Result = TypeVar("Result")
SILENCE = 1800  # seconds without a word from a rank whose host is gone; a process that dies is noticed at once
GOODBYE = 60  # seconds that rank 0 waits for the others' ends
TRIES = 15  # to reach rank 0, each some seconds after the one before


class Ring(Ranks):
    """The ranks as checkpoints and training need them: as `Ranks`, over XGBoost's collective if there are several.

    There is a rank for each process that torchrun's variables count; without them, one for each host of the job. They meet
    at MASTER_ADDR and MASTER_PORT; at the port after that where torchrun's agent keeps its store there.
    """

    def __init__(self) -> None:
        super().__init__()
        hosts = json.loads(os.environ.get("SM_HOSTS") or "[]")
        here = os.environ.get("SM_CURRENT_HOST", "")
        alone = (len(hosts), hosts.index(here)) if here in hosts else (1, 0)
        try:
            self.world_size, self.rank, self.local_rank, self.local_size = (
                int(os.environ.get(name) or default)
                for name, default in (
                    ("WORLD_SIZE", alone[0]),
                    ("RANK", alone[1]),
                    ("LOCAL_RANK", 0),
                    ("LOCAL_WORLD_SIZE", 1),
                )
            )
        except ValueError as error:
            raise Problem(f"WORLD_SIZE, RANK, LOCAL_RANK or LOCAL_WORLD_SIZE is not a number: {error}") from error
        self.peers = tuple(range(self.world_size))
        self._tracker: Any = None
        self._last: list[Callable[[], object]] = []
        if self.world_size > 1:
            self._listen()

    def _listen(self) -> None:
        """Rank 0 listens as early as can be: others that come first wait for seconds. Raises Problem."""
        from xgboost.core import XGBoostError
        from xgboost.tracker import RabitTracker

        for name in ("MASTER_ADDR", "MASTER_PORT"):
            if not os.environ.get(name):
                raise Problem(f"there are {self.world_size} ranks, but {name} is not set: start them with train or torchrun")
        self._where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        try:
            self._address = socket.gethostbyname(os.environ["MASTER_ADDR"])
            self._port = int(os.environ["MASTER_PORT"]) + (os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True")
        except (OSError, ValueError) as error:
            raise Problem(f"MASTER_ADDR or MASTER_PORT ({self._where}) leads nowhere: {error}") from error
        if self.rank == 0:
            try:
                self._tracker = RabitTracker(self.world_size, self._address, self._port, sortby="task")
                self._tracker.start()
            except XGBoostError as error:
                raise Problem(f"rank 0 cannot listen at {self._where}: {first_line(error)}") from error

    def address(self) -> str:
        """This host's address, as rank 0 sees it."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            way.connect((self._address, self._port))  # nothing is sent
            return str(way.getsockname()[0])

    def join(self) -> None:
        """Meets the other ranks, if there are any. Raises Problem."""
        if self.world_size == 1:
            return
        import xgboost.collective
        from xgboost.core import XGBoostError

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of each try before rank 0 listens
            try:
                xgboost.collective.init(
                    dmlc_communicator="rabit",
                    dmlc_tracker_uri=self._address,
                    dmlc_tracker_port=self._port,
                    dmlc_task_id=f"{self.rank:08d}",
                    dmlc_timeout=SILENCE,
                    dmlc_retry=TRIES,
                )
            except XGBoostError as error:
                raise Problem(f"rank {self.rank} cannot reach rank 0 at {self._where}: {first_line(error)}") from error
        self.token = self.gather(self.token)[0]

    def highest(self, values: Sequence[float]) -> list[float]:
        """The highest of each value over all ranks."""
        if self.world_size == 1:
            return list(values)
        import xgboost.collective as collective

        return collective.allreduce(numpy.array(values, numpy.float64), collective.Op.MAX).tolist()

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in order of ranks."""
        if self.world_size == 1:
            return [value]
        import xgboost.collective as collective

        broadcast: Callable[..., Any] = collective.broadcast
        return [broadcast((value,) if rank == self.rank else None, rank)[0] for rank in range(self.world_size)]

    def together(self, action: Callable[[], Result]) -> list[Result]:
        """Every rank's result of an action, in order; its Problem, on all ranks, if it fails on one."""
        result: Any = None
        text = ""
        try:
            result = action()
        except Problem as problem:
            text = str(problem)
        answers = self.gather((text, result))
        for rank, (text, _) in enumerate(answers):
            if text:
                raise Problem(text + f" (rank {rank})" * (self.world_size > 1))
        return [result for _, result in answers]

    def say(self, *words: object) -> None:
        """Prints a line on rank 0, at once."""
        if self.rank == 0:
            print(*words, flush=True)

    def afterwards(self, action: Callable[[], object]) -> None:
        """Has `leave` do something once the ranks are apart: with XGBoost, what one rank does alone is waited for by all."""
        self._last.append(action)

    def leave(self) -> None:
        """Ends the communication, all ranks together; then does what is to be done afterwards."""
        if self.world_size > 1:
            import xgboost.collective

            xgboost.collective.finalize()
            if self._tracker is not None:
                self._tracker.wait_for(timeout=GOODBYE)  # the others want to say that they leave, too
        for action in self._last:
            action()


def first_line(error: Exception) -> str:
    """What XGBoost says, without its place in C++ and its stack: the last of its reasons, which is the cause."""
    lines = []
    for line in str(error).partition("Stack trace")[0].splitlines():
        words = line.strip().removeprefix("- ")
        while words.startswith("["):
            words = words.partition("]")[2].lstrip(": ")
        place, colon, rest = words.partition(": ")
        words = rest if colon and (".cc:" in place or ".cpp:" in place or ".h:" in place or ".cu:" in place) else words
        if words and not words.endswith((".cc", ".h")) and not ("/src/" in words and " " not in words.strip()):
            lines.append(words.strip())
    return " ".join(dict.fromkeys(lines))[:400] or type(error).__name__
