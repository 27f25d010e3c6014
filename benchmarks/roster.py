"""How the roster grows: simulated hosts of one job, in a few processes, over real sockets to a real host 0.

    python benchmarks/roster.py [--hosts 64,256,1000] [--processes 4] [--idle 10] [--json FILE]

Host 0 runs alone in a process, with the code and the loop that `train` runs it with outside of the ranks' time; the other
hosts are shared out to some processes, each of which serves its members from one poll. For every number of hosts:

    join      from the moment at which all hosts may begin to connect until every one of them was let go, s
    idle      CPU of host 0 in percent of a core while nothing happens
    memory    resident memory of host 0, MB, and what each host adds to it, KB
    verdict   from a failure on one host until the last host has the verdict, s
    a host    CPU seconds of host 0 from its start to its end without the idle time, by the number of hosts, ms

The goals hold for 1,000 hosts: join in 5 s, the verdict in 2 s, idle at 20 % of a core; and the CPU of a host may not grow
with their number by more than half.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import select
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from _claims import claim

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "toolkit"))

from trainshed.container.roster.authentication import JobKey
from trainshed.container.roster.leader import Leader
from trainshed.container.roster.member import Member
from trainshed.container.roster.messages import Report
from trainshed.contract.outcome import Failure
from trainshed.machine.network import free_port

KEY = JobKey(b"benchmark" + bytes(23))
LIMIT = 120.0  # seconds
UNITS = {"join": "s", "verdict": "s", "idle": "% of a core"}  # of host 0
GOALS = {"join": 5.0, "verdict": 2.0, "idle": 20.0}
GROWTH = 1.5


def quiet(_: str) -> None:
    """Says nothing."""


def lead(names: tuple[str, ...], port: int, idle: float, wire: Connection) -> None:
    """Host 0's process: joins, idles, waits for the failure, leaves; sends what it has measured."""
    began = cpu()
    before = memory()
    leader = Leader(names, port, KEY, 1.0, quiet, addresses=("127.0.0.1",))
    leader.join(LIMIT)
    joined = cpu()
    wire.send("joined")
    spend_until(leader, time.monotonic() + 1.0)  # the bustle of the start is over
    start, start_cpu = time.monotonic(), cpu()
    spend_until(leader, start + idle)
    share = 100 * (cpu() - start_cpu) / (time.monotonic() - start)
    size = memory()
    wire.send("idled")
    end_cpu = cpu()
    while not leader.stopping:
        leader.wait(0.5)
    leader.leave(Report(state="stopped"))
    busy = joined - began + cpu() - end_cpu
    wire.send({"idle": share, "memory": size / 1e6, "added": (size - before) / len(names) / 1e3, "cpu": busy})


def spend_until(leader: Leader, end: float) -> None:
    """Serves the hosts until then."""
    while time.monotonic() < end:
        leader.wait(min(0.5, max(0.0, end - time.monotonic())))


def follow(names: tuple[str, ...], ranks: range, port: int, fails: bool, wire: Connection) -> None:
    """A process of many members. Says when all may run, and when all have the verdict; one of them fails when told to."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    wire.recv()
    members = [Member(names, rank, ("127.0.0.1", port), KEY, 1.0, quiet) for rank in ranks]
    left: set[int] = set()
    last = time.monotonic()
    joined = told = False
    while not all(member.verdict for member in members):
        poll = select.poll()
        owner: dict[int, Member] = {}
        for member in members:
            for fd, events in member.descriptors().items():
                poll.register(fd, events)
                owner[fd] = member
        poll.register(wire.fileno(), select.POLLIN)
        ready = {fd for fd, _ in poll.poll(20)}
        now = time.monotonic()
        due = now - last > 0.2  # signs of life and attempts to connect
        last = now if due else last
        for member in members if due else [owner[fd] for fd in ready if fd in owner]:
            member.exchange()
            if member.stopping and member.rank not in left:
                left.add(member.rank)
                member._tell(Report(state="stopped").message())
        if not joined and all(member.going for member in members):
            joined = True
            wire.send(time.monotonic())
        if fails and not told and wire.fileno() in ready:
            told = True
            wire.recv()
            failure = Failure(kind="UserError", summary=f"{names[-1]}: bad batch", exit_code=1, host=names[-1])
            left.add(members[-1].rank)
            wire.send(time.monotonic())
            members[-1]._tell(Report(state="failed", failure=failure).message())
    wire.send((time.monotonic(), {member.verdict.failure.summary for member in members if member.verdict.failure}))
    for member in members:
        member.close()


def cpu() -> float:
    """CPU seconds of this process."""
    return time.process_time()


def memory() -> int:
    """Resident bytes of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(hosts: int, processes: int, idle: float) -> dict[str, Any]:
    """One job of so many hosts, the first one included."""
    names = tuple(f"algo-{number + 1}" for number in range(hosts))
    port = free_port(0)
    shares = [
        range(1 + (hosts - 1) * part // processes, 1 + (hosts - 1) * (part + 1) // processes) for part in range(processes)
    ]
    started: list[multiprocessing.Process] = []
    wires: list[Connection] = []
    for place, ranks in enumerate(shares):
        here, there = multiprocessing.Pipe()
        started.append(multiprocessing.Process(target=follow, args=(names, ranks, port, place == processes - 1, there)))
        wires.append(here)
    leaders, there = multiprocessing.Pipe()
    started.append(multiprocessing.Process(target=lead, args=(names, port, idle, there)))
    for process in started:
        process.start()
    time.sleep(1.0)  # all Pythons are up, and host 0 listens
    began = time.monotonic()
    for wire in wires:
        wire.send("go")
    join = max(wire.recv() for wire in wires) - began
    assert leaders.recv() == "joined" and leaders.recv() == "idled"
    wires[-1].send("fail")
    failed = wires[-1].recv()
    ends = [wire.recv() for wire in wires]
    of_leader = leaders.recv()
    for process in started:
        process.join(LIMIT)
    causes = set().union(*(cause for _, cause in ends))
    assert causes == {f"{names[-1]}: bad batch"}, causes
    row = {"hosts": hosts, "join": join, "verdict": max(end for end, _ in ends) - failed, **of_leader}
    return {**row, "a host": 1000 * row.pop("cpu") / hosts}


def main() -> int:
    """Prints the table; 1 where a goal is not met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", default="64,256,1000")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--idle", type=float, default=10.0)
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    print(
        "| hosts | join, s | verdict everywhere, s | host 0 idle, % of a core "
        "| its memory, MB | per host, KB | per host, ms of CPU |"
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    rows = []
    for hosts in map(int, options.hosts.split(",")):
        row = measure(hosts, options.processes, options.idle)
        rows.append(row)
        print(
            f"| {hosts:,} | {row['join']:.2f} | {row['verdict']:.2f} | {row['idle']:.1f} | {row['memory']:.1f} "
            f"| {row['added']:.1f} | {row['a host']:.2f} |",
            flush=True,
        )
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=2) + "\n")
    hosts = rows[-1]["hosts"]
    met = [
        claim(f"roster: {name}, {hosts:,} hosts", rows[-1][name], UNITS[name], limit=goal) for name, goal in GOALS.items()
    ]
    growth = rows[-1]["a host"] / rows[0]["a host"]
    met.append(claim("roster: CPU of a host, many to few", growth, "times", limit=GROWTH))
    return int(not all(met))


if __name__ == "__main__":
    sys.exit(main())
