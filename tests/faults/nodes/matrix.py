"""What happens to a job of 2, 3 or 4 containers when something happens to one of them, for every launcher.

    python tests/faults/nodes/matrix.py [--nodes 2,3,4] [--jobs 4] [WORD ...]

prints each job as it ends (exit statuses, the first line of the failure file, and the seconds from the event to the exit of
the last container), then the table of docs/evidence/nodes.md: a row an event, a column a launcher. With words, only the
rows whose names hold all of them. Exit status 1 if a row is not as it should be. `train` is PID 1 of every container; all
containers of a job are on one Docker network.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

if not __package__:  # run as a script
    tests = Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(tests), str(tests.parent / "toolkit")]

from support import image_build
from support.docker_cli import LABEL, Containers, Running, docker
from support.paths import TOOLKIT

LIMIT = 180.0  # seconds
COMES_SECONDS = 10  # `trainshed_host_timeout_seconds` where a host never comes
SCRIPT = """\
import os, time
if begun := os.environ.get("TRAINSHED_PIPELINE_BEGUN"):
    open(begun, "w").close()  # as `trainshed.parallel.init` does
print("ready", os.environ.get("WORLD_SIZE", ""), flush=True)
while not os.path.exists("/opt/ml/code/go"):
    if os.path.exists("/opt/ml/code/fail"):
        raise ValueError("bad label 17")
    time.sleep(0.05)
"""
LAUNCHERS: dict[str, dict[str, object]] = {
    "script": {},
    "torchrun": {"trainshed_distribution": "torchrun"},
    "torchrun's agent": {"trainshed_distribution": "torchrun", "trainshed_engine": "torchrun"},
    "mpi": {"trainshed_distribution": "mpi"},
    "pipeline": {"trainshed_distribution": "pipeline"},
}
# Two hosts are enough for it.
ELASTIC: dict[str, dict[str, object]] = {"elastic": {**LAUNCHERS["torchrun's agent"], "trainshed_min_nodes": 2}}
VANISHED = 69


@dataclass(frozen=True)
class Event:
    """One thing that happens.

    act: does it, once every node is ready (None: the last node is never started).
    victims: indices of the nodes that are killed or cut off, whose ends are not the job's.
    least: nodes that it takes.
    status: every other node's exit status, and `says` what its failure file begins with, "" for no such file.
    """

    name: str
    act: Callable[[list[Running]], None] | None
    status: int
    says: str = ""
    victims: tuple[int, ...] = ()
    least: int = 2

    def lost(self, nodes: int) -> set[int]:
        """The victims among so many nodes, counted from the first."""
        return {number % nodes for number in self.victims}


def release(running: list[Running]) -> None:
    """The scripts end well."""
    for one in running:
        one.job.write({"code/go": ""})


def fail(running: list[Running]) -> None:
    """The last node's script raises."""
    running[-1].job.write({"code/fail": ""})


def link(one: Running, state: str) -> None:
    """A node's network interface, as if its cable were pulled."""
    pid = docker("inspect", "--format", "{{.State.Pid}}", one.name).stdout.strip()
    command = ["nsenter", "--target", pid, "--net", "ip", "link", "set", "eth0", state]
    subprocess.run(command, check=True, capture_output=True)


def cut_for_a_while(running: list[Running]) -> None:
    """The last node is away for 20 seconds; then the scripts end well."""
    link(running[-1], "down")
    time.sleep(20)
    link(running[-1], "up")
    release(running)


LAST = "algo-{last}"
EVENTS = [
    Event("success", release, 0),
    Event("a rank raises", fail, 1, "UserError: "),
    Event("a node is SIGKILLed", lambda nodes: nodes[-1].signal("KILL"), VANISHED, f"ClusterError: {LAST} vanished", (-1,)),
    Event(
        "node 0 is SIGKILLed",
        lambda nodes: nodes[0].signal("KILL"),
        VANISHED,
        "ClusterError: algo-1 (the first host) van",
        (0,),
    ),
    Event("network away for 20 s", cut_for_a_while, 0),
    Event("network away for good", lambda nodes: link(nodes[-1], "down"), VANISHED, "ClusterError: "),
    Event("a host never comes", None, VANISHED, f"ClusterError: {LAST} "),
    Event("SIGTERM to one node", lambda nodes: nodes[-1].signal("TERM"), 143, "Interrupted: "),
]


def without(
    *victims: int, lose: Callable[[Running], None] = lambda one: one.signal("KILL")
) -> Callable[[list[Running]], None]:
    """Loses nodes, each as soon as the first of those that are left starts its ranks without the one before."""

    def act(running: list[Running]) -> None:
        left = list(running)
        for victim in victims:
            lost = running[victim]
            leads = lost is left[0]
            left.remove(lost)
            lose(lost)
            if leads and victim != victims[-1]:
                left[0].wait_for("leads the job now", timeout=LIMIT)
        for one in left:
            one.wait_for(f"ready {len(left)}", timeout=LIMIT)
        release(left)

    return act


ELASTIC_EVENTS = [
    Event("success", release, 0, least=3),
    Event("a node is SIGKILLed", without(-1), 0, victims=(-1,), least=3),
    Event("node 0 is SIGKILLed", without(0), 0, victims=(0,), least=3),
    Event("node 0 is SIGKILLed, and node 1 as it starts the ranks again", without(0, 1), 0, victims=(0, 1), least=4),
    Event("network of node 0 away for good", without(0, lose=lambda one: link(one, "down")), 0, victims=(0,), least=3),
]


def cells_of(nodes: int) -> list[tuple[str, Event]]:
    """The launchers and what happens to jobs of so many nodes."""
    firm = [(launcher, event) for launcher in LAUNCHERS for event in EVENTS]
    return firm + [(launcher, event) for launcher in ELASTIC for event in ELASTIC_EVENTS if event.least <= nodes]


_SECONDS = re.compile(r"\d+ s\b")  # for how long a host has heard nothing: each has a clock of its own


@dataclass(frozen=True)
class Row:
    """How one job ended: each node's exit status and the first line of its failure file; seconds from event to last exit."""

    name: str
    event: Event
    statuses: tuple[int, ...]
    failures: tuple[str, ...]
    seconds: float
    output: str

    @property
    def problem(self) -> str:
        """What is not as it should be, "" where all is."""
        lost = self.event.lost(len(self.statuses))
        for number, (status, failure) in enumerate(zip(self.statuses, self.failures, strict=True)):
            if number in lost:
                continue
            last = len(self.statuses) + (self.event.act is None)
            says = self.event.says.format(last=last)
            if status != self.event.status:
                return f"algo-{number + 1} ended with {status}, not {self.event.status}: {failure}"
            if not failure.startswith(says) or bool(failure) != bool(says):
                return f"algo-{number + 1} says {failure!r}, not {says!r}"
        if (
            len({_SECONDS.sub("0 s", failure) for number, failure in enumerate(self.failures) if number not in lost}) > 1
            and "good" not in self.name
        ):
            return f"the nodes do not agree: {self.failures}"
        return ""

    @property
    def launcher(self) -> str:
        """The launcher's name."""
        return self.name.partition(",")[0]

    @property
    def said(self) -> list[str]:
        """The first lines on the nodes that are left, each once."""
        lost = self.event.lost(len(self.statuses))
        return list(dict.fromkeys(text for n, text in enumerate(self.failures) if n not in lost))

    @property
    def ends(self) -> list[str]:
        """Exit statuses in the nodes' order, a victim's in brackets."""
        lost = self.event.lost(len(self.statuses))
        return [f"({status})" if n in lost else str(status) for n, status in enumerate(self.statuses)]

    def markdown(self) -> str:
        """The row of the job."""
        return f"| {self.name} | {' '.join(self.ends)} | {quoted(self.said)} | {self.seconds:.1f} |"


def quoted(texts: Iterable[str]) -> str:
    """First lines of failure files as a cell of a table."""
    return "; ".join(f"`{one}`" if one else "success" for one in texts).replace("|", "\\|")


def general(row: Row) -> list[str]:
    """What a job said, in the same words for every number of nodes."""
    last = len(row.statuses) + (row.event.act is None)
    words = [(rf"\balgo-{last}\b", "algo-N"), (rf"\brank {last - 1}\b", "rank R"), (_SECONDS.pattern, "S s")]
    words += [(rf"\b{last - 1} of {last}\b", "N - 1 of N"), (r"within S s", f"within {COMES_SECONDS} s")]
    texts = row.said
    for pattern, word in words:
        texts = [re.sub(pattern, word, text) for text in texts]
    return texts


def table(rows: Sequence[Row]) -> str:
    """A row an event: ends and first lines of all its jobs, then each launcher's seconds by number of nodes."""
    launchers = list(dict.fromkeys(row.launcher for row in rows))
    lines = [["event", "exit status", "failure", *launchers]]
    lines.append(["---"] * len(lines[0]))
    for name in dict.fromkeys(row.event.name for row in rows):
        jobs = [row for row in rows if row.event.name == name]
        ends = dict.fromkeys(end for row in jobs for end in row.ends)
        said = dict.fromkeys(text for row in jobs for text in general(row))
        seconds = [" ".join(f"{row.seconds:.1f}" for row in jobs if row.launcher == one) for one in launchers]
        lines.append([name, " ".join(ends), quoted(said), *seconds])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def run(launcher: str, event: Event, nodes: int, containers: Containers, network: str) -> Row:
    """Runs one job; `containers` removes it."""
    names = [f"algo-{number + 1}" for number in range(nodes)]
    settings = {"trainshed_processes_per_host": 1, **{**LAUNCHERS, **ELASTIC}[launcher]}
    if event.act is None:
        settings["trainshed_host_timeout_seconds"] = COMES_SECONDS
    running = []
    for name in names if event.act else names[:-1]:
        job = containers.job(name).configure({**settings})
        job.write({"code/train.py": SCRIPT, "input/config/resourceconfig.json": {"current_host": name, "hosts": names}})
        environment = {"PYTHONPATH": "/toolkit", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        mount = ("--volume", f"{TOOLKIT}:/toolkit:ro")
        command = ("python3", "-m", "trainshed.container.main")
        running.append(containers.start(*command, job=job, env=environment, network=network, hostname=name, options=mount))
    if event.act:
        for one in running:
            one.wait_for("ready", timeout=LIMIT)
        began = time.time()
        event.act(running)
        if event.act is cut_for_a_while:
            began = time.time()
    else:
        began = time.time() + COMES_SECONDS
    done = [one.wait(timeout=LIMIT) for one in running]
    ends = [docker("inspect", "--format", "{{.State.FinishedAt}}", one.name).stdout.strip() for one in running]
    seconds = max(0.0, max(_seconds(text) for text in ends) - began)
    failures = tuple((one.job.read("output/failure").splitlines() or [""])[0] for one in running)
    output = "\n".join(f"--- {one.job.folder.name}\n{one.output[-2500:]}" for one in done)
    statuses = tuple(one.status for one in done)
    return Row(f"{launcher}, {nodes} nodes: {event.name}", event, statuses, failures, seconds, output)


def _seconds(text: str) -> float:
    """Docker's time (RFC 3339, nanoseconds, UTC) in seconds since the epoch."""
    whole, _, part = text.rstrip("Z").partition(".")
    moment = datetime.datetime.fromisoformat(whole).replace(tzinfo=datetime.timezone.utc)
    return moment.timestamp() + float(f"0.{part or 0}")


def in_a_network_of_its_own(launcher: str, event: Event, nodes: int, image: str) -> Row:
    """Runs one job and leaves nothing behind."""
    network = f"trainshed-test-{uuid.uuid4().hex[:12]}"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        containers = Containers(image=image, folder=Path(folder), session=uuid.uuid4().hex)
        docker("network", "create", "--label", f"{LABEL}={containers.session}", network)
        try:
            return run(launcher, event, nodes, containers, network)
        finally:
            containers.remove()
            docker("network", "rm", network)


def main() -> int:
    """Prints the table; 1 if a row is not as it should be."""
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs="*")
    parser.add_argument("--nodes", default="2,3,4")
    parser.add_argument("--jobs", type=int, default=4, help="how many at a time")
    options = parser.parse_args()
    image = image_build.build_cpu()
    cells = [
        (launcher, event, int(nodes), image)
        for nodes in options.nodes.split(",")
        for launcher, event in cells_of(int(nodes))
        if all(word in f"{launcher}, {nodes} nodes: {event.name}" for word in options.words)
    ]
    print("| job and event | exit status | failure | seconds |\n|---|---|---|---|", flush=True)
    bad = 0
    rows = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(lambda cell: in_a_network_of_its_own(*cell), cells):
            rows.append(row)
            print(row.markdown(), flush=True)
            if row.problem:
                bad += 1
                print(f"{row.name}: {row.problem}\n{row.output}", file=sys.stderr, flush=True)
    print(f"\n{table(rows)}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
