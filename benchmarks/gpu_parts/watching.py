"""What watching a job costs, and where ranks are put."""

from __future__ import annotations

from .kit import JOBS, Machine, Row, measured, run, succeeded

GOAL = 0.5  # % of a core


def rows(machine: Machine) -> list[Row]:
    """The sampler (NVML), and the CPUs of a rank."""
    return [*_sampler(machine), *_binding(machine)]


def _sampler(machine: Machine) -> list[Row]:
    shares: dict[str, list[float]] = {"off": [], "auto": []}
    seconds = machine.pick(15, 2)
    for number in range(machine.pick(2, 1)):
        for setting, kept in shares.items():
            done = succeeded(
                run(
                    machine,
                    f"sampler-{setting}-{number}",
                    JOBS / "busy.py",
                    {"seconds": seconds, "trainshed_system_metrics": setting},
                )
            )
            kept.append(done.cpu - done.result["cpu"])
    gained = 100 * (min(shares["auto"]) - min(shares["off"])) / seconds
    return [
        measured(f"CPU of train beside a job of {seconds} s, no sampler", shares["off"], "s"),
        measured("the same with the sampler", shares["auto"], "s"),
        machine.judged("the sampler, of a core", gained, "%", f"at most {GOAL}", gained <= GOAL, "its start is part of it"),
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
