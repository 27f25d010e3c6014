"""Trainings that are compared with a tolerance stay far away from it: rounding that grows from step to step is no test."""

from __future__ import annotations

from typing import Any

import torch

# A difference may be this part of the tolerance: another machine, or another version of torch, adds in another order.
ROOM = 1 / 5


def assert_trained_alike(found: Any, expected: Any, rtol: float, atol: float = 0.0) -> None:
    """As `torch.testing.assert_close`, of tensors, of dictionaries of tensors or of lists of numbers; and with room.

    Raises:
        AssertionError: they differ, or they are so far apart that they soon may.
    """
    pair = [torch.tensor(one, dtype=torch.double) if isinstance(one, list) else one for one in (found, expected)]
    torch.testing.assert_close(*pair, rtol=rtol, atol=atol)
    try:
        torch.testing.assert_close(*pair, rtol=rtol * ROOM, atol=atol * ROOM)
    except AssertionError as error:
        raise AssertionError(
            f"differs by more than a fifth of its tolerance (rtol={rtol}, atol={atol}), and will fail elsewhere: make the "
            f"training contractive (a smaller rate, fewer steps) or compare in double. {error}"
        ) from None
