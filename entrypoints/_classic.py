"""What the programs on scikit-learn share: tables of numbers, one host, a model in the format of skops, rows to predict.

skops keeps an estimator whole, as scikit-learn has it, and loads nothing but types that it knows to be harmless: unlike a
pickle, a model from elsewhere runs no code. Arrays in an npz would be as safe, but trees of an isolation forest are none.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from _common import Parser, Problem, World, in_job, looked, piped, run, said_of, whole_file, write_json

MODEL = "model.skops"
FOLDERS = ("train", "test", "model_dir", "output_data_dir", "predict")


# --- before the libraries are there -----------------------------------------------------------------------------------


def end_at_stop() -> None:
    """From now on SIGTERM ends the process with status 0, unless somebody has a handler for it.

    There is nothing to save: what a fit has done so far is no model, and all of it is done again by the next run.
    """
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    # Neither print nor an exception: Python may be anywhere, in a callback of C too, which would swallow it.
    os.write(1, b"stopped: no model is written, and the next run begins anew\n")
    os._exit(0)


# --- data -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """A table as scikit-learn takes it. values: float64 [rows, columns], or csr. table: where it comes from."""

    values: Any
    table: Any

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self.values.shape[0])


@dataclass
class Data:
    """What a program learns from. features: `Features` of the model. test: None without that channel."""

    features: Any
    train: Rows
    test: Rows | None
    labelled: bool


@dataclass
class Fitted:
    """What a program has learned.

    estimator: of scikit-learn, for the rows as they come. metrics: by name: `train:msd`. facts: more for model.json.
    """

    estimator: Any
    metrics: dict[str, float]
    facts: dict[str, Any] = field(default_factory=dict)


def labelled(hp: Namespace, facts: dict[str, str], usually: bool) -> bool:
    """Whether rows have a target: as `target` says, else as the content type does, else as usual. Raises Problem."""
    parameters = facts.get("ContentType", "").lower().replace(" ", "").split(";")[1:]
    size = dict(part.partition("=")[::2] for part in parameters).get("label_size", "")
    if size not in ("", "0", "1"):
        raise Problem(f"ContentType: label_size={size}: a row has one target or none: give label_size=1 or label_size=0")
    return bool(hp.target) or (size == "1" if size else usually)


def read_rows(hp: Namespace, path: str, names: Sequence[str], like: Any, usually: bool) -> tuple[Any, bool]:
    """The table of a channel, with the columns of another one if there is one, and whether it has a target.

    Raises Problem.
    """
    from _tables import CONTENT_TYPES, How, files_of, read_files

    what, facts = f"the channel {names[0]}", said_of(*names)
    if piped(path, *names):
        raise Problem(f"{what} is in Pipe mode, and rows are wanted all at once: use FastFile or File")
    if facts.get("S3DistributionType") == "ShardedByS3Key" and len(_hosts()) > 1:
        raise Problem(f"{what} is ShardedByS3Key, and one host alone learns here: give FullyReplicated, or one host")
    has = labelled(hp, facts, usually)
    how = How(
        target=hp.target or "",
        ignored=hp.ignore_columns or (),
        labelled=has,
        columns=tuple(like.columns) if like is not None and like.named else None,
        content=CONTENT_TYPES.get(facts.get("ContentType", "").partition(";")[0].strip().lower(), ""),
        bare=not has,
        numeric=True,
        classes=getattr(hp, "predictor_type", "") != "regressor",
        text_target=like is not None and like.target is not None and like.target.dtype == object,
    )
    return read_files(files_of(path, what), how, what), has


def read_data(hp: Namespace, usually: bool, test_usually: bool) -> Data:
    """The channels. usually: whether train has a target if nobody says so; test_usually: of test. Raises Problem."""
    import _told
    from _columns import Features

    if not hp.train:
        raise Problem("the job has no channel train" if in_job() else "give --train FILE or FOLDER, or a channel train")
    train, has = read_rows(hp, hp.train, ("train", "training"), None, usually)
    features = Features.of(train)
    if features.columns and hp.feature_dim not in (None, len(features.columns)):
        raise Problem(f"feature_dim is {hp.feature_dim}, and the channel train has {len(features.columns)} features")
    if not features.columns:
        if features.width > (hp.feature_dim or features.width):
            raise Problem(f"feature_dim is {hp.feature_dim}, and the channel train has {features.width} features")
        features = replace(features, width=hp.feature_dim or features.width)
        if not features.width:
            raise Problem("the channel train has no features: no row has a number")
    test = None
    if hp.test:
        table, _ = read_rows(hp, hp.test, ("test", "validation"), train, test_usually)
        test = rows_of(features, table, "the channel test")
    rows = rows_of(features, train, "the channel train")
    _told.say(hp, "the channel train", rows.count, _fields(train, features))
    looked(hp)
    return Data(features, rows, test, has)


def _fields(table: Any, features: Any) -> list[Any]:
    import _told

    if table.target is None:
        return _told.fields_of(table, features)
    kind = "text" if table.target.dtype == object else "number"
    target = _told.field(f"{table.target_name or 'the first column'} (target)", table.target, kind, "what is learnt")
    return [target, *_told.fields_of(table, features)]


def rows_of(features: Any, table: Any, where: str) -> Rows:
    """The rows of a table with these features. Raises Problem."""
    import numpy
    from _tables import widened

    features.check(table, where)
    if table.sparse is None:
        values = numpy.stack([table.columns[name] for name in features.columns], axis=1)
        wrong: Any = numpy.argwhere(~numpy.isfinite(values))
        name = features.columns[wrong[0][1]] if len(wrong) else ""
    else:
        values = widened(table.sparse, features.width).astype(numpy.float64)
        found = numpy.flatnonzero(~numpy.isfinite(values.data))[:1]
        wrong = [(int(numpy.searchsorted(values.indptr, at, "right")) - 1, 0) for at in found]
        name = f"feature {values.indices[found[0]]}" if len(found) else ""
    if len(wrong):
        raise Problem(f"{table.place(int(wrong[0][0]))}: {name} is missing, or not a finite number")
    return Rows(values, table)


def chosen(given: Sequence[str] | None, known: Sequence[str], name: str) -> tuple[str, ...]:
    """The values of a list, which may be a list of JSON, as the platform's requests have it. Raises Problem."""
    values = tuple(part for word in given or () if (part := word.strip("[]\"' ")))
    for value in values:
        if value not in known:
            raise Problem(f"hyperparameter {name}: {value!r} is not one of {', '.join(known)}")
    return values


def scaled(hp: Namespace, rows: Rows) -> tuple[Any, Any]:
    """The rows to learn from, and a fitted scaler before the model, None without `standardize`."""
    from sklearn.preprocessing import StandardScaler

    if not hp.standardize:
        return rows.values, None
    # Sparse rows are not centred: they would not be sparse any more.
    scaler = StandardScaler(with_mean=rows.table.sparse is None)
    return scaler.fit_transform(rows.values), scaler


def behind(scaler: Any, model: Any) -> Any:
    """The model for rows as they come: behind its scaler, if there is one."""
    from sklearn.pipeline import Pipeline

    return model if scaler is None else Pipeline([("scale", scaler), ("model", model)])


# --- one host ---------------------------------------------------------------------------------------------------------


def _hosts() -> list[str]:
    return list(json.loads(os.environ.get("SM_HOSTS") or "[]"))


def learns_here() -> bool:
    """Whether this process is the one that learns: rank 0, or the job's first host. Raises Problem."""
    hosts, here = _hosts(), os.environ.get("SM_CURRENT_HOST", "")
    try:
        rank = int(os.environ.get("RANK") or (hosts.index(here) if here in hosts else 0))
    except ValueError as error:
        raise Problem(f"RANK is not a number: {os.environ['RANK']!r}") from error
    return rank == 0


# --- a program --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Program:
    """A program on scikit-learn.

    path: of its script. fit: learns from the job's channels; reading is up to it. said: what is printed of each row that
    is predicted, by (hyperparameters, model, rows). kinds: what an estimator behind a scaler may be.
    trusted: types beyond those of skops that it is made of.
    """

    path: str
    fit: Callable[[Namespace], tuple[Data, Fitted]]
    said: Callable[[Namespace, Model, Rows], Iterator[dict[str, Any]]]
    kinds: tuple[str, ...]
    trusted: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """That of the script."""
        return Path(self.path).stem

    def main(self) -> None:
        """The command line."""
        hp = self.hyperparameters(sys.argv[1:])
        if hp.predict:
            self.predict(hp)
        elif learns_here():
            self.train(hp)
        else:
            print(f"{self.name} learns on the first host alone: nothing to do here", flush=True)

    def run(self) -> None:
        """The whole process."""
        run(self.main)

    def hyperparameters(self, argv: Sequence[str]) -> Namespace:
        """Reads the command line; raises Problem."""
        from trainshed.algorithms.declaration import beside, read

        parser = Parser.declared(self.path)
        hp = parser.read(argv)
        hp.asked = {name for name, value in vars(hp).items() if value != parser.get_default(name)}
        for one in read(beside(self.path)).hyperparameters.values():
            if one.required and getattr(hp, one.name) is None and not hp.predict:
                raise Problem(f"the hyperparameter {one.name} is missing: {one.help}; {one.kind()}")
        return hp

    def train(self, hp: Namespace) -> None:
        """Learns, says what was measured, and writes the model. Raises Problem."""
        import sklearn
        from sklearn.exceptions import ConvergenceWarning

        import trainshed
        from trainshed import metrics

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different rows than clusters
            warnings.simplefilter("ignore", RuntimeWarning)  # what is no number is refused below
            data, fitted = self.fit(hp)
        world = World(0, 1, 0, None)
        for name, value in fitted.metrics.items():
            world.metric(name.replace(":", "_", 1), value, 1, 1)
        require_finite(fitted)
        if fitted.metrics and in_job():
            metrics.log(fitted.metrics, step=1)
        if signal.getsignal(signal.SIGTERM) is _stop:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a moment, and then there is a model
        values = {name.replace(":", "_", 1): value for name, value in fitted.metrics.items()}
        about = {
            "program": self.name,
            "trainshed": trainshed.__version__,
            "scikit-learn": sklearn.__version__,
            "hyperparameters": {name: getattr(hp, name) for name in sorted(hp.asked) if name not in FOLDERS},
            "features": data.features.plain(),
            "labelled": data.labelled,
            "trained": {"rows": data.train.count, "finished": True},
            "metrics": values,
            **fitted.facts,
        }
        save(hp.model_dir, fitted.estimator, about)
        write_json(Path(hp.output_data_dir) / "metrics.json", {"rows": data.train.count, "finished": True, **values})
        print(f"model: {hp.model_dir}", flush=True)

    def predict(self, hp: Namespace) -> None:
        """Prints one JSON line a row. Raises Problem."""
        from _sparing import Spare
        from _tables import How, files_of, read_files

        model = Model(hp.model_dir, self)
        spare = Spare(lambda part: self._answered(hp, model, part), model.features.columns)
        for name in ("target", "ignore_columns"):
            if name in model.hyperparameters and name not in hp.asked:
                value = model.hyperparameters[name]
                setattr(hp, name, tuple(value) if isinstance(value, list) else value)
        how = How(
            target=hp.target or "",
            ignored=hp.ignore_columns or (),
            labelled=False,
            columns=tuple(model.features.columns) if model.labelled or model.features.named else None,
            bare=not model.labelled,
            numeric=True,
            spare=spare,
        )
        table = read_files(files_of(hp.predict, "the data to predict"), how, hp.predict)
        spare.answer(table, self.said(hp, model, rows_of(model.features, table, hp.predict)))

    def _answered(self, hp: Namespace, model: Model, part: Any) -> None:
        """Raises Problem where rows have no answer."""
        for _ in self.said(hp, model, rows_of(model.features, part, part.place(0))):
            pass


def require_finite(fitted: Fitted) -> None:
    """Raises Problem where a model or what was measured of it is not finite."""
    import numpy

    parts = [step for _, step in fitted.estimator.steps] if hasattr(fitted.estimator, "steps") else [fitted.estimator]
    arrays = [(name, value) for part in parts for name, value in vars(part).items() if isinstance(value, numpy.ndarray)]
    for name, value in (*arrays, *fitted.metrics.items()):
        if numpy.asarray(value).dtype.kind == "f" and not numpy.isfinite(numpy.asarray(value)).all():
            raise Problem(
                f"{name.rstrip('_')} is not a finite number: no model is written; look for very large values in the data"
            )


# --- the model's folder -----------------------------------------------------------------------------------------------


def save(folder: str, estimator: Any, about: dict[str, Any]) -> None:
    """Writes a model, model.json last."""
    from skops import io

    with whole_file(Path(folder) / MODEL) as path:
        io.dump(estimator, path)
    write_json(Path(folder) / "model.json", about)


class Model:
    """What a folder holds that `save` has written. Raises Problem where it is not one of this program."""

    def __init__(self, folder: str, program: Program) -> None:
        from _columns import Features
        from skops import io

        root = Path(folder)
        try:
            content = json.loads((root / "model.json").read_text(encoding="utf-8"))
            if content["program"] != program.name:
                raise ValueError(f"model.json is one of {content['program']}")
            self.features = Features.of_plain(content["features"])
            self.labelled, self.hyperparameters = bool(content["labelled"]), dict(content["hyperparameters"])
            self.content = content
            self.estimator = io.load(root / MODEL, trusted=list(program.trusted))
            last = self.estimator.steps[-1][1] if hasattr(self.estimator, "steps") else self.estimator
            if type(last).__name__ not in program.kinds:
                raise ValueError(f"{MODEL} is a {type(last).__name__}")
            if last.n_features_in_ != (len(self.features.columns) or self.features.width):
                raise ValueError(f"{MODEL} and model.json are of different models")
        except Exception as error:  # of what the formats below raise for damaged files nobody has a list
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise Problem(f"{root} holds no model of {program.name}: {reason[0]}") from error


def plain(value: Any) -> float:
    """A number for a JSON line. Raises Problem where it is not finite."""
    if not math.isfinite(value):
        raise Problem(f"a row to predict has no finite result ({value}): look for very large values in it")
    return float(f"{value:.7g}")
