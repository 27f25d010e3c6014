"""Networks for pictures as ONNX: what ONNX Runtime computes is what the program computes, or the job does not begin."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support import programs
from support.extras import needs
from support.lazy import Lazy
from support.pictures import state
from support.programs import Module

needs("numpy", "torch", "PIL", "safetensors")
pytestmark = pytest.mark.torch
numpy: Any = Lazy("numpy")
torch: Any = Lazy("torch")

PROGRAM = "semantic_segmentation.py"
PICTURES = ("--train", "train", "--train_annotation", "train_annotation", "--width", "4")
SHORT = ("--epochs", "1", "--batch_size", "16", "--device", "cpu")


@pytest.mark.parametrize(
    "name", ["semantic_segmentation", *(pytest.param(n, marks=pytest.mark.heavy) for n in ("object_detection", "classes"))]
)
def test_a_runtime_computes_what_the_program_does(name: str, request: pytest.FixtureRequest, module: Module) -> None:
    needs("onnx", "onnxscript", "onnxruntime")
    folder: Path = request.getfixturevalue("boxes" if name == "object_detection" else "shapes")
    program, given = f"{name}.py", PICTURES
    if name == "classes":
        program, given = "image_classification.py", ("--train", "digits", "--width", "8")
        module("demo_data").write_digits(folder / "digits")
    programs.run(program, *given, *SHORT, "--export", "onnx", cwd=folder)
    trained: Any = module(program.removesuffix(".py"))
    network, made = trained.load(folder / "model")
    pixels = torch.randint(0, 256, (3, *made.shape), dtype=torch.uint8)
    if name == "object_detection":
        network = trained.Exported(network, len(made.classes))
    with torch.no_grad():
        wanted = network(pixels)

    import onnxruntime

    runtime = onnxruntime.InferenceSession(str(folder / "model/model.onnx"))
    found = runtime.run(None, {"images": pixels.float().numpy()})
    for ours, theirs in zip([wanted] if isinstance(wanted, torch.Tensor) else wanted, found, strict=True):
        assert numpy.allclose(ours.numpy(), theirs, atol=1e-3)


def test_what_cannot_be_exported_is_refused_before_training(
    module: Module, program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = module("_weights")

    class Odd(torch.nn.Module):
        def forward(self, images: Any) -> Any:
            return images * len(str(images.sum().item()))

    hp = Namespace(export="onnx")
    with monkeypatch.context() as patch:
        patch.setattr(weights, "find_spec", lambda name: None)
        with pytest.raises(program.Problem, match=r"^export onnx needs onnx, onnxscript, onnxruntime, not installed here"):
            weights.require_export(hp, Odd(), (1, 4, 4))
    weights.require_export(Namespace(export="none"), Odd(), (1, 4, 4))
    needs("onnx", "onnxscript", "onnxruntime")
    words = "^export onnx: (torch does not write Odd: |ONNX Runtime gives other numbers than torch)"  # by torch's version
    with pytest.raises(program.Problem, match=words):
        weights.require_export(hp, Odd(), (1, 4, 4))
    (tmp_path / "model.onnx").write_text("of an earlier training")
    weights.export(hp, Odd(), (1, 4, 4), tmp_path)
    assert "the model is whole, but model.onnx is not written" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_weights_of_an_earlier_version_are_read(module: Module, tmp_path: Path) -> None:
    weights, first, second = module("_weights"), torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    torch.save(first.state_dict(), tmp_path / "model.pt")
    weights.load(second, tmp_path)
    assert torch.equal(first.weight, second.weight)
    weights.save(torch.nn.Linear(2, 2), tmp_path)
    weights.load(second, tmp_path)
    assert torch.equal(state(tmp_path)["weight"], second.weight) and not torch.equal(first.weight, second.weight)
