"""The random generators of Python and numpy: their states as bytes of one length, so that they can travel between stages.

A step leaves them as they were. Where the forward draws from them, each microbatch starts from a state that depends on the
state at the start of the step, the number of steps and the number of the microbatch; a stage that skips a module which
draws goes on from the state that the module's own stage has sent.
"""

from __future__ import annotations

import hashlib
import pickle
import random
import sys
from typing import Any

import torch

# Python's generator has 625 numbers, numpy's 624: less than 7 KiB pickled.
SIZE = 8192
State = tuple[Any, Any]


def get_state() -> State:
    """The states of both; None for numpy where it is not loaded."""
    numpy: Any = sys.modules.get("numpy")
    return random.getstate(), numpy.random.get_state() if numpy is not None else None


def set_state(state: State) -> None:
    """Sets what `get_state` gave."""
    random.setstate(state[0])
    if state[1] is not None:
        sys.modules["numpy"].random.set_state(state[1])  # type: ignore[attr-defined]


def same(one: State, other: State) -> bool:
    """Returns whether nothing was drawn between the two."""
    if one[0] != other[0] or (one[1] is None) != (other[1] is None):
        return one[0] == other[0] and one[1] is None  # numpy was loaded in between
    return one[1] is None or (bool((one[1][1] == other[1][1]).all()) and one[1][2:] == other[1][2:])


def seed_of(state: State, step: int) -> int:
    """A number for a step, from the states at its start."""
    return int.from_bytes(hashlib.sha256(pickle.dumps((state, step))).digest()[:6], "big")


def start(seed: int, microbatch: int) -> None:
    """Sets both to the start of a microbatch."""
    random.seed(seed + microbatch)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed((seed + microbatch) % 2**32)  # type: ignore[attr-defined]


def encode(state: State) -> torch.Tensor:
    """uint8, shape (SIZE,)."""
    data = pickle.dumps(state)
    return torch.frombuffer(bytearray(data.ljust(SIZE, bytes(1))), dtype=torch.uint8)


def decode(tensor: torch.Tensor) -> State:
    """Returns what `encode` was given."""
    state: State = pickle.loads(bytes(tensor.cpu().tolist()))
    return state
