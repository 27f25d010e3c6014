"""The platform's requests as they are: each public name is taken, said to change nothing, or refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.extras import needs
from support.lazy import Lazy
from support.paths import ENTRYPOINTS
from support.programs import Module, Train, channel
from trainshed.algorithms import ENDING
from trainshed.algorithms.declaration import read

needs("xgboost", "sklearn")
numpy: Any = Lazy("numpy")

PROGRAM = "tabular.py"
ROWS = "".join(f"{n % 2},{n / 7},{n % 5}\n" for n in range(12))
# Of the developer guide's pages "... Hyperparameters" of the built-in algorithms.
PUBLIC = {
    "tabular": "num_class num_round alpha base_score booster colsample_bylevel colsample_bynode colsample_bytree "
    "csv_weights deterministic_histogram early_stopping_rounds eta eval_metric gamma grow_policy interaction_constraints "
    "lambda lambda_bias max_bin max_delta_step max_depth max_leaves min_child_weight monotone_constraints normalize_type "
    "nthread objective one_drop process_type rate_drop refresh_leaf sample_type scale_pos_weight seed "
    "single_precision_histogram sketch_eps skip_drop subsample tree_method tweedie_variance_power updater "
    "use_dask_gpu_training verbosity dsplit predictor silent save_model_on_termination _tuning_objective_metric "
    "_kfold _num_cv_round aft_loss_distribution "
    "num_boost_round metric learning_rate num_leaves feature_fraction bagging_fraction bagging_freq min_data_in_leaf "
    "lambda_l1 lambda_l2 boosting min_gain_to_split tree_learner feature_fraction_bynode is_unbalance num_threads use_dask "
    "iterations depth l2_leaf_reg random_strength rsm loss_function boosting_type bootstrap_type random_seed thread_count "
    "sampling_frequency bagging_temperature max_leaves verbose",
    "recommend": "feature_dim num_factors predictor_type bias_init_method bias_init_scale bias_init_sigma bias_init_value "
    "bias_lr bias_wd clip_gradient epochs eps factors_init_method factors_init_scale factors_init_sigma factors_init_value "
    "factors_lr factors_wd linear_lr linear_init_method linear_init_scale linear_init_sigma linear_init_value linear_wd "
    "mini_batch_size rescale_grad",
    "knn": "feature_dim k predictor_type sample_size dimension_reduction_target dimension_reduction_type "
    "faiss_index_ivf_nlists faiss_index_pq_m index_metric index_type mini_batch_size",
    "clustering": "feature_dim k epochs eval_metrics extra_center_factor half_life_time_size init_method "
    "local_lloyd_init_method local_lloyd_max_iter local_lloyd_num_trials local_lloyd_tol mini_batch_size",
    "pca": "feature_dim mini_batch_size num_components algorithm_mode extra_components subtract_mean",
    "anomaly": "feature_dim eval_metrics num_samples_per_tree num_trees",
    "linear": "num_classes predictor_type accuracy_top_k balance_multiclass_weights beta_1 beta_2 bias_lr_mult bias_wd_mult "
    "binary_classifier_model_selection_criteria early_stopping_patience early_stopping_tolerance epochs f_beta feature_dim "
    "huber_delta init_bias init_method init_scale init_sigma l1 learning_rate loss loss_insensitivity lr_scheduler_factor "
    "lr_scheduler_minimum_lr lr_scheduler_step margin mini_batch_size momentum normalize_data normalize_label quantile "
    "num_calibration_samples num_models num_point_for_scaler optimizer positive_example_weight_mult target_precision "
    "target_recall unbias_data unbias_label use_bias use_lr_scheduler wd",
    "forecasting": "context_length epochs prediction_length time_freq cardinality dropout_rate early_stopping_patience "
    "embedding_dimension learning_rate likelihood mini_batch_size num_cells num_dynamic_feat num_eval_samples num_layers "
    "test_quantiles",
    "image_classification": "num_classes num_training_samples augmentation_type beta_1 beta_2 checkpoint_frequency epochs "
    "eps early_stopping early_stopping_min_epochs early_stopping_patience early_stopping_tolerance gamma image_shape "
    "kv_store learning_rate lr_scheduler_factor lr_scheduler_step mini_batch_size momentum multi_label num_layers optimizer "
    "precision_dtype resize top_k use_pretrained_model use_weighted_loss weight_decay",
    "object_detection": "num_classes num_training_samples base_network early_stopping early_stopping_min_epochs "
    "early_stopping_patience early_stopping_tolerance epochs freeze_layer_pattern image_shape kv_store label_width "
    "learning_rate lr_scheduler_factor lr_scheduler_step mini_batch_size momentum nms_threshold optimizer overlap_threshold "
    "use_pretrained_model weight_decay",
    "semantic_segmentation": "backbone use_pretrained_model algorithm num_classes num_training_samples base_size crop_size "
    "early_stopping early_stopping_min_epochs early_stopping_patience early_stopping_tolerance epochs gamma1 gamma2 "
    "learning_rate lr_scheduler lr_scheduler_factor lr_scheduler_step mini_batch_size validation_mini_batch_size momentum "
    "optimizer weight_decay syncbn",
    "text_classification": "mode buckets early_stopping epochs evaluation learning_rate min_char max_char min_count "
    "min_epochs negative_samples patience sampling_threshold subwords vector_dim window_size word_ngrams",
}  # fmt: skip


@pytest.fixture
def look(module: Module, started_here: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What tabular.py says of a request before it trains."""

    def looked(rows: str, *arguments: str) -> str:
        channel(tmp_path / "train", rows, "train.svm" if ":" in rows else "train.csv")
        with pytest.raises(module("_common").Looked):
            started_here(PROGRAM, "--train", "train", "--check_data", *arguments)
        captured = capsys.readouterr()
        return captured.out + captured.err

    return looked


@pytest.mark.parametrize("program", sorted(PUBLIC))
def test_every_public_name_is_known(program: str) -> None:
    declared = read(str(ENTRYPOINTS / f"{program}{ENDING}")).hyperparameters

    assert [name for name in PUBLIC[program].split() if name not in declared] == []


@pytest.mark.parametrize(
    ("program", "values"),
    [
        ("tabular", {"max_bin": "Auto", "boosting_type": "Auto", "grow_policy": "SymmetricTree", "thread_count": "-1"}),
        ("linear", {"normalize_data": "True", "unbias_data": "False", "normalize_label": True}),
        ("linear", {"normalize_data": "auto", "positive_example_weight_mult": "auto", "num_calibration_samples": "auto"}),
        ("semantic_segmentation", {"use_pretrained_model": "True"}),
        ("image_classification", {"precision_dtype": "float16", "kv_store": "dist_async"}),
    ],
)
def test_values_of_the_public_pages_are_taken(program: str, values: dict[str, Any]) -> None:
    declared = read(str(ENTRYPOINTS / f"{program}{ENDING}")).hyperparameters

    for name, value in values.items():
        declared[name].read(value)


def test_names_that_change_nothing_for_one_reason_are_named_in_one_line(
    module: Module, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--predictor_type", "regressor", "--optimizer", "adam", "--momentum", "0.9", "--quantile", "0.5")
    module("linear").hyperparameters(words)

    assert capsys.readouterr().err.splitlines() == [
        "note: optimizer, momentum change nothing: the solver finds the optimum itself",
        "note: quantile changes nothing: it is of a loss that is not served",
    ]


def test_values_of_other_libraries_are_ours(module: Module) -> None:
    words = ("--library", "catboost", "--grow_policy", "Lossguide", "--max_bin", "Auto", "--thread_count", "-1")
    hp = module("tabular").hyperparameters((*words, "--eval_metric", "auto", "--max_depth", "-1"))

    assert (hp.grow_policy, hp.max_bin, hp.nthread, hp.eval_metric, hp.max_depth) == ("lossguide", 256, 0, None, 0)


@pytest.mark.parametrize("written", ["validation:f1", '"validation:f1"'])  # the SDK encodes values, and others do not
def test_the_metric_of_a_tuning_job_comes_from_the_jobs_file(
    module: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    (tmp_path / "hyperparameters.json").write_text(json.dumps({"_tuning_objective_metric": written}))
    monkeypatch.setenv("SM_INPUT_CONFIG_DIR", str(tmp_path))

    assert module("tabular").hyperparameters(["--eval_metric", "error"]).eval_metric == ("error", "f1")


def test_the_whole_request_of_the_public_page_is_taken(look: Callable[..., str]) -> None:
    given = {
        "num_round": 3, "csv_weights": 0, "early_stopping_rounds": 5, "booster": "gbtree", "nthread": 2, "eta": 0.3,
        "lambda": 1, "alpha": 0, "tree_method": "gpu_hist", "sketch_eps": 0.03, "updater": "grow_colmaker,prune",
        "dsplit": "row", "refresh_leaf": 1, "process_type": "default", "predictor": "cpu_predictor", "lambda_bias": 0.5,
        "objective": "reg:linear", "base_score": 0.5, "seed": -1, "eval_metric": "rmse,mse", "verbose": 1,
        "use_dask_gpu_training": "false", "save_model_on_termination": "true", "deterministic_histogram": "true",
    }  # fmt: skip

    said = look(ROWS, *(word for name, value in given.items() for word in (f"--{name}", str(value))))

    notes = [line for line in said.splitlines() if line.startswith("note: ") and "changes nothing: " in line]
    assert len(notes) == len(set(notes)) == 6  # sketch_eps, predictor, dsplit, lambda_bias, the histogram, verbose
    assert "note: tree_method gpu_hist is hist: trees are grown on CPUs" in said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--_kfold", "50"], "_kfold 50 of 12 rows: "),
        (["--_kfold", "5", "--library", "lightgbm"], "_kfold is served with library xgboost, not lightgbm"),
        (
            ["--sampling_frequency", "PerTree", "--bagging_freq", "2"],
            "bagging_freq, sampling_frequency: XGBoost has no such",
        ),
        (["--boosting", "dart"], "boosting: 'dart' is not one of gbdt; of LightGBM gbdt alone can be gone on with exactly"),
        (["--loss_function", "RMSE"], "loss_function is not served: objective says what is learnt"),
        (["--use_dask_gpu_training", "true"], "use_dask_gpu_training is not served: trees are grown on CPUs"),
        (["--eval_metric", "f1_bin"], "eval_metric f1_bin is not a metric of XGBoost: did you mean f1_binary?"),
        (["--eval_metric", "auc@0.5"], "eval_metric auc@0.5: auc takes no number behind @, as error, map, ndcg"),
        (["--eval_metric", "auc", "--objective", "reg:gamma"], "eval_metric auc measures classes, and reg:gamma has none"),
        (["--eval_metric", "aft-nloglik"], "eval_metric aft-nloglik is of survival:aft"),
        (["--eval_metric", "accuracy"], "eval_metric accuracy measures classes, and reg:squarederror has none"),
        (["--updater", "grow_skmaker"], "updater grow_skmaker: XGBoost has it no more: take tree_method approx"),
        (["--updater", "grow_colmaker,grow_histmaker"], "one alone can grow trees"),
        (["--updater", "shotgun"], "updater shotgun is not one of grow_colmaker"),
        (["--objective", "rank:pairwise"], "the channel train has no groups: rank:pairwise needs qid"),
        (["--quantile_alpha", "0.1,1.5", "--objective", "reg:quantileerror"], "quantile_alpha: 1.5 is not between 0 and 1"),
        (["--csv_weights", "1", "--weight", "x"], "csv_weights and weight both say"),
        (["--library", "lightgbm", "--monotone_constraints", "(1,1)"], "monotone_constraints: LightGBM has no such thing"),
        (["--library", "auto", "--objective", "multi:softmax"], "library auto does not compare multi:softmax"),
        (["--library", "auto", "--eval_metric", "mape"], "library auto compares by rmse, mae, not by eval_metric mape"),
        (["--library", "linear", "--updater", "prune"], "updater: a linear model has no such thing"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    module: Module, started_here: Train, tmp_path: Path, given: list[str], said: str
) -> None:
    needs("lightgbm", "skops")
    channel(tmp_path / "train", "".join(f"{n + 1},{n / 7},{n % 5}\n" for n in range(12)))
    with pytest.raises(module("_common").Problem) as raised:
        started_here(PROGRAM, "--train", "train", *given)
    assert said in str(raised.value)


@pytest.mark.parametrize(("size", "refused"), [("1", False), ("5", True), ("0", True)])
def test_label_size_is_looked_at(
    module: Module, look: Callable[..., str], started_here: Train, monkeypatch: pytest.MonkeyPatch, size: str, refused: bool
) -> None:
    monkeypatch.setenv("SM_INPUT_DATA_CONFIG", f'{{"train": {{"ContentType": "text/csv; label_size={size}"}}}}')
    if not refused:
        assert "the data is plausible" not in look(ROWS)
        return
    with pytest.raises(module("_common").Problem, match=f"label_size={size}: a row has one target"):
        look(ROWS)


def test_weights_in_the_second_column_are_of_train_alone(look: Callable[..., str], tmp_path: Path) -> None:
    channel(tmp_path / "validation", "1,2,3\n0,4,5\n", "v.csv")

    said = look("1,0.5,2,3\n0,1,4,5\n", "--csv_weights", "1", "--validation", "validation")

    assert "(weight)" in said and "-> weight of the row" in said


def test_an_index_without_a_value_is_missing(look: Callable[..., str]) -> None:
    said = look("1 1:2 8:\n0 1:3 2:1\n")

    assert "note: train/train.svm: 1 cells are an index without a value, as 8: is, and count as missing" in said


@pytest.mark.parametrize(
    ("rows", "given", "said"),
    [
        ("y,q,x\n1,a,2\n0,a,3\n1,b,4\n0,a,5\n", ["--group", "q"], "row 4: the group a goes on here, after others"),
        ("y,q,x\n1,a,2\n0,,3\n", ["--group", "q"], "row 2: the row has no group"),
        ("y,q,x\n1,a,2\n0,a,3\n", ["--group", "g"], "there is no column 'g'"),
        ("1 qid:1 1:2\n0 qid:2 1:2\n1 qid:1 1:3\n", [], "row 3: the group 1 goes on here, after others"),
        (
            "y,q,x,w\n1,a,2,1\n0,a,3,1\n",
            ["--group", "q", "--weight", "w"],
            "rows are weighed, and rank:",
        ),
        ("y,q,x\n-1,a,2\n0,a,3\n", ["--group", "q"], "must be 0 or more for rank:pairwise"),
    ],
)
def test_groups_that_cannot_be_ranked_are_refused(
    module: Module, look: Callable[..., str], rows: str, given: list[str], said: str
) -> None:
    target = [] if ":" in rows else ["--target", "y"]
    with pytest.raises(module("_common").Problem) as raised:
        look(rows, "--objective", "rank:pairwise", *target, *given)
    assert said in str(raised.value)


def test_an_end_before_the_beginning_is_refused(module: Module, look: Callable[..., str]) -> None:
    given = ["--objective", "survival:aft", "--target", "y", "--target_upper", "u"]
    assert "number to learn" in look("y,u,x\n1,2,2\n3,,3\n", *given)
    with pytest.raises(module("_common").Problem, match="row 2: u is below the target"):
        look("y,u,x\n1,2,2\n3,1,3\n", *given)


@pytest.mark.parametrize(
    ("name", "objective", "labels", "answers", "value"),
    [
        ("accuracy", "binary:logistic", [1, 0, 1, 1], [0.9, 0.1, 0.2, 0.8], 0.75),
        ("accuracy", "binary:logitraw", [1, 0, 1, 1], [0.4, -0.1, -2.0, 0.8], 0.75),
        ("accuracy", "multi:softmax", [2, 0, 1], [2.0, 0.0, 0.0], 2 / 3),
        ("accuracy", "multi:softprob", [1, 0], [[0.1, 0.9], [0.2, 0.8]], 0.5),
        ("f1_binary", "binary:logistic", [1, 0, 1, 1], [0.9, 0.1, 0.2, 0.8], 0.8),
        ("recall", "binary:logistic", [1, 0, 1, 1], [0.9, 0.1, 0.2, 0.8], 2 / 3),
        ("precision_micro", "binary:hinge", [1, 0, 1, 1], [1.0, 0.0, 0.0, 1.0], 0.75),
        ("mse", "reg:squarederror", [1, 2], [1.0, 4.0], 2.0),
        ("r2", "reg:squarederror", [1, 2, 3], [1.0, 2.0, 3.0], 1.0),
    ],
)
def test_metrics_are_those_of_scikit_learn(
    module: Module, name: str, objective: str, labels: list[int], answers: list[Any], value: float
) -> None:
    measures: ModuleType = module("_measures")

    found = measures.measured(name, numpy.array(labels), numpy.array(answers), objective)

    assert found == pytest.approx(value)
