"""Draws digits as 5 x 3 pixels with noise, and writes them as CSV: a part to train on, a part to test with."""

import argparse
import os
import random

ROWS = {  # of each digit from above: three pixels as a number of three bits
    "0": "75557", "1": "26227", "2": "71747", "3": "71717", "4": "55711",
    "5": "74717", "6": "74757", "7": "71111", "8": "75757", "9": "75717",
}  # fmt: skip

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=600)
parser.add_argument("--noise", type=float, default=0.2)
parser.add_argument("--seed", type=int, default=0)
given = parser.parse_args()
dice = random.Random(given.seed)
lines = []
for number in range(given.samples):
    digit = str(number % 10)
    pixels = [int(bit) for row in ROWS[digit] for bit in f"{int(row):03b}"]
    lines.append(",".join([digit, *(f"{pixel + dice.gauss(0, given.noise):.3f}" for pixel in pixels)]))
dice.shuffle(lines)
part = len(lines) * 4 // 5
# What a step leaves in SM_MODEL_DIR is ${steps.prepare.model} for the steps that need it.
for name, chosen in (("train.csv", lines[:part]), ("test.csv", lines[part:])):
    with open(f"{os.environ['SM_MODEL_DIR']}/{name}", "w") as file:
        file.write("\n".join(chosen) + "\n")
print(f"metric samples={len(lines)}", flush=True)
