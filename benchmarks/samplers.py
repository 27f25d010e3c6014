"""What `sampler: auto` finds beside our TPE and Optuna's own default, in the same number of trials.

    python benchmarks/samplers.py --seeds 30
    python benchmarks/samplers.py --seeds 5 --only branin mixed

Six functions whose least value is known, and two real trainings. Each way has the same number of trials, of which the
first ten are drawn at random.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _claims import claim

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "toolkit"))

from trainshed.runner.job.job import Job
from trainshed.studio.batches.folder import COMPLETED
from trainshed.studio.tune.propose import propose
from trainshed.studio.tune.space import CATEGORICAL, CONTINUOUS, INTEGER, LOG, Parameter
from trainshed.studio.tune.trial import Trial
from trainshed.studio.tune.tuning import BAYESIAN, Objective, Strategy, TuningJob

ASKED = 40  # trials of a search
Values = dict[str, float]


def _numbers(count: int, low: float, high: float) -> tuple[Parameter, ...]:
    return tuple(Parameter(f"x{place}", CONTINUOUS, low, high) for place in range(count))


def branin(v: Values) -> float:
    """Of two numbers, least 0.397887 (Dixon and Szego, 1978)."""
    x, y = 15 * v["x0"] - 5, 15 * v["x1"]
    return (y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6) ** 2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10


HARTMANN_A = ((10, 3, 17, 3.5, 1.7, 8), (0.05, 10, 17, 0.1, 8, 14), (3, 3.5, 1.7, 10, 17, 8), (17, 8, 0.05, 10, 0.1, 14))
HARTMANN_P = (
    (0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886),
    (0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991),
    (0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650),
    (0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381),
)


def hartmann6(v: Values) -> float:
    """Of six numbers, least -3.32237 (Dixon and Szego, 1978)."""
    x = [v[f"x{place}"] for place in range(6)]
    inner = [
        sum(a * (one - p) ** 2 for a, p, one in zip(scales, place, x, strict=True))
        for scales, place in zip(HARTMANN_A, HARTMANN_P, strict=True)
    ]
    return -sum(alpha * math.exp(-one) for alpha, one in zip((1.0, 1.2, 3.0, 3.2), inner, strict=True))


def rosenbrock(v: Values) -> float:
    """Of four numbers, least 0."""
    x = [4 * v[f"x{place}"] - 2 for place in range(4)]
    return sum(100 * (b - a * a) ** 2 + (1 - a) ** 2 for a, b in itertools.pairwise(x))


def ackley(v: Values) -> float:
    """Of five numbers, least 0: many small valleys."""
    x = [10 * v[f"x{place}"] - 6 for place in range(5)]
    mean, waves = sum(one * one for one in x) / 5, sum(math.cos(2 * math.pi * one) for one in x) / 5
    return 20 + math.e - 20 * math.exp(-0.2 * math.sqrt(mean)) - math.exp(waves)


def styblinski(v: Values) -> float:
    """Of three numbers, least -117.4985: eight valleys."""
    x = [10 * v[f"x{place}"] - 5 for place in range(3)]
    return sum(one**4 - 16 * one**2 + 5 * one for one in x) / 2


MIXED = (
    Parameter("rate", CONTINUOUS, 1e-5, 1.0, LOG),
    Parameter("layers", INTEGER, 1, 12),
    Parameter("kind", CATEGORICAL, categories=(("adam", True), ("sgd", True), ("lion", True))),
)


def mixed(v: dict[str, Any]) -> float:
    """A rate, whole numbers and kinds, least 0: each kind has a rate of its own."""
    best = {"adam": -3.0, "sgd": -1.0, "lion": -4.0}[v["kind"]]
    worse = {"adam": 0.0, "sgd": 0.1, "lion": 0.05}[v["kind"]]
    return (math.log10(float(v["rate"])) - best) ** 2 / 4 + (float(v["layers"]) - 7) ** 2 / 30 + worse


TREES = (
    Parameter("learning_rate", CONTINUOUS, 1e-3, 1.0, LOG),
    Parameter("max_leaf_nodes", INTEGER, 2, 64, LOG),
    Parameter("l2", CONTINUOUS, 1e-3, 10.0, LOG),
)


def trees(v: dict[str, Any]) -> float:
    """A real training: boosted trees on the diabetes data, mean squared error of held-out rows."""
    from sklearn.datasets import load_diabetes
    from sklearn.ensemble import HistGradientBoostingRegressor

    x, y = load_diabetes(return_X_y=True)
    names = {"learning_rate": float(v["learning_rate"]), "l2_regularization": float(v["l2"]), "random_state": 0}
    model = HistGradientBoostingRegressor(max_iter=60, max_leaf_nodes=int(v["max_leaf_nodes"]), **names)
    return float(((model.fit(x[:300], y[:300]).predict(x[300:]) - y[300:]) ** 2).mean())


PERCEPTRON = (
    Parameter("rate", CONTINUOUS, 1e-4, 1e-1, LOG),
    Parameter("decay", CONTINUOUS, 1e-6, 1.0, LOG),
    Parameter("width", INTEGER, 4, 64, LOG),
)


def perceptron(v: dict[str, Any]) -> float:
    """A real training: a small network on handwritten digits, log loss of held-out ones."""
    import warnings

    from sklearn.datasets import load_digits
    from sklearn.metrics import log_loss
    from sklearn.neural_network import MLPClassifier

    x, y = load_digits(return_X_y=True)
    settings = {"alpha": float(v["decay"]), "learning_rate_init": float(v["rate"]), "max_iter": 15, "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MLPClassifier((int(v["width"]),), **settings).fit(x[:1000] / 16, y[:1000])
    return float(log_loss(y[1000:], model.predict_proba(x[1000:] / 16)))


# name: (space, function, its least value; None where nobody knows it)
SEARCHES: dict[str, tuple[tuple[Parameter, ...], Callable[[dict[str, Any]], float], float | None]] = {
    "branin": (_numbers(2, 0, 1), branin, 0.397887),
    "hartmann6": (_numbers(6, 0, 1), hartmann6, -3.32237),
    "rosenbrock": (_numbers(4, 0, 1), rosenbrock, 0.0),
    "ackley": (_numbers(5, 0, 1), ackley, 0.0),
    "styblinski": (_numbers(3, 0, 1), styblinski, -117.4985),
    "mixed": (MIXED, mixed, 0.0),
    "trees": (TREES, trees, None),
    "perceptron": (PERCEPTRON, perceptron, None),
}


def sought(way: str, space: tuple[Parameter, ...], function: Callable[[dict[str, Any]], float], seed: int) -> float:
    """The least value that a search of `ASKED` trials finds; `way` is a sampler of ours, or `optuna` and its default."""
    if way == "optuna":
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
        study.optimize(lambda trial: function(suggested(trial, space)), n_trials=ASKED)
        return float(study.best_value)
    job = TuningJob("t", Job("t"), space, Objective("loss"), Strategy(BAYESIAN, way, seed))
    trials: list[Trial] = []
    for number in range(1, ASKED + 1):
        values = propose(job, trials, number)
        assert values is not None
        kinds = {one.name: str if one.kind == CATEGORICAL else float for one in space}
        texts = {name: kinds[name](text) for name, text in values.items()}
        trials.append(Trial(number, values, COMPLETED, ended=float(number), value=function(texts)))
    return min(trial.value for trial in trials if trial.value is not None)


def suggested(trial: Any, space: tuple[Parameter, ...]) -> dict[str, Any]:
    """Values as a script with Optuna asks for them."""
    found: dict[str, Any] = {}
    for one in space:
        if one.kind == CATEGORICAL:
            found[one.name] = trial.suggest_categorical(one.name, [text for text, _ in one.categories])
        elif one.kind == INTEGER:
            found[one.name] = trial.suggest_int(one.name, int(one.low), int(one.high), log=one.scale == LOG)
        else:
            found[one.name] = trial.suggest_float(one.name, one.low, one.high, log=one.scale == LOG)
    return found


def main() -> int:
    """Prints the median of what each sampler finds; 1 where `auto` is behind Optuna's default."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--only", nargs="+", choices=SEARCHES, default=list(SEARCHES), metavar="FUNCTION")
    options = parser.parse_args()
    seeds, good = options.seeds, True
    ways = ("auto", "tpe", "optuna")
    print(f"the least value found in {ASKED} trials, less the least that there is: median of {seeds} seeds")
    print(f"| function | {' | '.join(ways)} |\n|---|{'---|' * len(ways)}")
    for name in options.only:
        space, function, least = SEARCHES[name]
        found = {way: statistics.median(sought(way, space, function, seed) for seed in range(seeds)) for way in ways}
        known = min(found.values()) if least is None else least
        ours, peer = found["auto"] - known, found["optuna"] - known
        print(f"| {name} | {' | '.join(f'{found[way] - known:.3g}' for way in ways)} |", flush=True)
        good &= claim(f"tune: auto's best of {name}", ours, "", times=1.0, peer=peer, peer_name="optuna")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
