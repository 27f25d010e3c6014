"""Networks that others have made: of Transformers, timm and torchvision, from a folder or from scratch. Raises Problem.

Images go in as raw pixels of any size, logits come out; a folder is written as the library itself reads it.
"""

from __future__ import annotations

import importlib
import json
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import _weights
import torch
from _common import Problem, whole_file, write_json
from torch import Tensor, nn
from torch.nn import functional

IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
SIZE = 224  # pixels, where a model does not say
WEIGHTS = (".safetensors", ".pth", ".pt", ".bin")
# Blocks a stage of residual networks, by their layers ("Deep Residual Learning for Image Recognition", table 1; 200: of
# "Identity Mappings in Deep Residual Networks").
STAGES = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 200: (3, 24, 36, 3)}
BASIC = 34  # layers, up to which blocks have two convolutions


@dataclass(frozen=True)
class Borrowed:
    """All that is needed to build a library's network and to feed it; model.json holds it.

    shape: (channels, height, width) of the images as the data has them.   size: height and width that the network sees.
    mean, std: of raw pixel values, one a channel.   frozen: whether statistics of batches stay as they were learnt.
    """

    classes: list[str]
    shape: list[int]
    size: int
    mean: list[float]
    std: list[float]
    library: str
    name: str
    frozen: bool


class Network(nn.Module):
    """Raw pixel values (N, 1 or 3, H, W), of any number type, to logits (N, classes), by a library's network `body`."""

    mean: Tensor
    std: Tensor

    def __init__(self, body: nn.Module, made: Borrowed) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(made.mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(made.std).view(1, -1, 1, 1), persistent=False)
        self.body, self.size, self.frozen = body, made.size, made.frozen

    def forward(self, images: Tensor) -> Tensor:
        images = images.float()
        if images.shape[1] == 1:
            images = images.expand(-1, 3, -1, -1)
        if images.shape[-2:] != (self.size, self.size):
            images = functional.interpolate(images, (self.size, self.size), mode="bilinear", antialias=True)
        alone = self.training and not self.frozen and len(images) == 1  # of one image there may be no statistics
        for module in self._norms() if alone else ():
            module.eval()
        answer = self.body((images - self.mean) / self.std)
        for module in self._norms() if alone else ():
            module.train()
        return getattr(answer, "logits", answer)

    def train(self, mode: bool = True) -> Network:
        """As of any module, but what was learnt of whole data sets is not learnt again from small batches."""
        super().train(mode)
        for module in self._norms() if self.frozen else ():
            module.eval()
        return self

    def _norms(self) -> list[nn.Module]:
        return [module for module in self.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]


@dataclass(frozen=True)
class Source:
    """Where a network comes from. folder: None for one from scratch.   size: of the images it was trained on.

    facts: what its files say, as the library has them.
    """

    library: str
    name: str
    folder: Path | None
    weights: Path | None
    size: int
    mean: list[float]
    std: list[float]
    facts: dict[str, Any]

    def network(self, classes: list[str], shape: tuple[int, int, int], size: int | None) -> tuple[Network, Borrowed]:
        """The network for these classes; its head is new if it had another number of them. Raises Problem."""
        size = size or self.size
        scaled = [255 * value for value in self.mean], [255 * value for value in self.std]
        made = Borrowed(classes, list(shape), size, *scaled, self.library, self.name, self.folder is not None)
        try:
            body = _MAKERS[self.library](self, classes, size)
        except Problem:
            raise
        except Exception as error:  # of any library, about files that are not ours
            raise Problem(f"{self.folder or self.name} is no image classifier of {self.library}: {_line(error)}") from error
        for name, weight in body.state_dict().items():
            if weight.is_floating_point() and not torch.isfinite(weight).all():
                raise Problem(f"{self.folder} has weights that are not finite numbers: {name}")
        network = Network(body, made)
        _try(network, made)
        return network, made


def scratch(layers: int) -> Source:
    """A residual network with so many layers, of random weights."""
    need("transformers")
    return Source("transformers", f"resnet{layers}", None, None, SIZE, *IMAGENET, {"layers": layers})


def find(folder: Path, name: str = "") -> Source:
    """What a folder holds. name: of the architecture, where the folder does not say it. Raises Problem."""
    facts = _json(folder / "config.json")
    if facts.get("model_type"):
        need("transformers")
        said = _json(folder / "preprocessor_config.json")
        mean, std = (said.get(f"image_{what}") or usual for what, usual in zip(("mean", "std"), IMAGENET, strict=True))
        return Source("transformers", str(facts["model_type"]), folder, None, _size(facts, said), mean, std, facts)
    weights = [path for path in sorted(folder.iterdir()) if path.suffix in WEIGHTS and not path.name.startswith(".")]
    whole = [path for path in weights if path.suffix == ".safetensors"] or weights
    if len(whole) != 1:
        what = "no weights" if not whole else f"several files of weights ({', '.join(path.name for path in whole[:5])})"
        raise Problem(
            f"{folder} holds no model of image_classification: {what}; read are Transformers, timm, "
            f"one file {' '.join(WEIGHTS)}"
        )
    if isinstance(facts.get("architecture"), str):
        need("timm")
        said = facts.get("pretrained_cfg") or {}
        mean, std = (list(said.get(what) or usual) for what, usual in zip(("mean", "std"), IMAGENET, strict=True))
        size = (said.get("input_size") or [3, SIZE, SIZE])[-1]
        return Source("timm", facts["architecture"], folder, whole[0], size, mean, std, facts)
    need("torchvision")
    known = importlib.import_module("torchvision.models").list_models(module=importlib.import_module("torchvision.models"))
    fits = [one for one in known if whole[0].name.lower().startswith(one)]
    wanted = (name or max(fits, key=len, default="")).lower()
    if wanted not in known:
        what = f"architecture {name}" if name else f"the name {whole[0].name}"
        raise Problem(f"{what} names no model of torchvision: give architecture, as resnet18")
    return Source("torchvision", wanted, folder, whole[0], SIZE, *IMAGENET, {})


def need(library: str) -> None:
    """Raises Problem where a library is absent, or not made for this torch."""
    try:
        importlib.import_module(library)
    except (ImportError, RuntimeError, OSError) as error:  # torchvision of another torch: RuntimeError
        raise Problem(f"this model needs {library} (pip install 'trainshed[vision]'): {_line(error)}") from error


def _size(facts: dict[str, Any], said: dict[str, Any]) -> int:
    size = said.get("crop_size") or said.get("size") or facts.get("image_size") or SIZE
    if isinstance(size, dict):
        size = size.get("height") or size.get("shortest_edge") or SIZE
    if isinstance(size, list):
        size = size[0] if size else SIZE
    return size if isinstance(size, int) and size > 0 else SIZE


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise Problem(f"{path} cannot be read: {_line(error)}") from error
    if not isinstance(content, dict):
        raise Problem(f"{path} is no JSON object")
    return content


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


# --- one way a library ------------------------------------------------------------------------------------------------


def _transformers(source: Source, classes: list[str], size: int) -> nn.Module:
    from transformers import AutoModelForImageClassification, ResNetConfig, ResNetForImageClassification
    from transformers.utils import logging

    logging.set_verbosity_error()  # a new head is what is wanted
    logging.disable_progress_bar()
    names = {"id2label": dict(enumerate(classes)), "label2id": {name: number for number, name in enumerate(classes)}}
    if source.folder is None:
        layers = source.facts["layers"]
        kind, widths = ("basic", [64, 128, 256, 512]) if layers <= BASIC else ("bottleneck", [256, 512, 1024, 2048])
        config = ResNetConfig(depths=list(STAGES[layers]), layer_type=kind, hidden_sizes=widths, **names)
        return ResNetForImageClassification(config)
    body, facts = AutoModelForImageClassification.from_pretrained(
        str(source.folder), local_files_only=True, ignore_mismatched_sizes=True, output_loading_info=True,
        trust_remote_code=False, num_labels=len(classes), dtype=torch.float32, **names,
    )  # fmt: skip
    fresh = {*facts["missing_keys"], *(key[0] if isinstance(key, tuple) else key for key in facts["mismatched_keys"])}
    _only_the_head(source, fresh, {name for name, _ in body.named_parameters()})
    return body


def _timm(source: Source, classes: list[str], size: int) -> nn.Module:
    import timm

    body = timm.create_model(source.name, pretrained=False, num_classes=len(classes))
    return _filled(source, body)


def _torchvision(source: Source, classes: list[str], size: int) -> nn.Module:
    from torchvision import models

    more = {"image_size": size} if source.name.startswith("vit_") else {}
    return _filled(source, models.get_model(source.name, weights=None, num_classes=len(classes), **more))


_MAKERS = {"transformers": _transformers, "timm": _timm, "torchvision": _torchvision}


def _filled(source: Source, body: nn.Module) -> nn.Module:
    """The module with the weights of the source, but for a head of another number of classes."""
    state, own = read_weights(source.weights), body.state_dict()  # type: ignore[arg-type]
    fresh = {name for name, value in own.items() if name not in state or state[name].shape != value.shape}
    fresh = {name for name in fresh if not name.endswith("num_batches_tracked")}
    if unknown := sorted(set(state) - set(own)):
        raise Problem(f"{source.weights} holds {unknown[0]}, which {source.name} of {source.library} has not")
    _only_the_head(source, fresh, set(own))
    body.load_state_dict({name: value for name, value in state.items() if name not in fresh}, strict=False)
    return body


def _only_the_head(source: Source, fresh: set[str], every: set[str]) -> None:
    modules = {name.rpartition(".")[0] for name in fresh}
    if len(modules) > 1 or len(fresh) == len(every):
        raise Problem(
            f"{source.folder} lacks weights of {source.name}, or has them in other sizes: {', '.join(sorted(fresh)[:3])}"
            + f" and {len(fresh) - 3} more" * (len(fresh) > 3)
        )


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name, without what training scripts put around them. Raises Problem."""
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle's, zip's, safetensors' own
        raise Problem(f"{path} is no file of weights: {_line(error)}") from error
    for name in ("state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(name), dict):
            state = state[name]
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()) or not state:
        raise Problem(f"{path} holds no state dict: a dictionary of tensors by name")
    return {name.removeprefix("module."): value for name, value in state.items()}


def _try(network: Network, made: Borrowed) -> None:
    """Looks whether the network takes such images, and leaves parameters in peace that it does not use. Raises Problem."""
    network.eval()
    try:
        with torch.no_grad():
            answer = network(torch.zeros(2, *made.shape))
    except Exception as error:
        raise Problem(f"{made.name} takes no images of {made.size} x {made.size}: {_line(error)}") from error
    if answer.shape != (2, len(made.classes)):
        raise Problem(f"{made.name} gives {list(answer.shape[1:])} values an image, not {len(made.classes)}, one a class")
    with torch.enable_grad():
        network(torch.zeros(2, *made.shape)).sum().backward()
    for parameter in network.parameters():
        parameter.requires_grad_(parameter.grad is not None)
        parameter.grad = None
    network.train()


def only_the_head(network: Network, classes: int) -> None:
    """Leaves nothing to learn but the last layer."""
    heads = [
        module
        for module in network.modules()
        if isinstance(module, (nn.Linear, nn.Conv2d)) and module.weight.shape[0] == classes
    ]
    kept = {id(parameter) for parameter in heads[-1].parameters()} if heads else set()
    for parameter in network.parameters():
        parameter.requires_grad_(parameter.requires_grad and id(parameter) in kept)


# --- the model's folder -----------------------------------------------------------------------------------------------


def save(network: Network, made: Borrowed, target: Path) -> None:
    """Writes the network as its library reads it; each file appears whole."""
    mean, std = ([value / 255 for value in values] for values in (made.mean, made.std))
    if made.library == "transformers":
        side = {"height": made.size, "width": made.size}
        about: dict[str, Any] = {"image_processor_type": "ViTImageProcessor", "do_resize": True, "size": side, "resample": 2}
        about |= {"do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": mean, "image_std": std}
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".saving-", dir=target) as temporary:
            network.body.save_pretrained(temporary)  # type: ignore[operator]
            for source in sorted(Path(temporary).iterdir(), key=lambda path: path.name == "config.json"):
                with whole_file(target / source.name) as path:
                    shutil.copyfile(source, path)
        write_json(target / "preprocessor_config.json", about)
        return
    _weights.save(network.body, target)
    if made.library == "torchvision":
        return
    seen = {"input_size": [3, made.size, made.size], "mean": mean, "std": std, "num_classes": len(made.classes)}
    about = {"architecture": made.name, "num_classes": len(made.classes)}
    write_json(target / "config.json", about | {"pretrained_cfg": seen | {"label_names": made.classes}})


def load(folder: Path, content: dict[str, Any]) -> tuple[Network, Borrowed]:
    """The network that `save` wrote, by the description in model.json. Raises Problem, and KeyError and TypeError."""
    made = Borrowed(**content)
    if len(made.mean) != 3 or len(made.std) != 3 or made.library not in _MAKERS:
        raise Problem(f"{folder} holds no model of image_classification: its description is not one")
    source = find(folder, made.name)
    network, _ = source.network(made.classes, tuple(made.shape), made.size)  # type: ignore[arg-type]
    network = Network(network.body, made)
    return network, made


def plain(made: Borrowed) -> dict[str, Any]:
    """For model.json."""
    return asdict(made)
