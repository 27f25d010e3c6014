"""`hvd.DistributedOptimizer`: an optimizer whose gradients are reduced over all ranks while the backward runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch

from .compression import Compression
from .engine.handle import Handle
from .process_sets import ProcessSet, global_process_set
from .session import worker
from .submit import ReduceOp, Reduction, announce, reduction, sparse_allreduce

_Parameter = torch.Tensor


class _Group:
    """Parameters whose gradients are reduced as one operation: mostly a single one."""

    def __init__(self, name: str, parameters: list[_Parameter]) -> None:
        self.name, self.parameters = name, parameters
        self.ready: set[_Parameter] = set()  # whose gradients of all passes are there
        self.handle: Handle | None = None
        self.contexts: list[Any] = []  # what decompressing needs to know


class Reducer:
    """Reduces the gradients of an optimizer's parameters.

    Args:
        names: of parameters; the others are counted.
        groups: parameters that are reduced together.
        passes: how many backward passes add up before the gradients are reduced.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        names: dict[_Parameter, str],
        groups: list[list[_Parameter]],
        compression: Any,
        passes: int,
        how: Reduction,
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        self._names, self._compression, self._passes, self._how = names, compression, passes, how
        self._sparse_as_dense, self._process_set = sparse_as_dense, process_set
        self._group_of: dict[_Parameter, _Group] = {}
        self._left: dict[_Parameter, int] = {}  # backward passes to come until a parameter's gradient is reduced
        self.synchronized = False  # since the last backward
        self.should_synchronize = True
        for number, parameters in enumerate(groups):
            self._add(_Group(f"gradients.group.{number}", parameters))
        for index, group in enumerate(optimizer.param_groups):
            self.add(index, group["params"])

    def add(self, index: int, parameters: Iterable[_Parameter]) -> None:
        """Takes part in the backward of parameters of the optimizer's group `index`, where it does not already."""
        for number, parameter in enumerate(parameters):
            if parameter.requires_grad and parameter not in self._group_of:
                name = self._names.get(parameter, f"gradient.noname.{index}.{number}")
                self._add(_Group(name, [parameter]))

    def _add(self, group: _Group) -> None:
        for parameter in group.parameters:
            self._group_of[parameter] = group
            self._left[parameter] = self._passes
            parameter.register_post_accumulate_grad_hook(self._take)

    def set_passes(self, passes: int) -> None:
        """Another number of passes, from the next step on."""
        self._passes = passes
        self._left = dict.fromkeys(self._left, passes)

    def _take(self, parameter: _Parameter) -> None:
        """A backward pass has added to a gradient."""
        group = self._group_of[parameter]
        self.synchronized = False
        if self._left[parameter] <= 0:
            raise AssertionError(
                f"the gradient of {self._name(parameter)!r} was computed more than {self._passes} time(s) before "
                "optimizer.step(): give DistributedOptimizer(backward_passes_per_step=...) as many as there are"
            )
        self._left[parameter] -= 1
        if self._left[parameter] == 0:
            group.ready.add(parameter)
            if len(group.ready) == len(group.parameters):
                self._begin(group)

    def _name(self, parameter: _Parameter) -> str:
        group = self._group_of[parameter]
        return self._names.get(parameter, group.name)

    def _begin(self, group: _Group) -> None:
        """Announces the reduction of a group's gradients; those of parameters that were not used are zeros."""
        void = all(parameter.grad is None for parameter in group.parameters)
        for parameter in group.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            elif parameter.grad.is_sparse and self._sparse_as_dense:
                parameter.grad = parameter.grad.to_dense()
        gradients = [parameter.grad for parameter in group.parameters if parameter.grad is not None]
        if any(gradient.is_sparse for gradient in gradients):
            if len(gradients) > 1:
                raise ValueError(f"{group.name}: sparse gradients cannot be grouped: set sparse_as_dense=True")
            group.contexts = [None]
            group.handle = sparse_allreduce(gradients[0], group.name, self._how, self._process_set)
            return
        packed = [self._compression.compress(gradient.detach()) for gradient in gradients]
        group.contexts = [context for _, context in packed]
        fields: dict[str, Any] = {**self._how.fields, **({"void": True} if void else {})}
        sent = [one for one, _ in packed]
        group.handle = announce("allreduce", sent, group.name, self._process_set, lambda outputs: outputs, **fields)

    def synchronize(self) -> None:
        """Waits until all gradients are reduced; begins with those that no backward has completed.

        Raises:
            HorovodInternalError: gradients of ranks do not fit together, or a rank is gone.
        """
        groups = list({id(group): group for group in self._group_of.values()}.values())
        for group in groups:
            if group.handle is None:
                self._begin(group)
        here = worker()
        try:
            for group in groups:
                assert group.handle is not None
                self._put_back(group, here.wait(group.handle))
        finally:
            for group in groups:
                group.handle, group.contexts = None, []
                group.ready.clear()
            self._left = dict.fromkeys(self._left, self._passes)
        self.synchronized = True

    def _put_back(self, group: _Group, made: Any) -> None:
        outputs = made if isinstance(made, list) else [made]
        for parameter, output, context in zip(group.parameters, outputs, group.contexts, strict=True):
            if output.is_sparse:
                parameter.grad = output
                continue
            reduced = self._compression.decompress(output, context)
            if parameter.grad is None or parameter.grad.is_sparse:
                parameter.grad = reduced
            elif reduced.data_ptr() != parameter.grad.data_ptr():
                parameter.grad.copy_(reduced)

    @property
    def is_busy(self) -> bool:
        """Tells whether reductions have begun that nobody has waited for."""
        return any(group.handle is not None for group in self._group_of.values())


class _Distributed:
    """What `DistributedOptimizer` adds to the class of the optimizer that it is given."""

    reducer: Reducer

    def synchronize(self) -> None:
        """Waits until all gradients are reduced; to be called before they are changed, say by clipping."""
        self.reducer.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """In here `step` takes the gradients as they are, after `synchronize` was called."""
        self.reducer.should_synchronize = False
        try:
            yield
        finally:
            self.reducer.should_synchronize = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """How many backward passes add up before gradients are reduced."""
        self.reducer.set_passes(_checked_passes(passes))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Waits for the gradients, and updates the parameters. A closure's gradients are reduced each time it is called."""
        reducer = self.reducer
        if not reducer.should_synchronize:
            return super().step(closure)  # type: ignore[misc]
        if closure is not None:
            return super().step(_reducing(closure, reducer))  # type: ignore[misc]
        if reducer.synchronized:
            warnings.warn(
                "optimizer.step() after optimizer.synchronize(): the gradients are not reduced again; "
                "put the step into `with optimizer.skip_synchronize():`",
                stacklevel=2,
            )
        else:
            reducer.synchronize()
        reducer.synchronized = False
        return super().step()  # type: ignore[misc]

    def zero_grad(self, *arguments: Any, **options: Any) -> None:
        """As in the optimizer's own class.

        Raises:
            AssertionError: gradients are being reduced.
        """
        if self.reducer.is_busy:
            raise AssertionError(
                "optimizer.zero_grad() was called while gradients are being reduced: call optimizer.step() or "
                "optimizer.synchronize() after loss.backward(), and then zero_grad()"
            )
        super().zero_grad(*arguments, **options)  # type: ignore[misc]

    def add_param_group(self, group: dict[str, Any]) -> None:
        """As in the optimizer's own class; the gradients of these parameters are reduced, too."""
        super().add_param_group(group)  # type: ignore[misc]
        self.reducer.add(len(self.param_groups) - 1, self.param_groups[-1]["params"])  # type: ignore[attr-defined]


def _reducing(closure: Callable[[], Any], reducer: Reducer) -> Callable[[], Any]:
    def reduced() -> Any:
        loss = closure()
        reducer.synchronize()
        reducer.synchronized = False
        return loss

    return reduced


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, _Parameter]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: Any = ReduceOp.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[_Parameter]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """An optimizer of the same class, with the same parameters, options and state, whose gradients are reduced.

    A parameter without a gradient gets zeros, or what other ranks have. Gradients of several backward passes are added up,
    not averaged, as without Horovod.

    Args:
        named_parameters: the model's, for messages; all of the optimizer's must be among them.
        backward_passes_per_step: how many backward passes there are before `step`.
        op: Average or Sum.
        gradient_predivide_factor: with Average: gradients are divided by it before they are added up, and multiplied after.
        num_groups, groups: how many operations the gradients are put into, or which gradients go into one.
        sparse_as_dense: sparse gradients are made dense instead of being gathered.
        process_set: the ranks that train this model.

    Raises:
        ValueError: names are missing or doubled, or the arguments contradict each other.
        NotImplementedError: for Adasum.
    """
    how = reduction(None, op)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(f"DistributedOptimizer wraps an optimizer of torch.optim, not a {type(optimizer).__name__}")
    if hasattr(optimizer, "reducer") and isinstance(optimizer, _Distributed):
        raise ValueError("the optimizer is a DistributedOptimizer already")
    if gradient_predivide_factor != 1.0:
        if op != ReduceOp.Average:
            raise ValueError("gradient_predivide_factor works with op=hvd.Average only")
        how = how._replace(before=1 / gradient_predivide_factor, after=float(gradient_predivide_factor))
    passes = _checked_passes(backward_passes_per_step)
    parameters = [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]
    names = _names(named_parameters, parameters)
    together = _groups(groups if groups is not None else num_groups, parameters)
    kind = type(optimizer)
    made: Any = object.__new__(type(kind.__name__, (_Distributed, kind), {}))
    # A scheduler may have put its own `step` upon the optimizer, which would pass ours by.
    made.__dict__.update({name: value for name, value in optimizer.__dict__.items() if name != "step"})
    made.reducer = Reducer(made, names, together, compression, passes, how, sparse_as_dense, process_set)
    return made


def _checked_passes(passes: int) -> int:
    if passes < 1:
        raise ValueError(f"backward_passes_per_step must be at least 1, not {passes}")
    return passes


def _names(named_parameters: Iterable[tuple[str, _Parameter]] | None, parameters: list[_Parameter]) -> dict[_Parameter, str]:
    """Names of parameters, {} where none are given."""
    if named_parameters is None:
        return {}
    pairs = list(named_parameters)
    if any(not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[0], str) for pair in pairs):
        raise ValueError("named_parameters must be pairs of name and parameter: model.named_parameters()")
    listed = [name for name, _ in pairs]
    doubled = sorted({name for name in listed if listed.count(name) > 1}) if len(set(listed)) < len(listed) else []
    if doubled:
        raise ValueError(f"named_parameters has names twice: {', '.join(doubled[:4])}")
    names = {parameter: name for name, parameter in pairs}
    if unnamed := sum(parameter not in names for parameter in parameters):
        raise ValueError(f"{unnamed} parameter(s) of the optimizer are not in named_parameters")
    return names


def _groups(groups: int | Sequence[Sequence[_Parameter]], parameters: list[_Parameter]) -> list[list[_Parameter]]:
    """The parameters that are reduced together."""
    if isinstance(groups, int):
        if groups < 0:
            raise ValueError(f"groups must not be negative: {groups}")
        count = min(groups, len(parameters))
        bounds = [len(parameters) * index // count for index in range(count + 1)] if count else []
        return [parameters[start:end] for start, end in pairwise(bounds)]
    known = set(parameters)
    listed = [[one for one in group if one in known] for group in groups]
    flat = [one for group in listed for one in group]
    if len(set(flat)) != len(flat):
        raise ValueError("groups has a parameter twice")
    return [group for group in listed if group]
