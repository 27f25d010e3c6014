"""What a step returns reaches every rank of the pipeline, whatever it is and however it changes from step to step."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import trainshed.parallel as pipe

from .table import begin, case

SHOWN = [0]  # what the next step returns


def everything(kind: int, h: torch.Tensor) -> Any:
    """Results of many kinds, sizes and structures; the same for the same values."""
    scalar = h.sum()
    return [
        scalar,
        (scalar, h, {"mean": h.mean(0), "text": f"step {kind}", "count": kind}),
        (h.repeat(kind + 1, 1), h > 0, h.to(torch.bfloat16), (h * 1j).conj(), h.t(), h[:0], h[:, 0].expand(3, -1)),
        [None, "text", float(scalar), h.long()],
        {"mean": h.mean()},
    ][kind % 5]


def step(model: Any, x: torch.Tensor) -> Any:
    h = model(x)
    model.backward(h.square().mean())
    return everything(SHOWN[0], h)


@case(ranks=2)
def results_of_every_kind_and_size() -> None:
    begin(partitions=2, microbatches=2)
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 6))
    alone = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 6))
    alone.load_state_dict(net.state_dict())
    model = pipe.PipelineModel(net)
    model.set_partition(net[0], 0)
    model.set_partition(net[1], 1)
    run = pipe.step(step)
    for number in (0, 1, 2, 3, 4, 2, 0, 2, 7, 12, 3, 1, 1, 0):
        SHOWN[0] = number
        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(number))
        found = run(model, x)
        with torch.no_grad():
            expected = [everything(number, alone(part)) for part in x.chunk(2)]
        _same(found, expected, f"step {number}")


def _same(found: Any, expected: list[Any], where: str) -> None:
    """What the steps of both microbatches returned, joined, against each of them."""
    first = expected[0]
    if isinstance(first, torch.Tensor):
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == other.dtype and one.shape == other.shape, where
            assert torch.allclose(one, other, atol=1e-6), where
    elif isinstance(first, dict):
        for key in first:
            _same(found[key], [one[key] for one in expected], f"{where}, {key}")
    elif isinstance(first, (tuple, list)):
        for index in range(len(first)):
            _same(found[index], [one[index] for one in expected], f"{where}, {index}")
    elif isinstance(first, float):
        assert all(abs(one - other) < 1e-5 for one, other in zip(found, expected, strict=True)), where
    else:
        assert list(found) == expected, (where, found, expected)
