"""torch's elastic agent with its restarts recorded: `python -m trainshed.container.launchers.elastic AGENT-OPTIONS`.

Runs `torch.distributed.run` in this process and wraps the two abstract methods that every `SimpleElasticAgent` implements:
the one that starts ranks and the one that monitors them. So each restart is printed and recorded with its reason; a job
that keeps failing without a newer checkpoint ends (`progress`); and when a host is lost, which the hosts' `train` notice
within seconds, ranks that wait for it are started again without it.

Only the agent's process loads this module, so only that process of ours imports torch.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from trainshed.base.voice import Voice, tell
from trainshed.contract.wire.secret_names import environment_secrets
from trainshed.contract.wire.variables import AGENT_CHECKPOINTS, AGENT_EVENTS, AGENT_LOST, AGENT_PID
from trainshed.machine.scratch import memory_folder

from ..supervisor.progress import Progress, newest_checkpoint, newest_step, resumption

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main(arguments: list[str]) -> None:
    """Runs torchrun with an observer. Ends by the signal that it receives, and prints no traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # importing torch takes long; after that it has a handler of its own
    os.environ[AGENT_PID] = str(os.getpid())
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    _observe(Observer(os.environ))
    try:
        torchrun(arguments)
    except ChildFailedError as error:
        print(error, file=sys.stderr, flush=True)
        sys.exit(1)
    except SignalException as error:
        signal.signal(error.sigval, signal.SIG_DFL)
        os.kill(os.getpid(), error.sigval)


class Observer:
    """Watches one agent's starts and failures, and prints and records restarts."""

    def __init__(self, environ: os._Environ[str]) -> None:
        self.events = environ[AGENT_EVENTS]
        self.lost_file = environ[AGENT_LOST]
        self.checkpoints = (environ[AGENT_CHECKPOINTS], memory_folder(environ))
        self.host = environ.get("SM_CURRENT_HOST", "")
        self.say = Voice(_print, environment_secrets(environ)).say
        self.progress = Progress(newest_step(*self.checkpoints))
        self.starts = 0
        self.reason = ""
        self.lost = ""

    def started(self, world: int, hosts: int, restart: int) -> None:
        """Ranks have been started, for the first time or again."""
        self.starts += 1
        if self.starts == 1:
            return
        step, saved = max(map(newest_checkpoint, self.checkpoints))
        reason = self.reason or "hosts have joined or left"
        self.reason = ""
        self.say(f"restart {self.starts - 1} with {hosts} host(s) and {world} ranks, {resumption(step)}: {reason}")
        event = {"at": time.time(), "reason": reason, "hosts": hosts, "ranks": world, "attempt": restart}
        event |= {"step": step, "saved": round(saved, 3)}
        with open(self.events, "a") as file:
            file.write(json.dumps(event) + "\n")

    def failed(self, failures: dict[int, Any]) -> str:
        """Ranks have failed; returns why they must not be restarted, "" if they may be."""
        rank, first = min(failures.items(), key=lambda pair: (pair[1].timestamp, pair[0]))
        self.reason = reason_of(rank, self.host, first.exitcode, first.error_file)
        self.progress = self.progress.after_failure(newest_step(*self.checkpoints))
        return self.progress.refusal

    def wait_for_train(self) -> None:
        """Waits while this host's `train` is stopped (SIGSTOP): it may be that the other hosts go on without this one."""
        if self.starts and stopped(os.getppid()):
            self.say("`train` is stopped on this host: the ranks are not started again before it runs")
            while stopped(os.getppid()):
                time.sleep(0.2)

    def host_lost(self) -> str:
        """The hosts that were lost since the last call, with commas; "" for none."""
        try:
            with open(self.lost_file) as file:
                content = file.read()
        except OSError:
            return ""
        new, self.lost = content[len(self.lost) :], content
        return new.strip().replace("\n", ", ")


def stopped(pid: int) -> bool:
    """Returns whether a process is stopped, after proc(5)."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False


def _print(text: str) -> None:
    """One line, among the ranks'."""
    tell(text)


def reason_of(rank: int, host: str, code: int, error_file: str) -> str:
    """`rank 3 on algo-2 exited with 1: ValueError: bad batch`; the exception comes from the rank's error file."""
    import signal

    try:
        with open(error_file) as file:
            message = json.load(file)["message"]
        said = str(message["message"] if isinstance(message, dict) else message)
    except (OSError, ValueError, KeyError, TypeError):
        said = ""
    try:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
    except ValueError:
        how = f"was killed by signal {-code}"
    return f"rank {rank} on {host} {how}" + (f": {said.splitlines()[0][:300]}" if said.strip() else "")


def _observe(observer: Observer) -> None:
    """Hooks the observer into torch's agent; an agent with other methods is left unchanged."""
    from torch.distributed.elastic.agent.server import local_elastic_agent
    from torch.distributed.elastic.agent.server.api import RunResult, WorkerState

    agent = local_elastic_agent.LocalElasticAgent
    start, monitor = getattr(agent, "_start_workers", None), getattr(agent, "_monitor_workers", None)
    if start is None or monitor is None:
        observer.say("this version of torch has a different elastic agent: its restarts are not recorded")
        return

    def _start_workers(self: Any, group: Any) -> Any:
        observer.wait_for_train()
        observer.host_lost()  # a host that was lost before this start must not cause another one
        observer.started(
            group.workers[0].world_size, group.group_world_size, group.spec.max_restarts - self._remaining_restarts
        )
        return start(self, group)

    def _monitor_workers(self: Any, group: Any) -> Any:
        result = monitor(self, group)
        if result.state in (WorkerState.FAILED, WorkerState.UNHEALTHY) and result.failures:
            refusal = observer.failed(result.failures)
            if refusal and self._remaining_restarts:
                observer.say(refusal)
                self._remaining_restarts = 0
        elif result.state == WorkerState.HEALTHY:
            lost = observer.host_lost()
            if lost:
                observer.reason = f"{lost} vanished"
                self._remaining_restarts += 1  # UNHEALTHY costs a restart, but the script has not failed
                return RunResult(state=WorkerState.UNHEALTHY)
        return result

    _give_each_start_its_store()
    setattr(agent, "_start_workers", _start_workers)  # noqa: B010 (not by assignment, which mypy takes for a mistake)
    setattr(agent, "_monitor_workers", _monitor_workers)  # noqa: B010


def _give_each_start_its_store() -> None:
    """Has ranks that start again meet in a new store.

    torch's agents keep the first one, in which gloo then finds the addresses of ranks that are gone: each rank may take the
    other one for the one that connects, and both wait until the process group's time limit (torch 2.13, two hosts or more).
    """
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler as Handler

    following = Handler.next_rendezvous

    def next_rendezvous(self: Any) -> Any:
        # With neither of these torch makes them as it does for the first start; it names them by the round.
        self._bootstrap_store_info = self._shared_tcp_store_server = None
        return following(self)

    setattr(Handler, "next_rendezvous", next_rendezvous)  # noqa: B010 (as above)


if __name__ == "__main__":
    main(sys.argv[1:])
