"""Brings up the job's Ray cluster, starts the script when all hosts have joined it, and takes it down after the script.

    host 0: its head has started -> letters to all others, which start their nodes
    others: the node has joined  -> a letter to host 0; with the last of them it starts the script
    the script has ended         -> letters to all others; each host ends its node
    a stop, a failure            -> nodes serve on while the script saves what its workers hold
    host 0 is lost               -> nobody needs the nodes

A node that ends before is a failure of the job.
"""

from __future__ import annotations

import os
import signal

from trainshed.base.errors import ClusterError, some
from trainshed.machine.signals import STOP_SIGNALS, Interrupted

from ...supervisor.watcher import FOREVER, Watcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...roster.roster import Roster
    from ...supervisor.launch_plan import LaunchPlan
    from ...supervisor.watcher import Process, Supervised

JOINED = "Ray has started on this host"  # what `ray_node` prints when its node has joined the cluster
KILL_AFTER = 10.0  # seconds from SIGTERM to SIGKILL
STOP_MARGIN = 20.0  # seconds beyond the job's grace after which a stop ends the node, whatever is known of the script
SAY_EVERY = 10.0  # seconds between two messages that hosts are awaited
_STARTED, _JOINED, _DONE = "ray started", "ray joined", "ray script done"


class RayWatcher(Watcher):
    """This host's part.

    Args:
        plan: its `later` is the node and, on host 0, the script.
        roster: the job's hosts.
    """

    def __init__(self, plan: LaunchPlan, roster: Roster) -> None:
        self.roster = roster
        self.grace = plan.grace_seconds
        self.limit = plan.start_seconds
        self.node_spec, *scripts = plan.later
        self.script_spec = scripts[0] if scripts else None
        self.node: Process | None = None
        self.script: Process | None = None
        self.secret: dict[str, str] = {}  # variables that let a process into the cluster
        self.joined: set[int] = set()  # node ranks; host 0 knows all, the others themselves
        self.done = False  # whether the script is done, or nobody will ever know
        self._up = False  # whether this host's node has said that it has started
        self._said = 0.0
        self._asked_at: float | None = None  # when the node was asked to end
        self._stopped_at: float | None = None
        self._stop, self._stop_of = 0, ""  # the signal that stops the job, and which other host was sent it

    def pause(self) -> float:
        """Half a second while something is awaited."""
        waits = self.done or self._stopped_at is not None or not self._up or (self.roster.leads and self.script is None)
        return 0.5 if waits else FOREVER

    def busy(self) -> bool:
        """Until it is known how the script ends: on hosts without it, its node may be all that runs."""
        return not self.done

    def printed(self, rank: Process, lines: bytes) -> None:
        """The node says when it has started."""
        if rank is self.node and JOINED.encode() in lines:
            self._up = True

    def signalled(self, number: int, grace: float) -> None:
        """Notes a stop signal to this host."""
        if number in STOP_SIGNALS:
            self._stop = number

    def interrupted_elsewhere(self, why: str, grace: float) -> None:
        """Notes that the job stops because another host was asked to."""
        if not self._stop:
            self._stop, self._stop_of = signal.SIGTERM, f" ({why})"

    def turn(self, run: Supervised) -> None:
        """Starts what is due; ends the node when the script is done."""
        now = run.now()
        if run.stopping and self._stopped_at is None:
            self._stopped_at = now
        for sender, letter in self.roster.letters():
            self._take(sender, letter)
        if not self.done:
            self._bring_up(run, now)
            self.done = self._script_done(run, now)
        if self.done and self.node is not None:
            self._end(self.node, run, now)

    # --- the start ---

    def _bring_up(self, run: Supervised, now: float) -> None:
        if run.stopping or self.script is not None:
            return
        if self.node is None and (self.roster.leads or self.secret):
            self.secret = self.secret or _new_secret(self.node_spec.env)
            self.node = run.start_process(self.node_spec.replace(env={**self.node_spec.env, **self.secret}))
        me = self.roster.rank
        if self._up and me not in self.joined:
            self.joined.add(me)
            if self.roster.leads:
                self._tell_all({"type": _STARTED, "secret": self.secret})
            else:
                self.roster.post(0, {"type": _JOINED})
        if self.script_spec is None:
            return
        missing = [name for number, name in enumerate(self.roster.names) if number not in self.joined]
        if not missing:
            self.script = run.start_process(self.script_spec.replace(env={**self.script_spec.env, **self.secret}))
        elif now > self.limit:
            run.abandon(
                ClusterError(
                    f"Ray has not started on {some(missing, 8)} within {self.limit:.0f} s",
                    hint="Ray's processes connect to each other on any port: hosts must let each other through",
                )
            )
        elif now - self._said >= SAY_EVERY:
            self._said = now
            run.say(f"waiting for Ray on {some(missing, 8)} ({now:.0f} s of {self.limit:.0f} s)")

    def _take(self, sender: int, letter: dict[str, Any]) -> None:
        kind, secret = letter.get("type"), letter.get("secret")
        if kind == _STARTED and isinstance(secret, dict):
            self.secret = {str(name): str(value) for name, value in secret.items()}
        elif kind == _JOINED:
            self.joined.add(sender)
        elif kind == _DONE:
            self.done = True

    def _tell_all(self, letter: dict[str, Any]) -> None:
        for host in range(1, len(self.roster.names)):
            self.roster.post(host, letter)

    # --- the end ---

    def _script_done(self, run: Supervised, now: float) -> bool:
        if self.done or (self._stopped_at is not None and now - self._stopped_at > self.grace + STOP_MARGIN):
            return True
        if not self.roster.leads:
            return 0 in self.roster.absent()
        if self.script is None:
            if run.stopping:
                if self._stop:
                    # Without a rank nobody can fail, and the job would end as if its script had answered the signal.
                    run.abandon(Interrupted(self._stop, f"before Ray was there for the script{self._stop_of}"))
                self._tell_all({"type": _DONE})
            return run.stopping
        if self.script.alive or (self.script.returncode != 0 and not run.stopping):
            return False  # where it failed, a node's failure may be the reason, and about to be known
        self._tell_all({"type": _DONE})
        return True

    def _end(self, node: Process, run: Supervised, now: float) -> None:
        """Asks the node to end, and kills it when it does not."""
        if not node.alive:
            if self._asked_at is None and not run.stopping:
                self._asked_at = now
                run.dismiss(node)  # it has lost the others, since all are done
        elif self._asked_at is None:
            self._asked_at = now
            run.dismiss(node)
            run.end_helper(node)
        elif now - self._asked_at > KILL_AFTER:
            run.kill_helper(node)


def _new_secret(environment: dict[str, str]) -> dict[str, str]:
    """What only processes of this job know: without it everybody who reaches its ports could run code on its hosts.

    Ray asks for it since version 2.52, and knows these variables; {} for what the job itself says of it.
    """
    if "RAY_AUTH_MODE" in environment:
        return {"RAY_AUTH_MODE": environment["RAY_AUTH_MODE"]}
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": os.urandom(32).hex()}
