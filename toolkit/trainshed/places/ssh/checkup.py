"""`trainshed doctor --cluster` with a job file or --hosts: whether jobs can run on machines that one can ssh to.

What a start with `--on ssh` looks at (survey), before any does, and told in full: one machine that cannot be used does not
keep the others from being checked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from trainshed.base.check import Check, fail, ok, warn
from trainshed.base.errors import Problem, TrainshedError, one_line
from trainshed.base.units import size
from trainshed.runner.job.job import Job
from trainshed.runner.job.machine_names import parse, wrong_with
from trainshed.runner.job.read import read
from trainshed.runner.job.request import read_file

from .connection import Connection, Sockets
from .machine import Machine
from .survey import CLOCKS, at_once, clocks, faults_of, has_ours, meet
from .wishes import SshOptions, read_options


def examine(file: str, hosts: Sequence[str], environ: Mapping[str, str]) -> list[Check]:
    """One check a machine, one of their clocks and one of their ways to each other; never raises for what it finds there.

    Args:
        file: a job file, "" for none: its `hosts`, `ssh` and whether it has an image. hosts: instead of its own.

    Raises:
        JobError: the job file cannot be read, or its `ssh` is wrong.
    """
    options, image = SshOptions(), ""
    if file:
        job = _job(file, environ)
        hosts = hosts or job.machines
        options, image = read_options(replace(job, machines=tuple(hosts))), job.image
    wrong = [fail(one_line(host), *wrong_with(host)) for host in hosts if wrong_with(host)[0]]
    if wrong or not hosts:
        return wrong or [fail("hosts", "there are none", "--hosts user@a,user@b, or `hosts` in the job file")]
    sockets = Sockets()
    connections = [Connection(parse(host), sockets.folder, number, options.config) for number, host in enumerate(hosts)]
    try:
        found = at_once(lambda connection: _examined(connection, options, image), connections)
        checks = [check for check, _ in found]
        machines = [machine for _, machine in found if machine is not None]
        notes = clocks(machines)
        checks += [warn("clocks", note, "have the machines keep time (chrony, ntp)") for note in notes]
        if len(machines) > 1:
            checks += [] if notes else [ok("clocks", f"within {CLOCKS:.0f} s of this machine's")]
            if not options.addresses or len(machines) == len(connections):  # those are in the order of all
                checks.append(_ways(machines, options))
        return checks
    finally:
        for connection in connections:
            connection.close()
        sockets.close()


def _job(file: str, environ: Mapping[str, str]) -> Job:
    problems: list[Problem] = []
    values, extra = read_file(file, problems)
    return replace(read(values, environ, file, os.path.splitext(os.path.basename(file))[0], problems), **extra)


def _examined(connection: Connection, options: SshOptions, image: str) -> tuple[Check, Machine | None]:
    """What is found of one machine, and the machine if it can be asked more."""
    try:
        machine = Machine.reach(connection, options)
    except TrainshedError as error:
        return fail(connection.name, error.message.removeprefix(f"{connection.name}: "), error.hint), None
    facts = machine.facts
    if faults := faults_of(facts, options, image):
        return fail(machine.name, *faults[0]), machine
    version = ".".join(map(str, facts.python))
    whose = "its own trainshed" if has_ours(facts, options) else "trainshed is sent"
    engines = ", ".join(facts.engines) or "no container engine"
    return ok(machine.name, f"Python {version}, {whose}, {engines}, {size(facts.free)} free in {facts.folder}"), machine


def _ways(machines: Sequence[Machine], options: SshOptions) -> Check:
    """Whether every machine reaches every other one at a port that no firewall was told of."""
    try:
        meeting = meet(machines, options)
    except TrainshedError as error:
        return fail("ports", "; ".join(line.strip() for line in error.message.splitlines()), error.hint)
    pairs = zip(machines, meeting.addresses, meeting.interfaces, strict=True)
    ways = [f"{machine.name} at {address}{f' ({name})' if name else ''}" for machine, address, name in pairs]
    return ok("ports", f"all reach each other: {', '.join(ways)}")
