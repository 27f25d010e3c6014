"""Experts whose weights lie in one tensor each, (experts, ...), as the mixtures of transformers keep them.

Such a module is called with tokens, the experts that a router has chosen for each, and their weights. A rank has some of
the experts, runs the module's own forward with the pairs of token and expert that are its own, and what the ranks have
found is summed. The router stands outside and stays whole, with its losses.

That this is right is tried before a module is divided: all parts run in one process, on what the first step gave the
module and on routes that are as uneven as can be, and results and gradients are compared with the whole module's. So a
module that drops tokens of a full expert, draws random numbers, or norms over all experts stays whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trainshed.base.errors import shorten

from ...ground.errors import PipelineError
from ...ground.exchanges import length_of, start_of, summed
from ...ground.torch_private import FORWARD_HOOKS, FORWARD_PRE_HOOKS, assert_async, call_instead, has_hooks, parameters_in
from ...tracing import rng
from .kinds import Compute, Entrance, Kind

# Part of the largest value by which a sum of parts may be off, at least; half of the digits of a type else.
_OFF = 1e-3
# Tokens of the routes that are made up.
_TOKENS = 64
_UNKNOWN = "it is not called as experts are, with tokens (tokens, width), chosen experts and their weights (tokens, choices)"


@dataclass
class ExpertCall:
    """One call of experts.

    values: all arguments, by position or name.
    tokens, chosen, weights: which of them are (tokens, width), and twice (tokens, choices).
    """

    values: dict[int | str, Any]
    tokens: int | str
    chosen: int | str
    weights: int | str

    @staticmethod
    def of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> ExpertCall | None:
        """A call; None if it is another one."""
        values: dict[int | str, Any] = dict([*enumerate(args), *kwargs.items()])
        tables = {key: one for key, one in values.items() if isinstance(one, torch.Tensor)}
        if len(tables) != 3 or any(one.ndim != 2 for one in tables.values()):
            return None
        whole_numbers = [key for key, one in tables.items() if one.dtype in (torch.int64, torch.int32)]
        if len(whole_numbers) != 1:
            return None
        chosen = whole_numbers[0]
        others = [key for key, one in tables.items() if key != chosen and one.is_floating_point()]
        weights = [key for key in others if tables[key].shape == tables[chosen].shape]
        tokens = [key for key in others if key not in weights and len(tables[key]) == len(tables[chosen])]
        return ExpertCall(values, tokens[0], chosen, weights[0]) if len(weights) == len(tokens) == 1 else None

    def run(self, native: Compute, tokens: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> Any:
        """Returns what a forward returns for other tokens, experts and weights in the same places."""
        values = {**self.values, self.tokens: tokens, self.chosen: chosen, self.weights: weights}
        args = [values[key] for key in values if isinstance(key, int)]
        return native(*args, **{key: one for key, one in values.items() if isinstance(key, str)})

    def inputs(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens, chosen experts, weights."""
        return self.values[self.tokens], self.values[self.chosen], self.values[self.weights]


class Experts(Kind):
    """A module whose parameters all have an axis of experts first."""

    noun = "experts"
    reads = None  # its own forward may do anything with them

    def __init__(self, module: nn.Module, count: int) -> None:
        super().__init__(module, count, dict.fromkeys(parameters_in(module), 0), _unused)
        self._native: Compute = module.forward
        self._call: ExpertCall | None = None
        self._called = False
        self._context: Callable[[], Any] = _as_now(torch.device("cpu"))

    def note(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Keeps what the module is called with first."""
        if self._called:
            return
        self._called, call = True, ExpertCall.of(args, kwargs)
        if call is not None:
            values = {
                key: one.detach().clone() if isinstance(one, torch.Tensor) else one for key, one in call.values.items()
            }
            self._call = ExpertCall(values, call.tokens, call.chosen, call.weights)
            self._context = _as_now(call.inputs()[0].device)

    def reason(self, ranks: int) -> str:
        """Tries whether the parts of so many ranks give what the module gives. Why they do not; empty if they do."""
        if self._call is None:
            return _UNKNOWN if self._called else ""
        if any(True for _ in self.module.buffers()):
            return "it has buffers"
        inner = (one for one in self.module.modules() if one is not self.module)
        if any(has_hooks(one, (FORWARD_HOOKS, FORWARD_PRE_HOOKS)) for one in inner):
            return "a hook looks into it"
        call, self._call = self._call, None
        modes = {one: one.training for one in self.module.modules()}
        device = call.inputs()[0].device
        state = rng.get_state(device)
        try:
            for one in modes:
                one.training = True
            with self._context(), torch.enable_grad():
                return next((why for inputs in _routes(call, self.features) if (why := self._try(call, inputs, ranks))), "")
        except Exception as error:
            return f"it cannot be tried in parts: {type(error).__name__}: {shorten(str(error))}"
        finally:
            rng.set_state(state, device)
            for one, training in modes.items():
                one.training = training

    def computing(self, entrance: Entrance) -> Compute:
        """Returns what stands for the module's forward when its parameters are divided over the entrance's group."""
        mesh = entrance.mesh

        def compute(*args: Any, **kwargs: Any) -> torch.Tensor:
            call = ExpertCall.of(args, kwargs)
            if call is None:
                raise PipelineError(
                    f"{type(self.module).__name__}, whose experts are divided among ranks, is called in another way than in "
                    "the first step",
                    hint="keep it whole: set_tensor_parallelism(module, False) before the first step",
                )
            tokens, chosen, weights = call.inputs()
            assert_async((chosen >= 0).all(), f"a number of an expert below 0 of {self.features}")
            parts = {name: p.to_local() for name, p in parameters_in(self.module).items() if p is not None}  # type: ignore[attr-defined]
            first = start_of(self.features, mesh.size(), mesh.get_local_rank())
            inputs = entrance(tokens), chosen, entrance(weights)
            return summed(self._share(call, inputs, parts, first), mesh)

        return compute

    def _share(
        self, call: ExpertCall, inputs: Sequence[torch.Tensor], parts: dict[str, torch.Tensor], first: int
    ) -> torch.Tensor:
        """What the experts from number `first` on add to the result."""
        tokens, chosen, weights = inputs
        count = len(next(iter(parts.values())))
        mine = (chosen >= first) & (chosen < first + count)
        number = chosen - first
        if first == 0:  # no expert's number: the module itself knows what that means
            beyond = chosen >= self.features
            mine, number = mine | beyond, torch.where(beyond, chosen - self.features + count, number)
        row, column = mine.nonzero(as_tuple=True)
        own = len(row)
        if not own:  # one pair whose result is left out: all ranks have the same to sum in the backward
            row = column = row.new_zeros(min(1, len(tokens)))
        experts = number[row, column] if own else row
        with _with_parameters(self.module, parts, self.features, count):
            found = call.run(self._native, tokens[row], experts.to(chosen.dtype)[:, None], weights[row, column][:, None])
        _check(found, len(row))
        return found.new_zeros((len(tokens), *found.shape[1:])).index_add(0, row[:own], found[:own])

    def _try(self, call: ExpertCall, inputs: Sequence[torch.Tensor], ranks: int) -> str:
        """Why the parts do not give what the module gives with these inputs; empty if they do."""
        tokens, chosen, weights = inputs
        names = [name for name, p in parameters_in(self.module).items() if p is not None]
        wholes = {name: _leaf(_with_values(parameters_in(self.module)[name])) for name in names}
        before = {id(one): dict(one.__dict__) for one in self.module.modules()}
        state = rng.get_state(tokens.device)
        leaves = _leaf(tokens), _leaf(weights)
        with _with_parameters(self.module, wholes, self.features, self.features):
            found = call.run(self._native, leaves[0], chosen, leaves[1])
        if not torch.equal(state, rng.get_state(tokens.device)):
            return "it draws random numbers"
        for inner in self.module.modules():
            if changed := [key for key, value in inner.__dict__.items() if before[id(inner)].get(key) is not value]:
                return f"its forward changes {changed[0]!r}"
        _check(found, len(tokens))
        looked_at = torch.linspace(-1.0, 2.0, found.numel(), device=found.device).cos().view_as(found).to(found.dtype)
        expected = [found, *torch.autograd.grad(found, [*leaves, *wholes.values()], looked_at, allow_unused=True)]

        leaves = _leaf(tokens), _leaf(weights)
        total = torch.zeros_like(found)
        parts: list[dict[str, torch.Tensor]] = []
        for rank in range(ranks):
            first, count = start_of(self.features, ranks, rank), length_of(self.features, ranks, rank)
            parts.append({name: _leaf(wholes[name][first : first + count]) for name in names})
            total = total + self._share(call, (leaves[0], chosen, leaves[1]), parts[-1], first)
        every = [part[name] for part in parts for name in names]
        gradients = torch.autograd.grad(total, [*leaves, *every], looked_at, allow_unused=True)
        of_parts = [_filled(one, like) for one, like in zip(gradients[2:], every, strict=True)]
        joined = [torch.cat(of_parts[place :: len(names)]) for place in range(len(names))]
        titles = ["results", "gradients of tokens", "gradients of weights", *(f"gradients of {name}" for name in names)]
        likes = [found, *leaves, *wholes.values()]
        for title, one, other, like in zip(titles, [total, *gradients[:2], *joined], expected, likes, strict=True):
            if not _same(_filled(one, like), _filled(other, like)):
                return f"{title} of its parts do not add up to its own"
        return ""


def experts_of(module: nn.Module) -> Experts | None:
    """Experts, as far as a module's form tells; None if it is something else."""
    own = [parameter for parameter in parameters_in(module).values() if parameter is not None]
    replaced = "forward" in module.__dict__ or call_instead(module) is not None
    if not own or replaced or type(module).__module__.startswith("torch.") or len(list(module.parameters())) > len(own):
        return None
    count = len(own[0]) if own[0].ndim else 0
    alike = all(one.ndim >= 2 and len(one) == count and one.is_floating_point() for one in own)
    if not alike or count < 2 or not any(one.ndim == 3 for one in own):
        return None
    return Experts(module, count)


@contextmanager
def _with_parameters(module: nn.Module, parameters: dict[str, torch.Tensor], of: int, count: int) -> Iterator[None]:
    """Within this context a module has other tensors as parameters, and `count` experts in the place of `of`."""
    before = {name: parameters_in(module)[name] for name in parameters}
    numbers = {
        key: value
        for key, value in module.__dict__.items()
        if "expert" in key.lower() and type(value) is int and value == of and count != of
    }
    try:
        parameters_in(module).update(parameters)  # type: ignore[arg-type]
        module.__dict__.update(dict.fromkeys(numbers, count))
        yield
    finally:
        parameters_in(module).update(before)
        module.__dict__.update(numbers)


def _routes(call: ExpertCall, count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """What the first step gave, and routes that are made up: all tokens to the same experts, and some uneven ones."""
    tokens, chosen, weights = call.inputs()
    yield tokens, chosen, weights
    choices = min(chosen.shape[1], count)
    random = torch.Generator().manual_seed(0)
    near, far = torch.arange(choices), count - 1 - torch.arange(choices)
    uneven = [
        (4 * torch.randn(1, count, generator=random) + torch.randn(_TOKENS, count, generator=random)).topk(choices).indices
        for _ in range(2)
    ]
    for route in (near.expand(_TOKENS, -1), far.expand(_TOKENS, -1), *uneven):
        made_up = torch.randn(_TOKENS, tokens.shape[1], generator=random), torch.rand(route.shape, generator=random)
        yield made_up[0].to(tokens), route.to(chosen), made_up[1].to(weights)


def _as_now(device: torch.device) -> Callable[[], Any]:
    """Makes contexts that compute as is done now."""
    kind, enabled = device.type, torch.is_autocast_enabled(device.type)
    precision = torch.get_autocast_dtype(device.type)
    return lambda: torch.autocast(kind, precision, enabled=enabled)


def _check(found: Any, tokens: int) -> None:
    if not isinstance(found, torch.Tensor) or not found.ndim or len(found) != tokens:
        raise ValueError(f"it returns {type(found).__name__}, not a tensor with a row for each token")


def _with_values(parameter: Any) -> torch.Tensor:
    """A parameter, or random values of its form where it is zeros: of those all sums would be the same."""
    if parameter.detach().any():
        return parameter.detach()  # type: ignore[no-any-return]
    random = torch.Generator().manual_seed(0)
    value = torch.randn(parameter.shape, generator=random, dtype=torch.float32) / parameter.shape[-1] ** 0.5
    return value.to(parameter)


def _leaf(tensor: Any) -> torch.Tensor:
    leaf: torch.Tensor = tensor.detach().requires_grad_()
    return leaf


def _filled(gradient: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(like) if gradient is None else gradient


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    off = max(_OFF, torch.finfo(other.dtype).eps ** 0.5)
    one, other = one.detach().double(), other.detach().double()
    return one.shape == other.shape and bool(((one - other).abs() <= off * other.abs().max()).all()) if one.numel() else True


def _unused(*_: Any) -> Any:
    raise RuntimeError("experts compute with all of their inputs")
