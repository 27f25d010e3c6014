"""Notes what a script does to large tensors while it builds a model, and does that again for those that are wanted.

Large tensors get addresses and no memory (arena). An operation that would write one is noted instead, with the state of the
random generator that it starts from, so that a tensor gets the values that it would have had, whichever others are made.
What is drawn is drawn (into memory that is given back): later draws of the script start from the same state as ever. Small
tensors are made at once.
"""

from __future__ import annotations

import gc
import hashlib
import weakref
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from ..ground.errors import PipelineError
from ..ground.schemas import schema_of
from ..ground.torch_private import TorchDispatchMode, version_of, without_modes
from ..ground.tree import tensors
from .arena import Arena
from .schemas import draws, mapped, results_on_meta, written

# Bytes; smaller tensors are made at once.
SMALL = 1 << 16
_ALLOCATE = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
_BY_ADDRESS = frozenset({"numpy", "tolist", "__array__", "__reduce_ex__", "__dlpack__"})


class _Place(NamedTuple):
    """A tensor in the arena."""

    address: int
    nbytes: int
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class _Given(NamedTuple):
    """A large tensor of the script's, which must not change."""

    tensor: torch.Tensor
    version: int


class _Noted(NamedTuple):
    """made: the places of what it returns anew. rolled: the generator, and its state before; None if it draws nothing."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reads: tuple[int, ...]
    made: tuple[_Place, ...]
    rolled: torch.Tensor | None


class Tape(TorchDispatchMode):
    """The record of what was done to one model.

    Args:
        small: bytes up to which a tensor is made at once.
        draws: whether later random numbers go on as ever; without, nothing is drawn for large tensors.
    """

    def __init__(self, small: int = SMALL, *, draws: bool = True) -> None:
        super().__init__()
        self._draws = draws
        self._small = small
        self._arena, self._scratch = Arena(), Arena()
        self._noted: list[_Noted] = []
        self._writers: dict[int, list[int]] = defaultdict(list)  # storage -> numbers of what writes it
        self._storages: dict[int, torch.UntypedStorage] = {}  # of what waits, by address
        self._filled = 0  # bytes that this tape has written itself

    def waits(self, tensor: torch.Tensor) -> bool:
        """Returns whether a tensor has no values yet."""
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            return False
        with torch.DisableTorchFunctionSubclass():
            return tensor.untyped_storage().data_ptr() in self._storages

    def fill_all_but_parameters(self) -> None:
        """Gives values to whatever else the script still holds: buffers, masks, data. At the end of a block.

        Raises:
            PipelineError: something in the block wrote past this tape.
        """
        if self.written():
            raise PipelineError(
                "parameters were written in the block past torch's operations: in another thread, or by their address",
                hint="do that without the block, or after the first step",
            )
        gc.collect()
        parameters = (one for one in gc.get_objects() if issubclass(type(one), torch.nn.Parameter))
        kept = {self._place(one).address for one in parameters if self.waits(one)}
        for address in list(self._storages):
            if address not in kept:
                held = weakref.ref(self._storages.pop(address))
                if (storage := held()) is not None:  # by a tensor of the script's
                    with without_modes(), torch.random.fork_rng([]):
                        storage.copy_(self._replayed(address, storage.nbytes()))
        self._filled = self._arena.written()

    def written(self) -> int:
        """Bytes that were written past this tape."""
        return self._arena.written() - self._filled

    def values(self, tensor: torch.Tensor) -> torch.Tensor:
        """A new tensor with the values that this one has now, of the same strides.

        Raises:
            PipelineError: a tensor that they are made from has changed since.
        """
        with torch.DisableTorchFunctionSubclass(), torch.no_grad(), torch.random.fork_rng([]), without_modes():
            place = self._place(tensor.detach())
            return _at(place, self._replayed(place.address, place.nbytes))

    def fingerprint(self) -> bytes:
        """Equal on ranks that have built the same model from the same seed."""
        digest = hashlib.sha256()
        first = min(self._writers, default=0)

        def shown(leaf: Any) -> Any:
            if isinstance(leaf, _Place):
                return leaf._replace(address=leaf.address - first)
            if isinstance(leaf, _Given):
                return tuple(leaf.tensor.shape), str(leaf.tensor.dtype)
            return leaf.tolist() if isinstance(leaf, torch.Tensor) else repr(leaf)

        for noted in self._noted:
            digest.update(repr((str(noted.function), mapped(shown, noted.args), mapped(shown, noted.kwargs))).encode())
            if noted.rolled is not None:
                digest.update(noted.rolled.numpy().tobytes())
        return digest.digest()

    # While the model is built ----------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = tensors((args, kwargs))
        waiting = [one for one in inputs if self.waits(one)]
        writes = written(func, args, kwargs)
        if writes:
            return self._write(func, args, kwargs, waiting, writes)
        if func.is_view or not (waiting or _on_cpu(inputs, kwargs)):
            return func(*args, **kwargs)
        return self._make(func, args, kwargs, waiting)

    def _write(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        waiting: list[torch.Tensor],
        writes: list[torch.Tensor],
    ) -> Any:
        """An operation in place."""
        if not any(self.waits(one) for one in writes):
            args, kwargs = self._with_values(args, kwargs) if waiting else (args, kwargs)
            return func(*args, **kwargs)
        if not all(self.waits(one) for one in writes):
            raise PipelineError(
                f"{func} writes large and small tensors at once, which delayed initialisation cannot note",
                hint="loop over the tensors, or build this module outside of the block",
            )
        self._note(func, args, kwargs, ())
        if self._draws and draws(func):
            scratch = {id(one): self._scratch.tensor(one.size(), one.stride(), one.dtype) for one in writes}
            func(*mapped(lambda leaf: scratch.get(id(leaf), leaf), args), **kwargs)
            self._scratch.give_back()
        return args[0] if len(schema_of(func).returns) == 1 else None

    def _make(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], waiting: list[torch.Tensor]) -> Any:
        """An operation that returns new tensors."""
        shapes = results_on_meta(func, args, kwargs)
        large = shapes is not None and all(one.numel() * one.element_size() > self._small for one in shapes)
        if shapes is None or not large:
            args, kwargs = self._with_values(args, kwargs) if waiting else (args, kwargs)
            return func(*args, **kwargs)
        made = [self._arena.tensor(one.size(), one.stride(), one.dtype) for one in shapes]
        self._storages.update((one.untyped_storage().data_ptr(), one.untyped_storage()) for one in made)
        if schema_of(func).name.split("::")[-1] not in _ALLOCATE:
            self._note(func, args, kwargs, made)
            if self._draws and draws(func):
                given = self._with_values(args, kwargs) if waiting else (args, kwargs)
                func(*given[0], **given[1])
        return made[0] if len(schema_of(func).returns) == 1 else tuple(made)

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: Iterable[torch.Tensor]) -> None:
        places = tuple(map(self._place, made))
        reads = tuple({self._place(one).address for one in tensors((args, kwargs)) if self.waits(one)})
        rolled = _generator(args, kwargs).get_state() if draws(func) else None
        number = len(self._noted)
        self._noted.append(_Noted(func, mapped(self._kept, args), mapped(self._kept, kwargs), reads, places, rolled))
        changed = {self._place(one).address for one in written(func, args, kwargs)}
        for address in [*changed, *(place.address for place in places)]:
            self._writers[address].append(number)

    def _kept(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Generator):  # its state is noted
            return None
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if self.waits(leaf):
            return self._place(leaf)
        if leaf.numel() * leaf.element_size() <= self._small:
            return leaf.detach().clone()
        return _Given(leaf, version_of(leaf))

    @staticmethod
    def _place(tensor: torch.Tensor) -> _Place:
        storage = tensor.untyped_storage()
        return _Place(
            storage.data_ptr(), storage.nbytes(), tensor.dtype, tensor.size(), tensor.stride(), int(tensor.storage_offset())
        )

    def _with_values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        def value(leaf: Any) -> Any:
            return self.values(leaf) if isinstance(leaf, torch.Tensor) and self.waits(leaf) else leaf

        return mapped(value, args), mapped(value, kwargs)

    # Afterwards ------------------------------------------------------------------------------------------------------

    def _replayed(self, address: int, nbytes: int) -> torch.UntypedStorage:
        """A new storage with the values of one."""
        memory: dict[int, torch.UntypedStorage] = {}

        def here(where: int, size: int) -> torch.UntypedStorage:
            if where not in memory:
                memory[where] = torch.zeros(size, dtype=torch.uint8).untyped_storage()
            return memory[where]

        def real(leaf: Any) -> Any:
            if isinstance(leaf, _Place):
                return _at(leaf, here(leaf.address, leaf.nbytes))
            if isinstance(leaf, _Given):
                if version_of(leaf.tensor) != leaf.version:
                    raise PipelineError(
                        f"a tensor of shape {list(leaf.tensor.shape)} that a parameter was made from has changed since",
                        hint="give the model a copy of it (tensor.clone())",
                    )
                return leaf.tensor
            return leaf

        for number in self._needed(address):
            noted = self._noted[number]
            if noted.rolled is not None:
                torch.default_generator.set_state(noted.rolled)
            result = noted.function(*mapped(real, noted.args), **mapped(real, noted.kwargs))
            for place, made in zip(noted.made, tensors(result) if noted.made else (), strict=True):
                _at(place, here(place.address, place.nbytes)).copy_(made)
        return here(address, nbytes)

    def _needed(self, address: int) -> list[int]:
        """Numbers of what was done to a storage, and to those that this was made from, in its order."""
        found: set[int] = set()
        waiting = [(address, len(self._noted))]
        while waiting:
            where, before = waiting.pop()
            for number in self._writers.get(where, ()):
                if number < before and number not in found:
                    found.add(number)
                    waiting += [(read, number) for read in self._noted[number].reads if read != where]
        return sorted(found)


class Addresses(TorchFunctionMode):
    """Gives values to what goes past the operations, straight to a tensor's memory."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _BY_ADDRESS and args and self._tape.waits(args[0]):
            args = (self._tape.values(args[0]), *args[1:])
            result = func(*args, **(kwargs or {}))
            if hasattr(result, "setflags"):  # numpy's: what is written into it would be lost
                result.setflags(write=False)
            return result
        return func(*args, **(kwargs or {}))


def _at(place: _Place, storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=place.dtype).set_(storage, place.offset, place.size, place.stride)  # type: ignore[call-overload]


def _on_cpu(inputs: list[torch.Tensor], kwargs: dict[str, Any]) -> bool:
    """Whether what is made is on the CPU."""
    device = kwargs.get("device")
    return (device is None or torch.device(device).type == "cpu") and all(one.device.type == "cpu" for one in inputs)


def _generator(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Generator:
    given = (one for one in (*args, *kwargs.values()) if isinstance(one, torch.Generator))
    return next(given, torch.default_generator)
