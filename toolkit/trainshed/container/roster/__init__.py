"""The roster: connects the `train` processes of a job's hosts for the life of the job.

Host 0 listens, all others connect to it, and each host sends a sign of life every second. So the job starts when all
hosts are there, stops on all hosts when one fails or vanishes, and ends with one verdict: the same first cause in each
host's failure file, and success only if every host succeeded.

    prove    host 0 and each of the others prove to each other that they know the job's key (`proof`)
    prepare  who installs requirements is connected meanwhile, and hears that the job cannot start
    join     host 0 says go when all are there and ready, or names the missing hosts
    run      a host whose rank failed, or that got a stop signal, says so; host 0 stops all others
    rest     of a job with restarts: the hosts agree whether all start their ranks again (`rounds`)
    ended    every host reports how its ranks ended; host 0 sends all of them the verdict

In an elastic job the next host takes host 0's part when it is lost (`succession`).

A broken connection is replaced; a host is lost only when it does not come back (`messages.LOST_AFTER`). A job on one
host has the roster `Alone`.
"""

from __future__ import annotations

import time

from trainshed.base.errors import ClusterError
from trainshed.machine.signals import Interrupted

from .roster import Alone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trainshed.contract.cluster import Cluster
    from trainshed.contract.job import TrainingJob
    from trainshed.contract.outcome import Failure
    from trainshed.machine.signals import Stops

    from ..supervisor.launch_plan import Outcome
    from .authentication import JobKey
    from .messages import Report
    from .roster import Roster

# Sockets and hashes are slow to load, and jobs on one host never need them: hence the imports in the functions.


def elastic(job: TrainingJob, cluster: Cluster) -> bool:
    """Returns whether the job goes on without some of its hosts."""
    return _by_the_agent(job) and cluster.participates and 0 < job.settings.min_nodes < len(cluster.hosts)


def _by_the_agent(job: TrainingJob) -> bool:
    """Whether torch's elastic agent starts the ranks."""
    return job.settings.engine == "torchrun" and not job.training_module and job.distribution.traits.uses_agent


def restarts_together(job: TrainingJob, cluster: Cluster) -> bool:
    """Returns whether the hosts start their ranks again together after a failure; torch's elastic agent does so itself."""
    return bool(job.settings.max_restarts) and len(cluster.hosts) > 1 and cluster.participates and not _by_the_agent(job)


def make_roster(job: TrainingJob, cluster: Cluster, environ: Mapping[str, str], say: Callable[[str], None]) -> Roster:
    """This host's part in the roster, still to join; `Alone` for one host or a host outside the distribution."""
    if len(cluster.hosts) < 2 or not cluster.participates:
        return Alone(cluster.current_host)
    from .key import job_key
    from .leader import Leader
    from .member import Member

    key = job_key(job, cluster, environ)
    port = job.settings.roster_port or cluster.port + (1 if cluster.port < 65_535 else -1)
    if elastic(job, cluster):
        return _succession(cluster, port, key, job.settings.grace_seconds, job.settings.min_nodes, say)
    leader, member = Leader, Member
    if restarts_together(job, cluster):
        from .restarting_leader import RestartingLeader
        from .restarting_member import RestartingMember

        leader, member = RestartingLeader, RestartingMember
    if cluster.rank == 0:
        from .addresses import to_listen_on

        return leader(cluster.hosts, port, key, job.settings.grace_seconds, say, addresses=to_listen_on(cluster))
    return member(cluster.hosts, cluster.rank, (cluster.address, port), key, job.settings.grace_seconds, say)


def _succession(cluster: Cluster, port: int, key: JobKey, grace: float, least: int, say: Callable[[str], None]) -> Roster:
    """The roster of an elastic job, which any host may come to lead."""
    from ..cluster.hosts import resolves
    from .addresses import to_listen_on
    from .succession import Succession

    def where(number: int, found: str) -> tuple[str, int]:
        if number == 0:
            return cluster.address, port
        name = cluster.hosts[number]
        return (name if not found or resolves(name) else found), port

    def listen_on() -> tuple[str, ...]:
        if cluster.rank == 0:
            return to_listen_on(cluster)
        name = cluster.hosts[cluster.rank]
        return to_listen_on(cluster.replace(address=name, hosts=(name,)) if resolves(name) else cluster)

    return Succession(
        cluster.hosts, cluster.rank, key, grace, say, enough=least, port=port, where=where, listen_on=listen_on
    )


def tell_before_start(roster: Roster, failure: Failure, host: str, seconds: float, say: Callable[[str], None]) -> Failure:
    """Tells the other hosts that this one could not start, so that they do not wait for it.

    Args:
        seconds: how long the hosts wait for each other.

    Returns:
        The failure as they hear it.
    """
    if isinstance(roster, Alone):
        return failure
    from .connected import ConnectedRoster
    from .messages import STOPPED_TELLING_SECONDS, TELLING_SECONDS

    assert isinstance(roster, ConnectedRoster)  # there is no third kind
    if roster.over:  # they know more than this host
        return failure
    if roster.doom is not None:
        failure = roster.doom
    elif failure.kind == "ClusterError":  # this host cannot reach them
        return failure

    failure = _named(failure, host)
    say("telling the other hosts")
    longest = min(STOPPED_TELLING_SECONDS, roster.grace) if failure.kind == "Interrupted" else TELLING_SECONDS
    try:
        roster.fail_before_start(failure, min(longest, seconds))
    except ClusterError:  # where the port cannot be used, nobody can be told
        pass
    return failure


def agree(
    roster: Roster, outcome: Outcome | None, failure: Failure | None, interrupted: str, host: str, stops: Stops
) -> tuple[Failure | None, str]:
    """Tells the other hosts how this one ended; returns how the whole job did.

    Args:
        outcome: how the ranks ended, None where they could not even be started.
        interrupted: why the ranks ended before their work was done although well, "" where they did not.
        stops: one that has come since the ranks ended, or comes while this host waits for the others, stops them, too.

    Returns:
        The first cause of its failure, None where no host failed; and host and reason if it was stopped early without a
        failure, "" for success.

    Raises:
        LeaderMoved: of an elastic job: the ranks are to be started again under another leader.
    """
    if isinstance(roster, Alone):
        return failure, interrupted
    failure = _named(failure, host) if outcome is None and failure is not None else failure
    report = report_of(roster, outcome, failure, interrupted, host)
    try:
        with stops.raising("while it waited for the other hosts"):
            verdict = roster.leave(report)
    except Interrupted as stop:
        roster.interrupted(str(stop), stop.number)
        verdict = roster.leave(report)
    first = verdict.failure
    if first is None and report.state == "failed":  # never a success beside a failed rank
        return failure, ""
    if first is None or first.host == host or (failure is not None and first.summary == failure.summary):
        return first, verdict.stopped
    here = f"{host} was stopped because of it"
    if report.state == "failed":
        here = f"{host} ended after it: {failure and failure.summary}"
    return first.replace(details="\n".join(part for part in (here, first.details) if part)), ""


def report_of(roster: Roster, outcome: Outcome | None, failure: Failure | None, interrupted: str, host: str) -> Report:
    """How the ranks of this host ended, for the other hosts. Arguments: see `agree`."""
    from ..report.diagnose import is_secondary
    from .connected import ConnectedRoster
    from .messages import Report
    from .verdict import stop_failure

    if outcome is not None and outcome.stop_signal:
        state = "interrupted"
    elif failure is None:
        state = "stopped" if outcome is not None and outcome.stopped_by else "done"
    else:
        # Ranks that were ended because of other hosts have not failed themselves.
        state = "stopped" if failure.kind == "Stopped" else "interrupted" if failure.kind == "Interrupted" else "failed"
    stopped_by = outcome.stopped_by if outcome is not None else ""
    early = ""
    if failure is None:
        early = stopped_by or (f"{host}: {interrupted}" if interrupted else "")
    of_others = isinstance(roster, ConnectedRoster) and roster.stopping
    return Report(
        state=state,
        failure=failure,
        age=_age(outcome, failure) if outcome is not None and failure is not None else 0.0,
        secondary=failure is not None and is_secondary(failure),
        # What stopped the ranks of this host is told where it did not come from another one.
        cause=stop_failure(f"{host}: {stopped_by}", host) if stopped_by and not of_others else None,
        early=early,
    )


def _age(outcome: Outcome, failure: Failure) -> float:
    """Seconds since a failure's first sign: of the run, and of what this host did after it, such as uploads."""
    return outcome.seconds - failure.at + (time.monotonic() - outcome.over if outcome.over else 0.0)


def _named(failure: Failure, host: str) -> Failure:
    """A stop before the ranks ran, with the host in its summary: it is told to all."""
    if failure.kind != "Interrupted" or host in failure.summary or failure.host not in ("", host):
        return failure
    return failure.replace(summary=f"{host} was {failure.summary}", host=host)
