"""Runs in a rank: takes the numbers that rules on tensors judge by, in one optimizer step of every so many.

Hooks of torch's optimizers see weights before and after the step, and gradients; hooks of activations and of cross-entropies
see outputs and targets. A step that is looked at costs a few reductions on the device and one wait for it; all others cost
the hooks' calls. Nothing here may end a training: after an exception there are no more numbers, and a line says so.

Of DDP's ranks, which have the same weights and gradients, the first one's are taken, and of every rank a sum that tells
whether they are still the same. Where ranks hold shards or stages, each gives the numbers of its own part.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import time

from trainshed.base.voice import tell
from trainshed.contract.wire.variables import TENSORS
from trainshed.metrics.points import LONGEST_NAME, Point, line_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType
    from typing import Any

_LOOKS = 500  # after so many, they become half as frequent
_SAMPLE = 4096  # elements of a weight that are compared before and after a step
_MOST_CLASSES = 1000  # of targets that are counted
_ALIKE = 1e-2  # a unit of a ReLU that is above 0 for a smaller part of what it is given is dead
_FLAT = 0.99  # of tanh's size, and of sigmoid's distance from its middle: there it is flat


def install(module: ModuleType) -> None:
    """Hooks into `torch.optim.optimizer`; a second time does nothing."""
    if hasattr(module, "_trainshed_collector"):
        return
    steps, _, folder = os.environ.get(TENSORS, "").partition(":")
    if not steps.isdecimal() or not folder:
        return
    collector = module._trainshed_collector = _Collector(int(steps), folder)  # type: ignore[attr-defined]
    module.register_optimizer_step_pre_hook(collector.guarded(collector.before))
    module.register_optimizer_step_post_hook(collector.guarded(collector.after))


class _Numbers:
    """Numbers of one step that are still on their device."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._values: list[Any] = []

    def add(self, name: str, value: Any) -> None:
        """One number.

        Args:
            value: a tensor with one element.
        """
        self._names.append(name)
        self._values.append(value)

    def taken(self) -> list[tuple[str, float]]:
        """All of them; waits for each device once."""
        import torch

        devices: dict[Any, list[int]] = {}
        for place, value in enumerate(self._values):
            devices.setdefault(value.device, []).append(place)
        found = [0.0] * len(self._values)
        for places in devices.values():
            together = torch.stack([self._values[place].detach().reshape(()).double() for place in places])
            for place, number in zip(places, together.tolist(), strict=True):
                found[place] = number
        return list(zip(self._names, found, strict=True))


class _Collector:
    """Takes the numbers of every so-manieth step of each optimizer.

    Args:
        every: optimizer steps between two looks.
        folder: for the file of points.
    """

    def __init__(self, every: int, folder: str) -> None:
        self._every = max(1, every)
        self._folder = folder
        self._rank = int(os.environ.get("RANK", "0") or 0)
        self._fd = -1
        self._off = False
        self._steps: dict[int, int] = {}  # of each optimizer, by its id
        self._held: dict[int, set[int]] = {}  # the parameters of each optimizer, by their ids
        self._roots: dict[int, list[tuple[str, Any]]] = {}  # the models of each optimizer, with a prefix for their names
        self._looking = True  # whether the hooks of modules take numbers in this step
        self._outputs = _Numbers()
        self._left: set[str] = set()  # weights that were not updated at the last look
        self._seen: set[str] = set()  # modules that have given their numbers in this step
        self._numbers: _Numbers | None = None  # of the step that is being made
        self._before: list[tuple[str, Any, Any, Any]] = []  # name, parameter, sample of it, size of the sample

    def guarded(self, hook: Callable[..., None]) -> Callable[..., None]:
        """The hook, which costs the rules their numbers where it fails, never the training."""

        @functools.wraps(hook)
        def call(*args: Any, **_: Any) -> None:
            if self._off:
                return
            try:
                hook(*args)
            except Exception as error:
                self._off = True
                tell(f"rules: no more numbers of tensors: {type(error).__name__}: {error}")

        return call

    def _is_looked_at(self, step: int) -> bool:
        """Whether a step counts. The longer a training, the rarer: the numbers of thousands of looks help nobody."""
        every = self._every
        while step > _LOOKS * every:
            every *= 2
        return (step - 1) % every == 0

    # --- around the optimizer's step ---

    def before(self, optimizer: Any, *_: Any) -> None:
        """Before a step: numbers of gradients and weights, if this is a step to look at."""
        import torch

        number = self._steps[id(optimizer)] = self._steps.get(id(optimizer), 0) + 1
        if not self._is_looked_at(number):
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"] if not _is_absent(p)]
        self._held[id(optimizer)] = {id(p) for p in parameters}
        if number == 1:
            self._roots[id(optimizer)] = self._find_roots(parameters)
        self._numbers, self._before = _Numbers(), []
        with torch.no_grad():
            self._look(id(optimizer), parameters, first=number == 1)

    def after(self, optimizer: Any, *_: Any) -> None:
        """After a step: how far it has moved the weights; writes all numbers."""
        import torch

        number = self._steps.get(id(optimizer), 0)
        # The forward of the next step comes before its hook: this is the time to say whether it counts.
        self._looking = self._is_looked_at(number + 1)
        if self._numbers is None:
            return
        numbers, self._numbers = self._numbers, None
        with torch.no_grad():
            for name, parameter, sample, size in self._before:
                moved = (_sampled(_local(parameter)) - sample).norm()
                numbers.add(f"updates/ratio/{name}", torch.where(size > 1e-6, moved / size, torch.nan))
            self._before = []
            taken = [(name, value) for name, value in numbers.taken() if not name.startswith("updates/") or value == value]
            outputs, self._outputs = self._outputs.taken(), _Numbers()
        self._seen.clear()
        self._write([*taken, *outputs], number)

    def _look(self, optimizer: int, parameters: list[Any], *, first: bool) -> None:
        import torch

        assert self._numbers is not None
        names = self._names(optimizer, parameters)
        replicated = any(type(root).__name__ == "DistributedDataParallel" for _, root in self._roots.get(optimizer, ()))
        real = [p for p in parameters if _local(p).numel() and _local(p).is_floating_point()]
        sizes = torch._foreach_norm([_local(p) for p in real], float("inf")) if real else []
        if replicated:
            sums = torch._foreach_norm([_local(p) for p in real], 2.0)
            self._numbers.add("weights/sum", torch.stack([one.double() for one in sums]).sum())
            if self._rank:
                return
        for parameter, size in zip(real, sizes, strict=True):
            self._numbers.add(f"weights/max/{names[id(parameter)]}", size)
        with_gradient = [p for p in real if p.grad is not None and _local(_dense(p.grad)).numel()]
        gradients = [_local(_dense(p.grad)) for p in with_gradient]
        if gradients:
            greatest, together = torch._foreach_norm(gradients, float("inf")), torch._foreach_norm(gradients, 1.0)
            for parameter, gradient, most, total in zip(with_gradient, gradients, greatest, together, strict=True):
                name = names[id(parameter)]
                self._numbers.add(f"gradients/max/{name}", most)
                if parameter.dim() < 2 and not name.endswith("_flat_param"):
                    continue  # before a normalisation, or as the bias of keys, it has no gradient in healthy models
                self._numbers.add(f"gradients/mean/{name}", total / gradient.numel())
                sample = _sampled(_local(parameter)).clone()
                self._before.append((name, parameter, sample, sample.norm()))
        held = set().union(*self._held.values())
        for prefix, root in self._roots.get(optimizer, ()):
            for name, parameter in root.named_parameters():
                if not parameter.requires_grad or _is_absent(parameter):
                    continue
                left = id(parameter) not in held or (id(parameter) in self._held[optimizer] and parameter.grad is None)
                if left or name in self._left:  # what is well is not written each time
                    self._numbers.add(f"weights/left/{prefix}{_plain(name)}", torch.tensor(float(left)))
                (self._left.add if left else self._left.discard)(name)
            if first:
                self._look_at_start(prefix, root)

    def _look_at_start(self, prefix: str, root: Any) -> None:
        """Numbers of how weights were initialised."""
        import torch

        assert self._numbers is not None
        for name, module in root.named_modules():
            if not isinstance(module, (torch.nn.Linear, torch.nn.modules.conv._ConvNd)):
                continue
            weight = _local(module.weight)
            if _is_absent(weight) or weight is not module.weight or not weight.requires_grad or weight.numel() < 2:
                continue
            inputs = weight[0].numel()
            name = f"{prefix}{_plain(name)}.weight"
            self._numbers.add(f"weights/gain/{name}", weight.float().std() * inputs**0.5)
            alike = (weight == weight.reshape(-1)[0]).all() & (weight.reshape(-1)[0] != 0)
            self._numbers.add(f"weights/alike/{name}", alike.float())

    # --- the models ---

    def _find_roots(self, parameters: list[Any]) -> list[tuple[str, Any]]:
        """The modules that hold parameters and are in no other; hooks go to their activations."""
        import torch

        wanted = {id(p) for p in parameters}
        modules = [
            thing for thing in gc.get_objects() if issubclass(type(thing), torch.nn.Module) and "_modules" in vars(thing)
        ]
        inner = {id(child) for module in modules for child in module._modules.values()}
        roots = [
            module for module in modules if id(module) not in inner and any(id(p) in wanted for p in module.parameters())
        ]
        for root in roots:
            if not _is_compiled(root) and not any(map(_is_absent, root.parameters())):
                for name, module in root.named_modules():
                    self._hook(_plain(name), module)
        for module in modules:
            if isinstance(module, torch.nn.CrossEntropyLoss):
                module.register_forward_hook(self.guarded(self._count))
        return [(f"model{place}." if len(roots) > 1 else "", root) for place, root in enumerate(roots)]

    def _names(self, optimizer: int, parameters: Iterable[Any]) -> dict[int, str]:
        names = {
            id(parameter): f"{prefix}{_plain(name)}"
            for prefix, root in self._roots.get(optimizer, ())
            for name, parameter in root.named_parameters()
        }
        for place, parameter in enumerate(parameters):
            names.setdefault(id(parameter), f"parameter{place}")
        return names

    def _hook(self, name: str, module: Any) -> None:
        import torch

        if isinstance(module, (torch.nn.ReLU, torch.nn.ReLU6)):
            module.register_forward_hook(self.guarded(functools.partial(self._look_at_relu, name)))
        elif isinstance(module, (torch.nn.Tanh, torch.nn.Sigmoid)):
            module.register_forward_hook(self.guarded(functools.partial(self._look_at_bounded, name)))

    def _first_time(self, name: str, module: Any, output: Any) -> bool:
        """Whether to look at an output: the first one of this module in a training step that counts."""
        if not self._looking or not module.training or name in self._seen or not output.numel():
            return False
        self._seen.add(name)
        self._outputs.add(f"outputs/max/{name}", output.detach().abs().max())
        return True

    def _look_at_relu(self, name: str, module: Any, given: Any, output: Any) -> None:
        if self._first_time(name, module, output):
            units = 1 if output.dim() == 4 else output.dim() - 1
            others = [dimension for dimension in range(output.dim()) if dimension != units]
            active = (output.detach() > 0).float()
            active = active.mean(others) if others else active
            self._outputs.add(f"outputs/dead_percent/{name}", 100 * (active < _ALIKE).float().mean())

    def _look_at_bounded(self, name: str, module: Any, given: Any, output: Any) -> None:
        if self._first_time(name, module, output):
            centred = output.detach() if type(module).__name__ == "Tanh" else 2 * output.detach() - 1
            self._outputs.add(f"outputs/saturated_percent/{name}", 100 * (centred.abs() > _FLAT).float().mean())

    def _count(self, module: Any, given: Any, output: Any) -> None:
        """Numbers of the targets of each class."""
        if not self._looking or not module.training or len(given) < 2:
            return
        scores, targets = given[0], given[1]
        if targets.dim() != 1 or targets.is_floating_point() or not 1 < scores.shape[1] <= _MOST_CLASSES:
            return
        valid = targets[(targets >= 0) & (targets < scores.shape[1])]
        for place, count in enumerate(valid.bincount(minlength=scores.shape[1])):
            self._outputs.add(f"targets/count/{place}", count)

    # --- the file ---

    def _write(self, numbers: list[tuple[str, float]], step: int) -> None:
        now = time.time()
        points = [Point(name[:LONGEST_NAME], value, now, step, None, self._rank) for name, value in numbers]
        if not points:
            return
        if self._fd < 0:
            os.makedirs(self._folder, exist_ok=True)
            path = f"{self._folder}/rank{self._rank}-{os.getpid()}-{time.time_ns() // 1_000_000}.json"
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        os.write(self._fd, "".join(map(line_of, points)).encode())


def _plain(name: str) -> str:
    """A module's name without what wrappers add to it."""
    parts = name.split(".")
    return ".".join(part for part in parts if part not in ("module", "_orig_mod", "_fsdp_wrapped_module"))


def _is_absent(parameter: Any) -> bool:
    """Whether a parameter is on another rank of a pipeline (`parallel.engine.absent`), and cannot be read here."""
    return type(parameter).__name__ == "AbsentParameter"


def _local(tensor: Any) -> Any:
    """This rank's part of a tensor, whatever it is a part of."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _dense(gradient: Any) -> Any:
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def _sampled(tensor: Any) -> Any:
    """Some elements of a tensor, from all over it."""
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // _SAMPLE)][:_SAMPLE].float()


def _is_compiled(root: Any) -> bool:
    """Whether hooks would have torch compile a model again."""
    if any(getattr(module, "_compiled_call_impl", None) is not None for module in root.modules()):
        return True
    if type(root).__name__ == "OptimizedModule":
        return True
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return bool(counters and counters["frames"].get("total"))
