"""Cross-validation, as the platform's XGBoost has it: `_kfold` parts of the rows, each held out of a model of its own.

The models are xgboost-model-0 and so on, which a serving image of the platform takes together; what each says of the rows
that it has not seen is in predictions.csv.
"""

from __future__ import annotations

import copy
from argparse import Namespace
from pathlib import Path
from typing import Any

import _told
import numpy
from _common import Problem, looked, whole_file, write_json
from _ring import Ring
from _rounds import Known, Training, read
from _tables import joined

from trainshed.checkpoint.guard import Guard


class Fold(Training):
    """The training of one part. There are no checkpoints: a job that was killed begins anew."""

    def guarded(self) -> Guard:
        """What hears of a stop."""
        return Guard("", "", ranks=self.ring)


def run(hp: Namespace, ring: Ring, module: Any) -> None:
    """The whole job. Raises Problem."""
    if ring.world_size > 1:
        raise Problem("_kfold is for one rank")
    if hp.previous_model:
        raise Problem("_kfold does not go on from a model: leave out the channel model")
    data, features, target = read(hp, ring)
    looked(hp)
    every = joined([table for table in (data.train, data.validation) if table is not None])
    parts = _parts(hp, every, target.count)
    sums, counts, board = numpy.zeros(every.rows), numpy.zeros(every.rows), []
    for at, (learnt, held) in enumerate(parts):
        own = copy.copy(data)
        own.train, own.validation = every.take(learnt), every.take(held)
        ring.say(f"model {at}: {len(learnt)} rows to learn from, {len(held)} held out")
        fold = _trained(hp, ring, module, (own, features, target), at)
        if fold.guard.stopping:
            return
        best = fold.best()
        answers = module.predictions(
            fold.engine.model(0 if best is None else best + 1), features.matrix(every, held), features, target
        )
        said = answers.argmax(axis=1) if numpy.ndim(answers) > 1 and target.count else answers
        sums[held] += said if numpy.ndim(said) == 1 else said.mean(axis=1)
        counts[held] += 1
        board.append({name: values[-1 if best is None else best] for name, values in fold.history.items()})
    _end(hp, ring, board, target.labels(every, numpy.arange(every.rows)), sums / counts)


def _parts(hp: Namespace, table: Any, classes: int) -> list[tuple[Any, Any]]:
    """(rows to learn from, rows held out) of each model. Raises Problem."""
    from sklearn.model_selection import RepeatedKFold, RepeatedStratifiedKFold

    kind = RepeatedStratifiedKFold if classes else RepeatedKFold
    if "group" in table.extra:
        raise Problem("_kfold would divide groups of rows")
    try:
        made = kind(n_splits=hp._kfold, n_repeats=hp._num_cv_round or 1, random_state=abs(hp.seed))
        return list(made.split(numpy.zeros(table.rows), table.target if classes else None))
    except ValueError as error:
        raise Problem(f"_kfold {hp._kfold} of {table.rows} rows: {error}") from error


def _trained(hp: Namespace, ring: Ring, module: Any, known: Known, at: int) -> Fold:
    own, engine = copy.copy(hp), module.Engine()
    engine.file = f"{module.Engine.file}-{at}"
    fold = Fold(own, ring, engine, known=known)
    fold.run()
    return fold


def _end(hp: Namespace, ring: Ring, board: list[dict[str, float]], labels: Any, answers: Any) -> None:
    """Prints what was measured of each model and of all, and keeps what was said of rows that were held out."""
    means = {name: float(numpy.mean([one[name] for one in board])) for name in board[0]}
    rows = [[str(at), *(f"{value:.6g}" for value in one.values())] for at, one in enumerate(board)]
    rows.append(["mean", *(f"{value:.6g}" for value in means.values())])
    _told.table(hp, "folds", "Cross-validation", ("model", *means), rows)
    ring.say(f"[{hp.num_round - 1}]" + "".join(f"\t{name}:{value:.6g}" for name, value in means.items()))
    write_json(
        Path(hp.output_data_dir) / "metrics.json", {name.replace("-", "_", 1): value for name, value in means.items()}
    )
    lines = [f"{label:.9g},{answer:.9g}\n" for label, answer in zip(labels, answers, strict=True)]
    with whole_file(Path(hp.output_data_dir) / "predictions.csv") as path:
        path.write_text("".join(lines), encoding="utf-8")
