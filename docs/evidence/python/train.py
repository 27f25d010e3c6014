"""The script of the five tasks."""

import argparse
import os

from training import train

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--train", default=os.environ.get("SM_CHANNEL_TRAIN", "data"))
options = parser.parse_args()
train(options.lr, options.steps)
with open(os.path.join(os.environ.get("SM_MODEL_DIR", "."), "model.txt"), "w") as file:
    file.write("3\n")
