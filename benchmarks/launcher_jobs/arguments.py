"""What every training script does first: reads its hyperparameters and one variable of the job."""

import argparse
import os

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--learning-rate", type=float, default=0.1)
parser.add_argument("--optimizer", default="sgd")
parser.add_argument("--model-dir", default=os.environ.get("SM_MODEL_DIR", "model"))
args = parser.parse_args()
