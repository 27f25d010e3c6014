"""Says what holds a training up, in one sentence, from what its ranks and their machines have measured.

A job goes as fast as the rank that waits least for the others: its steps are what counts. Of all that can be gained there,
the largest share wins; where nothing stands out, the model itself takes the time.
"""

from __future__ import annotations

import statistics

from trainshed.base.record import Record

from .steps import PHASES, phase_in_words, read_steps
from .system import read_system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from .steps import RankSteps
    from .system import Curves

LEAST_STEPS = 10  # that are worth a verdict
# Shares of a step from which on it is worth a word, by cause.
INPUT, COPY, CHECKPOINT, COMMUNICATION, STRAGGLER, OPTIMIZER, REST = 0.25, 0.15, 0.15, 0.25, 0.2, 0.35, 0.35
TINY_SECONDS, TINY_SAMPLES = 0.02, 8  # a step that is shorter, with fewer samples, costs mostly what any step costs
_IDLE = 0.25  # of a core and more is worth a loader's process
_WORK = ("forward", "backward", "optimizer")


class Verdict(Record):
    """
    cause: `input`, `copy`, `checkpoint`, `communication`, `straggler`, `optimizer`, `overhead`, `loop` or `compute`.
    share: of a step's time that it takes, 0 to 1.
    finding: what was seen, with its numbers. advice: what to try next.
    slowest: the rank that holds up the others, None where none does.
    step_seconds: of the ranks' steps on average.
    samples_a_second: of all ranks together, None where the loaders do not tell.
    phases: of the rank that waits least for the others, per step, in seconds, by names of `steps.PHASES`.
    """

    cause: str
    share: float
    finding: str
    advice: str
    slowest: int | None
    step_seconds: float
    samples_a_second: float | None
    phases: dict[str, float]

    def sentence(self) -> str:
        """For people: what, why, and what to do."""
        return f"{_NAMES[self.cause]}: {self.finding}; {self.advice}"


_NAMES = {
    "input": "input-bound",
    "copy": "copy-bound",
    "checkpoint": "checkpoint-bound",
    "communication": "communication-bound",
    "straggler": "held up by one rank",
    "optimizer": "optimizer-bound",
    "overhead": "overhead-bound",
    "loop": "held up outside the step",
    "compute": "compute-bound",
}


def read_verdict(*folders: str) -> Verdict | None:
    """The verdict on a run; None where its steps were not measured, or fewer than ten.

    Args:
        folders: the hosts' profiler folders (`<output>/profiler`).
    """
    ranks = read_steps(*folders)
    return verdict_of(ranks, read_system(*folders)) if ranks else None


def verdict_of(ranks: Iterable[RankSteps], system: Curves) -> Verdict | None:
    """The verdict on what was measured; of several lives of a rank the last one counts.

    Args:
        system: samples of the machines, {} without.
    """
    lives = _latest(ranks)
    found = [one for one in lives.values() if one.steps >= LEAST_STEPS and one.seconds > 0]
    if not found:
        return None
    steps = {one.rank: {name: seconds / one.steps for name, seconds in one.phases().items()} for one in found}
    lengths = {one.rank: one.seconds / one.steps for one in found}
    own = {rank: lengths[rank] - phases["communication"] for rank, phases in steps.items()}
    slow = max(own, key=lambda rank: own[rank])
    critical, length = lives[slow], lengths[slow]
    causes = _causes(critical, steps[slow], length, system)
    if (held_up := _straggler(slow, own, steps, length)) is not None:
        # What the slow rank does is the cause; that it does it alone is the news.
        causes = [held_up, *(cause for cause in causes if cause[0] == "overhead")]
    waiting = min(phases["communication"] for phases in steps.values())
    if waiting >= COMMUNICATION * length:
        causes.append(_communication(waiting / length, system, bool(critical.facts.get("Pipeline"))))
    worst = max(causes, key=lambda cause: cause[1]) if causes else _compute(critical, steps[slow], length)
    cause, share, finding, advice = worst
    samples = [_samples_a_second(one) for one in found]
    return Verdict(
        cause=cause,
        share=share,
        finding=finding,
        advice=advice,
        slowest=slow if held_up is not None else None,
        step_seconds=statistics.fmean(lengths.values()),
        samples_a_second=None if None in samples else sum(one or 0.0 for one in samples),
        phases=steps[slow],
    )


def _latest(ranks: Iterable[RankSteps]) -> dict[int, RankSteps]:
    """The last life of each rank, without ranks that had ended before another one began: a job may go on with fewer."""
    lives = {one.rank: one for one in ranks}
    began = max((one.windows[0].time - one.windows[0].seconds for one in lives.values()), default=0.0)
    return {rank: one for rank, one in lives.items() if one.windows[-1].time >= began}


_Cause = tuple[str, float, str, str]  # cause, share, finding, advice


def _causes(rank: RankSteps, phases: dict[str, float], length: float, system: Curves) -> list[_Cause]:
    """What stands out in the steps of one rank."""
    shares = {name: phases[name] / length for name in PHASES}
    if (tiny := _tiny(rank, shares, length)) is not None:
        return [tiny]
    found: list[_Cause] = []
    if shares["data"] >= INPUT:
        found.append(_input(rank, shares["data"], system))
    for name, least, seen, advice in (
        ("copy", COPY, "copies batches to the device", "try pin_memory=True and .to(device, non_blocking=True)"),
        (
            "checkpoint",
            CHECKPOINT,
            "waits for checkpoints",
            "save less often, or with trainshed.checkpoint in the background",
        ),
        ("rest", REST, "passes between two steps", "look for evaluation, logging or .item() in the loop"),
        ("optimizer", OPTIMIZER, "is the optimizer's", "try its fused=True, or accumulate gradients over several batches"),
    ):
        if shares[name] >= least:
            cause = "loop" if name == "rest" else name
            found.append((cause, shares[name], f"{_per_cent(shares[name])} of a step {seen}", advice))
    return found


def _tiny(rank: RankSteps, shares: dict[str, float], length: float) -> _Cause | None:
    """A step so short that most of it is what any step costs: the same for one sample as for many."""
    samples = [window.samples / window.steps for window in rank.windows if window.samples]
    share = sum(shares[name] for name in _WORK)
    # Other programs on the machine make a step longer, but not the work in it.
    used = [window.cpu / window.steps for window in rank.windows if window.cpu is not None]
    if used and rank.facts.get("Device") == "cpu":
        length = min(length, statistics.median(used))
    if not samples or statistics.median(samples) > TINY_SAMPLES or length >= TINY_SECONDS or share < 0.5:
        return None
    batch = statistics.median(samples)
    rows = f"{batch:g} sample{'s' if batch != 1 else ''}"
    seen = f"a step has {rows} and takes {_time(length)}, most of which any batch would take"
    return "overhead", share, seen, f"try a larger batch, such as {max(64, 8 * int(batch))}, with its learning rate"


def _input(rank: RankSteps, share: float, system: Curves) -> _Cause:
    facts = rank.facts
    workers, cpus = _whole(facts.get("Workers")), _whole(facts.get("Cpus"))
    seen = f"{_per_cent(share)} of a step waits for data"
    busy = _mean(system, "cpu", "cpus", "CPUUtilization", facts.get("Host"))
    idle = cpus * (1 - busy / 100) if cpus is not None and busy is not None else None
    ranks = max(1, _whole(facts.get("Ranks")) or 1)
    if workers is not None:
        seen += f"; num_workers={workers}"
        if idle is not None:
            seen += f", and {idle:.1f} of {cpus} CPUs are idle"
    if idle is not None and idle < _IDLE * ranks:
        return "input", share, seen, "the CPUs are the limit: make samples cheaper, or prepare them once before the training"
    more = max(1, round((idle or (cpus or 2)) / ranks))
    return "input", share, seen, f"try num_workers={max(more, (workers or 0) + 1)} in the DataLoader"


def _straggler(slow: int, own: dict[int, float], steps: dict[int, dict[str, float]], length: float) -> _Cause | None:
    """One rank that has more to do than the others: they wait for it, it waits for nobody."""
    others = [seconds for rank, seconds in own.items() if rank != slow]
    if not others:
        return None
    gain = own[slow] - statistics.median(others)
    # Where ranks do not wait for each other at all, none holds up the others.
    waited = statistics.median(phases["communication"] for rank, phases in steps.items() if rank != slow)
    if gain < STRAGGLER * length or waited < gain / 3:
        return None
    excess = {
        name: steps[slow][name] - statistics.median(phases[name] for rank, phases in steps.items() if rank != slow)
        for name in PHASES
        if name != "communication"
    }
    phase = max(excess, key=lambda name: excess[name])
    share = gain / length
    seen = (
        f"rank {slow} needs {_time(own[slow])} for a step, the others {_time(statistics.median(others))} "
        f"and then wait for it; the difference is in its {phase_in_words(phase)}"
    )
    return (
        "straggler",
        share,
        seen,
        f"look at what rank {slow} alone does: its host, its share of the data, its part of the model",
    )


def _communication(share: float, system: Curves, pipeline: bool) -> _Cause:
    seen = f"{_per_cent(share)} of a step waits for other ranks, on every rank"
    if pipeline:
        return "communication", share, seen, "try more microbatches, or another schedule or cut (docs/pipeline.md)"
    links = [
        (sum(value for _, value in points) / len(points), name)
        for (_, kind, name, dimension), points in system.items()
        if kind == "network" and dimension == "TransmitBytesPerSecond" and points
    ]
    rate, name = max(links, default=(0.0, ""))
    if rate > 1e5:
        seen += f"; {name} sends {rate / 1e6:.1f} MB/s"
    return "communication", share, seen, "try gradient accumulation (no_sync), gradients in bfloat16, or a faster network"


def _compute(rank: RankSteps, phases: dict[str, float], length: float) -> _Cause:
    share = (phases["forward"] + phases["backward"]) / length
    seen = f"{_per_cent(share)} of a step is forward and backward"
    device = rank.facts.get("Device", "cpu")
    advice = "try mixed precision or trainshed_compiler=auto" if device != "cpu" else "try trainshed_compiler=auto"
    return "compute", share, seen, f"{advice}; `trainshed profile` names the operators"


def _whole(value: object) -> int | None:
    """A whole number that a file says, from 0 to a million; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 10**6 else None


def _samples_a_second(rank: RankSteps) -> float | None:
    known = [window for window in rank.windows if window.samples is not None]
    seconds = sum(window.seconds for window in known)
    return sum(window.samples or 0 for window in known) / seconds if seconds else None


def _mean(system: Curves, kind: str, name: str, dimension: str, node: object) -> float | None:
    """Of all samples of one host."""
    points = system.get((str(node), kind, name, dimension))
    return sum(value for _, value in points) / len(points) if points else None


def _per_cent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _time(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
