"""How a job asks for copies of its state in the hosts' memory."""

from __future__ import annotations

from trainshed.base.errors import did_you_mean
from trainshed.base.record import Record


class Memory(Record):
    """
    every_steps: finished steps that may be lost at most.
    copies: hosts that may be lost at once.
    """

    every_steps: int = 1
    copies: int = 1


def read_memory(value: object) -> Memory:
    """What a person wrote, an object such as {"every_steps": 1, "copies": 1}. Raises ValueError: it says what is wrong."""
    if not isinstance(value, dict):
        raise ValueError('must be an object such as {"every_steps": 1, "copies": 1}')
    for name, number in value.items():
        if name not in Memory._fields:
            near = did_you_mean(str(name), Memory._fields)
            raise ValueError(f"{name!r} is not a field: {', '.join(Memory._fields)} are{f' ({near})' if near else ''}")
        if type(number) is not int or not 1 <= number <= 1_000_000:
            raise ValueError(f"{name} must be a whole number from 1 to 1000000")
    return Memory(**value)
