"""Trains boosted trees, or a boosted linear model, on tables, with XGBoost, from hyperparameters alone.

    python tabular.py --train adult.csv --objective binary:logistic --target income
    python tabular.py --predict rows.csv --model_dir model

The hyperparameters are those of the platform's XGBoost; README.md beside this file has their table. In a training job they
come as `--key value`, and the folders from SM_CHANNEL_TRAIN, SM_CHANNEL_VALIDATION, SM_MODEL_DIR and so on.

Every rank has a part of the rows: of its host's, where each host has files of its own, else of all. The bins of columns are
then those that one rank would have made, so that the trees are the same but for the order of sums.
"""

from __future__ import annotations

from _common import (
    Parser,
    Problem,
    checkpoint_folder,
    in_job,
    need,
    piped,
    previous_model,
    run,
    said_of,
    whole_file,
    write_json,
)

from trainshed.checkpoint import CheckpointError, listen

if __name__ == "__main__":
    listen()  # before XGBoost is imported: that takes a second, and a stop in that time shall end with status 0 too
    need(__file__)

import json
import math
import os
import sys
import zlib
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import xgboost
from _columns import Features, Target
from _ring import Ring, first_line
from _tables import CONTENT_TYPES, How, Table, files_of, read_files
from xgboost.core import XGBoostError

import trainshed
from trainshed import metrics
from trainshed.checkpoint.guard import Guard, usual_copies

MODEL = "xgboost-model"  # the platform's name, by which its serving image knows it
FOR_XGBOOST = (
    "booster", "eta", "gamma", "max_depth", "max_leaves", "grow_policy", "min_child_weight", "max_delta_step", "subsample",
    "colsample_bytree", "colsample_bylevel", "colsample_bynode", "lambda", "alpha", "scale_pos_weight", "base_score",
    "tree_method", "max_bin", "tweedie_variance_power", "huber_slope", "num_parallel_tree", "rate_drop", "skip_drop",
    "one_drop", "sample_type", "normalize_type", "verbosity",
)  # fmt: skip
SAMPLES = ("subsample", "colsample_bytree", "colsample_bylevel", "colsample_bynode")
HIGHER_IS_BETTER = ("auc", "aucpr", "map", "ndcg", "pre")
REPEATED = 10  # rounds that a resumed job with random parts may repeat, or a tenth of what is done
BARS = 20  # features in the picture of their importance


def hyperparameters(argv: Sequence[str]) -> Namespace:
    """Reads the command line; raises Problem."""
    parser = Parser.declared(__file__)
    hp = parser.read(argv)
    hp.asked = {name for name, value in vars(hp).items() if value != parser.get_default(name)}
    if hp.objective == "reg:linear":
        hp.objective = "reg:squarederror"  # its name in XGBoost 0.90
    if hp.booster != "gbtree" and hp.early_stopping_rounds:
        raise Problem(f"early_stopping_rounds needs the booster gbtree: of {hp.booster} no earlier round can be kept")
    if hp.early_stopping_rounds and not (hp.validation or hp.validation_fraction or hp.predict):
        raise Problem("early_stopping_rounds needs a channel validation, or validation_fraction above 0")
    return hp


def parameters(hp: Namespace, target: Target, ring: Ring) -> dict[str, Any]:
    """What XGBoost is told; what is not asked for is as XGBoost has it."""
    given = {name: getattr(hp, name) for name in FOR_XGBOOST if name in hp.asked}
    given |= {"objective": hp.objective, "seed": hp.seed, "seed_per_iteration": True}
    given["nthread"] = (
        hp.nthread or int(os.environ.get("OMP_NUM_THREADS") or 0) or max(1, (os.cpu_count() or 1) // ring.local_size)
    )
    if hp.eval_metric:
        given["eval_metric"] = list(hp.eval_metric)
    if target.objective.startswith("multi:"):
        given["num_class"] = target.count
    if hp.booster == "gblinear":
        given["updater"] = "coord_descent"  # the usual one, shotgun, has another result each time
    return given


# --- data -------------------------------------------------------------------------------------------------------------


class Data:
    """The tables of this host, and what their columns mean; validation and test may be None.

    sharded: whether each host has rows of its own.
    """

    train: Table
    validation: Table | None
    test: Table | None

    def __init__(self, hp: Namespace) -> None:
        """Reads the channels. Raises Problem."""
        if not hp.train:
            raise Problem("the job has no channel train" if in_job() else "give --train FILE or FOLDER, or a channel train")
        self.sharded = (
            hp.sharded
            if hp.sharded is not None
            else said_of("train", "training").get("S3DistributionType") == "ShardedByS3Key"
        )
        self.train = read_channel(hp, hp.train, None, "train", "training")
        self.validation = read_channel(hp, hp.validation, self.train, "validation") if hp.validation else None
        self.test = read_channel(hp, hp.test, self.train, "test") if hp.test else None
        if self.validation is None and hp.validation_fraction:
            self.train, self.validation = held_out(self.train, hp.validation_fraction, hp.seed)

    def digest(self) -> str:
        """Differs where the training data does."""
        table = self.train
        parts = [
            table.target,
            *(table.columns.values() if table.sparse is None else (table.sparse.data, table.sparse.indices)),
        ]
        crc = 0
        for part in parts:
            crc = zlib.crc32(repr(part.tolist()).encode() if part.dtype == object else part.tobytes(), crc)
        return f"{table.rows} rows, {crc:08x}"

    def mean(self, hp: Namespace, of: Features | None, target: Target | None) -> tuple[Features, Target]:
        """What the columns of the training data mean, or those of a model to go on from. Raises Problem."""
        values = Target.values(self.train, hp.objective)
        features = of or Features.of(self.train)
        features.check(self.train, "the channel train")
        for name, table in (("validation", self.validation), ("test", self.test)):
            if table is not None:
                features.check(table, f"the channel {name}")
        return features, target or Target.of(
            self.train.target_name or "the first column", hp.objective, values, hp.num_class
        )


def read_channel(hp: Namespace, path: str, like: Table | None, *names: str) -> Table:
    """The rows of a channel, with the columns of another table if there is one. Raises Problem."""
    what = f"the channel {names[0]}"
    if piped(path, *names):
        raise Problem(f"{what} is in Pipe mode, and rows are wanted all at once: use FastFile or File")
    columns = tuple(like.columns) if like is not None and like.named else None
    return read_files(files_of(path, what), how(hp, columns, said_of(*names)), what)


def how(hp: Namespace, columns: tuple[str, ...] | None, facts: dict[str, str], labelled: bool = True) -> How:
    """How files are read."""
    return How(
        target=hp.target or "",
        weight=hp.weight or "",
        second_weighs=bool(hp.csv_weights),
        text=hp.categorical_columns or (),
        ignored=hp.ignore_columns or (),
        labelled=labelled,
        columns=columns,
        content=CONTENT_TYPES.get(facts.get("ContentType", "").partition(";")[0].strip().lower(), ""),
    )


def held_out(table: Table, fraction: float, seed: int) -> tuple[Table, Table]:
    """The table without this part of its rows, and those rows. Raises Problem."""
    order = numpy.random.default_rng(seed).permutation(table.rows)
    count = int(table.rows * fraction)
    if not 0 < count < table.rows:
        raise Problem(f"validation_fraction {fraction:g} of {table.rows} rows leaves none for training or for validation")
    return table.take(numpy.sort(order[count:])), table.take(numpy.sort(order[:count]))


# --- training ---------------------------------------------------------------------------------------------------------


class Training:
    """One job: its matrices, its booster, and what it has measured.

    history: the values of each round, by name (`validation-rmse`).
    mark: rounds, model and history of the last moment that a resumed job can go on from to the same end.
    """

    def __init__(self, hp: Namespace, ring: Ring) -> None:
        self.hp, self.ring = hp, ring
        trouble = ""
        try:
            self._prepare()
        except Problem as problem:
            trouble = str(problem)
        ring.join()
        ring.together(lambda: _refuse(trouble))
        self._meet()
        self.history: dict[str, list[float]] = {}
        self.mark: tuple[int, bytes, dict[str, list[float]]] | None = None
        folder = checkpoint_folder(hp.checkpoint_dir)
        self.guard = Guard(str(folder or ""), usual_copies(str(folder)) if folder else "", ranks=ring)
        self._restore()

    def _prepare(self) -> None:
        """What a rank does alone: reads, and makes the bins of columns that it knows all rows of. Raises Problem."""
        hp = self.hp
        before = previous_model(hp.previous_model)
        self.previous = Model(before) if before else None
        self.data = Data(hp)
        known = (self.previous.features, self.previous.target) if self.previous else (None, None)
        if self.previous and self.previous.target.objective != hp.objective:
            raise Problem(f"the model to go on from has the objective {self.previous.target.objective}, not {hp.objective}")
        self.features, self.target = self.data.mean(hp, *known)
        self.parameters = parameters(hp, self.target, self.ring)
        if self.ring.world_size > 1 and hp.tree_method == "exact":
            raise Problem("tree_method exact is for one rank: use hist or approx")
        self.binned = hp.booster != "gblinear" and hp.tree_method in ("auto", "hist")
        # Before ranks meet: afterwards XGBoost would make bins out of all ranks' rows, and others than one rank does.
        self.train = None if self.data.sharded else self._matrix(self.data.train, numpy.arange(self.data.train.rows))

    def _meet(self) -> None:
        """What ranks do together before training. Raises Problem."""
        ring, data = self.ring, self.data
        digests = ring.together(data.digest)
        other = next((rank for rank, digest in enumerate(digests) if digest != digests[0]), None)
        if other is not None and not data.sharded:
            raise Problem(
                f"the ranks see different training data: rank 0 {digests[0]}, rank {other} {digests[other]}; every host "
                "needs all rows (S3DataDistributionType FullyReplicated), or set sharded to true"
            )
        if data.sharded:
            self.features = ring.together(lambda: Features.common(ring.gather(self.features)))[0]
            values = sorted(set().union(*ring.gather(Target.values(data.train, self.hp.objective))), key=_by_kind)
            name = self.target.name
            if not self.previous:
                self.target = ring.together(lambda: Target.of(name, self.hp.objective, values, self.hp.num_class))[0]
            self.parameters = parameters(self.hp, self.target, ring)
        shares = ring.together(lambda: self._share(data.train, False))
        empty = next((rank for rank, share in enumerate(shares) if not len(share)), None)
        if empty is not None:
            raise Problem(f"rank {empty} has no rows to train on: take fewer ranks")
        self.rows = sum(map(len, shares))
        mine = shares[ring.rank]
        if self.train is None or ring.world_size > 1:
            whole = self.train
            self.train = ring.together(lambda: _Kept(self._matrix(data.train, mine, whole)))[ring.rank].value
        self.matrices = [(self.train, "train")]
        if data.validation is not None:
            table = data.validation
            kept = ring.together(lambda: _Kept(self._matrix(table, self._share(table, True), plain=True)))
            self.matrices.append((kept[ring.rank].value, "validation"))
        digest = " ".join(digests) if data.sharded else digests[0]
        plain = {name: value for name, value in self.parameters.items() if name not in ("nthread", "verbosity")}
        before = self.previous.fingerprint if self.previous else ""
        self.facts = {"training data": digest, "hyperparameters": plain, "model to go on from": before}

    def _share(self, table: Table, whole: bool) -> Any:
        """Positions of this rank's rows; of those that every host has it is all of them if `whole`, else a part."""
        if self.data.sharded:
            return numpy.arange(self.ring.local_rank, table.rows, self.ring.local_size)
        return numpy.arange(table.rows) if whole else numpy.arange(self.ring.rank, table.rows, self.ring.world_size)

    def _matrix(self, table: Table, rows: Any, bins_of: Any = None, plain: bool = False) -> Any:
        """These rows as XGBoost takes them. Raises Problem."""
        given = {
            "label": self.target.labels(table, rows),
            "weight": None if table.weights is None else table.weights[rows],
            "feature_names": self.features.names,
            "feature_types": self.features.types,
            "nthread": self.parameters["nthread"],
            "enable_categorical": bool(self.features.categories),
        }
        features = self.features.matrix(table, rows)
        if plain or not self.binned:
            return xgboost.DMatrix(features, **given)
        return xgboost.QuantileDMatrix(features, max_bin=self.hp.max_bin, ref=bins_of, **given)

    # --- where it stands

    def _restore(self) -> None:
        """Goes on from the newest checkpoint, else from the model to go on from, else from nothing. Raises Problem."""
        path = self.guard.newest()
        model = self.previous.model if self.previous else None
        self.first = self.round = self.previous.rounds if self.previous else 0
        if path:
            state = json.loads(Path(path, "state.json").read_text(encoding="utf-8"))
            for name, value in self.facts.items():
                if state["facts"].get(name) != value:
                    raise Problem(
                        f"{path} is of another training (its {name} differ): remove it to train from scratch, or use "
                        "another folder"
                    )
            self.round, self.history = state["round"], state["history"]
            if self.hp.tree_method == "approx" and self.hp.subsample < 1:
                self.ring.say("of approx the draws of rows cannot be gone on with: from here on other rows are drawn")
            model = Path(path, MODEL).read_bytes()
        cache = [matrix for matrix, _ in self.matrices]
        self.booster = xgboost.Booster(self.parameters, cache, model_file=bytearray(model) if model else None)

    @property
    def random(self) -> bool:
        """Whether XGBoost draws numbers that it keeps in no model."""
        return self.hp.booster != "gblinear" and any(getattr(self.hp, name) < 1 for name in SAMPLES)

    def _marks(self) -> bool:
        """Whether a job that resumes can go on from this round. Sets `mark`.

        XGBoost's generators are in no model. They begin anew after `reset`, which forgets what is predicted of the rows too,
        so that it comes the more rarely the more trees there are.
        """
        done, last = self.round, self.mark[0] if self.mark else -1
        every = self.hp.checkpoint_rounds or max(REPEATED, last // REPEATED)
        if self.random and last >= 0 and done < last + every:
            return False
        if self.random and done > self.first:
            self.booster.reset()
        model = bytes(self.booster.save_raw("ubj")) if done else b""
        self.mark = (done, model, {name: list(values) for name, values in self.history.items()})
        return True

    def checkpoint(self, reason: str) -> None:
        """Saves the last mark, on all ranks together, unless that is done."""
        if not self.random:
            self._marks()
        assert self.mark is not None
        done, model, history = self.mark
        if done <= max(self.guard.saved_step, self.first):
            return

        def save() -> None:
            if self.ring.leads:
                folder = Path(self.guard.path(done))
                folder.mkdir(parents=True, exist_ok=True)
                (folder / MODEL).write_bytes(model)
                write_json(folder / "state.json", {"round": done, "history": history, "facts": self.facts})

        self.guard.save(done, reason, save)

    # --- the loop

    def run(self) -> None:
        """Trains to the end, or to the stop; writes the model."""
        hp, ring = self.hp, self.ring
        total = self.first + hp.num_round
        ring.say(self.described())
        stopped = False
        while self.round < total and not self.settled() and not stopped:
            if self.random:
                self._marks()
            self.booster.update(self.train, self.round)
            self.round += 1
            self.measure()
            reason = self.guard.decide(self.round)
            periodic = hp.checkpoint_rounds and (self.round - self.first) % hp.checkpoint_rounds == 0
            if self.guard.folder and (reason or periodic):
                if periodic and self.random:
                    self._marks()
                self.checkpoint(reason)
            stopped = self.guard.stopping
        self.finish(stopped)
        if stopped:
            self.guard.answer(self.guard.saved_step)
        self.guard.close()

    def described(self) -> str:
        """What is trained on what, in a line."""
        features, classes = self.features, self.target.classes
        parts = [f"training on {self.rows} rows of {features.width or len(features.columns)} features"]
        if features.categories:
            parts[0] += f" ({len(features.categories)} of text)"
        parts.append(f"target: {self.target.name}")
        if classes is not None:
            parts[-1] += f", classes {', '.join(map(str, classes[:5]))}{' ...' * (len(classes) > 5)}"
        return "; ".join([*parts, f"{self.ring.world_size} rank{'s' * (self.ring.world_size > 1)}"])

    def measure(self) -> None:
        """Evaluates the round that was made last; raises Problem for what is not a number."""
        line = self.booster.eval_set(self.matrices, self.round - 1)
        values = _values(line)
        shown = "".join(f"#011{name}:{value:.6g}" for name, value in values.items())
        self.ring.say(f"[{self.round - 1}]{shown}")  # as the platform's logs have it
        self.log({name.replace("-", ":", 1): value for name, value in values.items()}, self.round)
        for name, value in values.items():
            self.history.setdefault(name, []).append(value)
            if not math.isfinite(value):
                which = name.partition("-")[2]
                raise Problem(
                    f"{name} is {value:g} after round {self.round}: lower eta ({self.hp.eta:g}), or look whether the rows "
                    f"can be measured by {which} (auc needs rows of both classes)"
                )

    def log(self, values: dict[str, float], step: int) -> None:
        """Keeps metrics where a job does."""
        if self.ring.rank == 0 and in_job():
            metrics.log(values, step=step)

    def best(self) -> int | None:
        """Which round was the best, counted from 0 among those of this job; None if nobody asks."""
        if not self.hp.early_stopping_rounds or not self.history:
            return None
        name, values = list(self.history.items())[-1]
        metric = name.partition("-")[2].partition("@")[0]
        better = max if metric in HIGHER_IS_BETTER else min
        return values.index(better(values))

    def settled(self) -> bool:
        """Whether validation has not got better for as many rounds as asked."""
        best = self.best()
        return best is not None and self.round - self.first - 1 - best >= self.hp.early_stopping_rounds

    def finish(self, stopped: bool) -> None:
        """Measures the test data, and writes model, metrics and picture."""
        hp, ring = self.hp, self.ring
        best = self.best()
        at = len(next(iter(self.history.values()), ())) - 1 if best is None else best
        results = {name.replace("-", "_", 1): values[at] for name, values in self.history.items()}
        booster = self.booster if best is None else self.booster[: self.first + best + 1]
        if best is not None and best + 1 < self.round - self.first:
            ring.say(f"the best round is {best + 1} of {self.round - self.first}; the model ends there")
        if self.data.test is not None and not stopped:
            table = self.data.test
            kept = ring.together(lambda: _Kept(self._matrix(table, self._share(table, True), plain=True)))
            values = _values(booster.eval_set([(kept[ring.rank].value, "test")], at))
            ring.say(" ".join(f"{name}:{value:.6g}" for name, value in values.items()))
            self.log({name.replace("-", ":", 1): value for name, value in values.items()}, self.round)
            results |= {name.replace("-", "_", 1): value for name, value in values.items()}
        if ring.rank == 0:
            rounds = self.round if best is None else self.first + best + 1
            trained = {"rounds": rounds, "finished": not stopped, "world_size": ring.world_size, "rows": self.rows}
            self._write(booster, {"trained": trained, "metrics": results})
        ring.gather(0)  # nobody leaves before the model is there
        ring.say(f"model: {hp.model_dir}")

    def _write(self, booster: Any, results: dict[str, Any]) -> None:
        hp = self.hp
        with whole_file(Path(hp.model_dir) / MODEL) as path:
            path.write_bytes(booster.save_raw("ubj"))
        about = {
            "program": "tabular",
            "trainshed": trainshed.__version__,
            "xgboost": xgboost.__version__,
            "hyperparameters": {name: getattr(hp, name) for name in sorted(hp.asked) if name not in _FOLDERS},
            "features": self.features.plain(),
            "target": self.target.plain(),
            "fingerprint": self.facts["training data"],
            **results,
        }
        write_json(Path(hp.model_dir) / "model.json", about)
        write_json(Path(hp.output_data_dir) / "metrics.json", {**results["trained"], **results["metrics"]})
        kind = "weight" if hp.booster == "gblinear" else "gain"
        scores = booster.get_score(importance_type=kind)
        plain = {name: abs(score[0] if isinstance(score, list) else score) for name, score in scores.items()}
        with whole_file(Path(hp.output_data_dir) / "feature_importance.svg") as path:
            path.write_text(importance_picture(plain, kind), encoding="utf-8")


_FOLDERS = ("train", "validation", "test", "previous_model", "model_dir", "output_data_dir", "checkpoint_dir", "predict")


class _Kept:
    """A value that stays on its rank: others get nothing of it."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return _Kept, (None,)


def _refuse(trouble: str) -> None:
    if trouble:
        raise Problem(trouble)


def _by_kind(value: Any) -> tuple[bool, Any]:
    return isinstance(value, str), value


def _values(line: str) -> dict[str, float]:
    """`[3]<tab>train-rmse:0.5<tab>validation-rmse:0.6` as numbers by name."""
    pairs = (part.rpartition(":") for part in line.split("\t")[1:])
    return {name: float(value) for name, _, value in pairs}


def importance_picture(scores: dict[str, float], kind: str) -> str:
    """Bars as SVG: the features that matter most."""
    from xml.sax.saxutils import escape

    first = sorted(scores.items(), key=lambda item: -item[1])[:BARS]
    most = max((score for _, score in first), default=0.0) or 1.0
    parts = [f'<text x="10" y="20" font-weight="bold">Feature importance ({kind})</text>']
    for index, (name, score) in enumerate(first):
        y = 34 + 22 * index
        shown = name if len(name) <= 24 else f"{name[:23]}…"
        parts.append(f'<text x="190" y="{y + 14}" text-anchor="end">{escape(shown)}</text>')
        parts.append(f'<rect x="200" y="{y + 2}" width="{max(1, 400 * score / most):.0f}" height="16" fill="#4477aa"/>')
        parts.append(f'<text x="{206 + 400 * score / most:.0f}" y="{y + 14}">{score:.4g}</text>')
    size = f'width="700" height="{44 + 22 * len(first)}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">{"".join(parts)}</svg>\n'


# --- the model's folder -----------------------------------------------------------------------------------------------


class Model:
    """What a folder holds that `Training` has written. Raises Problem where it is not one."""

    def __init__(self, folder: str | Path) -> None:
        root = Path(folder)
        try:
            content = json.loads((root / "model.json").read_text(encoding="utf-8"))
            if content["program"] != "tabular":
                raise ValueError(f"model.json is one of {content['program']}")
            self.features = Features.of_plain(content["features"])
            self.target = Target.of_plain(content["target"])
            self.rounds, self.fingerprint = int(content["trained"]["rounds"]), str(content["fingerprint"])
            self.model = (root / MODEL).read_bytes()
            self.booster = xgboost.Booster(model_file=bytearray(self.model))
        except (OSError, ValueError, KeyError, TypeError, XGBoostError) as error:
            raise Problem(f"{root} holds no model of tabular: {first_line(error)}") from error
        self.hyperparameters = content["hyperparameters"]


def predict(hp: Namespace) -> None:
    """Prints one JSON line a row: {"row", "prediction"}, or {"row", "class", "probability"}."""
    model = Model(hp.model_dir)
    features, target = model.features, model.target
    columns = tuple(features.columns) if features.columns else None
    for name in ("categorical_columns", "ignore_columns", "target", "weight", "csv_weights"):
        if name in model.hyperparameters and name not in hp.asked:
            value = model.hyperparameters[name]
            setattr(hp, name, tuple(value) if isinstance(value, list) else value)
    table = read_files(files_of(hp.predict, "the data to predict"), how(hp, columns, {}, labelled=False), hp.predict)
    features.check(table, hp.predict)
    matrix = xgboost.DMatrix(
        features.matrix(table, numpy.arange(table.rows)),
        feature_names=features.names,
        feature_types=features.types,
        enable_categorical=bool(features.categories),
    )
    for row, value in enumerate(model.booster.predict(matrix), 1):
        print(json.dumps({"row": row, **_said(target, value)}))


def _said(target: Target, value: Any) -> dict[str, Any]:
    if target.objective in ("binary:logistic", "binary:hinge"):
        label = float(value > 0.5)
        return {"class": target.class_of(label), "probability": round(float(value if label else 1 - value), 6)}
    if target.objective == "binary:logitraw":
        return {"class": target.class_of(float(value > 0)), "score": round(float(value), 6)}
    if target.objective == "multi:softprob":
        label = int(value.argmax())
        return {"class": target.class_of(label), "probability": round(float(value[label]), 6)}
    if target.objective == "multi:softmax":
        return {"class": target.class_of(float(value))}
    return {"prediction": float(f"{value:.7g}")}


def main() -> None:
    """The command line."""
    hp = hyperparameters(sys.argv[1:])
    try:
        if hp.predict:
            predict(hp)
            return
        ring = Ring()
        Training(hp, ring).run()
        ring.leave()
    except XGBoostError as error:
        raise Problem(first_line(error)) from error
    except CheckpointError as error:
        raise Problem(str(error)) from error


if __name__ == "__main__":
    run(main)
