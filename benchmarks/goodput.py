"""What interruptions cost: one training on several hosts whose ranks are killed at random, with each measure and with all.

    python benchmarks/goodput.py                          # 20 minutes, divided among the variants
    python benchmarks/goodput.py --minutes 140            # 20 minutes each
    python benchmarks/goodput.py --hosts 8 --only undisturbed disk all
    python benchmarks/goodput.py --kills 200              # steps that copies in memory lose beyond their promise

Hosts are processes on this machine, of one rank each; `trainshed chaos` kills the rank of one every `--every` seconds on
average, in each variant at the same moments. The peer is torchrun's elastic agent, one on each host, with torch's
`async_save` (goodput_jobs/peer.py); a checkpoint every `--steps` steps, as in all variants that do not find the interval.

Goodput is the steps that a variant has made at the end of its time, each worth what it takes undisturbed, over all of that
time, the first start included. Its losses are compared with those of the undisturbed run, step by step, on each rank. The
simulator (`trainshed.studio.simulation`) is given a variant's own step, restart, interval and kills, and has to come to
the same number of steps.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from _claims import claim

from trainshed.machine.network import free_port
from trainshed.studio.forecast import Case
from trainshed.studio.simulation import Fleet, replayed

FOLDER = Path(__file__).resolve().parent
SCRIPTS = (FOLDER / "_decoder.py", *(FOLDER / "goodput_jobs").iterdir())
ENDLESS, MOST_RESTARTS = 10**9, 1000  # steps; times, the most that a job takes
RETRIES = 30  # after three failures in a row without a newer checkpoint
PATIENCE = 300.0  # seconds after its time, in which a job has to end
GOAL, OFF = 90.0, 3.0  # per cent: of goodput, and between the simulator and a run
MEMORY = {"every_steps": 1, "copies": 1}


class Variant(NamedTuple):
    """One way to go on after an interruption. checkpoints, warm: of the job. memory: steps between copies in memory."""

    name: str
    program: str = "ours.py"
    checkpoints: dict[str, Any] | None = None
    warm: bool = False

    @property
    def memory(self) -> int:
        return MEMORY["every_steps"] if "memory" in (self.checkpoints or {}) else 0


PLAIN = Variant("undisturbed")
TOGETHER = Variant("all", checkpoints={"every": "auto", "memory": MEMORY}, warm=True)
VARIANTS = (
    PLAIN,
    Variant("disk"),
    Variant("auto", checkpoints={"every": "auto"}),
    Variant("warm", warm=True),
    Variant("memory", checkpoints={"memory": MEMORY}),
    TOGETHER,
    Variant("torchrun", program="agent.sh"),
)


class Life(NamedTuple):
    """Of a rank, from one start to the next. start: the step that it goes on from. steps: lines of its log."""

    start: int
    pid: int
    steps: list[dict[str, float]]


class Ended(NamedTuple):
    """A job that has ended. ranks: the lives of each. Moments in seconds since 1970."""

    began: float
    over: float
    kills: list[float]
    ranks: list[list[Life]]
    ledger: float | None


def lives_of(path: Path, over: float = float("inf")) -> list[Life]:
    """What a log tells of the time before it was over; a last line that a kill has cut is left out."""
    found: list[Life] = []
    for line in path.read_text().split("\n")[:-1] if path.exists() else []:
        told = json.loads(line)
        if "start" in told:
            found.append(Life(told["start"], told["pid"], []))
        elif told["at"] <= over:
            found[-1].steps.append(told)
    return found


class Job:
    """A job of a variant, in a folder of its own.

    Args:
        every: steps between checkpoints; 0 for none.
        steps: after which it ends, if not before.
    """

    def __init__(self, variant: Variant, place: Path, options: argparse.Namespace, every: int, steps: int = ENDLESS) -> None:
        self.folder, self.log, self.hosts = place, place / "log", options.hosts
        self.log.mkdir(parents=True)
        for script in SCRIPTS:
            shutil.copy(script, place)
        given = {
            "LOG": self.log, "STEPS": steps, "EVERY": every, "LAYERS": options.layers, "WIDTH": options.width,
            "HOSTS": options.hosts, "PORT": free_port(0), "PYTHON": sys.executable,
        }  # fmt: skip
        restarts = {"kind": "torchrun", "engine": "trainshed", "processes_per_host": 1, "max_restarts": MOST_RESTARTS}
        job = {
            "name": variant.name,
            "program": variant.program,
            "instances": options.hosts,
            "retries": RETRIES,
            "environment": {"OMP_NUM_THREADS": "1", **{f"BENCH_{name}": str(value) for name, value in given.items()}},
            "hyperparameters": {"trainshed_warm_start": "auto" if variant.warm else "off"},
            **({"distribution": restarts, "profile": "auto"} if variant.program == "ours.py" else {}),
            **({"checkpoints": variant.checkpoints} if variant.checkpoints else {}),
        }
        (place / "job.yaml").write_text(json.dumps(job))
        own = {"PYTHONPATH": str(FOLDER.parent / "toolkit"), "XDG_STATE_HOME": str(place / "state")}
        self.environ = {**os.environ, **own}

    @contextmanager
    def trainshed(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        """A command on the job file that goes on; stopped as by Ctrl-C if it does afterwards."""
        command = [sys.executable, "-m", "trainshed.cli", words[0], "job.yaml", *words[1:]]
        with (self.folder / "stdout").open("w") as out:
            process = subprocess.Popen(
                command, cwd=self.folder, env=self.environ, stdout=out, stderr=subprocess.PIPE, text=True
            )
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.send_signal(signal.SIGINT)
                process.wait()

    def lives(self, over: float = float("inf")) -> list[list[Life]]:
        """Of each rank."""
        return [lives_of(self.log / f"log.{rank}", over) for rank in range(self.hosts)]

    def play(self, seconds: float, words: Sequence[str]) -> Ended:
        """Lets it run for so long. words: the command.

        Raises:
            RuntimeError: the job failed.
        """
        began, kills, said = time.time(), [], []
        over = began + seconds
        timers = [threading.Timer(seconds, (self.log / "over").touch)]
        with self.trainshed(*words) as process:
            timers.append(threading.Timer(seconds + PATIENCE, process.send_signal, (signal.SIGINT,)))
            for timer in timers:
                timer.start()
            assert process.stderr is not None
            for line in process.stderr:
                said.append(line)
                kills += [time.time()] if "chaos: kill rank" in line else []
        for timer in timers:
            timer.cancel()
        if process.returncode:
            raise RuntimeError(f"{self.folder.name} ended with status {process.returncode}:\n{''.join(said[-30:])}")
        share = None
        if words[0] == "chaos":
            share = (json.loads((self.folder / "stdout").read_text())["goodput"] or {}).get("Share")
        return Ended(began, over, [at for at in kills if at < over], self.lives(over), share)


class Result(NamedTuple):
    """What a variant came to. Shares of 1, seconds.

    again: steps made more than once. step: what one takes here. restart: from a kill to the next step. interval: steps
    between checkpoints. other: losses that are not those of the undisturbed run. simulated: the goodput that the simulator
    comes to. ledger: the goodput that trainshed tells.
    """

    name: str
    goodput: float
    steps: int
    again: int
    kills: int
    step: float
    restart: float
    interval: float
    compared: int
    other: int
    simulated: float
    ledger: float | None

    @property
    def off(self) -> float:
        """How far the simulator is from the run, in per cent of the run's goodput."""
        return 100 * abs(self.simulated / self.goodput - 1)


def judge(variant: Variant, ended: Ended, right: Sequence[dict[int, float]], worth: float, every: int) -> Result:
    """What a job came to. right: each rank's losses undisturbed. worth: seconds of an undisturbed step."""
    lives = [life for life in ended.ranks[0] if life.steps]
    steps, step = lives[-1].start + len(lives[-1].steps), step_of(lives)
    made = sum(len(life.steps) for life in lives)
    restarts = [
        life.steps[0]["at"] - step - max(before)
        for last, life in pairwise(lives)
        if (before := [at for at in ended.kills if last.steps[0]["at"] < at < life.steps[0]["at"]])
    ]
    restart = statistics.mean(restarts) if restarts else 0.0
    saved = sorted({one["durable"] for life in lives for one in life.steps} - {0})
    interval = statistics.mean(b - a for a, b in pairwise(saved)) if len(saved) > 1 else float(every or ENDLESS)
    case = Case(1.0, 0.0, restart, interval * step, memory=variant.memory * step, memory_stall=0.0)
    first = lives[0].steps[0]["at"] - step
    failures = [at - first for at in ended.kills if at > first]
    expected = replayed(Fleet(case, len(ended.ranks)), ended.over - first, failures).goodput * (ended.over - first) / step
    value = worth / (ended.over - ended.began)
    pairs = [
        (one["loss"], losses.get(int(one["step"])))
        for rank, losses in zip(ended.ranks, right, strict=True) for life in rank for one in life.steps
    ]  # fmt: skip
    known = [(ours, theirs) for ours, theirs in pairs if theirs is not None]
    return Result(
        variant.name, steps * value, steps, made - steps, len(ended.kills), step, restart, interval,
        len(known), sum(ours != theirs for ours, theirs in known), expected * value, ended.ledger,
    )  # fmt: skip


def step_of(lives: Sequence[Life]) -> float:
    """Seconds of a step, checkpoints included; each life's first step is part of its start."""
    return statistics.mean(b["at"] - a["at"] for life in lives for a, b in pairwise(life.steps))


def losses_of(ranks: Sequence[Sequence[Life]]) -> list[dict[int, float]]:
    """Each rank's loss of each step."""
    return [{int(one["step"]): one["loss"] for life in rank for one in life.steps} for rank in ranks]


def table(results: Sequence[Result]) -> str:
    """Markdown: a row a variant."""
    head = (
        "variant", "goodput", "steps", "made again", "kills", "s a step", "s to start again", "steps a checkpoint",
        "other losses", "simulator", "ledger",
    )  # fmt: skip
    rows = [
        (
            one.name, f"{100 * one.goodput:.1f} %", one.steps, one.again, one.kills, f"{one.step:.3f}", f"{one.restart:.1f}",
            f"{one.interval:.0f}" if one.interval < ENDLESS else "", f"{one.other} of {one.compared}",
            f"{100 * one.simulated:.1f} %", f"{100 * one.ledger:.1f} %" if one.ledger is not None else "",
        )
        for one in results
    ]  # fmt: skip
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (head, ["---"] * len(head), *rows))


def compare(options: argparse.Namespace, place: Path) -> tuple[dict[str, Any], bool]:
    """All variants, one after the other; what they came to, and whether it is well."""
    chosen = [one for one in VARIANTS if one.name in {*options.only, PLAIN.name}]
    seconds, chaos = 60 * options.minutes / len(chosen), ("chaos", "--kinds", "kill", "--json")
    words = (*chaos, "--every", f"{options.every}s", "--chaos-seed", str(options.seed))
    results, right, worth = [], [], 0.0
    for variant in chosen:
        every = 0 if variant == PLAIN else options.steps
        ended = Job(variant, place / variant.name, options, every).play(seconds, ("run",) if variant == PLAIN else words)
        if variant == PLAIN:
            right, worth = losses_of(ended.ranks), step_of(ended.ranks[0])
        results.append(judge(variant, ended, right, worth, every))
        print(f"{variant.name}: {100 * results[-1].goodput:.1f} %", file=sys.stderr, flush=True)
    print(f"{options.hosts} hosts, {seconds:.0f} s each, a kill every {options.every:g} s on average\n")
    print(table(results), end="\n\n")
    return {"variants": [one._asdict() for one in results]}, claimed(results, options.hosts)


def claimed(results: Sequence[Result], hosts: int) -> bool:
    """Tells what is claimed of the variants, and whether it holds."""
    peer = next((100 * one.goodput for one in results if one.name == "torchrun"), None)
    well = True
    for one in results:
        told = f"{one.name}, {hosts} hosts"
        if one.name == TOGETHER.name:
            goal = {"limit": GOAL, "peer": peer, "peer_name": "torchrun", "at_least": True}
            well &= claim(f"{told}: goodput", 100 * one.goodput, "%", **goal)
        if one.name != PLAIN.name:
            well &= claim(f"{told}: losses other than undisturbed", one.other, "", limit=0)
            well &= claim(f"{told}: simulator and run apart", one.off, "%", limit=OFF)
    return well


def kill_many(options: argparse.Namespace, place: Path) -> tuple[dict[str, Any], bool]:
    """Kills ranks of a small job, each time after some steps; counts finished steps that were lost beyond the promise."""
    chance, job = random.Random(options.seed), Job(TOGETHER, place / "killed", options, ENDLESS)
    with job.trainshed("run") as process:
        threading.Thread(target=process.communicate, daemon=True).start()  # reads what the job says
        for number in range(options.kills + 1):
            await_steps(job, process, number)
            if number == options.kills:
                (job.log / "over").touch()
                process.wait(PATIENCE)
                break
            time.sleep(chance.random())
            os.kill(chance.choice(job.lives())[-1].pid, signal.SIGKILL)
            print(f"\rkill {number + 1}", end="", file=sys.stderr, flush=True)
    ranks = job.lives()
    steps = [[life.start + len(life.steps) for life in rank] for rank in ranks]
    finished = [min(each) for each in zip(*steps, strict=True)]  # by all ranks, in each life
    lost = [before - life.start for before, life in zip(finished, ranks[0][1:], strict=False)]
    beyond = sum(max(0, one - MEMORY["every_steps"]) for one in lost)
    straight = Job(PLAIN, place / "straight", options, 0, finished[-1]).play(PATIENCE + finished[-1], ("run",))
    right = losses_of(straight.ranks)
    other = sum(
        one["loss"] != losses.get(int(one["step"]))
        for rank, losses in zip(ranks, right, strict=True) for life in rank for one in life.steps
        if one["step"] <= finished[-1]
    )  # fmt: skip
    told = {"kills": options.kills, "steps": finished[-1], "lost": sum(lost), "most": max(lost), "other": other}
    print(f"\n{told}")
    well = claim(f"{options.kills} kills: steps lost beyond the promise", beyond, "", limit=0)
    return {**told, "beyond": beyond}, well & claim("the same: losses other than undisturbed", other, "", limit=0)


def await_steps(job: Job, process: subprocess.Popen[str], starts: int) -> None:
    """Until all ranks have made a step since their last start.

    Raises:
        RuntimeError: the job has ended, or nothing comes.
    """
    until = time.monotonic() + PATIENCE
    while not all(len(rank) > starts and rank[-1].steps for rank in job.lives()):
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"no step after start {starts}; the job's files are in {job.folder}")
        time.sleep(0.05)


def main() -> int:
    """Measures, prints and claims; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [one.name for one in VARIANTS]
    parser.add_argument("--minutes", type=float, default=20, help="of all variants together")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--every", type=float, default=60, help="seconds between two kills, on average")
    parser.add_argument("--steps", type=int, default=50, help="between two checkpoints on disk")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--kills", type=int, default=0, help="kill so often instead, and count steps lost beyond the promise"
    )
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-goodput-") as folder:
        found, well = (kill_many if options.kills else compare)(options, Path(folder))
    if options.json:
        given = {name: value for name, value in vars(options).items() if name != "json"}
        options.json.write_text(json.dumps({**given, **found}, indent=1) + "\n")
    return int(not well)


if __name__ == "__main__":
    sys.exit(main())
