"""What watching a job costs, and where ranks are put."""

from __future__ import annotations

from .kit import JOBS, Machine, Row, run, succeeded

GOAL = 0.5  # % of a core


def rows(machine: Machine) -> list[Row]:
    """The sampler (NVML), and the CPUs of a rank."""
    return [*_sampler(machine), *_binding(machine)]


def _sampler(machine: Machine) -> list[Row]:
    """A short and a long job each, so that the start of the sampler does not count."""
    short, long = machine.pick(5, 1), machine.pick(30, 3)
    spent: dict[tuple[str, int], float] = {}
    for setting in ("off", "auto"):
        for seconds in (short, long):
            job = {"seconds": seconds, "trainshed_system_metrics": setting}
            done = succeeded(run(machine, f"sampler-{setting}-{seconds}", JOBS / "busy.py", job))
            spent[setting, seconds] = done.cpu - done.result["cpu"]
    start = spent["auto", short] - spent["off", short]
    gained = 100 * (spent["auto", long] - spent["off", long] - start) / (long - short)
    return [
        Row("CPU of train beside a job, no sampler", spent["off", long], "s", note=f"{long} s"),
        Row("the same with the sampler", spent["auto", long], "s"),
        Row("the sampler's start, and its first seconds", start, "s", note=f"of CPU, beside {short} s"),
        machine.judged("the sampler from then on, of a core", gained, "%", f"at most {GOAL}", gained <= GOAL),
    ]


def _binding(machine: Machine) -> list[Row]:
    found = []
    for setting in ("none", "cores", "numa"):
        done = succeeded(run(machine, f"bind-{setting}", JOBS / "busy.py", {"seconds": 0.1, "trainshed_bind": setting}))
        result = done.result
        found.append(
            Row(
                f"bind={setting}", f"{len(result['affinity'])} CPUs, from {result['affinity'][0]}",
                note=f"{result['threads']} threads, OMP_NUM_THREADS={result['omp'] or 'unset'}",
            )
        )  # fmt: skip
    return found
