"""What a trial of `trainshed tune` costs, and what ASHA saves.

    python benchmarks/tune.py                     # both
    python benchmarks/tune.py --only asha --seeds 200

overhead: a script that measures one value and ends, 16 trials one after the other: as processes of a bare loop,
of Optuna's own loop (JournalStorage), of Ray Tune where that is installed, by `trainshed run`, and by
`trainshed tune`. The last two keep logs, metrics, code, status and archives of each.

asha: trials whose learning curves are formulas, so a seed costs little; the tuner's own functions choose values
and stop trials. How many training steps does ASHA need to find a trial as good as the best of a random search over
30 whole trials?
"""

from __future__ import annotations

import argparse
import heapq
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _claims import claim

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "toolkit"))

from trainshed.studio.tune.early import asha_stops, reached, rungs  # noqa: E402
from trainshed.studio.tune.space import CONTINUOUS, LOG, Parameter  # noqa: E402
from trainshed.studio.tune.tuning import ASHA, EarlyStopping, Objective  # noqa: E402

SCRIPT = 'import sys\nprint("metric loss=" + sys.argv[-1])\n'
TRIALS = 16
STEPS, WHOLE, PARALLEL = 81, 30, 4
LEAST_PART = 1 / 3


def main() -> None:
    """Reads the command line and prints what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("overhead", "asha"), default="")
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3, help="of the overhead; the least of each counts")
    options = parser.parse_args()
    if options.only != "asha":
        overhead(options.rounds)
    if options.only != "overhead":
        asha(options.seeds)


# --- overhead --------------------------------------------------------------------------------------------------------


def overhead(rounds: int) -> None:
    """Prints seconds a trial, wall and CPU, of each way."""
    ways = {"bare loop": bare, "optuna": with_optuna, "ray tune": with_ray, "trainshed run": runs, "trainshed tune": tunes}
    print(f"seconds a trial, wall / CPU: {TRIALS} trials one after the other, the least of {rounds} rounds")
    least: dict[str, tuple[float, float]] = {}
    for _ in range(rounds):
        for name, way in ways.items():
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "train.py").write_text(SCRIPT)
                began, cpu = time.perf_counter(), _cpu()
                if not way(folder):
                    continue
                took = ((time.perf_counter() - began) / TRIALS, (_cpu() - cpu) / TRIALS)
            least[name] = min(took, least.get(name, took))
    peers = {name: least[name][1] for name in ("optuna", "ray tune") if name in least}
    peer = min(peers, key=lambda name: peers[name], default="")
    claim("tune: a trial's own cost", least["trainshed tune"][1], "CPU s", peer=peers.get(peer), peer_name=peer)
    for name in ways:
        if name in least:
            print(f"  {name:<16} {least[name][0]:7.3f} / {least[name][1]:.3f}")
        else:
            print(f"  {name:<16} not installed here: not measured")


def _cpu() -> float:
    """CPU seconds of this process and all that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _script(folder: str, value: object) -> float:
    done = subprocess.run([sys.executable, f"{folder}/train.py", str(value)], check=True, capture_output=True, text=True)
    return float(done.stdout.partition("=")[2])


def bare(folder: str) -> bool:
    """Each trial a process, and nothing kept."""
    for number in range(TRIALS):
        _script(folder, number)
    return True


def with_optuna(folder: str) -> bool:
    """Optuna's loop around the same process, its journal in a file."""
    try:
        import optuna
    except ImportError:
        return False
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(f"{folder}/journal.log"))
    study = optuna.create_study(storage=storage, sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(lambda trial: _script(folder, trial.suggest_float("x", 0, 1)), n_trials=TRIALS)
    return True


def with_ray(folder: str) -> bool:
    """Ray Tune's loop around the same process."""
    try:
        from ray import tune
    except ImportError:
        return False

    def trainable(config: dict[str, float]) -> dict[str, float]:
        return {"loss": _script(folder, config["x"])}

    config = tune.TuneConfig(num_samples=TRIALS, max_concurrent_trials=1)
    tune.Tuner(trainable, param_space={"x": tune.uniform(0, 1)}, tune_config=config).fit()
    return True


def _trainshed(folder: str, *words: str) -> None:
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "toolkit"), "XDG_STATE_HOME": f"{folder}/state"}
    command = [sys.executable, "-m", "trainshed", *words]
    subprocess.run(command, cwd=folder, env=environ, check=True, capture_output=True)


def runs(folder: str) -> bool:
    """`trainshed run`, once a trial."""
    for number in range(TRIALS):
        _trainshed(folder, "run", "train.py", "--hp", f"xx={number}", "--output", f"{folder}/out/{number}")
    return True


def tunes(folder: str) -> bool:
    """`trainshed tune`."""
    text = f"job: {{program: train.py}}\nsearch: {{xx: {{low: 1, high: {TRIALS}}}}}\nobjective: minimize loss\n"
    Path(folder, "tune.yaml").write_text(f"{text}strategy: grid\n")
    _trainshed(folder, "tune", "tune.yaml")
    return True


# --- ASHA ------------------------------------------------------------------------------------------------------------


OBJECTIVE = Objective("loss")
SPACE = (
    Parameter("rate", CONTINUOUS, 1e-5, 1.0, LOG),
    Parameter("decay", CONTINUOUS, 1e-6, 1e-1, LOG),
    Parameter("drop", CONTINUOUS, 0.0, 0.9),
)


def curve_of(values: dict[str, str], noise: random.Random) -> list[tuple[float, float]]:
    """A training's losses: the nearer to a good point, the lower they end; some start slowly, all are noisy."""
    rate, decay, drop = (float(values[name]) for name in ("rate", "decay", "drop"))
    far = (math.log10(rate) + 2.5) ** 2 / 4 + (math.log10(decay) + 3.5) ** 2 / 12 + (drop - 0.3) ** 2 * 2
    end = 0.1 + 0.3 * far
    pace = 0.5 + 0.5 * noise.random()
    return [(float(step), end + 2.0 * step**-pace + 0.02 * noise.gauss(0, 1)) for step in range(1, STEPS + 1)]


def play(seed: int, early: EarlyStopping | None, budget: int, goal: float = -math.inf) -> tuple[int, float]:
    """(training steps, the best end of a whole trial) when the budget is used up or the goal is reached."""
    draw = random.Random(seed)
    whole: dict[int, list[tuple[float, float]]] = {}
    shown: dict[int, list[tuple[float, float]]] = {}
    moments = [(0.0, worker, 0) for worker in range(PARALLEL)]  # (time, worker, trial that has made a step; 0 for none)
    used, best, started = 0, math.inf, 0
    while used < budget and best > goal:
        now, worker, number = heapq.heappop(moments)
        if number:
            used += 1
            curve = shown[number]
            curve.append(whole[number][len(curve)])
            over = len(curve) == STEPS
            if over:
                best = min(best, curve[-1][1])
            elif early is not None:
                rung = next((rung for rung in rungs(early, 0) if rung == curve[-1][0]), None)
                over = rung is not None and bool(asha_stops(number, rung, shown, early, OBJECTIVE))
                assert rung is None or reached(curve, rung) is not None
            if not over:
                heapq.heappush(moments, (now + 1, worker, number))
                continue
        number = started = started + 1
        values = {parameter.name: parameter.at(draw.random()) for parameter in SPACE}
        whole[number], shown[number] = curve_of(values, random.Random(f"{seed}/{number}")), []
        heapq.heappush(moments, (now + 1, worker, number))
    return used, best


def asha(seeds: int) -> None:
    """Prints which part of random search's steps ASHA needs to be as good."""
    early = EarlyStopping(ASHA, least=1, most=STEPS, factor=3)
    budget = WHOLE * STEPS
    parts = []
    for seed in range(seeds):
        _, good = play(seed, None, budget)
        used, best = play(seed + 10_000, early, 2 * budget, good)
        parts.append(used / budget if best <= good else math.inf)
    low, middle, high = (statistics.quantiles(parts, n=10)[at] for at in (0, 4, 8))
    within = sum(part <= LEAST_PART for part in parts)
    print(f"\nASHA until it is as good as the best of {WHOLE} whole random trials of {STEPS} steps, {PARALLEL} at a time;")
    print(f"other values than the random search had; part of its steps, over {seeds} seeds:")
    print(f"  median {middle:.2f}, 10 % to 90 %: {low:.2f} to {high:.2f}; at most 1/3 in {within} of {seeds}")
    claim("tune: steps of ASHA to a random search's, median", middle, "times", limit=LEAST_PART)


if __name__ == "__main__":
    main()
