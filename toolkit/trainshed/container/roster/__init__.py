"""The roster: connects the `train` processes of a job's hosts for the life of the job.

Host 0 listens, all others connect to it, and each host sends a sign of life every second. So the job starts when all
hosts are there, stops on all hosts when one fails or vanishes, and ends with one verdict: the same first cause in each
host's failure file, and success only if every host succeeded.

    join     every host says hello; host 0 says go when all are there, or names the missing hosts
    run      a host whose rank failed, or that got a stop signal, says so; host 0 stops all others
    ended    every host reports how its ranks ended; host 0 sends all of them the verdict

A broken connection is replaced; a host is lost only when it does not come back (`messages.LOST_AFTER`). A job on one
host has the roster `Alone`.
"""

from __future__ import annotations

from trainshed.machine.signals import Interrupted, stop_raises

from .roster import Alone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trainshed.contract.cluster import Cluster
    from trainshed.contract.job import TrainingJob
    from trainshed.contract.outcome import Failure

    from ..supervisor.launch_plan import Outcome
    from .leader import Leader
    from .member import Member
    from .roster import Roster

# Sockets and hashes are slow to load, and jobs on one host never need them: hence the imports in the functions.


def join_roster(job: TrainingJob, cluster: Cluster, environ: Mapping[str, str], say: Callable[[str], None]) -> Roster:
    """Joins the roster; returns this host's part in it, `Alone` for one host or a host outside the distribution.

    Raises:
        ClusterError: other hosts are missing after `trainshed_host_timeout_seconds`; names them.
        FailedElsewhere: another host could not start.
    """
    part = _part(job, cluster, environ, say)
    if part is None:
        return Alone(cluster.current_host)
    part.join(job.settings.host_timeout_seconds)
    return part


def fail_before_start(
    job: TrainingJob, cluster: Cluster, environ: Mapping[str, str], say: Callable[[str], None], failure: Failure
) -> None:
    """Tells the other hosts that this one failed before it could join them, so that they do not wait for it."""
    part = _part(job, cluster, environ, say)
    if part is not None:
        from .messages import TELLING_SECONDS

        say("telling the other hosts")
        part.fail_before_start(failure, min(TELLING_SECONDS, job.settings.host_timeout_seconds))


def _part(
    job: TrainingJob, cluster: Cluster, environ: Mapping[str, str], say: Callable[[str], None]
) -> Leader | Member | None:
    if len(cluster.hosts) < 2 or not cluster.participates:
        return None
    from .leader import Leader
    from .member import Member
    from .messages import job_token

    token = job_token(job, cluster, environ)
    port = job.settings.roster_port or cluster.port + (1 if cluster.port < 65_535 else -1)
    if cluster.rank == 0:
        elastic = job.settings.engine == "torchrun" and job.settings.min_nodes
        return Leader(
            cluster.hosts, port, token, job.settings.grace_seconds, say, enough=job.settings.min_nodes if elastic else 0
        )
    address = (cluster.address, port)
    return Member(cluster.hosts, cluster.rank, address, token, job.settings.grace_seconds, say)


def agree(roster: Roster, outcome: Outcome | None, failure: Failure | None, host: str) -> Failure | None:
    """Tells the other hosts how this one ended; returns the first cause of the whole job's failure, None for success.

    Args:
        outcome: how the ranks ended, None where they could not even be started.
    """
    if isinstance(roster, Alone):
        return failure
    from ..report.diagnose import is_secondary
    from .messages import Report

    if outcome is not None and outcome.stop_signal:
        state = "interrupted"
    elif failure is None:
        state = "stopped" if outcome is not None and outcome.stopped_by else "done"
    else:
        # Ranks that were ended because of other hosts have not failed themselves.
        state = "stopped" if failure.kind == "Stopped" else "interrupted" if failure.kind == "Interrupted" else "failed"
    report = Report(
        state=state,
        failure=failure,
        age=outcome.seconds - failure.at if outcome is not None and failure is not None else 0.0,
        secondary=failure is not None and is_secondary(failure),
    )
    try:
        with stop_raises("while it waited for the other hosts"):
            verdict = roster.leave(report)
    except Interrupted as stop:
        roster.interrupted(str(stop))
        verdict = roster.leave(report)
    first = verdict.failure
    if first is None or (failure is not None and first.summary == failure.summary):
        return first
    here = (
        f"{host} was stopped because of it" if state != "failed" else f"{host} ended after it: {failure and failure.summary}"
    )
    return first.replace(details="\n".join(part for part in (here, first.details) if part))
