"""Checks whether the machines of a job can run it: all are looked at at once, and all that is wrong is told together."""

from __future__ import annotations

import json
import select
import subprocess
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeVar

import trainshed
from trainshed.base.errors import TrainshedError
from trainshed.base.units import duration

from .connection import Connection, SshError
from .machine import Machine, MachineFacts
from .wishes import SshOptions

OLDEST = (3, 10)  # Python that trainshed runs with
FOR_AGENT = (3, 7)  # Python that the agent runs with
MOST_AT_ONCE = 16  # connections that are set up at a time
CLOCKS = 10.0  # seconds that clocks may differ without a word: logs and checkpoints are compared by their times
ANSWER_SECONDS = 20.0

One = TypeVar("One")
Made = TypeVar("Made")


def at_once(work: Callable[[One], Made], those: Iterable[One]) -> list[Made]:
    """The results for all, in order. Raises SshError with everything that went wrong, in the order of the hosts."""
    given = list(those)
    faults: list[TrainshedError] = []
    with ThreadPoolExecutor(max(1, min(MOST_AT_ONCE, len(given)))) as pool:
        waiting = [pool.submit(work, one) for one in given]
        made = []
        for future in waiting:
            try:
                made.append(future.result())
            except TrainshedError as error:
                faults.append(error)
    if faults:
        raise told_together(faults)
    return made


def told_together(faults: Sequence[TrainshedError]) -> SshError:
    """One error for several; each keeps its own hint."""
    if len(faults) == 1:
        return SshError(faults[0].message, hint=faults[0].hint)
    lines = [f"{error.message}; {error.hint}" if error.hint else error.message for error in faults]
    return SshError(f"{len(faults)} hosts cannot be used:\n" + "\n".join(f"  {line}" for line in lines))


def look_at(connections: Iterable[Connection], options: SshOptions, image: str) -> list[Machine]:
    """The machines, each with what it has. Raises SshError with all faults of all of them."""
    machines = at_once(lambda connection: Machine.reach(connection, options), connections)
    faults = [
        SshError(f"{machine.name}: {fault}", hint=hint)
        for machine in machines
        for fault, hint in faults_of(machine.facts, options, image)
    ]
    if faults:
        raise told_together(faults)
    return machines


def faults_of(facts: MachineFacts, options: SshOptions, image: str) -> list[tuple[str, str]]:
    """(what is wrong, what to do) of a machine."""
    version = ".".join(map(str, facts.python))
    if image:
        if options.engine and options.engine not in facts.engines:
            return [(f"{options.engine} is not installed, and the job has an image", "install it there, or --no-image")]
        if not facts.engines:
            return [("neither docker nor podman is installed, and the job has an image", "install one there, or --no-image")]
        old = facts.python < FOR_AGENT
        return (
            [(f"{facts.executable} is Python {version}; 3.7 or newer is needed", "name one: ssh: {python: ...}")]
            if old
            else []
        )
    if facts.python < OLDEST:
        return [(f"{facts.executable} is Python {version}; 3.10 or newer is needed",
                 "install one there and name it: ssh: {python: ~/venv/bin/python}")]  # fmt: skip
    if options.toolkit == "there":
        if facts.modules.get("trainshed") is None:
            return [(f"trainshed is not installed for {facts.executable}", "pip install it there, or leave out ssh.toolkit")]
        return []
    names = {"psutil": "psutil", "yaml": "pyyaml"}
    missing = [package for module, package in names.items() if facts.modules.get(module) is None]
    if missing:
        packages = " ".join(missing)
        hint = f"`{facts.executable} -m pip install {packages}` there, or name another Python: ssh: {{python: ...}}"
        return [(f"{facts.executable} has no {' and no '.join(missing)}", hint)]
    return []


def clocks(machines: Sequence[Machine]) -> list[str]:
    """Warnings about clocks that differ."""
    return [
        f"the clock of {machine.name} is {duration(abs(machine.facts.ahead))} "
        f"{'ahead of' if machine.facts.ahead > 0 else 'behind'} this machine's: times in logs and records differ so much"
        for machine in machines
        if abs(machine.facts.ahead) > CLOCKS
    ]


def has_ours(facts: MachineFacts, options: SshOptions) -> bool:
    """Returns whether the trainshed that the machine's interpreter has will do."""
    known = facts.modules.get("trainshed")
    if options.toolkit == "send" or known is None:
        return False
    return options.toolkit == "there" or known[0] == trainshed.__version__


@dataclass(frozen=True)
class RendezvousAddresses:
    """The way in which the hosts reach each other: an address of each, its interface, and two free ports of the first."""

    addresses: tuple[str, ...]
    interfaces: tuple[str, ...]
    ports: tuple[int, int]


def meet(machines: Sequence[Machine], options: SshOptions) -> RendezvousAddresses:
    """Finds out by trying: every machine listens, and every other one connects.

    Raises:
        SshError: some cannot reach others; all such pairs are named.
    """
    candidates = [_candidates(machine, index, options) for index, machine in enumerate(machines)]
    with ExitStack() as stack:
        doors = [stack.enter_context(_Door(machine)) for machine in machines]
        known = [door.opened() for door in doors]

        def tried(pair: tuple[int, int]) -> list[str]:
            guest, host = pair
            port, word = known[host]
            answer = machines[guest].ask("reach", str(port), word, *candidates[host], seconds=ANSWER_SECONDS * 5)
            return [str(one) for one in json.loads(answer.output)]

        pairs = [(guest, host) for host in range(len(machines)) for guest in range(len(machines)) if guest != host]
        found = dict(zip(pairs, at_once(tried, pairs), strict=True))
    chosen, faults = [], []
    for host, machine in enumerate(machines):
        rows = {guest: found[guest, host] for guest in range(len(machines)) if guest != host}
        good = [one for number, one in enumerate(candidates[host]) if not any(row[number] for row in rows.values())]
        chosen.append(good[0] if good else "")
        for guest, row in () if good else rows.items():
            said = ", ".join(f"{address}: {why}" for address, why in zip(candidates[host], row, strict=True) if why)
            if said:
                faults.append(SshError(f"{machines[guest].name} does not reach {machine.name} ({said})"))
    if faults:
        error = told_together(faults)
        raise SshError(error.message, hint="open the ports between the hosts, or name addresses that they see: "
                       "ssh: {addresses: [10.0.0.1, ...]}")  # fmt: skip
    first, second = json.loads(machines[0].ask("ports").output)
    interfaces = tuple(machine.facts.interface(address) for machine, address in zip(machines, chosen, strict=True))
    return RendezvousAddresses(tuple(chosen), interfaces, (int(first), int(second)))


def _candidates(machine: Machine, index: int, options: SshOptions) -> list[str]:
    """Addresses that may lead to a machine, the likeliest first."""
    if options.addresses:
        return [options.addresses[index]]
    own = [address for _, address in machine.facts.addresses]
    name = machine.connection.hostname()
    # Loopback last: for hosts that are one machine. The word says whether it is the right one that answers.
    return list(dict.fromkeys([*([name] if name in own else []), *own, name, "127.0.0.1"]))


class _Door:
    """A listener on a machine, for as long as the block lasts."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.process = machine.open("listen")

    def __enter__(self) -> _Door:
        return self

    def opened(self) -> tuple[int, str]:
        """Its port and its word."""
        assert self.process.stdout is not None and self.process.stderr is not None
        select.select([self.process.stdout], [], [], ANSWER_SECONDS)
        line = self.process.stdout.readline() if self.process.poll() is None else b""
        if not line:
            self.process.kill()
            errors = self.process.stderr.read().decode("utf-8", "replace")
            raise self.machine.trouble(self.process.wait(), errors)
        port, word = json.loads(line)
        return int(port), str(word)

    def __exit__(self, *_: object) -> None:
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        try:
            self.process.wait(ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
