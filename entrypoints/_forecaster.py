"""The training of forecasting.py: DeepAR of GluonTS, its windows and forecasts, in the loop of `_epochs`."""

from __future__ import annotations

import logging
import math
import zlib
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gluonts
import numpy
import pandas
import torch
from _common import Problem, World
from _epochs import Epochs, Task, about_model
from _predicting import Answers
from _series import Series, load_file
from gluonts.dataset.common import ListDataset
from gluonts.model.predictor import Predictor
from gluonts.torch.distributions import (
    BetaOutput,
    LaplaceOutput,
    NegativeBinomialOutput,
    NormalOutput,
    StudentTOutput,
)
from gluonts.torch.model.deepar import DeepAREstimator
from gluonts.transform import InstanceSplitter
from gluonts.transform.sampler import InstanceSampler
from torch import Tensor, nn

PROGRAM = "forecasting"
LIKELIHOODS = {
    "student-T": StudentTOutput,
    "gaussian": NormalOutput,
    "negative-binomial": NegativeBinomialOutput,
    "beta": BetaOutput,
    "deterministic-L1": LaplaceOutput,
}
INPUTS = ("feat_static_cat", "feat_static_real", "past_time_feat", "past_target", "past_observed_values", "future_time_feat")
OUTCOME = ("future_target", "future_observed_values")
REACH = 2100  # values that the longest lag may look back


class At(InstanceSampler):
    """Cuts a series at one place, that of its field `place`."""

    place: int = 0

    def __call__(self, ts: Any) -> Any:
        return numpy.array([self.place])


class Loss(nn.Module):
    """The loss of DeepAR, a number for each window, as a module: what ranks put around it is called, not its methods."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, windows: dict[str, Tensor]) -> Tensor:
        try:
            loss: Tensor = self.model.loss(**windows)  # type: ignore[operator]
        except ValueError as error:  # torch's, about a distribution of parameters that are no numbers
            raise Problem("the loss is not a finite number: lower learning_rate") from error
        return loss


class Forecasting(Task):
    """Learns what comes next in many series."""

    program = PROGRAM

    def __init__(self, hp: Namespace, parts: dict[str, list[Series]], world: World) -> None:
        self.hp, self.world, self.series = hp, world, parts
        self.horizon = hp.prediction_length
        torch.manual_seed(hp.seed)
        self.estimator = estimator_of(hp, scale_of(parts["train"]))
        module = self.estimator.create_lightning_module()
        self.model = module.model
        self.network = Loss(self.model).to(world.device)
        self.estimator.train_sampler = At()
        self.splitter: InstanceSplitter = self.estimator._create_instance_splitter(module, "training")
        self.transformation = self.estimator.create_transformation()
        self.entries = {part: entries(hp, rows, self.transformation, part) for part, rows in parts.items() if part != "test"}
        # A window begins to forecast at 1 up to where prediction_length values are left; series come one after the other.
        lengths = [len(row.target) - self.horizon for row in parts["train"]]
        self.ends = numpy.cumsum(lengths)
        self.count = int(self.ends[-1])
        self.parts = {part: len(rows) for part, rows in parts.items()}
        self.watched = "loss" if parts["validation"] else "train_loss"
        same = (
            "time_freq", "prediction_length", "context_length", "num_batches_per_epoch", "likelihood", "num_cells",
            "num_layers", "dropout_rate", "embedding_dimension", "cardinality", "num_dynamic_feat",
        )  # fmt: skip
        self.facts = {name: getattr(hp, name) for name in same}
        self.facts["series"] = {part: digest(rows) for part, rows in parts.items() if part != "test"}

    def positions(self, seed: int, epoch: int) -> Sequence[int]:
        """Windows at random places of random series, as many as an epoch has."""
        draw = numpy.random.default_rng([seed, epoch])
        which = draw.integers(0, len(self.ends), self.hp.num_batches_per_epoch * self.hp.batch_size)
        first = numpy.concatenate([[0], self.ends[:-1]])
        sizes = self.ends - first
        places: list[int] = (first[which] + (draw.random(len(which)) * sizes[which]).astype(numpy.int64)).tolist()
        return places

    def windows(self, part: str, places: Sequence[tuple[int, int]]) -> dict[str, Tensor]:
        """Windows of series of a part, each at a place of its own, as tensors. [windows, ...]"""
        cut = []
        for index, place in places:
            self.splitter.instance_sampler = At(place=place)
            cut += list(self.splitter.flatmap_transform(self.entries[part][index], is_train=True))
        stacked = {name: numpy.stack([numpy.asarray(one[name]) for one in cut]) for name in (*INPUTS, *OUTCOME)}
        return {
            name: torch.as_tensor(value, dtype=torch.int64 if name == "feat_static_cat" else torch.float32).to(
                self.world.device
            )
            for name, value in stacked.items()
        }

    def place(self, position: int) -> tuple[int, int]:
        """Series, and how many values come before the window's forecast."""
        index = int(numpy.searchsorted(self.ends, position, side="right"))
        return index, position - (int(self.ends[index - 1]) if index else 0) + 1

    def loss(self, model: nn.Module, whole: Sequence[int], mine: slice, place: tuple[int, int]) -> tuple[Tensor, float]:
        windows = self.windows("train", [self.place(position) for position in list(whole)[mine]])
        return model(windows).sum(), float(len(whole))

    def outputs(self, part: str, positions: Sequence[int]) -> list[Any]:
        if part == "test":
            return self.forecast([self.series["test"][at] for at in positions])
        if part == "train":
            places = [self.place(position) for position in positions]
        else:
            places = [(at, len(self.series[part][at].target) - self.horizon) for at in positions]
        return self.network(self.windows(part, places)).tolist()

    def forecast(self, rows: Sequence[Series]) -> list[Any]:
        """The mean and the quantiles of what the last values of series are forecast to be. Each [1 + quantiles, time]"""
        known = [
            {**entry_of(self.hp, row), "target": numpy.asarray(row.target[: -self.horizon], numpy.float32)} for row in rows
        ]
        made = forecasts(self.predictor(), self.hp.time_freq, known, self.hp.num_eval_samples)
        return [numpy.stack([one.mean, *(one.quantile(q) for q in self.hp.test_quantiles)]) for one in made]

    def predictor(self) -> Predictor:
        """What forecasts, as GluonTS has it."""
        module = self.estimator.create_lightning_module()
        module.model = self.model
        predictor = self.estimator.create_predictor(self.transformation, module)
        return predictor.to(self.world.device)

    def scores(self, part: str, outputs: list[Any]) -> dict[str, float]:
        if part != "test":
            return {"loss": float(numpy.mean(outputs))}
        made = numpy.stack(outputs).astype(numpy.float64)  # [series, 1 + quantiles, time]
        truth = numpy.stack([row.target[-self.horizon :] for row in self.series["test"]])
        measures = measured(made, truth, self.hp.test_quantiles)
        for name in measures:
            self.world.say(f"#quality_metric: host={host()}, test {name} <loss>={measures[name]:.6g}")
        return measures

    def save(self, target: Path) -> dict[str, Any]:
        self.predictor().serialize(target)
        print(f"#quality_metric: host={host()}, train final_loss <loss>={self.final_loss():.6g}", flush=True)
        return {"versions": {"gluonts": gluonts.__version__, "pandas": pandas.__version__}, "series": self.parts}

    def final_loss(self) -> float:
        """Of the training, as it was reported last."""
        return self.job.at.results.get("train_loss", math.nan)

    job: Epochs


def host() -> str:
    """This host's name in the job."""
    import os

    return os.environ.get("SM_CURRENT_HOST") or "algo-1"


def measured(made: Any, truth: Any, quantiles: Sequence[float]) -> dict[str, float]:
    """RMSE of the mean, and the weighted quantile losses: 2 * sum of the quantile loss / sum of |truth|.

    made: [series, 1 + quantiles, time]. truth: [series, time], NaN where it is missing.

    Source: "Tune a DeepAR Model" of SageMaker's developer guide.
    """
    there = ~numpy.isnan(truth)
    if not there.any():
        raise Problem("the channel test: the last prediction_length values of all series are missing: nothing to measure")
    truth, every = truth[there], numpy.moveaxis(made, 1, -1)[there]
    rmse = math.sqrt(float(((every[:, 0] - truth) ** 2).mean()))
    size = float(numpy.abs(truth).sum())
    result = {"RMSE": rmse}
    if size:
        missed = truth[:, None] - every[:, 1:]
        part = numpy.asarray(quantiles)
        losses = 2 * numpy.maximum(part * missed, (part - 1) * missed).sum(0) / size
        result["mean_wQuantileLoss"] = float(losses.mean())
        result |= {f"wQuantileLoss[{q:g}]": float(one) for q, one in zip(quantiles, losses, strict=True)}
    return result


# --- GluonTS ----------------------------------------------------------------------------------------------------------


def estimator_of(hp: Namespace, scale: float) -> DeepAREstimator:
    """GluonTS's own description of the model. Raises Problem for a frequency that it does not know."""
    logging.getLogger("lightning").setLevel(logging.ERROR)
    try:
        return DeepAREstimator(
            freq=hp.time_freq,
            prediction_length=hp.prediction_length,
            context_length=hp.context_length,
            num_layers=hp.num_layers,
            hidden_size=hp.num_cells,
            dropout_rate=hp.dropout_rate,
            num_feat_dynamic_real=hp.num_dynamic_feat,
            num_feat_static_cat=len(hp.cardinality),
            cardinality=hp.cardinality,
            embedding_dimension=[hp.embedding_dimension] * len(hp.cardinality) if hp.cardinality else None,
            distr_output=LIKELIHOODS[hp.likelihood](),
            scaling=hp.likelihood != "beta",  # scaled values would be beyond 1
            default_scale=scale,
            num_parallel_samples=hp.num_eval_samples,
            batch_size=hp.batch_size,
            nonnegative_pred_samples=False,
        )
    except (ValueError, AssertionError, KeyError) as error:
        raise Problem(f"GluonTS makes no DeepAR of these hyperparameters: {str(error).splitlines()[0]}") from error


def scale_of(rows: Sequence[Series]) -> float:
    """The mean size of all values, for windows that have none: GluonTS takes that of the batch, which ranks share."""
    values = numpy.abs(numpy.concatenate([row.target for row in rows]))
    return float(numpy.nanmean(values)) or 1.0


def entry_of(hp: Namespace, row: Series) -> dict[str, Any]:
    """A series as GluonTS takes it."""
    entry: dict[str, Any] = {"start": row.start, "target": numpy.asarray(row.target, numpy.float32)}
    if hp.cardinality:
        entry["feat_static_cat"] = list(row.cat)
    if hp.num_dynamic_feat:
        entry["feat_dynamic_real"] = [list(values) for values in row.features]
    return entry


def entries(hp: Namespace, rows: Sequence[Series], transformation: Any, part: str) -> list[dict[str, Any]]:
    """All that windows are cut from: with features of time, and what is known. Raises Problem."""
    made = [entry_of(hp, row) for row in rows]
    try:
        return list(transformation.apply(ListDataset(made, freq=hp.time_freq), is_train=True))
    except Exception as error:  # of pandas and GluonTS, about times
        raise Problem(f"the channel {part}: GluonTS does not take these series: {str(error).splitlines()[0]}") from error


def forecasts(predictor: Predictor, freq: str, made: list[dict[str, Any]], samples: int) -> list[Any]:
    """Forecasts of series that GluonTS takes. Raises Problem."""
    try:
        return list(predictor.predict(ListDataset(made, freq=freq), num_samples=samples))
    except ValueError as error:
        raise Problem(f"GluonTS does not forecast these series: {str(error).splitlines()[0]}") from error


def digest(rows: Sequence[Series]) -> str:
    """Differs where series do."""
    value = 0
    for row in rows:
        value = zlib.crc32(numpy.asarray(row.target).tobytes(), zlib.crc32(f"{row.start} {row.cat}".encode(), value))
        value = zlib.crc32(numpy.asarray(row.features).tobytes(), value)
    return f"{len(rows)} series, {value:08x}"


def train(hp: Namespace, parts: dict[str, list[Series]], world: World) -> None:
    """The whole job. Raises Problem."""
    task = Forecasting(hp, parts, world)
    task.job = Epochs(hp, world, task)
    values = sum(len(row.target) for row in parts["train"])
    task.job.run(f"{len(parts['train'])} series of {values} values, {hp.num_batches_per_epoch} steps an epoch,")


def predict(hp: Namespace) -> None:
    """Prints one JSON line a series of the file `predict`: its other fields, start, mean, quantiles of what comes next."""
    given = about_model(hp.model_dir, PROGRAM)["hyperparameters"]
    was = Namespace(**given)
    answers = Answers()
    rows = load_file(hp.predict, answers)
    try:
        predictor = Predictor.deserialize(Path(hp.model_dir), device="cpu" if hp.device == "cpu" else "auto")
    except Exception as error:  # of any library, about files that are not ours
        raise Problem(f"{hp.model_dir} holds no predictor that GluonTS loads: {str(error).splitlines()[0]}") from error
    torch.manual_seed(hp.seed)
    for row in rows:
        kept = {name: value for name, value in row.line.items() if name not in ("start", "target", "cat", "dynamic_feat")}
        if wrong := _unlike(was, row):
            answers.refuse(kept, f"{row.where}: {wrong}", {"where": row.where})
            continue
        [made] = forecasts(predictor, was.time_freq, [entry_of(was, row)], hp.num_eval_samples)
        quantiles = {f"{q:g}": made.quantile(q).tolist() for q in was.test_quantiles}
        start = made.start_date.to_timestamp().isoformat(" ")
        answers.say(kept, {"start": start, "mean": made.mean.tolist(), "quantiles": quantiles})
    answers.end()


def _unlike(was: Namespace, row: Series) -> str | None:
    """Why a model with these hyperparameters does not go on with a series; None or "" where it does."""
    from forecasting import known, misfit

    wrong = misfit(was, row) if known(row.target) else "all values of target are missing: there is nothing to go on from"
    if not wrong and was.num_dynamic_feat and len(row.features[0]) != len(row.target) + was.prediction_length:
        return f"dynamic_feat has {len(row.features[0])} values: it needs {was.prediction_length} more than target has"
    return wrong
