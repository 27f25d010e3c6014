"""Trains a factorization machine or two towers on users, items and ratings, from hyperparameters alone; or on sparse rows.

    python demo_data.py ratings data                                       # a small data set
    python recommend.py --train data/train --test data/test --predictor_type regressor --num_factors 8 --target rating
    torchrun --nproc-per-node 2 recommend.py --train data/train ...
    python recommend.py --predict rows.csv --model_dir model               # scores, one JSON line each

In a training job the hyperparameters come as `--key value` and the folders from SM_CHANNEL_TRAIN, SM_CHANNEL_VALIDATION,
SM_CHANNEL_TEST, SM_MODEL_DIR and SM_OUTPUT_DATA_DIR. docs/programs/recommend.md has the table of hyperparameters: their
names are those of the platform's Factorization Machines.
"""

from __future__ import annotations

from _common import Parser, Problem, World, in_job, looked, require_libraries, run

from trainshed.checkpoint import listen

if __name__ == "__main__":
    listen()  # before torch is imported: that takes seconds, and a stop in that time shall end with status 0 too

import signal
import sys
from argparse import Namespace
from collections.abc import Sequence

PARTS = ("train", "validation", "test")
FACTORS = {"bias": 1.0, "linear": 1.0, "factors": 1.0}


def hyperparameters(argv: Sequence[str]) -> Namespace:
    """Reads the command line; raises Problem."""
    hp = Parser.declared(__file__).read(argv)
    if hp.predict:
        return hp
    for name in ("num_factors", "predictor_type"):
        if getattr(hp, name) is None:
            raise Problem(f"hyperparameter {name} is missing")
    if hp.patience and not (hp.validation or hp.validation_fraction):
        raise Problem("patience needs a channel validation, or validation_fraction above 0")
    # By the names of the loop.
    hp.batch_size, hp.min_epochs, hp.warmup_ratio, hp.weight_decay = hp.mini_batch_size, 0, 0.0, 0.0
    hp.max_grad_norm = hp.clip_gradient or 0.0
    return hp


def main() -> None:
    """The command line."""
    hp = hyperparameters(sys.argv[1:])
    require_libraries(__file__)
    if hp.predict:
        import _recommender

        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # there is nothing to save
        _recommender.predict(hp)
        return
    if not hp.train:
        raise Problem("the job has no channel train" if in_job() else "there is nothing to train on: give --train DIR")
    import _ratings

    data = _ratings.read(hp)
    looked(hp)
    import _recommender

    world = World.join(hp.device)
    _recommender.train(hp, data, world)
    world.leave()


if __name__ == "__main__":
    run(main)
