"""Fits a line to points by gradient descent: a whole training script without a single package.

Hyperparameters: epochs, learning-rate, slope (of the points that are made up when no `train` channel is given).
Channel `train`: CSV files with two numbers a line, x and y.
"""

import argparse
import csv
import json
import os
import random
from pathlib import Path


def points(channel: str | None, slope: float) -> list[tuple[float, float]]:
    """The channel's points, or 200 made-up ones on y = slope * x + 1 with noise."""
    if channel:
        rows = [row for path in sorted(Path(channel).glob("*.csv")) for row in csv.reader(path.open())]
        return [(float(x), float(y)) for x, y in rows]
    source = random.Random(0)
    xs = [source.uniform(-1, 1) for _ in range(200)]
    return [(x, slope * x + 1 + source.gauss(0, 0.05)) for x in xs]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--learning-rate", type=float, default=0.5)
    parser.add_argument("--slope", type=float, default=3.0)
    arguments = parser.parse_args()

    data = points(os.environ.get("SM_CHANNEL_TRAIN"), arguments.slope)
    weight = bias = 0.0
    for epoch in range(1, arguments.epochs + 1):
        errors = [(weight * x + bias - y, x) for x, y in data]
        weight -= arguments.learning_rate * 2 * sum(error * x for error, x in errors) / len(data)
        bias -= arguments.learning_rate * 2 * sum(error for error, _ in errors) / len(data)
        print(f"epoch={epoch} loss={sum(error * error for error, _ in errors) / len(data):.6f}")

    model = Path(os.environ["SM_MODEL_DIR"])
    model.mkdir(parents=True, exist_ok=True)
    (model / "line.json").write_text(json.dumps({"weight": weight, "bias": bias}))


if __name__ == "__main__":
    main()
