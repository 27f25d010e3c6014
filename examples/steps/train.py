"""Trains a linear classifier of digits with plain Python: softmax regression, one sample after the other."""

import argparse
import json
import math
import os

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--lr", type=float, default=0.1)
given = parser.parse_args()
with open(f"{os.environ['SM_CHANNEL_DATA']}/train.csv") as file:
    samples = [(int(line[0]), [1.0, *map(float, line.split(",")[1:])]) for line in file]
weights = [[0.0] * len(samples[0][1]) for _ in range(10)]
for epoch in range(1, given.epochs + 1):
    loss = 0.0
    for digit, pixels in samples:
        scores = [sum(w * x for w, x in zip(row, pixels, strict=True)) for row in weights]
        largest = max(scores)
        powers = [math.exp(score - largest) for score in scores]
        chances = [power / sum(powers) for power in powers]
        loss -= math.log(chances[digit])
        for row, chance, number in zip(weights, chances, range(10), strict=True):
            step = given.lr * ((number == digit) - chance)
            row[:] = [w + step * x for w, x in zip(row, pixels, strict=True)]
    print(f"metric loss={loss / len(samples):.4f} epoch={epoch}", flush=True)
with open(f"{os.environ['SM_MODEL_DIR']}/weights.json", "w") as file:
    json.dump(weights, file)
