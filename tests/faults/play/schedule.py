"""What happens to which job: one frozen value, drawn from a seed and a number."""

from __future__ import annotations

import random
from dataclasses import dataclass

# How often each is drawn, relative to the others. What needs torch takes seconds of CPU, the rest a tenth of one.
# `run` is `trainshed run` with its hosts as processes; the others are `train` on hosts of their own.
LAUNCHERS = {"script": 42, "torchrun": 30, "mpi": 10, "run": 14, "ddp": 2, "elastic": 2}
HOSTS = {1: 30, 2: 35, 3: 22, 4: 13}
FAULTS = {
    "TERM": 16,
    "INT": 6,
    "HUP": 4,
    "kill rank": 12,
    "kill train": 10,
    "kill host": 10,
    "pause rank": 5,
    "pause train": 5,
    "pause host": 5,
    "cut": 9,
    "slow": 4,
    "loss": 4,
    "full": 10,
}
SIGNALS = ("TERM", "INT", "HUP")
NETWORK = ("cut", "slow", "loss")
# birth: while Python starts; joining: while the last host has not come; launching: about when ranks start; installing: pip
# waits for its index; random: seconds from the start of the job; the others are phases of a rank's script.
MOMENTS = {
    "birth": 8,
    "joining": 10,
    "launching": 14,
    "installing": 4,
    "random": 14,
    "start": 8,
    "training": 18,
    "saving": 12,
    "ending": 12,
}
# For `run`: what happens to the runner, its hosts, or the disk of its folder; collecting: while it packs the results.
RUN_FAULTS = {"TERM": 12, "INT": 8, "HUP": 4, "stop": 10, "kill runner": 14, "kill rank": 8, "kill train": 8, "full": 14}
RUN_MOMENTS = {"birth": 8, "random": 14, "start": 8, "training": 14, "saving": 10, "ending": 12, "collecting": 24}
PHASES = ("start", "training", "saving", "ending")
PLACES = ("model", "output", "checkpoints", "tmp")
LONGEST_AFTER = {"birth": 0.06, "joining": 1.0, "launching": 0.5, "random": 3.0}  # seconds; 0.2 after all other moments


@dataclass(frozen=True)
class Fault:
    """One thing that happens.

    kind: a key of FAULTS. moment: a key of MOMENTS. after: seconds from that moment.
    host: number of the host that it happens to. rank: of that host's ranks.
    seconds: how long a pause or a cut lasts; 0 means for good. loss: share of packets. place: the disk that is full.
    """

    kind: str
    moment: str
    after: float
    host: int
    rank: int = 0
    seconds: float = 0.0
    loss: float = 0.0
    place: str = ""

    def __str__(self) -> str:
        more = [f"rank {self.rank}"] if self.kind.endswith("rank") else []
        more += [f"{self.seconds:g} s" if self.seconds else "for good"] if self.kind.startswith(("pause", "cut")) else []
        more += [f"{self.loss:.0%}"] if self.loss else []
        more += [self.place] if self.place else []
        where = f"algo-{self.host + 1}" + (f" ({', '.join(more)})" if more else "")
        return f"{self.kind} {where} {self.after:.3f} s after {self.moment}"


@dataclass(frozen=True)
class Schedule:
    """A job, and what happens to it.

    seed, number: it is drawn from both. init: `train` is process 1 of its host, as in a container.
    handles: the script saves and ends well after a stop signal. delays: seconds until each host starts.
    steps, pause: of the script; seconds.
    """

    seed: str
    number: int
    launcher: str
    hosts: int
    ranks: int
    init: bool
    handles: bool
    steps: int
    pause: float
    delays: tuple[float, ...]
    faults: tuple[Fault, ...]

    @property
    def name(self) -> str:
        """By which it can be drawn again."""
        return f"{self.seed}.{self.number}"

    def __str__(self) -> str:
        what = f"{self.launcher}, {self.hosts} host(s) of {self.ranks} rank(s)"
        what += ", as process 1" if self.init else ""
        what += "" if self.handles else ", no handler"
        return f"{what}: {'; '.join(map(str, self.faults)) or 'nothing'}"


def draw(seed: str, number: int) -> Schedule:
    """The schedule of this name; the same for all time, on every machine."""
    dice = random.Random(f"{seed}.{number}")
    launcher = _one_of(dice, LAUNCHERS)
    hosts = min(_one_of(dice, HOSTS), 2 if launcher in ("ddp", "elastic", "run") else 4)
    ranks = dice.choice((1, 2)) if launcher in ("torchrun", "mpi") else 1
    make = _run_fault if launcher == "run" else _fault
    faults = tuple(make(dice, hosts, ranks) for _ in range(1 if dice.random() < 0.85 else 2))
    delays = [round(dice.uniform(0.0, 0.4), 3) for _ in range(hosts)]
    if any(fault.moment == "joining" for fault in faults):
        waited_for = dice.choice([number for number in range(hosts) if all(number != fault.host for fault in faults)] or [0])
        delays[waited_for] = round(dice.uniform(1.5, 3.0), 3)
    return Schedule(
        seed=seed,
        number=number,
        launcher=launcher,
        hosts=hosts,
        ranks=ranks,
        init=dice.random() < 0.4,
        handles=dice.random() < 0.6,
        steps=dice.randint(4, 12),
        pause=round(dice.uniform(0.05, 0.25), 3),
        delays=tuple(delays),
        faults=faults,
    )


def _one_of(dice: random.Random, weights: dict[str, int] | dict[int, int]) -> str:
    return dice.choices(list(weights), list(weights.values()))[0]  # type: ignore[return-value]


def _fault(dice: random.Random, hosts: int, ranks: int) -> Fault:
    kind = _one_of(dice, {name: weight for name, weight in FAULTS.items() if hosts > 1 or name not in NETWORK})
    moments = {
        name: weight
        for name, weight in MOMENTS.items()
        if (hosts > 1 or name != "joining")
        and not (kind.endswith("rank") and name not in PHASES)  # there is no rank before
        and not (kind == "full" and name in ("birth", "joining", "installing"))
    }
    moment = _one_of(dice, moments)
    longest = LONGEST_AFTER.get(moment, 0.2)
    seconds = 0.0
    if kind.startswith("pause"):
        seconds = dice.choice((0.5, 2.0, 2.0, 5.0, 35.0))
    elif kind == "cut":
        seconds = dice.choice((1.0, 4.0, 10.0, 0.0, 0.0))
    return Fault(
        kind=kind,
        moment=moment,
        after=round(dice.uniform(0.0, longest), 3),
        host=dice.randrange(hosts),
        rank=dice.randrange(ranks),
        seconds=seconds,
        loss=dice.choice((0.1, 0.2, 0.4)) if kind == "loss" else 0.0,
        place=dice.choice(PLACES) if kind == "full" else "",
    )


def _run_fault(dice: random.Random, hosts: int, ranks: int) -> Fault:
    """A fault of `trainshed run`."""
    kind = _one_of(dice, RUN_FAULTS)
    late = ("birth", "random", "collecting") if kind in ("kill rank", "kill train", "stop") else ()
    moment = _one_of(dice, {name: weight for name, weight in RUN_MOMENTS.items() if name not in late})
    after = round(dice.uniform(0.0, LONGEST_AFTER.get(moment, 0.2)), 3)
    return Fault(kind, moment, after, dice.randrange(hosts), place="run" if kind == "full" else "")
