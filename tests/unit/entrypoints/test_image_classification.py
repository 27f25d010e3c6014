"""image_classification.py: what ranks share, rates of learning, and what cannot be done."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.extras import needs
from support.lazy import Lazy
from support.pictures import dark_and_bright
from support.programs import Options, Train

needs("numpy", "torch", "transformers", "PIL")
pytestmark = pytest.mark.torch
numpy: Any = Lazy("numpy")
torch: Any = Lazy("torch")

PROGRAM = "image_classification.py"
SMALL = {"epochs": 2, "batch_size": 12, "image_size": 32}


@pytest.fixture
def start(program: ModuleType, options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Begins a job on pictures in the test's folder, or a prediction."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train").mkdir()
    numpy.savez(tmp_path / "train" / "data.npz", x=dark_and_bright(48), y=numpy.arange(48) % 2)

    def run(**changed: object) -> None:
        hp = options(**changed)
        if hp.predict:
            program.predict(hp)
        program.Training(hp, program.World(0, 1, 0, torch.device("cpu"))).run()

    return run


def test_augmentation_does_not_depend_on_the_number_of_ranks(program: ModuleType, options: Options) -> None:
    images = torch.arange(8 * 2 * 16 * 16, dtype=torch.float32).reshape(8, 2, 16, 16)
    hp, cpu = options(augment="flip"), torch.device("cpu")
    alone = program.augmented(images, hp, 5, program.World(0, 1, 0, cpu))
    for rank in range(2):
        shared = program.augmented(images[rank::2], hp, 5, program.World(rank, 2, rank, cpu))
        assert torch.equal(shared, alone[rank::2])
    assert not torch.equal(program.augmented(images, hp, 6, program.World(0, 1, 0, cpu)), alone)


def test_the_ranks_share_each_global_batch(program: ModuleType) -> None:
    worlds = [program.World(rank, 3, rank, None) for rank in range(3)]
    alone = program.train_batches(120, 12, program.World(0, 1, 0, None), seed=1, epoch=4)
    shares = [program.train_batches(120, 4, world, seed=1, epoch=4) for world in worlds]
    assert [sorted(chain(*parts)) for parts in zip(*shares, strict=True)] == [sorted(batch) for batch in alone]
    assert sorted(chain(*alone)) == list(range(120))
    assert alone != program.train_batches(120, 12, program.World(0, 1, 0, None), seed=1, epoch=5)


def test_the_learning_rate_rises_and_falls_as_the_schedule_says(program: ModuleType, options: Options) -> None:
    def rates(schedule: str) -> list[float]:
        hp = options(lr_schedule=schedule, learning_rate=1.0)
        return [program.learning_rate(hp, step, 4, 12) for step in range(12)]

    for schedule in ("constant", "linear", "cosine"):
        assert rates(schedule)[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates("constant")[5:] == [1.0] * 7
    assert rates("linear")[8] == rates("cosine")[8] == pytest.approx(0.5)
    assert rates("cosine")[11] < rates("linear")[11] < 0.2


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"optimizer": "adamm"},
            "hyperparameter optimizer: 'adamm' is not one of adam, adamw, sgd, nag, rmsprop; did you mean 'adam'?",
        ),
        ({"demo_data": "digits"}, "demo_data is digits, but there is a training folder too"),
        ({"validation_fraction": 0, "target_accuracy": 0.9}, "target_accuracy needs validation data"),
        ({"validation": "/nowhere"}, "the channel validation /nowhere is not a folder"),
        ({"num_layers": 20}, "num_layers 20 is not served"),
        ({"use_pretrained_model": 1}, "use_pretrained_model is 1, but there is no channel model"),
        ({"image_shape": "3,224,200"}, "image_shape 3,224,200 is not served"),
        ({"image_shape": "3,x,200"}, "image_shape 3,x,200 is not three whole numbers"),
        ({"lr_scheduler_step": "10,x"}, "lr_scheduler_step must be epochs"),
        ({"train_only_top_layer": "true"}, "needs a trained network"),
        ({"previous_model": "."}, "holds no model of image_classification: no weights"),
        ({"predict": "x.png"}, "holds no model of image_classification: "),
    ],
)
def test_what_cannot_be_done_is_said(program: ModuleType, start: Train, changed: dict[str, object], message: str) -> None:
    with pytest.raises(program.Problem) as raised:
        start(**changed)
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_a_folder_that_is_no_classifier_or_lacks_weights_is_refused(
    program: ModuleType, start: Train, transformer: Path
) -> None:
    from safetensors.torch import load_file, save_file

    whole, config = load_file(transformer / "model.safetensors"), (transformer / "config.json").read_text()
    for change, message in (
        (lambda state: state.pop("vit.layernorm.weight"), "lacks weights of vit|is no image classifier"),
        (lambda state: state["vit.layernorm.bias"].fill_(float("nan")), "weights that are not finite numbers"),
    ):
        state = {name: value.clone() for name, value in whole.items()}
        change(state)
        save_file(state, transformer / "model.safetensors", metadata={"format": "pt"})
        if "lacks" in message:
            state.pop("vit.layernorm.bias", None)
            save_file(state, transformer / "model.safetensors", metadata={"format": "pt"})
            state.pop("vit.embeddings.cls_token")
            save_file(state, transformer / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(program.Problem, match=message):
            start(previous_model=transformer)
    (transformer / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(program.Problem, match="is no image classifier of transformers"):
        start(previous_model=transformer)
    (transformer / "config.json").write_text(config[:40])
    with pytest.raises(program.Problem, match=r"config\.json cannot be read"):
        start(previous_model=transformer)
