"""The weights of networks that see pictures, as files: safetensors, and ONNX where `export` asks for it."""

from __future__ import annotations

import copy
import logging
import tempfile
import warnings
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from _common import Problem, note, whole_file
from torch import nn

FILE, ONNX = "model.safetensors", "model.onnx"
EARLIER = "model.pt"  # what a small network was written to before
FAR = 1e-3  # of the largest output: so far may those of ONNX Runtime be from torch's


def save(network: nn.Module, folder: Path) -> None:
    """Writes a state_dict; the file appears whole."""
    from safetensors.torch import save_file

    state = {name: value.detach().cpu().contiguous() for name, value in network.state_dict().items()}
    with whole_file(folder / FILE) as path:
        save_file(state, path, metadata={"format": "pt"})
        path.chmod(0o644)  # else its owner alone may read it


def load(network: nn.Module, folder: Path) -> None:
    """Reads what `save` wrote, or an earlier version. Raises OSError and errors of safetensors, pickle and torch."""
    from safetensors.torch import load_file

    if (folder / FILE).exists() or not (folder / EARLIER).exists():
        network.load_state_dict(load_file(folder / FILE))
    else:
        network.load_state_dict(torch.load(folder / EARLIER, map_location="cpu", weights_only=True))


def require_export(hp: Namespace, network: nn.Module, shape: Any) -> None:
    """Raises Problem, before training, where the export that is asked for will not be possible. shape: of an image."""
    if hp.export != "onnx":
        return
    if missing := [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]:
        raise Problem(f"export onnx needs {', '.join(missing)}, not installed here: pip install 'trainshed[onnx]'")
    with tempfile.TemporaryDirectory() as folder:
        _export(network, shape, Path(folder) / ONNX)


def export(hp: Namespace, network: nn.Module, shape: Any, folder: Path) -> None:
    """Writes the network as ONNX, if asked; its absence does not take the model away."""
    (folder / ONNX).unlink(missing_ok=True)  # of what was there before
    if hp.export != "onnx":
        return
    try:
        with whole_file(folder / ONNX) as path:
            _export(network, shape, path)
    except Problem as problem:
        note(f"{problem}: the model is whole, but {ONNX} is not written")


def _export(network: nn.Module, shape: Any, path: Path) -> None:
    """Raises Problem where torch cannot, or where ONNX Runtime computes something else."""
    network = copy.deepcopy(network).cpu().float().eval()
    images = 255 * torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                network, (images[:2],), str(path), input_names=["images"], dynamic_shapes=({0: torch.export.Dim("batch")},),
                dynamo=True, external_data=False, verbose=False,
            )  # fmt: skip
            wanted = network(images)
    except Exception as error:  # of torch.export and onnxscript, about any network
        raise Problem(f"export onnx: torch does not write {type(network).__name__}: {str(error).splitlines()[0]}") from error
    import onnxruntime

    runtime = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found = runtime.run(None, {"images": images.numpy()})
    pairs = zip([wanted] if isinstance(wanted, torch.Tensor) else wanted, map(torch.from_numpy, found), strict=True)
    if far := [a for a, b in pairs if a.shape != b.shape or (a - b).abs().max() > FAR * a.abs().max()]:
        raise Problem(f"export onnx: ONNX Runtime gives other numbers than torch ({len(far)} of {len(found)} outputs)")
