"""The image classifier: real jobs as processes, and what a job is made of within this process."""

from __future__ import annotations

import json
import signal
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support import programs
from support.lazy import Lazy
from support.pictures import state, stop_at, trained_here
from support.programs import Module, Options

pytestmark = pytest.mark.torch
numpy: Any = Lazy("numpy")
torch: Any = Lazy("torch")

PROGRAM = "image_classification.py"
SMALL = {"epochs": 3, "batch_size": 8, "width": 8}  # torch 2.13 corrupts its memory in the backward pass of 4 channels
EPOCHS = 10
ARGUMENTS = ("--epochs", str(EPOCHS), "--log_interval", "1")
# A SIGTERM that comes between two lines of the program, however slow it and whoever watches it are.
STOPPED_WHEN_IT_SAYS = """
import builtins, signal
own = builtins.print
def say(*words, **options):
    own(*words, **options)
    if {text!r} in str(words[0]):
        signal.raise_signal(signal.SIGTERM)
builtins.print = say
"""


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, job: Path) -> Iterator[tuple[Path, dict[str, str], str, str]]:
    """A job on two ranks, of which one got SIGTERM: its folder, variables, output and rank 0's stderr."""
    root = tmp_path_factory.mktemp("job")
    variables = programs.job_folder(root, job / "digits", "train", "test")
    with programs.started(PROGRAM, *ARGUMENTS, cwd=root, ranks=2, **variables) as run:
        run.wait_for("^metric train_loss=.* step=5$")
        run.processes[1].send_signal(signal.SIGTERM)
        yield root, variables, run.succeed(), run.errors[0]


@pytest.fixture(scope="module")
def stopped_at(stopped: tuple[Path, dict[str, str], str, str]) -> dict[str, Any]:
    """What that job says of itself in metrics.json."""
    return json.loads((stopped[0] / "output/data/metrics.json").read_text())


@pytest.fixture(scope="module")
def trained(stopped: tuple[Path, dict[str, str], str, str], stopped_at: dict[str, Any]) -> Iterator[tuple[Path, str, str]]:
    """The same folder once the job's second run has ended, that run's output, and rank 0's stderr."""
    root, variables, *_ = stopped
    with programs.started(PROGRAM, *ARGUMENTS, cwd=root, ranks=2, **variables) as run:
        yield root, run.succeed(), run.errors[0]


def test_one_sigterm_stops_all_ranks_at_a_step_with_a_checkpoint(
    stopped: tuple[Path, dict[str, str], str, str], stopped_at: dict[str, Any]
) -> None:
    _, _, output, errors = stopped
    step = stopped_at["steps"]
    assert not stopped_at["finished"] and 5 <= step < 21 * EPOCHS
    assert f"trainshed: stopping after step {step}: SIGTERM received; saved as step-{step:012d}\n" in errors
    assert "\nmodel: " in output and not programs.metrics(output, "test_accuracy")


def test_the_next_run_goes_on_and_learns_the_digits(
    stopped: tuple[Path, dict[str, str], str, str], stopped_at: dict[str, Any], trained: tuple[Path, str, str]
) -> None:
    root, output, errors = trained
    assert f"trainshed: resumed from {root}/checkpoints/step-{stopped_at['steps']:012d} " in errors
    [(accuracy, step)] = programs.metrics(output, "test_accuracy")
    assert accuracy > 0.97
    steps = [at for run in (stopped[2], output) for _, at in programs.metrics(run, "train_loss")]
    assert steps == list(range(1, step + 1)), "the second run begins with the step after the first run's last"
    assert step == 21 * EPOCHS
    assert len(programs.metrics(stopped[2] + output, "validation_accuracy")) == EPOCHS
    assert all(rate > 0 for rate, _ in programs.metrics(output, "examples_per_second"))
    summary = json.loads((root / "output" / "data" / "metrics.json").read_text())
    assert summary["test_accuracy"] == pytest.approx(accuracy, abs=1e-5)
    assert {name: summary[name] for name in ("epochs", "steps", "finished", "world_size")} == {
        "epochs": EPOCHS,
        "steps": step,
        "finished": True,
        "world_size": 2,
    }


def test_the_saved_model_predicts_as_well_as_was_measured(trained: tuple[Path, str, str], job: Path, tmp_path: Path) -> None:
    root, output, _ = trained
    test = job / "digits" / "test" / "digits.npz"
    printed = programs.run(PROGRAM, "--predict", str(test), "--model_dir", str(root / "model"), cwd=tmp_path)
    answers = [json.loads(line) for line in printed.splitlines()]
    assert [int(answer["input"]) for answer in answers] == list(range(359))
    right = numpy.mean([int(answer["class"]) for answer in answers] == numpy.load(test)["y"])
    [(accuracy, _)] = programs.metrics(output, "test_accuracy")
    assert right == pytest.approx(accuracy, abs=1e-5)


def test_the_loaded_network_takes_raw_pixels_of_any_number_type(
    program: ModuleType, trained: tuple[Path, str, str], job: Path
) -> None:
    network, architecture = program.load(trained[0] / "model")
    assert architecture.classes == [str(digit) for digit in range(10)]
    pixels = torch.from_numpy(numpy.load(job / "digits" / "test" / "digits.npz")["x"]).unsqueeze(1)
    assert torch.equal(network(pixels), network(pixels.double()))
    assert not network.training


@pytest.mark.exact
@pytest.mark.heavy
def test_a_job_on_two_ranks_that_was_stopped_ends_with_the_weights_of_one_that_never_was(
    trained: tuple[Path, str, str], job: Path, tmp_path: Path
) -> None:
    """For one rank, `test_a_job_that_was_stopped_ends_with_the_weights_of_one_that_never_was`."""
    variables = programs.job_folder(tmp_path / "job", job / "digits", "train", "test")
    programs.run(PROGRAM, *ARGUMENTS, cwd=tmp_path, ranks=2, **variables)
    through, resumed = state(tmp_path / "job/model"), state(trained[0] / "model")
    assert all(torch.equal(through[name], resumed[name]) for name in through)


def test_it_runs_plain_with_a_stop_before_the_first_step_ending_well_too(tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/sitecustomize.py").write_text(STOPPED_WHEN_IT_SAYS.format(text="using the demo data"))
    modules = f"{tmp_path / 'modules'}:{programs.TOOLKIT}"
    with programs.started(PROGRAM, "--epochs", "50", cwd=tmp_path, PYTHONPATH=modules) as plain:
        plain.succeed()
    assert plain.errors == [
        "trainshed: notice: SIGTERM received\ntrainshed: stopping after step 1: SIGTERM received; not saved\n"
    ]
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"modules", "model", "output"}
    assert json.loads((tmp_path / "model" / "config.json").read_text())["trained"]["finished"] is False


def test_an_error_is_one_line_and_status_1(tmp_path: Path) -> None:
    variables = programs.job_variables(tmp_path, "validation")
    with programs.started(PROGRAM, cwd=tmp_path, **variables) as run:
        assert run.finish() == [1]
    message = "the job has no channel train; add it, or set the hyperparameter demo_data to digits"
    assert run.errors == [f"image_classification: error: {message}\n"]


def test_an_error_in_a_process_that_reads_data_is_one_line_too(module: Module, tmp_path: Path) -> None:
    module("demo_data").write_digits(tmp_path / "data", "png")
    broken = min((tmp_path / "data" / "test" / "7").iterdir())
    broken.write_bytes(broken.read_bytes()[:60])
    arguments = ("--train", str(tmp_path / "data" / "test"), "--num_workers", "1", "--validation_fraction", "0")
    with programs.started(PROGRAM, *arguments, "--image_size", "8", "--channels", "1", cwd=tmp_path) as run:
        assert run.finish() == [1]
    [line] = run.errors[0].splitlines()
    assert line.startswith(f"image_classification: error: {broken} cannot be read as an image: ")


# --- within this process ----------------------------------------------------------------------------------------------


@pytest.fixture
def options(options: Options, tmp_path: Path) -> Options:
    """Hyperparameters for a job on 60 little images below tmp_path, of two classes that are easily told apart."""
    draw = numpy.random.default_rng(0)
    labels = numpy.arange(60) % 2
    images = draw.normal(labels.reshape(-1, 1, 1) * 3, 1, (60, 6, 6)).astype(numpy.float32)
    (tmp_path / "train").mkdir()
    numpy.savez(tmp_path / "train" / "data.npz", x=images, y=labels)
    return options


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"optimizer": "sgd", "learning_rate": 0.05}, marks=pytest.mark.spine),
        {"optimizer": "adam", "lr_schedule": "linear"},
        {"augment": "shift", "lr_schedule": "constant"},
        {"augment": "flip", "depth": 2},
        {"amp": True, "num_workers": 1},
    ],
)
def test_every_way_to_train_learns(program: ModuleType, options: Options, changed: dict[str, object]) -> None:
    assert trained_here(program, options(**changed)).results["validation_accuracy"] == 1.0


def test_training_ends_when_the_target_is_reached(program: ModuleType, options: Options) -> None:
    job = trained_here(program, options(target_accuracy=0.9, epochs=50, learning_rate=0.02))
    assert job.at.epoch < 10 and job.results["validation_accuracy"] >= 0.9


def test_a_learning_rate_that_is_too_high_is_named(program: ModuleType, options: Options) -> None:
    with pytest.raises(
        program.Problem, match=r"^train_loss is not a finite number at step \d+: lower learning_rate \(1e\+30\)$"
    ):
        trained_here(program, options(optimizer="sgd", learning_rate=1e30))


def test_a_finished_training_is_not_repeated_but_evaluated(program: ModuleType, options: Options) -> None:
    hp = options(checkpoint_dir=Path(options().model_dir).parent / "checkpoints")
    first = trained_here(program, hp)
    again = trained_here(program, hp)
    assert again.at == first.at
    assert again.results["validation_loss"] == first.results["validation_loss"]
    assert "train_loss" not in again.results


def test_another_batch_size_goes_on_at_the_same_place_in_the_data(
    program: ModuleType, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(options().model_dir).parent / "checkpoints"
    with monkeypatch.context() as patch:
        stop_at(4, program, patch)
        assert trained_here(program, options(checkpoint_dir=folder, batch_size=8)).at == program.Position(0, 4, 4)
    job = program.Training(options(checkpoint_dir=folder, batch_size=16), program.World(0, 1, 0, torch.device("cpu")))
    assert job.at == program.Position(0, 2, 4)
    job.checkpoints.close()


@pytest.mark.exact
def test_a_job_that_was_stopped_ends_with_the_weights_of_one_that_never_was(
    program: ModuleType, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    hp = options(augment="shift")
    trained_here(program, hp)
    through = state(Path(hp.model_dir))
    hp = Namespace(**{**vars(hp), "checkpoint_dir": Path(hp.model_dir).parent / "checkpoints"})
    with monkeypatch.context() as patch:
        stop_at(9, program, patch)
        assert trained_here(program, hp).at.step == 9
    assert not all(torch.equal(through[name], at_nine) for name, at_nine in state(Path(hp.model_dir)).items())
    trained_here(program, hp)
    resumed = state(Path(hp.model_dir))
    assert all(torch.equal(through[name], resumed[name]) for name in through)


@pytest.mark.safety
def test_a_checkpoint_of_another_training_is_not_touched(program: ModuleType, options: Options) -> None:
    folder = Path(options().model_dir).parent / "checkpoints"
    trained_here(program, options(checkpoint_dir=folder))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for changed, reason in (
        ({"width": 16}, r"model/layers\.0\.weight has the shape .*, in the checkpoint .*"),
        ({"optimizer": "sgd"}, r"it is of another training \(its optimizer differs\)"),
    ):
        with pytest.raises(program.Problem, match=rf"^{folder}/step-\d+: {reason}: remove it to train from scratch, or use"):
            trained_here(program, options(checkpoint_dir=folder, **changed))
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.safety
@pytest.mark.parametrize("kept", [0, 100, 5000])
def test_a_damaged_checkpoint_is_passed_over_and_the_reason_said(
    program: ModuleType, options: Options, capsys: pytest.CaptureFixture[str], kept: int
) -> None:
    folder = Path(options().model_dir).parent / "checkpoints"
    first = trained_here(program, options(checkpoint_dir=folder, epochs=1))
    (weights,) = folder.rglob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:kept])
    again = trained_here(program, options(checkpoint_dir=folder, epochs=1))
    assert f"{weights.parent.name} passed over: {weights.name} has {kept} bytes instead of" in capsys.readouterr().err
    assert again.results["validation_loss"] == first.results["validation_loss"]
    assert "train_loss" in again.results


def test_it_goes_on_from_the_model_of_the_channel_model(
    program: ModuleType,
    options: Options,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = trained_here(program, options(model_dir=tmp_path / "first"))
    programs.as_previous_model(tmp_path / "first", monkeypatch, tmp_path)
    capsys.readouterr()

    still = trained_here(program, options(epochs=1, learning_rate=1e-12, width=16))

    assert still.results["validation_loss"] == pytest.approx(first.results["validation_loss"])
    assert "going on from the model in " in (said := capsys.readouterr().out) and ": width 8, depth 1\n" in said
    for changed, message in (
        (
            {"demo_data": "digits", "train": ""},
            "the previous model takes images of 6 x 6 with 1 channel, the data has 8 x 8",
        ),
        ({"previous_model": tmp_path / "train"}, "holds no model of image_classification: "),
    ):
        with pytest.raises(program.Problem, match=message):
            trained_here(program, options(**changed))
    labels = numpy.arange(60) % 3
    numpy.savez(tmp_path / "train" / "data.npz", x=numpy.zeros((60, 6, 6), numpy.float32), y=labels)
    with pytest.raises(program.Problem, match="the previous model has other classes than the data: 2 differ"):
        trained_here(program, options())


def test_photographs_as_telephones_store_them_are_told_upright(tmp_path: Path) -> None:
    """Learnt from pictures that lie on their side and say so, which half is bright is known of upright ones."""
    image = pytest.importorskip("PIL.Image", reason="image files need Pillow")
    exif = image.Exif()
    exif[0x0112] = 6
    draw = numpy.random.default_rng(0)
    for kind in ("left", "top"):
        for number in range(8):
            pixels = draw.integers(0, 60, (16, 16, 3)).astype(numpy.uint8)
            pixels[(slice(None), slice(8)) if kind == "left" else slice(8)] += 150
            for folder, picture, told in (
                ("train", image.fromarray(pixels).rotate(90), exif),
                ("test", image.fromarray(pixels), image.Exif()),
            ):
                (tmp_path / folder / kind).mkdir(parents=True, exist_ok=True)
                picture.save(tmp_path / folder / kind / f"{number}.jpg", exif=told, quality=95)
    programs.run(
        PROGRAM, "--train", "train", "--epochs", "8", "--batch_size", "8", "--width", "8", "--validation_fraction", "0",
        "--device", "cpu", cwd=tmp_path,
    )  # fmt: skip
    said = programs.run(PROGRAM, "--predict", "test", "--model_dir", "model", "--device", "cpu", cwd=tmp_path)
    lines = [json.loads(line) for line in said.splitlines()]
    assert len(lines) == 16 and all(line["class"] == Path(line["input"]).parent.name for line in lines)
