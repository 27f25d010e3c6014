"""Rounds of boosting on tables: what a job of tabular.py is made of, whichever library grows the trees.

Every rank has a part of the rows: of its host's, where each host has files of its own, else of all.
"""

from __future__ import annotations

import importlib
import json
import math
import zlib
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import _measures
import _pictures
import _told
import numpy
from _cells import NOT_ONE, ROWS
from _columns import Features, Target
from _common import Problem, checkpoint_folder, in_job, looked, note, piped, previous_model, said_of, whole_file, write_json
from _ring import Ring, first_line
from _tables import CONTENT_TYPES, How, Table, files_of, grouped, read_files

import trainshed
from trainshed import metrics
from trainshed.checkpoint.guard import Guard, usual_copies

REPEATED = 10  # rounds that a resumed job with random parts may repeat, or a tenth of what is done
PROGRAMS = ("tabular", "linear")  # that write models here
# Else model.json. The platform's image loads each visible file as a model, and its tests count models by names.
ABOUT = {"xgboost": ".about.json"}


class Engine(Protocol):
    """A library that grows trees, round after round.

    file: of the model, in its folder and in checkpoints.   kind: what the importance of a feature is measured by.
    forgets: whether a model that is loaded goes on otherwise than the one that was saved; both do after `reset`.
    continues: whether there is training beyond the end of another one.
    """

    continues: bool
    name: str
    version: str
    file: str
    kind: str

    @property
    def forgets(self) -> bool:
        """See above."""

    def prepare(self, hp: Namespace, target: Target, features: Features, ring: Ring) -> None:
        """Takes the settings. Raises Problem for what is not served."""

    def facts(self) -> dict[str, Any]:
        """The settings that must be the same when training goes on."""

    def matrix(self, features: Any, labels: Any, weights: Any, bins_of: Any = None, plain: bool = False) -> Any:
        """Rows as the library takes them.

        Args:
            features: float32 [rows, columns], or csr.
            bins_of: what was made of more rows, and has bins already.
            plain: not to be trained on.
        """

    def mark(self, matrix: Any, extra: dict[str, Any]) -> None:
        """Says what `Table.extra` has of the rows; of libraries that serve objectives with it."""

    def start(self, model: bytes, train: Any, matrices: list[tuple[Any, str]], ring: Ring) -> None:
        """Begins with a model, or with none (b""). Raises Problem."""

    def update(self, at: int) -> None:
        """Grows the trees of a round, counted from 0."""

    def measured(self, matrices: list[tuple[Any, str]], at: int) -> dict[str, float]:
        """Metrics of the trees up to that round, by name: `validation-rmse`."""

    def model(self, rounds: int = 0) -> bytes:
        """The model of so many rounds; 0: of all."""

    def state(self) -> bytes:
        """What a job that resumes starts with: the model, and what else the library keeps."""

    def reset(self) -> None:
        """Goes on as a model does that was saved and loaded."""

    def importance(self, rounds: int) -> dict[str, float]:
        """How much each feature matters."""


# --- data ---------------------------------------------------------------------------------------------------------------


class Data:
    """The tables of this host, and what their columns mean; validation and test may be None.

    sharded: whether each host has rows of its own.
    """

    train: Table
    validation: Table | None
    test: Table | None

    def __init__(self, hp: Namespace, before: str = "") -> None:
        """Reads the channels. before: the objective of the model to go on from. Raises Problem."""
        if not hp.train:
            raise Problem("the job has no channel train" if in_job() else "give --train FILE or FOLDER, or a channel train")
        self.sharded = (
            hp.sharded
            if hp.sharded is not None
            else said_of("train", "training").get("S3DistributionType") == "ShardedByS3Key"
        )
        hp.sharded = self.sharded
        self.train = read_channel(hp, hp.train, None, "train", "training")
        if self.train.rows < 2 and not self.sharded:
            raise Problem("the channel train has one row: there is nothing to learn from")
        hp.objective = hp.objective or self._objective(before)
        self.validation = read_channel(hp, hp.validation, self.train, "validation") if hp.validation else None
        self.test = read_channel(hp, hp.test, self.train, "test") if hp.test else None
        if self.validation is None and hp.validation_fraction:
            if "group" in self.train.extra:
                raise Problem("validation_fraction would divide groups of rows: add a channel validation")
            self.train, self.validation = held_out(self.train, hp.validation_fraction, hp.seed)

    def _objective(self, before: str) -> str:
        """What is learnt if nobody says it: classes if the target is text. Raises Problem."""
        table = self.train
        if before or table.target.dtype != object:
            return before or "reg:squarederror"
        count = len(set(table.target.tolist()))
        if self.sharded:
            raise Problem(f"the target ({table.target_name}) is text: give the objective, binary:logistic or multi:softprob")
        if table.rows >= ROWS and count > NOT_ONE * table.rows:
            raise Problem(
                f"the target ({table.target_name}) is text with {count} different values in {table.rows} rows, hardly "
                "classes: the hyperparameter target names another column"
            )
        if count < 2:
            raise Problem(f"the target ({table.target_name}) is {table.target[0]!r} in every row: there is nothing to learn")
        found = "binary:logistic" if count == 2 else "multi:softprob"
        note(f"the target ({table.target_name}) is text with {count} different values: objective {found}")
        return found

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
        features = of or Features.of(self.train, hp.categorical_columns or ())
        features.check(self.train, "the channel train")
        for name, table in (("validation", self.validation), ("test", self.test)):
            if table is not None:
                features.check(table, f"the channel {name}")
        name = self.train.target_name or "the first column"
        if target is None and not self.sharded:  # else hosts may have a class each
            Target.require_several(name, values)
        return features, target or Target.of(name, hp.objective, values, hp.num_class)


def read_channel(hp: Namespace, path: str, like: Table | None, *names: str) -> Table:
    """The rows of a channel, with the columns of another table if there is one. Raises Problem."""
    what = f"the channel {names[0]}"
    if piped(path, *names):
        raise Problem(f"{what} is in Pipe mode, and rows are wanted all at once: use FastFile or File")
    columns = tuple(like.columns) if like is not None and like.named else None
    texts = () if like is None else tuple(name for name, values in like.columns.items() if values.dtype == object)
    facts = said_of(*names)
    size = parameter_of(facts, "label_size")
    if size not in ("", "1"):
        raise Problem(f"{what}: ContentType: label_size={size}: a row has one target: give label_size=1, or leave it out")
    way = how(hp, columns, facts, texts)
    text_target = like is not None and like.target is not None and like.target.dtype == object
    second = way.second_weighs and like is None  # of train alone, as the platform has it
    table = read_files(files_of(path, what), replace(way, text_target=text_target, second_weighs=second), what)
    _check_ranking(hp, table, what)
    return grouped(table)


def parameter_of(facts: dict[str, str], name: str) -> str:
    """What a channel's content type says beside its kind: `text/csv;label_size=1`."""
    parameters = facts.get("ContentType", "").lower().replace(" ", "").split(";")[1:]
    return dict(part.partition("=")[::2] for part in parameters).get(name, "")


def _check_ranking(hp: Namespace, table: Table, what: str) -> None:
    ranks = (hp.objective or "").startswith("rank:")
    if ranks and "group" not in table.extra:
        raise Problem(f"{what} has no groups: {hp.objective} needs qid in libsvm, or the hyperparameter group")
    if not ranks and "group" in table.extra:
        raise Problem(f"{what} has groups of rows, and only objective rank:pairwise, rank:ndcg and rank:map use them")
    if ranks and table.weights is not None:
        raise Problem(f"{what}: rows are weighed, and {hp.objective} weighs groups: leave weights out")
    if "upper" in table.extra and hp.objective != "survival:aft":
        raise Problem("target_upper is of survival:aft: leave it out, or set objective to it")
    wrong = numpy.flatnonzero(table.extra["upper"] < table.target).tolist() if "upper" in table.extra else []
    if wrong:
        raise Problem(f"{table.place(wrong[0])}: {hp.target_upper} is below the target")


def how(
    hp: Namespace, columns: tuple[str, ...] | None, facts: dict[str, str], texts: Iterable[str] = (), labelled: bool = True
) -> How:
    """How files are read. texts: columns that are text in the training data."""
    return How(
        target=hp.target or "",
        weight=hp.weight or "",
        second_weighs=bool(hp.csv_weights),
        text=tuple({*(hp.categorical_columns or ()), *texts}),
        ignored=hp.ignore_columns or (),
        labelled=labelled,
        columns=columns,
        content=CONTENT_TYPES.get(facts.get("ContentType", "").partition(";")[0].strip().lower(), ""),
        group=hp.group or "",
        upper=hp.target_upper or "",
        classes=(hp.objective or "").startswith(("binary:", "multi:")),
    )


def held_out(table: Table, fraction: float, seed: int) -> tuple[Table, Table]:
    """The table without this part of its rows, and those rows. Raises Problem."""
    order = numpy.random.default_rng(seed).permutation(table.rows)
    count = int(table.rows * fraction)
    if not 0 < count < table.rows:
        raise Problem(f"validation_fraction {fraction:g} of {table.rows} rows leaves none for training or for validation")
    return table.take(numpy.sort(order[count:])), table.take(numpy.sort(order[:count]))


Known = tuple[Data, Features, Target]


def read(hp: Namespace, ring: Ring, previous: Model | None = None) -> Known:
    """The channels, and what their columns mean, which is told. Raises Problem."""
    data = Data(hp, previous.target.objective if previous else "")
    if previous and previous.target.objective != hp.objective:
        raise Problem(f"the model to go on from has the objective {previous.target.objective}, not {hp.objective}")
    features, target = data.mean(hp, *((previous.features, previous.target) if previous else (None, None)))
    fields = _told.fields_of(data.train, features, target)
    _told.say(hp, "the channel train", data.train.rows, fields, ring.leads)
    return data, features, target


# --- training -----------------------------------------------------------------------------------------------------------


class Training:
    """One job: its matrices, its booster, and what it has measured.

    history: the values of each round, by name (`validation-rmse`).
    mark: rounds, state and history of the last moment that a resumed job can go on from to the same end.
    """

    def __init__(
        self, hp: Namespace, ring: Ring, engine: Engine, program: str = "tabular", known: Known | None = None
    ) -> None:
        self.hp, self.ring, self.engine, self.program, self.known = hp, ring, engine, program, known
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
        self.guard = self.guarded()
        self._restore()

    @property
    def more(self) -> dict[str, Any]:
        """More for model.json."""
        return {}

    def guarded(self) -> Guard:
        """What saves checkpoints and hears of a stop."""
        folder = checkpoint_folder(self.hp.checkpoint_dir)
        return Guard(str(folder or ""), usual_copies(str(folder)) if folder else "", ranks=self.ring)

    def _prepare(self) -> None:
        """What a rank does alone: reads, and makes the bins of columns that it knows all rows of. Raises Problem."""
        hp = self.hp
        before = previous_model(hp.previous_model)
        self.previous = Model(before, self.engine.name, self.engine.file) if before else None
        if self.previous and not self.engine.continues:
            raise Problem(f"library {self.engine.name} does not go on from a model: leave out the channel model")
        self.data, self.features, self.target = self.known or read(hp, self.ring, self.previous)
        self.engine.prepare(hp, self.target, self.features, self.ring)
        if hp.check_data:
            self._labels()
        # Before ranks meet: afterwards libraries would make bins out of all ranks' rows, and others than one rank does.
        self.train = None if self.data.sharded else self._matrix(self.data.train, numpy.arange(self.data.train.rows))

    def _labels(self) -> None:
        """Looks at each label, as the libraries do later. Raises Problem, and Looked at the end."""
        for table in (self.data.train, self.data.validation, self.data.test):
            if table is not None:
                self.target.labels(table, numpy.arange(table.rows))
        looked(self.hp)

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
                Target.require_several(name, values)
                self.target = ring.together(lambda: Target.of(name, self.hp.objective, values, self.hp.num_class))[0]
            self.engine.prepare(self.hp, self.target, self.features, ring)
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
        before = self.previous.fingerprint if self.previous else ""
        self.facts = {"training data": digest, "hyperparameters": self.engine.facts(), "model to go on from": before}

    def _share(self, table: Table, whole: bool) -> Any:
        """Positions of this rank's rows; of those that every host has it is all of them if `whole`, else a part."""
        if self.data.sharded:
            return numpy.arange(self.ring.local_rank, table.rows, self.ring.local_size)
        return numpy.arange(table.rows) if whole else numpy.arange(self.ring.rank, table.rows, self.ring.world_size)

    def _matrix(self, table: Table, rows: Any, bins_of: Any = None, plain: bool = False) -> Any:
        """These rows as the library takes them. Raises Problem."""
        weights = None if table.weights is None else table.weights[rows]
        labels = self.target.labels(table, rows)
        made = self.engine.matrix(self.features.matrix(table, rows), labels, weights, bins_of, plain)
        extra = {name: values[rows] for name, values in table.extra.items()}
        if self.target.objective == "survival:aft":
            extra.setdefault("upper", labels)
        if extra:
            self.engine.mark(made, extra)
        return made

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
            if self.engine.name == "xgboost" and self.hp.tree_method == "approx" and self.hp.subsample < 1:
                self.ring.say("of approx the draws of rows cannot be gone on with: from here on other rows are drawn")
            model = Path(path, self.engine.file).read_bytes()
        self.engine.start(model or b"", self.train, self.matrices, self.ring)

    @property
    def random(self) -> bool:
        """Whether the library has something that it keeps in no model."""
        return self.engine.forgets

    def _marks(self) -> bool:
        """Whether a job that resumes can go on from this round. Sets `mark`.

        Generators of random numbers are in no model. They begin anew after `reset`, which forgets what is predicted of the
        rows too, so that it comes the more rarely the more trees there are.
        """
        done, last = self.round, self.mark[0] if self.mark else -1
        every = self.hp.checkpoint_rounds or max(REPEATED, last // REPEATED)
        if self.random and last >= 0 and done < last + every:
            return False
        if self.random and done > self.first:
            self.engine.reset()
        state = self.engine.state() if done else b""
        self.mark = (done, state, {name: list(values) for name, values in self.history.items()})
        return True

    def checkpoint(self, reason: str) -> None:
        """Saves the last mark, on all ranks together, unless that is done."""
        if not self.random:
            self._marks()
        assert self.mark is not None
        done, state, history = self.mark
        if done <= max(self.guard.saved_step, self.first):
            return

        def save() -> None:
            if self.ring.leads:
                folder = Path(self.guard.path(done))
                folder.mkdir(parents=True, exist_ok=True)
                (folder / self.engine.file).write_bytes(state)
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
            self.engine.update(self.round)
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
        if self.guard.folder and not stopped:
            self.checkpoint("")  # so that more rounds go on from here
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
        values = self.engine.measured(self.matrices, self.round - 1)
        self.show(values, self.round)
        for name, value in values.items():
            self.history.setdefault(name, []).append(value)
            if not math.isfinite(value):
                which = name.partition("-")[2]
                raise Problem(
                    f"{name} is {value:g} after round {self.round}: lower eta ({self.hp.eta:g}), or look whether the rows "
                    f"can be measured by {which} (auc needs rows of both classes)"
                )

    def show(self, values: dict[str, float], rounds: int) -> None:
        """Prints and keeps what is measured after so many rounds."""
        shown = "".join(f"\t{name}:{value:.6g}" for name, value in values.items())
        self.ring.say(f"[{rounds - 1}]{shown}")  # the platform's logs show a tab as #011
        self.log({name.replace("-", ":", 1): value for name, value in values.items()}, rounds)

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
        better = max if metric in _measures.HIGHER_IS_BETTER else min
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
        rounds = self.round if best is None else self.first + best + 1
        if best is not None and best + 1 < self.round - self.first:
            ring.say(f"the best round is {best + 1} of {self.round - self.first}; the model ends there")
        if self.data.test is not None and not stopped:
            table = self.data.test
            kept = ring.together(lambda: _Kept(self._matrix(table, self._share(table, True), plain=True)))
            values = self.engine.measured([(kept[ring.rank].value, "test")], rounds - 1)
            ring.say(" ".join(f"{name}:{value:.6g}" for name, value in values.items()))
            self.log({name.replace("-", ":", 1): value for name, value in values.items()}, self.round)
            results |= {name.replace("-", "_", 1): value for name, value in values.items()}
        if stopped and hp.save_model_on_termination is False:
            ring.say("stopped: no model is written (save_model_on_termination is false)")
            return
        if ring.rank == 0:
            trained = {"rounds": rounds, "finished": not stopped, "world_size": ring.world_size, "rows": self.rows}
            self._write(rounds, {"trained": trained, "metrics": results, **self.more})
        ring.gather(0)  # nobody leaves before the model is there
        ring.say(f"model: {hp.model_dir}")

    def _write(self, rounds: int, results: dict[str, Any]) -> None:
        hp = self.hp
        with whole_file(Path(hp.model_dir) / self.engine.file) as path:
            path.write_bytes(self.engine.model(rounds))
        about = {
            "program": self.program,
            "trainshed": trainshed.__version__,
            "library": self.engine.name,
            self.engine.name: self.engine.version,
            "hyperparameters": {name: getattr(hp, name) for name in sorted(hp.asked) if name not in _FOLDERS},
            "features": self.features.plain(),
            "target": self.target.plain(),
            "fingerprint": self.facts["training data"],
            **results,
        }
        described = Path(hp.model_dir) / ABOUT.get(self.engine.name, "model.json")
        for path in {Path(hp.model_dir) / name for name in (*ABOUT.values(), "model.json")} - {described}:
            path.unlink(missing_ok=True)  # of an earlier model in this folder
        write_json(described, about)
        if described.name != "model.json":
            write_json(Path(hp.output_data_dir) / "model.json", about)  # where people see it
        write_json(Path(hp.output_data_dir) / "metrics.json", {**results["trained"], **results["metrics"]})
        title = f"Feature importance ({self.engine.kind})"
        importance = _pictures.bars(self.engine.importance(rounds), title)
        with whole_file(Path(hp.output_data_dir) / "feature_importance.svg") as path:
            path.write_text(importance, encoding="utf-8")
        _pictures.keep(hp, "importance", title, importance)
        self.ring.afterwards(lambda: _pictures.guarded(lambda: self._draw(rounds)))

    def _draw(self, rounds: int) -> None:
        """Pictures of what the model makes of the data held out: of validation, else of test."""
        held = {"validation": self.data.validation, "test": self.data.test}
        part, table = next(((part, table) for part, table in held.items() if table is not None), ("", None))
        if table is None:
            return
        rows = numpy.arange(min(table.rows, _pictures.MOST))
        predicted = importlib.import_module(type(self.engine).__module__).predictions
        model, matrix = self.engine.model(rounds), self.features.matrix(table, rows)
        values = numpy.asarray(predicted(model, matrix, self.features, self.target))
        if self.target.objective in ("binary:logistic", "multi:softprob"):
            self._draw_classes(part, table, rows, values if values.ndim == 2 else numpy.stack([1 - values, values], axis=1))

    def _draw_classes(self, part: str, table: Table, rows: Any, likely: Any) -> None:
        classes = [str(self.target.class_of(float(label))) for label in range(likely.shape[1])]
        truth = self.target.labels(table, rows).astype(int)
        _pictures.of_classes(self.hp, part, classes, truth, likely)
        wrong = [
            (table.place(int(rows[at])), *_pictures.said_of(classes, truth, likely, at))
            for at in _pictures.mistakes(truth, likely)
        ]
        _told.keep(self.hp, "mistakes", f"Surest mistakes on {part}", ("row", "is", "said", "how sure"), wrong)


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


class Model:
    """What a folder holds that `Training` has written. Raises Problem where it is not one.

    library: whose model it must be, and `file` its name there.
    """

    def __init__(self, folder: str | Path, library: str, file: str) -> None:
        root = Path(folder)
        try:
            content = json.loads(about_in(root).read_text(encoding="utf-8"))
            if content["program"] not in PROGRAMS:
                raise ValueError(f"model.json is one of {content['program']}")
            if library != (theirs := library_of(content)):
                raise ValueError(f"its library is {theirs}, not {library}")
            self.features = Features.of_plain(content["features"])
            self.target = Target.of_plain(content["target"])
            self.rounds, self.fingerprint = int(content["trained"]["rounds"]), str(content["fingerprint"])
            self.model = (root / file).read_bytes()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Problem(f"{root} holds no model of tabular: {first_line(error)}") from error
        self.hyperparameters = content["hyperparameters"]


def about_in(folder: Path) -> Path:
    """The file that says what a folder's model is; that of earlier versions was visible."""
    return next((path for name in ABOUT.values() if (path := folder / name).is_file()), folder / "model.json")


def library_of(content: dict[str, Any]) -> str:
    """The library of a model, by its model.json; the first ones did not say it."""
    return str(content.get("library", "xgboost"))
